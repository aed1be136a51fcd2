"""A real model server on loopback that answers by a script.

    with ScriptedUpstream(engine="vllm") as upstream:
        upstream.script(Fault("status", status=429, retry_after="1"), Reply("hello"))
        client = OpenAI(base_url=upstream.base_url, api_key="sk-any")

It speaks OpenAI's chat completions, completions, responses, embeddings and models, and Anthropic's messages
(`anthropic_url` is the base URL of that SDK), streaming and not. The script is used up in order, one entry a request;
after it `default_reply` answers. An answer depends on its request alone, so that two ways of asking can be compared
byte for byte. With `engine="vllm"` it gives token ids when asked for `return_token_ids`; without an engine it refuses
that field with 400, as hosted APIs do.
"""

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Literal

from . import replies_messages, replies_openai, replies_responses
from .replies import Fault, Reply
from .scripted_http import (
    Answer,
    Asked,
    error_answer,
    head_of,
    held,
    key_of,
    read_request,
    reset,
    sent_unless_left,
    whole,
    write_answer,
)

__all__ = ["Asked", "Fault", "Reply", "ScriptedUpstream"]

Engine = Literal["vllm", "sglang", "sharpen"]
_OURS_ALONE = ("return_token_ids", "return_tokens_as_token_ids")


class ScriptedUpstream:
    def __init__(
        self,
        engine: Engine | None = None,
        *,
        models: Iterable[str] = ("scripted",),
        api_key: str | None = None,
        weights_version: str | None = None,
        default_reply: Reply | None = None,
    ) -> None:
        self.engine, self.models, self.api_key = engine, list(models), api_key
        self.weights_version = weights_version
        self.default_reply: Reply | Fault = default_reply or Reply()
        self.requests: list[Asked] = []
        """Every POST."""
        self.probes: list[Asked] = []
        """Every GET."""
        self.connections = 0
        """Accepted so far."""
        self.open_connections = 0
        self._script: deque[Reply | Fault] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()

    def script(self, *entries: Reply | Fault) -> None:
        """Answer the next requests with these, one each."""
        self._script.extend(entries)

    @property
    def base_url(self) -> str:
        return f"{self.anthropic_url}/v1"

    @property
    def anthropic_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # -- its life ------------------------------------------------------------------------------------

    def __enter__(self) -> "ScriptedUpstream":
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True, name="scripted")
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Refuse connections from now on; repeatable."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, sock=self._socket, limit=64 * 1024 * 1024)
        self._ready.set()
        await self._stopping.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open_connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            writer.close()
            self.open_connections -= 1
            self._tasks.discard(task)

    # -- one request ---------------------------------------------------------------------------------

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection can be used again."""
        asked = await read_request(reader)
        (self.requests if asked.method == "POST" else self.probes).append(asked)
        entry: Reply | Fault = Reply()
        if asked.method == "POST":
            entry = self._script.popleft() if self._script else self.default_reply
        sending = asyncio.ensure_future(self._send(asked, entry, writer))
        if await sent_unless_left(sending, reader):
            return sending.result()
        asked.outcome = "left"
        raise ConnectionResetError

    async def _send(self, asked: Asked, entry: Reply | Fault, writer: asyncio.StreamWriter) -> bool:
        if isinstance(entry, Fault):
            return await self._fail(asked, entry, writer)
        answer = self._answer(asked, entry)
        await asyncio.sleep(entry.delay_seconds)
        if entry.hold is not None and not answer.is_stream:
            await held(entry.hold)
        await write_answer(writer, answer, entry)
        asked.outcome = "answered"
        return True

    async def _fail(self, asked: Asked, fault: Fault, writer: asyncio.StreamWriter) -> bool:
        if fault.kind == "slow":
            return await self._send(asked, Reply(delay_seconds=fault.delay_seconds), writer)
        asked.outcome = "faulty"
        if fault.kind == "reset":
            reset(writer)
        elif fault.kind == "hang":
            await asyncio.sleep(3600)
        elif fault.kind == "status":
            more = {} if fault.retry_after is None else {"retry-after": fault.retry_after}
            await write_answer(writer, error_answer(asked, fault.status, fault.message, more), Reply())
            return True
        else:
            await self._write_part(asked, fault, writer)
        return False

    async def _write_part(self, asked: Asked, fault: Fault, writer: asyncio.StreamWriter) -> None:
        """An answer that is malformed or ends too early."""
        answer = self._answer(asked, Reply())
        chunks = list(answer.chunks)
        if fault.kind == "malformed":
            broken = [*chunks[:1], b'data: {"choices": [\n\n'] if answer.is_stream else [chunks[0][:-5] + b'"oops']
            answer.chunks = [*broken, *(chunks[-1:] if answer.is_stream else [])]
            answer.headers["connection"] = "close"
            await write_answer(writer, answer, Reply())
            return
        if answer.is_stream:
            writer.write(head_of(answer, {"transfer-encoding": "chunked"}))
            for chunk in chunks[: fault.after_chunks]:
                writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        else:
            body = b"".join(chunks)
            writer.write(head_of(answer, {"content-length": str(len(body))}) + body[: len(body) // 2])
        await writer.drain()
        if fault.is_reset:
            await asyncio.sleep(0.05)  # a reset overtakes bytes that the client has not read yet
            reset(writer)

    # -- what it says --------------------------------------------------------------------------------

    def _answer(self, asked: Asked, reply: Reply) -> Answer:
        if self.api_key is not None and key_of(asked) != self.api_key:
            return error_answer(asked, 401, "Incorrect API key provided")
        if reply.body is not None:
            is_stream = reply.content_type == "text/event-stream"
            return Answer(reply.status, reply.content_type, [reply.body], is_stream, dict(reply.headers))
        path = asked.path.partition("?")[0]
        if asked.method == "GET" and path == "/v1/models":
            return whole(self._models())
        if asked.method != "POST":
            return error_answer(asked, 404, f"no {asked.method} {path} here")
        try:
            answer = self._said(path, asked, reply)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            return error_answer(asked, 400, f"the request cannot be read: {error!r}")
        answer.headers |= reply.headers
        return answer

    def _rejects_ids(self, path: str, request: dict[str, Any]) -> bool:
        return self.engine == "sglang" and path.endswith("/chat/completions") and request.get("stream") is True

    def _said(self, path: str, asked: Asked, reply: Reply) -> Answer:
        request, has_ids = asked.json, self.engine is not None
        is_stream = request.get("stream") is True
        unknown = [name for name in _OURS_ALONE if name in request]
        if unknown and (self.engine is None or self._rejects_ids(path, request)):
            return error_answer(asked, 400, f"Unrecognized request argument supplied: {unknown[0]}")
        if path == "/v1/embeddings":
            return whole(replies_openai.embeddings(request))
        if path == "/v1/chat/completions":
            make = replies_openai.chat_stream if is_stream else replies_openai.chat_whole
            said: Any = make(request, reply, has_token_ids=has_ids)
        elif path == "/v1/completions":
            make = replies_openai.completion_stream if is_stream else replies_openai.completion_whole
            said = make(request, reply, has_token_ids=has_ids)
        elif path == "/v1/responses":
            made = replies_responses.responses_stream if is_stream else replies_responses.responses_whole
            said = made(request, reply)
        elif path == "/v1/messages":
            made = replies_messages.messages_stream if is_stream else replies_messages.messages_whole
            said = made(request, reply)
        else:
            return error_answer(asked, 404, f"no POST {path} here")
        return Answer(200, "text/event-stream; charset=utf-8", list(said), True) if is_stream else whole(said)

    def _models(self) -> dict[str, Any]:
        owner = self.engine or "scripted"
        common = {"object": "model", "created": replies_openai.CREATED, "owned_by": owner}
        if self.weights_version is not None:
            common["weights_version"] = self.weights_version
        return {"object": "list", "data": [{"id": name, **common} for name in self.models]}
