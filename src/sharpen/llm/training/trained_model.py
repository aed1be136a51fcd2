"""`TrainedModel`: the model of a fine-tuning run, as callbacks see it; and how good it is on other rows.

A validation in the middle of training leaves the random numbers of training as they were.
"""

from typing import Any

from ...callbacks import restore_rng, rng_state
from ...callbacks.base import State
from ..errors import ModelError
from .processes import processes

# Of transformers' figures these tell of the machine, not of the model.
_SPEED = ("runtime", "samples_per_second", "steps_per_second", "num_tokens", "epoch")


class TrainedModel:
    """What is trained. Its state is what training changes: the adapter alone, or all weights.

    Everything else of the model is there under its own name: `model.generate(...)`, `model.config`.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        if name in ("model", "tokenizer"):
            raise AttributeError(name)
        return getattr(self.model, name)

    def state_dict(self) -> State:
        # Tied weights are one tensor under two names: it is kept once, under the name that the model itself lists.
        return {name: weight.detach() for name, weight in self.model.named_parameters() if weight.requires_grad}

    def load_state_dict(self, state_dict: State, /) -> None:
        import torch

        weights = dict(self.model.named_parameters())
        trained = {name for name, weight in weights.items() if weight.requires_grad}
        different = {name for name in trained & set(state_dict) if weights[name].shape != state_dict[name].shape}
        if wrong := sorted(different | (trained ^ set(state_dict))):
            raise ModelError(f"the state does not match the model: {len(wrong)} weights differ, such as {wrong[0]!r}")
        with torch.no_grad():
            for name, value in state_dict.items():
                weights[name].copy_(value)


# -- validation --------------------------------------------------------------------------------------


def validate(wrapper: Any, trainer: Any) -> dict[str, float]:
    """Return the metrics of a validation: the loss, and what the model's own answers are worth."""
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
