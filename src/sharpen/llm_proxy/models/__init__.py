"""The model list: what agents may ask for, and who answers."""
