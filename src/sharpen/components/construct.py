"""Calling a constructor or a factory with what it takes.

What cannot be called as asked is refused before the call; what the call itself raises passes unchanged.
"""

import inspect
from abc import ABCMeta
from collections.abc import Iterable, Mapping
from typing import Any

from ..checks import check_names, listed
from ..errors import ComponentArgumentError, ComponentError, ComponentTypeError
from .messages import Origin, name_of
from .registry import Maker

Parameters = Mapping[str, inspect.Parameter]
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def instantiate_component(
    cls: Maker,
    provided_kwargs: Mapping[str, Any] | None = None,
    optional_defaults: Mapping[str, Any] | None = None,
) -> Any:
    """Call `cls`; a default is added where the constructor takes its name and nothing was provided.

    A default that can be called without arguments is a factory, called only when its value is needed.
    """
    return construct(cls, provided_kwargs or {}, optional_defaults or {}, Origin("provided_kwargs", provided_kwargs))


def construct(make: Maker, provided: Mapping[str, Any], defaults: Mapping[str, Any], origin: Origin) -> Any:
    """Call `make` for a spec that errors name."""
    if isinstance(make, ABCMeta) and make.__abstractmethods__:
        lacking = listed(sorted(make.__abstractmethods__))
        raise ComponentTypeError(f"{origin}: {name_of(make)} is abstract, it lacks {lacking}")
    parameters = _parameters(make)
    _refuse_unknown(make, parameters, provided, origin)
    added = {name: value for name, value in defaults.items() if name not in provided and _takes(parameters, name)}
    _refuse_missing(make, parameters, {*provided, *added}, origin)
    made = make(**provided, **{name: _value(default) for name, default in added.items()})
    return _refuse_coroutine(made, make, origin)


def _parameters(make: Maker) -> Parameters | None:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # Some built-ins have no signature: then the call itself must tell.
        return None


def _takes(parameters: Parameters | None, name: str) -> bool:
    return parameters is not None and name in parameters and parameters[name].kind in _BY_NAME


def _required(parameters: Parameters | None) -> list[str]:
    every = (parameters or {}).items()
    return [name for name, each in every if each.default is each.empty and each.kind not in _STARRED]


def _value(default: Any) -> Any:
    # Some parts can be called too, such as an adapter with its source: what needs arguments is a value.
    return default() if callable(default) and not _required(_parameters(default)) else default


def _refuse_unknown(make: Maker, parameters: Parameters | None, given: Iterable[str], origin: Origin) -> None:
    if parameters is None or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    taken = [name for name in parameters if _takes(parameters, name)]
    check_names(given, taken, owner=f"{origin}: {name_of(make)}", noun="argument", error=ComponentArgumentError)


def _refuse_missing(make: Maker, parameters: Parameters | None, given: set[str], origin: Origin) -> None:
    missing = [name for name in _required(parameters) if name not in given]
    if not missing:
        return
    way_out = "give a dict with 'type' and these, or an instance"
    if not isinstance(make, type):
        way_out = "a factory is called without arguments, so wrap it in a lambda that gives them"
    raise ComponentArgumentError(f"{origin}: {name_of(make)} needs {listed(missing)}: {way_out}")


def _refuse_coroutine(made: Any, make: Maker, origin: Origin) -> Any:
    if inspect.iscoroutine(made):
        made.close()
        raise ComponentError(f"{origin}: {name_of(make)} is async: a factory must return the component itself")
    return made
