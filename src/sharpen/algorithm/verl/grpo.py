"""`GRPO`: the same training for those who do not know verl."""

import os
from typing import Any

from ...types import TaskT
from .grpo_options import OPTIONS, grpo_config
from .verl import VERL


class GRPO(VERL[TaskT]):
    """Trains the model behind an agent: each task is tried `group_size` times, and what did better than the others of
    its group becomes likelier.

    `model` is a name on the hub, a folder, an adapter or a GGUF file. The options are those of `grpo_config`; what it
    lacks is given as `config`, with verl's keys.
    """

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(grpo_config(os.fspath(model), **options))

    def spelled(self, key: str) -> str:
        return next((f"{option}=" for option, own in OPTIONS.items() if own == key), super().spelled(key))
