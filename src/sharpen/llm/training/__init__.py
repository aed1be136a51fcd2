"""Fine-tuning runs: settings, the wrappers on TRL's trainers, checkpoints."""
