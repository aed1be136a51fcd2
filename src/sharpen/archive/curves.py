"""Metrics over iterations and over time, from `metrics.jsonl`; whole, or as it grows."""

import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

Axis: TypeAlias = Literal["iteration", "seconds"]
NOT_METRICS = frozenset(("step", "time"))
_NO_ITERATION = frozenset(("config", "text", "status"))
_READ_BYTES = 8_000_000
_MARK_BYTES = 64
_decoder = msgspec.json.Decoder(dict[str, Any])
# What a decoder raises: for damaged text, and for what is nested too deep.
NOT_JSON = (msgspec.MsgspecError, RecursionError)


class Series(msgspec.Struct):
    """One metric. Lists are of one length and in the order of their steps."""

    axis: Axis = "iteration"
    """What `steps` counts: iterations, or the seconds since the first line."""
    steps: list[float] = []
    times: list[float] = []
    """Seconds since 1970."""
    values: list[float] = []

    def add(self, step: float, time: float, value: float) -> None:
        """A step that comes again, as after a resume, takes the place of the earlier one and of what followed it."""
        while self.steps and self.steps[-1] >= step:
            for each in (self.steps, self.times, self.values):
                each.pop()
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value)

    def thinned(self, max_points: int) -> "Series":
        """At most so many points, with the first, the last, and the least and greatest of every stretch."""
        if len(self.values) <= max_points:
            return self
        kept = _extremes(self.values, max_points)
        lists = [[each[index] for index in kept] for each in (self.steps, self.times, self.values)]
        return Series(self.axis, *lists)


def read_curves(path: Path, names: Collection[str] | None = None, *, max_points: int = 2000) -> dict[str, Series]:
    """The metrics of a run by name, or those that are named. A file that is not there has none.

    Where a name is reported per iteration, what progress says under the same name (a mean over the whole run) is left
    out. Values that are not finite, and damaged lines, are skipped.
    """
    wanted = None if names is None else tuple(names)
    by_axis: dict[Axis, dict[str, Series]] = {"iteration": {}, "seconds": {}}
    start: float | None = None
    for line in _lines_of(path):
        time = as_number(line.get("time"))
        start = time if start is None else start
        axis: Axis = "iteration" if "step" in line else "seconds"
        step = as_number(line["step"]) if "step" in line else None if time is None or start is None else time - start
        if step is None or line.keys() & _NO_ITERATION:
            continue
        _add_line(by_axis[axis], axis, line, step, step if time is None else time, wanted)
    found = by_axis["seconds"] | by_axis["iteration"]
    return {name: series.thinned(max_points) for name, series in found.items()}


class MetricsTail:
    """What is new in a file of metrics since the last look. One that was cut or written anew is read from its start."""

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        self.path = path
        self.restarts = 0
        """How often the file was found cut or written anew; what was read before then no longer counts."""
        self._offset, self._mark = 0, b""
        if at_end:
            self.new_lines()

    def new_lines(self) -> list[dict[str, Any]]:
        """The whole lines that have come; those that are no metrics, such as settings, too."""
        try:
            with open(self.path, "rb") as file:
                data = self._new_bytes(file.fileno())
        except FileNotFoundError:
            self._forget()
            return []
        return [line for line in map(decode_line, data.split(b"\n")) if line is not None]

    def _new_bytes(self, handle: int) -> bytes:
        """To the last line end. The bytes before what is new tell whether it is still the same file."""
        if os.pread(handle, len(self._mark), self._offset - len(self._mark)) != self._mark:
            self._forget()
        chunks = []
        while data := os.pread(handle, _READ_BYTES, self._offset):
            whole = data[: data.rfind(b"\n") + 1]
            if not whole:
                break
            chunks.append(whole)
            self._offset += len(whole)
            self._mark = (self._mark + whole)[-_MARK_BYTES:]
        return b"".join(chunks)

    def _forget(self) -> None:
        if self._offset:
            self.restarts += 1
        self._offset, self._mark = 0, b""


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None where a crash cut it off."""
    try:
        return _decoder.decode(line)
    except NOT_JSON:
        return None


def as_number(value: Any) -> float | None:
    """A number in a line; the strings `nan`, `inf` and `-inf` are numbers that JSON lacks."""
    if isinstance(value, bool):
        return None
    if not isinstance(value, int | float) and value not in ("nan", "inf", "-inf"):
        return None
    try:
        return float(value)
    except OverflowError:
        return None  # hundreds of digits measure nothing


def metrics_in(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of a line, less its place; none of a line of settings, text or end."""
    if line.keys() & _NO_ITERATION:
        return {}
    found = {name: as_number(value) for name, value in line.items() if name not in NOT_METRICS}
    return {name: value for name, value in found.items() if value is not None}


def _lines_of(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with open(path, "rb") as file:
        for line in file:
            found = decode_line(line) if line.endswith(b"\n") else None
            if found is not None:
                yield found


def _add_line(
    found: dict[str, Series],
    axis: Axis,
    line: dict[str, Any],
    step: float,
    time: float,
    wanted: tuple[str, ...] | None,
) -> None:
    for name in line if wanted is None else wanted:
        if name not in line or name in NOT_METRICS or (axis == "seconds" and name == "seconds"):
            continue
        value = as_number(line[name])
        if value is not None and math.isfinite(value):
            if name not in found:
                found[name] = Series(axis, [], [], [])
            found[name].add(step, time, value)


def _extremes(values: list[float], max_points: int) -> list[int]:
    """The places of the first and the last value, and of the least and the greatest of every stretch between."""
    count, stretches = len(values), max((max_points - 2) // 2, 1)
    kept = {0, count - 1}
    for number in range(stretches):
        places = range(number * count // stretches, (number + 1) * count // stretches)
        kept |= {min(places, key=values.__getitem__), max(places, key=values.__getitem__)}
    return sorted(kept)


_MAIN = (
    "val/reward_mean",
    "val/reward",
    "val/loss",
    "train/reward_mean",
    "train/reward",
    "run/val/reward_mean",
    "run/train/reward_mean",
    "run/reward_mean",
    "reward_mean",
    "reward",
    "train/loss",
    "loss",
    "train/entropy",
    "train/kl",
    "rollouts",
    "failed",
    "lost",
    "rollouts_per_second",
    "llm/calls",
    "llm/input_tokens",
    "llm/output_tokens",
    "llm/cost",
    "llm/unpriced",
)


# A mean over the whole run is shown only where none of these, which say more, is there.
_INSTEAD = {
    "run/val/reward_mean": {"val/reward_mean"},
    "run/train/reward_mean": {"train/reward_mean"},
    "run/reward_mean": {"val/reward_mean", "train/reward_mean", "run/val/reward_mean", "run/train/reward_mean"},
    "reward_mean": {"val/reward_mean", "train/reward_mean", "run/reward_mean"},
}


def main_metrics(names: Collection[str]) -> list[str]:
    """Those that people ask for first, in that order; of unknown ones the first few, so that there are some."""
    intervals = [name for name in names if name.startswith("val/") and {f"{name}_low", f"{name}_high"} <= set(names)]
    order = [_MAIN[0], *sorted(intervals), *_MAIN[1:]]  # a mean of a group of validation tasks has an interval
    known = [name for name in order if name in names and not _INSTEAD.get(name, set()).intersection(names)]
    return known or sorted(names)[:8]


def is_loss(name: str) -> bool:
    """Whether less is better."""
    return name.endswith("loss")
