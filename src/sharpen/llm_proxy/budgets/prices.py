"""What a call costs: a small table of public models that users override, and prices of their own entries.

Prices are US dollars for a million tokens. A model that is in no table has no known cost, which is said, not guessed.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from ...errors import ConfigError
from ..calls import Usage


class Price(msgspec.Struct, frozen=True):
    """The price of a model in US dollars per million tokens. Cached input may cost less."""

    input: float
    output: float
    cached_input: float | None = None

    def of(self, usage: Usage) -> float:
        """Return the cost of a call in US dollars."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        cached_price = self.input if self.cached_input is None else self.cached_input
        fresh = usage.input_tokens - cached
        return (fresh * self.input + cached * cached_price + usage.output_tokens * self.output) / 1e6


class PricedEntry(Protocol):
    """What an entry of the model list says about cost: its own prices, for one token, and the upstream's model."""

    @property
    def model(self) -> str | None: ...
    @property
    def input_cost_per_token(self) -> float | None: ...
    @property
    def output_cost_per_token(self) -> float | None: ...


# As the providers published them for plain calls: OpenAI in March 2026, Anthropic in October 2026.
KNOWN: dict[str, Price] = {
    "gpt-5.4": Price(2.5, 15.0, 0.25),
    "gpt-5.4-mini": Price(0.75, 4.5, 0.075),
    "gpt-5.1": Price(1.25, 10.0, 0.125),
    "gpt-5": Price(1.25, 10.0, 0.125),
    "gpt-5-mini": Price(0.25, 2.0, 0.025),
    "gpt-5-nano": Price(0.05, 0.4, 0.005),
    "gpt-5-pro": Price(15.0, 120.0),
    "gpt-4.1": Price(2.0, 8.0, 0.5),
    "gpt-4.1-mini": Price(0.4, 1.6, 0.1),
    "gpt-4.1-nano": Price(0.1, 0.4, 0.025),
    "gpt-4o": Price(2.5, 10.0, 1.25),
    "gpt-4o-mini": Price(0.15, 0.6, 0.075),
    "gpt-4-turbo": Price(10.0, 30.0),
    "gpt-3.5-turbo": Price(0.5, 1.5),
    "o1": Price(15.0, 60.0, 7.5),
    "o3": Price(2.0, 8.0, 0.5),
    "o3-mini": Price(1.1, 4.4, 0.55),
    "o4-mini": Price(1.1, 4.4, 0.275),
    "text-embedding-3-small": Price(0.02, 0.0),
    "text-embedding-3-large": Price(0.13, 0.0),
    "text-embedding-ada-002": Price(0.1, 0.0),
    "claude-fable-5": Price(10.0, 50.0, 1.0),
    "claude-opus-5-5": Price(4.0, 20.0, 0.2),
    "claude-opus-5": Price(5.0, 25.0, 0.5),
    "claude-opus-4-8": Price(5.0, 25.0, 0.5),
    "claude-opus-4-7": Price(5.0, 25.0, 0.5),
    "claude-opus-4-6": Price(5.0, 25.0, 0.5),
    "claude-opus-4-5": Price(5.0, 25.0, 0.5),
    "claude-opus-4-1": Price(15.0, 75.0, 1.5),
    "claude-opus-4": Price(15.0, 75.0, 1.5),
    "claude-sonnet-5-5": Price(2.0, 10.0, 0.1),
    "claude-sonnet-5": Price(2.0, 10.0, 0.2),
    "claude-sonnet-4-6": Price(3.0, 15.0, 0.3),
    "claude-sonnet-4-5": Price(3.0, 15.0, 0.3),
    "claude-sonnet-4": Price(3.0, 15.0, 0.3),
    "claude-3-7-sonnet": Price(3.0, 15.0, 0.3),
    "claude-3-5-sonnet": Price(3.0, 15.0, 0.3),
    "claude-haiku-4-5": Price(1.0, 5.0, 0.1),
    "claude-3-5-haiku": Price(0.8, 4.0, 0.08),
    "claude-3-haiku": Price(0.25, 1.25, 0.03),
}
_MAX_FOUND = 1000  # names come from callers
_DATED = re.compile(r"-(\d{4}-\d\d-\d\d|20\d{6}|latest|0)$")


class Prices:
    """The prices of a gateway: those of the user come before the known ones.

    The user's are given by model, as `(input, output)` or `(input, output, cached input)` or a `Price`.
    """

    def __init__(self, own: Mapping[str, Any] | None = None) -> None:
        if own is not None and not isinstance(own, Mapping):
            raise ConfigError(f'prices is {own!r}: pass a dict such as {{"my-model": (0.5, 1.5)}}')
        self._own = {_checked_name(name): _checked(name, value) for name, value in (own or {}).items()}
        self._found: dict[tuple[str | None, ...], Price | None] = {}

    def of(self, *models: str | None) -> Price | None:
        """The price of the first name that has one; `provider/` and a date at the end need not be in the table."""
        if models not in self._found:
            if len(self._found) >= _MAX_FOUND:
                self._found.clear()
            spellings = [spelling for model in models if model for spelling in _spellings(model)]
            self._found[models] = _first(self._own, spellings) or _first(KNOWN, spellings)
        return self._found[models]

    def cost(self, usage: Usage, models: Iterable[str | None], entry: PricedEntry | None = None) -> float | None:
        """What a call cost in US dollars, None where nobody knows. An entry's own prices come first."""
        price = (_price_of(entry) if entry else None) or self.of(*models, entry.model if entry else None)
        return price.of(usage) if price else None


def _first(table: Mapping[str, Price], names: Iterable[str]) -> Price | None:
    return next((table[name] for name in names if name in table), None)


def _spellings(model: str) -> list[str]:
    bare = model.rpartition("/")[2]
    return list(dict.fromkeys([model, bare, _DATED.sub("", bare)]))


def _price_of(entry: PricedEntry) -> Price | None:
    if entry.input_cost_per_token is None and entry.output_cost_per_token is None:
        return None
    return Price((entry.input_cost_per_token or 0.0) * 1e6, (entry.output_cost_per_token or 0.0) * 1e6)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"prices has the model {name!r}: use its name, a string")
    return name


def _checked(name: str, value: Any) -> Price:
    numbers = [value.input, value.output, value.cached_input] if isinstance(value, Price) else value
    if isinstance(numbers, list | tuple) and len(numbers) in (2, 3) and all(map(_is_price, numbers[:2])):
        cached = numbers[2] if len(numbers) == 3 else None
        if cached is None or _is_price(cached):
            return Price(float(numbers[0]), float(numbers[1]), None if cached is None else float(cached))
    raise ConfigError(
        f"the price of {name!r} is {value!r}: use US dollars per million tokens as (input, output) "
        "or (input, output, cached input)"
    )


def _is_price(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
