"""The forward pass of the Llama, Mistral, Qwen2 and Qwen3 families over flat rows of tokens.

The parameters are the model's own, read at each call. Attention is left to the caller, who knows where the keys and
values of each row are; everything else treats each row alone, so rows of many requests are computed side by side
without padding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .weights import LinearFunction, linear_function

# (layer, queries, keys, values), each (rows, heads, head size) -> (rows, heads x head size)
Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]

_FAMILIES = {"llama", "mistral", "qwen2", "qwen3"}
_STATIC_ROPE = {"default", "linear", "llama3", "yarn"}  # the others depend on the length of the text


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that the cache and the attention need."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class _Layer:
    norm: nn.Module
    q: LinearFunction
    k: LinearFunction
    v: LinearFunction
    o: LinearFunction
    q_norm: nn.Module | None
    k_norm: nn.Module | None
    mlp_norm: nn.Module
    gate: LinearFunction
    up: LinearFunction
    down: LinearFunction
    activation: Callable[[Tensor], Tensor]


class Decoder:
    """A view of a transformers model that computes it row by row."""

    def __init__(self, model: Any, *, max_length: int) -> None:
        self.shape = shape_of(model)
        self._model = model
        self._inner = model.model
        self.embedding: Any = self._inner.embed_tokens
        # Computed once: they depend on the config alone.
        self._cos, self._sin = rotations(model, max_length)
        self.refresh()

    def refresh(self) -> None:
        """Read the model's modules again; call it after modules were replaced, for example by an added adapter."""
        self.embedding = self._inner.embed_tokens
        self._layers = [_layer(each, number) for number, each in enumerate(self._inner.layers)]
        self._head = linear_function(self._model.get_output_embeddings(), "lm_head")

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        """Return the last hidden states of these rows."""
        x: Tensor = self.embedding(ids)
        cos = self._cos.index_select(0, positions).unsqueeze(1)
        sin = self._sin.index_select(0, positions).unsqueeze(1)
        for number, layer in enumerate(self._layers):
            x = x + self._attention(number, layer, _norm(layer.norm, x), cos, sin, attend)
            h = _norm(layer.mlp_norm, x)
            x = x + layer.down(layer.activation(layer.gate(h)).mul_(layer.up(h)))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of these rows, in float32."""
        return self._head(_norm(self._inner.norm, hidden)).float().contiguous()

    def _attention(self, number: int, layer: _Layer, h: Tensor, cos: Tensor, sin: Tensor, attend: Attention) -> Tensor:
        shape = (h.shape[0], -1, self.shape.head_size)
        q, k, v = layer.q(h).view(shape), layer.k(h).view(shape), layer.v(h).view(shape)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = _norm(layer.q_norm, q), _norm(layer.k_norm, k)
        # Queries and keys are rotated together: half as many small operations.
        rotated = _rotate(torch.cat((q, k), dim=1), cos, sin)
        q, k = torch.split(rotated, [self.shape.num_heads, self.shape.num_kv_heads], dim=1)
        return layer.o(attend(number, q, k, v))


def rotations(model: Any, max_length: int) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines of every position (positions, head size), by the model's own rotary module."""
    weight = model.model.embed_tokens.weight
    positions = torch.arange(max_length, device=weight.device).unsqueeze(0)
    like = torch.empty(0, dtype=weight.dtype, device=weight.device)
    cos, sin = model.model.rotary_emb(like, positions)
    half = sin.shape[-1] // 2
    # Contiguous, because kernels index it by position and head size.
    return cos[0].contiguous(), torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)


def shape_of(model: Any) -> Shape:
    """Return the sizes of a model of a supported family; otherwise raise a ModelError with the reason."""
    config = model.config
    problem = _problem(model)
    if problem:
        raise ModelError(f"the engine's own forward pass does not support this model: {problem}")
    heads = config.num_attention_heads
    return Shape(
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


def _problem(model: Any) -> str | None:
    config = model.config
    if config.model_type not in _FAMILIES:
        return f"its type is {config.model_type!r}, supported are {', '.join(sorted(_FAMILIES))}"
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        return "it has layers with sliding-window attention"
    if config.model_type == "mistral" and getattr(config, "sliding_window", None) is not None:
        return "it has sliding-window attention"
    rope = (getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}).get("rope_type")
    if rope not in {None, *_STATIC_ROPE}:
        return f"its rotary embedding has type {rope!r}, which depends on the length of the text"
    if not hasattr(model, "model") or not hasattr(model.model, "layers"):
        return f"{type(model).__name__} has no model.layers"
    return None


def _layer(layer: Any, number: int) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp

    def function(module: nn.Module, name: str) -> LinearFunction:
        return linear_function(module, f"{name} of layer {number}")

    return _Layer(
        norm=layer.input_layernorm,
        q=function(attention.q_proj, "q_proj"),
        k=function(attention.k_proj, "k_proj"),
        v=function(attention.v_proj, "v_proj"),
        o=function(attention.o_proj, "o_proj"),
        q_norm=getattr(attention, "q_norm", None),
        k_norm=getattr(attention, "k_norm", None),
        mlp_norm=layer.post_attention_layernorm,
        gate=function(mlp.gate_proj, "gate_proj"),
        up=function(mlp.up_proj, "up_proj"),
        down=function(mlp.down_proj, "down_proj"),
        activation=mlp.act_fn,
    )


def _norm(module: Any, x: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    # The sines carry the sign of the swapped half, so one roll does what the usual negate and join do.
    return x * cos + torch.roll(x, x.shape[-1] // 2, dims=-1) * sin
