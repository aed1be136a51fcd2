"""A head leaves with the beginning of its body, and never waits for it."""

import asyncio

from tests.web.internals import JoinedHead

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Wire(asyncio.Transport):
    """Keeps what is handed to the system, piece by piece."""

    def __init__(self):
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.pieces = []
        self.is_closed = False

    def write(self, data):
        assert not self.is_closed
        self.pieces.append(data)

    def close(self):
        self.is_closed = True

    def is_closing(self):
        return self.is_closed

    def pause_reading(self):
        self.pieces.append("pause")

    def resume_reading(self):
        self.pieces.append("resume")

    def get_write_buffer_size(self):
        return 7


def joined():
    wire = Wire()
    return wire, JoinedHead(wire, asyncio.get_running_loop())


async def test_a_head_and_a_body_are_one_piece():
    wire, transport = joined()
    transport.write(HEAD)
    transport.write(b"body")
    transport.write(b"more")
    await asyncio.sleep(0)
    assert wire.pieces == [HEAD + b"body", b"more"]


async def test_a_head_alone_leaves_when_the_loop_goes_on():
    wire, transport = joined()
    transport.write(HEAD)
    assert wire.pieces == []
    await asyncio.sleep(0)
    assert wire.pieces == [HEAD]
    transport.write(b"late")
    assert wire.pieces == [HEAD, b"late"]


async def test_a_head_leaves_before_the_end():
    wire, transport = joined()
    transport.write(HEAD)
    transport.close()
    await asyncio.sleep(0)
    assert (wire.pieces, transport.is_closing()) == ([HEAD], True)


async def test_everything_else_is_that_of_the_transport():
    wire, transport = joined()
    transport.pause_reading()
    transport.resume_reading()
    assert wire.pieces == ["pause", "resume"]
    assert transport.get_extra_info("peername") == ("127.0.0.1", 1)
    assert transport.get_write_buffer_size() == 7
