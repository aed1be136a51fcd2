"""Searches in processes of their own, which tests kill, interrupt and start again."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharpen.store import SQLiteStore
from sharpen.types import Attempt, ResourcesUpdate, Rollout
from tests.algorithm.internals import CandidateBook, read_records
from tests.algorithm.verl.training_programs import REPOSITORY, TrainingProgram, TrainingPrograms

from .upstream import Upstream, mark_in, name_of

STARTER = Path(__file__).parent / "starter.py"
Names = set[tuple[str, str]]


@dataclass(frozen=True)
class Stored:
    """What the store of a run holds."""

    rollouts: list[Rollout]
    attempts: dict[str, list[Attempt]]
    latest: ResourcesUpdate | None
    queue_length: int

    @property
    def finished(self) -> set[str]:
        return {each.rollout_id for each in self.rollouts if each.is_finished}


class SearchPrograms(TrainingPrograms):
    """Starts them in a folder, one after the other; all ask the same upstream."""

    def __init__(self, folder: Path, upstream: Upstream) -> None:
        self.folder, self.model, self.upstream = folder, Path("none"), upstream
        self._count = 0
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        environment["SHARPEN_SPOOL"] = str(folder / "spool")
        self._starter = subprocess.Popen(
            [sys.executable, str(STARTER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    @contextlib.contextmanager
    def life(self, name: str, **options: Any) -> Iterator["SearchProgram"]:
        """The run of this name begins, or goes on; at the end of the block it is killed."""
        self._count += 1
        life = f"life-{self._count}"
        (self.folder / f"{name}.output").touch()
        program = SearchProgram(self, name, {**options, "upstream": self.upstream.base_url, "key": life})
        program.key, program.upstream = life, self.upstream
        try:
            yield program
        finally:
            program.kill()
            self.upstream.let_go()


class SearchProgram(TrainingProgram):
    """One life of a run."""

    key: str
    upstream: Upstream

    def kill(self) -> None:
        """All of it in one blow; then whoever has left the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        super().kill()

    def calls(self) -> list[tuple[str, str]]:
        """What this life has asked the upstream for."""
        return [name_of(each) for each in self.upstream.of_life(self.key)]

    @property
    def state(self) -> dict[str, Any]:
        """What the algorithm has kept."""
        found: dict[str, Any] = json.loads((self.run / "checkpoints" / "algorithm.json").read_text())
        return found

    @property
    def book(self) -> CandidateBook:
        return read_records(self.run)

    @property
    def outcome(self) -> dict[str, Any]:
        """The book without what the run is called, which is in the ids of demonstrations, and of costs the rollouts
        alone: calls of an attempt that a kill has cut short were paid for as well."""
        found: dict[str, Any] = json.loads(json.dumps(self.book.as_json()).replace(self.state["key"], ""))
        for candidate in found["candidates"]:
            candidate["cost"] = candidate["cost"]["rollouts"]
        return found

    def stored(self) -> Stored:
        async def read() -> Stored:
            store = SQLiteStore(self.run / "store.db")
            try:
                rollouts = list((await store.query_rollouts()).items)
                attempts = {each.rollout_id: list(await store.query_attempts(each.rollout_id)) for each in rollouts}
                latest, numbers = await store.get_latest_resources(), await store.statistics()
                return Stored(rollouts, attempts, latest, numbers["queue_length"])
            finally:
                await store.close()

        return asyncio.run(read())

    def paid(self) -> Names:
        """What the run has paid for and kept: finished rollouts, and answers in its checkpoint."""
        if not (self.run / "checkpoints" / "algorithm.json").exists():
            return set()
        rollouts = self.upstream.of_rollouts(self.stored().finished)
        return {name_of(each) for each in rollouts} | _answers(self.state)


def _answers(state: dict[str, Any]) -> Names:
    """Those of the round under way, and of the rounds before: they made the candidates in the book."""
    found: Names = set()
    for candidate in state.get("book", {}).get("candidates", []):
        if "word:" in (candidate.get("critique") or ""):
            found |= {("critic", mark_in(candidate["critique"])), ("editor", mark_in(candidate["critique"]))}
    answers = state.get("answers", {})
    for place in answers:
        branch, what = place.split("/", 1)
        asked = answers.get(f"{branch}/critique1", answers[place])  # an edit is known by its critique
        model = "reflector" if branch == "reflection" else "critic" if what.startswith("critique") else "editor"
        found.add((model, mark_in(asked["text"])))
    return found
