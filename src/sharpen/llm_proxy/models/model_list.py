"""The model list: which upstreams answer for which model, in LiteLLM's form or in our plain one.

    {"model_name": "gpt", "litellm_params": {"model": "openai/gpt-4o", "api_key": "os.environ/OPENAI_API_KEY"}}
    {"name": "gpt", "model": "gpt-4o", "api_key": "env:OPENAI_API_KEY"}

A list that cannot work is refused with the number of the entry, the key and what to do. Values are not shown, except
in fields that hold numbers: a key may stand in the wrong place.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from ...checks import about, did_you_mean, listed
from ...errors import ConfigError, MissingExtraError
from .keys import check_reference, described, missing_variable, variable_of
from .litellm_form import has_litellm_form, plain_form, provider_of
from .model_entry import Engine, ModelEntry, Provider

__all__ = ["Engine", "ModelEntry", "Provider", "parse_model_list", "warn_of_missing_keys"]

log = logging.getLogger(__name__)

_ALIASES = {"name": "model_name", "api_base": "base_url"}
_KEYS = ModelEntry.__struct_fields__
_EXAMPLE = "{'name': 'qwen', 'base_url': 'http://127.0.0.1:8000/v1'}"
_WANTED = {
    "provider": "'openai' (also for compatible servers), 'anthropic', or 'litellm' for other providers, with a model "
    "such as 'cohere/command-r'",
    "engine": "'vllm', 'sglang', 'sharpen' or 'none', or omit it to detect it",
    "defaults": "a dict of request parameters",
    "headers": "a dict of header names to strings",
    "litellm_params": "a dict",
    "weights_version": "a string or a whole number",
}
_NUMBERS = ("weight", "rpm", "tpm", "timeout", "input_cost_per_token", "output_cost_per_token")


def parse_model_list(entries: Sequence[Mapping[str, Any] | ModelEntry]) -> list[ModelEntry]:
    """Check and read a model list."""
    if isinstance(entries, str | bytes | Mapping) or not isinstance(entries, Sequence):
        raise ConfigError(f"model_list is {described(entries)}: pass a list of dicts such as {_EXAMPLE}")
    return [_parsed(number, entry) for number, entry in enumerate(entries, start=1)]


def warn_of_missing_keys(entries: Sequence[ModelEntry]) -> None:
    """Asked in the process that will read the keys; they may still come, so it is no error yet."""
    for entry in entries:
        named = {"api_key": entry.api_key or ""} | {f"headers[{name!r}]": text for name, text in entry.headers.items()}
        for what, text in named.items():
            if (variable := missing_variable(text)) is not None:
                log.warning(
                    "%s of the model %r is %r, but the environment variable %s is not set for the gateway: "
                    "calls will fail until it is set",
                    what,
                    entry.model_name,
                    text,
                    variable,
                )


def _parsed(number: int, entry: Mapping[str, Any] | ModelEntry) -> ModelEntry:
    if isinstance(entry, ModelEntry):
        return entry
    try:
        if not isinstance(entry, Mapping):
            raise ConfigError(f"it is {described(entry)}: use a dict such as {_EXAMPLE}")
        return _entry(entry)
    except (ConfigError, MissingExtraError) as error:
        kind = ConfigError if isinstance(error, ConfigError) else MissingExtraError
        raise about(f"model_list.{number - 1}", kind(f"entry {number} of model_list: {error}")) from None


def _entry(entry: Mapping[str, Any]) -> ModelEntry:
    given = plain_form(entry) if has_litellm_form(entry) else entry
    values = {key: value for key, value in given.items() if value is not None}
    for alias, key in _ALIASES.items():
        if alias in values:
            values.setdefault(key, values.pop(alias))
    _check_keys(values)
    if "model_name" not in values:
        there = listed([str(key) for key in entry]) or "nothing"
        raise ConfigError(f"it has no model_name (it has {there}): add the name that agents ask for")
    if "base_url" not in values and "provider" not in values:
        values["provider"] = _public_provider(values)
    if isinstance(values.get("base_url"), str):
        values["base_url"] = _from_environment(values["base_url"])
    made = _converted(values)
    _check_extra(made)
    return made


def _public_provider(values: Mapping[str, Any]) -> Provider:
    """Of an entry without a URL. Prompts go nowhere by default: the model, its key or the entry says whose it is."""
    name = values.get("model") or values["model_name"]
    found = provider_of(name) if isinstance(name, str) else None
    if found is None and name and "api_key" not in values:
        raise ConfigError(
            "it does not say who serves the model: add the base_url of its server, such as "
            "'http://127.0.0.1:8000/v1', or a provider and an api_key for the public API of OpenAI or Anthropic"
        )
    return found or "openai"


def _check_keys(values: Mapping[str, Any]) -> None:
    for key in values:
        if key not in _KEYS:
            near = did_you_mean(str(key), [*_KEYS, *_ALIASES])
            raise ConfigError(
                f"it has the unknown key {key!r}.{near} Put request parameters into defaults and headers into headers"
            )


def _from_environment(url: str) -> str:
    variable = variable_of(url)
    if variable is None:
        return url
    check_reference(url, what="base_url")
    if not os.environ.get(variable):
        raise ConfigError(f"base_url is {url!r}, but the environment variable {variable} is not set here")
    return os.environ[variable]


def _converted(values: dict[str, Any]) -> ModelEntry:
    try:
        return msgspec.convert(values, ModelEntry)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        path = str(error).partition(" - at `$")[2]
        key = path.strip(".`").partition("[")[0].partition(".")[0]
        wanted = "a number" if key in _NUMBERS else _WANTED.get(key, "a string")
        problem = "is unknown" if isinstance(values.get(key), str) and key in ("provider", "engine") else ""
        raise ConfigError(f"{key} {problem or 'is ' + _kind_of(values.get(key), path)}: use {wanted}") from None


def _kind_of(value: object, path: str) -> str:
    """What kind of value stands in the wrong place, or holds it."""
    return described(value) + (" with a value of another kind" if "[" in path else "")


def _check_extra(entry: ModelEntry) -> None:
    if entry.provider == "litellm" and find_spec("litellm") is None:
        raise MissingExtraError(
            f"the model {entry.model_name!r} needs LiteLLM, which is not installed: pip install 'sharpen[litellm]'. "
            "If it is on an OpenAI-compatible server, prefix its model in litellm_params with 'openai/', "
            "or use base_url instead"
        )
