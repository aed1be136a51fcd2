"""What a child knows of its parent."""

import socket

from sharpen.execution.child import Parent
from sharpen.execution.jobs import STOP


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
