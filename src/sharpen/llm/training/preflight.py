"""What is checked before the first step: the rows, their lengths in tokens, and the memory.

The texts are checked when a wrapper is made, the rest once the model is loaded. `check_memory` refuses only what cannot
fit: it counts what is sure to be allocated, gradients and optimiser states, and not the activations.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError, describe
from ...files import describe_size
from ..errors import RowError
from ..generation import check_prompt
from ..sources import value_of
from .settings import Settings, run_length

log = logging.getLogger(__name__)

TemplateKwargs = Mapping[str, Any] | None
_CGROUP = Path("/sys/fs/cgroup")
_TWO_STATES = ("adamw_torch", "adamw_torch_fused")
"""Optimisers that keep two numbers for each weight; what others keep is not counted."""


# -- rows --------------------------------------------------------------------------------------------


def check_texts(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, source: str) -> None:
    """Refuse a row that lacks one of these columns, or mixes strings and chat messages in them."""
    for number, row in enumerate(rows):
        for column in columns:
            value = value_of(row, number, column, source=source)
            check_prompt(value, number, column, source=source)
            if isinstance(value, str) != isinstance(row[columns[0]], str):
                problem = (
                    f"one of {columns[0]} and {column} is a string and the other chat messages: use one form for both"
                )
                raise RowError.of(number, column, problem, source=source)


def prompt_lengths(prompts: Iterable[Any], tokenizer: Any, template_kwargs: TemplateKwargs = None) -> list[int]:
    """Return the number of tokens of each prompt: texts as they are, messages by the chat template."""
    return row_lengths(({"prompt": prompt} for prompt in prompts), tokenizer, template_kwargs)


def row_lengths(rows: Iterable[Mapping[str, Any]], tokenizer: Any, template_kwargs: TemplateKwargs = None) -> list[int]:
    """Return the number of tokens of each row: the prompt, and the longest of what may follow it."""
    from jinja2 import TemplateError

    lengths: list[int] = []
    for number, row in enumerate(rows):
        try:
            lengths.append(_row_length(row, tokenizer, template_kwargs or {}))
        except (TemplateError, ValueError, TypeError, LookupError) as error:
            raise RowError.of(number, "prompt", f"the chat template cannot render it: {describe(error)}") from error
    return lengths


def _row_length(row: Mapping[str, Any], tokenizer: Any, template_kwargs: Mapping[str, Any]) -> int:
    answers = [row[name] for name in ("completion", "chosen", "rejected") if row.get(name) is not None]
    if not answers:
        return _length(row["prompt"], tokenizer, add_generation_prompt=True, **template_kwargs)
    if isinstance(row["prompt"], str):
        return _length(row["prompt"], tokenizer) + max(_length(each, tokenizer) for each in answers)
    return max(_length([*row["prompt"], *each], tokenizer) for each in answers)


def _length(text: Any, tokenizer: Any, **template_kwargs: Any) -> int:
    if not isinstance(text, str):
        text = tokenizer.apply_chat_template(text, tokenize=False, **template_kwargs)
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def check_length(settings: Settings, num_rows: int) -> None:
    """Refuse rows that are too few for one batch; warn of a warmup that lasts longer than the run."""
    length = run_length(settings, num_rows)
    if length.steps == 0:
        raise ConfigError(
            f"the data set has {num_rows} rows, but one batch needs {length.rows_per_batch} and incomplete ones are "
            "dropped: pass more rows, or lower batch_size"
        )
    if settings.warmup >= max(length.steps, 1):
        log.warning(
            "the warmup takes %d steps but the run only %d, so the learning rate never reaches %g",
            *(settings.warmup, length.steps, settings.learning_rate),
        )


def warn_of_cut_rows(settings: Settings, lengths: list[int]) -> None:
    """Warn of rows that are truncated to `max_length`."""
    limit = settings.max_length
    if limit is None or settings.algorithm == "grpo":
        return
    longer = sum(length > limit for length in lengths)
    if longer:
        log.warning(
            "%d of the first %d rows are longer than max_length (%d tokens; the longest has %d): they are truncated, "
            "and the ends of their answers are not learned",
            longer,
            len(lengths),
            limit,
            max(lengths),
        )


def check_rows_left(settings: Settings, given: int, left: int) -> None:
    """Refuse or report rows that TRL dropped, as nothing is left to learn of them; packed, several become one."""
    limit = settings.max_length
    if left == 0:
        raise ConfigError(
            f"max_length is {limit}, but every prompt alone is longer, so there are no answer tokens to learn: raise it"
        )
    if left < given and not settings.trl.get("packing"):
        log.warning(
            "skipping %d of %d rows: their prompts alone are longer than max_length (%s)",
            given - left,
            given,
            limit,
        )


# -- the model ---------------------------------------------------------------------------------------


def describe_parameters(model: Any) -> str:
    """Return how many of the model's parameters train, in one line."""
    total = sum(weight.numel() for weight in model.parameters())
    trained = sum(weight.numel() for weight in _trained(model))
    return f"{trained:,} of {total:,} parameters train ({100 * trained / max(total, 1):.3g} %)"


def check_memory(model: Any, *, optim: str, device: str) -> None:
    """Refuse a run whose gradients and optimiser states alone are larger than the memory that is left."""
    size_bytes = sum(weight.numel() * weight.element_size() for weight in _trained(model))
    needed = size_bytes * (3 if optim in _TWO_STATES else 1)
    free = free_bytes(device)
    if free is not None and needed > free:
        raise ConfigError(
            f"{describe_parameters(model)}: their gradients and the states of the optimiser take "
            f"{describe_size(needed)}, but {device} has only {describe_size(free)} left. Set use_lora=True, or use a "
            "smaller model"
        )


def _trained(model: Any) -> Iterator[Any]:
    return (weight for weight in model.parameters() if weight.requires_grad)


# -- memory ------------------------------------------------------------------------------------------


def free_bytes(device: str) -> int | None:
    """Return the memory that can still be allocated on a device, or None if that is unknown."""
    if device.startswith("cuda"):
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return min((each for each in (_free_of_machine(), _free_of_container()) if each is not None), default=None)


def _free_of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found = {name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)}
        return 1024 * (found["MemAvailable"] + found["SwapFree"])
    except (OSError, ValueError, LookupError):
        pass  # not Linux
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _free_of_container() -> int | None:
    """Return what the limit of a container leaves; the kernel gives back files that it caches."""
    try:
        limit = (_CGROUP / "memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return None
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        cached = sum(int(stat.get(name, 0)) for name in ("inactive_file", "active_file"))
        return max(int(limit) - used + cached, 0)
    except (OSError, ValueError):
        return None
