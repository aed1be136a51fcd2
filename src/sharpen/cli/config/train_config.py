"""`TrainConfig`: a configuration file that was read and checked, and the components that it describes.

Reading checks everything that can be checked without building: the YAML, the names of keys and components, missing
files. Components are built on request, and errors then name the line of the setting.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ...checks import did_you_mean
from ...errors import ConfigError, SharpenError
from ...secrets import shown
from ...types import Dataset
from .document import Document, read_document
from .environment import References
from .imports import add_folder, load
from .overrides import apply_overrides
from .resources import read_resources
from .sources import DEFAULT, Path_, Source, dotted, settings_named
from .specs import Specs, located
from .tasks import Tasks

if TYPE_CHECKING:
    from ...litagent import LitAgent
    from .recording_trainer import RecordingTrainer

Kind = Literal["agents", "simulator", "fine-tuning"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_CALLED = {"server_port": "port"}
"""The name that a component uses for a key of the file, and that key."""
EVERYWHERE = ("kind", "folder", "name", "run_dir")
"""Keys of every kind. Paths are relative to `folder` if it is set, otherwise to the folder of the file."""


class TrainConfig:
    """Made by `load_config`.

    `values` are those of the file, with overrides and variables applied; `source(path)` is where one came from.
    """

    kept_in: Path | None = None
    """The folder of its run, once the run has started."""

    def __init__(self, path: Path, document: Document, references: References) -> None:
        self.path, self.references = path, references
        self.values: dict[str, Any] = references.resolve(document)
        self._sources, self._name = document.sources, document.name
        self.kind: Kind = self._read_kind()
        self.folder = self._read_folder()
        add_folder(self.folder)
        self.specs = Specs(self.folder, self.source, _names_of(self.kind))
        self.tasks = Tasks(self.folder, self.specs)

    def found_in(self, folder: Path) -> None:
        """Record that its run has started in this folder."""
        self.kept_in = folder

    # -- where values came from ----------------------------------------------------------------------

    def source(self, path: Path_) -> Source:
        """Return where a value came from; for one that is not set, where the nearest value around it did."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._sources:
                return self._sources[path[:end]]
        return self._sources.get((), Source("file", self._name, 1))

    def origin(self, path: Path_) -> Source:
        """Return where exactly this value came from; `DEFAULT` if it is not set."""
        return self._sources.get(path, DEFAULT)

    def leaves(self) -> Iterator[tuple[Path_, Any]]:
        """Yield every value that is set, with its path."""
        yield from _leaves(self.values, ())

    def hide(self, text: str) -> str:
        """Return a text with the secrets of the environment replaced by their references."""
        return self.references.hide(text)

    def hidden(self, value: Any) -> Any:
        """Return a value with these secrets replaced in all its strings."""
        return _mapped(value, (), lambda _, each: self.hide(each) if isinstance(each, str) else each)

    def shown_value(self, path: Path_, value: Any) -> Any:
        """Return a value as it may be shown: the reference if it is a secret."""
        if path in self.references.secret_paths:
            return self.references.texts[path]
        return self.references.literals.get(path, value)

    def resolved(self) -> dict[str, Any]:
        """Return the values as they may be shown: secrets as references, paths relative to `folder`."""
        return {**_mapped(self.values, (), self.shown_value), "folder": str(self.folder)}

    def kept(self) -> dict[str, Any]:
        """Return the same in a form that can be loaded again: literal `${` is escaped."""
        return {**_mapped(self.values, (), self._kept_value), "folder": str(self.folder).replace("${", "$${")}

    def _kept_value(self, path: Path_, value: Any) -> Any:
        found = self.shown_value(path, value)
        is_reference = path in self.references.secret_paths or path in self.references.literals
        return found.replace("${", "$${") if isinstance(found, str) and not is_reference else found

    @contextmanager
    def locating(self, path: Path_ = ()) -> Iterator[None]:
        """Add the line of the setting an error is about, otherwise that of `path`, to errors in the block, and hide
        secrets."""
        try:
            yield
        except SharpenError as error:
            text = str(error)
            if text.startswith(f"{self._name}:") or text.startswith("override "):
                raise type(error)(self.hide(text)) from error
            found = located(error, self._path_of(error) or path, self.source)
            raise type(found)(self.hide(str(found))) from error

    @contextmanager
    def hiding(self) -> Iterator[None]:
        """Hide secrets in errors of a run."""
        try:
            yield
        except SharpenError as error:
            if (text := self.hide(str(error))) == str(error):
                raise
            raise type(error)(text) from None

    def _path_of(self, error: SharpenError) -> Path_:
        """The path of the setting an error is about; of several with its name, the one whose value the error names."""
        text = str(error)
        for name in settings_named(error):
            fitting = self._paths_to(name) or self._paths_to(_CALLED.get(name, name))
            if fitting:
                return min(
                    fitting, key=lambda path: (not self._is_named(path, text), not self._is_override(path), len(path))
                )
        return ()

    def _paths_to(self, name: str) -> list[Path_]:
        """Those that end with a dotted name; the number of a place in a list is not a name."""
        named = [path for path in self._sources if path and isinstance(path[-1], str)]
        return [path for path in named if path[-1] == name or dotted(path).endswith(f".{name}")]

    def _is_named(self, path: Path_, text: str) -> bool:
        """Whether a message names the value at a path, and not only as a part of another word or number."""
        value: Any = self.values
        for key in path:
            value = value[key]
        return re.search(rf"(?<![\w.]){re.escape(shown(value))}(?!\w|\.\d)", text) is not None

    def _is_override(self, path: Path_) -> bool:
        return self._sources[path].kind == "override"

    # -- the parts -----------------------------------------------------------------------------------

    def agent(self) -> "LitAgent[Any]":
        """Return the agent; its module is imported with the folder of the file on `sys.path`."""
        from ...litagent import LitAgent, as_agent

        self.require("agents")
        given = self.values.get("agent")
        if given is None:
            raise ConfigError(f"{self._name} has no agent: set agent: 'file.py:name' or 'module:name'")
        with self.locating(("agent",)):
            if isinstance(given, Mapping):
                return as_agent(self.specs.build(given, ("agent",)))
            found = load(given, self.folder, self.specs.at(("agent",)))
            is_class = isinstance(found, type) and issubclass(found, LitAgent)
            return as_agent(self.specs.build(given, ("agent",)) if is_class else found)

    def datasets(self) -> tuple[Dataset[Any] | None, Dataset[Any] | None]:
        """Return the training and the validation tasks."""
        return self.dataset("train_dataset"), self.dataset("val_dataset")

    def dataset(self, key: str) -> Dataset[Any] | None:
        """Return the data set under a key."""
        with self.locating():
            return self.tasks.read(self.values.get(key), (key,))

    def trainer(self, **changes: Any) -> "RecordingTrainer":
        """Return a `Trainer` with every component that the file names; `changes` override the file."""
        from .agent_keys import COMPONENTS, trainer_keys
        from .recording_trainer import RecordingTrainer

        self.require("agents")
        keys = [key for key in trainer_keys() if key in self.values and key not in changes]
        with self.locating():
            parts: dict[str, Any] = {key: self.values[key] for key in keys}
            for key in COMPONENTS:
                if key in parts:
                    parts[key] = self.specs.ready(parts[key], (key,))
            if "initial_resources" in parts:
                parts["initial_resources"] = self.resources()
            self._try_gateway(changes.get("llm_proxy", parts.get("llm_proxy")))
            trainer = RecordingTrainer(**parts, **changes)
        kept = self.resolved()
        trainer.hidden, trainer.secrets = self.hidden, self.references.secrets
        trainer.shown_specs = {key: kept[key] for key in COMPONENTS if key in parts}
        return trainer

    def _try_gateway(self, spec: Any) -> None:
        """Build the gateway once to find errors: the trainer builds it only after the run has started."""
        if isinstance(spec, Mapping):
            self.specs.build({"type": "LLMProxy", **spec}, ("llm_proxy",))

    def resources(self) -> Any:
        """Return the initial resources. API keys from the environment stay references, as they must not be saved."""
        given = _mapped(self.values.get("initial_resources"), ("initial_resources",), self._as_reference)
        return read_resources(given, ("initial_resources",), self.folder, self.specs)

    def _as_reference(self, path: Path_, value: Any) -> Any:
        text = self.references.texts.get(path, "")
        name = text.removeprefix("${").removesuffix("}")
        return f"env:{name}" if path[-1] == "api_key" and name.isidentifier() else value

    # -- checking ------------------------------------------------------------------------------------

    def require(self, kind: Kind) -> None:
        """Raise an error for a configuration of another kind."""
        if self.kind != kind:
            raise ConfigError(f"{self._name} has kind {self.kind!r}, but this needs kind {kind!r}")

    def check_keys(self, known: Sequence[str]) -> None:
        """Refuse top-level keys that this kind does not have."""
        keys = list(dict.fromkeys([*EVERYWHERE, *known]))
        for key in self.values:
            if key not in keys:
                hint = did_you_mean(key, keys) or f" Keys of kind {self.kind!r}: {', '.join(sorted(keys))}."
                raise ConfigError(f"{self.source((key,)).exact()}: unknown key {key!r}.{hint}")

    def _read_kind(self) -> Kind:
        kind = self.values.get("kind", "agents")
        if kind not in KINDS:
            hint = did_you_mean(str(kind), KINDS) or f" Use one of {', '.join(KINDS)}."
            raise ConfigError(f"{self.source(('kind',)).exact()}: kind is {kind!r}.{hint}")
        return kind  # type: ignore[no-any-return]

    def _read_folder(self) -> Path:
        given = self.values.get("folder", ".")
        folder = (self.path.parent / str(given)).resolve()
        if not isinstance(given, str) or not folder.is_dir():
            raise ConfigError(f"{self.source(('folder',)).exact()}: folder is {given!r}, which is not a folder")
        return folder


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a configuration file and apply `key=value` overrides. Mistakes raise a `ConfigError` that names the line."""
    file = Path(path)
    if file.is_dir():
        file = file / "config.yaml"
    document = read_document(file, file.name)
    if document.value is None:
        document.value = {}
    if not isinstance(document.value, dict):
        raise ConfigError(
            f"{file.name}:1: the file contains a {type(document.value).__name__}, not a mapping: write 'key: value'"
        )
    apply_overrides(document, overrides)
    config = TrainConfig(file.resolve(), document, References())
    with config.locating():
        _check(config)
    return config


def _check(config: TrainConfig) -> None:
    if config.kind == "simulator":
        from .simulator import check
    elif config.kind == "fine-tuning":
        from .fine_tuning import check
    else:
        from .agent_keys import check
    check(config)


def _names_of(kind: Kind) -> dict[str, str]:
    if kind == "simulator":
        from .simulator import NAMES

        return NAMES
    if kind == "fine-tuning":
        from .fine_tuning import NAMES

        return NAMES
    return {}


def _leaves(value: Any, path: Path_) -> Iterator[tuple[Path_, Any]]:
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _leaves(each, (*path, key))
    elif isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        for number, each in enumerate(value):
            yield from _leaves(each, (*path, number))
    else:
        yield path, value


def _mapped(value: Any, path: Path_, change: Callable[[Path_, Any], Any]) -> Any:
    """Return the same value with every leaf changed."""
    if isinstance(value, dict):
        return {key: _mapped(each, (*path, key), change) for key, each in value.items()}
    if isinstance(value, list):
        return [_mapped(each, (*path, number), change) for number, each in enumerate(value)]
    return change(path, value)
