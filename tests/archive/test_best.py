"""The best of a run, in a folder of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

from sharpen.callbacks import save_state
from sharpen.errors import ConfigError
from tests.archive.internals import RunEntry, export_best

from .run_scenes import dev_run, prompt_run, simulator_run, tuned_run, write_json, write_lines, write_model


def reasons(out: Path) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = json.loads((out / "best.json").read_text())["parts"]
    return parts


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_the_best_prompt_of_a_search_comes_with_what_it_changed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_json(run / "config.json", {"components": {}})
    write_json(run / "prompts" / "candidates.json", {})
    for name in ("best_prompt.a.txt", "best_prompt.b.txt", "best_prompt.diff", "candidates.txt"):
        (run / "prompts" / name).write_text(f"text of {name} äöü", encoding="utf-8")
    found = export_best(RunEntry.of(run), tmp_path / "deep" / "out")
    assert names(found) == ["best.json", "best_prompt.a.txt", "best_prompt.b.txt", "best_prompt.diff"]
    assert found[1].read_text(encoding="utf-8") == "text of best_prompt.a.txt äöü"
    assert {part["what"] for part in reasons(tmp_path / "deep" / "out")} == {"prompt", "difference to the seed"}


def test_stages_of_a_sequence_each_give_their_best(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_json(run / "config.json", {"components": {}})
    for stage in ("1-apo", "2-fewshot"):
        write_json(run / stage / "prompts" / "candidates.json", {})
        (run / stage / "prompts" / "best_prompt.txt").write_text(stage)
    step = run / "3-grpo" / "checkpoints" / "step_4"
    write_json(step / "state.json", {"has_model": True})
    write_model(step / "model")
    out = tmp_path / "out"
    assert names(export_best(RunEntry.of(run), out)) == ["1-apo", "2-fewshot", "best.json", "model"]
    assert (out / "2-fewshot" / "best_prompt.txt").read_text() == "2-fewshot"
    assert (out / "model" / "model.safetensors").read_bytes() == b"weights"


def test_of_kept_models_the_best_validated_one_is_taken(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_json(run / "config.json", {"components": {}})
    for step in (2, 4, 6, 8, 10):
        folder = run / "checkpoints" / f"step_{step}"
        write_model(folder / "model", f"step {step}".encode())
        if step != 8:  # half-written
            write_json(folder / "state.json", {"has_model": True})
    values = {2: 0.5, 3: 0.99, 4: 0.75, 6: 0.75, 8: 0.9}
    lines = [{"step": step, "time": 1.0, "val/reward_mean": value} for step, value in values.items()]
    write_lines(run / "metrics.jsonl", [*lines, {"time": 2.0, "val/reward_mean": 0.1}])
    export_best(RunEntry.of(run), tmp_path / "out")
    assert (tmp_path / "out" / "model" / "model.safetensors").read_bytes() == b"step 6"
    assert reasons(tmp_path / "out") == [
        {
            "what": "model",
            "file": "model",
            "from": str(run / "checkpoints" / "step_6" / "model"),
            "step": 6,
            "metric": "val/reward_mean",
            "value": 0.75,
        }
    ]


def test_without_validations_the_newest_model_is_the_best(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_json(run / "config.json", {"components": {}})
    for step in (9, 10):
        write_json(run / "checkpoints" / f"step_{step}" / "state.json", {})
        write_model(run / "checkpoints" / f"step_{step}" / "model", f"step {step}".encode())
    export_best(RunEntry.of(run), tmp_path / "out")
    assert (tmp_path / "out" / "model" / "model.safetensors").read_bytes() == b"step 10"
    assert reasons(tmp_path / "out")[0]["metric"] is None


def test_of_fine_tuning_the_checkpoint_with_the_least_loss_is_taken(tmp_path: Path) -> None:
    run = tuned_run(tmp_path / "tuned")
    export_best(RunEntry.of(run), tmp_path / "out")
    model = tmp_path / "out" / "model"
    assert names(sorted(model.iterdir())) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (model / "model.safetensors").read_bytes() == b"step 2"
    assert reasons(tmp_path / "out")[0]["value"] == 0.0


def test_of_fine_tuning_without_checkpoints_the_model_itself_is_taken(tmp_path: Path) -> None:
    run = tuned_run(tmp_path / "tuned")
    for path in (run / "checkpoint-2", run / "checkpoint-3"):
        path.rename(tmp_path / path.name)
    export_best(RunEntry.of(run), tmp_path / "out")
    model = tmp_path / "out" / "model"
    assert names(sorted(model.iterdir())) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (model / "model.safetensors").read_bytes() == b"the end"


def test_of_a_simulator_the_best_validated_checkpoint_is_taken(tmp_path: Path) -> None:
    run = simulator_run(tmp_path / "sim", (1.0, 3.0, 2.0))
    (run / "checkpoints").mkdir()
    for step in (1, 2, 3):
        state = {"vessel": {"policy": {"w": step}}, "current_iter": step}
        save_state(run / "checkpoints" / f"{step:03d}.pth", state)
    (run / "checkpoints" / "latest.pth").symlink_to("003.pth")
    (run / "checkpoints" / "broken.pth").write_bytes(b"PK")
    save_state(run / "checkpoints" / "other.pth", {"something": "else"})
    found = export_best(RunEntry.of(run), tmp_path / "out")
    assert names(found) == ["best.json", "policy.pth"]
    assert found[1].read_bytes() == (run / "checkpoints" / "002.pth").read_bytes()


def test_prompts_that_were_only_published_are_written_down(tmp_path: Path) -> None:
    found = export_best(RunEntry.of(prompt_run(tmp_path / "run")), tmp_path / "out")
    assert names(found) == ["best.json", "prompt.txt"]
    assert found[1].read_text() == ">>"


def test_a_run_that_made_nothing_leaves_nothing(tmp_path: Path) -> None:
    entry = RunEntry.of(dev_run(tmp_path / "run"))
    with pytest.raises(ConfigError):
        export_best(entry, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_folder_that_is_in_use_or_in_the_run_is_refused(tmp_path: Path) -> None:
    entry = RunEntry.of(tuned_run(tmp_path / "tuned"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    with pytest.raises(ConfigError):
        export_best(entry, tmp_path / "full")
    with pytest.raises(ConfigError):
        export_best(entry, tmp_path / "tuned" / "best")
    (tmp_path / "empty").mkdir()
    assert names(export_best(entry, tmp_path / "empty")) == ["best.json", "model"]
    assert (tmp_path / "full" / "x").read_text() == "mine"
