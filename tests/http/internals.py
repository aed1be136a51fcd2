"""What the tests use of `sharpen.http` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.http import client as client_module
    from sharpen.http.client import HELD_BYTES, HttpClient, Unsent
    from sharpen.http.proxies import is_loopback, proxy_for

__getattr__ = imports_on_use(__file__)
