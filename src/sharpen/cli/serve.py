"""`sharpen serve MODEL`: a model with an OpenAI-compatible API, on Sharpen's own engine."""

import argparse
import threading

from ..llm.server import __main__ as server
from .parser import examples
from .signals import ended_by_signals


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; its options are those of the server."""
    parser = commands.add_parser(
        "serve",
        help="serve a language model with an OpenAI-compatible API",
        description="Serve a model with an OpenAI-compatible API. It prints one line when it is ready, and shuts down "
        "cleanly on Ctrl-C.",
        epilog=examples(
            "sharpen serve ./my-model",
            "sharpen serve ./my-model --port 9000 --token env:MY_TOKEN --max-batch 64",
            "sharpen serve ./my-adapter --name my-model     # an adapter folder names its base model",
        ),
        parents=[server.parser()],
        add_help=False,
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal stops it."""
    stopping = threading.Event()
    with ended_by_signals(stopping.set) as ended:
        server.serve(arguments, stopping)
    return ended.code
