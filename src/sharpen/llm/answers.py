"""The final answer in what a language model writes.

An answer is stated by `Final Answer:`, `####`, `\\boxed{}`, `<answer>`, "the answer is", "Answer:" or 答案, and the
last statement wins: models revise themselves. Without any of these, a last line that is nothing but a number is the
answer, or what follows `A:` there, or a number in bold or as code ("She has **9** apples"), else the result of the last
equation ("5 + 7 = 12"). A number that merely occurs in prose is no answer, and thinking in `<think>` states none.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from .completions import final_words

# -- numbers as people write them --------------------------------------------------------------------

_LONGEST_NUMBER = 60
_LARGEST_POWER = 300
_LONGEST_LINE = 200


@dataclass(frozen=True)
class Number:
    """A number that was written somewhere, and how it was written."""

    value: Fraction
    is_percent: bool
    text: str


# -- from typography to plain text -------------------------------------------------------------------

_DECIMAL_DIGIT = re.compile(r"\d")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹⁻]+")
_THIN_GROUPS = re.compile("(?<=\\d)[\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}](?=\\d{3})")
_MINUS_SIGNS = "\N{MINUS SIGN}\N{EN DASH}\N{FIGURE DASH}"
_TIMES_SIGNS = "\N{MULTIPLICATION SIGN}\N{MULTIPLICATION X}\N{MIDDLE DOT}\N{DOT OPERATOR}"
_TYPOGRAPHY = str.maketrans(
    dict.fromkeys(_MINUS_SIGNS, "-")
    | dict.fromkeys(_TIMES_SIGNS, "*")
    | dict.fromkeys("\N{ZERO WIDTH SPACE}\N{LEFT-TO-RIGHT MARK}\N{RIGHT-TO-LEFT MARK}\N{ARABIC LETTER MARK}", "")
    | {"\N{ARABIC DECIMAL SEPARATOR}": ".", "\N{ARABIC THOUSANDS SEPARATOR}": ",", "\N{ARABIC PERCENT SIGN}": "%"}
    | {"÷": "/", "≃": "≈", "\N{RIGHT SINGLE QUOTATION MARK}": "'"}
)


def typed(text: str) -> str:
    """The text with the characters of a keyboard: digits of any script, minus signs, superscripts, vulgar fractions."""
    if text.isascii():
        return text
    text = _DECIMAL_DIGIT.sub(lambda found: str(unicodedata.decimal(found[0])), text)
    text = _VULGAR.sub(lambda found: " " + unicodedata.normalize("NFKC", found[0]).replace("\u2044", "/"), text)
    text = _THIN_GROUPS.sub("", text)
    text = _SUPERSCRIPT.sub(lambda found: "^" + unicodedata.normalize("NFKC", found[0]), text)
    return unicodedata.normalize("NFKC", text).translate(_TYPOGRAPHY)


_WRAPPER = re.compile(r"\\(?:boxed|fbox|text|textbf|textit|mathrm|mathbf|mathit|operatorname)\s*\{([^{}]*)\}")
_FRACTION = re.compile(r"(\d?)\\[dtc]?frac\s*(?:\{([^{}]*)\}\s*\{([^{}]*)\}|(\d)\s*(\d))")
_NUMERAL = re.compile(r"\s*-?[\d.,]+\s*")
_REWRITES = [
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<=\d)(?:\\[,!; ]|~)(?=\d{3})"), ""),
    (re.compile(r"\\(?:left|right|displaystyle|quad|qquad|[()\[\],;:! ])|~"), " "),
    (re.compile(r"\\(?:times|cdot|ast)(?![A-Za-z])"), "*"),
    (re.compile(r"\\div(?![A-Za-z])"), "/"),
    (re.compile(r"\\(?:approx|simeq)(?![A-Za-z])"), "≈"),
    (re.compile(r"\^?\{?\\circ\}?"), "°"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\?[$€£¥₹]"), ""),
    (re.compile(r"(?<!\d)\*\*|\*\*(?!\d)|__|`"), ""),
]


def plain(text: str) -> str:
    """The text without LaTeX, Markdown and signs of money, as far as they only decorate a number."""
    for _ in range(8):  # From the inside out; nobody nests deeper.
        unwrapped = _FRACTION.sub(_as_quotient, _WRAPPER.sub(r" \1", text))
        if unwrapped == text:
            break
        text = unwrapped
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def _as_quotient(found: re.Match[str]) -> str:
    whole, top, bottom = found[1], found[2] or found[4] or "", found[3] or found[5] or ""
    parts = [part.strip() if _NUMERAL.fullmatch(part) else f"({part})" for part in (top, bottom)]
    return (f"{whole} " if whole else "") + "/".join(parts)


# -- numbers -----------------------------------------------------------------------------------------

_DIGITS = r"(?>(?>\d{1,3}(?:,\d{3})++(?!\d)|\d++)(?:\.\d++)?|\.\d++)"
_NUMBER = re.compile(
    rf"""
    (?<![A-Za-z0-9_.√^])(?<!\d[,:/])
    (?P<sign>[-+]\s?|negative\s|minus\s|负)?
    (?:(?P<whole>\d++)\s+(?:and\s+)?(?=\d++\s?/\s?\d))?
    (?P<top>{_DIGITS})
    (?:e(?P<exponent>[-+]?\d{{1,3}})(?![A-Za-z0-9])|\^(?P<raised>-?\d{{1,3}}|\{{-?\d{{1,3}}\}}|\(-?\d{{1,3}}\)))?
    (?:\s?/\s?(?P<bottom>{_DIGITS}))?
    (?:\s?[*x]\s?10\^[({{]?(?P<power>-?\d{{1,3}})[)}}]?)?
    (?!\d|[,.:]\d|\s?/\s?\d|[\^√π(\\]|\s?[xyz](?![A-Za-z]))
    (?P<percent>\s?%|\s?per\s?cent(?![A-Za-z]))?
    (?P<scale>\s?(?:thousand|million|billion|trillion)(?![A-Za-z])|k(?![A-Za-z])|万|亿)?
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_SCALES = {"thousand": 3, "k": 3, "万": 4, "million": 6, "亿": 8, "billion": 9, "trillion": 12}


def _number(found: re.Match[str]) -> Number | None:
    if max(len(found[name] or "") for name in ("whole", "top", "bottom")) > _LONGEST_NUMBER:
        return None
    bottom, top = _exact(found["bottom"] or "1"), _raised(found)
    if bottom == 0 or top is None:
        return None
    scale = (found["scale"] or "").strip().lower()
    power = int(found["exponent"] or 0) + int(found["power"] or 0) + _SCALES.get(scale, 0)
    if abs(power) > _LARGEST_POWER:
        return None
    value = (_exact(found["whole"] or "0") + top / bottom) * Fraction(10) ** power
    sign = 1 if (found["sign"] or "+").strip() == "+" else -1
    return Number(sign * value, found["percent"] is not None, found[0].strip())


def _raised(found: re.Match[str]) -> Fraction | None:
    """The number before a fraction bar, raised to its power; None where that would be too large or is undefined."""
    base, power = _exact(found["top"]), int((found["raised"] or "1").strip("(){}"))
    if len(found["top"]) * abs(power) > _LARGEST_POWER or (base == 0 and power < 0) or (found["whole"] and power != 1):
        return None
    return base**power


def _exact(digits: str) -> Fraction:
    return Fraction(digits.replace(",", ""))


# -- phrases -----------------------------------------------------------------------------------------

_OPENING = " \t\n*_`'\"([{:"
_PREFIX = re.compile(
    r"(?:(?:approximately|approx\.?|about|around|roughly|exactly|only|just|equal\s+to|a\s+total\s+of|约|大约|≈"
    r"|US|USD|EUR|GBP|RMB|CNY|Rs\.?)\s*)+(?![A-Za-z])",
    re.IGNORECASE,
)
# Where what is said about the number begins: "12 (5 + 7)", "12, because 5 + 7 = 12", "12 out of 20".
_ASIDE = re.compile(
    r"[.!?;,](?!\d)|[。、]|\(|\s-\s(?!\W*\d)|—|\n|\s(?:because|since|as|so|which|who|that|after|for|if|when|with|in|from"
    r"|out\s+of|given|by|at|than|on|per|every|each)(?![A-Za-z])",
    re.IGNORECASE,
)
_ANOTHER_FOLLOWS = re.compile(r"(?:[,;、]\s*(?:(?:and|or)\s+)?|\(\s*or\s+)[-+]?\.?\d")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])\^?\{?[23]\}?(?![\d.])")
_MORE = re.compile(r"[\d*+^√\\<>=≈]|\s-\s")
_PLACEHOLDER = "\0"
_CALCULATES = re.compile(r"[-/]\s?\0|\0\s?/(?![A-Za-z])")
_GOES_ON = re.compile(
    r"\s*(?:[A-Za-z°]+\s*){0,2}(?:[*+^√\\<>]|-\s|/(?![A-Za-z]))|\s*(?:[A-Za-z°]+\s+)?\d"
    r"|[,;]\s*(?:(?:and|or)\s+)?[-+]?\.?\d"
)
_EQUALS = re.compile(r"(?<![<>!=:])=(?!=)|≈")
_VARIABLE = re.compile(r"(?<![A-Za-z])([A-Za-z])\s*=")
_NEGATION = re.compile(r"\b(?:not|never|neither|cannot|isn't|wasn't|unknown)\b|不", re.IGNORECASE)
_ORDINAL = re.compile(r"(?:st|nd|rd|th)(?![A-Za-z])", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<!Rs)(?<!approx)[.](?=\s|$)|[。!?]|\n", re.IGNORECASE)
_BARE_TAIL = re.compile(r"\s*(?:[A-Za-z°/]+(?:\s+[A-Za-z/]+)?|[\u4e00-\u9fff]{1,3})?[\s.!。*_)\]}'\"]*")


def first_sentence(text: str) -> str:
    """The text up to the end of its first sentence or line."""
    end = _SENTENCE_END.search(text)
    return text[: end.start()] if end else text


def before_aside(text: str) -> str:
    """The text up to its first aside: a comma, a bracket, a reason."""
    aside = _ASIDE.search(text)
    return text[: aside.start()] if aside else text


def read_number(phrase: str) -> Number | None:
    """The one number that a phrase of plain text states; None where it states none or several."""
    return leading_number(phrase) or result_of_equation(phrase) or _only_number(first_sentence(phrase))


def leading_number(phrase: str) -> Number | None:
    """The number with which a phrase begins, unless it is only a part of what is stated."""
    phrase = _without_prefix(phrase)
    found = _NUMBER.match(phrase)
    if not found:
        return None
    rest = phrase[found.end() :]
    said = before_aside(rest)
    if _MORE.search(_UNIT_POWER.sub("", said)) or _ANOTHER_FOLLOWS.match(rest[len(said) :]):
        return None
    return _number(found)


def result_of_equation(phrase: str) -> Number | None:
    """The result of the last equation: 12 in "5 + 7 = 12", in "5 + 7 = 6 + 6 = 12" and in "x = 12"."""
    sides = _EQUALS.split(phrase)
    if len(sides) < 2 or len(set(_VARIABLE.findall(phrase))) > 1:
        return None
    return next((number for side in reversed(sides) if (number := _result(side))), None)


def _result(side: str) -> Number | None:
    """The number of one side of an equation, unless the side goes on as an expression or a list."""
    side = _UNIT_POWER.sub("", _without_prefix(side))
    found = _NUMBER.match(side)
    return _number(found) if found and not _GOES_ON.match(side, found.end()) else None


def bare_number(line: str) -> Number | None:
    """The number of a line that holds nothing else but its unit."""
    phrase = _without_prefix(line[:_LONGEST_LINE])
    found = _NUMBER.match(phrase)
    return _number(found) if found and _BARE_TAIL.fullmatch(phrase[found.end() :]) else None


def _without_prefix(phrase: str) -> str:
    phrase = phrase.lstrip(_OPENING)
    prefix = _PREFIX.match(phrase)
    return phrase[prefix.end() :].lstrip(_OPENING) if prefix else phrase


def _only_number(sentence: str) -> Number | None:
    around = _NUMBER.sub(_PLACEHOLDER, _UNIT_POWER.sub("", sentence))
    if _NEGATION.search(sentence) or _MORE.search(around) or _CALCULATES.search(around):
        return None
    found = [each for each in _NUMBER.finditer(sentence) if not _ORDINAL.match(sentence, each.end())]
    if any(each["sign"] in ("- ", "+ ") for each in found):  # "x - 3" does not say -3.
        return None
    numbers = {(number.value, number.is_percent): number for each in found if (number := _number(each))}
    return next(iter(numbers.values())) if len(numbers) == 1 else None


# -- answers -----------------------------------------------------------------------------------------

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
