"""Fine-tuning of language models: trainers, data sets, rewards, evaluation, and a tool for agents that train.

Names are loaded when they are first used: importing this package loads neither torch nor any data.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .datasets import (
        GSM8KDataset as GSM8KDataset,
        create_math_dataset as create_math_dataset,
        create_rl_dataset as create_rl_dataset,
        create_sft_dataset as create_sft_dataset,
        format_math_dataset as format_math_dataset,
        preview_dataset as preview_dataset,
    )
    from .errors import (
        DatasetError as DatasetError,
        ModelError as ModelError,
        RewardError as RewardError,
        RewardTimeoutError as RewardTimeoutError,
        RowError as RowError,
        TrainingError as TrainingError,
    )
    from .evaluation import evaluate as evaluate, evaluate_model as evaluate_model
    from .generation import generate_completions as generate_completions
    from .models.gguf import demo_model as demo_model
    from .models.gguf_export import export_gguf as export_gguf
    from .models.loading import LoadedModel as LoadedModel, load_model as load_model
    from .models.lora import create_lora_config as create_lora_config, merge_adapter as merge_adapter
    from .rewards import (
        MathRewardFunction as MathRewardFunction,
        create_accuracy_reward as create_accuracy_reward,
        create_length_penalty_reward as create_length_penalty_reward,
        create_step_reward as create_step_reward,
        evaluate_rewards as evaluate_rewards,
    )
    from .tools import RLTrainingTool as RLTrainingTool
    from .trainers import (
        DPOTrainerWrapper as DPOTrainerWrapper,
        GRPOTrainerWrapper as GRPOTrainerWrapper,
        SFTTrainerWrapper as SFTTrainerWrapper,
        TrainingConfig as TrainingConfig,
    )

_MODULES = {
    ".datasets": (
        "GSM8KDataset",
        "create_math_dataset",
        "create_rl_dataset",
        "create_sft_dataset",
        "format_math_dataset",
        "preview_dataset",
    ),
    ".errors": ("DatasetError", "ModelError", "RewardError", "RewardTimeoutError", "RowError", "TrainingError"),
    ".evaluation": ("evaluate", "evaluate_model"),
    ".generation": ("generate_completions",),
    ".models.gguf": ("demo_model",),
    ".models.gguf_export": ("export_gguf",),
    ".models.loading": ("LoadedModel", "load_model"),
    ".models.lora": ("create_lora_config", "merge_adapter"),
    ".rewards": (
        "MathRewardFunction",
        "create_accuracy_reward",
        "create_length_penalty_reward",
        "create_step_reward",
        "evaluate_rewards",
    ),
    ".tools": ("RLTrainingTool",),
    ".trainers": ("DPOTrainerWrapper", "GRPOTrainerWrapper", "SFTTrainerWrapper", "TrainingConfig"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [*_MODULE_OF]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_MODULE_OF[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
