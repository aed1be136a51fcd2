"""`sharpen init`: projects that run as they are."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharpen.cli import main
from tests.cli.internals import TEMPLATES, load_config
from tests.cli.projects import own_imports


@pytest.fixture(autouse=True)
def own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    with own_imports():
        yield


def test_the_default_project_finds_a_better_prompt_offline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "mine"
    assert main(["init", str(project)]) == 0
    assert f"sharpen train {project / 'config.yaml'}" in capsys.readouterr().out
    config = str(project / "config.yaml")
    assert main(["train", config, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scores"][0]["mean"] == 1.0
    assert main(["train", config, "--dry-run", "--json"]) == 0
    assert found["metrics"]["rollouts"] <= json.loads(capsys.readouterr().out)["bound"]["rollouts"]
    assert main(["eval", config, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reward"]["mean"] == 0.0
    assert main(["eval", config, "--run", "last", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reward"]["mean"] == 1.0


SEEDS = [("simulator", [f"seed={seed}", f"policy.seed={seed}"]) for seed in (1, 2, 3)]


MINUTES = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(
    ("template", "settings"),
    [("prompt", []), *SEEDS, pytest.param("calculator", ["val_dataset.limit=24"], marks=MINUTES)],
)
def test_every_project_improves(
    tmp_path: Path, template: str, settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "p"), "--template", template]) == 0
    capsys.readouterr()

    def answer(*arguments: str) -> Any:
        assert main([arguments[0], str(tmp_path / "p"), *settings, *arguments[1:], "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    before = answer("eval")["reward"]["mean"]
    run = answer("train")
    after = answer("eval", "--run", "last")["reward"]["mean"]
    assert after > before
    assert run["warnings"] == []
    validated = validations_of(Path(run["run_dir"]))
    assert validated[-1] > validated[0], validated


UNBOUNDED = [
    "policy.discount_factor=1",
    "policy.gae_lambda=1",
    "policy.critic_network=null",
    "update_kwargs={repeat: 4}",
]


def test_a_run_that_unlearns_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "p"), "--template", "simulator"]) == 0
    capsys.readouterr()
    assert main(["train", str(tmp_path / "p"), *UNBOUNDED, "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    validated = validations_of(Path(run["run_dir"]))
    assert validated[-1] < 1.5 * validated[0] < 0
    (warning,) = run["warnings"]
    assert "val/reward" in warning
    assert f"{validated[-1]:.4g}" in warning
    assert warning in (Path(run["run_dir"]) / "run.log").read_text()
    assert main(["runs", "show", "last"]) == 0
    assert "val/reward ended worse" in capsys.readouterr().out


def validations_of(run: Path) -> list[float]:
    """The validation rewards of a run, first to last."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [line.get("val/reward", line.get("val/reward_mean")) for line in lines if "step" in line]
    return [value for value in found if value is not None]


RESUMED = ["--resume", "last"]
MORE_RULES = "algorithm.rules.6=Be brief."


def test_a_search_that_has_ended_tries_nothing_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "mine")]) == 0
    again = ["train", str(tmp_path / "mine"), "--json"]
    capsys.readouterr()
    first, second, third = [run_of(capsys, *again, *more) for more in ([], RESUMED, [*RESUMED, MORE_RULES])]
    assert second["rollouts"] == first["rollouts"]
    assert second["train/candidates_total"] == first["train/candidates_total"]
    assert third["train/candidates_total"] == first["train/candidates_total"] + 1


def run_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    """The metrics of a training."""
    assert main(arguments) == 0
    metrics: dict[str, float] = json.loads(capsys.readouterr().out)["metrics"]
    return metrics


@pytest.mark.parametrize("template", list(TEMPLATES))
def test_every_project_has_a_readme_data_and_a_configuration_that_is_right(tmp_path: Path, template: str) -> None:
    assert main(["init", str(tmp_path / "p"), "--template", template, "--json"]) == 0
    assert (tmp_path / "p" / "README.md").is_file()
    assert (tmp_path / "p" / "data" / "val.jsonl").stat().st_size > 0
    assert load_config(tmp_path / "p").folder == tmp_path / "p"


@pytest.mark.parametrize("template", ["prompt", "calculator"])
def test_a_project_takes_the_override_that_help_shows(
    tmp_path: Path, template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "p"), "--template", template]) == 0
    assert main(["train", str(tmp_path / "p"), "n_runners=4", "--dry-run"]) == 0, capsys.readouterr().err


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("mine: 1\n")
    assert main(["init", str(tmp_path)]) == 2
    assert str(tmp_path / "config.yaml") in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    (tmp_path / "agent.py").write_text("")
    assert main(["init", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "agent.py") in said
    assert str(tmp_path / "config.yaml") in said
    assert main(["init", str(tmp_path / "config.yaml")]) == 2


@pytest.mark.slow
def test_the_calculator_project_trains_a_real_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "p"), "--template", "calculator"]) == 0
    small = ["algorithm.steps=1", "algorithm.batch_size=2", "algorithm.group_size=4", "val_dataset.limit=8"]
    config = str(tmp_path / "p" / "config.yaml")
    capsys.readouterr()
    assert main(["train", config, *small, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["metrics"]["failed"]) == ("succeeded", 0)
    assert main(["eval", config, "--run", "last", "val_dataset.limit=8", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["model"].endswith("checkpoints/step_1/model")
    assert (measured["rollouts"], measured["failed"]) == (8, 0)
