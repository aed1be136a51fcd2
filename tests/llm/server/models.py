"""Small models to serve: one that says anything, and one that says what a test wants."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ..tiny_models import tiny_tokenizer

torch.set_num_threads(1)

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
_WITH_TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{% if enable_thinking is defined %}{{ 'thinking ' ~ enable_thinking ~ '\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + (call.function.arguments | tojson) + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def chat_tokenizer() -> Any:
    """A tokenizer whose chat template writes tools, and calls of them."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = _WITH_TOOLS
    return tokenizer


def reciting_model(*pieces: str) -> tuple[Any, Any]:
    """A model, and its tokenizer, that answers a chat with these pieces, each of them one token, and stops."""
    tokenizer = chat_tokenizer()
    tokenizer.add_tokens(list(pieces))
    size = -(-len(tokenizer) // 4) * 4
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=size,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = LlamaForCausalLM(config).eval()
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()  # the layer adds nothing: what comes out is the last token
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.zero_()
        ids = [tokenizer.convert_tokens_to_ids(each) for each in pieces]
        start = tokenizer("\n")["input_ids"][-1]
        for last, following in zip([start, *ids], [*ids, tokenizer.eos_token_id], strict=True):
            model.lm_head.weight[following, last] = 1
    return model, tokenizer
