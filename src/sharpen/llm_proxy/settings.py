"""Everything that a gateway's server needs to know, as one struct that travels to its process as JSON.

Keys of upstreams and the token are inside: it is sent over a pipe only, and shown nowhere.
"""

import math
import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ..errors import ConfigError, InvalidInputError, SharpenError
from ..http.proxies import is_loopback
from ..secrets import shown
from ..store.base import check_id
from .budgets.budget import Limits
from .budgets.prices import Price, Prices
from .models.keys import described

Mode = Literal["live", "record", "replay"]
WhenPaused = Literal["wait", "refuse"]

DEFAULT_HOST = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::", "[::]")
"""Hosts that stand for every address of this machine, and are the address of none."""
MAX_BODY_BYTES = 64 * 2**20
_SECONDS = "seconds, a number above 0"
_WANTED = {
    "name": "a string such as 'gateway'",
    "host": "a string, the name or address to bind, such as '127.0.0.1'",
    "token": "a string, preferably a reference: 'env:NAME'",
    "num_retries": "a whole number, 0 for none",
    "strict": "True or False",
    "mode": "'live', 'record' or 'replay'",
    "replay_rollout": "the id of a rollout",
    "prices": "a dict of model names to prices",
    "when_paused": "'wait' or 'refuse'",
    "pause_wait_seconds": _SECONDS,
    "capture_content": "True or False",
    "max_body_bytes": "a whole number above 0",
    "timeout": _SECONDS,
    "connect_timeout": _SECONDS,
    "first_byte_timeout": _SECONDS,
    "chunk_timeout": _SECONDS,
}


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a gateway behaves. What cannot work is refused when it is made."""

    name: str = "gateway"
    instance: str = ""
    """Which gateway of this name it is; it stays the same when the gateway starts again."""
    host: str = DEFAULT_HOST
    token: str | None = None
    """What callers must show; the value itself, not a reference."""
    open_attempts: bool = False
    """Whether calls under the URL of an open attempt need no token: its id is their credential."""
    model_list: list[dict[str, Any]] = []
    num_retries: int = 0
    strict: bool = True
    mode: Mode = "live"
    record: str | None = None
    """The file that exchanges are written to, or answered from."""
    replay_rollout: str | None = None
    limits: Limits = msgspec.field(default_factory=Limits)
    prices: dict[str, list[float]] = {}
    """Of a model: US dollars for a million tokens of input, of output, and perhaps of input from a cache."""
    when_paused: WhenPaused = "wait"
    pause_wait_seconds: float = 600.0
    redact: str | None = None
    """The import path of the redaction hook."""
    capture_content: bool = True
    max_body_bytes: int = MAX_BODY_BYTES
    timeout: float = 600.0
    connect_timeout: float = 10.0
    first_byte_timeout: float | None = None
    """Until an upstream begins to answer; None leaves it to `timeout`, as below."""
    chunk_timeout: float | None = None
    """From piece to piece of an answer."""

    def __post_init__(self) -> None:
        for name in ("pause_wait_seconds", "timeout", "connect_timeout", "max_body_bytes"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: use a number above 0")
        for name in ("first_byte_timeout", "chunk_timeout"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value!r}: use a number above 0, or None for no separate limit")
        if self.num_retries < 0:
            raise ConfigError(f"num_retries is {self.num_retries}: use 0 or more")
        if not self.host:
            raise ConfigError(f"host is empty: use the name or address to bind, such as {DEFAULT_HOST!r}")
        _check_name(self.name)
        _check_token(self.token)
        Prices(self.prices)
        _check_mode(self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        names = [str(each.get("model_name") or each.get("name")) for each in self.model_list]
        return list((shown | {"token": self.token and "***", "model_list": names}).items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


def make_settings(values: Mapping[str, Any]) -> GatewaySettings:
    """Settings from what a caller wrote; a value of the wrong kind is named."""
    _check_json(values)
    try:
        return msgspec.convert(dict(values), GatewaySettings)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, SharpenError):
            raise error.__cause__ from None
        what, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`").partition("[")[0].partition(".")[0]
        if name not in _WANTED:
            raise ConfigError(f"{name or 'a setting'} of the gateway is invalid: {what.lower()}") from None
        value = described(values.get(name)) if name == "token" else shown(values.get(name))
        raise ConfigError(f"{name} is {value}: use {_WANTED[name]}") from None


def _check_json(values: Mapping[str, Any]) -> None:
    """What is told to a process must be plain data; so it is asked of every gateway."""
    for name in ("model_list", "prices"):
        try:
            msgspec.json.encode(values.get(name))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{name} contains a value that is not plain data (JSON): {error}") from None


def plain_prices(prices: Mapping[str, Any] | None) -> Any:
    """Prices as plain data; what is wrong with them is told where all settings are checked."""
    if not isinstance(prices, Mapping):
        return {} if prices is None else prices
    Prices(prices)
    return {name: _plain_price(price) for name, price in prices.items()}


def _plain_price(price: Any) -> list[float]:
    numbers = (price.input, price.output, price.cached_input) if isinstance(price, Price) else price
    return [each for each in numbers if each is not None]


def plain_record(record: object) -> str | None:
    """The whole path, which a process that works elsewhere finds too."""
    if record is None:
        return None
    if not isinstance(record, str | os.PathLike) or not isinstance(os.fspath(record), str) or not os.fspath(record):
        raise ConfigError(f"record is {shown(record)}: use the path of a file, such as 'calls.jsonl'")
    return os.path.abspath(os.fspath(record))


def check_reach(host: str, token: str | None) -> None:
    """Beyond loopback everybody could spend the keys that a gateway holds."""
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"host is {host!r}, which other machines can reach: pass a token (preferably a reference, "
            f"token='env:NAME'), or use {DEFAULT_HOST} (the default)"
        )


def check_port(port: object) -> None:
    is_number = isinstance(port, int) and not isinstance(port, bool)
    if port is not None and not (is_number and 1 <= port <= 65535):  # type: ignore[operator]
        raise ConfigError(f"port is {port!r}: use 1 to 65535, or None for a free one")


def _check_name(name: str) -> None:
    try:
        check_id("the name of a gateway", name)
    except InvalidInputError as error:
        raise ConfigError(str(error)) from None


def _check_token(token: str | None) -> None:
    if token is not None and (not token.isascii() or not token.isprintable() or " " in token or not token):
        raise ConfigError("the token of the gateway is not printable ASCII without spaces: choose another one")


def _check_mode(settings: GatewaySettings) -> None:
    if settings.mode == "live" and settings.record is not None:
        raise ConfigError(
            f"record is {settings.record!r}, but mode is 'live': use mode='record' to write it or "
            "mode='replay' to read it"
        )
    if settings.mode == "record" and settings.record is None and not settings.capture_content:
        raise ConfigError(
            "mode is 'record' without a file, but capture_content=False keeps exchanges out of the store: "
            "pass record=PATH, or omit capture_content"
        )
    if settings.mode != "replay" and settings.replay_rollout is not None:
        raise ConfigError(f"replay_rollout is {settings.replay_rollout!r}, but mode is {settings.mode!r}: use 'replay'")
    if settings.mode == "replay" and settings.record is None and settings.replay_rollout is None:
        raise ConfigError("mode is 'replay', but there is no record to replay: pass record=PATH or replay_rollout=ID")
