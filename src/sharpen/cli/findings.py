"""One thing that `sharpen doctor` looked at."""

from typing import Literal

import msgspec

State = Literal["ok", "note", "broken"]


class Finding(msgspec.Struct, frozen=True):
    """`broken` is for what Sharpen cannot work without, `note` for what somebody may want to know."""

    name: str
    state: State
    text: str
    advice: str | None = None
