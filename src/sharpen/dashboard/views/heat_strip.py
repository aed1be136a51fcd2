"""The tokens of a call as cells: the likelier a token, the paler its cell."""

import math

import msgspec

from ...archive.entries import TokenStrip
from .shown_text import visible

NUM_SHADES = 8
MOST_CELLS = 2_000
# Shades by probability: near 1 is the palest. Steps are in log-probability, which training uses.
_STEPS = (-0.01, -0.1, -0.3, -0.7, -1.5, -3.0, -6.0)
_PICTURED = {"\n": "↵", "\t": "⇥", " ": "␣", "": "∅"}


class Cell(msgspec.Struct, frozen=True):
    """One token. `shade` is 0 (certain) to 7 (very unlikely), None without a log-probability."""

    token: int | None
    text: str | None
    logprob: str | None
    probability: str | None
    shade: int | None
    ends_line: bool = False

    @property
    def label(self) -> str:
        """The text for screen readers and the tooltip."""
        parts = [f"token {self.token}" if self.token is not None else "token", self.text and f"“{self.text}”"]
        parts += [self.logprob and f"log-probability {self.logprob}", self.probability]
        return ", ".join(part for part in parts if part)


class HeatStrip(msgspec.Struct, frozen=True):
    """The cells from `first` on, and the total number."""

    cells: list[Cell]
    first: int
    total: int
    num_prompt: int
    prompt_ids: list[int]
    weights_version: str | None
    mean_logprob: float | None
    perplexity: float | None
    lowest: float | None
    has_texts: bool

    @property
    def next_first(self) -> int | None:
        end = self.first + len(self.cells)
        return end if end < self.total else None


def heat_strip(tokens: TokenStrip, *, first: int = 0, most: int = MOST_CELLS) -> HeatStrip:
    """Return at most `most` cells, from the one numbered `first`."""
    total = max(len(tokens.response_ids), len(tokens.logprobs))
    known = [value for value in tokens.logprobs if value is not None and math.isfinite(value)]
    mean = math.fsum(known) / len(known) if known else None
    return HeatStrip(
        cells=[_cell(tokens, number) for number in range(first, min(first + most, total))],
        first=first,
        total=total,
        num_prompt=len(tokens.prompt_ids),
        prompt_ids=tokens.prompt_ids[:most],
        weights_version=tokens.weights_version,
        mean_logprob=mean,
        perplexity=math.exp(-mean) if mean is not None and mean > -700 else None,
        lowest=min(known, default=None),
        has_texts=tokens.texts is not None,
    )


def _cell(tokens: TokenStrip, number: int) -> Cell:
    logprob = tokens.logprobs[number] if number < len(tokens.logprobs) else None
    text = tokens.texts[number] if tokens.texts is not None and number < len(tokens.texts) else None
    is_known = logprob is not None and not math.isnan(logprob)
    return Cell(
        token=tokens.response_ids[number] if number < len(tokens.response_ids) else None,
        text=None if text is None else _pictured(text),
        logprob=f"{logprob:.4f}" if is_known else None,
        probability=_probability(logprob) if is_known and logprob is not None else None,
        shade=_shade(logprob) if is_known and logprob is not None else None,
        ends_line=text is not None and "\n" in text,
    )


def _pictured(text: str) -> str:
    """White space alone would be an empty cell."""
    if text.strip(" \t\n") == "":
        return "".join(_PICTURED.get(char, char) for char in text) or _PICTURED[""]
    return visible(text.replace("\n", _PICTURED["\n"]))


def _shade(logprob: float) -> int:
    return sum(logprob < step for step in _STEPS)


def _probability(logprob: float) -> str:
    share = math.exp(min(logprob, 0.0)) * 100
    return f"{share:.1f} %" if share >= 0.1 else f"{share:.2g} %"
