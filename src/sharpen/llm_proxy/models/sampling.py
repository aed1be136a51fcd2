"""Sampling parameters that an entry of the model list gives to requests which lack them, in the words of each API."""

from collections.abc import Mapping
from typing import Any

from ..calls import Api

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_VECTORS = {"dimensions", "encoding_format", "user"}
_EVERYWHERE = {"temperature", "top_p", "top_k", "min_p", "metadata", "service_tier", "tool_choice", *_LIMITS}
_CHAT = {
    "response_format",
    "reasoning_effort",
    "verbosity",
    "parallel_tool_calls",
    "top_logprobs",
    "modalities",
    "prediction",
    "web_search_options",
}
_COMPLETIONS = {"echo", "best_of", "suffix"}
_TOKENS = {  # of chat and completions
    "stop",
    "n",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "length_penalty",
    "logit_bias",
    "logprobs",
    "stream_options",
    "min_tokens",
    "stop_token_ids",
    "bad_words",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "structured_outputs",
    "chat_template_kwargs",
}
_RESPONSES = {"reasoning", "text", "truncation", "store", "include", "parallel_tool_calls", "max_tool_calls"}
_MESSAGES = {"stop_sequences", "thinking", "output_config", "inference_geo"}
_SHARED = {"user", "safety_identifier", "prompt_cache_key", "store"}
_KNOWN: dict[Api, set[str]] = {
    "chat": _EVERYWHERE | _TOKENS | _CHAT | _SHARED,
    "completions": (_EVERYWHERE - {"tool_choice"}) | _TOKENS | _COMPLETIONS | {"user"},
    "responses": _EVERYWHERE | _RESPONSES | _SHARED,
    "messages": _EVERYWHERE | _MESSAGES,
    "embeddings": _VECTORS,
}
SAMPLING = frozenset().union(*_KNOWN.values())


def missing_defaults(api: Api, request: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults that a request lacks. What its API does not know is left out, what no API knows is passed on."""
    if not defaults:
        return {}
    found: dict[str, Any] = {}
    for name, value in defaults.items():
        if name in _LIMITS:
            name = _limit_name(api, name)  # noqa: PLW2901
            is_set = any(request.get(each) is not None for each in _LIMITS)
        else:
            is_set = request.get(name) is not None
        if not is_set and _is_known(api, name):
            found[name] = value
    return found


def _limit_name(api: Api, name: str) -> str:
    """How each API calls the longest answer."""
    if api == "responses":
        return "max_output_tokens"
    return name if api == "chat" and name != "max_output_tokens" else "max_tokens"


def _is_known(api: Api, name: str) -> bool:
    return name in _KNOWN[api] or (name not in SAMPLING and api != "embeddings")
