"""What an actor asks of its node: CPUs, GPUs, memory and resources of the cluster's own, by the names that Ray has."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import ConfigError

_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
_HIDDEN = ("node:", "object_store_memory", "memory")
Amounts = Mapping[str, float]


def checked(name: str, amounts: object, default: Amounts) -> dict[str, float]:
    """The amounts that were given, or the default."""
    if amounts is None:
        return dict(default)
    if not isinstance(amounts, Mapping):
        raise ConfigError(f"{name} is {amounts!r}: pass a dict such as {{'CPU': 1, 'GPU': 0.5}}")
    for key, amount in amounts.items():
        is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not isinstance(key, str) or not is_number or not math.isfinite(amount) or amount < 0:
            raise ConfigError(f"{name} has {key!r}: {amount!r}: use the name of a resource and a number of at least 0")
        if key == "GPU" and amount > 1 and amount != int(amount):
            raise ConfigError(f"{name} asks for {amount} GPUs: above 1, Ray only assigns whole GPUs")
    return {key: float(amount) for key, amount in amounts.items()}


def options_for(amounts: Amounts) -> dict[str, Any]:
    """The amounts as options of an actor. What is not named is not held: an actor without CPUs takes none."""
    options: dict[str, Any] = {"num_cpus": 0, "num_gpus": 0}
    options |= {_OPTIONS[name]: amount for name, amount in amounts.items() if name in _OPTIONS}
    others = {name: amount for name, amount in amounts.items() if name not in _OPTIONS and amount}
    return options | ({"resources": others} if others else {})


def fits(wanted: Amounts, node: Amounts) -> bool:
    """Whether a node that nobody else uses could hold it."""
    return all(amount <= node.get(name, 0) for name, amount in wanted.items())


def in_words(amounts: Amounts, wanted: Iterable[str] = ()) -> str:
    """For people: without what every node has and nobody asked for."""
    shown = {key: value for key, value in amounts.items() if key in set(wanted) or not key.startswith(_HIDDEN)}
    return ", ".join(f"{key}: {value:g}" for key, value in sorted(shown.items())) or "nothing"
