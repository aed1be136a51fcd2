"""Calls as a gateway gets them, made by hand."""

import itertools
from typing import Any

import msgspec

from tests.llm_proxy.internals import Api, Call, Exchange, Place, Tape

_numbers = itertools.count(1)
HELLO = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}


def call_of(
    request: dict[str, Any] | None = None,
    *,
    rollout_id: str | None = None,
    attempt_id: str = "at-1",
    api: Api = "chat",
    body: bytes | None = None,
) -> Call:
    """A call of a rollout, or of nobody."""
    request = HELLO if request is None else request
    return Call(
        call_id=f"call-{next(_numbers)}",
        api=api,
        place=None if rollout_id is None else Place(rollout_id, attempt_id),
        body=msgspec.json.encode(request) if body is None else body,
        request=request,
        headers={"authorization": "Bearer sk-secret"},
    )


def question(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": text}], **fields}


def exchange_of(
    call: Call, chunks: list[bytes], *, status: int = 200, is_complete: bool = True, content_type: str = "text/plain"
) -> Exchange:
    """What a gateway takes down of a call that is answered in these chunks."""
    tape = Tape(call)
    tape.begin(status, [("content-type", content_type), ("set-cookie", "session=secret")])
    for chunk in chunks:
        tape.feed(chunk)
    return tape.exchange(is_complete=is_complete)
