"""What the tests use of `sharpen.http` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.http import connection
    from sharpen.http.answer import HELD_BYTES
    from sharpen.http.asgi import App
    from sharpen.http.client import HttpClient, Unsent
    from sharpen.http.joined_head import JoinedHead
    from sharpen.http.listening import address, allowed_hosts, is_loopback, listen
    from sharpen.http.proxies import proxy_for
    from sharpen.http.serving import GRACE_SECONDS, AppServer, Limits, new_loop, serve_here

__getattr__ = imports_on_use(__file__)
