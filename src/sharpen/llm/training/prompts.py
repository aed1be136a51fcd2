"""How long prompts and rows are in the tokens of a model."""

from collections.abc import Iterable, Mapping
from typing import Any


def prompt_lengths(prompts: Iterable[Any], tokenizer: Any) -> list[int]:
    """The number of tokens of each prompt, as the model is asked: texts as they are, messages by the chat template."""
    return [_length(prompt, tokenizer, is_asked=True) for prompt in prompts]


def row_lengths(rows: Iterable[Mapping[str, Any]], tokenizer: Any) -> list[int]:
    """The number of tokens of each row: the prompt, and the longest of what may follow it."""
    return [_row_length(row, tokenizer) for row in rows]


def _row_length(row: Mapping[str, Any], tokenizer: Any) -> int:
    answers = [row[name] for name in ("completion", "chosen", "rejected") if row.get(name) is not None]
    if not answers:
        return _length(row["prompt"], tokenizer, is_asked=True)
    if isinstance(row["prompt"], str):
        return _length(row["prompt"], tokenizer) + max(_length(each, tokenizer) for each in answers)
    return max(_length([*row["prompt"], *each], tokenizer) for each in answers)


def _length(text: Any, tokenizer: Any, *, is_asked: bool = False) -> int:
    if not isinstance(text, str):
        text = tokenizer.apply_chat_template(text, tokenize=False, add_generation_prompt=is_asked)
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])
