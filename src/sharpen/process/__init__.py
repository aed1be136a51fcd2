"""Child processes: a fresh interpreter with a channel of frames, or a command, each with an orderly end.

`child.py` is the side of the parent, `parent.py` that of the child, `channel.py` what both speak.
"""
