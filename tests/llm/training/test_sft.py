"""Supervised fine-tuning, with and without LoRA, on a tiny model."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sharpen.callbacks import Callback
from sharpen.errors import ConfigError
from sharpen.llm import ModelError, RowError, SFTTrainerWrapper, TrainingConfig, TrainingError, create_lora_config
from sharpen.loggers import Logger
from tests.errors import raises
from tests.llm.internals import checkpoints

from .scenes import logits_of, metric_lines, same, sft_rows, weights_of

QUICK = {"num_epochs": 6, "batch_size": 4, "learning_rate": 1e-2, "logging_steps": 4, "loggers": ["jsonl"]}


def test_the_loss_falls_and_the_folder_loads_again_by_name(tiny_model: Path, tmp_path: Path) -> None:
    wrapper = SFTTrainerWrapper(str(tiny_model), sft_rows(), tmp_path / "out", **QUICK)
    result = wrapper.train()
    losses = [line["loss"] for line in metric_lines(tmp_path / "out")]
    assert losses[-1] < losses[0] / 2
    assert result["output_dir"] == str(tmp_path / "out")
    assert (result["steps"], result["epochs"], result["stopped_early"], result["resumed_from"]) == (
        24,
        6.0,
        False,
        None,
    )
    assert result["final_metrics"]["loss"] == losses[-1]
    assert result["best_metrics"]["loss"] == min(losses)
    assert result["tokens"] > 24 * 4 * 10
    assert result["seconds"] > 0
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == result
    assert not same(weights_of(tiny_model), weights_of(tmp_path / "out"))
    memory = wrapper.model.model.eval()(**wrapper.model.tokenizer("What is 1 + 1?", return_tensors="pt")).logits
    torch.testing.assert_close(memory, logits_of(tmp_path / "out"))


def test_lora_trains_the_adapter_alone(tiny_model: Path, tmp_path: Path) -> None:
    lora = create_lora_config(r=4, lora_alpha=8, target_modules="recommended")
    wrapper = SFTTrainerWrapper(str(tiny_model), sft_rows(), tmp_path / "out", use_lora=True, lora_config=lora, **QUICK)
    result = wrapper.train()
    assert result["final_metrics"]["loss"] < metric_lines(tmp_path / "out")[0]["loss"]
    before, after = weights_of(tiny_model), weights_of(tmp_path / "out")
    base = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): value
        for name, value in after.items()
        if "lora_" not in name
    }
    assert same(before, base)
    changed = [name for name, value in after.items() if "lora_B" in name and value.abs().sum() > 0]
    assert len(changed) == 2 * 4
    assert not (tmp_path / "out" / "model.safetensors").exists()
    memory = wrapper.model.model.eval()(**wrapper.model.tokenizer("What is 1 + 1?", return_tensors="pt")).logits
    torch.testing.assert_close(memory.detach(), logits_of(tmp_path / "out"))
    assert not torch.allclose(memory, logits_of(tiny_model))


def test_an_adapter_is_trained_on_or_merged(tiny_model: Path, tmp_path: Path) -> None:
    options = {**QUICK, "num_epochs": 1}
    SFTTrainerWrapper(str(tiny_model), sft_rows(), tmp_path / "first", use_lora=True, **options).train()
    SFTTrainerWrapper(str(tmp_path / "first"), sft_rows(), tmp_path / "second", use_lora=True, **options).train()
    first, second = weights_of(tmp_path / "first"), weights_of(tmp_path / "second")
    assert first.keys() == second.keys()
    assert {name for name in first if not torch.equal(first[name], second[name])} == {n for n in first if "lora_" in n}

    SFTTrainerWrapper(str(tmp_path / "first"), sft_rows(), tmp_path / "full", **options).train()
    assert weights_of(tmp_path / "full").keys() == weights_of(tiny_model).keys()
    assert not (tmp_path / "full" / "adapter_config.json").exists()


def test_another_shape_of_an_adapter_that_is_trained_on_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    options = {**QUICK, "num_epochs": 1, "use_lora": True}
    SFTTrainerWrapper(str(tiny_model), sft_rows(4), tmp_path / "first", **options).train()
    other = SFTTrainerWrapper(
        str(tmp_path / "first"), sft_rows(4), tmp_path / "second", lora_config=create_lora_config(r=2), **options
    )
    with raises(ConfigError, 16, 2, "merge_adapter"):
        other.train()


def test_a_validation_gives_its_loss_and_the_reward_of_answers(tiny_model: Path, tmp_path: Path) -> None:
    def right(completions: list[object], completion: list[object], **columns: object) -> list[float]:
        assert len(completions) == len(completion)
        return [1.0] * len(completions)

    result = SFTTrainerWrapper(
        str(tiny_model),
        sft_rows(),
        tmp_path / "out",
        num_epochs=2,
        learning_rate=1e-2,
        logging_steps=1,
        eval_dataset=sft_rows(3),
        eval_reward_fn=right,
        max_new_tokens=4,
        loggers="jsonl",
    ).train()
    validations = [line for line in metric_lines(tmp_path / "out") if "val/loss" in line]
    assert [line["step"] for line in validations] == [4, 8]
    assert validations[-1]["val/loss"] < validations[0]["val/loss"]
    assert result["final_metrics"]["val/reward"] == result["final_metrics"]["val/accuracy"] == 1.0
    assert result["best_metrics"]["step"] == 4  # the first of two that are equally good


def test_the_last_step_is_logged_whatever_the_interval(tiny_model: Path, tmp_path: Path) -> None:
    result = SFTTrainerWrapper(str(tiny_model), sft_rows(12), tmp_path / "out", num_epochs=1, loggers="jsonl").train()
    assert [line["step"] for line in metric_lines(tmp_path / "out")] == [3]
    assert result["final_metrics"]["loss"] > 0


def test_nothing_is_saved_before_training(tiny_model: Path, tmp_path: Path) -> None:
    wrapper = SFTTrainerWrapper(str(tiny_model), sft_rows(), tmp_path / "out")
    with raises(ConfigError, "train()"):
        wrapper.save_model(tmp_path / "mine")
    assert not (tmp_path / "mine").exists()
    assert not (tmp_path / "out").exists()


def test_save_model_writes_to_any_folder(tiny_model: Path, tmp_path: Path) -> None:
    wrapper = SFTTrainerWrapper(str(tiny_model), sft_rows(4), tmp_path / "out", num_epochs=1, loggers=[])
    wrapper.train()
    wrapper.save_model(tmp_path / "mine")
    assert same(weights_of(tmp_path / "mine"), weights_of(tmp_path / "out"))


def test_a_config_and_keywords_agree(tiny_model: Path, tmp_path: Path) -> None:
    config = TrainingConfig(model_name=str(tiny_model), output_dir=str(tmp_path / "out"), num_train_epochs=1)
    wrapper = SFTTrainerWrapper(dataset=sft_rows(4), config=config, num_epochs=1, loggers=[])
    assert wrapper.train()["epochs"] == 1.0
    with raises(ConfigError, "num_epochs", 3, "num_train_epochs", 1):
        SFTTrainerWrapper(dataset=sft_rows(4), config=config, num_epochs=3)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model_name": None}, ("model_name",)),
        ({"model_name": TrainingConfig()}, ("config=",)),
        ({"lora_r": 8}, ("lora_r", "use_lora")),
        ({"dataset": None}, ("dataset",)),
        ({"dataset": []}, ()),
        ({"model_name": "./nowhere"}, ("./nowhere",)),
        ({"batch_sise": 3}, ("batch_size",)),
        ({"callbacks": [object()]}, ("Callback",)),
        ({"loggers": ["consol"]}, ("loggers",)),
        ({"eval_reward_fn": len}, ("eval_dataset",)),
        ({"resume": "nowhere"}, ("resume",)),
        ({"resume": 3}, ("resume", 3)),
        ({"eval_dataset": sft_rows(1), "eval_reward_fn": "accuracy"}, ("accuracy",)),
        ({"precision": "fp16", "output_dir": "out"}, ("fp16",)),
        ({"lr_scheduler_type": "greedy"}, ("lr_scheduler_type",)),
        ({"use_lora": True, "lora_config": {5: 3}}, (5,)),
        ({"dataset": [{"prompt": 5, "completion": "x"}]}, (0,)),
        ({"output_dir": "/dev/null/out"}, ("output_dir", "/dev/null/out")),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
    named: tuple[object, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"model_name": str(tiny_model), "dataset": sft_rows(4), **options}
    with raises((ConfigError, ModelError, ValueError), *named):
        SFTTrainerWrapper(**given).train()
    assert list(tmp_path.iterdir()) == []


def test_a_program_may_change_its_working_directory(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Goes(Callback):
        def on_fit_start(self, loop: Any, trained: Any) -> None:
            monkeypatch.chdir(tmp_path / "c")

    for name in "abc":
        (tmp_path / name).mkdir()
    shutil.copytree(tiny_model, tmp_path / "a" / "model")
    monkeypatch.chdir(tmp_path / "a")
    wrapper = SFTTrainerWrapper("model", sft_rows(4), "out", num_epochs=1, loggers="jsonl", callbacks=Goes())
    monkeypatch.chdir(tmp_path / "b")
    wrapper.train()
    assert not [*(tmp_path / "b").iterdir(), *(tmp_path / "c").iterdir()]
    assert same(weights_of(tmp_path / "a" / "out"), weights_of(checkpoints(tmp_path / "a" / "out")[-1]))


def test_a_checkpoint_of_the_output_folder_is_no_model_to_start_from(tiny_model: Path, tmp_path: Path) -> None:
    SFTTrainerWrapper(str(tiny_model), sft_rows(4), tmp_path / "out", num_epochs=1, loggers=[]).train()
    (newest,) = checkpoints(tmp_path / "out")
    wrapper = SFTTrainerWrapper(newest, sft_rows(4), tmp_path / "out", num_epochs=1, loggers=[])
    with raises(ConfigError, "output_dir"):
        wrapper.train()
    assert checkpoints(tmp_path / "out") == [newest]


def test_a_run_whose_model_cannot_be_saved_has_failed(tiny_model: Path, tmp_path: Path) -> None:
    class Ends(Logger):
        status = ""

        def finish(self, status: Any = "succeeded") -> None:
            self.status = status

    class TakesThePlace(Callback):
        def on_fit_end(self, loop: Any, trained: Any) -> None:
            (loop.output_dir / "tokenizer.json").mkdir()

    logger = Ends()
    wrapper = SFTTrainerWrapper(
        str(tiny_model), sft_rows(4), tmp_path / "out", num_epochs=1, loggers=[logger], callbacks=TakesThePlace()
    )
    with pytest.raises(ModelError):
        wrapper.train()
    assert logger.status == "failed"


def test_a_row_without_its_column_is_named(tiny_model: Path) -> None:
    rows = sft_rows(3)
    del rows[2]["completion"]
    with raises(RowError, 2, "completion"):
        SFTTrainerWrapper(str(tiny_model), rows)


def test_rows_of_which_nothing_is_left_to_learn_are_told(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = {**sft_rows(1)[0], "prompt": [{"role": "user", "content": "why? " * 40}]}
    options = {"num_epochs": 1, "max_length": 80, "loggers": []}
    SFTTrainerWrapper(str(tiny_model), [*sft_rows(3), long], tmp_path / "out", **options).train()
    (skipped,) = (each.args for each in caplog.records if "prompts" in each.getMessage())
    assert skipped == (1, 4, 80)
    with raises(ConfigError, "max_length", 80):
        SFTTrainerWrapper(str(tiny_model), [long], tmp_path / "none", **options).train()


def test_weights_that_are_no_numbers_never_become_a_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    class Breaks(Callback):
        def on_train_start(self, loop: Any, trained: Any) -> None:
            if loop.current_iter == 2:
                next(trained.parameters()).data.fill_(float("nan"))

    wrapper = SFTTrainerWrapper(
        str(tiny_model), sft_rows(16), tmp_path / "out", num_epochs=1, save_steps=1, logging_steps=9, loggers=[],
        callbacks=Breaks(),
    )  # fmt: skip
    with raises(TrainingError, "checkpoint-2"):
        wrapper.train()
    assert checkpoints(tmp_path / "out")[-1].name == "checkpoint-2"


@pytest.mark.parametrize("use_lora", [False, True])
def test_nothing_is_saved_over_the_model_to_start_from(tiny_model: Path, use_lora: bool) -> None:
    before = sorted(path.name for path in tiny_model.iterdir())
    wrapper = SFTTrainerWrapper(str(tiny_model), sft_rows(4), tiny_model, use_lora=use_lora)
    with pytest.raises((ConfigError, ModelError)):
        wrapper.train()
    assert sorted(path.name for path in tiny_model.iterdir()) == before


def test_a_run_of_one_step_learns_something(tiny_model: Path, tmp_path: Path) -> None:
    result = SFTTrainerWrapper(str(tiny_model), sft_rows(4), tmp_path / "out", num_epochs=1, loggers=[]).train()
    assert (result["steps"], result["final_metrics"]["learning_rate"]) == (1, 2e-5)
    assert not same(weights_of(tiny_model), weights_of(tmp_path / "out"))


def test_mlflow_by_its_name_writes_to_the_output_folder(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)  # mlflow-skinny, the extra, brings none
    monkeypatch.chdir(tmp_path)
    options = {**QUICK, "num_epochs": 1, "logging_steps": 1, "loggers": ["mlflow"]}
    SFTTrainerWrapper(str(tiny_model), sft_rows(4), tmp_path / "out", **options).train()
    assert list((tmp_path / "out" / "mlruns").glob("*/*/metrics/loss"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_warmup_is_a_share_of_the_run(tiny_model: Path, tmp_path: Path) -> None:
    SFTTrainerWrapper(
        str(tiny_model), sft_rows(4), tmp_path / "out", num_epochs=10, batch_size=2, logging_steps=1,
        learning_rate=1e-3, lr_scheduler_type="constant_with_warmup", warmup=0.1, loggers="jsonl",
    ).train()  # fmt: skip
    rates = [line["learning_rate"] for line in metric_lines(tmp_path / "out")]
    assert rates == pytest.approx([0, 0.5e-3] + [1e-3] * 18)


def test_columns_of_the_users_own_do_not_take_the_place_of_the_texts(tiny_model: Path, tmp_path: Path) -> None:
    odd = [{**row, "input_ids": [1, 2, 3], "labels": "x", "note": 1} for row in sft_rows(4)]
    tokens = [
        SFTTrainerWrapper(str(tiny_model), rows, tmp_path / name, num_epochs=1, loggers=[], eval_dataset=rows).train()[
            "tokens"
        ]
        for name, rows in (("plain", sft_rows(4)), ("odd", odd))
    ]
    assert tokens[0] == tokens[1] > 50


def test_a_second_run_begins_a_new_record(tiny_model: Path, tmp_path: Path) -> None:
    wrapper = SFTTrainerWrapper(
        str(tiny_model), sft_rows(4), tmp_path / "out", num_epochs=2, logging_steps=1, loggers="jsonl"
    )
    wrapper.train()
    wrapper.train()
    assert [line["step"] for line in metric_lines(tmp_path / "out")] == [1, 2]
