"""The episodes of a simulator run, from `episodes.jsonl`.

Each line is a JSON object with `iteration`, `stage`, `episode`, `reward`, `length`, and other logged values. Only the
end of a large file is read, and the page says so.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

FILE = "episodes.jsonl"
# About 130,000 episodes, some tenths of a second.
MOST_BYTES = 16 * 2**20
EpisodeOrder = Literal["newest", "oldest", "reward_high", "reward_low", "longest"]
ORDERS: dict[EpisodeOrder, str] = {
    "newest": "newest first",
    "oldest": "oldest first",
    "reward_high": "highest reward first",
    "reward_low": "lowest reward first",
    "longest": "longest first",
}


class Episode(msgspec.Struct, frozen=True):
    """One episode. Missing values are None."""

    iteration: int | None = None
    stage: str = ""
    episode: int | str | None = None
    reward: float | None = None
    length: float | None = None
    metrics: dict[str, Any] = {}


class EpisodeFile(msgspec.Struct, frozen=True):
    """The episodes that were read, after `skipped_bytes`; `num_damaged` lines could not be read."""

    episodes: list[Episode]
    skipped_bytes: int = 0
    num_damaged: int = 0

    @property
    def stages(self) -> list[str]:
        return list(dict.fromkeys(each.stage for each in self.episodes))

    @property
    def metric_names(self) -> list[str]:
        return list(dict.fromkeys(name for each in self.episodes[-500:] for name in each.metrics))


def read_episodes(path: Path, *, most_bytes: int = MOST_BYTES) -> EpisodeFile:
    """Return the end of the file, from the first complete line on."""
    if not path.is_file():
        return EpisodeFile([])
    with open(path, "rb") as file:
        skipped = max(file.seek(0, 2) - most_bytes, 0)
        file.seek(skipped)
        data = file.read(most_bytes)
    if skipped:
        first_line, _, data = data.partition(b"\n")
        skipped += len(first_line) + 1
    whole, _, _ = data.rpartition(b"\n")  # text after the last newline is still being written
    found = [_episode(line) for line in whole.split(b"\n") if line.strip()]
    episodes = [each for each in found if each is not None]
    return EpisodeFile(episodes, skipped, len(found) - len(episodes))


_decode = msgspec.json.Decoder(dict[str, Any]).decode


def _episode(line: bytes) -> Episode | None:
    """Return the episode in a line; a value of the wrong type counts as missing."""
    try:
        found = _decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    iteration, stage, number = found.pop("iteration", None), found.pop("stage", None), found.pop("episode", None)
    reward, length, nested = found.pop("reward", None), found.pop("length", None), found.pop("metrics", None)
    found.pop("time", None)
    return Episode(
        iteration if isinstance(iteration, int) else None,
        str(stage or ""),
        number if isinstance(number, int | str) else None,
        _number(reward),
        _number(length),
        found | nested if isinstance(nested, dict) else found,
    )


def _number(value: Any) -> float | None:
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def ordered(episodes: list[Episode], order: EpisodeOrder) -> list[Episode]:
    """Return the sorted episodes; those without the value to sort by come last."""
    if order in ("newest", "oldest"):
        return episodes[::-1] if order == "newest" else episodes
    keys: dict[str, Callable[[Episode], float]] = {
        "reward_high": lambda each: -_known(each.reward, -math.inf),
        "reward_low": lambda each: _known(each.reward, math.inf),
        "longest": lambda each: -_known(each.length, -math.inf),
    }
    return sorted(episodes, key=keys[order])


def _known(value: float | None, otherwise: float) -> float:
    return otherwise if value is None or math.isnan(value) else value
