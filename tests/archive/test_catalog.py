"""The catalogue of runs, told from their files."""

import contextlib
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from sharpen.algorithm import algo
from sharpen.errors import ConfigError, InvalidInputError, UnknownIdError
from sharpen.runs import RunFolder
from sharpen.store import LightningStore, SQLiteStore
from sharpen.trainer import Trainer
from tests.archive.internals import RunCatalog, RunEntry, open_store, size_of
from tests.errors import raises

from .run_scenes import (
    always,
    another_writer,
    dev_run,
    failed_run,
    prompt_run,
    simulator_run,
    start_hanging_run,
    tuned_run,
    write_json,
    write_lines,
    write_model,
)


def test_a_run_of_a_trainer_is_told_from_its_folder(tmp_path: Path) -> None:
    before = time.time()
    entry = RunEntry.of(dev_run(tmp_path / "first"))
    assert (entry.name, entry.kind, entry.state) == ("first", "agents", "succeeded")
    assert (entry.algorithm, entry.agent, entry.rollouts) == ("Baseline", "is_even", 12)
    assert entry.started is not None
    assert before - 2 < entry.started < time.time()
    assert entry.seconds is not None
    assert 0 < entry.seconds < 60
    assert (entry.reward_name, entry.reward) == ("val/reward_mean", 0.5)
    assert entry.store_path == tmp_path / "first" / "store.db"
    assert entry.log_path is not None
    assert entry.config()["datasets"]["val"]["size"] == 10
    assert size_of(entry) >= (tmp_path / "first" / "store.db").stat().st_size
    assert not entry.has_prompts
    assert not entry.has_episodes


def test_a_failed_run_keeps_its_error_with_and_without_traceback(tmp_path: Path) -> None:
    entry = RunEntry.of(failed_run(tmp_path / "run"))
    assert entry.state == "failed"
    assert entry.algorithm == "@algo"
    assert entry.error is not None
    assert "Traceback" in entry.error
    assert entry.error_line == "ValueError: the learning rate is [red]wrong[/red]\nsecond line"
    assert entry.metrics["train/loss"] == 2.0


def test_a_run_in_work_is_running_and_a_killed_one_is_killed(tmp_path: Path) -> None:
    process = start_hanging_run(tmp_path / "run")
    try:
        entry = RunEntry.of(tmp_path / "run")
        assert entry.state == "running"
        assert entry.seconds is not None
        with raises(ConfigError, tmp_path / "run"):
            RunFolder.open(tmp_path / "run")
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    entry = RunEntry.of(tmp_path / "run")
    assert entry.state == "killed"
    assert entry.error is None
    assert entry.metrics["train/loss"] == 0.5
    assert entry.seconds is not None


def test_looking_at_a_run_does_not_keep_it_from_going_on(tmp_path: Path) -> None:
    folder = RunFolder.create(run_dir=tmp_path / "run")
    folder.write_config({"components": {}})
    assert RunEntry.of(folder.path).is_running
    folder.release()
    assert RunEntry.of(folder.path).state == "killed"
    again = RunFolder.open(folder.path)
    again.release()


def copied(run: Path, target: Path) -> Path:
    """The folder as `cp -r` leaves it, with every file time reversed."""
    shutil.copytree(run, target)
    oldest_last = sorted(target.iterdir(), key=lambda path: -path.stat().st_mtime_ns)
    for age, path in enumerate(oldest_last):
        os.utime(path, (1000 + age, 1000 + age))
    return target


def stumble(folder: Path, *, is_resumed: bool, is_failing: bool) -> None:
    """Start or resume a run of an algorithm that does one iteration."""

    @algo
    async def once(store: LightningStore, report_iteration: Any) -> None:
        rollout = await store.enqueue_rollout(1)
        await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        report_iteration({"loss": 1.0})
        if is_failing:
            raise ValueError("it stumbled")

    trainer = Trainer(strategy="shm", algorithm=once, run_dir=None if is_resumed else folder)
    with raises(ValueError, "stumbled") if is_failing else contextlib.nullcontext():
        trainer.fit(always, [1], resume=folder if is_resumed else None)


def test_the_state_of_a_resumed_run_is_that_of_its_last_start_wherever_it_is_copied(tmp_path: Path) -> None:
    run = tmp_path / "run"
    stumble(run, is_resumed=False, is_failing=True)
    first = RunEntry.of(run)
    assert first.state == "failed"
    stumble(run, is_resumed=True, is_failing=False)
    entry = RunEntry.of(copied(run, tmp_path / "copy"))
    assert (entry.state, entry.rollouts, entry.error) == ("succeeded", 2, None)
    assert first.seconds is not None
    assert entry.seconds is not None
    assert entry.seconds > first.seconds


def test_a_run_that_was_killed_after_a_resume_is_not_what_its_old_result_says(tmp_path: Path) -> None:
    run = tmp_path / "run"
    stumble(run, is_resumed=False, is_failing=True)
    folder = RunFolder.open(run)
    folder.write_config(folder.resumed_config({**folder.read_config(), "started": "2026-11-15T10:00:10+0000"}))
    folder.append_metrics({"time": time.mktime((2026, 11, 15, 10, 0, 15, 0, 0, 0)) - time.timezone, "seconds": 5.0})
    folder.release()
    before = folder.read_result()
    assert before is not None
    for place in (run, copied(run, tmp_path / "copy")):
        entry = RunEntry.of(place)
        assert (entry.state, entry.error) == ("killed", None)
        assert entry.seconds == pytest.approx(before["seconds"] + 5, abs=0.01)


def test_folders_of_version_0_1_are_told_by_their_last_lines(tmp_path: Path) -> None:
    moments = ["2026-11-15T10:00:00+0000"]
    config = {"components": {}, "started": moments[0], "resumed": moments}
    result = {"status": "succeeded", "seconds": 7.5, "metrics": {"rollouts": 3, "seconds": 7.25}}
    progress = [{"time": 100.0, "seconds": 3.0}, {"step": 1, "time": 107.0, "loss": 1.0}]
    for name, last, state in (("ended", 7.25, "succeeded"), ("killed", 1.5, "killed")):
        write_json(tmp_path / name / "result.json", result)
        write_json(tmp_path / name / "config.json", config)
        write_lines(tmp_path / name / "metrics.jsonl", [*progress, {"time": 108.0, "seconds": last}])
        assert RunEntry.of(tmp_path / name).state == state
    for status, state in (("succeeded", "succeeded"), (None, "killed")):
        run = simulator_run(tmp_path / f"simulator-{status}", status=status)
        write_json(run / "config.json", {**config, "kind": "simulator"})
        write_json(run / "result.json", {"status": "succeeded", "seconds": 7.5, "metrics": {"reward": 1.0}})
        assert RunEntry.of(run).state == state


def test_a_copied_run_without_a_lock_is_not_running(tmp_path: Path) -> None:
    folder = simulator_run(tmp_path / "run", status=None)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    write_lines(folder / "metrics.jsonl", [{**line, "time": line["time"] - 3600} for line in lines])
    assert RunEntry.of(folder).state == "killed"


def test_stages_of_a_sequence_are_found_with_their_prompts(tmp_path: Path) -> None:
    stages = [{"class": "sharpen.algorithm.apo.apo.APO"}, {"class": "sharpen.algorithm.verl.grpo.GRPO"}]
    config = {"components": {"algorithm": {"class": "a.AlgorithmSequence", "stages": stages}}}
    write_json(tmp_path / "run" / "config.json", config)
    write_json(tmp_path / "run" / "1-apo" / "prompts" / "candidates.json", {})
    (tmp_path / "run" / "2-grpo").mkdir()
    entry = RunEntry.of(tmp_path / "run")
    assert entry.algorithm == "APO, then GRPO"
    assert [path.name for path in entry.stages()] == ["1-apo", "2-grpo"]
    assert entry.has_prompts
    assert entry.prompt_folders() == [tmp_path / "run" / "1-apo" / "prompts"]


def test_fine_tuning_is_told_from_its_settings_and_a_model_is_no_run(tmp_path: Path) -> None:
    entry = RunEntry.of(tuned_run(tmp_path / "tuned"))
    assert (entry.kind, entry.state, entry.algorithm, entry.model) == ("fine-tuning", "succeeded", "SFT", "smol")
    assert (entry.started, entry.seconds) == (100.0, 4.5)
    assert entry.metrics == {"loss": 0.25, "val/loss": 1.0}
    with pytest.raises(UnknownIdError):
        RunEntry.of(write_model(tmp_path / "model"))


@pytest.mark.parametrize("status", ["succeeded", "failed", "interrupted"])
def test_a_simulators_run_ends_as_its_logger_was_told(tmp_path: Path, status: str) -> None:
    entry = RunEntry.of(simulator_run(tmp_path / "run", status=status))
    assert (entry.kind, entry.state) == ("simulator", status)
    assert entry.metrics == {"reward": 1.0, "val/reward": 2.0}
    assert entry.config() == {"max_iters": 3, "seed": 1}


def test_a_run_without_a_lock_is_running_while_its_metrics_grow(tmp_path: Path) -> None:
    folder = simulator_run(tmp_path / "run", status=None)
    assert RunEntry.of(folder).state == "running"
    assert RunEntry.of(folder, now=time.time() + 3600).state == "killed"


def test_a_store_alone_is_shown_too_and_other_files_are_not(tmp_path: Path) -> None:
    run = dev_run(tmp_path / "run")
    alone = tmp_path / "alone" / "my.db"
    alone.parent.mkdir()
    alone.write_bytes((run / "store.db").read_bytes())
    entry = RunEntry.of(alone, now=time.time() + 60)
    assert (entry.name, entry.kind, entry.state, entry.store_path) == ("my.db", "store", "ended", alone)
    assert RunEntry.of(run / "store.db").name == "run"
    (tmp_path / "text.db").write_text("no database")
    with pytest.raises(UnknownIdError):
        RunEntry.of(tmp_path / "text.db")


def test_damaged_files_hide_no_run(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    write_lines(run / "metrics.jsonl", [{"time": 1.0, "rollouts": 3, "reward_mean": None}])
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(b'{"time": 2.0, "rollo\n[1]\n\xff\xfe\n{"time":')
    (run / "config.json").write_text("{")
    (run / "result.json").write_text("[1, 2")
    entry = RunCatalog(tmp_path / "runs").named("run")
    assert (entry.state, entry.metrics, entry.algorithm) == ("killed", {"rollouts": 3.0}, None)


def test_runs_come_newest_first_and_odd_folders_are_passed_over(tmp_path: Path) -> None:
    for name, moment in (("b", "10:00:00"), ("a", "11:00:00"), ("c", "09:00:00")):
        config = {"components": {}, "started": f"2026-11-15T{moment}+0000"}
        write_json(tmp_path / name / "config.json", config)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    write_model(tmp_path / "model")
    write_json(tmp_path / ".a.removed-1" / "config.json", {"components": {}})
    assert [entry.name for entry in RunCatalog(tmp_path).entries()] == ["a", "b", "c"]
    assert RunCatalog(tmp_path).find("last").name == "a"
    assert RunCatalog(tmp_path / "nowhere").entries() == []


def test_a_run_is_found_by_name_by_part_and_by_path(tmp_path: Path) -> None:
    for name in ("20261115-100000-apo", "20261115-110000-apo", "20261114-100000-grpo"):
        write_json(tmp_path / name / "config.json", {"components": {}})
    catalog = RunCatalog(tmp_path)
    assert catalog.find("grpo").name == "20261114-100000-grpo"
    assert catalog.find("20261115-11").name == "20261115-110000-apo"
    assert catalog.find("20261115-100000-apo").name == "20261115-100000-apo"
    assert RunCatalog(tmp_path / "none").find(str(tmp_path / "20261114-100000-grpo")).kind == "agents"
    with raises(UnknownIdError, 2, "-apo"):
        catalog.find("-apo")
    with raises(UnknownIdError, "20261114-100000-grpo"):
        catalog.find("20261114-100000-grop")
    with pytest.raises(UnknownIdError):
        RunCatalog(tmp_path / "none").find("last")
    with pytest.raises(InvalidInputError):
        catalog.find(" ")


def test_a_name_given_again_means_the_newest_and_an_exact_one_wins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("20261115-100000-two", "20261115-110000-two", "20261115-120000-two-2", "20261115-130000-twofold"):
        write_json(tmp_path / name / "config.json", {"components": {}})
    catalog = RunCatalog(tmp_path)
    assert catalog.find("two-2").name == "20261115-120000-two-2"
    assert not caplog.messages
    assert catalog.find("two").name == "20261115-110000-two"
    (warning,) = caplog.messages
    assert "'two'" in warning
    assert "20261115-110000-two" in warning
    with raises(UnknownIdError, 4, "two"):  # of what cannot be undone
        catalog.find("two", must_be_unique=True)


def test_folders_that_cannot_be_looked_into_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "20261115-100000-hers").mkdir()
    real = os.listdir

    def listdir(path: Any) -> list[str]:
        if Path(path).name.endswith("-hers"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    catalog = RunCatalog(tmp_path)
    for text in ("last", "hers"):
        with raises(UnknownIdError, "20261115-100000-hers"):
            catalog.find(text)
    write_json(tmp_path / "mine" / "config.json", {"components": {}})
    assert [each.name for each in catalog.entries()] == ["mine"]
    assert list(catalog.unreadable()) == ["20261115-100000-hers"]


def test_a_folder_whose_name_is_no_text_is_named_and_hides_no_other(tmp_path: Path) -> None:
    write_json(tmp_path / "mine" / "config.json", {"components": {}})
    for name in (b"bad\xff", b"no-run\xff"):
        os.mkdir(os.fsencode(tmp_path) + b"/" + name)
    (tmp_path / os.fsdecode(b"bad\xff") / "metrics.jsonl").touch()
    catalog = RunCatalog(tmp_path)
    assert [each.name for each in catalog.entries()] == ["mine"]
    assert list(catalog.unreadable()) == ["bad\\xff"]
    with pytest.raises(UnknownIdError):
        catalog.named(os.fsdecode(b"bad\xff"))


@pytest.mark.parametrize("name", ["..", ".", "", "../outside", "/etc", "runs/..", ".hidden", "x\x00y", "a" * 300])
def test_a_name_from_a_link_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / "outside" / "config.json", {"components": {}})
    write_json(tmp_path / "runs" / "config.json", {"components": {}})
    write_json(tmp_path / "runs" / ".hidden" / "config.json", {"components": {}})
    with pytest.raises(UnknownIdError):
        RunCatalog(tmp_path / "runs").named(name)


def test_of_each_metric_the_last_value_counts_whatever_lines_it_stands_in(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [{"step": step, "time": 1.0, "loss": step, "lr": 1} for step in range(1, 50)]
    lines.insert(20, {"step": 20, "time": 1.0, "loss": 20.5, "val/reward": 0.5})
    lines.insert(30, {"time": 1.0, "loss": 7.0, "rollouts": 3})
    write_lines(tmp_path / "metrics.jsonl", [*lines, {"time": 9.0, "rollouts": 4}])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 50, "loss": 1')
    found = RunEntry.of(tmp_path)
    assert found.metrics == {"loss": 49.0, "lr": 1.0, "val/reward": 0.5, "rollouts": 4.0}


def test_prompts_that_only_the_store_holds_are_no_prompt_files(tmp_path: Path) -> None:
    entry = RunEntry.of(prompt_run(tmp_path / "run"))
    assert not entry.has_prompts
    assert (entry.metrics["train/loss"], entry.metrics["val/reward_mean"]) == (1 / 3, pytest.approx(2.02))


async def test_looking_at_a_store_leaves_the_locks_of_whoever_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    with another_writer(path):
        store = SQLiteStore(path, read_only=True)
        assert (await store.statistics())["total_rollouts"] == 1
        assert RunEntry.of(path).has_store
        open_store(str(path))
    # The last to close a store tidies up, unless somebody else still holds a lock on it.
    assert path.with_name("shared.db-wal").exists()
    with another_writer(path):
        assert (await store.statistics())["total_rollouts"] == 2
    await store.close()


ODD = {
    "nan": {"metrics.jsonl": '{"step": 1, "rollouts": "nan", "time": "inf"}\n'},
    "long": {"metrics.jsonl": '{"step": 1, "rollouts": ' + "9" * 400 + "}\n"},
    "deep": {"config.json": '{"components": ' + '{"a": ' * 2000 + "1" + "}" * 2001, "metrics.jsonl": ""},
    "stages": {"config.json": '{"components": {"algorithm": {"stages": 5}}}', ".lock": ""},
}


@pytest.mark.parametrize("name", ODD)
def test_a_folder_with_odd_files_is_listed_like_others(runs: Path, name: str) -> None:
    (runs / name).mkdir(parents=True)
    for file, text in ODD[name].items():
        (runs / name / file).write_text(text)
    (entry,) = RunCatalog(runs).entries()
    assert (entry.name, entry.error, entry.rollouts) == (name, None, None)
    assert RunCatalog(runs).find("last").name == name


def test_a_run_that_cannot_be_read_hides_no_other(runs: Path) -> None:
    simulator_run(runs / "good")
    (runs / "bad" / "metrics.jsonl").mkdir(parents=True)
    by_name = {entry.name: entry for entry in RunCatalog(runs).entries()}
    assert by_name["good"].state == "succeeded"
    assert "metrics.jsonl" in (by_name["bad"].error_line or "")
    assert RunEntry.of(runs / "bad") == by_name["bad"]


async def test_what_lies_beside_a_store_alone_is_not_taken_for_its_own(tmp_path: Path) -> None:
    dev_run(tmp_path / "run")
    path = tmp_path / "run" / "other.db"
    await SQLiteStore(path).close()
    entry = RunEntry.of(path)
    assert (entry.kind, entry.has_files) == ("store", False)
    assert (entry.log_path, entry.config(), entry.stages(), entry.prompt_folders()) == (None, {}, [], [])
