"""The best that a run made, in a folder of its own: prompts, a model or an adapter, a policy.

    best_prompt.txt, best_prompt.diff   of a search; with several stages in `1-apo/`, ...
    model/                              weights or an adapter, which loads by its path
    policy.pth                          the checkpoint of a simulator's policy
    <name>.txt                          prompts that an algorithm of the user's own published last
    best.json                           where it comes from, and why it is the best

Among steps that were kept, the best is the one with the highest reward (or least loss) of validation; without
validations, the newest. The folder is there whole or not at all.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError, RunError, in_words
from ..files import replacing_folder, write_json
from .best_prompts import copy_prompts, published_prompts
from .best_step import Choice, choose
from .catalog import RunEntry
from .model_folders import model_choices, model_files
from .policy_files import policy_choices

_WHAT = {".txt": "prompt", ".diff": "difference to the seed"}
Part = dict[str, Any]
"""What `best.json` says of one thing."""


def export_best(entry: RunEntry, out: Path) -> list[Path]:
    """Copy the best of a run to a new folder; the files and folders that are in it now.

    It reads the store of a run with an event loop of its own, so it is not for a thread in which one runs.
    """
    target = _check_target(entry, out.expanduser().absolute())
    try:
        with replacing_folder(target) as folder:
            parts = [part for export in _EXPORTS for part in export(entry, folder)]
            if not parts:
                raise ConfigError(_nothing(entry))
            write_json(folder / "best.json", {"run": entry.name, "path": str(entry.path), "parts": parts})
    except OSError as error:
        raise RunError(f"the best of {entry.name!r} cannot be written to {str(out)!r}: {in_words(error)}") from error
    return sorted(target.iterdir())


def _check_target(entry: RunEntry, target: Path) -> Path:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{str(target)!r} is there already and not empty: give a new folder")
    if target.is_relative_to(entry.path):
        raise ConfigError(f"{str(target)!r} lies in the run itself: give a folder outside of it")
    return target


def _nothing(entry: RunEntry) -> str:
    going_on = "; it is still running" if entry.is_running else ""
    made = {
        "agents": "no best prompt, and no model in checkpoints/step_N/model",
        "fine-tuning": "no model and no checkpoint-N with one",
        "simulator": "no checkpoint of a policy (give the trainer a Checkpoint callback in this folder)",
        "store": "only a store",
    }
    return f"the run {entry.name!r} has nothing to export: there is {made[entry.kind]}{going_on}"


# -- what there can be -------------------------------------------------------------------------------


def _prompts(entry: RunEntry, target: Path) -> list[Part]:
    folders = entry.prompt_folders()
    found: list[Part] = []
    for folder in folders:
        place = target if len(folders) == 1 else target / folder.parent.name
        files = copy_prompts(folder, place)
        found += [
            {"what": _WHAT[path.suffix], "file": str(path.relative_to(target)), "from": str(folder)} for path in files
        ]
    return found


def _model(entry: RunEntry, target: Path) -> list[Part]:
    choice = choose(entry, model_choices(entry))
    if choice is None:
        return []
    place = target / "model"
    place.mkdir()
    for path in model_files(choice.path):
        shutil.copyfile(path, place / path.name)
    return [_part("model", place, choice)]


def _policy(entry: RunEntry, target: Path) -> list[Part]:
    choice = choose(entry, policy_choices(entry))
    if choice is None:
        return []
    place = target / f"policy{choice.path.suffix or '.pth'}"
    shutil.copyfile(choice.path, place)
    return [_part("policy", place, choice)]


def _published(entry: RunEntry, target: Path) -> list[Part]:
    """Only where nothing else was made: what an algorithm published beside is in the files above already."""
    if any(target.iterdir()) or not entry.has_store:
        return []
    found = published_prompts(entry)
    for name, text in found.items():
        (target / name).write_text(text, encoding="utf-8")
    return [{"what": "prompt", "file": name, "from": "the resources that were published last"} for name in found]


_EXPORTS: tuple[Callable[[RunEntry, Path], list[Part]], ...] = (_prompts, _model, _policy, _published)


def _part(what: str, place: Path, choice: Choice) -> Part:
    return {"what": what, "file": place.name, "from": str(choice.path), **msgspec.to_builtins(choice.reason)}
