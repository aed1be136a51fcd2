"""A model whose weights are divided between ranks, by torch's `fully_shard`: layer by layer, and the rest in one.

What takes steps is in float32, divided; layers are gathered in the type that the model computes in. So the numbers are
those of the whole model: weights in half precision are rounded from float32, gradients are added up in float32.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from ...engine.weights import unwrapped
from ...errors import ModelError
from ..fast_forward import Body
from ..packing import TokenBatch
from .sharding import Sharding

_FINE = (torch.float32, torch.float64)
_PASS = "sharpen_pass"
"""The name under which a module has our own forward pass."""


class ShardedModel:
    """Divides a model that every rank has whole. From then on its parameters are the rank's own parts.

    All ranks do the same things in the same order: pass through the model, or `whole_units`.
    """

    def __init__(self, model: Any, mesh: DeviceMesh, sharding: Sharding) -> None:
        self._model = model
        self.root: Any = unwrapped(model)
        layers = _layers(self.root)
        owned = {id(each) for layer in layers for each in layer.parameters()}
        names = {id(each): name for name, each in model.named_parameters()}
        self._units: list[tuple[Any, list[str]]] = [
            *((layer, [names[id(each)] for each in layer.parameters()]) for layer in layers),
            (self.root, [name for key, name in names.items() if key not in owned]),
        ]
        for unit, own in self._units:
            _shard(unit, [model.get_parameter(name) for name in own], mesh, sharding, is_root=unit is self.root)

    def whole_units(self) -> Iterator[dict[str, Tensor]]:
        """One layer after the other, gathered: its weights by their names in the model. Each is gone with the next."""
        for unit, names in self._units:
            unit.unshard()
            yield {name: self._model.get_parameter(name).detach() for name in names}
            unit.reshard()

    def give_up(self) -> None:
        """Keep this rank's parts alone. After a pass without gradient some units are still whole, and torch would
        compute with these copies also once the parts have changed."""
        for unit, _ in self._units:
            unit.reshard()


class ShardedBody(Body):
    """Our own forward pass over a model in parts: each layer is gathered before it computes, and given up after."""

    def __init__(self, model: Any, *, checkpoints: bool = True) -> None:
        super().__init__(model, checkpoints=checkpoints)
        _hook(self._model, super().logprobs)
        for layer in self._inner.layers:
            _hook(layer, _bound(super()._layer, layer))

    def logprobs(self, batch: TokenBatch, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = getattr(self._model, _PASS)(batch, entropy_gradient=entropy_gradient)
        return found

    def _layer(self, layer: Any, *args: Any) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = getattr(layer, _PASS)(*args)
        return found


def _bound(function: Any, layer: Any) -> Any:
    def run(*args: Any) -> Any:
        return function(layer, *args)

    return run


def _hook(module: nn.Module, function: Any) -> None:
    """The function, with the module's weights whole while it runs, and while its gradient is computed."""
    object.__setattr__(module, _PASS, function)
    register_fsdp_forward_method(module, _PASS)


def _layers(root: Any) -> list[nn.Module]:
    """The blocks of a transformers model, which says itself what they are called."""
    kinds = set(getattr(root, "_no_split_modules", None) or ())
    layers = [each for each in root.modules() if type(each).__name__ in kinds and any(True for _ in each.parameters())]
    if not layers:
        raise ModelError(f"{type(root).__name__} does not declare its layers, so it cannot be sharded: use copies")
    return layers


def _shard(unit: Any, own: list[nn.Parameter], mesh: DeviceMesh, sharding: Sharding, *, is_root: bool) -> None:
    on_gpu = mesh.device_type != "cpu"
    offload = CPUOffloadPolicy() if sharding.offloads and on_gpu else OffloadPolicy()
    fully_shard(
        unit,
        mesh=mesh,
        # The gradient of the last unit comes first: it would be gathered again at once.
        reshard_after_forward=sharding.reshards_after_forward and not is_root,
        mp_policy=_policy(unit, own),
        offload_policy=offload,
    )
    assert isinstance(unit, FSDPModule)
    # Gradients are sums over ranks, for losses are parts of one sum.
    unit.set_gradient_divide_factor(1.0)
    unit.set_force_sum_reduction_for_comms(True)


def _policy(unit: nn.Module, own: list[nn.Parameter]) -> MixedPrecisionPolicy:
    """Trained weights in half precision become float32; they are gathered as what they were."""
    coarse = {each.dtype for each in own if each.requires_grad and each.dtype not in _FINE}
    if not coarse:
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    kinds = {each.dtype for each in own}
    if len(kinds) > 1:
        raise ModelError(
            f"a {type(unit).__name__} has weights of several types ({', '.join(sorted(map(str, kinds)))}), which "
            "cannot be sharded: use precision fp32, an adapter (lora_rank), or full copies"
        )
    for each in own:
        if each.requires_grad:
            each.data = each.data.float()
    return MixedPrecisionPolicy(param_dtype=coarse.pop(), reduce_dtype=torch.float32, cast_forward_inputs=False)
