"""The limits of an engine: sequences at once, tokens in the cache, the longest text, the vocabulary."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ...checks import check_ints
from ...errors import ConfigError, InvalidInputError
from ..errors import ModelError

_CPU_BATCH, _GPU_BATCH = 64, 256
_CPU_TOKENS = 16_384
_GPU_SHARE = 0.3  # of the memory that is free when the engine is created; a trainer beside it needs the rest
_CPU_PREFILL, _GPU_PREFILL = 1_024, 8_192


@dataclass(frozen=True, slots=True)
class Sizes:
    """Fixed when the engine is created. `prefill_tokens` limits how many prompt tokens one step computes."""

    max_batch: int
    num_blocks: int
    block_size: int
    prefill_tokens: int
    max_length: int
    vocab_size: int
    eos_ids: frozenset[int]
    device: torch.device

    @classmethod
    def of(
        cls, model: Any, *, max_batch: int | None, max_tokens: int | None, block_size: int, prefill_tokens: int | None
    ) -> "Sizes":
        device: torch.device = model.get_input_embeddings().weight.device
        if device.type not in {"cpu", "cuda"}:
            raise ConfigError(
                f"the model is on {device.type!r}, but the engine runs on 'cpu' and 'cuda' only: pass device='cpu'"
            )
        is_cuda = device.type == "cuda"
        max_batch = (_GPU_BATCH if is_cuda else _CPU_BATCH) if max_batch is None else max_batch
        prefill_tokens = (_GPU_PREFILL if is_cuda else _CPU_PREFILL) if prefill_tokens is None else prefill_tokens
        check_ints(max_batch=max_batch, block_size=block_size, prefill_tokens=prefill_tokens)
        max_tokens = _default_tokens(model, device, max_batch) if max_tokens is None else max_tokens
        if max_tokens < block_size:
            raise ConfigError(
                f"max_tokens is {max_tokens}, but one block has {block_size} tokens: use at least {block_size}"
            )
        num_blocks = max_tokens // block_size
        config = model.config.get_text_config()
        window = getattr(config, "max_position_embeddings", None) or num_blocks * block_size
        return cls(
            max_batch=max_batch,
            num_blocks=num_blocks,
            block_size=block_size,
            prefill_tokens=prefill_tokens,
            max_length=min(window, num_blocks * block_size),
            vocab_size=config.vocab_size,
            eos_ids=_eos_ids(model),
            device=device,
        )

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def device_context(self) -> AbstractContextManager[object]:
        """Make the engine's GPU the current one, which is a setting of each thread."""
        return torch.cuda.device(self.device) if self.is_cuda else nullcontext()

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest text."""
        return -(-self.max_length // self.block_size)

    def checked_prompt(self, prompt_ids: Sequence[int]) -> list[int]:
        """Return the prompt as a list, if the model has all its tokens."""
        ids = [int(each) for each in prompt_ids]
        if not ids:
            raise InvalidInputError("the prompt is empty: pass at least one token id")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            wrong = next(each for each in ids if not 0 <= each < self.vocab_size)
            raise InvalidInputError(
                f"the prompt contains the token id {wrong}, but the model's ids are 0 to {self.vocab_size - 1}"
            )
        return ids

    def checked_limit(self, num_prompt: int, max_new_tokens: int | None) -> int:
        """Return how many tokens may be sampled after a prompt of this length."""
        wanted = max_new_tokens or 1
        if num_prompt + wanted > self.max_length:
            raise InvalidInputError(
                f"the prompt has {num_prompt} tokens and {wanted} more are requested, but a text may have at most "
                f"{self.max_length} (the model's window or the engine's max_tokens): shorten the prompt, lower "
                "max_new_tokens, or create the engine with more max_tokens"
            )
        return max_new_tokens or self.max_length - num_prompt


def _eos_ids(model: Any) -> frozenset[int]:
    for place in (getattr(model, "generation_config", None), model.config):
        ids = getattr(place, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()


def _default_tokens(model: Any, device: torch.device, max_batch: int) -> int:
    if device.type != "cuda":
        return _CPU_TOKENS
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    item_bytes = model.get_input_embeddings().weight.element_size()
    token_bytes: int = 2 * config.num_hidden_layers * kv_heads * head_size * item_bytes
    free_bytes, _ = torch.cuda.mem_get_info(device)
    tokens = int(free_bytes * _GPU_SHARE) // token_bytes
    if tokens < 1_024:
        raise ModelError(
            f"{device} has {free_bytes >> 20} MB of free memory, too little for a cache at {token_bytes >> 10} kB per "
            "token: free some memory, or set max_tokens"
        )
    # A cache larger than all sequences at their full length would only hold old texts.
    window = getattr(config, "max_position_embeddings", None) or tokens
    return min(tokens, max_batch * window)
