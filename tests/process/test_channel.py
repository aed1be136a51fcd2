"""Frames over a socket: whole, in order, in both directions at once."""

import asyncio
import os
import socket
import threading

import pytest

from tests.process.internals import MESSAGE, READY, STOP, Channel, ChannelClosed, ChannelError

BIG = os.urandom(1 << 20) * 24


@pytest.fixture
def ends():
    pair = socket.socketpair()
    yield pair
    for each in pair:
        each.close()


@pytest.fixture
def channels(ends):
    return Channel(ends[0]), Channel(ends[1])


def in_thread(call, *arguments):
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    return thread


def test_frames_arrive_whole_and_in_order_with_their_kinds(channels):
    ours, theirs = channels
    ours.send(b"\0\xf5\x9d", memoryview(b"\n"), bytearray(b"x"))
    ours.send(kind=STOP)
    ours.send(b"last", kind=READY)
    assert theirs.peek_kind() == MESSAGE
    assert [theirs.receive() for _ in range(3)] == [(MESSAGE, b"\0\xf5\x9d\nx"), (STOP, b""), (READY, b"last")]
    assert theirs.receive(timeout=0.01) is None
    assert theirs.peek_kind() is None


def test_large_frames_that_cross_do_not_block_each_other(channels):
    received = []

    def send_then_receive(channel):
        channel.send(BIG)
        received.append(channel.receive(30))

    threads = [in_thread(send_then_receive, each) for each in channels]
    for thread in threads:
        thread.join(60)
    assert received == [(MESSAGE, BIG)] * 2


async def test_large_frames_cross_in_an_event_loop(channels):
    received = []
    receiving = [asyncio.create_task(each.receive_all(received.append)) for each in channels]
    await asyncio.wait_for(asyncio.gather(*(asyncio.to_thread(each.send, BIG) for each in channels)), 60)
    for channel in channels:
        channel.send(b"last")
        channel._end.shutdown(socket.SHUT_WR)
    ended = await asyncio.wait_for(asyncio.gather(*receiving, return_exceptions=True), 60)
    assert [type(error) for error in ended] == [ChannelClosed] * 2
    is_whole = sorted(received, key=lambda frame: len(frame[1])) == [(MESSAGE, b"last")] * 2 + [(MESSAGE, BIG)] * 2
    assert is_whole  # a plain value: nobody wants to read the difference of 24 MiB


def test_frames_of_several_threads_do_not_mix(channels):
    ours, theirs = channels
    bodies = [bytes([number]) * 300_000 for number in range(8)]
    threads = [in_thread(ours.send, body) for body in bodies]
    received = [theirs.receive(30)[1] for _ in bodies]
    for thread in threads:
        thread.join()
    assert sorted(received) == bodies


def test_everything_that_was_sent_is_received_before_the_end_is_noticed(channels):
    ours, theirs = channels
    ours.send(b"last words")
    ours.close()
    assert theirs.receive() == (MESSAGE, b"last words")
    for receive in (theirs.receive, theirs.peek_kind):
        with pytest.raises(ChannelClosed):
            receive()
    with pytest.raises(ChannelClosed):
        theirs.send(b"anybody?")


@pytest.mark.parametrize("body", [b"short", b"x" * 300_000], ids=["small", "large"])
def test_a_frame_that_was_cut_short_is_not_a_frame(ends, body):
    source, target = socket.socketpair()
    with source, target:
        sending = in_thread(Channel(source).send, body)
        raw = b""
        while len(raw) < len(body) + 11:
            raw += target.recv(1 << 20)
        sending.join()
    writing = in_thread(lambda: (ends[0].sendall(raw[:-1]), ends[0].close()))
    with pytest.raises(ChannelClosed):
        Channel(ends[1]).receive(10)
    writing.join()


def test_text_in_the_socket_is_an_error_that_shows_it(ends, channels):
    channels[0].send(b"good")
    ends[0].sendall(b"Traceback (most recent call last)")
    assert channels[1].receive() == (MESSAGE, b"good")
    for _ in range(2):
        with pytest.raises(ChannelError) as caught:
            channels[1].receive(1)
        assert not isinstance(caught.value, ChannelClosed)
        assert "Traceback (most recent" in str(caught.value)


def test_a_lossy_frame_is_left_out_while_nobody_reads(channels):
    ours, theirs = channels
    count = 0
    while ours.send(b"%06d" % count, b"x" * 1000, lossy=True):
        count += 1
    assert count > 10
    assert not ours.send(b"left out", lossy=True)
    received = [theirs.receive(1)[1][:6] for _ in range(count)]
    assert received == [b"%06d" % number for number in range(count)]
    assert ours.send(b"again", lossy=True)
    assert theirs.receive(1) == (MESSAGE, b"again")


def test_open_files_travel_with_a_frame(channels):
    ours, theirs = channels
    read, write = os.pipe()
    ours.send(b"take this", files=[write])
    os.close(write)
    assert theirs.receive() == (MESSAGE, b"take this")
    (file,) = theirs.files
    os.write(file, b"x")
    assert os.read(read, 1) == b"x"
    for number in (read, file):
        os.close(number)


def test_a_frame_is_taken_out_of_turn(channels):
    ours, theirs = channels
    for kind in (MESSAGE, READY, MESSAGE):
        ours.send(b"%d" % kind, kind=kind)
    assert theirs.take(READY) == b"%d" % READY
    assert theirs.take(READY) is None
    assert [theirs.receive()[0] for _ in range(2)] == [MESSAGE, MESSAGE]


def test_closing_wakes_whoever_waits(channels):
    errors = []

    def wait():
        try:
            channels[0].receive()
        except ChannelClosed as error:
            errors.append(error)

    waiting = in_thread(wait)
    channels[0].close()
    waiting.join(10)
    assert len(errors) == 1
