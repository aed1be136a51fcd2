"""The processes that train one model together, as `accelerate launch` or `torchrun` started them. No torch.

Each has a whole copy of the model and its share of every batch. The first one alone writes: files, metrics, callbacks.
"""

import os
from dataclasses import dataclass

from ...errors import ConfigError

_DIVIDING = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "its parallelism config",
}


@dataclass(frozen=True, slots=True)
class Processes:
    """How many there are, and which one this is; `place` counts those of this machine."""

    count: int = 1
    rank: int = 0
    place: int = 0

    @property
    def are_several(self) -> bool:
        return self.count > 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def device(self, chosen: str) -> str:
        """Return the device of the chosen kind that belongs to this process."""
        return f"{chosen}:{self.place}" if self.are_several and chosen == "cuda" else chosen


def processes() -> Processes:
    """Return the processes that the environment names."""
    count, rank, place = (_number(name, other) for name, other in _NAMES)
    return Processes(count, rank, place) if count > 1 else Processes()


def check_launch() -> None:
    """Refuse a launcher that would shard the weights: a part of them would be saved."""
    for name, what in _DIVIDING.items():
        if os.environ.get(name, "false").lower() in {"true", "1", "yes"}:
            raise ConfigError(
                f"{name} is set, so accelerate would shard the model with {what}, which these wrappers cannot save: "
                "launch with --multi_gpu alone (a full copy in each process), set use_lora=True, or train with VERL "
                "and actor_rollout_ref.actor.strategy=fsdp"
            )


_NAMES = (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0))


def _number(name: str, other: int) -> int:
    given = os.environ.get(name) or str(other)
    if not given.isdecimal():
        raise ConfigError(
            f"the environment variable {name} is {given!r}, but launchers set it to an integer: fix or unset it"
        )
    return int(given)
