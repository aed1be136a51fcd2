"""What the optimisers of prompts share."""
