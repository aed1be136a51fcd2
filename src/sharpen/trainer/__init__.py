"""The trainer: builds the parts and hands them to a strategy."""
