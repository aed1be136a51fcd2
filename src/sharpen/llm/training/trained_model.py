"""`TrainedModel`: the model of a fine-tuning run, as callbacks see it."""

from typing import Any

from ...callbacks.base import State
from ..errors import ModelError


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
