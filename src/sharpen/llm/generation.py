"""A model's answers to many prompts, generated in batches.

The numbers asked for are the numbers used: settings that a model folder brings along (a temperature, a penalty) play no
part, except for the tokens at which it stops. Greedy completions do not depend on the batch size, up to rounding;
sampled ones are the same for the same seed and batch size. Model, tokenizer and random generators stay as they were.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..checks import check_int, is_int, is_number
from ..errors import ConfigError, describe
from .completions import Message
from .errors import ModelError, RowError

if TYPE_CHECKING:
    import torch

Prompt = str | Sequence[Message]

_LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How completions are drawn. A temperature of 0 takes the likeliest token; no seed is a new one each call."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    batch_size: int = 8
    seed: int | None = None

    def __post_init__(self) -> None:
        check_int("max_new_tokens", self.max_new_tokens, at_least=1)
        check_int("batch_size", self.batch_size, at_least=1)
        if not is_number(self.temperature) or self.temperature < 0:
            raise ConfigError(
                f"temperature is {self.temperature!r}: use 0 (always the most likely token) or a positive number"
            )
        if not is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise ConfigError(
                f"top_p is {self.top_p!r}: use a number above 0 and at most 1 (1 samples from all tokens)"
            )
        if self.temperature == 0 and self.top_p != 1:
            raise ConfigError(
                f"top_p is {self.top_p}, which has no effect at temperature 0: raise the temperature, or omit top_p"
            )
        if self.seed is not None and (not is_int(self.seed) or not 0 <= self.seed <= _LARGEST_SEED):
            raise ConfigError(f"seed is {self.seed!r}: use an integer of at least 0, or None for a random seed")


@dataclass(frozen=True)
class GeneratedCompletion:
    """What a model wrote; the token at which it stopped is in the ids, not in the text."""

    text: str
    token_ids: list[int]
    is_truncated: bool
    """Whether it ran into `max_new_tokens` or the end of the model's window instead of stopping by itself."""


def generate_completions(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    batch_size: int = 8,
    seed: int | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[GeneratedCompletion]:
    """Return a completion for each prompt, in order. A prompt is a string, or chat messages for the chat template."""
    sampling = Sampling(
        max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, batch_size=batch_size, seed=seed
    )
    return complete(model, tokenizer, prompts, sampling, chat_template_kwargs=chat_template_kwargs)


def complete(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[GeneratedCompletion]:
    """As `generate_completions`, with its settings in one value."""
    window = window_of(model)
    ids_of_rows = [
        _prompt_ids(tokenizer, prompt, row, window, chat_template_kwargs or {}) for row, prompt in enumerate(prompts)
    ]
    stops = stop_ids(model, tokenizer)
    # Prompts of like length share a batch, for less padding. The longest come first: memory runs out at once or never.
    order = sorted(range(len(prompts)), key=lambda row: -len(ids_of_rows[row]))
    completions: dict[int, GeneratedCompletion] = {}
    with _ready(model), _own_randomness(sampling.seed, model.device):
        for start in range(0, len(order), sampling.batch_size):
            rows = order[start : start + sampling.batch_size]
            batch = [ids_of_rows[row] for row in rows]
            written = _generate(model, tokenizer, batch, sampling, stops, window)
            completions |= zip(rows, written, strict=True)
    return [completions[row] for row in range(len(prompts))]


def stop_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token at which the model, its generation settings or its tokenizer says that an answer ends."""
    found: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found |= {ids} if isinstance(ids, int) else set(ids or ())
    return sorted(found)


# -- prompts -----------------------------------------------------------------------------------------


def _prompt_ids(
    tokenizer: Any, prompt: Prompt, row: int, window: int | None, template_kwargs: Mapping[str, Any]
) -> list[int]:
    if isinstance(prompt, str):
        ids = list(tokenizer(prompt)["input_ids"])
    else:
        ids = _chat_ids(tokenizer, _messages(prompt, row), row, template_kwargs)
    if not ids:
        raise RowError.of(row, "prompt", "it is empty: add text, or remove the row")
    if window is not None and len(ids) >= window:
        raise RowError.of(
            row,
            "prompt",
            f"it has {len(ids)} tokens, but the model's context window is {window}: shorten it, or remove the row",
        )
    return ids


def _messages(prompt: Any, row: int) -> list[dict[str, Any]]:
    check_prompt(prompt, row, "prompt")
    # A table of Hugging Face fills the fields that only some messages have with None.
    return [{name: value for name, value in message.items() if value is not None} for message in prompt]


def _chat_ids(
    tokenizer: Any, messages: list[dict[str, Any]], row: int, template_kwargs: Mapping[str, Any]
) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            "the prompts are chat messages, but the model's tokenizer has no chat template: use an instruction-tuned "
            "model, add a chat_template.jinja to its folder, or pass the prompts as strings"
        )
    is_begun = messages[-1].get("role") == "assistant"
    try:
        written = tokenizer.apply_chat_template(
            messages,
            tokenize=True,
            return_dict=True,
            add_generation_prompt=not is_begun,
            continue_final_message=is_begun,
            **template_kwargs,
        )
    except Exception as error:  # A template is a program of the model's maker: it may raise anything.
        raise RowError.of(row, "prompt", f"the chat template cannot render it: {describe(error)}") from error
    return list(written["input_ids"])


def window_of(model: Any) -> int | None:
    """How many tokens the model sees at a time, where its settings say so."""
    window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return window if isinstance(window, int) and window > 0 else None


# -- tokens ------------------------------------------------------------------------------------------


def _generate(
    model: Any, tokenizer: Any, batch: list[list[int]], sampling: Sampling, stops: list[int], window: int | None
) -> list[GeneratedCompletion]:
    import torch
    from transformers import StoppingCriteriaList

    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else stops[0] if stops else 0
    width = max(map(len, batch))
    ids_B_T = torch.tensor([[pad] * (width - len(ids)) + ids for ids in batch], device=model.device)
    mask_B_T = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in batch], device=model.device)
    most_B = [_most_new_tokens(len(ids), sampling, window) for ids in batch]
    # Each row has a limit of its own, so that no other row of the batch decides how much it may write.
    limit_B = torch.tensor([width + most for most in most_B], device=model.device)
    whole_B_T = model.generate(
        input_ids=ids_B_T,
        attention_mask=mask_B_T,
        generation_config=_generation_config(
            **_options(sampling), max_new_tokens=max(most_B), pad_token_id=pad, eos_token_id=stops or None
        ),
        stopping_criteria=StoppingCriteriaList([lambda ids, scores, **_: limit_B <= ids.shape[1]]),
    )
    new_B_T: list[list[int]] = whole_B_T[:, width:].tolist()
    return [_completion(tokenizer, ids[:most], stops) for ids, most in zip(new_B_T, most_B, strict=True)]


def _most_new_tokens(prompt_length: int, sampling: Sampling, window: int | None) -> int:
    return sampling.max_new_tokens if window is None else min(sampling.max_new_tokens, window - prompt_length)


def _options(sampling: Sampling) -> dict[str, Any]:
    if sampling.temperature == 0:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": float(sampling.temperature), "top_p": float(sampling.top_p), "top_k": 0}


def _generation_config(**options: Any) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(**options)  # type: ignore[no-untyped-call]


def _completion(tokenizer: Any, ids: list[int], stops: list[int]) -> GeneratedCompletion:
    end = next((place for place, token in enumerate(ids) if token in stops), None)
    written = ids if end is None else ids[:end]
    text = tokenizer.decode(written, skip_special_tokens=True)
    return GeneratedCompletion(text, ids if end is None else ids[: end + 1], is_truncated=end is None)


# -- leaving things as they were ---------------------------------------------------------------------


@contextmanager
def _ready(model: Any) -> Iterator[None]:
    """The model without dropout and without generation settings of its own, until the block ends."""
    modes = [(module, module.training) for module in model.modules()]
    # transformers takes from here what the caller leaves open; the wrapper of an adapter holds settings too.
    configs = [(module, module.generation_config) for module in model.modules() if "generation_config" in vars(module)]
    try:
        model.eval()
        for module, _ in configs:
            module.generation_config = _generation_config()
        yield
    finally:
        for module, config in configs:
            module.generation_config = config
        for module, was_training in modes:
            module.training = was_training


@contextmanager
def _own_randomness(seed: int | None, device: "torch.device") -> Iterator[None]:
    """Random numbers that follow from the seed; afterwards the device's generator goes on as if none had been drawn."""
    generator = _generator_of(device)
    state = generator.get_state()
    try:
        generator.manual_seed(secrets.randbits(63) if seed is None else seed)
        yield
    finally:
        generator.set_state(state)


def _generator_of(device: "torch.device") -> "torch.Generator":
    """The generator from which transformers draws tokens on a device."""
    import torch

    if device.type == "cuda":
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    return torch.default_generator


# -- prompts that are messages ------------------------------------------------------------------------


def check_prompt(value: Any, row: int, column: str, *, source: str = "the data set") -> None:
    """A text or chat messages, or an error that names row and column.

    A message is a dict with `role` and `content`: a text or a list of parts, or None where it only calls tools.
    """
    problem = _problem(value)
    if problem:
        raise RowError.of(row, column, problem, source=source)


def _problem(value: Any) -> str | None:
    if isinstance(value, str):
        return None
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray):
        return f"it is {value!r:.80}: use a string or a list of chat messages"
    if not value:
        return "it is an empty list of messages: use a string or a list of chat messages"
    for place, message in enumerate(value):
        problem = _problem_of_message(message)
        if problem:
            return f"message {place} (the first is message 0) {problem}"
    return None


def _problem_of_message(message: Any) -> str | None:
    if not isinstance(message, Mapping):
        return f"is {message!r:.80}: a chat message is a dict with 'role' and 'content'"
    if not isinstance(message.get("role"), str) or not message["role"]:
        return f"is {message!r:.80}: a chat message is a dict with 'role' and 'content', and its role is a string"
    content = message.get("content")
    if isinstance(content, str):
        return None
    if content is None:
        return None if message.get("tool_calls") else "has neither 'content' nor 'tool_calls': add one of them"
    if isinstance(content, list | tuple) and content and all(isinstance(part, Mapping) for part in content):
        return None
    return f"has the content {content!r:.80}: use a string, or a list of parts such as {{'type': 'text', 'text': '…'}}"
