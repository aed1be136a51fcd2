"""The configuration file of `sharpen gateway`: the keywords of `LLMProxy`, with line numbers in errors.

`${NAME}` reads the environment, as in every configuration. The key of an upstream should be a reference, `env:NAME`,
which the gateway reads when it is used.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...checks import setting_of
from ...errors import ConfigError, SharpenError
from .arguments import argument_names
from .document import Document, read_document
from .environment import References
from .imports import add_folder
from .overrides import apply_overrides
from .sources import Path_, Source
from .specs import Specs, located

if TYPE_CHECKING:
    from ...llm_proxy import LLMProxy

_NOT_IN_FILES = ("store", "launch_mode")
"""What the command sets itself."""


class GatewayConfig:
    """Made by `read_gateway_config`. `values` are arguments of `LLMProxy`; options override them."""

    def __init__(self, name: str, document: Document, folder: Path, *, has_file: bool) -> None:
        self._has_file = has_file
        self._name, self._sources, self._references = name, document.sources, References()
        self.values: dict[str, Any] = self._references.resolve(document)
        add_folder(folder)  # for the hook that `redact` names
        from ...llm_proxy import LLMProxy

        known = [each for each in argument_names(LLMProxy) or () if each not in _NOT_IN_FILES]
        Specs(folder, self._source).check_names(self.values, known, (), owner="a gateway")
        record = self.values.get("record")
        if isinstance(record, str):
            self.values["record"] = str(folder / record)

    def gateway(self, **options: Any) -> "LLMProxy":
        """Return the gateway, still without a store; errors name the line and hide secrets."""
        from ...llm_proxy import LLMProxy

        try:
            return LLMProxy(**{**self.values, **options}, launch_mode="thread")
        except SharpenError as error:
            # With --model the entries of the file are not numbered as they are there.
            is_numbered_otherwise = "model_list" in options and (setting_of(error) or "").startswith("model_list.")
            found = located(error, (), self._source) if self._has_file and not is_numbered_otherwise else error
            raise type(found)(self._references.hide(str(found))) from None

    def _source(self, path: Path_) -> Source:
        """Return where a value came from; for one that is not set, where the nearest value around it did."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._sources:
                return self._sources[path[:end]]
        return self._sources.get((), Source("file", self._name, 1))


def read_gateway_config(path: str | None, overrides: Sequence[str] = ()) -> GatewayConfig:
    """Read the file of a gateway and apply overrides; without a file there are only the overrides."""
    file = None if path is None else Path(path)
    name = "the gateway" if file is None else file.name
    document = Document("{}", name) if file is None else read_document(file, name)
    if document.value is None:
        document.value = {}
    if not isinstance(document.value, Mapping):
        raise ConfigError(
            f"{name}:1: the file contains a {type(document.value).__name__}, not a mapping: write 'key: value'"
        )
    apply_overrides(document, overrides)
    folder = Path.cwd() if file is None else file.resolve().parent
    return GatewayConfig(name, document, folder, has_file=file is not None)
