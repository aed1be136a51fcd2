"""What the tests of programs as agents share."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sharpen import InMemoryLightningStore, NamedResources, Rollout, Span
from sharpen.litagent import CommandAgent
from sharpen.runner import Runner
from sharpen.tracer import DummyTracer, Tracer


def sh(script: str, **options: Any) -> CommandAgent:
    return CommandAgent(["sh", "-c", script], **options)


def python(script: str, **options: Any) -> CommandAgent:
    """A Python program that starts as fast as one can."""
    return CommandAgent([sys.executable, "-I", "-S", "-c", script], **options)


async def run_async(
    agent: CommandAgent, task: Any = None, resources: NamedResources | None = None, tracer: Tracer | None = None
) -> tuple[Rollout, list[Span]]:
    """The finished rollout of one task, and its spans; what the agent raises is raised."""
    store, runner = InMemoryLightningStore(), Runner[Any](tracer=tracer or DummyTracer())
    with runner.run_context(agent=agent, store=store):
        done = await runner.step(task, resources=resources, mode="train")
    return done, list(await store.query_spans(done.rollout_id))


def run(agent: CommandAgent, task: Any = None, resources: NamedResources | None = None) -> tuple[Rollout, list[Span]]:
    return asyncio.run(run_async(agent, task, resources))


def reward(agent: CommandAgent, task: Any = None) -> float | None:
    return run(agent, task)[0].reward


def printed(agent: CommandAgent, task: Any = None, resources: NamedResources | None = None) -> str:
    """What the program wrote to its standard output, as the trace has it."""
    return "".join(str(span.attributes["sharpen.message.body"]) for span in outputs(run(agent, task, resources)[1]))


def outputs(spans: list[Span], stream: str = "stdout") -> list[Span]:
    return [span for span in spans if span.attributes.get("sharpen.command.stream") == stream]


# -- processes ---------------------------------------------------------------------------------------


def is_alive(pid: int) -> bool:
    """A zombie is as dead as one can be."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def wait_until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What the condition gives once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)
    return found


async def wait_until_async(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.01)
    return found


def pids_in(folder: Path, count: int) -> list[int] | None:
    """The numbers of processes that were written to files there, once there are so many."""
    found = []
    with contextlib.suppress(ValueError):  # one is being written
        found = [int(path.read_text()) for path in folder.glob("*.pid")]
    return found if len(found) == count else None


KIN = """
mkdir -p "$1"
echo $$ > "$1/program.pid"
sleep 1000 & echo $! > "$1/child.pid"
setsid sh -c 'echo $$ > "$0/session.pid"; exec sleep 1000' "$1" &
(setsid sh -c 'trap "" TERM HUP; echo $$ > "$0/orphan.pid"; while :; do sleep 1; done' "$1" &)
wait
"""
"""A program with a child, a child in a session of its own, and an orphan that does not end when it is told to."""
KIN_COUNT = 4


def kin(folder: Path, **options: Any) -> CommandAgent:
    return CommandAgent(["sh", "-c", KIN, "sh", str(folder)], **options)


def watchers() -> set[int]:
    """The watchers of commands whose parent is this process; that of its Python children has one argument."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_bytes().rpartition(b")")[2].split()[1])
            command = path.with_name("cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if parent == os.getpid() and len(command) > 5 and command[3].endswith(b"watcher.py"):
                found.add(int(path.parent.name))
    return found
