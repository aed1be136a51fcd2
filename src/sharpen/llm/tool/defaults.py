"""What training does where a call says nothing, in words for the descriptions."""

from typing import get_args

from ..training.option_names import OTHER_NAMES
from ..training.settings import DEFAULTS
from ..training.trl_names import Algorithm

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


def defaults_in_words(name: str) -> str:
    """The default of a setting in each algorithm."""
    setting = OTHER_NAMES.get(name, name)
    found = {each: DEFAULTS[each][setting] for each in ALGORITHMS if setting in DEFAULTS[each]}
    if len(found) == len(ALGORITHMS) and len(set(found.values())) == 1:
        return f"Default: {found[ALGORITHMS[0]]}."
    said = ", ".join(f"{each} {value}" for each, value in found.items())
    return f"Default: {said}." if said else ""
