"""Read recorded runs: their files, metrics, rollouts and transcripts."""
