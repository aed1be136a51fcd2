"""Settings that differ from those of the run that is gone on with. No torch.

Most may change: the run goes on with the new ones, and the log says which. What the kept weights and optimiser would
have no meaning with is refused. What rollouts depend on makes those of steps that are done again useless.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError
from .config import VERLConfig
from .given import flatten
from .keys import LEAVES
from .values import shown

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
