"""LiteLLM's form of an entry of the model list, turned into our plain one.

OpenAI-compatible servers and Anthropic are asked directly; every other provider through LiteLLM itself.
"""

import re
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from .keys import described
from .model_entry import Provider
from .sampling import SAMPLING

# Names of servers that speak OpenAI's API; the model's name follows the slash.
_COMPATIBLE = {
    "openai",
    "custom_openai",
    "openai_like",
    "text-completion-openai",
    "hosted_vllm",
    "litellm_proxy",
    "lm_studio",
    "llamafile",
}
_SAME = ("api_key", "rpm", "tpm", "weight", "input_cost_per_token", "output_cost_per_token")
_RENAMED = {"api_base": "base_url", "base_url": "base_url", "extra_headers": "headers", "headers": "headers"}
_OURS = {
    "num_retries": "pass num_retries to LLMProxy",
    "max_retries": "pass num_retries to LLMProxy",
    "cooldown_time": "the gateway avoids failing upstreams automatically",
    "max_parallel_requests": "use rpm and tpm",
    "mock_response": "use LLMProxy(mode='replay')",
}
_KEY_VARIABLES: dict[Provider, str] = {"openai": "env:OPENAI_API_KEY", "anthropic": "env:ANTHROPIC_API_KEY"}
_OPENAI_NAMES = re.compile(r"(ft:)?(gpt-|chatgpt-|o\d|text-embedding-|davinci-|babbage-|codex-|computer-use-)")
_INFORMATION = ("input_cost_per_token", "output_cost_per_token", "weights_version")


def has_litellm_form(entry: Mapping[str, Any]) -> bool:
    params = entry.get("litellm_params")
    return entry.get("provider") != "litellm" and params is not None


def provider_of(model: str) -> Provider | None:
    """Who has a model of this name, where its name says so."""
    if model.startswith("claude-"):
        return "anthropic"
    return "openai" if _OPENAI_NAMES.match(model) else None


def plain_form(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `ModelEntry`."""
    params = entry["litellm_params"]
    if not isinstance(params, Mapping):
        raise ConfigError(f"litellm_params is {described(params)}: use a dict with a model such as 'openai/gpt-4o'")
    if not isinstance(params.get("model"), str) or not params["model"]:
        problem = "is missing or empty" if not params.get("model") else f"is {described(params['model'])}"
        raise ConfigError(f"the model of litellm_params {problem}: use a model such as 'openai/gpt-4o'")
    rest = dict(params)
    values = _whom_to_ask(rest)
    values |= _settings(rest)
    if values["provider"] == "litellm":
        values["litellm_params"] = rest
    else:
        values["defaults"] = _defaults(rest)
        if "base_url" not in values:
            values.setdefault("api_key", _KEY_VARIABLES[values["provider"]])
    information = entry.get("model_info") or {}
    if not isinstance(information, Mapping):
        raise ConfigError(f"model_info is {described(information)}: use a dict")
    values |= {name: information[name] for name in _INFORMATION if information.get(name) is not None}
    return values | {key: value for key, value in entry.items() if key not in ("litellm_params", "model_info")}


def _whom_to_ask(params: dict[str, Any]) -> dict[str, Any]:
    """Provider and model; what says so is taken out of `params`."""
    written = params.pop("model")
    has_url = bool(params.get("api_base") or params.get("base_url"))
    given = params.get("custom_llm_provider")
    prefix, slash, rest = written.partition("/")
    prefix, model = (given, written) if given and given != prefix else (prefix, rest if slash else written)
    if not slash and not given:
        prefix = _unwritten_provider(written, has_url=has_url)
    if prefix == "anthropic" or prefix in _COMPATIBLE:
        params.pop("custom_llm_provider", None)
        found: dict[str, Any] = {"provider": "anthropic" if prefix == "anthropic" else "openai", "model": model}
        return found | ({"engine": "vllm"} if prefix == "hosted_vllm" else {})
    return {"provider": "litellm", "model": written}


def _unwritten_provider(model: str, *, has_url: bool) -> str:
    provider = "openai" if has_url else provider_of(model)
    if provider is None:
        raise ConfigError(
            "the model of litellm_params has no provider: write it as 'openai/<model>', or add the api_base of "
            "its server"
        )
    return provider


def _settings(params: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in _SAME:
        if (value := params.pop(name, None)) is not None:
            values[name] = value
    for name, ours in _RENAMED.items():
        if (value := params.pop(name, None)) is not None:
            values[ours] = value
    for name in ("timeout", "request_timeout", "stream_timeout"):
        if (value := params.pop(name, None)) is not None:
            values.setdefault("timeout", value)
    if (organization := params.pop("organization", None)) is not None:
        values["headers"] = {"openai-organization": organization, **values.get("headers", {})}
    for name, instead in _OURS.items():
        if params.get(name) is not None:
            raise ConfigError(f"litellm_params has {name}, which is not supported: {instead}")
    return values


def _defaults(params: Mapping[str, Any]) -> dict[str, Any]:
    """The request parameters of an upstream that is asked directly."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        if name == "extra_body" and isinstance(value, Mapping):
            found |= value
        elif name in SAMPLING:
            found[name] = value
        elif value is not None and name not in ("drop_params", "additional_drop_params"):
            raise ConfigError(
                f"litellm_params has the unknown key {name!r}: put request parameters of the server into extra_body"
            )
    return found
