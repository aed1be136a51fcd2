"""Curves of runs, drawn to files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sharpen.errors import ConfigError
from sharpen.loggers import CsvLogger, JsonlLogger, plot
from tests.errors import raises
from tests.loggers.internals import read_curves


def run_folder(path: Path, rewards: list[float]) -> Path:
    logger = JsonlLogger(path)
    logger.log_config({"lr": 0.1})
    for step, reward in enumerate(rewards, 1):
        logger.log_metrics({"reward": reward, "loss": 1 / step}, step)
        if step % 2 == 0:
            logger.log_metrics({"val/reward": reward + 1}, step)
    logger.log_text("prompt", "words", 1)
    logger.finish()
    return path


def test_one_run_becomes_a_picture_in_its_folder(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", [1.0, 2.0, 4.0])
    picture = plot(run)
    assert picture == run / "curves.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_several_runs_share_panels_and_each_has_its_name(tmp_path: Path) -> None:
    runs = [run_folder(tmp_path / name, [1.0, value]) for name, value in (("first", 2.0), ("second", 3.0))]
    text = plot(runs, out=tmp_path / "new" / "both.svg").read_text()
    assert text.startswith("<?xml")
    for words in ("first", "second", "reward", "val/reward", "loss"):
        assert f"<!-- {words} -->" in text
    assert "<!-- prompt -->" not in text


def test_only_the_wanted_metrics_are_drawn(tmp_path: Path) -> None:
    text = plot(run_folder(tmp_path, [1.0, 2.0]), out=tmp_path / "x.svg", metrics=["val/reward"]).read_text()
    assert "<!-- val/reward -->" in text
    assert "<!-- loss -->" not in text


def test_curves_are_read_from_every_kind_of_file(tmp_path: Path) -> None:
    CsvLogger(tmp_path / "csv").log_metrics({"reward": 2.0}, 7)
    (tmp_path / "writer").mkdir()
    (tmp_path / "writer" / "train_result.csv").write_text("iter,loss\n1,0.5\n2,nan\n3,0.1\n4,0.")
    (tmp_path / "writer" / "validation_result.csv").write_text("iter,loss,val/reward\n2,0.4,9\n")
    progress = [{"time": 1e9, "seconds": 5.0, "done": 3}, {"time": 1e9, "seconds": 9.5, "done": 8}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in progress))
    assert read_curves(tmp_path / "csv") == {"reward": ("step", [7.0], [2.0])}
    assert read_curves(tmp_path / "writer") == {
        "loss": ("iter", [1.0, 3.0], [0.5, 0.1]),
        "val/reward": ("iter", [2.0], [9.0]),
    }
    assert read_curves(tmp_path) == {"done": ("seconds", [5.0, 9.5], [3.0, 8.0])}
    assert read_curves(tmp_path / "metrics.jsonl") == read_curves(tmp_path)


def test_values_that_are_not_finite_are_gaps(tmp_path: Path) -> None:
    curves = read_curves(run_folder(tmp_path, [1.0, float("nan"), float("inf"), 2.0]))
    assert curves["reward"] == ("step", [1.0, 4.0], [1.0, 2.0])
    assert plot(tmp_path).exists()


def test_a_run_that_is_still_written_can_be_drawn(tmp_path: Path) -> None:
    run_folder(tmp_path, [1.0, 2.0])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "rewa')
    assert read_curves(tmp_path)["reward"] == ("step", [1.0, 2.0], [1.0, 2.0])


def test_what_cannot_be_drawn_is_told(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", [1.0, 2.0])
    (tmp_path / "empty").mkdir()
    (tmp_path / "metrics.csv").write_text("step,reward\n")
    with raises(ConfigError, "rewrd", "reward"):
        plot(run, metrics=["rewrd"])
    with raises(ConfigError, "metrics.jsonl"):
        plot(tmp_path / "empty")
    with pytest.raises(ConfigError):
        plot(tmp_path)
    with raises(ConfigError, ".png"):
        plot(run, out=tmp_path / "x.doc")
    with pytest.raises(ConfigError):
        plot([])
    with pytest.raises(ConfigError):
        plot([run, run])


def test_drawing_needs_no_screen_and_importing_no_matplotlib(tmp_path: Path) -> None:
    run_folder(tmp_path, [1.0, 2.0])
    code = (
        "import sys; from sharpen.loggers import plot\n"
        "print([name for name in ('matplotlib', 'numpy', 'rich', 'wandb', 'mlflow') if name in sys.modules])\n"
        f"plot({str(tmp_path)!r}); print('matplotlib.pyplot' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "False"]


def test_without_matplotlib_the_command_is_named(tmp_path: Path) -> None:
    run_folder(tmp_path, [1.0])
    code = f"import sys; sys.modules['matplotlib'] = None\nfrom sharpen.loggers import plot\nplot({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'sharpen[plot]'" in done.stderr
