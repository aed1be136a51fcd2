"""From a spec to a component.

A spec is an instance, a class, a factory without arguments, a name, an import path, a dict with `type`, or `None`.
Errors name the spec and show its value; what a constructor or a factory raises itself passes unchanged.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_origin, overload

from ..checks import did_you_mean, listed
from ..errors import ComponentError, ComponentTypeError
from .conformance import has_methods_of, is_instance, missing_methods
from .construct import construct, instantiate_component
from .messages import Origin, name_of
from .paths import load_class, load_from
from .registry import DEFAULT_REGISTRY, Maker, Target, classes_in_main

__all__ = ["ComponentSpec", "build_component", "instantiate_component", "instantiate_from_spec", "load_class"]

T = TypeVar("T")
ComponentSpec: TypeAlias = T | type[T] | Callable[[], T] | str | Mapping[str, Any] | None
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
    """The component that a spec asks for, checked against `expected_type`.

    The formats replace the first words of an error; their fields are `type` (also `type_name`, `actual_type`,
    `spec_type`), `expected` (also `expected_type`) and `spec_name`.
    """
    given = default_factory if spec is None else spec
    if given is None and allow_none:
        return None
    reading = _Reading(registry, optional_defaults or {}, dict_requires_type, dict_default_cls)
    origin = Origin(spec_name, given)
    component = _make(given, expected_type, reading, origin, invalid_spec_error_fmt)
    _check_type(component, expected_type, origin, type_error_fmt)
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
    """The object that a name, an import path or a dict asks for, of whatever type it is."""
    if not isinstance(spec, (str, Mapping)):
        raise ComponentTypeError(f"{spec_name} spec must be a string or dict, but it is {type(spec)}")
    reading = _Reading(registry, optional_defaults or {}, dict_requires_type, dict_default_cls)
    return _read(spec, reading, Origin(spec_name, spec))


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
    # A stand-in, or a wrong part: the check of its type tells what it lacks.
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
    message = f"{origin} gave a {name_of(type(component))}, which is not a {expected.__name__}"
    if fmt is not None:
        message = _formatted(fmt, type(component), expected, origin)
    missing = missing_methods(component, expected)
    raise ComponentTypeError(f"{message}; it lacks {listed(missing)}" if missing else message)


def _no_spec(expected: type, origin: Origin, fmt: str | None) -> ComponentError:
    if fmt is not None:
        return ComponentError(_formatted(fmt, type(origin.spec), expected, origin))
    if origin.spec is None:
        return ComponentError(f"{origin.spec_name} cannot be None: a {expected.__name__} is needed. Give {_FORMS}")
    return ComponentError(f"{origin} is no spec of {expected.__name__}: give {_FORMS}")


def _formatted(fmt: str, actual: type, expected: type, origin: Origin) -> str:
    # Several names for one value: the first is ours, the others are in formats that people bring along.
    of_actual = dict.fromkeys(("type", "type_name", "actual_type", "spec_type"), actual)
    of_expected = dict.fromkeys(("expected", "expected_type"), expected.__name__)
    return fmt.format(**of_actual, **of_expected, spec_name=origin.spec_name)
