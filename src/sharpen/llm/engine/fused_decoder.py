"""The forward pass of the known families in few launches: products of joined weights, and the kernels between them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from .cache import PagedCache
from .decoder import rotations, shape_of
from .joined_linear import JoinedLinear
from .kernels import DecodeRows, Heads, Kernels, LayerHeads, PromptRows, Rotations
from .linear import LinearFunction, linear_function


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: JoinedLinear
    o: LinearFunction
    mlp_norm: Any
    gate_up: JoinedLinear
    activation: Callable[[Tensor], Tensor] | None  # None: silu, which a kernel computes
    down: LinearFunction
    next_norm: Any
    q_norm: Any
    k_norm: Any


class FusedDecoder:
    """Computes rows of tokens of many texts side by side, over a cache that is given with each call."""

    def __init__(self, model: Any, kernels: Kernels, *, max_length: int, block_size: int) -> None:
        self.shape = shape_of(model)
        self._model, self._inner, self._kernels = model, model.model, kernels
        self.heads = Heads(self.shape.num_heads, self.shape.num_kv_heads, self.shape.head_size, block_size)
        # Made once: they follow from the settings alone, and recorded steps read them where they lie.
        self._rotations = Rotations(*rotations(model, max_length))
        self.refresh()

    def refresh(self) -> None:
        """Look at the model's modules again; call it after weights moved or an adapter was added."""
        inner = self._inner
        norms = [*(each.input_layernorm for each in inner.layers), inner.norm]
        self._layers = [_layer(each, norms[number + 1], number) for number, each in enumerate(inner.layers)]
        self._head = linear_function(self._model.get_output_embeddings(), "lm_head")

    def hidden(
        self,
        ids: Tensor,
        cache: PagedCache,
        rows: DecodeRows | PromptRows,
        *,
        sources: Tensor | None = None,
        last_ids: Tensor | None = None,
    ) -> Tensor:
        """The last hidden states of these rows after their norm."""
        kernels = self._kernels
        first = self._inner.layers[0].input_layernorm
        table = self._inner.embed_tokens.weight
        last_ids = ids if last_ids is None else last_ids
        x, h = kernels.embed(ids, sources, last_ids, table, first.weight, first.variance_epsilon)
        for number, layer in enumerate(self._layers):
            delta = layer.o(self._attend(layer, number, layer.qkv(h), cache, rows))
            h = kernels.add_norm(x, delta, layer.mlp_norm.weight, layer.mlp_norm.variance_epsilon)
            delta = layer.down(self._gated(layer, layer.gate_up(h)))
            h = kernels.add_norm(x, delta, layer.next_norm.weight, layer.next_norm.variance_epsilon)
        return h

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits of these rows, in the model's dtype."""
        return self._head(hidden)

    def _attend(
        self, layer: _Layer, number: int, qkv: Tensor, cache: PagedCache, rows: DecodeRows | PromptRows
    ) -> Tensor:
        q_norm, k_norm = layer.q_norm, layer.k_norm
        own = LayerHeads(
            keys=cache.keys[number],
            values=cache.values[number],
            q_norm=None if q_norm is None else q_norm.weight,
            k_norm=None if k_norm is None else k_norm.weight,
            eps=0.0 if q_norm is None else q_norm.variance_epsilon,
        )
        if isinstance(rows, DecodeRows):
            return self._kernels.decode(qkv, self.heads, own, self._rotations, rows)
        return self._kernels.prefill(qkv, self.heads, own, self._rotations, rows)

    def _gated(self, layer: _Layer, gate_up: Tensor) -> Tensor:
        if layer.activation is None:
            return self._kernels.gate(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return layer.activation(gate) * up


def _layer(layer: Any, next_norm: Any, number: int) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    queries = (attention.q_proj, attention.k_proj, attention.v_proj)
    return _Layer(
        qkv=JoinedLinear(queries, f"q_proj, k_proj or v_proj of layer {number}"),
        o=linear_function(attention.o_proj, f"o_proj of layer {number}"),
        mlp_norm=layer.post_attention_layernorm,
        gate_up=JoinedLinear((mlp.gate_proj, mlp.up_proj), f"gate_proj or up_proj of layer {number}"),
        activation=None if _is_silu(mlp.act_fn) else mlp.act_fn,
        down=linear_function(mlp.down_proj, f"down_proj of layer {number}"),
        next_norm=next_norm,
        q_norm=getattr(attention, "q_norm", None),
        k_norm=getattr(attention, "k_norm", None),
    )


def _is_silu(activation: Any) -> bool:
    return isinstance(activation, nn.SiLU) or activation is F.silu or type(activation).__name__ == "SiLUActivation"
