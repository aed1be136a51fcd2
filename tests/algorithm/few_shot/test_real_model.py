"""The real SmolLM2-135M on the calculator task: from never right to nearly always, also when it is killed between."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sharpen.algorithm.prompts.records import read_records
from sharpen.store import SQLiteStore
from sharpen.types import Rollout
from tests.algorithm.verl.training_programs import eventually

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
PATIENCE_SECONDS = 400.0


class Search:
    """One life of a search in a process of its own, with all that come from it in one group."""

    def __init__(self, folder: Path) -> None:
        self.run, self._result = folder / "run", folder / "result.json"
        path = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "examples")))
        self._output = (folder / "output").open("a+")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "calculator_program.py"), str(self.run), str(self._result)],
            env={**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "PASSIVE"},
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def output(self) -> str:
        return Path(self._output.name).read_text(errors="replace")

    def __enter__(self) -> "Search":
        return self

    def __exit__(self, *error: object) -> None:
        """What still lives is killed, and nothing of it has a chance to end in order."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        self._output.close()

    def result(self) -> dict[str, float]:
        assert self.process.wait(PATIENCE_SECONDS) == 0, self.output
        found: dict[str, float] = json.loads(self._result.read_text())
        return found

    def rollouts(self) -> list[Rollout]:
        async def read() -> list[Rollout]:
            store = SQLiteStore(self.run / "store.db")
            try:
                return list((await store.query_rollouts()).items)
            finally:
                await store.close()

        return asyncio.run(read())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_model_learns_from_its_lucky_answers_also_when_it_is_killed_on_the_way(tmp_path: Path) -> None:
    with Search(tmp_path) as first:
        eventually(lambda: "exploring: 64" in first.output, "the third batch", PATIENCE_SECONDS)
    with Search(tmp_path) as second:
        found = second.result()
    print(found)
    assert found["before"] == 0.0
    assert found["after"] >= 0.9
    rollouts = second.rollouts()
    assert {each.status for each in rollouts} == {"succeeded"}
    book = read_records(second.run)
    assert max(Counter(each.template.template for each in book).values()) == 1
    assert sum(each.cost.rollouts for each in book) == len(rollouts)
