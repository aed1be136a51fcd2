"""The real SmolLM2-135M on the calculator task: from never right to nearly always, also when it is killed between."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharpen.store import SQLiteStore
from sharpen.types import Rollout
from tests.algorithm.internals import read_records
from tests.algorithm.verl.training_programs import eventually

EXAMPLE = Path(__file__).parents[3] / "examples" / "few_shot_calculator.py"
PATIENCE_SECONDS = 400.0


@contextlib.contextmanager
def example(folder: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """The program and what it prints. In the end it is killed with all that come from it, if it still lives."""
    output = folder / f"output-{len(arguments)}"
    private = {"SHARPEN_SPOOL": str(folder / "spool"), "SHARPEN_RUNS": str(folder / "runs")}
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **private}
    with output.open("w") as file:
        program = subprocess.Popen(
            [sys.executable, str(EXAMPLE), *arguments],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        yield program, output
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait(60)


def rollouts_of(run: Path) -> list[Rollout]:
    async def read() -> list[Rollout]:
        store = SQLiteStore(run / "store.db")
        try:
            return list((await store.query_rollouts()).items)
        finally:
            await store.close()

    return asyncio.run(read())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_model_learns_from_its_lucky_answers_also_when_it_is_killed_between(tmp_path: Path) -> None:
    with example(tmp_path) as (program, output):
        eventually(lambda: "exploring" in output.read_text() or program.poll(), "the first batch", PATIENCE_SECONDS)
        assert program.poll() is None, output.read_text()
    (run,) = (tmp_path / "runs").iterdir()
    with example(tmp_path, str(run)) as (program, output):
        assert program.wait(PATIENCE_SECONDS) == 0, output.read_text()
    told = re.search(r"held-out tasks: (\S+) before, (\S+) after\n(.*)", output.read_text())
    assert told is not None
    print(told[0])
    assert float(told[1]) == 0.0
    assert float(told[2]) >= 0.9
    assert told[3].endswith(f"{run}/prompts/candidates.txt")
    rollouts, book = rollouts_of(run), read_records(run)
    assert {each.status for each in rollouts} == {"succeeded"}
    assert sum(each.cost.rollouts for each in book) == len(rollouts)
