"""A client for the event loop that it is asked in.

The connections of a client, and the calls that wait for one, belong to an event loop. A client that is given may have
been used in another loop, which is closed now or at work in another thread. So calls go through a copy of it: the same
address, key, headers, timeout and retries, with connections of its own.
"""

import copy
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openai import AsyncOpenAI

log = logging.getLogger(__name__)


def loop_client(given: "AsyncOpenAI") -> "AsyncOpenAI":
    """A copy that shares no connection with the given client; the given one where it cannot be copied."""
    http_client = _with_own_connections(getattr(given, "_client", None))
    if http_client is None:
        return given
    try:
        return given.with_options(http_client=http_client)
    except (AttributeError, TypeError) as error:  # of another kind, made in another way
        log.debug("using the client %s as it is: %s", type(given).__name__, error)
        return given


def _with_own_connections(http_client: Any) -> Any:
    """The same proxies, certificates and hooks; None where that cannot be had."""
    from openai import DefaultAsyncHttpxClient

    if type(http_client).__name__ == "AsyncHttpxClientWrapper":  # nobody has given one
        return DefaultAsyncHttpxClient()
    try:
        own = copy.copy(http_client)
        own._transport = _unused(http_client._transport)
        own._mounts = {place: each and _unused(each) for place, each in http_client._mounts.items()}
    except (AttributeError, TypeError) as error:  # a way of sending that only its owner knows
        log.debug("using the HTTP client %s as it is: %s", type(http_client).__name__, error)
        return None
    return own


def _unused(transport: Any) -> Any:
    """The same way to the server, without the connections that are open on it and the calls that wait for one."""
    own, pool = copy.copy(transport), copy.copy(transport._pool)
    if not isinstance(pool._connections, list) or not isinstance(pool._requests, list):
        raise TypeError(f"{type(pool).__name__} has an unknown kind of connections")
    pool._connections, pool._requests = [], []
    own._pool = pool
    return own
