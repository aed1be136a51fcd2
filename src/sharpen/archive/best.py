"""Export the best result of a run to a separate folder: prompts, a model or an adapter, or a policy.

    best_prompt.txt, best_prompt.diff   from a prompt search; with several stages in `1-apo/`, ...
    model/                              weights or an adapter, loadable by its path
    policy.pth                          the checkpoint of a simulator's policy
    <name>.txt                          prompts that a user-defined algorithm published last
    best.json                           where each part comes from, and why it is the best

Among saved steps, the best has the highest validation reward (or the lowest validation loss); without validations it is
the newest. The folder appears complete or not at all.
"""

import asyncio
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..checkpoints import load_state
from ..errors import ConfigError, RunError, StateFileError, describe
from ..files import replacing_folder, write_json
from ..types import PromptTemplate
from .catalog import RunEntry
from .curves import is_loss, read_curves
from .lookup import open_store

_MONITORS = ("val/reward_mean", "val/reward", "val/loss")
_STEP_FOLDER = re.compile(r"step_(\d+)")
_CHECKPOINT_FOLDER = re.compile(r"checkpoint-(\d+)")
_WEIGHTS = ("*.safetensors", "*.gguf")
# Files of the run that lie beside a model.
_RUN_RECORDS = frozenset(
    ("metrics.jsonl", "metrics.csv", "settings.json", "result.json", "run.log", "training_state.safetensors")
)
_PROMPT_FILES = {".txt": "prompt", ".diff": "difference to the seed"}
_LATEST_POLICY = "latest.pth"  # a copy of the newest numbered one

Part = dict[str, Any]
"""What `best.json` says of one exported file or folder."""


def export_best(entry: RunEntry, out: Path) -> list[Path]:
    """Copy the best result of a run to a new folder and return the paths in it.

    It runs its own event loop to read the store, so it cannot be called where one is running.
    """
    target = _check_target(entry, out.expanduser().absolute())
    try:
        with replacing_folder(target) as folder:
            parts = [*_export_prompts(entry, folder), *_export_model(entry, folder), *_export_policy(entry, folder)]
            # What was published is in the files above already, where there are any.
            parts = parts or _export_published(entry, folder)
            if not parts:
                raise ConfigError(_nothing_to_export(entry))
            write_json(folder / "best.json", {"run": entry.name, "path": str(entry.path), "parts": parts})
    except OSError as error:
        raise RunError(f"cannot write the best of run {entry.name!r} to {str(out)!r}: {describe(error)}") from error
    return sorted(target.iterdir())


def _check_target(entry: RunEntry, target: Path) -> Path:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{str(target)!r} already exists and is not empty; give a new folder")
    if target.is_relative_to(entry.path):
        raise ConfigError(f"{str(target)!r} is inside the run itself; give a folder outside of it")
    return target


def _nothing_to_export(entry: RunEntry) -> str:
    missing = {
        "agents": "no best prompt, and no model in checkpoints/step_N/model",
        "fine-tuning": "no model, and no checkpoint-N with one",
        "simulator": "no policy checkpoint (add a Checkpoint callback that writes to this folder to the trainer)",
        "store": "nothing but a store",
    }
    still_running = "; it is still running" if entry.is_running else ""
    return f"run {entry.name!r} has nothing to export: it has {missing[entry.kind]}{still_running}"


# -- prompts -----------------------------------------------------------------------------------------


def _export_prompts(entry: RunEntry, target: Path) -> list[Part]:
    folders = entry.prompt_folders()
    parts: list[Part] = []
    for folder in folders:
        place = target if len(folders) == 1 else target / folder.parent.name
        for path in sorted([*folder.glob("best_prompt*.txt"), *folder.glob("best_prompt.diff")]):
            place.mkdir(parents=True, exist_ok=True)
            copy = Path(shutil.copyfile(path, place / path.name))
            what = _PROMPT_FILES[path.suffix]
            parts.append({"what": what, "file": str(copy.relative_to(target)), "from": str(folder)})
    return parts


def _export_published(entry: RunEntry, target: Path) -> list[Part]:
    """Write the prompt templates of the latest resources, each to a file named after it."""
    if not entry.has_store:
        return []
    prompts = asyncio.run(_latest_prompts(entry))
    files: dict[str, str] = {}
    for name, text in prompts.items():
        plain = re.sub(r"[^\w-]+", "_", name)[:100] or "_"
        names = [f"{plain}.txt", *(f"{plain}-{number}.txt" for number in range(2, len(prompts) + 2))]
        files[next(each for each in names if each not in files)] = text
    for name, text in files.items():
        (target / name).write_text(text, encoding="utf-8")
    return [{"what": "prompt", "file": name, "from": "the latest published resources"} for name in files]


async def _latest_prompts(entry: RunEntry) -> dict[str, str]:
    async with open_store(str(entry.store_path)) as opened:
        latest = await opened.store.get_latest_resources()
    resources = {} if latest is None else latest.resources
    return {name: each.template for name, each in resources.items() if isinstance(each, PromptTemplate)}


# -- models and policies -----------------------------------------------------------------------------


class Choice(msgspec.Struct, frozen=True):
    """What a run saved at one step; `metric` and `value` say why it was chosen."""

    path: Path
    step: int | None
    """None: the end of the run."""
    metric: str | None = None
    """None: it is the newest, as there was no validation."""
    value: float | None = None

    def part(self, what: str, place: Path) -> Part:
        reason = {"step": self.step, "metric": self.metric, "value": self.value}
        return {"what": what, "file": place.name, "from": str(self.path), **reason}


def choose(entry: RunEntry, choices: Sequence[Choice]) -> Choice | None:
    """Return the choice with the best validation; of equal ones, and without validations, the newest (the last)."""
    if not choices:
        return None
    metric, values = _validations(entry)
    newest = max(values, default=None)
    scored = [
        (values[step], each) for each in choices if (step := newest if each.step is None else each.step) in values
    ]
    if metric is None or not scored:
        return choices[-1]
    sign = -1.0 if is_loss(metric) else 1.0
    value, best = max(reversed(scored), key=lambda pair: sign * pair[0])
    return msgspec.structs.replace(best, metric=metric, value=value)


def _validations(entry: RunEntry) -> tuple[str | None, dict[int, float]]:
    curves = {} if entry.metrics_path is None else read_curves(entry.metrics_path, _MONITORS, max_points=1_000_000)
    for metric in _MONITORS:
        series = curves.get(metric)
        if series is not None and series.axis == "iteration":
            return metric, dict(zip(map(int, series.steps), series.values, strict=True))
    return None, {}


def _export_model(entry: RunEntry, target: Path) -> list[Part]:
    choice = choose(entry, model_choices(entry))
    if choice is None:
        return []
    place = target / "model"
    place.mkdir()
    for path in choice.path.iterdir():
        if path.is_file() and not path.name.startswith(".") and path.name not in _RUN_RECORDS:
            shutil.copyfile(path, place / path.name)
    return [choice.part("model", place)]


def model_choices(entry: RunEntry) -> list[Choice]:
    """Return the models that a run saved, the newest last; of a sequence, those of the last stage that has any.

    Agent training saves `checkpoints/step_N/model`. Fine-tuning saves `model`, or the folder itself, and
    `checkpoint-N` in it.
    """
    if entry.kind == "fine-tuning":
        own = entry.path / "model"  # `sharpen train` makes one
        folder = own if own.is_dir() else entry.path
        found = [*_numbered(folder, _CHECKPOINT_FOLDER), Choice(folder, None)]
        return [each for each in found if _is_model(each.path)]
    if entry.kind != "agents":
        return []
    for stage in (entry.path, *reversed(entry.stages())):
        steps = _numbered(stage / "checkpoints", _STEP_FOLDER)
        whole = [Choice(each.path / "model", each.step) for each in steps if (each.path / "state.json").is_file()]
        if found := [each for each in whole if _is_model(each.path)]:
            return found
    return []


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[Choice]:
    """Return the entries of a folder whose names hold a step, in the order of the steps."""
    paths = folder.iterdir() if folder.is_dir() else ()
    found = [(int(match[1]), path) for path in paths if (match := pattern.fullmatch(path.name))]
    return [Choice(path, step) for step, path in sorted(found)]


def _is_model(folder: Path) -> bool:
    """Return whether a folder holds weights, or an adapter, with their settings."""
    has_settings = (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file()
    weights = (path for pattern in _WEIGHTS for path in folder.glob(pattern))
    return has_settings and any(path.name not in _RUN_RECORDS for path in weights)


def _export_policy(entry: RunEntry, target: Path) -> list[Part]:
    choice = choose(entry, _policy_choices(entry))
    if choice is None:
        return []
    place = target / f"policy{choice.path.suffix or '.pth'}"
    shutil.copyfile(choice.path, place)
    return [choice.part("policy", place)]


def _policy_choices(entry: RunEntry) -> list[Choice]:
    """Return the readable policy checkpoints in the run's folder and in its `checkpoints/`, the newest last."""
    if entry.kind != "simulator":
        return []
    folders = [folder for folder in (entry.path, entry.path / "checkpoints") if folder.is_dir()]
    paths = [path for folder in folders for path in folder.glob("*.pth") if path.name != _LATEST_POLICY]
    found = [Choice(path, step) for path in paths if (step := _iteration(path)) is not None]
    return sorted(found, key=lambda choice: choice.step or 0)


def _iteration(path: Path) -> int | None:
    """Return the iteration of a checkpoint; None if it was not written by a simulator's trainer."""
    try:
        state: Any = load_state(path)
    except StateFileError:
        return None
    has_policy = isinstance(state, dict) and "policy" in (state.get("vessel") or {})
    return int(state["current_iter"]) if has_policy else None
