"""Going on from checkpoints: from a folder that the settings name, with other settings, again and again."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from sharpen import GRPO, LLM, llm_rollout
from sharpen.errors import ConfigError
from sharpen.llm import TrainingError, load_model
from tests.algorithm.internals import read_state
from tests.errors import raises
from tests.llm.tiny_models import write_tiny_model

from .scenes import fit, small_grpo
from .test_training import BreakOff, lines

NUMBERS = ("step", "train/reward_mean", "train/entropy", "train/grad_norm", "train/weights_version")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def grpo(model: Path, **more: Any) -> GRPO:
    return small_grpo(model, **({"group_size": 4, "batch_size": 2} | more))


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = load_model(folder).model(torch.tensor([[5, 6, 7]])).logits
    return found


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_a_new_run_goes_on_in_the_folder_of_its_settings_or_begins_anew(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fit(grpo(tiny, steps=1, output_dir=out), tmp_path / "first")
    on = grpo(tiny, steps=2, output_dir=out)
    fit(on, tmp_path / "on")
    assert [row["step"] for row in lines(tmp_path / "on")] == [2]
    assert kept(out) == ["step_1", "step_2"]
    assert read_state(out / "step_2")["step"] == 2
    anew = grpo(tiny, steps=1, output_dir=out, config={"trainer.resume_mode": "disable"})
    fit(anew, tmp_path / "anew")
    assert kept(out) == ["earlier_1", "step_1"]
    assert kept(out / "earlier_1") == ["step_1", "step_2"]
    saved = logits(anew.save_model(tmp_path / "model"))
    assert torch.allclose(saved, logits(out / "step_1" / "model"))
    assert not torch.allclose(saved, logits(out / "earlier_1" / "step_2" / "model"))


def test_a_checkpoint_of_another_model_is_refused(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fit(grpo(tiny, steps=1, output_dir=out), tmp_path / "first")
    other = write_tiny_model(tmp_path / "other", hidden=64)
    with raises(ConfigError, "step_1", "resume_mode=disable"):
        fit(grpo(other, steps=2, output_dir=out), tmp_path / "on")
    assert kept(out) == ["step_1"]
    with raises(ConfigError, "lora_rank", 0, 4):
        fit(grpo(tiny, steps=2, output_dir=out, lora_rank=4), tmp_path / "lora")
    gae = {"algorithm.adv_estimator": "gae"}
    with pytest.raises(ConfigError):
        fit(grpo(tiny, steps=2, output_dir=out, config=gae), tmp_path / "gae")


@pytest.mark.slow
def test_a_run_goes_on_from_the_path_that_is_named(tiny: Path, tmp_path: Path) -> None:
    fit(grpo(tiny, steps=3, save_every=1, config={"trainer.max_actor_ckpt_to_keep": -1}), tmp_path / "whole")
    named = {
        "trainer.resume_mode": "resume_path",
        "trainer.resume_from_path": str(tmp_path / "whole/checkpoints/step_1"),
    }
    with pytest.raises(RuntimeError):  # before it has a checkpoint of its own
        fit(grpo(tiny, steps=3, config=named), tmp_path / "on", callbacks=[BreakOff(2)], store="sqlite")
    fit(grpo(tiny, steps=3, config=named), tmp_path / "on", resume=tmp_path / "on", store="sqlite")
    ours, theirs = lines(tmp_path / "on"), lines(tmp_path / "whole")[1:]
    for mine, wanted in zip(ours, theirs, strict=True):
        assert {name: mine[name] for name in NUMBERS} == pytest.approx({name: wanted[name] for name in NUMBERS}, 1e-4)
    missing = named | {"trainer.resume_from_path": str(tmp_path / "whole/checkpoints/step_9")}
    with raises(ConfigError, 1, 2, 3):
        fit(grpo(tiny, steps=3, config=missing), tmp_path / "missing")


@pytest.mark.slow
def test_settings_may_change_when_a_run_is_resumed_and_the_log_says_which(
    tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    with pytest.raises(RuntimeError):
        fit(grpo(tiny, steps=4), run, callbacks=[BreakOff(2)], store="sqlite")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        changed = grpo(tiny, steps=4, learning_rate=1e-3, batch_size=4, group_size=2, temperature=0.9)
        fit(changed, run, resume=run, store="sqlite")
    told = [message for message in caplog.messages if " was " in message and " and is " in message]
    for change in ("optim.lr was 0.01 and is 0.001", "train_batch_size was 2 and is 4", "n was 4 and is 2", "temper"):
        assert any(change in message for message in told)
    rows = lines(run)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["train/groups"] for row in rows] in ([2, 2, 4, 4], [2, 4, 4, 4])
    assert rows[-1]["train/learning_rate"] == pytest.approx(1e-3)
    assert rows[-1]["train/staleness"] == 0


@pytest.mark.slow
def test_an_algorithm_may_be_fitted_again(tiny: Path, tmp_path: Path) -> None:
    algorithm = grpo(tiny, steps=2)
    fit(algorithm, tmp_path / "one")
    one = algorithm.save_model(tmp_path / "first")
    fit(algorithm, tmp_path / "two")
    two = algorithm.save_model(tmp_path / "second")
    for ours, theirs in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
    assert torch.allclose(logits(one), logits(two), atol=1e-4)
    with pytest.raises(ConfigError):
        algorithm.save_model(tmp_path / "second")


@pytest.mark.slow
def test_a_run_whose_rollouts_all_fail_ends(tiny: Path, tmp_path: Path) -> None:
    @llm_rollout
    async def broken(task: str, llm: LLM) -> float:
        raise RuntimeError("no")

    with raises(TrainingError, 3, 2):
        fit(grpo(tiny, steps=6, config={"trainer.preflight": False}), tmp_path / "run", broken)
