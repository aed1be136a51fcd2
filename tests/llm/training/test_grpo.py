"""GRPO on a tiny model: groups, rewards, references, and going on from an SFT result."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sharpen.errors import ConfigError
from sharpen.llm import GRPOTrainerWrapper, RewardError, SFTTrainerWrapper, evaluate
from tests.errors import raises

from ..tiny_models import write_tiny_model
from .scenes import metric_lines, rl_rows, same, sft_rows, share_of_e, texts, weights_of

QUICK: dict[str, Any] = {
    "num_epochs": 1,
    "num_generations": 4,
    "max_new_tokens": 6,
    "logging_steps": 1,
    "loggers": ["jsonl"],
}


def test_the_reward_rises(tiny_model: Path, tmp_path: Path) -> None:
    result = GRPOTrainerWrapper(
        str(tiny_model),
        rl_rows(8),
        share_of_e,
        tmp_path / "out",
        **{**QUICK, "num_epochs": 5, "learning_rate": 2e-2, "num_generations": 8},
    ).train()
    rewards = [line["reward"] for line in metric_lines(tmp_path / "out")]
    assert sum(rewards[-5:]) > 3 * sum(rewards[:5])
    assert result["best_metrics"]["reward"] == max(rewards)
    assert not same(weights_of(tiny_model), weights_of(tmp_path / "out"))


@pytest.mark.parametrize(("batch_size", "accumulation"), [(1, 1), (3, 1), (2, 2)])
def test_batch_size_counts_prompts_and_groups_stay_whole(
    tiny_model: Path, tmp_path: Path, batch_size: int, accumulation: int
) -> None:
    calls: list[list[str]] = []

    def watching(completions: list[Any], prompts: list[Any], **columns: Any) -> list[float]:
        calls.append(texts(prompts))
        return [float(number % 3) for number in range(len(completions))]

    result = GRPOTrainerWrapper(
        str(tiny_model),
        rl_rows(6),
        watching,
        tmp_path / "out",
        batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
        **QUICK,
    ).train()
    per_step = batch_size * accumulation
    assert result["steps"] == 6 // per_step
    for prompts in calls:
        groups = [prompts[start : start + 4] for start in range(0, len(prompts), 4)]
        assert len(groups) == per_step
        assert all(len(set(group)) == 1 for group in groups)


def test_each_reward_has_its_own_name_in_the_metrics(tiny_model: Path, tmp_path: Path) -> None:
    def politeness(completions: list[Any], **columns: Any) -> list[float]:
        return [0.5] * len(completions)

    async def lateness(completions: list[Any], ground_truth: list[str]) -> list[float | None]:
        return [None if number % 2 else 1.0 for number in range(len(completions))]

    result = GRPOTrainerWrapper(
        str(tiny_model),
        rl_rows(2),
        [politeness, lateness],
        tmp_path / "out",
        reward_weights=[1.0, 0.5],
        eval_dataset=rl_rows(2),
        **QUICK,
    ).train()
    final = result["final_metrics"]
    assert final["rewards/politeness/mean"] == 0.5
    assert final["rewards/lateness/mean"] == 1.0
    assert final["val/reward"] == pytest.approx(0.75)


def by_length(completions: list[Any], **columns: Any) -> list[float]:
    """A reward with spread in every group."""
    return [float(len(text)) for text in texts(completions)]


def test_it_starts_from_an_sft_result(tiny_model: Path, tmp_path: Path) -> None:
    # Dropout would lie between the policy and its reference.
    options: dict[str, Any] = {"num_epochs": 2, "loggers": [], "learning_rate": 1e-2, "lora_dropout": 0.0}
    SFTTrainerWrapper(str(tiny_model), sft_rows(8), tmp_path / "sft", use_lora=True, **options).train()
    GRPOTrainerWrapper(
        str(tmp_path / "sft"),
        rl_rows(2),
        by_length,
        tmp_path / "grpo",
        use_lora=True,
        beta=0.1,
        **{**QUICK, "learning_rate": 1e-2, "num_epochs": 4},
    ).train()
    # The reference is the SFT result, not its base: at the first step nothing lies between it and the policy.
    lines = metric_lines(tmp_path / "grpo")
    assert lines[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert lines[-1]["kl"] > 0
    before, after = weights_of(tmp_path / "sft"), weights_of(tmp_path / "grpo")
    assert before.keys() == after.keys()
    assert {name for name in before if not torch.equal(before[name], after[name])} <= {
        n for n in before if "lora_" in n
    }


def test_an_adapter_that_is_merged_is_its_own_reference(tiny_model: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_epochs": 2, "loggers": [], "learning_rate": 1e-2}
    SFTTrainerWrapper(str(tiny_model), sft_rows(8), tmp_path / "sft", use_lora=True, **options).train()
    GRPOTrainerWrapper(str(tmp_path / "sft"), rl_rows(2), share_of_e, tmp_path / "grpo", beta=0.1, **QUICK).train()
    assert metric_lines(tmp_path / "grpo")[0]["kl"] == pytest.approx(0.0, abs=1e-6)


def test_the_template_is_written_alike_in_training_and_validation(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    template = model / "chat_template.jinja"
    template.write_text(template.read_text() + "{% if is_long %}{{ 'by and by ' * 20 }}{% endif %}")
    options: dict[str, Any] = {**QUICK, "chat_template_kwargs": {"is_long": True}}
    result = GRPOTrainerWrapper(
        str(model), rl_rows(2), by_length, tmp_path / "out", eval_dataset=rl_rows(2), **options
    ).train()
    asked = [
        evaluate(tmp_path / "out", rl_rows(2), by_length, max_new_tokens=6, chat_template_kwargs=each)["mean_reward"]
        for each in ({"is_long": True}, None)
    ]
    assert result["final_metrics"]["val/reward"] == asked[0] != asked[1]
    with pytest.raises(ConfigError):
        GRPOTrainerWrapper(str(model), rl_rows(2), by_length, tmp_path / "no", max_length=60, **options).train()


def test_prompts_that_leave_no_room_are_left_out(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = {"prompt": [{"role": "user", "content": "why? " * 60}], "ground_truth": "1"}
    wrapper = GRPOTrainerWrapper(
        str(tiny_model), [*rl_rows(3), long], share_of_e, tmp_path / "out", batch_size=1, max_length=60, **QUICK
    )
    assert wrapper.train()["steps"] == 3
    (skipped,) = (each.args for each in caplog.records if "max_length" in each.getMessage())
    assert skipped == (1, 4, 54, "max_length", 60, 6)
    with pytest.raises(ConfigError):
        GRPOTrainerWrapper(
            str(tiny_model), [long], share_of_e, tmp_path / "none", batch_size=1, max_length=60, **QUICK
        ).train()


def test_a_reward_that_fails_names_itself_and_the_row(tiny_model: Path, tmp_path: Path) -> None:
    def broken(completions: list[Any], ground_truth: list[str], **columns: Any) -> list[float]:
        return [1 / (int(truth) - 2) for truth in ground_truth]

    wrapper = GRPOTrainerWrapper(str(tiny_model), rl_rows(4), broken, tmp_path / "out", batch_size=4, **QUICK)
    with raises(RewardError, "broken", "ZeroDivisionError"):
        wrapper.train()


def test_fewer_rows_than_a_step_takes_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    wrapper = GRPOTrainerWrapper(str(tiny_model), rl_rows(2), share_of_e, tmp_path / "out", batch_size=3, **QUICK)
    with raises(ConfigError, 2, 3):
        wrapper.train()


def test_a_reward_is_needed(tiny_model: Path) -> None:
    with raises(ConfigError, "reward_fn"):
        GRPOTrainerWrapper(str(tiny_model), rl_rows(2))


@pytest.mark.parametrize("column", ["completions", "trainer_state"])
def test_a_column_under_a_taken_name_is_refused(tiny_model: Path, column: str) -> None:
    rows = [{**row, column: "gold"} for row in rl_rows(2)]
    with raises(ConfigError, column):
        GRPOTrainerWrapper(str(tiny_model), rows, share_of_e)


def test_prompts_beyond_the_window_of_the_model_are_left_out(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = {"prompt": [{"role": "user", "content": "why? " * 1200}], "ground_truth": "1"}
    wrapper = GRPOTrainerWrapper(
        str(tiny_model), [*rl_rows(2), long], share_of_e, tmp_path / "out", batch_size=1, **QUICK
    )
    assert wrapper.train()["steps"] == 2
    assert "1024" in caplog.text


def test_rows_for_sft_serve_as_well(tiny_model: Path, tmp_path: Path) -> None:
    rows = [{**row, "completion": [{"role": "assistant", "content": "1"}]} for row in rl_rows(2)]
    result = GRPOTrainerWrapper(str(tiny_model), rows, share_of_e, tmp_path / "out", **QUICK).train()
    assert result["steps"] == 1
