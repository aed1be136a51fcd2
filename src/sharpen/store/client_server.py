"""The server and the client under the path that users of Agent Lightning know."""

from .client import LightningStoreClient
from .server import LightningStoreServer

__all__ = ["LightningStoreClient", "LightningStoreServer"]
