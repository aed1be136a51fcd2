"""Serve a store from a process of its own: `python -m sharpen.store runs/store.db --port 4747`.

The token is read from the environment variable SHARPEN_TOKEN, never from the command line, where others see it; so is
a database URL with a password, from SHARPEN_DATABASE_URL.
The address is printed once the server answers; SIGINT or SIGTERM stop it in order.
"""

import argparse
import asyncio
import gc
import os
import sys

from ..errors import InvalidInputError, SharpenError
from .opening import DATABASE_VARIABLE, open_url
from .server import LightningStoreServer


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sharpen.store", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "database_url",
        nargs="?",
        default=os.environ.get(DATABASE_VARIABLE),
        help="path of a store file, created if it does not exist, or a database URL (sqlite:///, postgresql://, "
        f"redis://); default: {DATABASE_VARIABLE}",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: loopback)")
    parser.add_argument("--port", type=int, default=None, help="port to bind (default: a free one)")
    parser.add_argument(
        "--synchronous",
        choices=["normal", "full"],
        help="when a store file is synced to disk: full survives power loss",
    )
    return parser.parse_args()


def _print(address: str) -> None:
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()


async def _serve(arguments: argparse.Namespace) -> None:
    if not arguments.database_url:
        raise InvalidInputError(f"no database given: pass a path or URL, or set {DATABASE_VARIABLE}")
    options = {} if arguments.synchronous is None else {"synchronous": arguments.synchronous}
    store = open_url(arguments.database_url, **options)
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
