"""Where a server listens, and who may reach it there."""

import asyncio
import socket

import pytest

from sharpen.errors import ConfigError, PortTakenError
from tests.errors import raises
from tests.http.internals import is_loopback
from tests.web.internals import address, allowed_hosts, listen


def test_a_free_port_is_taken_and_named():
    with listen("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert port > 0
        with raises(PortTakenError, port):
            listen("127.0.0.1", port)
        socket.create_connection(("127.0.0.1", port)).close()


async def test_accepted_connections_send_small_pieces_at_once():
    """Under plain asyncio, which asks the socket for its protocol."""
    accepted = asyncio.get_running_loop().create_future()

    async def connected(reader, writer):
        accepted.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    bound = listen("127.0.0.1", 0)
    async with await asyncio.start_server(connected, sock=bound):
        _, writer = await asyncio.open_connection("127.0.0.1", bound.getsockname()[1])
        assert await asyncio.wait_for(accepted, 10)
        writer.close()


def test_an_address_of_another_machine_is_refused_by_name():
    with raises(ConfigError, "192.0.2.1"):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("name.example", "http://name.example:80"),
    ],
)
def test_clients_on_this_machine_are_given_a_url_that_works(host, url):
    assert address(host, 80) == url


def test_loopback_is_known_by_name_and_by_number():
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.8.9.1", "::1", "[::1]"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.1", "localhost.example", ""))


def test_only_names_of_loopback_are_served_there():
    assert allowed_hosts("127.0.0.1") >= {"localhost", "127.0.0.1", "[::1]"}
    assert allowed_hosts("0.0.0.0") is None
