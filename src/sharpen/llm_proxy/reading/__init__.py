"""What was said: answers read as they pass, whole or streamed."""
