"""Why a request is not in a record: the nearest one that is, and where the two differ, in plain words."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, takewhile
from typing import Any

import msgspec

from ...chat.wire import without_secrets
from ..calls import Call
from .exchanges import Exchange

MAX_SHOWN = 60
MAX_DIFFERENCES = 3
_MISSING = object()
_TURNS = ("messages", "input", "prompt")


def nearest_difference(call: Call, recorded: Iterable[Exchange]) -> str:
    """One or two sentences about the recorded request that is most like this one."""
    best: tuple[tuple[int, ...], Exchange, dict[str, Any]] | None = None
    for exchange in recorded:
        request = _request_of(exchange)
        if request is None:
            continue
        likeness = _likeness(call, exchange, request)
        if best is None or likeness > best[0]:
            best = likeness, exchange, request
    if best is None:
        return "The record has no request to compare it with."
    return _told(call, best[1], best[2])


def _told(call: Call, exchange: Exchange, request: Mapping[str, Any]) -> str:
    of_rollout = f" of rollout {exchange.rollout_id!r}" if exchange.rollout_id else ""
    found = []
    if exchange.api != call.api:
        found.append(f"the API: requested {call.api}, recorded {exchange.api}")
    every = list(islice(differences(without_secrets(call.request), request), 1000))
    found += [f"{path}: requested {_shown(*values)}, recorded {_shown(*values[::-1])}" for path, *values in every]
    rest = len(found) - MAX_DIFFERENCES
    more = f"; and in {rest} more places" if rest > 0 else ""
    where = "; ".join(found[:MAX_DIFFERENCES]) + more or "a field with a secret, which is not recorded"
    return f"The closest recorded request (call {exchange.call_id!r}{of_rollout}) differs in {where}."


def differences(asked: Any, recorded: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Path and both values of each place where two JSON values differ."""
    if isinstance(asked, Mapping) and isinstance(recorded, Mapping):
        for name in dict.fromkeys([*asked, *recorded]):
            below = f"{path}.{name}" if path else name
            yield from differences(asked.get(name, _MISSING), recorded.get(name, _MISSING), below)
    elif isinstance(asked, list) and isinstance(recorded, list):
        for index in range(max(len(asked), len(recorded))):
            one, other = (each[index] if index < len(each) else _MISSING for each in (asked, recorded))
            yield from differences(one, other, f"{path}[{index}]")
    elif not _is_equal(asked, recorded):
        yield path, asked, recorded


def _is_equal(one: Any, other: Any) -> bool:
    """As the key of a request sees it: `1`, `1.0` and `true` are three values."""
    return type(one) is type(other) and bool(one == other)


def _likeness(call: Call, exchange: Exchange, request: Mapping[str, Any]) -> tuple[int, ...]:
    """The conversation tells most: turns that agree from the first on, then all other fields."""
    same_turns = max((_agreeing(call.request.get(name), request.get(name)) for name in _TURNS), default=0)
    same_fields = sum(name in request and _is_equal(value, request[name]) for name, value in call.request.items())
    return (exchange.api == call.api, same_turns, same_fields, -abs(len(request) - len(call.request)))


def _agreeing(one: Any, other: Any) -> int:
    if not isinstance(one, list) or not isinstance(other, list):
        return 0
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _request_of(exchange: Exchange) -> dict[str, Any] | None:
    """None where a redaction left no JSON."""
    try:
        return msgspec.json.decode(exchange.request.encode(), type=dict[str, Any])
    except msgspec.MsgspecError:
        return None


def _shown(value: Any, other: Any) -> str:
    """A value for a sentence: a long text is cut around the place where it begins to differ from the other."""
    if value is _MISSING:
        return "nothing"
    text, counterpart = _text(value), _text(other)
    if len(text) <= MAX_SHOWN:
        return text
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, counterpart, strict=False)))
    start = max(0, min(same - MAX_SHOWN // 3, len(text) - MAX_SHOWN))
    end = start + MAX_SHOWN
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def _text(value: Any) -> str:
    return "" if value is _MISSING else msgspec.json.encode(value).decode()
