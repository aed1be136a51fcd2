"""A strict reader of Prometheus' text format: what it takes, every scraper takes."""

import math
import re
from typing import NamedTuple

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (\S+)")
_COMMENT = re.compile(rf"# (HELP|TYPE) ({_NAME}) (.+)")
_TYPES = ("counter", "gauge", "histogram", "summary", "untyped")


class Family(NamedTuple):
    """One metric: its type and its samples by their labels, as they are written."""

    kind: str
    samples: dict[str, float]


def parse(text: str) -> dict[str, Family]:
    """All metrics by name. Each has its HELP, its TYPE and then its samples, in one piece."""
    assert text.endswith("\n"), "the last line must end, too"
    families: dict[str, Family] = {}
    helped = name = ""
    for line in text.splitlines():
        if comment := _COMMENT.fullmatch(line):
            what, name, rest = comment.groups()
            assert name not in families, f"{name} comes in two pieces"
            if what == "HELP":
                helped = name
            else:
                assert helped == name, f"{name} has no HELP"
                assert rest in _TYPES, line
                families[name] = Family(rest, {})
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample, f"not a sample: {line!r}"
        assert sample[1] == name, f"{line!r} stands under {name}"
        _add(families[name], name, sample[2] or "", float(sample[3]))
    return families


def _add(family: Family, name: str, labels: str, value: float) -> None:
    assert labels not in family.samples, f"{name}{{{labels}}} comes twice"
    assert math.isfinite(value)
    if family.kind == "counter":
        assert name.endswith("_total")
        assert value >= 0
    family.samples[labels] = value
