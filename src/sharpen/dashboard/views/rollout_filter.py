"""The filter of a list of rollouts: read from a URL, passed to the store, and written to a URL again."""

import math
from collections.abc import Iterable
from typing import Any, Literal, cast, get_args
from urllib.parse import urlencode

import msgspec

from ...errors import InvalidInputError
from ...types import Rollout, RolloutMode, RolloutStatus
from ...types.rollouts import ROLLOUT_MODES, ROLLOUT_STATUSES

Order = Literal["newest", "oldest", "reward_high", "reward_low", "finished"]
ORDERS: dict[Order, str] = {
    "newest": "newest first",
    "oldest": "oldest first",
    "reward_high": "highest reward first",
    "reward_low": "lowest reward first",
    "finished": "most recently finished first",
}
# The number of previous pages that a URL remembers; before them there is only the first page.
MOST_BACK = 12
_MOST_TEXT = 500


class RolloutFilter(msgspec.Struct, frozen=True):
    """The filter. Empty fields match everything."""

    status: tuple[RolloutStatus, ...] = ()
    mode: RolloutMode | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    q: str = ""
    worker: str = ""
    resources: str = ""
    group: str = ""
    order: Order = "newest"

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> "RolloutFilter":
        """Return the filter in a URL; unknown names are ignored, invalid values are errors."""
        values = [(name, value.strip()) for name, value in pairs if value.strip()]
        last = dict(values)
        return cls(
            status=tuple(_status(value) for name, value in values if name == "status"),
            mode=_mode(last.get("mode")),
            reward_min=_number("reward_min", last.get("reward_min")),
            reward_max=_number("reward_max", last.get("reward_max")),
            q=last.get("q", "")[:_MOST_TEXT],
            worker=last.get("worker", ""),
            resources=last.get("resources", ""),
            group=last.get("group", ""),
            order=_order(last.get("order", "newest")),
        )

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `store.search_rollouts`."""
        resources_id, version = split_resources(self.resources)
        found = {
            "status_in": list(self.status),
            "mode": self.mode,
            "reward_min": self.reward_min,
            "reward_max": self.reward_max,
            "text": self.q,
            "worker_id": self.worker,
            "resources_id": resources_id,
            "resources_version": version,
            "group": self.group,
        }
        return {name: value for name, value in found.items() if value not in (None, "", [])} | {"order": self.order}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Return the parameters of a URL, without empty ones."""
        found: list[tuple[str, str]] = [("status", status) for status in self.status]
        rest = msgspec.structs.asdict(self)
        found += [(name, _written(rest[name])) for name in rest if name not in ("status", "order")]
        found += [] if self.order == "newest" else [("order", self.order)]
        return [(name, value) for name, value in found if value]

    def query(self, *more: tuple[str, str]) -> str:
        """Return `?status=failed&…`, or an empty string."""
        text = urlencode([*self.pairs, *more])
        return f"?{text}" if text else ""

    @property
    def is_empty(self) -> bool:
        return not [name for name, _ in self.pairs if name != "order"]


def split_resources(text: str) -> tuple[str | None, int | None]:
    """`prompt@3` is version 3 of `prompt`."""
    name, mark, version = text.rpartition("@")
    # No version has twenty digits, and Python refuses to parse thousands of them.
    if mark and name and version.isascii() and version.isdigit() and len(version) < 19 and int(version) > 0:
        return name, int(version)
    return text or None, None


def resources_of(rollout: Rollout) -> str:
    """Return the text that `split_resources` reads."""
    if rollout.resources_id is None:
        return ""
    return (
        rollout.resources_id
        if rollout.resources_version is None
        else f"{rollout.resources_id}@{rollout.resources_version}"
    )


def _written(value: Any) -> str:
    return "" if value is None else repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _status(value: str) -> RolloutStatus:
    if value not in ROLLOUT_STATUSES:
        raise InvalidInputError(f"status is {value!r}: use one of {', '.join(ROLLOUT_STATUSES)}")
    return value


def _mode(value: str | None) -> RolloutMode | None:
    if value is not None and value not in ROLLOUT_MODES:
        raise InvalidInputError(f"mode is {value!r}: use one of {', '.join(ROLLOUT_MODES)}")
    return value


def _order(value: str) -> Order:
    if value not in get_args(Order):
        raise InvalidInputError(f"order is {value!r}: use one of {', '.join(get_args(Order))}")
    return cast(Order, value)


def _number(name: str, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInputError(f"{name} is {value!r}: use a number, such as 0.5")
    return number
