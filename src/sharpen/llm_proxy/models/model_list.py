"""The model list: which upstreams answer for which model, in LiteLLM's form or in our plain one.

    {"model_name": "gpt", "litellm_params": {"model": "openai/gpt-4o", "api_key": "os.environ/OPENAI_API_KEY"}}
    {"name": "gpt", "model": "gpt-4o", "api_key": "env:OPENAI_API_KEY"}

A list that cannot work is refused with the number of the entry, the key, its value and what to do.
"""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from ...components.messages import shown, suggestion
from ...errors import ConfigError, MissingExtraError
from .keys import variable_of
from .litellm_form import has_litellm_form, plain_form, provider_of
from .model_entry import Engine, ModelEntry, Provider

__all__ = ["Engine", "ModelEntry", "Provider", "parse_model_list"]

_ALIASES = {"name": "model_name", "api_base": "base_url"}
_KEYS = ModelEntry.__struct_fields__


def parse_model_list(entries: Sequence[Mapping[str, Any] | ModelEntry]) -> list[ModelEntry]:
    """Check and read a model list."""
    if isinstance(entries, str | bytes | Mapping) or not isinstance(entries, Sequence):
        raise ConfigError(f"model_list is {shown(entries)}: give a list of entries, each a dict")
    return [_parsed(number, entry) for number, entry in enumerate(entries, start=1)]


def _parsed(number: int, entry: Mapping[str, Any] | ModelEntry) -> ModelEntry:
    if isinstance(entry, ModelEntry):
        return entry
    if not isinstance(entry, Mapping):
        raise ConfigError(f"entry {number} of model_list is {shown(entry)}: give a dict such as {{'name': 'gpt-4o'}}")
    try:
        return _entry(entry)
    except ConfigError as error:
        raise ConfigError(f"entry {number} of model_list: {error}") from None
    except MissingExtraError as error:
        raise MissingExtraError(f"entry {number} of model_list: {error}") from None


def _entry(entry: Mapping[str, Any]) -> ModelEntry:
    values = plain_form(entry) if has_litellm_form(entry) else _filled(entry)
    for alias, key in _ALIASES.items():
        if alias in values:
            values.setdefault(key, values.pop(alias))
    _check_keys(values)
    if "model_name" not in values:
        raise ConfigError(f"it has no model_name ({shown(dict(entry))}): give the name that agents ask for")
    if isinstance(values.get("base_url"), str):
        values["base_url"] = _from_environment(values["base_url"])
    made = _converted(values)
    _check_extra(made)
    return made


def _filled(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A plain entry, with the provider where its model gives it away."""
    values = dict(entry)
    if "provider" not in values and "base_url" not in values and "api_base" not in values:
        name = values.get("model") or values.get("model_name") or values.get("name")
        values["provider"] = provider_of(name) if isinstance(name, str) else "openai"
    return values


def _check_keys(values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if key not in _KEYS:
            near = suggestion(str(key), [*_KEYS, *_ALIASES])
            raise ConfigError(
                f"it has the unknown key {key!r} (value {shown({key: value})}).{near} "
                "Request parameters go into defaults, headers into headers"
            )


def _from_environment(url: str) -> str:
    variable = variable_of(url)
    if variable is None:
        return url
    if not os.environ.get(variable):
        raise ConfigError(f"base_url is {url!r}, but the environment variable {variable} is not set here")
    return os.environ[variable]


def _converted(values: dict[str, Any]) -> ModelEntry:
    try:
        return msgspec.convert(values, ModelEntry)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        what, _, path = str(error).partition(" - at `$")
        key = path.strip(".`").partition("[")[0].partition(".")[0]
        value = shown({key: values.get(key)})
        raise ConfigError(f"{key or 'the entry'} is wrong ({value}): {what[:1].lower()}{what[1:]}") from None


def _check_extra(entry: ModelEntry) -> None:
    if entry.provider == "litellm" and find_spec("litellm") is None:
        model = entry.model or entry.model_name
        raise MissingExtraError(
            f"the model {model!r} is asked through LiteLLM, which is not installed: pip install 'sharpen[litellm]'. "
            f"If {model!r} is the name of a model on an OpenAI-compatible server, write 'openai/{model}' "
            "in litellm_params, or the plain form with base_url"
        )
