"""`LiteLLMUpstream`: every provider that is not asked directly, through the package `litellm`.

LiteLLM answers in objects; they are written again in the form of the API that was called. Its own retries, call home
and hints on the terminal are off. Its errors become answers with their status; a key in their words is taken out.
LiteLLM takes the fields of a request and its own settings, such as the URL that the key goes to, in one heap: only
fields that are known to belong to requests are passed on.
"""

import os
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import msgspec

from ...errors import ConfigError, MissingExtraError, text_of
from ...http.client import Unsent
from ..calls import Api, Call, Refusal, UpstreamAnswer
from ..models.keys import HIDDEN, resolve, variable_of
from ..models.model_entry import ModelEntry
from ..models.sampling import SAMPLING
from .litellm_answers import StreamAnswer, WholeAnswer, encoded, error_body
from .outgoing import changes_of

_MAP_VARIABLE = "LITELLM_LOCAL_MODEL_COST_MAP"
_FUNCTIONS: dict[Api, str] = {
    "chat": "acompletion",
    "completions": "atext_completion",
    "embeddings": "aembedding",
    "responses": "aresponses",
    "messages": "anthropic_messages",
}
_CONTENT = {
    "model",
    "messages",
    "prompt",
    "input",
    "system",
    "instructions",
    "previous_response_id",
    "stream",
    "tools",
    "functions",
    "function_call",
    "audio",
}
_PASSED_ON = SAMPLING | _CONTENT
_SECRET = re.compile("key|token|secret|password|credential|assertion|^aws_", re.IGNORECASE)
_SHORTEST_NESTED = 6  # what is shorter in a nested secret, such as a type, is no secret by itself
# Classes of aiohttp, httpx and openai, none of which may be loaded. LiteLLM calls a reset a ConnectError as well.
_NOT_CONNECTED = {"ConnectionRefusedError", "ClientConnectorError", "ClientConnectorDNSError"}
_CUT = {"APIConnectionError", "ClientOSError", "ServerDisconnectedError", "ConnectError", "ReadError"}


class LiteLLMUpstream:
    """Asks one entry of the model list through LiteLLM."""

    def __init__(self, entry: ModelEntry, *, passes_keys: bool = True, timeout_seconds: float | None = None) -> None:
        self.entry, self.name = entry, entry.name
        self._litellm = load_litellm()
        self._passes_keys = passes_keys
        self._timeout = entry.timeout or timeout_seconds
        self._is_openai_like = _provider(self._litellm, entry) in self._litellm.openai_compatible_providers

    async def send(self, call: Call) -> UpstreamAnswer:
        """Ask. Fields that are not known are refused."""
        request = _checked(call.request)
        changes = changes_of(call, self.entry)
        call.added, call.changes = frozenset(changes) - {"model"}, changes
        settings = self._settings(call)
        try:
            answer = await getattr(self._litellm, _FUNCTIONS[call.api])(**{**settings, **request, **changes})
        except Exception as error:  # noqa: BLE001 - whatever a hundred providers raise
            return self._failed(error, call.api, settings)
        if call.is_stream:
            return StreamAnswer(answer, call.api, lambda error: _without(text_of(error), settings))
        return WholeAnswer(200, encoded(answer))

    def _settings(self, call: Call) -> dict[str, Any]:
        """What LiteLLM must know beside the request."""
        entry = self.entry
        found: dict[str, Any] = {name: _resolved(name, each) for name, each in entry.litellm_params.items()}
        found = {name: value for name, value in found.items() if call.request.get(name) is None}
        key = self._key(call)
        headers = {name: resolve(each, what=f"headers[{name!r}]") for name, each in entry.headers.items()}
        own = {"api_base": entry.base_url, "api_key": key, "extra_headers": headers, "timeout": self._timeout}
        found |= {name: value for name, value in own.items() if value} | {"num_retries": 0, "max_retries": 0}
        if self._is_openai_like and call.api == "chat":
            # Else some of them drop max_retries, and OpenAI's client asks again by itself.
            found["allowed_openai_params"] = [*found.get("allowed_openai_params", ()), "max_retries"]
        return found

    def _key(self, call: Call) -> str | None:
        if self.entry.api_key is not None:
            return resolve(self.entry.api_key, what=f"api_key of {self.name}")
        scheme, _, token = call.headers.get("authorization", "").partition(" ")
        theirs = call.headers.get("x-api-key") or (token if scheme.lower() == "bearer" else "")
        return theirs if self._passes_keys and theirs else None

    def _failed(self, error: Exception, api: Api, settings: Mapping[str, Any]) -> UpstreamAnswer:
        causes = _causes(error)
        missing = next((each for each in causes if isinstance(each, ModuleNotFoundError)), None)
        if missing is not None:
            words = f"LiteLLM needs the package {missing.name!r} for {api}: pip install {missing.name}"
            raise Refusal(501, "missing_package", words, should_retry=False)
        words = _without(text_of(error), settings)
        if isinstance(error, self._litellm.Timeout | TimeoutError):
            raise TimeoutError(words) from None
        kinds = {type(each).__name__ for each in causes}
        if kinds & _NOT_CONNECTED:
            raise Unsent(words) from None
        if kinds & _CUT:
            raise ConnectionError(words) from None
        status = getattr(error, "status_code", None)
        if not isinstance(status, int) or not 400 <= status < 600:
            status = 400 if isinstance(error, TypeError) else 500  # a field that the API needs is missing
        return WholeAnswer(status, error_body(api, status, words), _headers_of(error))


def load_litellm() -> Any:
    """The package, which prices models from its own copy of its table instead of calling home for it."""
    before = os.environ.get(_MAP_VARIABLE)
    os.environ.setdefault(_MAP_VARIABLE, "True")
    try:
        litellm: Any = import_module("litellm")
    except ImportError:
        raise MissingExtraError.of("litellm", extra="litellm", feature="a provider beyond OpenAI's API") from None
    finally:
        if before is None:
            del os.environ[_MAP_VARIABLE]
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    return litellm


def _provider(litellm: Any, entry: ModelEntry) -> str:
    model = entry.model or entry.model_name
    given = entry.litellm_params.get("custom_llm_provider")
    try:
        return str(litellm.get_llm_provider(model, custom_llm_provider=given, api_base=entry.base_url)[1])
    except litellm.BadRequestError:
        raise ConfigError(
            f"LiteLLM has no provider for the model {model!r} of {entry.model_name!r}: write it as 'provider/model', "
            "or as 'openai/model' with an api_base for an OpenAI-compatible server"
        ) from None


def _checked(request: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the request that say something, all of them known."""
    said = {name: value for name, value in request.items() if value is not None}
    unknown = [name for name in said if name not in _PASSED_ON]
    if unknown:
        raise Refusal(
            400,
            "unknown_field",
            f"the field {unknown[0]!r} cannot be passed through LiteLLM: remove it, or put it into litellm_params "
            "of the model list",
            should_retry=False,
        )
    return said


def _resolved(name: str, value: Any) -> Any:
    is_reference = isinstance(value, str) and variable_of(value) is not None
    return resolve(value, what=f"litellm_params[{name!r}]") if is_reference else value


def _without(words: str, settings: Mapping[str, Any]) -> str:
    """The words of an error without any secret that LiteLLM was given."""
    secrets = [text for name, value in settings.items() if _SECRET.search(name) for text in _texts_in(value)]
    # The longest first: one may be a part of another.
    for secret in sorted([*secrets, *settings.get("extra_headers", {}).values()], key=len, reverse=True):
        words = words.replace(secret, HIDDEN) if secret else words
    return words


def _texts_in(secret: Any) -> list[str]:
    """A secret and, where it is a structure or JSON of one, the texts in it."""
    if isinstance(secret, str):
        return [secret, *_nested_texts(_decoded(secret))]
    return _nested_texts(secret)


def _nested_texts(value: Any) -> list[str]:
    if isinstance(value, Mapping | list):
        below = value.values() if isinstance(value, Mapping) else value
        return [text for each in below for text in _nested_texts(each)]
    return [value] if isinstance(value, str) and len(value) >= _SHORTEST_NESTED else []


def _decoded(text: str) -> Any:
    """The structure in a text such as the `vertex_credentials` of a service account; None where there is none."""
    try:
        found = msgspec.json.decode(text) if text.lstrip().startswith("{") else None
    except msgspec.MsgspecError:
        return None
    return found


def _causes(error: BaseException) -> list[BaseException]:
    """An error and what it came from: LiteLLM turns a failed connection into a 500 of nobody."""
    found: list[BaseException] = []
    within: BaseException | None = error
    while within is not None and within not in found:
        found.append(within)
        within = within.__cause__ or within.__context__
    return found


def _headers_of(error: Exception) -> list[tuple[str, str]]:
    """What the provider said about asking again."""
    headers = getattr(error, "litellm_response_headers", None) or {}
    return [(name, str(headers[name])) for name in ("retry-after", "retry-after-ms") if headers.get(name)]
