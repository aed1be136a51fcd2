"""What a request asks, in the words of the GenAI conventions, whichever API it is for."""

from typing import Any

from ...chat.wire import is_secret, without_secrets
from ..calls import Api
from ..parts import Asked, Message, as_dict, text_part
from .chat import chat_asked, completions_asked
from .messages import messages_asked
from .responses import responses_asked

_NUMBERS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "n": "gen_ai.request.choice.count",
    "dimensions": "gen_ai.embeddings.dimension.count",
}
_STOP, _STREAM = "gen_ai.request.stop_sequences", "gen_ai.request.stream"
_ENCODINGS, _OUTPUT_TYPE = "gen_ai.request.encoding_formats", "gen_ai.output.type"
# Everything that is recorded under a name of its own.
_KNOWN = frozenset(_NUMBERS) | {
    *("model", "messages", "prompt", "input", "instructions", "system", "tools", "functions"),
    *("stream", "stop", "stop_sequences", "encoding_format", "previous_response_id"),
}
_JSON_FORMATS = ("json_object", "json_schema", "json")


def asked(api: Api, request: dict[str, Any]) -> Asked:
    """Instructions, messages and tools of a request; parts of it that are malformed are left out."""
    match api:
        case "chat":
            return chat_asked(request)
        case "completions":
            return completions_asked(request)
        case "responses":
            return responses_asked(request)
        case "messages":
            return messages_asked(request)
    return Asked(messages=_texts(request.get("input")))


def _texts(texts: Any) -> list[Message]:
    """What is to be embedded."""
    found = texts if isinstance(texts, list) else [texts]
    return [{"role": "user", "parts": [text_part(text)]} for text in found if isinstance(text, str)]


def sampling_parameters(request: dict[str, Any]) -> dict[str, Any]:
    """The parameters that the conventions have names for."""
    found: dict[str, Any] = {}
    for key, value in request.items():
        name = _NUMBERS.get(key)
        if name is not None and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
            found[name] = value
    stop = request.get("stop") or request.get("stop_sequences")
    if stop:
        stops = stop if isinstance(stop, list) else [stop]
        found[_STOP] = [each for each in stops if isinstance(each, str)]
    if request.get("stream") is True:
        found[_STREAM] = True
    if isinstance(encoding := request.get("encoding_format"), str):
        found[_ENCODINGS] = [encoding]
    if (output := _output_type(request)) is not None:
        found[_OUTPUT_TYPE] = output
    return found


def _output_type(request: dict[str, Any]) -> str | None:
    """What kind of output is asked for, where it is not plain text."""
    inner = as_dict(request.get("text")).get("format") or as_dict(request.get("output_config")).get("format")
    wanted = as_dict(request.get("response_format") or inner or request.get("output_format"))
    if wanted.get("type") in _JSON_FORMATS:
        return "json"
    modalities = request.get("modalities")
    return "speech" if isinstance(modalities, list) and "audio" in modalities else None


def other_parameters(request: dict[str, Any]) -> dict[str, Any]:
    """The rest of a request: how tools are chosen, formats, and what only some engines know."""
    return {key: without_secrets(request[key]) for key in request if key not in _KNOWN and not is_secret(key)}
