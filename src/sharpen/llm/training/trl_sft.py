"""TRL's trainer of SFT, watched and resumable. Apart, since the others take a second to load."""

from trl.trainer.sft_trainer import SFTTrainer

from .trl_trainers import Resumable


class SFT(Resumable, SFTTrainer):
    """Supervised fine-tuning."""
