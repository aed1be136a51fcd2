"""Initial resources of a configuration: prompts and models by name.

initial_resources:
  prompt: {type: PromptTemplate, template_file: prompt.txt}
  main_llm: {type: LLM, endpoint: "http://localhost:8000/v1", model: small, api_key: "env:KEY"}
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...checks import did_you_mean
from ...errors import ConfigError
from ...secrets import shown
from ...types import LLM, NamedResources, PromptTemplate
from ...types.resources import ProxyLLM
from .sources import Path_
from .specs import Specs

KINDS: dict[str, type[Any]] = {"PromptTemplate": PromptTemplate, "LLM": LLM, "ProxyLLM": ProxyLLM}


def read_resources(given: Any, path: Path_, folder: Path, specs: Specs) -> NamedResources | None:
    """Return the resources; errors name the line."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ConfigError(f"{specs.at(path)} is {shown(given)}: use a mapping from names to resources")
    return {name: _read(each, (*path, name), folder, specs) for name, each in given.items()}


def _read(given: Any, path: Path_, folder: Path, specs: Specs) -> Any:
    if isinstance(given, str):
        return PromptTemplate(given)
    if not isinstance(given, Mapping):
        raise ConfigError(f"{specs.at(path)} is {shown(given)}: use a mapping with 'type', or the text of a prompt")
    name = given.get("type")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        hint = did_you_mean(str(name), KINDS) or f" Use {', '.join(KINDS)}."
        raise ConfigError(f"{specs.at((*path, 'type'))}: unknown resource type {name!r}.{hint}")
    arguments = {key: value for key, value in given.items() if key != "type"}
    fields = [each.name for each in msgspec.structs.fields(kind)]
    known = [*fields, "template_file"] if kind is PromptTemplate else fields
    specs.check_names(arguments, known, path, owner=kind.__name__)
    if "template_file" in arguments:
        arguments = _with_file(arguments, path, folder, specs)
    try:
        return msgspec.convert({"resource_type": kind.__struct_config__.tag, **arguments}, kind)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{specs.at(path)}: {error}") from error


def _with_file(arguments: dict[str, Any], path: Path_, folder: Path, specs: Specs) -> dict[str, Any]:
    place, text = specs.at((*path, "template_file")), arguments.pop("template_file")
    if "template" in arguments:
        raise ConfigError(f"{place}: template and template_file are both set: remove one of them")
    if not isinstance(text, str):
        raise ConfigError(f"{place} is {shown(text)}: use the path of a text file")
    try:
        return {**arguments, "template": (folder / text).read_text("utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{place}: cannot read {str(folder / text)!r}: {error}") from error
