"""What training does where a call says nothing, in words for the descriptions."""

from ..training.options import ALGORITHMS, OTHER_NAMES
from ..training.settings import DEFAULTS


def defaults_in_words(name: str) -> str:
    """The default of a setting in each algorithm."""
    setting = OTHER_NAMES.get(name, name)
    found = {each: DEFAULTS[each][setting] for each in ALGORITHMS if setting in DEFAULTS[each]}
    if len(found) == len(ALGORITHMS) and len(set(found.values())) == 1:
        return f"Default: {found[ALGORITHMS[0]]}."
    said = ", ".join(f"{each} {value}" for each, value in found.items())
    return f"Default: {said}." if said else ""
