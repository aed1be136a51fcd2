"""A model that says what a test tells it to: the next token follows from the last one alone."""

from collections.abc import Mapping
from typing import Any

from .tiny_models import tiny_tokenizer


def scripted_model(next_of: Mapping[str, str], *, window: int = 64) -> tuple[Any, Any]:
    """A real model, and its tokenizer. After any token that `next_of` does not name, it stops."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer()
    size = len(tokenizer)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=size,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=window,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = LlamaForCausalLM(config).eval()
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()  # The layer adds nothing: what comes out is the last token.
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.zero_()
        model.lm_head.weight[tokenizer.eos_token_id] = 0.5
        for last, following in next_of.items():
            model.lm_head.weight[_id(tokenizer, following), _id(tokenizer, last)] = 1
    return model, tokenizer


def _id(tokenizer: Any, text: str) -> int:
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == 1, f"{text!r} is not one token"
    return int(ids[0])
