"""Which engine samples at an upstream, and what it must be asked for to give token ids and log-probabilities.

An engine is known by the model list or by its own list of models, which is asked for once. Public APIs are never
asked: they refuse fields that they do not know.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ...errors import describe
from ..calls import Api
from ..models.model_entry import Engine

# Hosts, with everything below them, that are known to be public APIs.
_PUBLIC = (
    "openai.com",
    "anthropic.com",
    "openai.azure.com",
    "azure.com",
    "googleapis.com",
    "amazonaws.com",
    "mistral.ai",
    "groq.com",
    "together.ai",
    "together.xyz",
    "openrouter.ai",
    "deepseek.com",
    "x.ai",
    "fireworks.ai",
    "cohere.com",
    "cohere.ai",
    "perplexity.ai",
    "cerebras.ai",
    "deepinfra.com",
    "nvidia.com",
    "sambanova.ai",
    "moonshot.ai",
    "moonshot.cn",
    "dashscope.aliyuncs.com",
    "bigmodel.cn",
    "z.ai",
    "minimax.io",
    "ai21.com",
    "githubcopilot.com",
    "models.github.ai",
)
_ENGINES: tuple[Engine, ...] = ("vllm", "sglang", "sharpen")
AGAIN_SECONDS, LONGEST_AGAIN_SECONDS = 10.0, 300.0  # an upstream that was not there may be starting
PATIENCE_SECONDS = 1.0  # for how long calls wait until it is known who samples

Fields = dict[str, Any]
_log = logging.getLogger(__name__)


def is_public(url: str) -> bool:
    """Whether this is a hosted API of a known company."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    return any(host == each or host.endswith("." + each) for each in _PUBLIC)


def wanted_fields(engine: Engine, api: Api, request: Mapping[str, Any]) -> Fields:
    """What is added to a request: only what its client has not set itself."""
    if engine == "none" or api not in ("chat", "completions") or request.get("use_beam_search"):
        return {}
    wanted = _ids(engine, api, is_stream=request.get("stream") is True)
    if not request.get("echo"):  # with it an engine would compute those of the whole prompt
        wanted["logprobs"] = True if api == "chat" else 0
    return {name: value for name, value in wanted.items() if request.get(name) is None}


def _ids(engine: Engine, api: Api, *, is_stream: bool) -> Fields:
    # SGLang refuses return_token_ids in a streamed chat.
    return {} if engine == "sglang" and api == "chat" and is_stream else {"return_token_ids": True}


class _Listed(msgspec.Struct):
    owned_by: str | None = None
    id: str = ""


class _Models(msgspec.Struct):
    data: list[_Listed] = []


def engine_in(body: bytes) -> Engine:
    """The engine that a list of models names as their owner."""
    try:
        listed = msgspec.json.decode(body, type=_Models).data
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "none"
    owners = {each.owned_by for each in listed}
    return next((engine for engine in _ENGINES if engine in owners), "none")


def names_in(body: bytes) -> list[str] | None:
    """The models of a list; None where it is none."""
    try:
        return [each.id for each in msgspec.json.decode(body, type=_Models).data if each.id]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class EngineFinder:
    """What is known of the engine behind one base URL, in one event loop."""

    def __init__(self, url: str, clock: Callable[[], float]) -> None:
        self.known: Engine | None = "none" if is_public(url) else None
        self.refusing: set[tuple[Api, bool]] = set()
        """API and whether it streams, where added fields were refused."""
        self._clock = clock
        self._failures = 0
        self._again_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._patient_until = 0.0
        self._is_slow = False

    async def find(self, ask: Callable[[], Awaitable[bytes | None]]) -> Engine:
        """The engine, "none" where it is not known within a moment.

        `ask` gets the list of models, None when the upstream cannot say now. It is asked again after pauses that
        grow; one that was slow to say so keeps no call waiting.
        """
        if self.known is None and self._asking is None and self._clock() >= self._again_at:
            self._asking = asyncio.create_task(self._ask(ask))
            self._patient_until = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        if self._asking is not None and not self._is_slow:
            left = self._patient_until - asyncio.get_running_loop().time()
            # The question goes on when its first caller leaves: others wait for it too.
            await asyncio.wait((self._asking,), timeout=max(0.0, left))
            self._is_slow = self._asking is not None
        return self.known or "none"

    async def _ask(self, ask: Callable[[], Awaitable[bytes | None]]) -> None:
        body = None
        try:
            body = await ask()
        except Exception as error:  # noqa: BLE001 - the call itself fails for the same reason, and tells it
            _log.warning("could not read the list of models of an upstream: %s", describe(error))
        finally:
            pause = min(AGAIN_SECONDS * 2.0 ** min(self._failures, 10), LONGEST_AGAIN_SECONDS)
            self._failures, self._again_at, self._asking = self._failures + 1, self._clock() + pause, None
        self.known = None if body is None else engine_in(body)
