"""What was asked: requests of every API in the words of the GenAI conventions."""
