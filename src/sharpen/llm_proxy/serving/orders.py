"""What can be asked of a running gateway, and its answer. Both travel as JSON lines where it is another process."""

from typing import Any

import msgspec

from ..budgets.budget import Totals


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """Let no new call through."""


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Let calls through again."""


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Wait until no call is under way, or the time is over."""

    timeout: float | None = None


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Tell how things stand."""


class SetModels(msgspec.Struct, frozen=True, tag="set_models"):
    """Take another list of models for the next call."""

    model_list: list[dict[str, Any]]

    def __repr__(self) -> str:
        return f"SetModels({len(self.model_list)} models)"  # the entries hold keys


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End in order."""


Order = Pause | Resume | Drain | Look | SetModels | Stop


class Answer(msgspec.Struct, frozen=True):
    """How things stood once the order was carried out."""

    in_flight: int
    totals: Totals
    waiting: int = 0
    """Calls that are held back while it is paused."""
