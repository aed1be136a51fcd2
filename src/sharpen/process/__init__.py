"""Child processes: a fresh interpreter with a channel of frames, or a command, each with an orderly end.

`child.py` is the parent's side, `parent.py` the child's side and the channel, `watcher.py` ends what a parent that was
killed has left behind.
"""
