"""Tables on terminals of several widths: what matters is there at each of them."""

import asyncio
import re
from pathlib import Path

import pytest

from sharpen.store import SQLiteStore
from tests.cli.internals import Column, fit

from ..archive.run_scenes import prompt_run
from .projects import own_imports, write
from .pty_screen import shown_at

WIDTHS = (60, 80, 100, 120)


def each_line_fits(text: str, width: int) -> bool:
    return all(len(line) <= width for line in text.splitlines() if not line.startswith(("  pip", "  - ")))


async def _fill(path: Path) -> str:
    store = SQLiteStore(path)
    task = {"question": "what is the date that is written here, in the usual form, please? " * 3}
    told = {"error": "it broke " * 9}
    rollout = await store.start_rollout(task, mode="val", worker_id="Worker-127.0.0.1-12345-0")
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="failed", metadata=told)
    await store.close()
    return rollout.rollout_id


@pytest.mark.parametrize("width", WIDTHS)
def test_rollouts_keep_their_ids_status_and_reward(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rollout_id = asyncio.run(_fill(tmp_path / "store.db"))
    text = shown_at(width, "rollouts", "--store", str(tmp_path / "store.db"), monkeypatch=monkeypatch)
    head, row = (next(line for line in text.splitlines() if word in line) for word in ("rollout ", rollout_id))
    assert {"rollout", "status", "reward"} <= set(head.split())
    assert {rollout_id, "failed"} <= set(row.split())
    assert each_line_fits(text, width)
    assert ("error" in head.split()) == (width >= 80)


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return prompt_run(folder / "20261116-000851-dates-of-mine"), prompt_run(folder / "20261116-000852-dates-of-mine")


@pytest.mark.parametrize("width", WIDTHS)
def test_runs_keep_their_names_state_and_reward(
    width: int, two_runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARPEN_RUNS", str(two_runs[0].parent))
    text = shown_at(width, "runs", monkeypatch=monkeypatch)
    for folder in two_runs:
        row = next(line for line in text.splitlines() if folder.name in line)
        assert "succeeded" in row.split()
        assert re.search(r"\d(\.\d+)?$", row), row
    assert each_line_fits(text, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_comparison_keeps_its_marks_and_whole_intervals(
    width: int, two_runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two_runs
    monkeypatch.setenv("SHARPEN_RUNS", str(first.parent))
    text = shown_at(width, "runs", "compare", first.name, second.name, monkeypatch=monkeypatch)
    assert first.name in text
    assert second.name in text
    scores = text[text.index("reward, val") :].split("\n\n")[0]
    assert len(re.findall(r"\d\.\d{3} \[\S+ \S+\]", scores)) >= 2
    assert {"A", "B"} <= set(scores.split())
    assert "…" not in scores
    assert each_line_fits(text, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_dry_run_says_where_each_value_came_from(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)
    with own_imports():
        text = shown_at(width, "train", str(path), "n_runners=1", "--dry-run", monkeypatch=monkeypatch)
    values = text[text.index("value ") :].split("\n\n")[0]
    assert all(word in values for word in ("config.yaml:1", "override", "Baseline"))
    assert "…" not in values


@pytest.mark.parametrize("width", WIDTHS)
def test_the_doctor_keeps_states(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown_at(width, "doctor", monkeypatch=monkeypatch)
    assert {"check", "state", "result", "extra"} <= set(text.split())
    assert "…" not in text
    assert each_line_fits(text.split("What to do:")[0], width)


def test_long_texts_give_way_before_a_column_is_left_out() -> None:
    columns = [Column("id"), Column("text", least=10), Column("age", spare=1)]
    assert fit(columns, [20, 50, 5], 60).widths == {0: 20, 1: 29, 2: 5}
    narrow = fit(columns, [20, 50, 5], 40)
    assert narrow.widths == {0: 20, 1: 17}
    assert narrow.left_out == ("age",)


def test_what_fits_nowhere_is_wrapped_and_not_lost() -> None:
    fitted = fit([Column("id"), Column("status")], [31, 9], 20)
    assert set(fitted.widths) == {0, 1}
    assert sum(fitted.widths.values()) <= 20
