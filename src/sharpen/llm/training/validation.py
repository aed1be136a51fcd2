"""A validation in the middle of training: the loss on other rows, and what the model's own answers are worth."""

from typing import Any

from ...callbacks import restore_rng, rng_state
from .processes import processes

# Of transformers' figures these tell of the machine, not of the model.
_SPEED = ("runtime", "samples_per_second", "steps_per_second", "num_tokens", "epoch")


def validate(wrapper: Any, trainer: Any) -> dict[str, float]:
    """The metrics of a validation. Training goes on with the random numbers that it would have had without."""
    before = rng_state()
    try:
        return {**_losses(trainer), **_rewards(wrapper)}
    finally:
        restore_rng(before)


def _losses(trainer: Any) -> dict[str, float]:
    if trainer.eval_dataset is None:
        return {}
    found = {name.removeprefix("eval_"): value for name, value in trainer.evaluate().items()}
    return {
        name: float(value)
        for name, value in found.items()
        if not name.endswith(_SPEED) and isinstance(value, int | float)
    }


def _rewards(wrapper: Any) -> dict[str, float]:
    """The first process alone samples answers, with the copy that it has; the others go on to wait for it."""
    judge = wrapper.judge()
    if judge is None or not processes().is_first:
        return {}
    from ..evaluation import evaluate_model

    settings = wrapper.settings
    found = evaluate_model(
        wrapper.model.model,
        wrapper.model.tokenizer,
        wrapper.eval_dataset,
        judge,
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature if wrapper.algorithm != "grpo" else 0.0,
        top_p=settings.top_p if wrapper.algorithm != "grpo" else 1.0,
        batch_size=max(8, settings.per_device_train_batch_size),
        num_examples=0,
        seed=settings.seed,
        chat_template_kwargs=settings.trl.get("chat_template_kwargs"),
    )
    return {"reward": found["mean_reward"], "accuracy": found["accuracy"], "truncated": found["truncated"]}
