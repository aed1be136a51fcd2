"""Run folders, which hold everything that belongs to one run, and what a run shows on the screen."""

from .folder import RunFolder, runs_root

__all__ = ["RunFolder", "runs_root"]
