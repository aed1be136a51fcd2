"""Runs as the other training loops really leave them: what is told of them, and the best of each."""

from pathlib import Path

import pytest

from sharpen.callbacks import Checkpoint, MetricsWriter
from sharpen.loggers import JsonlLogger
from tests.archive.internals import RunEntry, export_best

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from ..llm.tiny_models import write_tiny_model

    torch.set_num_threads(1)
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def test_a_run_of_grpo_gives_its_adapter(tiny: Path, tmp_path: Path) -> None:
    from sharpen.llm import load_model

    from ..algorithm.verl.scenes import TASKS, fit, small_grpo

    fit(small_grpo(tiny, lora_rank=4, validate_every=1), tmp_path / "run", val_dataset=TASKS[:2])
    entry = RunEntry.of(tmp_path / "run")
    assert (entry.kind, entry.state, entry.algorithm, entry.has_store) == ("agents", "succeeded", "GRPO", False)
    assert entry.reward_name == "val/reward_mean"
    export_best(entry, tmp_path / "out")
    assert hasattr(load_model(tmp_path / "out" / "model").model, "peft_config")


def test_a_run_of_fine_tuning_gives_its_model(tiny: Path, tmp_path: Path) -> None:
    from sharpen.llm import SFTTrainerWrapper

    from ..llm.training.scenes import same, sft_rows, weights_of

    options = {"num_epochs": 2, "batch_size": 4, "learning_rate": 1e-2, "logging_steps": 2, "loggers": ["jsonl"]}
    SFTTrainerWrapper(str(tiny), sft_rows(), tmp_path / "run", **options).train()
    entry = RunEntry.of(tmp_path / "run")
    assert (entry.kind, entry.state, entry.algorithm, entry.model) == ("fine-tuning", "succeeded", "SFT", str(tiny))
    assert entry.metrics["loss"] > 0
    assert entry.seconds is not None
    export_best(entry, tmp_path / "out")
    assert same(weights_of(tmp_path / "run"), weights_of(tmp_path / "out" / "model"))
    assert not (tmp_path / "out" / "model" / "metrics.jsonl").exists()


def test_a_run_of_a_simulator_gives_its_policy(tmp_path: Path) -> None:
    from sharpen.rl import Trainer

    from ..rl.test_trainer import SoftmaxPolicy, guess

    folder = tmp_path / "run"
    callbacks = [Checkpoint(folder / "checkpoints", every_n_iters=1), MetricsWriter(folder)]
    trainer = Trainer(
        max_iters=3,
        val_every_n_iters=1,
        finite_env_type="dummy",
        callbacks=callbacks,
        loggers=JsonlLogger(folder),
        seed=1,
    )
    trainer.fit(guess(SoftmaxPolicy()))
    entry = RunEntry.of(folder)
    assert (entry.kind, entry.state, entry.has_episodes) == ("simulator", "succeeded", False)
    assert entry.reward_name == "val/reward"
    assert entry.config()["max_iters"] == 3
    export_best(entry, tmp_path / "out")
    assert Trainer.get_policy_state_dict(tmp_path / "out" / "policy.pth")
