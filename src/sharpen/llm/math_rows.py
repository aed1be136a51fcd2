"""One problem of mathematics as a row for training.

The same chat message asks the question in both forms, so that what SFT teaches is what RL goes on with.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from ..errors import ConfigError
from .answers import bare_number, plain, read_answer, typed
from .errors import RowError
from .sources import Row, value_of

FormatType = Literal["sft", "rl"]

COLUMNS: dict[FormatType, tuple[str, ...]] = {
    "sft": ("prompt", "completion"),
    "rl": ("prompt", "ground_truth", "question", "full_answer"),
}
_ASK = "Question: {question}\n\nThink step by step. End with a line that says: Final Answer: <answer>"
_CALCULATOR = re.compile(r"<<[^<>\n]*>>")
_LONGEST_BARE_ANSWER = 60


class Tokenizer(Protocol):
    """The part of a tokenizer of transformers that writes chat messages as text."""

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...


def check_format(format_type: str) -> FormatType:
    for known in COLUMNS:
        if format_type == known:
            return known
    raise ConfigError(f"format_type is {format_type!r}: use 'sft' or 'rl'")


def format_row(
    row: Mapping[str, Any], number: int, format_type: FormatType, *, tokenizer: Tokenizer | None = None
) -> Row:
    """A row with `question` and `answer` in the form of training; with a tokenizer, its messages are text."""
    question, answer = _text_of(row, number, "question"), _text_of(row, number, "answer")
    reasoning, final = _solution(answer, number)
    prompt = [_message("user", _ASK.format(question=question))]
    if format_type == "sft":
        completion = [_message("assistant", f"{reasoning}\n\nFinal Answer: {final}".strip())]
        return _sft_text(prompt, completion, tokenizer) if tokenizer else {"prompt": prompt, "completion": completion}
    return {
        "prompt": _rendered(prompt, tokenizer, is_open=True) if tokenizer else prompt,
        "ground_truth": final,
        "question": question,
        "full_answer": answer,
    }


def _solution(answer: str, number: int) -> tuple[str, str]:
    """The way to the answer, without the marks of a calculator, and the answer itself."""
    reasoning, hashes, final = answer.rpartition("####")
    if hashes:
        if not final.strip():
            raise RowError.of(number, "answer", "there is no answer after '####': add it")
        return _CALCULATOR.sub("", reasoning).strip(), final.strip()
    if _is_nothing_else(answer):
        return "", answer
    stated = read_answer(answer)
    if stated is None:
        raise RowError.of(
            number, "answer", f"it has no final answer: {answer[-80:]!r}. End it with a line such as '#### 42'"
        )
    return _CALCULATOR.sub("", answer).strip(), stated.number.text if stated.number else stated.text


def _is_nothing_else(answer: str) -> bool:
    """Whether an answer is given without the way to it: a number, or a few words."""
    if "\n" in answer or len(answer) > _LONGEST_BARE_ANSWER:
        return False
    return bare_number(plain(typed(answer))) is not None or read_answer(answer) is None


def _text_of(row: Mapping[str, Any], number: int, column: str) -> str:
    value = value_of(row, number, column)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowError.of(number, column, f"it is a {type(value).__name__}, not a string: {value!r:.80}")
    text = str(value).strip()
    if not text:
        raise RowError.of(number, column, "it is empty")
    return text


# -- chat messages -----------------------------------------------------------------------------------


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _sft_text(prompt: list[dict[str, str]], completion: list[dict[str, str]], tokenizer: Tokenizer) -> Row:
    asked = _rendered(prompt, tokenizer, is_open=True)
    whole = _rendered(prompt + completion, tokenizer, is_open=False)
    if not whole.startswith(asked):
        raise ConfigError(
            "the tokenizer's chat template renders a question differently once an answer follows, so prompt and "
            "completion cannot be separated: omit tokenizer, and the trainer applies the template"
        )
    return {"prompt": asked, "completion": whole[len(asked) :]}


def _rendered(messages: list[dict[str, str]], tokenizer: Tokenizer, *, is_open: bool) -> str:
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=is_open))
    except (AttributeError, ValueError) as error:
        raise ConfigError(f"the tokenizer cannot render chat messages: {error}") from error
