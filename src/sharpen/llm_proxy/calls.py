"""The words of the gateway as data: a call, where it belongs, who answers it and what was said."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

Api = Literal["chat", "completions", "responses", "embeddings", "messages"]
PATHS: dict[Api, str] = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "responses": "/responses",
    "embeddings": "/embeddings",
    "messages": "/messages",
}


class Place(msgspec.Struct, frozen=True):
    """The attempt that a call belongs to, and the agent of several that made it."""

    rollout_id: str
    attempt_id: str
    role: str | None = None


@dataclass(eq=False, slots=True)
class Call:
    """One request of an agent on its way."""

    call_id: str
    api: Api
    place: Place | None
    body: bytes
    """As the agent sent it."""
    request: dict[str, Any]
    """The same, parsed."""
    headers: Mapping[str, str]
    """As the agent sent them, names in lower case. They may hold its key: they are never written down."""
    has_token: bool = True
    """Whether the token of the gateway was shown, or none is needed; otherwise only the id of its attempt admits it."""
    start_time: float = field(default_factory=time.time)
    added: frozenset[str] = frozenset()
    """Fields that the gateway added to the request, such as `return_token_ids`."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What it set in the request, by field: those that it added, and defaults of the model list."""
    query: str = ""
    """What stood after the `?` of the URL. It is passed on as it is; it is no content, so replays do not look at it."""

    @property
    def model(self) -> str:
        return str(self.request.get("model") or "")

    @property
    def is_stream(self) -> bool:
        return self.request.get("stream") is True


class UpstreamAnswer(Protocol):
    """What an upstream answers: the head at once, the body as it arrives."""

    status: int
    headers: Sequence[tuple[str, str]]
    """Names in lower case, without those that concern the connection."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Raises OSError or TimeoutError where the body ends too early."""
        ...

    async def aclose(self) -> None:
        """Give the connection back, or cut it where the body was not read to its end."""
        ...


class Upstream(Protocol):
    """Somebody who answers calls."""

    name: str
    """For people: the model and the host, never a key."""

    async def send(self, call: Call) -> UpstreamAnswer:
        """Ask. `Unsent` when nothing was read there, other OSErrors and TimeoutError when that is not certain.

        Sets `call.added` and `call.changes` to what it added to the request.
        """
        ...


class Refusal(Exception):
    """A call that is answered by the gateway itself, with a status and a reason."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after_seconds: float | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.retry_after_seconds, self.should_retry = retry_after_seconds, should_retry


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one call as the upstream counted them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


class Said(msgspec.Struct):
    """What was read from an answer. Messages have the typed parts of the GenAI conventions."""

    response_id: str | None = None
    model: str | None = None
    output_messages: list[dict[str, Any]] = []
    """One for each choice: role, parts, finish_reason."""
    usage: Usage | None = None
    is_usage_estimated: bool = False
    """Whether the upstream did not tell its tokens, or not all, so that they were counted from what was read."""
    prompt_token_ids: list[int] = []
    response_token_ids: list[list[int]] = []
    """One list for each choice."""
    response_logprobs: list[list[float]] = []
    weights_version: str | None = None
    """Of the first token."""
    response_weights_versions: list[list[str]] = []
    """Of each token, one list for each choice; empty where one version sampled all of them."""
    error: str | None = None
    """Why it is no whole answer: an error of the upstream, malformed JSON, a cut stream."""
    is_complete: bool = True
    has_begun: bool = False
    """Whether anything was sampled."""

    @property
    def finish_reasons(self) -> list[str]:
        return [str(each["finish_reason"]) for each in self.output_messages if each.get("finish_reason")]
