"""The checkpoints of a run on disk: `step_N/` with the state of the policy, and the model where it is to be kept.

A folder is written under another name and renamed when it is whole: what is called `step_N` can be gone on from. The
state in it says where the run was. One that is written again stands aside until the new one has its name, so a process
that is killed at any moment leaves the one or the other.

A resumed run may change most settings, and the log names them. What the saved weights and optimiser would have no
meaning with is refused; what rollouts depend on makes those of steps that are done again useless.
"""

import logging
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...files import describe_size, folder_size, read_json, sync, write_json
from ...llm.errors import ModelError, TrainingError
from .config import VERLConfig
from .config_input import flatten, shown
from .keys import LEAVES

log = logging.getLogger(__name__)

STATE = "state.json"
MODEL = "model"
PINNED = "pinned"
FORGOTTEN = "forgotten.json"
_NAME = re.compile(r"step_(\d+)")
_ASIDE = re.compile(r"\.(step_\d+)\.(new|old|gone)")
SHARE_OF_TIME = 0.05  # that checkpoints only for resuming may take


class StepFolders:
    """`keep` is how many of those with a model stay, 0 or less keeps all; None keeps the last, and the model of the
    best."""

    def __init__(self, folder: Path, *, keep: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._keep, self._clock = folder, keep, clock
        self._last_end = clock()
        self._cost_seconds = 0.0

    def is_due(self) -> bool:
        """Whether the state was last kept so long ago that keeping it again takes a small share of the time."""
        return self._clock() - self._last_end >= self._cost_seconds / SHARE_OF_TIME

    def path(self, step: int) -> Path:
        return self.folder / f"step_{step}"

    def write(self, step: int, state: dict[str, Any], save: Callable[[Path], None], *, has_model: bool) -> Path:
        """Write a folder; `save` fills it. The last one stays until the new one is whole."""
        began = self._clock()
        target = self.path(step)
        new = target.with_name(f".{target.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        try:
            new.mkdir(parents=True)
            save(new)
            write_json(new / STATE, {**state, "has_model": has_model})
            _put(new, target)
        except (OSError, TrainingError, ModelError) as error:
            shutil.rmtree(new, ignore_errors=True)
            raise TrainingError(
                f"the checkpoint of step {step} cannot be written to {str(self.folder)!r}: {error}. Earlier "
                "checkpoints are intact: free space there, then resume the run"
            ) from error
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        self._last_end = self._clock()
        self._cost_seconds = self._last_end - began
        return target

    def mend(self) -> None:
        """Remove what a process that was killed left half-written; give one that stood aside its name back."""
        for each in self.folder.glob(".step_*"):
            match = _ASIDE.fullmatch(each.name)
            if match and match[2] == "old" and not (target := self.folder / match[1]).exists():
                each.rename(target)
            elif match:
                shutil.rmtree(each, ignore_errors=True)
        for step in self.steps():
            if self.read(step).get("is_model_only"):
                self._keep_model_only(step)

    def set_aside(self, later_than: int) -> Path | None:
        """Move the folders of later steps, which are another run's, into a folder of their own; return it."""
        steps = [step for step in self.steps() if step > later_than]
        if not steps:
            return None
        number = 1
        while (place := self.folder / f"earlier_{number}").exists():
            number += 1
        place.mkdir()
        for step in steps:
            self.path(step).rename(place / self.path(step).name)
        return place

    def tidy(self, newest: int, *, best: int | None = None, after: int = 0) -> None:
        """Remove those that only the last resume would have needed, and models that are not to be kept. Models up to
        the step `after` are those of an earlier run, which only a stated number of models to keep removes."""
        others = [step for step in self.steps() if step != newest and not (self.path(step) / PINNED).exists()]
        kept = [step for step in others if self._has_model(step)]
        if self._keep is None:
            kept = [step for step in kept if step == best or step <= after]
        elif self._keep > 0:
            kept = kept[max(0, len(kept) + 1 - self._keep) :]
        for step in others:
            if step not in kept:
                self._remove(step)
            elif self._keep is None and step > after:
                self._keep_model_only(step)

    def _keep_model_only(self, step: int) -> None:
        """Remove what a run would be resumed from: that takes three times the room of the model. The state says so
        first, so that nobody resumes from what is half removed."""
        folder = self.path(step)
        state = self.read(step)
        if not state.get("is_model_only"):
            write_json(folder / STATE, state | {"is_model_only": True})
        for part in folder.iterdir():
            if part.is_dir() and part.name != MODEL:
                shutil.rmtree(part, ignore_errors=True)

    def describe(self) -> str:
        """What is kept, with its size."""
        found = []
        for step in self.steps():
            total, model = folder_size(self.path(step)), folder_size(self.path(step) / MODEL)
            parts = ([f"model {describe_size(model)}"] if model else []) + (
                [f"to resume from {describe_size(total - model)}"] if not self.read(step).get("is_model_only") else []
            )
            found.append(f"step_{step} ({', '.join(parts)})")
        return f"{self.folder}: {'; '.join(found)}"

    def pin(self, step: int) -> None:
        """Keep the folder of a step for good: somebody may come back to it."""
        (self.path(step) / PINNED).touch()

    def forget(self, keys: Sequence[str]) -> None:
        """Note that the rollouts of these keys are not to be taken again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / FORGOTTEN, {"keys": sorted({*self.forgotten(), *keys})})

    def forgotten(self) -> list[str]:
        path = self.folder / FORGOTTEN
        return list(read_json(path)["keys"]) if path.exists() else []

    def _remove(self, step: int) -> None:
        """Under another name: what is half removed is no checkpoint any more."""
        gone = self.path(step).rename(self.folder / f".step_{step}.gone")
        shutil.rmtree(gone, ignore_errors=True)

    def steps(self) -> list[int]:
        """Of the folders that are whole, in ascending order."""
        if not self.folder.is_dir():
            return []
        found = (_NAME.fullmatch(each.name) for each in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match and (self.folder / match[0] / STATE).exists())

    def read(self, step: int) -> dict[str, Any]:
        return read_state(self.path(step))

    def latest_model(self) -> Path | None:
        """The folder of the newest model that was kept."""
        steps = [step for step in self.steps() if self._has_model(step)]
        return self.path(steps[-1]) / MODEL if steps else None

    def _has_model(self, step: int) -> bool:
        return bool(self.read(step).get("has_model"))


def _put(new: Path, target: Path) -> None:
    """Give a whole folder its name."""
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    new.rename(target)
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def resumable_state(folder: Path) -> dict[str, Any]:
    """The state in a folder that a run can be resumed from."""
    found = read_state(folder)
    if found.get("is_model_only"):
        raise ConfigError(
            f"{str(folder)!r} contains only the model, since only the last checkpoint is kept complete: use "
            f"{str(folder / MODEL)!r} as the model of a new run, or set trainer.max_actor_ckpt_to_keep to keep more"
        )
    return found


def read_state(folder: Path) -> dict[str, Any]:
    """Where the run was that wrote this folder."""
    if not (folder / STATE).exists():
        beside = StepFolders(folder.parent).steps()
        raise ConfigError(
            f"there is no checkpoint in {str(folder)!r}: the folder above it has those of the steps "
            f"{', '.join(map(str, beside)) or '(none)'}"
        )
    found: dict[str, Any] = read_json(folder / STATE)
    return found


# -- settings that differ from those of the run that is resumed ---------------------------------------


_MODEL = "actor_rollout_ref.model"
_FIXED = ("trainable", "lora_rank", "lora_alpha", "target_modules")
_SILENT = (
    "trainer.logger",
    "trainer.default_local_dir",
    "trainer.resume_mode",
    "trainer.resume_from_path",
    "trainer.max_actor_ckpt_to_keep",
    "trainer.preflight",
)
_HARMLESS = ("trainer.test_freq", "trainer.save_freq", "trainer.val_", "trainer.stop_when_diverged")
_COUNTS = ("the number of tasks", "the number of validation tasks")


@dataclass(frozen=True, slots=True)
class Change:
    """One setting, as it was and as it is."""

    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name} was {shown(self.before)} and is {shown(self.now)}"

    @property
    def is_of_rollouts(self) -> bool:
        """Whether other rollouts may come of it: other tasks, other tokens, or the same from other weights."""
        return not self.name.startswith(_HARMLESS)


def settings_of(config: VERLConfig, *, num_tasks: int, num_val_tasks: int) -> dict[str, Any]:
    """What is kept with a checkpoint to compare with: every setting by its full name."""
    counts = dict(zip(_COUNTS, (num_tasks, num_val_tasks), strict=True))
    return flatten(config.as_dict(), leaves=LEAVES) | counts


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """What differs. A ConfigError names what must not."""
    has_critic = "gae" in (before.get("algorithm.adv_estimator"), now.get("algorithm.adv_estimator"))
    found = [Change(name, before[name], value) for name, value in now.items() if before.get(name, value) != value]
    for change in found:
        _refuse(change, has_critic=has_critic)
    silent = _SILENT if has_critic else (*_SILENT, "critic.")
    return [each for each in found if not each.name.startswith(silent)]


def _refuse(change: Change, *, has_critic: bool) -> None:
    if change.name == "algorithm.adv_estimator" and change.now == "gae":
        raise ConfigError(
            f"{change}, but the run being resumed has no critic: use {change.before!r} again, or start a new run"
        )
    sections = (_MODEL, "critic.model") if has_critic else (_MODEL,)
    if any(change.name == f"{section}.{name}" for section in sections for name in _FIXED):
        raise ConfigError(
            f"{change}, but the weights of the run being resumed belong to the former: use it again, or start a "
            f"new run with the trained model as {_MODEL}.path"
        )
