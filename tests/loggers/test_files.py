"""Loggers that write files: CSV, JSON lines, pickles."""

import csv
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from sharpen.errors import InvalidInputError
from sharpen.loggers import CsvLogger, JsonlLogger, Logger, PickleLogger
from tests.errors import raises


def csv_rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def jsonl_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def pickle_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    with open(path, "rb") as file:
        while file.peek(1):
            rows.append(pickle.load(file))
    return rows


def steps(path: Path) -> list[int]:
    if path.suffix == ".csv":
        return [int(row["step"]) for row in csv_rows(path)]
    rows = jsonl_rows(path) if path.suffix == ".jsonl" else pickle_rows(path)
    return [row["step"] for row in rows if "reward" in row or "metrics" in row]


MAKERS: list[Callable[[Path], Any]] = [CsvLogger, JsonlLogger, PickleLogger]


@pytest.fixture(params=MAKERS, ids=lambda maker: maker.__name__)
def make(request: pytest.FixtureRequest) -> Callable[[Path], Any]:
    maker: Callable[[Path], Any] = request.param
    return maker


def log(logger: Logger, *numbers: int) -> Logger:
    for step in numbers:
        logger.log_metrics({"reward": step / 2}, step)
    return logger


def test_each_step_is_there_at_once(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    logger = make(tmp_path / "new" / "folder")
    for step in (1, 2, 3):
        log(logger, step)
        assert steps(logger.path) == list(range(1, step + 1))


def test_making_a_logger_touches_nothing(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    make(tmp_path / "folder").state_dict()
    assert list(tmp_path.iterdir()) == []


def test_a_logger_travels_to_another_process(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    logger = cloudpickle.loads(cloudpickle.dumps(make(tmp_path)))
    assert steps(log(logger, 1).path) == [1]  # type: ignore[attr-defined]


def test_a_new_run_replaces_an_earlier_one(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    log(make(tmp_path), 1, 2, 3).finish()
    assert steps(log(make(tmp_path), 1).path) == [1]  # type: ignore[attr-defined]


def test_a_resumed_run_goes_on_after_its_checkpoint(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    logger = log(make(tmp_path), 1, 2)
    state = logger.state_dict()
    log(logger, 3, 4).finish("interrupted")
    resumed = make(tmp_path)
    resumed.load_state_dict(state)
    log(resumed, 3, 4, 5)
    assert steps(resumed.path) == [1, 2, 3, 4, 5]


def test_a_run_resumed_from_its_start_begins_anew(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    logger = make(tmp_path)
    state = logger.state_dict()
    log(logger, 1, 2)
    resumed = make(tmp_path)
    resumed.load_state_dict(state)
    assert steps(log(resumed, 1).path) == [1]  # type: ignore[attr-defined]


def test_a_run_resumed_in_another_folder_just_goes_on(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    resumed = make(tmp_path / "elsewhere")
    resumed.load_state_dict(log(make(tmp_path), 1, 2).state_dict())
    assert steps(log(resumed, 3).path) == [3]  # type: ignore[attr-defined]


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    logger = log(make(tmp_path), 1, 2)
    state = logger.state_dict()
    with open(logger.path, "ab") as file:  # type: ignore[attr-defined]
        file.write(b'{"step": 3, "rew')
    resumed = make(tmp_path)
    resumed.load_state_dict(state)
    assert steps(log(resumed, 3).path) == [1, 2, 3]  # type: ignore[attr-defined]


@pytest.mark.parametrize("maker", [CsvLogger, JsonlLogger], ids=lambda maker: maker.__name__)
def test_what_is_no_number_is_refused_and_not_written(tmp_path: Path, maker: Callable[[Path], Any]) -> None:
    logger = log(maker(tmp_path), 1)
    with raises(InvalidInputError, "reward", "high"):
        logger.log_metrics({"reward": "high"}, 2)  # type: ignore[dict-item]
    assert steps(logger.path) == [1]  # type: ignore[attr-defined]


def test_metrics_that_come_later_get_columns(tmp_path: Path) -> None:
    logger = CsvLogger(tmp_path)
    logger.log_metrics({"a": 1, "b,c": np.float32(0.5)}, 1)
    logger.log_metrics({"val/x": math.nan, "a": 1e-300}, 2)
    logger.log_metrics({"b,c": 3}, 3)
    assert csv_rows(logger.path) == [
        {"step": "1", "a": "1.0", "b,c": "0.5", "val/x": ""},
        {"step": "2", "a": "1e-300", "b,c": "", "val/x": "nan"},
        {"step": "3", "a": "", "b,c": "3.0", "val/x": ""},
    ]


def test_lines_hold_settings_texts_and_the_end_and_are_valid_json(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path, clock=lambda: 7.0)
    logger.log_config({"lr": 0.1, "path": Path("x"), "range": (0, math.inf)})
    logger.log_metrics({"loss": math.nan, "reward": -math.inf}, 1)
    logger.log_text("prompt", "Grüße\n", 1)
    logger.finish("failed")
    assert jsonl_rows(logger.path) == [
        {"step": 0, "time": 7.0, "config": {"lr": 0.1, "path": "x", "range": [0, "inf"]}},
        {"step": 1, "time": 7.0, "loss": "nan", "reward": "-inf"},
        {"step": 1, "time": 7.0, "name": "prompt", "text": "Grüße\n"},
        {"step": 1, "time": 7.0, "status": "failed"},
    ]


def test_lines_of_others_in_the_same_file_stay(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"seconds": 1.0, "done": 3}\n')
    logger = log(JsonlLogger(tmp_path), 1, 2)
    resumed = JsonlLogger(tmp_path)
    resumed.load_state_dict(logger.state_dict())
    log(resumed, 3)
    rows = jsonl_rows(tmp_path / "metrics.jsonl")
    assert [row.get("step", row.get("done")) for row in rows] == [3, 1, 2, 3]


def test_pickles_hold_values_of_any_kind(tmp_path: Path) -> None:
    logger = PickleLogger(tmp_path)
    logger.log_config({"net": (1, 2)})
    logger.log_metrics({"x": np.float32(1)}, 1)
    logger.log_text("note", "hello", 1)
    logger.finish()
    assert pickle_rows(logger.path) == [
        {"config": {"net": (1, 2)}},
        {"step": 1, "metrics": {"x": np.float32(1)}},
        {"step": 1, "name": "note", "text": "hello"},
        {"status": "succeeded"},
    ]
