"""Reading what was kept: runs, their curves, and what happened in their rollouts."""
