"""The commands of `sharpen`: their arguments, and the exit codes they end with."""

import argparse
import asyncio
import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharpen.cli import main
from sharpen.store import InMemoryLightningStore, LightningStoreServer

from ..cli.projects import write
from ..cli.rollout_run import RUN, make_run
from .commands import run
from .conftest import Compare

# -- arguments -----------------------------------------------------------------------------------------------------


def test_commands_and_their_arguments(
    compare: Compare, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything except the help texts."""
    _, overview = run(capsys, "--help")
    variables = sorted(set(re.findall(r"\b(?:SHARPEN_[A-Z_]+|\w+_COLOR)\b", overview)))
    compare("command-line.txt", [*_arguments(_parser(monkeypatch)), *(f"variable {name}" for name in variables)])


def _parser(monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    found: list[argparse.ArgumentParser] = []

    def parse_args(self: argparse.ArgumentParser, *_: Any) -> None:
        found.append(self)
        raise SystemExit(0)

    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        main([])
    return found[0]


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield parser.prog
    positional = [action for action in parser._actions if not action.option_strings]
    options = [action for action in parser._actions if action.option_strings]
    for action in [*positional, *sorted(options, key=lambda action: action.option_strings)]:
        if isinstance(action, argparse._SubParsersAction):
            yield f"{parser.prog}  {action.metavar}"
        else:
            yield f"{parser.prog}  {_argument(action)}"
    for group in parser._mutually_exclusive_groups:
        names = sorted(action.option_strings[0] for action in group._group_actions)
        yield f"{parser.prog}  only one of {' '.join(names)}"
    for action in positional:
        if isinstance(action, argparse._SubParsersAction):
            for name in sorted(action.choices):
                yield from _arguments(action.choices[name])


def _argument(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    value = "" if action.nargs == 0 else str(action.metavar or ("" if action.choices else action.dest.upper()))
    facts = [
        *([f"nargs={action.nargs}"] if action.nargs not in (None, 0) else ()),
        *([f"one of {' '.join(map(str, action.choices))}"] if action.choices else ()),
        *(["repeatable"] if isinstance(action, argparse._AppendAction) else ()),
        *(["required"] if action.required and names else ()),
        *([f"default={action.default!r}"] if action.default not in (None, False, argparse.SUPPRESS) else ()),
        *(["hidden"] if action.help == argparse.SUPPRESS else ()),
    ]
    return "  ".join([" ".join(each for each in (names, value) if each), *facts])


# -- exit codes ----------------------------------------------------------------------------------------------------

# What is asked for, by situation. `{taken}` is a port in use, `{denied}` a store with another token.
SITUATIONS = """
no command:
help: --help
version: --version
unknown command: trian
unknown option: train --dryrun
help of a command: train --help

new folder: init fresh
existing files: init project
unknown template: init other --template poem

no such configuration: train nowhere.yaml
invalid YAML: train broken.yaml
unknown key: train project algoritm=APO
override without a value: train project n_runners
wrong type: train project n_runners=many
no such agent: train project agent=agent.py:nobody
unknown algorithm: train project algorithm=Nobody
no tasks: train project train_dataset=[] val_dataset=[]
dry run: train project --dry-run
a run that succeeds: train project --name done
resume a finished run: train project --resume done
a run whose rollouts fail: train project agent=agent.py:failing
an algorithm that raises: train project --name other algorithm=agent.py:Raising
no such run to resume: train project --resume nowhere
resume a run of another algorithm: train project --resume other

agents that succeed: eval project
agents that all fail: eval project agent=agent.py:failing
no such run: eval project --run nowhere
no such data set: eval project --dataset test

a list: runs
unknown state: runs list --state asleep
no such run: runs show nowhere
ambiguous name: runs show 2
a run: runs show {run}
only one run: runs compare {run}
no such run: runs compare {run} nowhere
no best prompt: runs best done --out best
no such run: runs rm nowhere --yes
not confirmed: runs rm done

a list: rollouts --run {run}
no such run: rollouts list --run nowhere
no such store: rollouts list --store nowhere.db
not a store: rollouts list --store broken.yaml
a wrong token: rollouts list --store {denied}
a rollout: rollouts show ro-chatty --run {run}
no such rollout: rollouts show ro-nobody --run {run}
no such attempt: rollouts show ro-chatty --attempt 7 --run {run}
unknown format: rollouts export all.csv --run {run}
no such folder: rollouts export nowhere/all.jsonl --run {run}

the same reward: replay ro-again --agent agent.py:half --run {run}
another reward: replay ro-again --agent agent.py:plainly --run {run}
an agent that fails: replay ro-again --agent agent.py:failing --run {run}
no such rollout: replay ro-nobody --agent agent.py:half --run {run}
no such agent: replay ro-again --agent agent.py:nobody --run {run}
nothing was recorded: replay ro-failed --agent agent.py:plainly --run {run}

sizes: store stats {run}
no such store: store stats nowhere.db
invalid age: store prune {run} --older-than soon
not confirmed: store prune {run} --older-than 1d
a copy: store backup {run} copy.db
the copy exists: store backup {run} broken.yaml
port in use: store serve served.db --port {taken}
not a store: store serve broken.yaml --port 0

no such store: dashboard nowhere --port 0
port in use: dashboard --port {taken}
no model: gateway --port 0
no such configuration: gateway nowhere.yaml
no such configuration: algorithm nowhere.yaml
port in use: algorithm project --port {taken}
no such configuration: runner nowhere.yaml
not a number: runner project --n-runners none
no such folder: mcp --base-dir nowhere
a script: completion bash
unknown shell: completion csh
"""
SLOW_SITUATIONS = """
no such model: eval project --model nowhere
no such model: serve ./nowhere --no-download
a server that does not answer: rollouts list --store http://127.0.0.1:9
"""
WITHOUT_JSON = {"runner", "serve", "mcp", "completion"}
AGENTS = """

class Raising(Algorithm):
    def run(self, train_dataset=None, val_dataset=None):
        raise RuntimeError("it cannot be done")


@rollout
def half(task, llm):
    return 0.5


@rollout
def plainly(task):
    return 0.125
"""


def test_how_commands_end(compare: Compare, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare("exit-codes.txt", _endings(SITUATIONS, folder, capsys))


@pytest.mark.slow
def test_how_slow_commands_end(compare: Compare, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare("exit-codes-slow.txt", _endings(SLOW_SITUATIONS, folder, capsys))


def _endings(situations: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """The exit code of each situation, and the type of the error in the `--json` output."""
    write(folder / "project")
    agents = (folder / "project" / "agent.py").read_text().replace("import ", "import Algorithm, ", 1) + AGENTS
    for place in (folder, folder / "project"):
        (place / "agent.py").write_text(agents)
    (folder / "broken.yaml").write_text("agent: [\n")
    make_run(folder / "runs")
    with _taken_port() as taken, _store_with_another_token() as denied:
        for line in filter(None, situations.splitlines()):
            situation, _, words = line.partition(":")
            arguments = words.format(run=RUN, taken=taken, denied=denied).split()
            yield f"sharpen{words}  {situation}  {_ending(capsys, arguments)}"


def _ending(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    tells = bool(arguments) and not arguments[0].startswith("-") and arguments[0] not in WITHOUT_JSON
    code, output = run(capsys, *arguments, *(["--json"] if tells else ()))
    if not tells or code == 0:
        return str(code)
    told = json.loads(output)
    return f"{code} {told['error']['type']}" if isinstance(told.get("error"), dict) else str(code)


@contextlib.contextmanager
def _taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextlib.contextmanager
def _store_with_another_token() -> Iterator[str]:
    """The address of a store that is served, with a token that the commands do not have."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, token="a-token")
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
        yield server.endpoint
    finally:
        for closing in (server.close(), store.close()):
            asyncio.run_coroutine_threadsafe(closing, loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
