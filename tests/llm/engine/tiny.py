"""Tiny language models with random weights, built in the test."""

import functools
from typing import Any

import torch
import transformers

VOCAB = 97
WINDOW = 256
EOS = 2
torch.set_num_threads(1)


def build(family: str = "Llama", *, seed: int = 0, vocab: int = VOCAB, **options: Any) -> Any:
    """A model of its own, for tests that change it."""
    config = getattr(transformers, f"{family}Config")(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.3,  # wide enough that the next token depends on what came before
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=0,
        **{
            "num_key_value_heads": 2,
            "head_dim": 16 if family == "Qwen3" else 8,
            "max_position_embeddings": WINDOW,
            **options,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms and biases start at one and zero, where a mistake would not show
                torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.2)
    return model


@functools.cache
def shared(family: str = "Llama") -> Any:
    """A model that no test changes."""
    return build(family)


@torch.no_grad()
def logprobs_of(model: Any, prompt_ids: list[int], token_ids: list[int]) -> list[float]:
    """The log-probabilities of the tokens after a prompt, by one plain forward pass."""
    rows = model(torch.tensor([prompt_ids + token_ids])).logits[0].float().log_softmax(-1)
    first = len(prompt_ids) - 1
    return [rows[first + place, token].item() for place, token in enumerate(token_ids)]


def greedy_of(model: Any, prompt_ids: list[int], count: int) -> list[int]:
    """What transformers generates."""
    ids = model.generate(torch.tensor([prompt_ids]), max_new_tokens=count, do_sample=False)
    return ids[0, len(prompt_ids) :].tolist()


class Letters:
    """A tokenizer whose tokens are letters; ids 90 to 92 are the three bytes of one character, EOS is special."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        data = b"".join(self._bytes(each, skip_special_tokens) for each in token_ids)
        return data.decode("utf-8", errors="replace")

    def _bytes(self, token_id: int, skip_special_tokens: bool) -> bytes:
        if token_id == EOS:
            return b"" if skip_special_tokens else b"</s>"
        if 90 <= token_id <= 92:
            return "\u20ac".encode()[token_id - 90 : token_id - 89]
        return bytes([ord("a") + token_id % 26])
