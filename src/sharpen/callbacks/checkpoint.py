"""`Checkpoint`: saves what is needed to continue a run as if nothing had happened; the state of random generators.

The order of steps makes it safe to kill the process at any moment: the new file is complete before the link to the
latest one moves to it, and older files are removed only after that.
"""

import logging
import math
import os
import random
import shutil
import string
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ..checkpoints import save_state
from ..checks import check_choice, check_ints, check_number
from ..errors import ConfigError
from ..files import remove_leftovers, replacing
from .base import Callback, Loop, State, Trained, has_validations
from .early_stopping import Mode

log = logging.getLogger(__name__)

LATEST = "latest.pth"


@dataclass(frozen=True)
class Saved:
    """One checkpoint that was written."""

    iter: int
    name: str
    score: float | None
    """What `keep_best` compares; None if the iteration lacked it."""


class Checkpoint(Callback):
    """Saves the state of the loop every `every_n_iters` iterations, every `time_interval` seconds, and at the end.

    Args:
        dirpath: The folder of the files.
        filename: The name of a file, which may use `iter`, `time` and any metric: `"{iter:03d}-{val/reward:.2f}.pth"`.
        save_latest: Whether `latest.pth` is a link to the newest file, a copy of it, or not written (None).
        every_n_iters: Save after this many iterations.
        time_interval: Save after this many seconds, at the end of an iteration.
        save_on_fit_end: Whether to save at the end.
        keep_last: Keep this many of the newest files. The newest is always kept.
        keep_best: Keep this many of the best files, in addition to those of `keep_last`.
        monitor: The metric that `keep_best` compares.
        mode: Whether a larger (`max`) or a smaller (`min`) value of `monitor` is better.
        clock: The time in seconds.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str],
        filename: str = "{iter:03d}.pth",
        save_latest: Literal["link", "copy"] | None = "link",
        every_n_iters: int | None = None,
        time_interval: float | None = None,
        save_on_fit_end: bool = True,
        *,
        keep_last: int | None = None,
        keep_best: int | None = None,
        monitor: str = "val/reward",
        mode: Mode = "max",
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_choice("mode", mode, get_args(Mode))
        check_ints(every_n_iters=every_n_iters, keep_last=keep_last, keep_best=keep_best)
        check_number("time_interval", time_interval, above=0, optional=True, unit="seconds")
        check_choice("save_latest", save_latest, ("link", "copy"), optional=True)
        if filename == LATEST and save_latest:
            raise ConfigError(f"filename is {filename!r}, the name of the link to the latest one: use another")
        self.dirpath = Path(dirpath)
        self.save_latest = save_latest
        self.every_n_iters = every_n_iters
        self.time_interval = time_interval
        self.save_on_fit_end = save_on_fit_end
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.monitor = monitor
        self.mode = mode
        self.saved: list[Saved] = []
        self._names = _FileNames(filename)
        self._clock = clock
        self._last_time = clock()
        self._last_iter: int | None = None

    @property
    def last_path(self) -> Path | None:
        """The path of the newest checkpoint."""
        return self.dirpath / self.saved[-1].name if self.saved else None

    @property
    def best_path(self) -> Path | None:
        """The path of the checkpoint with the best `monitor`."""
        best = self._best(1)
        return self.dirpath / best[0].name if best else None

    # -- when ----------------------------------------------------------------------------------------

    def on_fit_start(self, loop: Loop, trained: Trained) -> None:
        self.dirpath.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.dirpath)
        self._last_time, self._last_iter = self._clock(), None
        if self.keep_best is not None and self.monitor.startswith("val/") and not has_validations(loop):
            log.warning(
                "keep_best compares %r, but there will be no validation: set val_every_n_iters, or another monitor",
                self.monitor,
            )

    def on_iter_end(self, loop: Loop, trained: Trained) -> None:
        is_turn = self.every_n_iters is not None and loop.current_iter % self.every_n_iters == 0
        is_time = self.time_interval is not None and self._clock() - self._last_time >= self.time_interval
        if is_turn or is_time:
            self.save(loop)

    def on_fit_end(self, loop: Loop, trained: Trained) -> None:
        if self.save_on_fit_end and loop.current_iter != self._last_iter:
            self.save(loop)

    # -- how -----------------------------------------------------------------------------------------

    def save(self, loop: Loop) -> Path:
        """Write a checkpoint now."""
        now = self._clock()
        name = self._names.name(iteration=loop.current_iter, metrics=loop.metrics, now=now)
        before = self.saved, self._last_iter
        # The file lists itself, so that a resumed run knows it.
        entry = Saved(loop.current_iter, name, loop.metrics.get(self.monitor))
        self.saved = [*(each for each in self.saved if each.name != name), entry]
        self._last_iter, self._last_time = loop.current_iter, now
        path = self.dirpath / name
        try:
            save_state(path, loop.state_dict())
        except BaseException:
            self.saved, self._last_iter = before
            raise
        self._point_to(path)
        self._remove_old()
        return path

    def _point_to(self, path: Path) -> None:
        if self.save_latest is None:
            return
        with replacing(self.dirpath / LATEST) as temporary:
            if self.save_latest == "copy":
                shutil.copyfile(path, temporary)
            else:
                temporary.symlink_to(path.name)  # relative to the link: the folder may be moved

    def _remove_old(self) -> None:
        if self.keep_last is None and self.keep_best is None:
            return
        kept = [*self.saved[-(self.keep_last or 1) :], *self._best(self.keep_best or 0)]
        for each in self.saved:
            if each not in kept:
                (self.dirpath / each.name).unlink(missing_ok=True)
        self.saved = [each for each in self.saved if each in kept]

    def _best(self, count: int) -> list[Saved]:
        sign = -1.0 if self.mode == "max" else 1.0
        scored = [
            (sign * each.score, -each.iter, each)
            for each in self.saved
            if each.score is not None and not math.isnan(each.score)
        ]
        return [each for *_, each in sorted(scored, key=lambda item: item[:2])[:count]]

    def state_dict(self) -> State:
        return {"saved": [asdict(each) for each in self.saved], "last_iter": self._last_iter}

    def load_state_dict(self, state_dict: State, /) -> None:
        self.saved = [Saved(**each) for each in state_dict["saved"]]
        self._last_iter = state_dict["last_iter"]


class _FileNames:
    """A template such as `{iter:03d}-{val/reward:.2f}.pth`. A metric that an iteration lacks is `nan` in it."""

    def __init__(self, template: str) -> None:
        self._template = template
        self._warned: set[str] = set()
        try:
            parts = list(string.Formatter().parse(template))
            self._fields = [field for _, field, _, _ in parts if field is not None]
            example = self.name(iteration=0, metrics=dict.fromkeys(self._fields, math.nan), now=0.0)
        except (ValueError, TypeError, LookupError) as error:
            raise ConfigError(f"filename is {template!r}, which is not a valid template: {error}") from error
        if any("/" in literal for literal, *_ in parts) or example in ("", ".", ".."):
            raise ConfigError(f"filename is {template!r}: use the name of a file, without a folder")

    def name(self, *, iteration: int, metrics: Mapping[str, float], now: float) -> str:
        stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(now))
        values = {**metrics, "iter": iteration, "time": stamp}
        for field in self._fields:
            if field not in values:
                self._warn(field, metrics)
                values[field] = math.nan
        return _MetricFormatter().vformat(self._template, (), values)

    def _warn(self, field: str, metrics: Mapping[str, float]) -> None:
        if field not in self._warned:
            self._warned.add(field)
            known = ", ".join(["iter", "time", *sorted(metrics)])
            log.warning("the checkpoint filename uses %r, which this iteration does not have; known: %s", field, known)


class _MetricFormatter(string.Formatter):
    """Looks up a whole field, as the name of a metric may contain slashes and dots."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs[field_name], field_name


# -- random generators -------------------------------------------------------------------------------
# The shared ones: Python's, NumPy's global one, torch's. Those of packages that are not imported are skipped, and a
# separate generator is part of its owner's state.


def rng_state() -> State:
    """Return the state of the shared random generators, as a tree for `save_state`."""
    state: State = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state(legacy=False)
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["torch_cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_rng(state: Mapping[str, Any]) -> None:
    """Continue with the random numbers that would have followed `rng_state`."""
    random.setstate(state["python"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
    if "torch" in state:
        import torch

        torch.set_rng_state(state["torch"])
        if "torch_cuda" in state and torch.cuda.is_available():
            # On a machine with fewer devices, those that it has are restored.
            for device, each in enumerate(state["torch_cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(each, device)
