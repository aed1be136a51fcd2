"""The models in the folder of a run: `checkpoints/step_N/model` of training agents, and of fine-tuning `model`,
or the folder itself, and `checkpoint-N` in it."""

import re
from pathlib import Path

from .best_step import Choice, numbered
from .catalog import RunEntry

_STEP = re.compile(r"step_(\d+)")
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_WEIGHTS = ("*.safetensors", "*.gguf")
# What lies beside a model, and is none of it.
_RECORDS = frozenset(
    ("metrics.jsonl", "metrics.csv", "settings.json", "result.json", "run.log", "training_state.safetensors")
)


def model_choices(entry: RunEntry) -> list[Choice]:
    """Models of the last stage that has any, the newest last."""
    if entry.kind == "fine-tuning":
        own = entry.path / "model"  # there is one where `sharpen train` made the run
        return _of_checkpoints(own if own.is_dir() else entry.path)
    if entry.kind != "agents":
        return []
    for folder in (entry.path, *reversed(entry.stages())):
        found = _of_steps(folder / "checkpoints")
        if found:
            return found
    return []


def _of_checkpoints(folder: Path) -> list[Choice]:
    end = [Choice(folder, None)] if is_model(folder) else []
    return [each for each in numbered(list(folder.iterdir()), _CHECKPOINT) if is_model(each.path)] + end


def _of_steps(folder: Path) -> list[Choice]:
    if not folder.is_dir():
        return []
    steps = numbered([each for each in folder.iterdir() if (each / "state.json").is_file()], _STEP)
    return [Choice(each.path / "model", each.step) for each in steps if is_model(each.path / "model")]


def is_model(folder: Path) -> bool:
    """Whether a folder holds weights, or an adapter, with their settings."""
    has_settings = (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file()
    return has_settings and bool(model_weights(folder))


def model_weights(folder: Path) -> list[Path]:
    return [path for pattern in _WEIGHTS for path in folder.glob(pattern) if path.name not in _RECORDS]


def model_files(folder: Path) -> list[Path]:
    """The files of a model, without the records of its run."""
    files = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
    return sorted(path for path in files if path.name not in _RECORDS)
