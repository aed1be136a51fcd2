"""The command line: `sharpen mcp`, `sharpen --version`."""

from .program import main as main

__all__ = ["main"]
