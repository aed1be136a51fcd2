"""The sizes of a language model that decide what its training costs."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """Read from a model in memory; `adapted` is None where all weights train."""

    parameters: int
    trainable: int
    weight_bytes: int
    trainable_bytes: int
    uncast_weights: int
    """Weights in float32, of which mixed precision makes a smaller copy."""
    layers: int
    hidden: int
    inner: int
    """Width of the MLP; of a mixture of experts, of those that one token meets."""
    query: int
    """Heads times their width."""
    key_value: int
    vocabulary: int
    is_head_trained: bool
    adapted: int | None
    """Sum of the widths of all inputs that have an adapter."""


def shape_of(model: Any) -> ModelShape:
    """The shape of a model of transformers, with or without an adapter of PEFT."""
    import torch

    weights = list(model.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    adapters = [weight for name, weight in model.named_parameters() if "lora_A" in name and weight.requires_grad]
    config = model.config.get_text_config()
    heads = _number(config, "num_attention_heads", 1)
    hidden = _number(config, "hidden_size", 1)
    width = _number(config, "head_dim", hidden // heads)
    head = model.get_output_embeddings()
    return ModelShape(
        parameters=sum(each.numel() for each in weights),
        trainable=sum(each.numel() for each in trained),
        weight_bytes=sum(each.numel() * each.element_size() for each in weights),
        trainable_bytes=sum(each.numel() * each.element_size() for each in trained),
        uncast_weights=sum(each.numel() for each in weights if each.dtype == torch.float32 and each.dim() == 2),
        layers=_number(config, "num_hidden_layers", 1),
        hidden=hidden,
        inner=_inner(config, hidden),
        query=heads * width,
        key_value=_number(config, "num_key_value_heads", heads) * width,
        vocabulary=_number(config, "vocab_size", 1),
        is_head_trained=head is not None and any(weight.requires_grad for weight in head.parameters()),
        adapted=sum(each.shape[-1] for each in adapters) if adapters else None,
    )


def _inner(config: Any, hidden: int) -> int:
    experts = _number(config, "num_experts_per_tok", 0)
    if experts and (width := _number(config, "moe_intermediate_size", 0)):
        return experts * width
    return _number(config, "intermediate_size", 4 * hidden)


def _number(config: Any, name: str, otherwise: int) -> int:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else otherwise
