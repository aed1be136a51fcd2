"""The MCP server, asked by a real client over standard input and output."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import get_default_environment, stdio_client

from tests.llm.internals import ACTIONS

from .calls import Calls


class Client:
    """A session with a server on a base folder; `noise` is what was no message of the protocol."""

    def __init__(self, session: ClientSession, noise: list[Exception]) -> None:
        self.session = session
        self.noise = noise

    async def call(self, action: str, **parameters: Any) -> dict[str, Any]:
        result = await self.session.call_tool(action, parameters)
        answer: dict[str, Any] = json.loads(result.content[0].text)  # type: ignore[union-attr]
        assert result.structuredContent == answer
        assert result.isError == (answer["status"] == "error")
        return answer


@asynccontextmanager
async def served(base: Path, data_folder: Path) -> AsyncIterator[Client]:
    noise: list[Exception] = []

    async def note(message: Any) -> None:
        if isinstance(message, Exception):
            noise.append(message)

    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "sharpen.cli", "mcp", "--base-dir", str(base)],
        env={**get_default_environment(), "SHARPEN_DATA": str(data_folder), "OMP_NUM_THREADS": "1"},
    )
    async with (
        stdio_client(server) as (read, write),
        ClientSession(read, write, message_handler=note) as session,
    ):
        await session.initialize()
        yield Client(session, noise)
    assert noise == []


async def test_a_client_looks_trains_and_stops(base: Path, data_folder: Path) -> None:
    async with served(base, data_folder) as client:
        tools = {tool.name: tool for tool in (await client.session.list_tools()).tools}
        assert set(tools) == set(ACTIONS)
        data = await client.call("load_dataset", dataset="sums.jsonl", num_preview=1)
        assert (data["size"], len(data["preview"])) == (8, 1)
        created = await client.call("create_reward", reward_type="step", name="steps")
        assert created["name"] == "steps"
        asked = {"algorithm": "grpo", "model_name": "model", "dataset": "sums.jsonl", "reward": "steps", "wait": False}
        jsonschema.validate(asked, tools["train"].inputSchema)
        begun = await client.call("train", **asked)
        assert begun["state"] == "running"
        assert (await client.call("status", job_id=begun["job_id"]))["progress"]["total_steps"] == 12
        stopped = await client.call("stop", job_id=begun["job_id"], grace_seconds=10)
        assert stopped["state"] == "stopped"
        assert not stopped["was_killed"]


async def test_a_refusal_is_an_error_of_the_tool_with_its_reason(base: Path, data_folder: Path) -> None:
    async with served(base, data_folder) as client:
        refused = await client.call("train", algorithm="sft", model_name="model", num_epoch=3)
        assert refused["error"]["problems"][0]["did_you_mean"] == "num_epochs"
        unknown = await client.call("explode")
        assert unknown["error"]["problems"][0]["key"] == "action"


@pytest.mark.slow
async def test_a_job_goes_on_when_the_client_leaves(call: Calls, data_folder: Path) -> None:
    job_id = call.start_waiting()
    async with served(call.base, data_folder) as client:
        assert (await client.call("status", job_id=job_id))["state"] == "running"
    assert call("status", job_id=job_id)["state"] == "running"
