"""What a scripted upstream says: ready-made replies, ordered faults, and answers made from the question alone."""

import hashlib
import json
import re
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

CREATED = 1_700_000_000
FaultKind = Literal["slow", "reset", "hang", "status", "malformed", "cut"]


@dataclass(frozen=True)
class Reply:
    """An answer. What is not given is made from the request, always the same from the same request."""

    text: str | None = None
    tool_calls: Sequence[tuple[str, dict[str, Any]]] = ()
    reasoning: str | None = None
    refusal: str | None = None
    finish_reason: str | None = None
    """As the API asked for calls it: `length`, `content_filter`, `max_tokens`."""
    delay_seconds: float = 0.0
    """Before the head."""
    chunk_seconds: float = 0.0
    """Before each chunk of a stream."""
    hold: threading.Event | None = None
    """Waited for after the first chunk of a stream, and before the head of a whole answer."""
    headers: Mapping[str, str] = field(default_factory=dict)
    gzip: bool = False
    status: int = 200
    body: bytes | None = None
    """Sent as it is, instead of all of the above."""
    content_type: str = "application/json"


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    slow: an answer, `delay_seconds` late. reset: the connection is reset before any byte. hang: no answer until the
    client leaves. status: `status` with an error body, and `retry_after` as a header. malformed: a 200 whose body (or
    whose stream, after the first chunk) is no JSON. cut: the answer ends in the middle, without its end, after
    `after_chunks` chunks of a stream; with `is_reset` by a reset.
    """

    kind: FaultKind
    status: int = 500
    message: str = "scripted fault"
    retry_after: str | None = None
    delay_seconds: float = 0.3
    after_chunks: int = 2
    is_reset: bool = False


@dataclass(frozen=True)
class Words:
    """A reply to one request with everything filled in."""

    text: str | None
    tool_calls: Sequence[tuple[str, dict[str, Any]]]
    reasoning: str | None
    refusal: str | None
    finish_reason: str | None
    id: str
    """Of the exchange: the same question has the same one."""

    def call_id(self, number: int) -> str:
        return f"call_{self.id}_{number}"


def tokens_of(text: str) -> list[str]:
    """Words with the space before them."""
    return re.findall(r"\s*\S+|\s+$", text)


def token_ids_of(text: str) -> list[int]:
    return [zlib.crc32(token.encode()) % 50_000 for token in tokens_of(text)]


def logprob_of(token: str) -> float:
    return -round((zlib.crc32(token.encode()) % 1000) / 500 + 0.001, 3)


def prompt_text(request: Mapping[str, Any]) -> str:
    """Everything that was said so far, as the text that is counted and tokenised."""
    said = request.get("messages") or request.get("input") or request.get("prompt") or ""
    instructions = request.get("system") or request.get("instructions") or ""
    return " ".join(_texts(instructions)) + " " + " ".join(_texts(said))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        for key in ("text", "content", "output", "arguments", "tool_calls", "function", "input"):
            yield from _texts(value.get(key))


def words_for(reply: Reply, request: Mapping[str, Any], *, last: str, tools: Sequence[Mapping[str, Any]]) -> Words:
    """Fill a reply: JSON where a schema is asked for, a call where there are unused tools, else an echo."""
    text, calls = reply.text, reply.tool_calls
    schema = _schema_of(request)
    if text is None and not calls and reply.refusal is None:
        if tools:
            calls = [(tools[0]["name"], sample(tools[0]["schema"]))]
        elif schema is not None:
            text = json.dumps(sample(schema))
        else:
            text = f"You said: {last}"
    digest = hashlib.sha256(json.dumps([request.get("model"), prompt_text(request)]).encode()).hexdigest()[:12]
    return Words(text, calls, reply.reasoning, reply.refusal, reply.finish_reason, digest)


def _schema_of(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema of a structured output, in the three ways in which it is asked for."""
    asked = request.get("response_format") or (request.get("text") or {}).get("format") or request.get("output_format")
    asked = asked or (request.get("output_config") or {}).get("format") or {}
    if asked.get("type") == "json_object":
        return {"type": "object", "properties": {"answer": {"type": "string"}}}
    if asked.get("type") != "json_schema":
        return None
    found: dict[str, Any] = asked.get("schema") or asked["json_schema"]["schema"]
    return found


def sample(schema: Mapping[str, Any], definitions: Mapping[str, Any] | None = None) -> Any:
    """The smallest value that fits a JSON schema, as far as clients write them."""
    definitions = definitions if definitions is not None else schema.get("$defs", {})
    if "$ref" in schema:
        return sample(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions)
    if "const" in schema or "enum" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    if "anyOf" in schema:
        return sample(schema["anyOf"][0], definitions)
    kind = schema.get("type")
    if kind == "object":
        return {name: sample(each, definitions) for name, each in schema.get("properties", {}).items()}
    if kind == "array":
        return [sample(schema.get("items", {"type": "string"}), definitions)]
    return {"string": "Rome", "integer": 42, "number": 0.5, "boolean": True}.get(str(kind))


def sse(data: Any, event: str | None = None) -> bytes:
    name = f"event: {event}\n" if event else ""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"{name}data: {text}\n\n".encode()
