"""The names in specs that are built later, in another process: what can be known of them now, without any import."""

import sys
from collections.abc import Mapping
from typing import Any

from ..checks import did_you_mean, listed
from ..components import DEFAULT_REGISTRY
from ..components.build import has_methods_of
from ..components.paths import Origin, load_from
from ..components.registry import Target, classes_in_main
from ..errors import ComponentError, ComponentTypeError


def check_name(spec: str | Mapping[str, Any], expected_type: type, spec_name: str) -> None:
    """Refuse a name that leads nowhere, with the nearest that does, and one that leads to another kind of part."""
    name, origin = spec if isinstance(spec, str) else spec.get("type"), Origin(spec_name, spec)
    if name is None:
        raise ComponentError(f"{origin}: {spec_name} dict must have a 'type' key: a name or an import path")
    if not isinstance(name, str):
        return
    known: dict[str, Target] = {**classes_in_main(), **DEFAULT_REGISTRY}
    target = known.get(name, name)
    if isinstance(target, str) and "." not in target:
        fitting = sorted(each for each, leads_to in known.items() if _is_a(_loaded(leads_to), expected_type))
        hint = did_you_mean(name, fitting) or f" Known names: {listed(fitting)}."
        raise ComponentError(f"{origin}: no component is named {name!r}.{hint}")
    found = _loaded(target)
    if isinstance(found, str) and _is_in_loaded_module(found):
        load_from(found, origin)  # which tells what the module has instead
    if isinstance(found, type) and not _is_a(found, expected_type):
        raise ComponentTypeError(f"{origin} resolves to {found.__name__}, which is not a {expected_type.__name__}")


def _loaded(target: Target) -> Target:
    """What a path leads to, if it is imported already; otherwise the path."""
    if not isinstance(target, str):
        return target
    module, _, name = target.rpartition(".")
    found: Target = vars(sys.modules[module]).get(name, target) if module in sys.modules else target
    return found


def _is_in_loaded_module(path: str) -> bool:
    """A module that imports its names when they are asked for is not asked."""
    module = sys.modules.get(path.rpartition(".")[0])
    return module is not None and not hasattr(module, "__getattr__")


def _is_a(found: Target, expected_type: type) -> bool:
    return isinstance(found, type) and (issubclass(found, expected_type) or has_methods_of(found, expected_type))
