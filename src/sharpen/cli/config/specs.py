"""The component specs of a configuration: checked, with line numbers in errors, and prepared for building.

A spec is a name, an import path, or a dict with `type` and arguments; `type` may also be `file.py:name`. Specs inside
the arguments of another are built before it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...checks import did_you_mean, listed
from ...components import DEFAULT_REGISTRY, load_class
from ...components.build import construct
from ...components.paths import Origin, is_address, name_of
from ...errors import ComponentTypeError, ConfigError, MissingExtraError, SharpenError
from ...secrets import shown
from .arguments import Maker, argument_names, is_verl, unknown_verl_key, verl_leaves
from .imports import is_import_path, load
from .sources import Path_, Source, dotted, keys_of, settings_named

_ROOMS = {
    key: key for key in ("tracer", "adapter", "store", "runner", "algorithm", "llm_proxy", "callbacks", "loggers")
}
_ROOMS |= {"strategy": "execution", "agent": "litagent"}
"""The package that the components of each key come from."""


class Specs:
    """`names` are those that this kind of configuration adds to the registry; `place` returns where a value is set."""

    def __init__(self, folder: Path, place: Callable[[Path_], Source], names: Mapping[str, str] | None = None) -> None:
        self._folder, self._place, self._names = folder, place, names or {}

    # -- finding -------------------------------------------------------------------------------------

    def is_spec(self, value: object) -> bool:
        """Whether a dict is a component spec, rather than an argument that happens to have a `type` key."""
        kind = value.get("type") if isinstance(value, Mapping) else None
        return isinstance(kind, str) and (kind in self._known or "." in kind or is_import_path(kind))

    @property
    def _known(self) -> dict[str, Any]:
        return {**DEFAULT_REGISTRY, **self._names}

    def find(self, name: str, path: Path_) -> Any:
        """Return what a name, an import path or `file.py:name` resolves to."""
        if is_import_path(name):
            return load(name, self._folder, self.at(path))
        target = self._known.get(name, name)
        if not isinstance(target, str):
            return target
        if "." not in target:
            fitting = self._fitting(path)
            hint = did_you_mean(name, fitting) or f" Known names: {listed(fitting, limit=12)}."
            raise ConfigError(f"{self.at(path)}: there is no component named {name!r}.{hint}")
        try:
            return load_class(target)
        except SharpenError as error:
            raise type(error)(f"{self.at(path)}: {error}") from error

    def _fitting(self, path: Path_) -> list[str]:
        """Return the names that fit: under the key of a component, those of its package and registered ones."""
        names = [part for part in path if isinstance(part, str) and part != "type"]
        room = _ROOMS.get(names[0]) if len(names) == 1 else None
        others = tuple(f"sharpen.{each}." for each in _ROOMS.values() if room is not None and each != room)
        return sorted(name for name, target in self._known.items() if not str(target).startswith(others))

    def at(self, path: Path_) -> str:
        """Return the place and the name of a value, for the beginning of a message."""
        source = self._place(path)
        place = source.exact() if source.kind == "file" else str(source)
        return f"{place}: {dotted(path)}"

    # -- checking ------------------------------------------------------------------------------------

    def check(self, spec: Any, path: Path_, *, default: Maker | None = None) -> None:
        """Refuse unknown names, and arguments that the component does not take."""
        if isinstance(spec, list):
            for number, each in enumerate(spec):
                self.check(each, (*path, number), default=default)
        elif isinstance(spec, str):
            self.find(spec, path)
        elif isinstance(spec, Mapping):
            self._check_dict(spec, path, default)
        elif spec is not None:
            raise ConfigError(f"{self.at(path)} is {shown(spec)}: use a name, an import path, or a mapping with 'type'")

    def _check_dict(self, spec: Mapping[str, Any], path: Path_, default: Maker | None) -> None:
        kind = spec.get("type")
        if kind is None and default is None:
            raise ConfigError(f"{self.at(path)} has no 'type': set it to the name of a component or an import path")
        if kind is not None and not isinstance(kind, str):
            raise ConfigError(f"{self.at((*path, 'type'))} is {shown(kind)}: use a name or an import path")
        make = default if kind is None else self.find(kind, (*path, "type"))
        given = {key: value for key, value in spec.items() if key != "type"}
        if make is None or not (isinstance(make, type) or callable(make)):
            raise ConfigError(f"{self.at((*path, 'type'))} resolves to {shown(make)}, which is not a class")
        self.check_names(given, argument_names(make), path, owner=name_of(make))
        if is_verl(make) and isinstance(spec.get("config"), Mapping):
            self._check_verl(spec["config"], (*path, "config"))
            del given["config"]
        for key, value in given.items():
            self._check_inner(value, (*path, key))

    def check_names(self, given: Mapping[str, Any], known: list[str] | None, path: Path_, *, owner: str) -> None:
        """Refuse the first unknown key, and suggest the nearest known one."""
        for key in given if known is not None else ():
            if key not in (known or ()):
                hint = did_you_mean(key, known or ()) or f" Known keys: {listed(known or [], limit=12) or 'none'}."
                raise ConfigError(f"{self._place((*path, key)).exact()}: {owner} has no option {key!r}.{hint}")

    def _check_verl(self, config: Mapping[str, Any], path: Path_) -> None:
        for keys, name in verl_leaves(config):
            if (said := unknown_verl_key(name)) is not None:
                raise ConfigError(f"{self._place((*path, *keys)).exact()}: {said}")

    def _check_inner(self, value: Any, path: Path_) -> None:
        if self.is_spec(value):
            self._check_dict(value, path, None)
        elif isinstance(value, Mapping):
            for key, each in value.items():
                self._check_inner(each, (*path, key))
        elif isinstance(value, list):
            for number, each in enumerate(value):
                self._check_inner(each, (*path, number))

    # -- making ready --------------------------------------------------------------------------------

    def ready(self, spec: Any, path: Path_) -> Any:
        """Return a spec as a trainer takes it: files are imported, and specs in its arguments are built."""
        if isinstance(spec, list):
            return [self.ready(each, (*path, number)) for number, each in enumerate(spec)]
        if isinstance(spec, str):
            is_ours = (is_import_path(spec) and not is_address(spec)) or spec in self._names
            return self.find(spec, path) if is_ours else spec
        if not isinstance(spec, Mapping):
            return spec
        found = {key: self._argument(value, (*path, key), {}) for key, value in spec.items() if key != "type"}
        kind = spec.get("type")
        if kind is not None:
            is_ours = is_import_path(kind) or kind in self._names
            found = {"type": self.find(kind, (*path, "type")) if is_ours else kind, **found}
        return found

    def build(self, spec: Any, path: Path_, offered: Mapping[str, Any] | None = None) -> Any:
        """Build the object that a spec describes. `offered` are arguments for every component in it that takes them."""
        if isinstance(spec, str):
            found = self.find(spec, path)
            return self._construct(found, {}, offered, path, spec) if isinstance(found, type) else found
        if not isinstance(spec, Mapping):
            return spec
        make = self._class_of(spec["type"], (*path, "type"))
        given = {key: self._argument(value, (*path, key), offered) for key, value in spec.items() if key != "type"}
        return self._construct(make, given, offered, path, spec)

    def _class_of(self, kind: Any, path: Path_) -> Any:
        """Return the class that a type names; a class is returned unchanged."""
        return self.find(kind, path) if isinstance(kind, str) else kind

    def _argument(self, value: Any, path: Path_, offered: Mapping[str, Any] | None) -> Any:
        if self.is_spec(value):
            return self.build(value, path, offered)
        if isinstance(value, Mapping):
            return {key: self._argument(each, (*path, key), offered) for key, each in value.items()}
        if isinstance(value, list):
            return [self._argument(each, (*path, number), offered) for number, each in enumerate(value)]
        return value

    def _construct(
        self, make: Maker, given: Mapping[str, Any], offered: Mapping[str, Any] | None, path: Path_, spec: Any
    ) -> Any:
        try:
            return construct(make, given, offered or {}, Origin(dotted(path), spec))
        except SharpenError as error:
            raise located(error, path, self._place) from error
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.at(path)}: {name_of(make)}: {error}") from error


def located(error: SharpenError, path: Path_, place: Callable[[Path_], Source]) -> SharpenError:
    """Return the error of a component with the place of the setting it is about, otherwise of the component."""
    around = place(path)
    inner = (place((*path, *keys_of(each))) for each in settings_named(error))
    source = next((each for each in inner if each != around), around)
    at = source.exact() if source.kind == "file" else str(source)
    kind = type(error) if isinstance(error, ConfigError | ComponentTypeError | MissingExtraError) else ConfigError
    return kind(f"{at}: {error}")
