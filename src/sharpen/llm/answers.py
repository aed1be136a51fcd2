"""The final answer in what a language model writes.

An answer is stated by `Final Answer:`, `####`, `\\boxed{}`, "the answer is", "Answer:" or 答案, and the last statement
wins: models revise themselves. Without any of these, a last line that is nothing but a number is the answer, else the
result of the last equation ("5 + 7 = 12"). A number that merely occurs in prose is no answer.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from .numerals import (
    Number,
    bare_number,
    first_sentence,
    leading_number,
    plain,
    read_number,
    result_of_equation,
    typed,
)

_LONGEST_STATEMENT = 600
_ANNOTATION = re.compile(r"<<[^<>\n]*>>")
_MARKER = re.compile(
    r"""
      (?P<hashes>(?<!\#)\#{4}(?!\#))
    | (?P<box>\\boxed\s*\{)
    | \banswers?\b [\s*_"'`]* (?:to\s[^.:\n]{1,80}?)?
      (?:\b(?:is|are|should\s+be|would\s+be|must\s+be|has\s+to\s+be|equals|comes\s+(?:out\s+)?to)\b|[:=]|\s-\s)
    | \bfinal\s+answer\b [\s*_\#]* (?=\n)
    | 答案 (?:应该|应当|应)? [是为等于]*
    """,
    re.VERBOSE | re.IGNORECASE,
)
_LEAD = re.compile(r"[\s*_`:=>]*")
_BULLET = re.compile(r"[-•]\s+")
_HEADING = re.compile(r"\s*\d+[.)]\s+\S")
_SENTENCES = re.compile(r"(?<=[.!?;])\s+|[。\n]")
_TEXT_EDGES = " \t\n.!?,;:\"'*_`"
_DIGIT = re.compile(r"\d")
_REASON = re.compile(r",?\s+(?:because|since|as|given|so)\b", re.IGNORECASE)
# "The answer is correct", "the answer is not 10": words about an answer, which state none.
_NO_ANSWER = re.compile(r"(?:correct|clear|obvious|above|below|not|as\s+follows|the\s+following)\b|不", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """An answer as it was stated: its words, and the number they mean where they mean one."""

    text: str
    number: Number | None = None


def read_answer(text: str) -> Answer | None:
    """The final answer that `text` states, or None."""
    text = _ANNOTATION.sub("", typed(text))
    in_words = None
    for statement in _statements(text):
        # Words without a digit may be a heading or a remark: an answer in numbers before them still stands.
        if statement.number or _DIGIT.search(statement.text):
            return statement
        in_words = in_words or statement
    return in_words or _implied(text)


def read_truth(truth: object) -> Answer:
    """The right answer as a data set gives it: a number, or a text that is or states it."""
    if isinstance(truth, int | float | Fraction | Decimal) and not isinstance(truth, bool):
        value = truth if isinstance(truth, Fraction) else Fraction(str(truth))
        return Answer(str(truth), Number(value, is_percent=False, text=str(truth)))
    text = str(truth)
    stated = read_answer(text) if _MARKER.search(text) else None
    return stated or _answer(plain(typed(text)), whole=True)


def is_same(answer: Answer, truth: Answer, *, tolerance: float = 1e-4) -> bool:
    """Whether two answers are equal: as numbers within `tolerance`, else word for word."""
    if answer.number and truth.number:
        return _is_close(answer.number, truth.number, Fraction(str(tolerance)))
    if truth.number:
        return False
    said = {_word_for_word(answer.text), _word_for_word(_REASON.split(answer.text)[0])}
    return _word_for_word(truth.text) in said - {""}


def states_answer(sentence: str) -> bool:
    """Whether a sentence is a statement of the final answer."""
    return _MARKER.search(sentence) is not None


def _statements(text: str) -> Iterator[Answer]:
    """What is stated, the last statement first."""
    end = len(text)
    for marker in reversed(list(_MARKER.finditer(text))):
        rest = text[marker.end() : min(end, marker.end() + _LONGEST_STATEMENT)]
        answer = _in_box(text, marker.end()) if marker["box"] else _after_marker(rest, is_hashes=bool(marker["hashes"]))
        if answer and (answer.number or not _NO_ANSWER.match(answer.text)):
            yield answer
        end = marker.start()


def _in_box(text: str, start: int) -> Answer | None:
    """What stands in the braces that open before `start`; a box that was cut off states nothing."""
    if text.find("}", start) < 0:
        return None
    depth = 1
    for place in range(start, min(len(text), start + _LONGEST_STATEMENT)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return _answer(plain(text[start:place]), whole=True) if text[start:place].strip() else None
    return None


def _after_marker(rest: str, *, is_hashes: bool) -> Answer | None:
    if is_hashes and _HEADING.match(rest):
        return None  # Markdown: "#### 1. Find the cost".
    statement = _without_lead(plain(rest))
    if not statement.strip(_TEXT_EDGES):
        return None
    return _after_hashes(statement.partition("\n")[0]) if is_hashes else _answer(statement)


def _after_hashes(line: str) -> Answer | None:
    number = leading_number(line) or result_of_equation(line)
    if number is None and line[0].isalpha() and _DIGIT.search(line):
        return None  # Markdown: "#### Step 1: find the cost".
    return Answer(_tidy(first_sentence(line)), number)


def _without_lead(rest: str) -> str:
    statement = _LEAD.sub("", rest, count=1)
    is_on_a_new_line = "\n" in rest[: len(rest) - len(statement)]
    return _BULLET.sub("", statement, count=1) if is_on_a_new_line and _BULLET.match(statement) else statement


def _answer(statement: str, *, whole: bool = False) -> Answer:
    """The answer in plain text; `whole` where nothing but the answer can stand in it."""
    sentence = statement if whole else first_sentence(statement)
    return Answer(_tidy(sentence), read_number(sentence))


def _implied(text: str) -> Answer | None:
    lines = text.strip().splitlines()
    last = bare_number(plain(lines[-1])) if lines else None
    if last:
        return Answer(last.text, last)
    for sentence in reversed(_SENTENCES.split(text)):
        number = result_of_equation(plain(sentence)) if "=" in sentence or "≈" in sentence else None
        if number:
            return Answer(number.text, number)
    return None


def _tidy(text: str) -> str:
    text = text.strip(_TEXT_EDGES)
    return text[1:-1].strip(_TEXT_EDGES) if text[:1] + text[-1:] in ("()", "[]", "{}") else text


def _word_for_word(text: str) -> str:
    return "".join(_tidy(text).casefold().split())


def _is_close(one: Number, other: Number, tolerance: Fraction) -> bool:
    if one.is_percent == other.is_percent:
        return abs(one.value - other.value) <= tolerance
    # 50% answers a question whose answer is given as 50 as well as one whose answer is given as 0.5.
    percent, number = (one, other) if one.is_percent else (other, one)
    return any(abs(reading - number.value) <= tolerance for reading in (percent.value, percent.value / 100))
