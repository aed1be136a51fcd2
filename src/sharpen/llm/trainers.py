"""The trainers, at the path that users of HelloAgents know."""

from .models.lora import create_lora_config
from .training.config import TrainingConfig
from .training.dpo import DPOTrainerWrapper
from .training.grpo import GRPOTrainerWrapper
from .training.sft import SFTTrainerWrapper

__all__ = ["DPOTrainerWrapper", "GRPOTrainerWrapper", "SFTTrainerWrapper", "TrainingConfig", "create_lora_config"]
