"""`train.yaml` in a run folder: the configuration with overrides applied, so that the run can be repeated.

Secrets are saved as references: the ones they came from, or for literal secrets, variables that its first lines name.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from ...files import open_private, replacing
from ...secrets import shown
from .document import IMPLICIT

if TYPE_CHECKING:
    from .train_config import TrainConfig

FILE = "train.yaml"
_ORIGIN = "# It was read from "
_OF_NO_WEIGHT = ("name", "run_dir")  # they decide where a run is saved, which no longer matters


class _Dumper(yaml.SafeDumper):
    """Quotes every string that could be read as another type, by us or by others."""


for _tag, _pattern, _first in IMPLICIT:
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)


def keep_config(config: "TrainConfig", folder: Path) -> Path:
    """Write the file into a run folder."""
    text = f"# The configuration of this run: {config.path.name} with overrides applied.\n"
    text += f"{_ORIGIN}{json.dumps(str(origin_of(config)))}\n"
    left_out = sorted(set(config.references.literals.values()))
    if left_out:
        names = ", ".join(each.strip("${}") for each in left_out)
        text += f"# Secrets are not saved: to repeat the run, set {names} in the environment.\n"
    text += yaml.dump(config.kept(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    path = folder / FILE
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", opener=open_private) as file:
        file.write(text)
    config.found_in(folder)
    return path


def origin_of(config: "TrainConfig") -> Path:
    """Return the file the user wrote: for the `train.yaml` of a run, the one that the run was started with."""
    kept = origin_of_run(config.path.parent) if config.path.name == FILE else None
    return kept or config.path


def origin_of_run(folder: Path) -> Path | None:
    """Return the configuration file that a run was started with; None if it is not recorded."""
    line = next((each for each in _kept_text(folder).splitlines()[:5] if each.startswith(_ORIGIN)), None)
    try:
        return None if line is None else Path(json.loads(line.removeprefix(_ORIGIN)))
    except (ValueError, TypeError):
        return None


def differences(folder: Path, config: "TrainConfig") -> list[str]:
    """Return how the values of a configuration differ from those of a run, each as `key: before -> now`."""
    text = _kept_text(folder)
    if not text:
        return []
    before = _flat(yaml.safe_load(text))
    now = _flat(yaml.safe_load(yaml.dump(config.kept(), Dumper=_Dumper)))
    keys = [key for key in {**before, **now} if key.split(".")[0] not in _OF_NO_WEIGHT]
    return [f"{key}: {_shown(before, key)} -> {_shown(now, key)}" for key in keys if before.get(key) != now.get(key)]


def _kept_text(folder: Path) -> str:
    try:
        return (folder / FILE).read_text("utf-8")
    except FileNotFoundError:
        return ""


def _flat(value: object, place: str = "") -> dict[str, object]:
    if not isinstance(value, dict) or not value:
        return {place: value}
    found: dict[str, object] = {}
    for key, each in value.items():
        found |= _flat(each, f"{place}.{key}" if place else str(key))
    return found


def _shown(values: dict[str, object], key: str) -> str:
    return shown(values[key]) if key in values else "(not set)"
