"""The weights that the engine runs, and its linear layers, which read them in place."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import InvalidInputError
from ..errors import ModelError

LinearFunction = Callable[[Tensor], Tensor]

# Between these numbers of rows MKL multiplies faster with the weight on the left (measured at float32 on one core of a
# Xeon: 1.3 x for the layers of a 135 M model at 8 rows, 1.7 x for its output layer).
_LEFT_FROM, _LEFT_TO = 5, 48


class Weights:
    """The transformers model to run (`model`): the given one, or a copy in another dtype or on another device.

    With the given model's device and dtype its parameters are shared and nothing is copied. Otherwise `pull` updates
    the copy.
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
        """Copy the given model's weights, unless they are shared."""
        if self._held is self._source:
            return
        with torch.no_grad():
            for mine, its in zip(self._held.parameters(), self._source.parameters(), strict=True):
                mine.copy_(its)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Write these weights in place, by their names in the given model. All are checked before any is written."""
        own = dict(self._held.named_parameters(remove_duplicate=False)) | dict(self._held.named_buffers())
        for name, tensor in state.items():
            if name not in own:
                raise InvalidInputError(f"the model has no weight {name!r}; its names look like {next(iter(own))!r}")
            if own[name].shape != tensor.shape:
                raise InvalidInputError(
                    f"the weight {name!r} has shape {tuple(tensor.shape)}, but the model's has "
                    f"{tuple(own[name].shape)}: these weights belong to another model"
                )
        with torch.no_grad():
            for name, tensor in state.items():
                own[name].copy_(tensor)

    def have_moved(self) -> bool:
        """Return whether, since the last call, a weight moved in memory or an adapter was switched or scaled."""
        before, self._layout = self._layout, self._current_layout()
        return before != self._layout

    def _current_layout(self) -> list[Any]:
        adapters = [each for each in self._held.modules() if hasattr(each, "lora_A")]
        states = [(x.merged, x.disable_adapters, list(x.active_adapters), dict(x.scaling)) for x in adapters]
        return [*(each.data_ptr() for each in self._held.parameters()), *states]


def unwrapped(model: Any) -> Any:
    """Return the transformers model inside a PEFT model, with its adapters in place."""
    if not hasattr(model, "get_base_model"):
        return model
    config = getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise ModelError(
            "the engine does not support soft prompts (prefix or prompt tuning): use LoRA, or a merged model"
        )
    return model.get_base_model()


def _copy_of(model: Any, device: torch.device | None, dtype: torch.dtype | None) -> Any:
    own = copy.deepcopy(model).to(device=device, dtype=dtype).requires_grad_(False)
    for parameter in own.parameters():
        parameter.grad = None
    return own


def _is_same_device(wanted: torch.device | None, own: torch.device) -> bool:
    return wanted is None or (wanted.type == own.type and wanted.index in {None, own.index})


# -- linear layers ----------------------------------------------------------------------------------


def linear_function(module: nn.Module, name: str) -> LinearFunction:
    """Return a function that computes this layer from the model's own parameters, read at each call.

    Nothing is copied: a trainer that changes a weight in place changes what the next call computes. LoRA layers of PEFT
    are applied beside their base layer, without their dropout. `name` is for the error if the layer cannot be computed
    exactly.
    """
    if type(module) is nn.Linear:
        return _plain(module)
    if _is_lora(module):
        return _lora(module, name)
    if any(isinstance(each, nn.Dropout) and each.p > 0 for each in module.modules()):
        raise ModelError(
            f"the layer {name} is a {type(module).__name__} with dropout, which the engine cannot turn off: "
            "merge the adapter into the model (merge_and_unload) or set its dropout to 0"
        )
    return module


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x @ weight.T + bias, computed in the faster order."""
    if weight.device.type != "cpu" or not _LEFT_FROM <= x.shape[0] <= _LEFT_TO:
        return F.linear(x, weight, bias)
    # Not made contiguous: what follows is mostly elementwise, and the next product takes it in this layout.
    product = torch.mm(weight, x.t()).t()
    return product if bias is None else product.add_(bias)


def _plain(module: nn.Linear) -> LinearFunction:
    def apply(x: Tensor) -> Tensor:
        return _multiply(x, module.weight, module.bias)

    return apply


def _lora(module: Any, name: str) -> LinearFunction:
    base = linear_function(module.base_layer, name)
    if getattr(module, "lora_variant", None) or any(getattr(module, "use_dora", {}).values()):
        raise ModelError(
            f"the layer {name} has a variant of LoRA (such as DoRA) that the engine does not apply: "
            "merge the adapter into the model (merge_and_unload)"
        )

    def apply(x: Tensor) -> Tensor:
        y = base(x)
        _add_lora(module, x, y)
        return y

    return apply


def _is_lora(module: nn.Module) -> bool:
    return all(hasattr(module, name) for name in ("base_layer", "lora_A", "lora_B", "scaling", "active_adapters"))


def _base_of(module: Any) -> Any:
    """Return the layer under its adapters."""
    return _base_of(module.base_layer) if _is_lora(module) else module


def _add_lora(module: Any, x: Tensor, y: Tensor) -> None:
    """Add the outputs of a layer's active adapters for `x` to `y` in place."""
    if module.merged or module.disable_adapters:
        return
    for adapter in module.active_adapters:
        if adapter not in module.lora_A:
            continue
        down, up = module.lora_A[adapter], module.lora_B[adapter]
        inner = F.linear(x.to(down.weight.dtype), down.weight, down.bias)
        y.add_(F.linear(inner, up.weight, up.bias), alpha=module.scaling[adapter])


class JoinedLinear:
    """Several linear layers of one input as one product; returns their outputs side by side.

    Their weights are joined in one piece of memory, and the layers' own parameters become views of it: nothing is held
    twice, and a trainer that changes a parameter in place changes what the next product computes. `name` is for the
    error if a layer cannot be computed exactly.
    """

    def __init__(self, modules: Sequence[nn.Module], name: str) -> None:
        self._functions = [linear_function(module, name) for module in modules]
        bases = [_base_of(module) for module in modules]
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        if _can_join(bases):
            self._weight = _joined([base.weight for base in bases])
            self._bias = None if bases[0].bias is None else _joined([base.bias for base in bases])
        self._loras: list[tuple[Any, int, int]] = []
        end = 0
        for module, base in zip(modules, bases, strict=True):
            begin, end = end, end + getattr(base, "out_features", 0)
            if _is_lora(module):
                self._loras.append((module, begin, end))

    def __call__(self, x: Tensor) -> Tensor:
        if self._weight is None:
            return torch.cat([function(x) for function in self._functions], dim=-1)
        y = F.linear(x, self._weight, self._bias)
        for module, begin, end in self._loras:
            _add_lora(module, x, y[:, begin:end])
        return y


def _joined(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return the parameters concatenated, as one tensor whose memory they share from now on."""
    first = parameters[0]
    count = sum(len(each) for each in parameters)
    if _are_adjacent(parameters):
        return first.data.as_strided((count, *first.shape[1:]), first.stride())
    whole = torch.cat([each.data for each in parameters])
    begin = 0
    for each in parameters:
        each.data = whole[begin : begin + len(each)]
        begin += len(each)
    return whole


def _are_adjacent(parameters: Sequence[nn.Parameter]) -> bool:
    first = parameters[0]
    storage = first.untyped_storage().data_ptr()
    place = first.data_ptr()
    for each in parameters:
        if not each.is_contiguous() or each.untyped_storage().data_ptr() != storage or each.data_ptr() != place:
            return False
        place += each.numel() * each.element_size()
    return True


def _can_join(modules: Sequence[Any]) -> bool:
    if not all(type(module) is nn.Linear for module in modules):
        return False
    if len({id(module.weight) for module in modules}) < len(modules):
        return False
    weights = {(module.weight.dtype, module.weight.device, module.bias is None) for module in modules}
    return len(weights) == 1
