"""The body of a model of the Llama, Mistral, Qwen2 and Qwen3 families over the rows of a token tree, with gradients.

It computes what the engine computes, with the model's own modules. Layers below the first trained one keep nothing for
a gradient. Of the others, as many keep what their gradient needs as memory allows; the rest are computed again.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..engine.decoder import shape_of
from ..engine.kernels.training import add_norm, gated, rotated
from ..engine.weights import unwrapped
from .logprob_head import head_logprobs, head_weights
from .packing import Branch, TokenBatch, TokenTree, moved, token_tree

# Hidden states go from layer to layer as two parts, whose sum is taken together with the norm of it.
# (hidden states, what is to be added, cosines, sines) -> hidden states, queries, keys, values
_Before = Callable[[Any, Tensor, Tensor | None, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
# (hidden states, what attention gave) -> hidden states, what is to be added
_After = Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]


class Body:
    """A view of a transformers model; a ModelError where its family is not known.

    `checkpoints` allows layers to be computed again to save memory; `compiles` has torch fuse their small operations.
    """

    shares_prefixes = True

    def __init__(self, model: Any, *, checkpoints: bool = True, compiles: bool = False) -> None:
        self._model = unwrapped(model)
        shape_of(self._model)
        self._inner: Any = self._model.model
        self._checkpoints = checkpoints
        self._before: _Before = torch.compile(_before, dynamic=True) if compiles else _before
        self._after: _After = torch.compile(_after, dynamic=True) if compiles else _after

    def logprobs(self, batch: TokenBatch, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each token that the batch asks about."""
        weight, bias = head_weights(self._model.get_output_embeddings())
        return head_logprobs(
            self.hidden(batch),
            weight,
            bias,
            batch.targets_N,
            batch.temperature_N,
            entropy_gradient=entropy_gradient,
        )

    def hidden(self, batch: TokenBatch) -> Tensor:
        """The last hidden state, after the norm, before each token that the batch asks about."""
        device = batch.targets_N.device
        tree = token_tree(batch.inputs, shares=batch.shares, device=device)
        paths = zip(tree.paths, batch.places, strict=True)
        rows_N = torch.cat([torch.from_numpy(path[places - 1]) for path, places in paths])
        # Samples of one prompt share the row before their first token.
        rows, index_N = torch.unique(rows_N, return_inverse=True)
        return self._of_tree(tree, moved(rows, device)).index_select(0, moved(index_N, device))

    def _of_tree(self, tree: TokenTree, rows: Tensor) -> Tensor:
        """The last hidden states of these rows."""
        attention = TreeAttention(tree)
        layers = list(self._inner.layers)
        first = self._first_trained(layers)
        with torch.set_grad_enabled(torch.is_grad_enabled() and first < 0):
            x: Tensor = self._inner.embed_tokens(tree.input_ids_R)
        delta: Tensor | None = None
        cos, sin = self._rotations(x, tree.position_ids_R)
        again = self._num_computed_again(len(tree), len(layers) - max(first, 0))
        for number, layer in enumerate(layers):
            wanted = rows if number == len(layers) - 1 else None
            with torch.set_grad_enabled(torch.is_grad_enabled() and number >= first):
                if number < max(first, 0) + again and torch.is_grad_enabled():
                    x, delta = checkpoint(
                        self._layer,
                        *(layer, x, delta, cos, sin, attention, wanted),
                        use_reentrant=False,
                        preserve_rng_state=False,  # nothing in a layer is random
                    )
                else:
                    x, delta = self._layer(layer, x, delta, cos, sin, attention, wanted)
        return _add_norm(self._inner.norm, x, delta)[1]

    def _layer(
        self,
        layer: Any,
        x: Tensor,
        delta: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        attention: "TreeAttention",
        wanted: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        x, *parts = self._before(layer, x, delta, cos, sin)
        attended = attention(*parts)
        if wanted is not None:  # The last layer's other rows were only there to be attended to.
            x, attended = x.index_select(0, wanted), attended.index_select(0, wanted)
        return self._after(layer, x, attended)

    def _first_trained(self, layers: list[Any]) -> int:
        """The number of the first layer that needs gradients; -1 where the embedding does, too."""
        if self._inner.embed_tokens.weight.requires_grad:
            return -1
        trained = (number for number, layer in enumerate(layers) if _is_trained(layer))
        return next(trained, len(layers))

    def _rotations(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines for each row."""
        cos, sin = self._inner.rotary_emb(x, positions[None])
        half = sin.shape[-1] // 2
        signed = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)
        return cos[0], signed

    def _num_computed_again(self, rows: int, trained: int) -> int:
        """How many of the trained layers must not keep their activations."""
        if not self._checkpoints or not torch.is_grad_enabled():
            return 0
        weight = self._inner.embed_tokens.weight
        layer_bytes: int = rows * _kept_numbers(self._inner.config) * weight.element_size()
        return max(0, trained - activation_room_bytes(weight.device) // layer_bytes)


def _before(
    layer: Any, x: Tensor, delta: Tensor | None, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    attention = layer.self_attn
    x, h = _add_norm(layer.input_layernorm, x, delta)
    shape = (len(x), -1, attention.head_dim)
    q, k, v = attention.q_proj(h).view(shape), attention.k_proj(h).view(shape), attention.v_proj(h).view(shape)
    if hasattr(attention, "q_norm"):
        q, k = _norm(attention.q_norm, q), _norm(attention.k_norm, k)
    return x, _turn(q, cos, sin), _turn(k, cos, sin), v


def _after(layer: Any, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
    x, h = _add_norm(layer.post_attention_layernorm, x, layer.self_attn.o_proj(attended))
    mlp = layer.mlp
    gate, up = mlp.gate_proj(h), mlp.up_proj(h)
    is_fused = mlp.config.hidden_act == "silu" and not torch.compiler.is_compiling()
    return x, mlp.down_proj(gated(gate, up) if is_fused else mlp.act_fn(gate) * up)


def _add_norm(module: Any, x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sum, and its norm."""
    if not torch.compiler.is_compiling():
        return add_norm(x, delta, module.weight, module.variance_epsilon)
    # torch fuses this itself.
    x = x if delta is None else x + delta
    return x, _norm(module, x)


def _norm(module: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if not torch.compiler.is_compiling():
        return rotated(x, cos, sin)
    # torch fuses this itself.
    return x * cos.unsqueeze(1) + torch.roll(x, x.shape[-1] // 2, dims=-1) * sin.unsqueeze(1)


def _is_trained(module: nn.Module) -> bool:
    return any(each.requires_grad for each in module.parameters())


def _kept_numbers(config: Any) -> int:
    """Roughly how many numbers a layer keeps of each row for its gradient."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(6 * config.hidden_size + 2 * (heads + 2 * kv_heads) * size + 3 * config.intermediate_size)


# -- attention within a token tree --------------------------------------------------------------------


_FLASH_HEAD_SIZE = 256  # the widest heads that the kernel takes


class TreeAttention:
    """Made once for a tree, called in each layer with (rows, heads, head size); gives (rows, heads x head size)."""

    def __init__(self, tree: TokenTree) -> None:
        self._branches = tree.branches
        device = tree.input_ids_R.device
        self._flash = FlashLayout(tree) if device.type == "cuda" else None
        self._spans: list[_Span] | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._flash is not None and _suits_flash(q):
            return self._flash(q, k, v).flatten(1)
        if self._spans is None:
            self._spans = [_span(each, q.device) for each in self._branches]
        # Kernels take a mask only with as many heads of keys as of queries.
        copies = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(copies, dim=1), v.repeat_interleave(copies, dim=1)
        return torch.cat([_of_span(each, q, k, v) for each in self._spans]).flatten(1)


class _Span(NamedTuple):
    """A branch that begins a sequence has no path and no mask: its keys are its own rows, in plain causal order."""

    rows: slice
    path_T: Tensor | None
    mask: Tensor | None


def _span(branch: Branch, device: torch.device) -> _Span:
    rows = slice(branch.first, branch.last)
    if branch.start == 0:
        return _Span(rows, None, None)
    places = torch.arange(branch.length, device=device)
    return _Span(rows, torch.from_numpy(branch.path_T).to(device), places[None, :] <= places[branch.start :, None])


def _of_span(span: _Span, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if span.path_T is None:
        k, v = k[span.rows], v[span.rows]
    else:
        k, v = k.index_select(0, span.path_T), v.index_select(0, span.path_T)
    q, k, v = (each.transpose(0, 1).unsqueeze(0) for each in (q[span.rows], k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=span.mask, is_causal=span.mask is None)
    return out[0].transpose(0, 1)


class FlashLayout:
    """All branches in one call of the flash kernel, which knows lengths instead of masks.

    Where there are more keys than queries, its causal order lines up their ends, as it must be here.
    """

    def __init__(self, tree: TokenTree) -> None:
        device = tree.input_ids_R.device
        queries = [branch.last - branch.first for branch in tree.branches]
        keys = [branch.length for branch in tree.branches]
        self.ends_q, self.ends_k = _ends(queries, device), _ends(keys, device)
        self.max_q, self.max_k = max(queries), max(keys)
        paths = np.concatenate([each.path_T for each in tree.branches])
        self._paths = moved(torch.from_numpy(paths), device) if tree.is_shared else None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        lengths = self.ends_q, self.ends_k, self.max_q, self.max_k
        keys, values = self.gathered(k), self.gathered(v)
        out: Tensor = torch.ops.aten._flash_attention_forward(q, keys, values, *lengths, 0.0, True, False)[0]
        return out

    def gathered(self, rows: Tensor) -> Tensor:
        """Keys or values of all branches, one after the other, each from the beginning of its sequence."""
        return rows if self._paths is None else rows.index_select(0, self._paths)


def _suits_flash(q: Tensor) -> bool:
    size = q.shape[2]
    return q.dtype in {torch.bfloat16, torch.float16} and size <= _FLASH_HEAD_SIZE and size % 8 == 0


def _ends(lengths: list[int], device: torch.device) -> Tensor:
    return moved(F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int(), device)


# -- memory -------------------------------------------------------------------------------------------


_CPU_BYTES = 1 << 30
_GPU_SHARE = 0.6  # of what is free; gradients, logits and the passing tensors of a layer need the rest


def activation_room_bytes(device: torch.device) -> int:
    """On a GPU a share of what is free now, counting what torch holds without using it."""
    if device.type != "cuda":
        return _CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int((free + unused) * _GPU_SHARE)
