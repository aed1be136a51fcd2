"""The two state machines, as tables that every store obeys.

Invariants:
- succeeded, failed and cancelled are final for a rollout; succeeded, failed and timeout for an attempt;
- a rollout waits in the queue exactly while its status is queuing or requeuing;
- only the latest attempt moves its rollout;
- an unresponsive attempt is suspended, not ended: until its rollout is claimed again or ends, it may come back.

`python -m sharpen.store.transitions` prints both machines as Mermaid diagrams for the documentation.
"""

import sys
from collections.abc import Iterable
from typing import Final

from ..errors import FinishedError
from ..types import AttemptStatus, RolloutConfig, RolloutStatus

QUEUED: Final[frozenset[RolloutStatus]] = frozenset({"queuing", "requeuing"})
FINISHED: Final[frozenset[RolloutStatus]] = frozenset({"succeeded", "failed", "cancelled"})
OPEN: Final[frozenset[AttemptStatus]] = frozenset({"preparing", "running"})
ENDED: Final[frozenset[AttemptStatus]] = frozenset({"succeeded", "failed", "timeout"})

# Where a rollout is, whatever its exact status; pages by status come in this order.
PHASES: Final[dict[str, str]] = {
    "queuing": "queued",
    "requeuing": "queued",
    "preparing": "active",
    "running": "active",
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
}


def phases_of(statuses: Iterable[str], *, reverse: bool = False) -> list[str]:
    """The phases that these statuses stand in, each once, in order."""
    wanted = {PHASES[status] for status in statuses}
    ordered = [phase for phase in dict.fromkeys(PHASES.values()) if phase in wanted]
    return ordered[::-1] if reverse else ordered


Moves = dict[str, dict[str, str]]

# What happens by itself, and why. A user may also move an unfinished rollout to any status by hand.
ROLLOUT_MOVES: Final[Moves] = {
    "queuing": {"preparing": "claimed", "cancelled": "cancelled"},
    "requeuing": {
        "preparing": "claimed",
        "running": "its attempt came back",
        "succeeded": "its attempt came back",
        "failed": "its attempt came back",
        "cancelled": "cancelled",
    },
    "preparing": {
        "running": "first span",
        "preparing": "new attempt",
        "succeeded": "attempt succeeded",
        "requeuing": "attempt lost, tries left",
        "failed": "attempt lost, no tries left",
        "cancelled": "cancelled",
    },
    "running": {
        "running": "attempt goes on",
        "preparing": "new attempt",
        "succeeded": "attempt succeeded",
        "requeuing": "attempt lost, tries left",
        "failed": "attempt lost, no tries left",
        "cancelled": "cancelled",
    },
    "succeeded": {},
    "failed": {},
    "cancelled": {},
}

ATTEMPT_MOVES: Final[Moves] = {
    "preparing": {
        "running": "first span",
        "succeeded": "done",
        "failed": "error, or requeued",
        "timeout": "took too long",
        "unresponsive": "lease ran out",
    },
    "running": {
        "preparing": "starts again",
        "succeeded": "done",
        "failed": "error, or requeued",
        "timeout": "took too long",
        "unresponsive": "lease ran out",
    },
    "unresponsive": {
        "preparing": "came back",
        "running": "came back",
        "succeeded": "came back, done",
        "failed": "came back, error",
        "timeout": "took too long",
    },
    "succeeded": {},
    "failed": {},
    "timeout": {},
}


def check_rollout_move(rollout_id: str, old: RolloutStatus, new: RolloutStatus, *, by_hand: bool = False) -> None:
    """Refuse a move that the table does not have; `by_hand` allows any move of an unfinished rollout."""
    if old in FINISHED:
        raise FinishedError(f"rollout {rollout_id!r} has finished ({old}): its status cannot change to {new}")
    if not by_hand and new not in ROLLOUT_MOVES[old]:
        raise FinishedError(
            f"rollout {rollout_id!r} is {old}: its status cannot change to {new} without update_rollout"
        )


def may_attempt_become(old: AttemptStatus, new: AttemptStatus) -> bool:
    """Whether the table has this move; an ended attempt has none."""
    return new in ATTEMPT_MOVES[old]


def is_retried(config: RolloutConfig, attempt_status: AttemptStatus, attempts: int) -> bool:
    """Whether a rollout is tried again whose latest attempt was lost like this; `attempts` counts towards the most."""
    return attempt_status in config.retry_condition and attempts < config.max_attempts


def rollout_status_after(config: RolloutConfig, attempt_status: AttemptStatus, attempts: int) -> RolloutStatus:
    """Where the latest attempt's status moves the rollout."""
    if attempt_status in ("preparing", "running", "succeeded"):
        return attempt_status
    return "requeuing" if is_retried(config, attempt_status, attempts) else "failed"


def draw(moves: Moves) -> str:
    """The machine as a Mermaid state diagram."""
    first, lines = next(iter(moves)), ["stateDiagram-v2"]
    lines.append(f"    [*] --> {first}")
    for old, targets in moves.items():
        lines += [f"    {old} --> {new}: {reason}" for new, reason in targets.items()]
        if not targets:
            lines.append(f"    {old} --> [*]")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(f"```mermaid\n{draw(ROLLOUT_MOVES)}\n```\n\n```mermaid\n{draw(ATTEMPT_MOVES)}\n```\n")
