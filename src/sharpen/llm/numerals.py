"""Numbers as people and language models write them, read without loss.

`typed` and `plain` turn typography, LaTeX and Markdown into plain text; `read_number` finds the one number that a
phrase states: money, percent, units, thousands separators, decimals, fractions, mixed numbers, powers, and the result
of an equation. A phrase that states none, or several ("12 or 13"), has no number: nobody is paid for hedging.
Values are exact fractions. All patterns run in linear time, and no written number can make a huge one.
"""

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

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
