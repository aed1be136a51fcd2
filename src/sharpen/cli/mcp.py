"""`sharpen mcp`: the training tool for MCP clients, over standard input and output."""

import argparse

from .parser import examples

_DESCRIPTION = (
    "Serve the training tool over MCP on standard input and output. Models, data and results stay inside the base "
    "folder. An MCP client starts this command itself, as configured in its settings."
)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "mcp",
        help="serve the training tool over MCP",
        description=_DESCRIPTION,
        epilog=examples(
            "sharpen mcp --base-dir ~/models",
            """{"command": "sharpen", "args": ["mcp", "--base-dir", "/home/me/models"]}    # client settings""",
        ),
    )
    parser.add_argument(
        "--base-dir",
        default=".",
        metavar="FOLDER",
        help="folder that all paths must be inside (default: the current folder)",
    )
    parser.add_argument(
        "--allow-download", action="store_true", help="allow downloading models and data sets from the hub"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from ..llm.tool.mcp_server import serve

    serve(arguments.base_dir, allow_download=arguments.allow_download)
