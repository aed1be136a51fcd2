"""The weights that the engine runs: the model's own, or a copy in another dtype or on another device."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import InvalidInputError
from ..errors import ModelError


class Weights:
    """`model` is the transformers model to run.

    Where device and dtype are those of the given model, its parameters are shared and nothing is copied. Else `model`
    is a copy, which `pull` brings up to date.
    """

    def __init__(self, model: Any, *, device: torch.device | None, dtype: torch.dtype | None) -> None:
        self._source = model
        first = next(model.parameters(), None)
        if first is None:
            raise ModelError(f"{type(model).__name__} has no parameters: the engine needs a transformers model")
        same = _is_same_device(device, first.device) and dtype in {None, first.dtype}
        self._held = model if same else _copy_of(model, device, dtype)
        self.model = unwrapped(self._held)
        self._layout = self._current_layout()

    def pull(self) -> None:
        """Copy the given model's weights, where they are not shared."""
        if self._held is self._source:
            return
        with torch.no_grad():
            for mine, its in zip(self._held.parameters(), self._source.parameters(), strict=True):
                mine.copy_(its)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Write these weights in place; names are those of the given model. All are checked before one is written."""
        own = dict(self._held.named_parameters(remove_duplicate=False)) | dict(self._held.named_buffers())
        for name, tensor in state.items():
            if name not in own:
                raise InvalidInputError(f"there is no weight {name!r} in the model; it has such as {next(iter(own))!r}")
            if own[name].shape != tensor.shape:
                raise InvalidInputError(
                    f"the weight {name!r} has the shape {tuple(tensor.shape)}, the model's has "
                    f"{tuple(own[name].shape)}: the weights belong to another model"
                )
        with torch.no_grad():
            for name, tensor in state.items():
                own[name].copy_(tensor)

    def have_moved(self) -> bool:
        """Whether, since the last call, a weight moved in memory or an adapter was switched or scaled."""
        before, self._layout = self._layout, self._current_layout()
        return before != self._layout

    def _current_layout(self) -> list[Any]:
        adapters = [each for each in self._held.modules() if hasattr(each, "lora_A")]
        states = [(x.merged, x.disable_adapters, list(x.active_adapters), dict(x.scaling)) for x in adapters]
        return [*(each.data_ptr() for each in self._held.parameters()), *states]


def _copy_of(model: Any, device: torch.device | None, dtype: torch.dtype | None) -> Any:
    own = copy.deepcopy(model).to(device=device, dtype=dtype).requires_grad_(False)
    for parameter in own.parameters():
        parameter.grad = None
    return own


def _is_same_device(wanted: torch.device | None, own: torch.device) -> bool:
    return wanted is None or (wanted.type == own.type and wanted.index in {None, own.index})


def unwrapped(model: Any) -> Any:
    """The transformers model inside a PEFT model, adapters in place."""
    if not hasattr(model, "get_base_model"):
        return model
    config = getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise ModelError("the engine does not run soft prompts (prefix or prompt tuning): use LoRA, or a merged model")
    return model.get_base_model()
