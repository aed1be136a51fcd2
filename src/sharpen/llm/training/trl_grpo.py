"""TRL's trainer of GRPO, watched and resumable. Apart, since the others take a second to load."""

from typing import Any

from trl.trainer.grpo_trainer import GRPOTrainer

from .trl_trainers import Resumable


class GRPO(Resumable, GRPOTrainer):
    """Group relative policy optimisation."""

    def __init__(self: Any, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # The reference is the model as training begins, whatever folder, adapter or file it came from.
        if self.ref_model is not None:
            self.ref_model.load_state_dict(self.model.state_dict())
