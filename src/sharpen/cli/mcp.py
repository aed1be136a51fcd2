"""`sharpen mcp`: the training tool for agents that speak MCP, over standard input and output."""

import argparse

from .parser import examples

_DESCRIPTION = (
    "Serve the training tool over MCP on standard input and output. Models, data and results stay inside the base "
    "folder. A client starts it by itself: its settings name the command and its arguments."
)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "mcp",
        help="serve the training tool over MCP",
        description=_DESCRIPTION,
        epilog=examples(
            "sharpen mcp --base-dir ~/models",
            """{"command": "sharpen", "args": ["mcp", "--base-dir", "/home/me/models"]}    # settings of a client""",
        ),
    )
    parser.add_argument(
        "--base-dir", default=".", metavar="FOLDER", help="the folder that paths may not leave (default: this one)"
    )
    parser.add_argument("--allow-download", action="store_true", help="let models and data sets come from the hub")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from ..llm.tool.mcp_server import serve

    serve(arguments.base_dir, allow_download=arguments.allow_download)
