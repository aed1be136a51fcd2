"""The names of the arguments that a component takes."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Never, get_args, is_typeddict

Maker = Callable[..., Any]
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def argument_names(make: Maker) -> list[str] | None:
    """Return the names; None if it takes any name or has no signature."""
    special = _of_ours(make)
    if special is not None:
        return special
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return None
    names = [name for name, each in parameters.items() if each.kind in _BY_NAME]
    for each in parameters.values():
        if each.kind is each.VAR_KEYWORD and each.annotation is not Never:
            further = [named for arg in get_args(each.annotation) if is_typeddict(arg) for named in arg.__annotations__]
            if not further:
                return None
            names += further
    return names


def _of_ours(make: Maker) -> list[str] | None:
    """Return the arguments of classes that take any option only to explain why it is refused."""
    if not isinstance(make, type):
        return None
    if make.__module__.startswith("sharpen.llm_proxy."):
        return [name for name, each in inspect.signature(make).parameters.items() if each.kind in _BY_NAME]
    return None


def unknown_verl_key(name: str) -> str | None:
    """Return the message for a dotted key that VERL's config does not have; None if it has it."""
    from ...algorithm.verl.keys import FIXED, full_name, is_section, nearest_key, why_ignored

    is_known = full_name(name) is not None or name in FIXED or why_ignored(name) is not None or is_section(name)
    if is_known:
        return None
    nearest = nearest_key(name)
    hint = f" Did you mean {nearest!r}?" if nearest else " docs/reference/verl-keys.md lists the keys."
    return f"VERL has no key {name!r}.{hint}"


def verl_leaves(value: Mapping[str, Any], prefix: str = "") -> list[tuple[tuple[str, ...], str]]:
    """Return the keys of a VERL config: the path of each as written, and its dotted name."""
    from ...algorithm.verl.keys import LEAVES

    found: list[tuple[tuple[str, ...], str]] = []
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, Mapping) and name not in LEAVES:
            found += [((key, *path), dotted) for path, dotted in verl_leaves(inner, f"{name}.")]
        else:
            found.append(((key,), name))
    return found


def is_verl(make: Maker) -> bool:
    """Whether its `config` argument has VERL's keys."""
    from ...algorithm.verl.verl import VERL

    return isinstance(make, type) and issubclass(make, VERL)
