"""Serve a SQLite store from a process of its own: `python -m sharpen.store runs/store.db --port 4747`.

The token is read from the environment variable SHARPEN_TOKEN, never from the command line, where others see it.
The address is printed once the server answers; SIGINT or SIGTERM stop it in order.
"""

import argparse
import asyncio
import gc
import os
import sys

from ..errors import SharpenError
from .server import LightningStoreServer
from .sqlite import SQLiteStore


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sharpen.store", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("database_url", help="path or sqlite:/// URL of the store file; made if it does not exist")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: loopback)")
    parser.add_argument("--port", type=int, default=None, help="port (default: a free one)")
    parser.add_argument("--synchronous", choices=["normal", "full"], default="normal", help="full survives power loss")
    return parser.parse_args()


def _print(address: str) -> None:
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()


async def _serve(arguments: argparse.Namespace) -> None:
    store = SQLiteStore(arguments.database_url, synchronous=arguments.synchronous)
    try:
        token = os.environ.get("SHARPEN_TOKEN")
        server = LightningStoreServer(store, host=arguments.host, port=arguments.port, token=token)
        await server.run_forever(announce=_print)
    finally:
        await store.close()


def _tune_collector() -> None:
    """Requests make many short-lived objects: looking through all of them after every 700 doubles the decoding."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def main() -> int:
    _tune_collector()
    try:
        asyncio.run(_serve(_arguments()))
    except SharpenError as error:
        sys.stderr.write(f"sharpen store: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
