"""Read metrics over iterations and over time from `metrics.jsonl`: the whole file, or what is appended to it.

Damaged lines, and the last one until its newline is written, are skipped.
"""

import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

Axis: TypeAlias = Literal["iteration", "seconds"]
_NOT_METRICS = frozenset(("step", "time"))
_NOT_NUMBERS = frozenset(("config", "text", "status"))
_READ_BYTES = 8_000_000
_MARK_BYTES = 64
_decoder = msgspec.json.Decoder(dict[str, Any])
# What a decoder raises: for damaged text, and for too deep nesting.
_NOT_JSON = (msgspec.MsgspecError, RecursionError)


class Series(msgspec.Struct):
    """One metric. The lists have one length and are in the order of their steps."""

    axis: Axis = "iteration"
    """What `steps` counts: iterations, or the seconds since the first line."""
    steps: list[float] = []
    times: list[float] = []
    """Seconds since 1970."""
    values: list[float] = []

    def add(self, step: float, time: float, value: float) -> None:
        """Append a point. A repeated step, as after a resume, replaces the earlier one and everything after it."""
        while self.steps and self.steps[-1] >= step:
            for each in (self.steps, self.times, self.values):
                each.pop()
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value)

    def thinned(self, max_points: int) -> "Series":
        """Return at most `max_points` points: the first, the last, and the lowest and highest of every interval."""
        if len(self.values) <= max_points:
            return self
        kept = _extremes(self.values, max_points)
        lists = [[each[index] for index in kept] for each in (self.steps, self.times, self.values)]
        return Series(self.axis, *lists)


def read_curves(path: Path, names: Collection[str] | None = None, *, max_points: int = 2000) -> dict[str, Series]:
    """Return the metrics of a run by name, or only the named ones; none if there is no file.

    If a name is reported per iteration, the progress value of the same name (a mean over the whole run) is left out.
    Values that are not finite are skipped.
    """
    wanted = None if names is None else tuple(names)
    by_axis: dict[Axis, dict[str, Series]] = {"iteration": {}, "seconds": {}}
    start: float | None = None
    for line in _lines_of(path):
        time = as_number(line.get("time"))
        start = time if start is None else start
        axis: Axis = "iteration" if "step" in line else "seconds"
        step = as_number(line["step"]) if "step" in line else None if time is None or start is None else time - start
        if step is None or line.keys() & _NOT_NUMBERS:
            continue
        _add_line(by_axis[axis], axis, line, step, step if time is None else time, wanted)
    found = by_axis["seconds"] | by_axis["iteration"]
    return {name: series.thinned(max_points) for name, series in found.items()}


class MetricsTail:
    """New lines of a metrics file since the last call. A truncated or replaced file is read from its start."""

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        self.path = path
        self.restarts = 0
        """How often the file was found truncated or replaced; lines read before that no longer count."""
        self._offset, self._mark = 0, b""
        if at_end:
            self.new_lines()

    def new_lines(self) -> list[dict[str, Any]]:
        """Return the complete new lines, including those that are not metrics, such as settings."""
        try:
            with open(self.path, "rb") as file:
                data = self._new_bytes(file.fileno())
        except FileNotFoundError:
            self._forget()
            return []
        return [line for line in map(decode_line, data.split(b"\n")) if line is not None]

    def _new_bytes(self, handle: int) -> bytes:
        """Read to the last newline. The bytes before the new ones show whether it is still the same file."""
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
    """Return the object in a line; None if a crash cut it off."""
    try:
        return _decoder.decode(line)
    except _NOT_JSON:
        return None


def as_number(value: Any) -> float | None:
    """Return a value as a number, or None; `nan`, `inf` and `-inf` are strings, as JSON lacks them."""
    if isinstance(value, bool):
        return None
    if not isinstance(value, int | float) and value not in ("nan", "inf", "-inf"):
        return None
    try:
        return float(value)
    except OverflowError:
        return None  # an integer of hundreds of digits


def metrics_in(line: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a line; none if it holds settings, a text or the final status."""
    if line.keys() & _NOT_NUMBERS:
        return {}
    found = {name: as_number(value) for name, value in line.items() if name not in _NOT_METRICS}
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
        if name not in line or name in _NOT_METRICS or (axis == "seconds" and name == "seconds"):
            continue
        value = as_number(line[name])
        if value is not None and math.isfinite(value):
            if name not in found:
                found[name] = Series(axis, [], [], [])
            found[name].add(step, time, value)


def _extremes(values: list[float], max_points: int) -> list[int]:
    """Return the indices of the first and the last value, and of the lowest and highest of every interval between."""
    count, intervals = len(values), max((max_points - 2) // 2, 1)
    kept = {0, count - 1}
    for number in range(intervals):
        indices = range(number * count // intervals, (number + 1) * count // intervals)
        kept |= {min(indices, key=values.__getitem__), max(indices, key=values.__getitem__)}
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
# A mean over the whole run is shown only if none of these, which say more, is known.
_INSTEAD = {
    "run/val/reward_mean": {"val/reward_mean"},
    "run/train/reward_mean": {"train/reward_mean"},
    "run/reward_mean": {"val/reward_mean", "train/reward_mean", "run/val/reward_mean", "run/train/reward_mean"},
    "reward_mean": {"val/reward_mean", "train/reward_mean", "run/reward_mean"},
}


def main_metrics(names: Collection[str]) -> list[str]:
    """Return the metrics to show first, in that order; if none is known, the first few names."""
    intervals = [name for name in names if name.startswith("val/") and {f"{name}_low", f"{name}_high"} <= set(names)]
    order = [_MAIN[0], *sorted(intervals), *_MAIN[1:]]  # a mean of a group of validation tasks has an interval
    known = [name for name in order if name in names and not _INSTEAD.get(name, set()).intersection(names)]
    return known or sorted(names)[:8]


def is_loss(name: str) -> bool:
    """Return whether lower is better."""
    return name.endswith("loss")
