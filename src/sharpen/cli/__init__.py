"""The program `sharpen`: one module a command."""

from .program import main as main

__all__ = ["main"]
