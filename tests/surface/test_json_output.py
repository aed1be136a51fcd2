"""What commands print with `--json`: the keys and the types of their values, from real runs."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..cli.projects import write
from ..cli.rollout_run import RUN, make_run
from ..llm.tiny_models import write_tiny_model
from .commands import run, run_json
from .conftest import Compare

# Values of these keys come from users, components or the machine; they may have any shape.
DATA = {"input", "task", "attributes", "metadata", "arguments", "value", "options", "environment", "versions"}
# The keys of these are names of metrics, which are only compared in the result of a training.
BY_METRIC = {"curves", "main_metrics", "metrics"}
# Null on some machines, or where counting would take too long.
OPTIONAL = {"advice": "string", "command": "string", "installed": "string", "total": "integer"}
KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
TUNING = """
kind: fine-tuning
method: sft
model_name: tiny
train_dataset: [{prompt: "What is 1?", completion: One.}, {prompt: "What is 2?", completion: Two.}]
val_dataset: [{prompt: "What is 3?", completion: Three.}, {prompt: "What is 4?", completion: Four.}]
batch_size: 1
logging_steps: 1
max_new_tokens: 4
eval_reward_fn: accuracy
loggers: []
"""
ECHO = """
from sharpen import rollout

@rollout
def echo(task, llm):
    return 0.0
"""


class Shapes:
    """Runs commands and collects the shapes of their answers, by command."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *, keeps_metrics: bool = True) -> None:
        self._capsys = capsys
        self._keeps_metrics = keeps_metrics  # of trainings
        self._found: dict[str, dict[str, set[str]]] = {}

    def run(self, *arguments: str, name: str, code: int = 0) -> Any:
        value = run_json(self._capsys, *arguments, code=code)
        self.add(name, value)
        return value

    def add(self, name: str, value: Any) -> None:
        _collect(value, "", self._found.setdefault(name, {}), keeps_metrics=self._keeps_metrics and name == "train")

    @property
    def lines(self) -> list[str]:
        return [
            f"{name}  {path or '.'}  {' | '.join(sorted(kinds))}"
            for name, shape in self._found.items()
            for path, kinds in sorted(shape.items())
        ]


def _collect(value: Any, path: str, shape: dict[str, set[str]], *, keeps_metrics: bool) -> None:
    kinds = shape.setdefault(path, set())
    last = path.rpartition(".")[2]
    if last in DATA:
        kinds.add("data")
    elif isinstance(value, dict):
        kinds.add("object")
        is_by_metric = last in BY_METRIC and not keeps_metrics
        for key, inner in value.items():
            _collect(inner, f"{path}.{'<metric>' if is_by_metric else key}", shape, keeps_metrics=keeps_metrics)
    elif isinstance(value, list):
        kinds.add("array")
        for inner in value:
            _collect(inner, f"{path}[]", shape, keeps_metrics=keeps_metrics)
    else:
        kinds.update({OPTIONAL[last], "null"} if last in OPTIONAL else {KINDS[type(value)]})


def test_a_training_and_its_runs(compare: Compare, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = Shapes(capsys)
    shapes.run("init", "project", name="init")
    shapes.run("train", "project", "--dry-run", name="train --dry-run")
    trained = shapes.run("train", "project", name="train")
    shapes.run("eval", "project", "--run", "last", name="eval --run")
    shapes.run("eval", "project", "agent=agent.py:nobody", name="an error", code=2)
    made = Path(trained["run_dir"]).name
    shapes.run("runs", "list", name="runs list")
    shapes.run("runs", "show", made, name="runs show")
    shapes.run("runs", "compare", made, "eval", name="runs compare")
    shapes.run("runs", "best", made, "--out", "best", name="runs best")
    shapes.run("runs", "rm", made, "--yes", name="runs rm")
    compare("json-of-runs.txt", shapes.lines)


def test_rollouts_and_their_store(compare: Compare, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(folder / "runs")
    (folder / "echo_agent.py").write_text(ECHO)
    shapes = Shapes(capsys)
    shapes.run("rollouts", "list", name="rollouts list")
    for rollout, attempt in (("ro-chatty", "1"), ("ro-again", "1"), ("ro-again", "2"), ("ro-failed", "1")):
        words = ("rollouts", "show", rollout, "--attempt", attempt, "--spans", "--tokens")
        shapes.run(*words, name="rollouts show --spans --tokens")
    shapes.run("rollouts", "export", "all.jsonl", "--spans", name="rollouts export --spans")
    for line in (folder / "all.jsonl").read_text().splitlines():
        exported = json.loads(line)
        if exported["rollout_id"] == "ro-chatty":
            shapes.add("a line of an export", exported)
    replayed = run_json(capsys, "replay", "ro-again", "--agent", "echo_agent.py:echo")
    shapes.add("rollouts show --spans --tokens", replayed.pop("transcript"))
    shapes.add("replay", replayed)
    shapes.run("store", "stats", RUN, name="store stats")
    shapes.run("store", "backup", RUN, "copy.db", name="store backup")
    shapes.run("store", "prune", "copy.db", "--older-than", "0s", "--yes", name="store prune")
    compare("json-of-rollouts.txt", shapes.lines)


def test_the_machine_and_servers(compare: Compare, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server prints one value once it accepts requests, and is ended by a signal."""
    shapes = Shapes(capsys)
    shapes.add("doctor", json.loads(run(capsys, "doctor", "--json")[1]))
    model = ("--model", "small", "--base-url", "http://127.0.0.1:9/v1")
    with Started("store", "serve", "store.db") as store, Started("dashboard") as dashboard:
        shapes.add("store serve", store.first())
        with Started("gateway", *model, "--store", store.first()["url"]) as gateway:
            shapes.add("gateway", gateway.first())
            codes = [f"gateway  SIGINT  {gateway.end(signal.SIGINT)}"]
        shapes.add("dashboard", dashboard.first())
        codes += [f"dashboard  SIGTERM  {dashboard.end(signal.SIGTERM)}"]
        codes += [f"store serve  SIGTERM  {store.end(signal.SIGTERM)}"]
    compare("servers.txt", [*shapes.lines, *codes])


@pytest.mark.slow
def test_the_other_kinds_of_training(compare: Compare, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = Shapes(capsys, keeps_metrics=False)
    run_json(capsys, "init", "simulator", "--template", "simulator")
    write(folder / "tuning", TUNING)
    write_tiny_model(folder / "tuning" / "tiny")
    for project, setting in (("simulator", "max_iters=1"), ("tuning", "num_epochs=1")):
        shapes.run("train", project, setting, "--dry-run", name=f"train {project} --dry-run")
        trained = shapes.run("train", project, setting, name=f"train {project}")
        made = Path(trained["run_dir"]).name  # `last` is ambiguous within one second
        shapes.run("eval", project, "--run", made, name=f"eval {project} --run")
        shapes.run("runs", "show", made, name=f"runs show {project}")
        shapes.run("runs", "best", made, "--out", f"{project}-best", name=f"runs best {project}")
    compare("json-of-other-kinds.txt", shapes.lines)


class Started:
    """A command that serves, in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "sharpen.cli", *arguments, "--port", "0", "--json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._first: Any = None

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def first(self) -> Any:
        """The value it prints once it accepts requests."""
        assert self._process.stdout is not None
        self._first = self._first or json.loads(self._process.stdout.readline())
        return self._first

    def end(self, number: int) -> int:
        self._process.send_signal(number)
        return self._process.wait(30)
