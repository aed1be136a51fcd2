"""`HttpUpstream`: a server that speaks the API of the call, asked directly."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from ...http.client import HttpResponse
from ..calls import PATHS, Call, UpstreamAnswer
from ..models.model_entry import Engine, ModelEntry
from .engines import names_in, wanted_fields
from .links import Link
from .outgoing import (
    ANTHROPIC_VERSION,
    body_with,
    changes_of,
    credentials,
    headers_for,
    passed_back,
    place_headers,
)

_log = logging.getLogger(__name__)
_PROBE_SECONDS = 5.0
_NOT_NOW = {401, 403, 408, 429}  # says nothing about the engine: another client's key may open it


class HttpUpstream:
    """Sends calls to one entry of the model list over a link that others may share."""

    def __init__(
        self, entry: ModelEntry, link: Link, *, passes_keys: bool, timeout_seconds: float | None, connect_seconds: float
    ) -> None:
        self.entry, self.name = entry, entry.name
        self._link, self._passes_keys = link, passes_keys
        self._timeout = entry.timeout or timeout_seconds
        self._connect_seconds = connect_seconds
        self.count_again: Callable[[], None] = lambda: None
        """Told of every request beyond the first of a call."""

    @property
    def engine(self) -> Engine | None:
        """What samples there, as far as it is known by now."""
        return self.entry.engine or self._link.engine

    async def send(self, call: Call) -> UpstreamAnswer:
        """Ask for the call, and for token ids where the engine can give them.

        An engine that refuses the added fields is asked again without. It is remembered only when that works: else
        the request itself was wrong.
        """
        changes = changes_of(call, self.entry)
        engine = await self._engine(call)
        kind = (call.api, call.is_stream)
        refusing = self._link.finder.refusing
        extra = {} if kind in refusing else wanted_fields(engine, call.api, call.request | changes)
        answer = await self._ask(call, changes | extra, engine)
        if not extra or answer.status not in (400, 422):
            return answer
        await answer.aclose()
        self.count_again()
        answer = await self._ask(call, changes, engine)
        if answer.status < 400:
            refusing.add(kind)
            _log.warning("%s refused %s: no longer sending them", self.name, " and ".join(extra))
        return answer

    async def _ask(self, call: Call, changes: dict[str, Any], engine: Engine) -> UpstreamAnswer:
        call.added, call.changes = frozenset(changes) - {"model"}, changes
        headers = headers_for(call, self.entry, passes_keys=self._passes_keys, is_same_body=not changes)
        if engine == "sharpen":
            headers += place_headers(call)
        link = self._link
        link.begin()
        try:
            answer = await link.client.request(
                "POST",
                f"{PATHS[call.api]}?{call.query}" if call.query else PATHS[call.api],
                headers=headers,
                body=body_with(call, changes),
                connect_seconds=self._connect_seconds,
                head_seconds=self._timeout,
                chunk_seconds=self._timeout,
            )
        except BaseException:
            link.end()
            raise
        return LinkAnswer(answer, link)

    async def _engine(self, call: Call) -> Engine:
        if self.entry.engine is not None:
            return self.entry.engine
        if self.entry.provider != "openai" or call.api not in ("chat", "completions"):
            return "none"
        return self._link.finder.known or await self._link.finder.find(lambda: self._list_of_models(call.headers))

    async def list_models(self, client: Mapping[str, str]) -> list[str] | None:
        """The names that the upstream lists, for a client with these headers; None when it does not say."""
        body = await self._list_of_models(client)
        return None if body is None else names_in(body)

    async def _list_of_models(self, client: Mapping[str, str]) -> bytes | None:
        is_anthropic = self.entry.provider == "anthropic"
        headers = credentials(client, "messages" if is_anthropic else "chat", self.entry, passes_keys=self._passes_keys)
        if is_anthropic:
            headers |= {"anthropic-version": ANTHROPIC_VERSION}
        try:
            answer = await self._link.client.exchange(
                "GET",
                "/models",
                headers=[("accept-encoding", "identity"), *headers.items()],
                connect_seconds=min(self._connect_seconds, _PROBE_SECONDS),
                seconds=_PROBE_SECONDS,
            )
        except (OSError, TimeoutError) as error:
            _log.debug("%s does not list its models: %s", self.name, error)
            return None
        body = await answer.read()
        return None if answer.status >= 500 or answer.status in _NOT_NOW else body


class LinkAnswer:
    """An answer that counts as under way until it is closed."""

    __slots__ = ("_answer", "_link", "headers", "status")

    def __init__(self, answer: HttpResponse, link: Link) -> None:
        self._answer: HttpResponse | None = answer
        self._link = link
        self.status = answer.status
        self.headers: Sequence[tuple[str, str]] = passed_back(answer.headers)

    def __aiter__(self) -> AsyncIterator[bytes]:
        assert self._answer is not None, "the response is closed"
        return self._answer.__aiter__()

    async def aclose(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            await answer.aclose()
            self._link.end()
