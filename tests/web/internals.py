"""What the tests use of `sharpen.web` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.web.app import STOPPING, HttpError, StreamResponse, WebApp, disconnected, parse_json, read_body
    from sharpen.web.protocol import JoinedHead, Limits
    from sharpen.web.serving import GRACE_SECONDS, ServerThread, address, allowed_hosts, listen, new_loop, serving

__getattr__ = imports_on_use(__file__)
