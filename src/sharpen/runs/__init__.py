"""Run folders: where everything that belongs to one run lies, and what a run shows on the screen."""

from .folder import RunFolder, runs_root

__all__ = ["RunFolder", "runs_root"]
