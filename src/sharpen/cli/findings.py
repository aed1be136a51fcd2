"""The result of one check of `sharpen doctor`."""

from typing import Literal

import msgspec

State = Literal["ok", "note", "broken"]


class Finding(msgspec.Struct, frozen=True):
    """`broken` means that Sharpen cannot work, `note` is for information."""

    name: str
    state: State
    text: str
    advice: str | None = None
