"""The final answer in what a language model writes.

An answer is stated by `Final Answer:`, `####`, `\\boxed{}`, `<answer>`, "the answer is", "Answer:" or 答案, and the
last statement wins: models revise themselves. Without any of these, a last line that is nothing but a number is the
answer, or what follows `A:` there, or a number in bold or as code ("She has **9** apples"), else the result of the last
equation ("5 + 7 = 12"). A number that merely occurs in prose is no answer, and thinking in `<think>` states none.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from .completions import final_words
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
    | (?P<box>\\boxed\s*\{) | \\boxed\s*(?=[-+.\d]|\\[dt]?frac)
    | (?P<tag><answer>)
    | \banswers?\b [\s*_"'`]* (?:to\s[^.:\n]{1,80}?)?
      (?:\b(?:is|are|should\s+be|would\s+be|must\s+be|has\s+to\s+be|equals|comes\s+(?:out\s+)?to)\b|[:=]|\s-\s)
    | \bfinal\s+answer\b [\s*_\#]* (?=\n)
    | 答案 (?:应该|应当|应)? [是为等于]*
    """,
    re.VERBOSE | re.IGNORECASE,
)
# "Actually no, it's 6": says no more than a number, and revises only what was stated before.
_REVISION = re.compile(
    r"\b(?:(?:actually|wait|no|sorry|oops|correction|rather)[\s,.!:;-]{1,4}){1,4}"
    r"(?:it's|it\s+is|it\s+should\s+be|make\s+(?:it|that))\s(?=[\s$*`\\(-]{0,6}\d)",
    re.IGNORECASE,
)
_END_TAG = re.compile(r"</answer>", re.IGNORECASE)
_FENCED = re.compile(r"^[ \t]*```(?:[A-Za-z][\w+-]*)?[ \t]*\n(.{1,200})\n[ \t]*```[ \t]*$", re.MULTILINE)
_EMPHASIS = re.compile(r"\*\*([^*\n]{1,200})\*\*|(?<!`)`([^`\n]{1,200})`(?!`)")
_LABEL = re.compile(r"[\s*`]*\d+[.):]\*\*\s*\S")  # Markdown: "**1.** Find the cost".
_HEDGE = re.compile(r"\b(?:or|not|never|isn't)\b|或|不", re.IGNORECASE)
_REPLY = re.compile(r"[\s*_>#]{0,9}A[*_]{0,2}\s?:[*_]{0,2}\s")
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
    text = _FENCED.sub(r"`\1`", _ANNOTATION.sub("", typed(final_words(text))))
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
    text = final_words(str(truth)) or str(truth)
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
    for marker in _markers(text):
        rest = text[marker.end() : min(end, marker.end() + _LONGEST_STATEMENT)]
        answer = _stated(text, marker, rest)
        if answer and (answer.number or (answer.text and not _NO_ANSWER.match(answer.text))):
            yield answer
        end = marker.start()


def _markers(text: str) -> list[re.Match[str]]:
    """Where something is stated or revised, the last first."""
    stated = list(_MARKER.finditer(text))
    if not stated:
        return []
    revised = _REVISION.finditer(text, stated[0].end())
    return sorted([*stated, *revised], key=lambda marker: marker.end(), reverse=True)


def _stated(text: str, marker: re.Match[str], rest: str) -> Answer | None:
    if marker.re is _REVISION:
        number = bare_number(first_sentence(plain(rest)))
        return Answer(number.text, number) if number else None
    if marker["box"]:
        return _in_box(text, marker.end())
    if marker["tag"]:
        return _in_tag(text, marker.end())
    return _after_marker(_END_TAG.split(rest)[0], is_hashes=bool(marker["hashes"]))


def _in_tag(text: str, start: int) -> Answer | None:
    """What stands between `<answer>` and its end; a tag that was cut off states nothing."""
    end = _END_TAG.search(text, start, start + _LONGEST_STATEMENT)
    inside = plain(text[start : end.start()]).strip() if end else ""
    return _answer(inside, whole=True) if inside else None


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
    reply = _reply(next((line for line in reversed(lines) if _DIGIT.search(line)), ""))
    if reply:
        return reply
    is_last = True
    for sentence in reversed(_SENTENCES.split(text)):
        number = result_of_equation(plain(sentence)) if "=" in sentence or "≈" in sentence else None
        if number is None and is_last:
            number = _emphasised(sentence)
        if number:
            return Answer(number.text, number)
        is_last = is_last and not _DIGIT.search(sentence)
    return None


def _reply(line: str) -> Answer | None:
    """The answer in a line such as "A: 42", unless it goes on to reason."""
    mark = _REPLY.match(line)
    said = plain(line[mark.end() :]).strip() if mark else ""
    sentence = first_sentence(said)
    number = None if _DIGIT.search(said, len(sentence)) else read_number(sentence)
    return Answer(number.text, number) if number else None


def _emphasised(sentence: str) -> Number | None:
    """The one number of a sentence that stands in bold or as code."""
    found = [each for each in _EMPHASIS.finditer(sentence) if _DIGIT.search(each[0])]
    if len(found) != 1 or _HEDGE.search(sentence) or _LABEL.match(sentence):
        return None
    if not bare_number(plain(found[0][1] or found[0][2])):
        return None
    return leading_number(plain(sentence[found[0].start() :]))


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
