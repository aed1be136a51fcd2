"""What a child knows of its parent."""

import errno
import socket

from tests.errors import raises
from tests.execution.internals import STOP, Parent, process

from .processes import child_pids


def test_a_child_that_asks_knows_at_once_that_its_parent_has_gone():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        parent = Parent(theirs, "runner")
        assert not parent.is_telling_to_stop()
        ours.close()
        assert parent.is_telling_to_stop()


def test_a_child_that_asks_sees_the_word_to_stop_and_leaves_it_to_who_listens():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        parent = Parent(theirs, "runner")
        ours.send(STOP)
        assert parent.is_telling_to_stop()
        assert theirs.recv(100) == STOP


def test_a_child_that_cannot_be_watched_ends_at_once(monkeypatch):
    def out_of_files(self):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(process._Watcher, "_start", out_of_files)
    before = set(child_pids())
    with raises(OSError, "Too many"):
        process.ChildProcess("runner")
    assert set(child_pids()) <= before
    assert process._watcher._children == {}
