"""Steps of reasoning in what a model writes.

A step is a sentence that calculates something new and does so correctly, or one that says something new in words. Blank
lines, headings, the final answer, and what was said before in other order or with other numbers are no steps. Thinking
in `<think>` is reasoning: its steps count like any others.
"""

import re
from fractions import Fraction
from itertools import pairwise

from .answers import states_answer
from .completions import without_end_marks, without_thought_marks
from .numerals import plain, typed

_STEP_MARK = re.compile(
    r"\s*(?:[-*•]\s+)?(?:(?:step|stage)\s*\d+|\(?\d{1,2}(?=[.):](?!\d))|第\s*[一二三四五六七八九十\d]+\s*步)\s*[.):,]*\s*",
    re.IGNORECASE,
)
_SENTENCES = re.compile(r"(?<=[.!?;])\s+|[。]")
_WORD = re.compile(r"[A-Za-z]{2,}|[\u4e00-\u9fff]")
_NAMES_OF_THINGS = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)+|[A-Za-z]{2,}|[\u4e00-\u9fff°]")
_NUMBER = r"(?>\d[\d,]*(?:\.\d+)?|\.\d+)"
_EXPRESSION = rf"[-(\s]*{_NUMBER}(?:[)\s]*(?:[-+*/x]|(?=\())[-(\s]*{_NUMBER})*[)\s]*"
_LEFT_SIDE = re.compile(rf"(?<![\d.])({_EXPRESSION})$")
_RIGHT_SIDE = re.compile(_EXPRESSION)
_LONGEST_SIDE = 200
_OPERATOR = re.compile(r"[\d)]\s*[-+*/x(]\s*[-(]*\s*[\d.]")
_UNKNOWN = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])[^=]*=|=[^=]*(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_TOKEN = re.compile(rf"\s*(?:({_NUMBER})|([-+*/x()]))")
_DIGIT = re.compile(r"\d")
_NOTHING = "nothing"
_ROUNDING = Fraction(1, 100)
_WORDS_OF_A_SENTENCE = 4
_NEW_WORDS_OF_A_SENTENCE = 2


def count_steps(text: str) -> int:
    """How many steps of reasoning a text takes."""
    counter = _Counter()
    text = typed(without_thought_marks(text))
    for line in re.sub(r"<<[^<>\n]*>>", "", text).splitlines():
        for sentence in _SENTENCES.split(without_end_marks(line)):  # each turn of a chat may end with one
            counter.add(sentence)
    return counter.steps


class _Counter:
    def __init__(self) -> None:
        self.steps = 0
        self._words: set[str] = set()
        self._calculations: set[object] = set()

    def add(self, sentence: str) -> None:
        mark = _STEP_MARK.match(sentence)
        said = sentence[mark.end() :] if mark else sentence
        if not said.strip() or states_answer(said):
            return
        calculations = _calculations(plain(said))
        if None in calculations:  # A wrong result is no step forward.
            return
        words = {word.casefold() for word in _WORD.findall(said)}
        if calculations - self._calculations or (not calculations and self._is_news(words, is_marked=bool(mark))):
            self.steps += 1
            self._words |= words
            self._calculations |= calculations

    def _is_news(self, words: set[str], *, is_marked: bool) -> bool:
        needed, new = (1, 1) if is_marked else (_WORDS_OF_A_SENTENCE, _NEW_WORDS_OF_A_SENTENCE)
        return len(words) >= needed and len(words - self._words) >= new


def _calculations(sentence: str) -> set[object]:
    """What a sentence calculates, each in a form that reordering does not change; None stands for a wrong result."""
    sides = _NAMES_OF_THINGS.sub(" ", sentence).replace("%", "/100").split("=")
    found = {_calculation(left, right) for left, right in pairwise(sides)} - {_NOTHING}
    if not found and len(sides) > 1 and _UNKNOWN.search(sentence) and _DIGIT.search(sentence):
        return {"".join(sentence.split())}
    return found


def _calculation(left: str, right: str) -> object:
    before, after = _LEFT_SIDE.search(left[-_LONGEST_SIDE:]), _RIGHT_SIDE.match(right[:_LONGEST_SIDE])
    if not before or not after or not _OPERATOR.search(before[0]):
        return _NOTHING
    value, stated = _Expression(before[0]).value, _Expression(after[0]).value
    if value is None or stated is None:
        return _NOTHING
    if not _is_result(stated, value):
        return None
    return value, tuple(sorted(_exact(number) for number, _ in _TOKEN.findall(before[0]) if number))


def _is_result(stated: Fraction, value: Fraction) -> bool:
    return abs(stated - value) <= _ROUNDING * max(abs(value), _ROUNDING)


def _exact(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").rstrip("."))


class _Expression:
    """Sums, products and brackets, worked out exactly; `value` is None for what is no expression."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = [number or sign for number, sign in _TOKEN.findall(text)]
        self._place = 0
        try:
            self.value: Fraction | None = self._sum()
        except (ValueError, ZeroDivisionError, RecursionError):
            self.value = None
        if self._place < len(self._tokens):
            self.value = None

    def _next(self, *signs: str) -> str | None:
        token = self._tokens[self._place] if self._place < len(self._tokens) else None
        if token is None or token not in signs:
            return None
        self._place += 1
        return token

    def _sum(self) -> Fraction:
        value = self._product()
        while sign := self._next("+", "-"):
            value += self._product() * (1 if sign == "+" else -1)
        return value

    def _product(self) -> Fraction:
        value = self._factor()
        while (sign := self._next("*", "x", "/")) or self._tokens[self._place : self._place + 1] == ["("]:
            factor = self._factor()
            value = value / factor if sign == "/" else value * factor
        return value

    def _factor(self) -> Fraction:
        if self._next("-"):
            return -self._factor()
        if self._next("("):
            value = self._sum()
            if not self._next(")"):
                raise ValueError("unclosed bracket")
            return value
        if self._place >= len(self._tokens):
            raise ValueError("missing number")
        self._place += 1
        return _exact(self._tokens[self._place - 1])
