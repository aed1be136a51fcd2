"""Short ways to record something in a test."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from sharpen.tracer import Tracer
from sharpen.types import Span

ROOT = Path(__file__).parent.parent.parent


class ListSink:
    """The simplest sink: it keeps what is put."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def put(self, span: Span) -> None:
        self.spans.append(span)


def names(spans: list[Span]) -> list[str]:
    return [span.name for span in spans]


def named(spans: list[Span], name: str) -> Span:
    """The one span of this name."""
    [found] = [span for span in spans if span.name == name]
    return found


def encoded(spans: list[Span]) -> str:
    """The spans as a store writes them."""
    return msgspec.json.encode(spans).decode()


def recorded(tracer: Tracer, function: Any, *args: Any) -> list[Span]:
    """The spans of one call."""
    tracer.trace_run(function, *args)
    return tracer.get_last_trace()


def run_script(
    code: str, *, path: Path | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, for what can be done only once in a process."""
    folders = [str(ROOT), *([str(path)] if path else [])]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    variables.update({"PYTHONPATH": os.pathsep.join(folders), **(environment or {})})
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done
