"""A run with real rollouts in it, made once: recorded by a gateway, one tried twice, one that failed, one hostile."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sharpen import emit_message, rollout
from sharpen.cli import main
from sharpen.store import SQLiteStore
from sharpen.types import LLM

from ..archive.rollout_scenes import CHATTY_REPLIES, TWICE, ask, chatty, play, scene
from ..llm_proxy.replies import Reply

HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x1b[0m [bold red]not bold[/] <script>alert(1)</script> \u202eevil"
RUN = "20260101-120000-scene"


@rollout
def hostile(task: str, llm: LLM) -> float:
    emit_message(task)
    return 0.25


@rollout
def fails(task: str) -> None:
    raise ValueError(task)


def failing_once() -> Any:
    """An agent that works the second time."""
    tries: list[str] = []

    @rollout
    def agent(task: str, llm: LLM) -> float:
        ask(llm, [{"role": "user", "content": task}])
        tries.append(task)
        if len(tries) == 1:
            raise RuntimeError("the first try always fails")
        return 0.5

    return agent


async def _play_all(path: Path) -> None:
    store = SQLiteStore(path)
    replies = [*CHATTY_REPLIES, Reply("one"), Reply("two")]
    async with scene(store, *replies, engine="vllm", mode="record"):
        await play(store, chatty, "Weather in Rome?", rollout_id="ro-chatty", mode="train", metadata={"group": "g"})
        await play(store, failing_once(), "try", attempts=2, config=TWICE, rollout_id="ro-again", mode="val")
        await play(store, hostile, HOSTILE, rollout_id="ro-hostile")
        await play(store, fails, HOSTILE, rollout_id="ro-failed")
    await store.close()


def make_run(root: Path) -> Path:
    """The folder of the run."""
    folder = root / RUN
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"algorithm": null}')
    asyncio.run(_play_all(folder / "store.db"))
    return folder


class Terminal:
    """What a command printed, and how it ended."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.said = ""

    def run(self, *arguments: str, code: int = 0) -> str:
        """Standard output; what stood on standard error is kept in `said`."""
        self._capsys.readouterr()
        assert main(arguments) == code, self._capsys.readouterr()
        output, self.said = self._capsys.readouterr()
        return output

    def value(self, *arguments: str, code: int = 0) -> Any:
        """The JSON that a program would read."""
        return json.loads(self.run(*arguments, "--json", code=code))
