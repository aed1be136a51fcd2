"""How a spec becomes a component.

A spec is an instance, a class, a factory without arguments, a name, an import path, a dict with `type`, or `None`.
Errors name the spec and show its value. A call that cannot work is refused before it is made; what a constructor or a
factory raises itself passes unchanged.
"""

import inspect
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_origin, overload

from ..checks import about, check_names, did_you_mean, listed
from ..errors import ComponentArgumentError, ComponentError, ComponentTypeError
from .paths import Origin, load_class, load_from, name_of
from .registry import DEFAULT_REGISTRY, Maker, Target, classes_in_main

__all__ = ["ComponentSpec", "build_component", "instantiate_component", "instantiate_from_spec", "load_class"]

T = TypeVar("T")
ComponentSpec: TypeAlias = T | type[T] | Callable[[], T] | str | Mapping[str, Any] | None
Parameters = Mapping[str, inspect.Parameter]
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_FORMS = "an instance, a class, a factory without arguments, a name, an import path, or a dict with 'type'"


@dataclass(frozen=True)
class _Reading:
    """How names and dicts are read."""

    registry: Mapping[str, Target] | None
    optional_defaults: Mapping[str, Any]
    dict_requires_type: bool
    dict_default_cls: Maker | None


@overload
def build_component(
    spec: ComponentSpec[Any],
    *,
    expected_type: type[T],
    spec_name: str,
    default_factory: Callable[[], T] | None = None,
    allow_none: Literal[False] = False,
    optional_defaults: Mapping[str, Any] | None = None,
    dict_requires_type: bool = True,
    dict_default_cls: Maker | None = None,
    type_error_fmt: str | None = None,
    invalid_spec_error_fmt: str | None = None,
    registry: Mapping[str, Target] | None = None,
) -> T: ...


@overload
def build_component(
    spec: ComponentSpec[Any],
    *,
    expected_type: type[T],
    spec_name: str,
    default_factory: Callable[[], T] | None = None,
    allow_none: bool,
    optional_defaults: Mapping[str, Any] | None = None,
    dict_requires_type: bool = True,
    dict_default_cls: Maker | None = None,
    type_error_fmt: str | None = None,
    invalid_spec_error_fmt: str | None = None,
    registry: Mapping[str, Target] | None = None,
) -> T | None: ...


def build_component(
    spec: ComponentSpec[Any],
    *,
    expected_type: type[T],
    spec_name: str,
    default_factory: Callable[[], T] | None = None,
    allow_none: bool = False,
    optional_defaults: Mapping[str, Any] | None = None,
    dict_requires_type: bool = True,
    dict_default_cls: Maker | None = None,
    type_error_fmt: str | None = None,
    invalid_spec_error_fmt: str | None = None,
    registry: Mapping[str, Target] | None = None,
) -> T | None:
    """Return the component that a spec describes, checked against `expected_type`.

    The formats replace the beginning of an error message; their fields are `type` (also `type_name`, `actual_type`,
    `spec_type`), `expected` (also `expected_type`) and `spec_name`.
    """
    given = default_factory if spec is None else spec
    if given is None and allow_none:
        return None
    reading = _Reading(registry, optional_defaults or {}, dict_requires_type, dict_default_cls)
    origin = Origin(spec_name, given)
    try:
        component = _make(given, expected_type, reading, origin, invalid_spec_error_fmt)
        _check_type(component, expected_type, origin, type_error_fmt)
    except (ComponentError, ComponentTypeError) as error:
        about(spec_name, error)
        raise
    return cast(T, component)


def instantiate_from_spec(
    spec: str | Mapping[str, Any],
    *,
    spec_name: str,
    registry: Mapping[str, Target] | None = None,
    optional_defaults: Mapping[str, Any] | None = None,
    dict_requires_type: bool = True,
    dict_default_cls: Maker | None = None,
) -> Any:
    """Return the object that a name, an import path or a dict describes, of any type."""
    if not isinstance(spec, (str, Mapping)):
        raise ComponentTypeError(f"{spec_name} spec must be a string or dict, but it is {type(spec)}")
    reading = _Reading(registry, optional_defaults or {}, dict_requires_type, dict_default_cls)
    return _read(spec, reading, Origin(spec_name, spec))


def instantiate_component(
    cls: Maker,
    provided_kwargs: Mapping[str, Any] | None = None,
    optional_defaults: Mapping[str, Any] | None = None,
) -> Any:
    """Call `cls`, adding a default where the constructor takes its name and nothing was provided.

    A default that can be called without arguments is a factory, called only when its value is needed.
    """
    return construct(cls, provided_kwargs or {}, optional_defaults or {}, Origin("provided_kwargs", provided_kwargs))


def _make(spec: Any, expected: type, reading: _Reading, origin: Origin, invalid_fmt: str | None) -> object:
    is_class = isinstance(get_origin(spec) or spec, type)
    if is_instance(spec, expected) and not is_class:
        return spec
    if isinstance(spec, (str, Mapping)):
        return _read(spec, reading, origin)
    if is_class:
        return construct(get_origin(spec) or spec, {}, reading.optional_defaults, origin)
    if callable(spec) and not has_methods_of(spec, expected):
        return construct(spec, {}, {}, origin)
    if type(spec).__module__ == "builtins":
        raise _no_spec(expected, origin, invalid_fmt)
    # A stand-in, or the wrong type: the check of its type says what it lacks.
    return spec


def _read(spec: str | Mapping[str, Any], reading: _Reading, origin: Origin) -> object:
    if isinstance(spec, str):
        return construct(_named(spec, reading.registry, origin), {}, reading.optional_defaults, origin)
    kwargs = {key: value for key, value in spec.items() if key != "type"}
    return construct(_class_of(spec, reading, origin), kwargs, reading.optional_defaults, origin)


def _class_of(spec: Mapping[str, Any], reading: _Reading, origin: Origin) -> Maker:
    kind = spec.get("type")
    if isinstance(kind, str):
        return _named(kind, reading.registry, origin)
    if isinstance(kind, type) or inspect.isroutine(kind):
        return kind
    if kind is not None:
        raise ComponentError(f"{origin}: 'type' must be a name, an import path or a class, not {type(kind).__name__}")
    if reading.dict_requires_type or reading.dict_default_cls is None:
        raise ComponentError(f"{origin}: {origin.spec_name} dict must have a 'type' key: a name or an import path")
    return reading.dict_default_cls


def _named(name: str, registry: Mapping[str, Target] | None, origin: Origin) -> Maker:
    known: dict[str, Target] = {**classes_in_main(), **DEFAULT_REGISTRY, **(registry or {})}
    target = known.get(name, name)
    if not isinstance(target, str):
        return target
    if "." in target:
        return load_from(target, origin)
    hint = did_you_mean(name, known) or f" Known names: {listed(sorted(registry or DEFAULT_REGISTRY))}."
    raise ComponentError(f"{origin}: there is no component named {name!r}.{hint}")


def _check_type(component: object, expected: type, origin: Origin, fmt: str | None) -> None:
    if is_instance(component, expected) or has_methods_of(component, expected):
        return
    message = f"{origin} resolves to a {name_of(type(component))}, which is not a {expected.__name__}"
    if fmt is not None:
        message = _formatted(fmt, type(component), expected, origin)
    missing = missing_methods(component, expected)
    raise ComponentTypeError(f"{message}; it lacks {listed(missing)}" if missing else message)


def _no_spec(expected: type, origin: Origin, fmt: str | None) -> ComponentError:
    if fmt is not None:
        return ComponentError(_formatted(fmt, type(origin.spec), expected, origin))
    if origin.spec is None:
        return ComponentError(f"{origin.spec_name} cannot be None: a {expected.__name__} is required. Pass {_FORMS}")
    return ComponentError(f"{origin} is not a valid spec for {expected.__name__}: pass {_FORMS}")


def _formatted(fmt: str, actual: type, expected: type, origin: Origin) -> str:
    # Several names for one value: the first is ours, the others are in formats that users bring along.
    of_actual = dict.fromkeys(("type", "type_name", "actual_type", "spec_type"), actual)
    of_expected = dict.fromkeys(("expected", "expected_type"), expected.__name__)
    return fmt.format(**of_actual, **of_expected, spec_name=origin.spec_name)


# -- calling a constructor or a factory --------------------------------------------------------------


def construct(make: Maker, provided: Mapping[str, Any], defaults: Mapping[str, Any], origin: Origin) -> Any:
    """Call `make` for a spec that is named in errors."""
    if isinstance(make, ABCMeta) and make.__abstractmethods__:
        lacking = listed(sorted(make.__abstractmethods__))
        raise ComponentTypeError(f"{origin}: {name_of(make)} is abstract, it lacks {lacking}")
    parameters = _parameters(make)
    _check_unknown(make, parameters, provided, origin)
    added = {name: value for name, value in defaults.items() if name not in provided and _takes(parameters, name)}
    _check_missing(make, parameters, {*provided, *added}, origin)
    made = make(**provided, **{name: _value(default) for name, default in added.items()})
    return _check_not_coroutine(made, make, origin)


def _parameters(make: Maker) -> Parameters | None:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # some built-ins have no signature: the call itself decides
        return None


def _takes(parameters: Parameters | None, name: str) -> bool:
    return parameters is not None and name in parameters and parameters[name].kind in _BY_NAME


def _required(parameters: Parameters | None) -> list[str]:
    every = (parameters or {}).items()
    return [name for name, each in every if each.default is each.empty and each.kind not in _STARRED]


def _value(default: Any) -> Any:
    # Some components can be called too, such as an adapter with its source: what needs arguments is a value.
    return default() if callable(default) and not _required(_parameters(default)) else default


def _check_unknown(make: Maker, parameters: Parameters | None, given: Iterable[str], origin: Origin) -> None:
    if parameters is None or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    taken = [name for name in parameters if _takes(parameters, name)]
    check_names(given, taken, owner=f"{origin}: {name_of(make)}", noun="argument", error=ComponentArgumentError)


def _check_missing(make: Maker, parameters: Parameters | None, given: set[str], origin: Origin) -> None:
    missing = [name for name in _required(parameters) if name not in given]
    if not missing:
        return
    hint = "pass a dict with 'type' and these, or an instance"
    if not isinstance(make, type):
        hint = "a factory is called without arguments, so wrap it in a lambda that passes them"
    raise ComponentArgumentError(f"{origin}: {name_of(make)} needs {listed(missing)}: {hint}")


def _check_not_coroutine(made: Any, make: Maker, origin: Origin) -> Any:
    if inspect.iscoroutine(made):
        made.close()
        raise ComponentError(f"{origin}: {name_of(make)} is async: a factory must return the component itself")
    return made


# -- stand-ins ----------------------------------------------------------------------------------------


def is_instance(component: object, expected: type) -> bool:
    """Like `isinstance`, but False for a protocol that is not runtime-checkable."""
    if getattr(expected, "_is_protocol", False) and not getattr(expected, "_is_runtime_protocol", False):
        return False
    return isinstance(component, expected)


def has_methods_of(component: object, expected: type) -> bool:
    """Whether the object has every public method of the class; a class without methods has no stand-ins.

    A method that is marked with `is_optional` may be missing.
    """
    return bool(_methods(expected)) and not missing_methods(component, expected)


def missing_methods(component: object, expected: type) -> list[str]:
    """Return the public methods of the class that the object does not have."""
    return [name for name in _methods(expected) if not callable(getattr(component, name, None))]


def _methods(expected: type) -> list[str]:
    declared: dict[str, object] = {}
    for each in reversed(expected.__mro__[:-1]):
        declared.update(vars(each))
    kinds = (FunctionType, classmethod, staticmethod)
    methods = [name for name, value in declared.items() if isinstance(value, kinds) and not name.startswith("_")]
    return [name for name in methods if not getattr(declared[name], "is_optional", False)]
