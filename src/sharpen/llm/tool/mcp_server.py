"""The training tool as an MCP server over standard input and output: one tool for each action.

Standard output belongs to the protocol alone: whatever else prints in this process goes to standard error, and what
jobs print goes to their logs. A call that waits for a job sends progress, and ends with the job; when the client goes
away meanwhile, the job goes on.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..._version import __version__
from ...errors import MissingExtraError
from ..plain_json import as_json, plain
from .actions import ACTIONS
from .requests import action_schema
from .tool import RLTrainingTool

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

_LOOK_SECONDS = 0.5
_LIVE = ("starting", "running", "stopping")


def serve(base_dir: str = ".", *, allow_download: bool = False) -> None:
    """Serve until the client closes standard input."""
    try:
        import anyio
        from mcp.server.stdio import stdio_server
    except ImportError as error:
        raise MissingExtraError.of("mcp", extra="mcp", feature="the MCP server") from error
    tool = RLTrainingTool(base_dir, allow_download=allow_download)
    server = make_server(tool)

    async def run() -> None:
        with _own_output() as output:
            async with stdio_server(stdout=anyio.wrap_file(output)) as (requests, answers):
                await server.run(requests, answers, server.create_initialization_options())

    anyio.run(run)


def make_server(tool: RLTrainingTool) -> "Server[Any, Any]":
    """A server of the official package that offers the actions of a tool."""
    from mcp import types
    from mcp.server.lowlevel import Server

    server: Server[Any, Any] = Server("sharpen", version=__version__, instructions=tool.description)

    @server.list_tools()  # type: ignore[no-untyped-call, untyped-decorator]
    async def list_tools() -> list[types.Tool]:
        return [
            types.Tool(name=action.name, description=action.description, inputSchema=action_schema(action))
            for action in ACTIONS.values()
        ]

    # Our own checks say more about a bad value than the schema can.
    @server.call_tool(validate_input=False)  # type: ignore[untyped-decorator]
    async def call_tool(name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        answer = plain(await _answer(tool, server, name, arguments))
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=as_json(answer))],
            structuredContent=answer,
            isError=answer["status"] == "error",
        )

    return server


async def _answer(
    tool: RLTrainingTool, server: "Server[Any, Any]", name: str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    from anyio import to_thread

    asked = {**arguments, "action": name}
    answer = await to_thread.run_sync(lambda: tool.answer(asked, waits=False))
    is_waited = name in ("train", "evaluate") and arguments.get("wait") is not False
    if answer["status"] == "error" or not is_waited:
        return answer
    return await _outcome(tool, server, answer["job_id"])


async def _outcome(tool: RLTrainingTool, server: "Server[Any, Any]", job_id: str) -> dict[str, Any]:
    """Wait for a job on the event loop: a client that goes away leaves no thread behind."""
    import anyio

    told = -1
    while True:
        answer = await anyio.to_thread.run_sync(lambda: tool.answer({"action": "status", "job_id": job_id}))
        if answer["status"] == "error" or answer["state"] not in _LIVE:
            return {**answer, "status": "error"} if "error" in answer else answer
        progress = answer.get("progress", {})
        if progress.get("step", 0) > told:
            told = progress.get("step", 0)
            await _tell(server, progress)
        await anyio.sleep(_LOOK_SECONDS)


async def _tell(server: "Server[Any, Any]", progress: Mapping[str, Any]) -> None:
    """Send progress to a client that asked for it."""
    context = server.request_context
    token = context.meta.progressToken if context.meta else None
    if token is not None:
        step, total = progress.get("step", 0), progress.get("total_steps")
        await context.session.send_progress_notification(token, step, total, related_request_id=str(context.request_id))


@contextmanager
def _own_output() -> Iterator[Any]:
    """Standard output for the protocol alone; for everything else it is standard error from now on."""
    sys.stdout.flush()
    output = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)
    try:
        yield output
    finally:
        output.close()
