"""What rows hold, and how long they are in the tokens of a model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import describe
from ..errors import RowError
from ..messages import check_prompt
from ..sources import value_of

TemplateKwargs = Mapping[str, Any] | None


def check_texts(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, source: str) -> None:
    """Every row has these columns, with texts or chat messages in them, and the same in all of them."""
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
    """The number of tokens of each prompt, as the model is asked: texts as they are, messages by the chat template."""
    return row_lengths(({"prompt": prompt} for prompt in prompts), tokenizer, template_kwargs)


def row_lengths(rows: Iterable[Mapping[str, Any]], tokenizer: Any, template_kwargs: TemplateKwargs = None) -> list[int]:
    """The number of tokens of each row: the prompt, and the longest of what may follow it."""
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
