"""TRL's trainer of DPO, watched and resumable. Apart, since the others take a second to load."""

from trl.trainer.dpo_trainer import DPOTrainer

from .trl_trainers import Resumable


class DPO(Resumable, DPOTrainer):
    """Direct preference optimisation."""
