"""Sampled tokens in a terminal: the less likely a token was, the warmer its colour."""

from rich.console import Group, RenderableType
from rich.text import Text

from ..archive.entries import TokenStrip
from ..logging import plain

# The lowest log-probability for each style: probabilities of 0.9, 0.5, 0.1, 0.01.
_HEAT = ((-0.105, ""), (-0.693, "yellow"), (-2.303, "dark_orange"), (-4.605, "red"))
_COLDEST = "bold red"


def draw_tokens(strip: TokenStrip) -> Group:
    """Render the text of the response where it is known, then each token id with its log-probability."""
    version = "" if strip.weights_version is None else f", weights {strip.weights_version}"
    count = len(strip.response_ids) or len(strip.logprobs)
    parts: list[RenderableType] = [
        Text(f"{len(strip.prompt_ids)} prompt tokens, {count} sampled{plain(version)}", "dim")
    ]
    if strip.texts is not None:
        line = Text()
        for text, logprob in zip(strip.texts, strip.logprobs, strict=True):
            line.append(plain(text), heat(logprob))
        parts.append(line)
    numbers = Text()
    names = [str(token) for token in strip.response_ids] or [""] * count
    for name, logprob in zip(names, strip.logprobs, strict=True):
        shown = "?" if logprob is None else f"{logprob:.2f}"
        numbers.append(f"{name}:{shown} ", heat(logprob))
    parts.append(numbers)
    return Group(*parts)


def heat(logprob: float | None) -> str:
    """The style of a token by its log-probability."""
    if logprob is None:
        return "dim"
    return next((style for least, style in _HEAT if logprob >= least), _COLDEST)
