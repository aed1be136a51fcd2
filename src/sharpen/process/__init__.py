"""Child processes: a fresh interpreter with a channel of frames, or a command, each with an orderly end.

`child.py` has what all children have in common, and commands; `python_process.py` both sides of a fresh interpreter;
`watcher.py` ends what a parent that was killed has left behind.
"""
