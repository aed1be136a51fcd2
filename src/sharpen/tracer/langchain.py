"""A callback handler that writes LangChain's LLM and tool runs to a tracer, under OpenTelemetry's GenAI names."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..checks import needs_extra
from ..errors import describe
from .trace import plain

if TYPE_CHECKING:
    from .base import Tracer

with needs_extra("langchain-core", extra="langchain", feature="get_langchain_handler"):
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import ChatGeneration, Generation, LLMResult

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}


class LangChainHandler(BaseCallbackHandler):
    """Writes each run when it ends, so a run may end in another thread or task.

    An LLM call that an instrumentation has recorded already, with the same response id, is not written again.
    """

    # In the caller's own context, where the current trace is.
    run_inline = True

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._runs: dict[UUID, tuple[float, str, dict[str, Any]]] = {}

    # -- LLM calls -----------------------------------------------------------------------------------

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        asked = [message for batch in messages for message in batch]
        self._start_llm(run_id, "chat", [_message(message) for message in asked], kwargs)

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **kwargs: Any) -> None:
        self._start_llm(run_id, "text_completion", [_said("user", prompt) for prompt in prompts], kwargs)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        generations = [each for batch in response.generations for each in batch]
        found = _response_attributes(generations)
        response_id = found.get("gen_ai.response.id")
        if response_id and any(
            span.attributes.get("gen_ai.response.id") == response_id for span in self._tracer.get_last_trace()
        ):
            self._runs.pop(run_id, None)
            return
        self._end(run_id, found)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id, {}, error)

    def _start_llm(self, run_id: UUID, operation: str, asked: list[Any], options: Mapping[str, Any]) -> None:
        parameters = options.get("invocation_params") or {}
        model = parameters.get("model") or parameters.get("model_name") or "unknown"
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.request.model": str(model),
            "gen_ai.input.messages": json.dumps(asked),
        }
        self._runs[run_id] = (time.time(), f"{operation} {model}", attributes)

    # -- tools ---------------------------------------------------------------------------------------

    def on_tool_start(self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, **kwargs: Any) -> None:
        name = str((serialized or {}).get("name") or kwargs.get("name") or "tool")
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.arguments": input_str,
        }
        self._runs[run_id] = (time.time(), f"execute_tool {name}", attributes)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        content = output.content if isinstance(output, BaseMessage) else output
        text = content if isinstance(content, str) else json.dumps(plain(content))
        self._end(run_id, {"gen_ai.tool.call.result": text})

    on_tool_error = on_llm_error

    def _end(self, run_id: UUID, found: dict[str, Any], error: BaseException | None = None) -> None:
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        start_time, name, attributes = run
        with self._tracer.operation_context(name, {**attributes, **found}, start_time) as operation:
            if error is not None:
                operation.record_exception(error)
                operation.set_status("ERROR", describe(error))


def _said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": plain(content)}]}


def _message(message: BaseMessage) -> dict[str, Any]:
    """Return a message in OpenTelemetry's form: its role, its text, its tool calls."""
    parts = _said("", message.content)["parts"] if message.content else []
    calls = getattr(message, "tool_calls", None) or []
    parts += [
        {"type": "tool_call", "id": call.get("id"), "name": call["name"], "arguments": plain(call["args"])}
        for call in calls
    ]
    return {"role": _ROLES.get(message.type, message.type), "parts": parts}


def _response_attributes(generations: Sequence[Generation]) -> dict[str, Any]:
    messages, attributes = [], dict[str, Any]()
    for generation in generations:
        if isinstance(generation, ChatGeneration):
            messages.append(_message(generation.message))
            attributes.update(_metadata(generation.message))
        else:
            messages.append(_said("assistant", generation.text))
    return {**attributes, "gen_ai.output.messages": json.dumps(messages)}


def _metadata(message: BaseMessage) -> dict[str, Any]:
    metadata, usage = message.response_metadata or {}, getattr(message, "usage_metadata", None) or {}
    reason = metadata.get("finish_reason")
    found = {
        "gen_ai.response.id": metadata.get("id"),
        "gen_ai.response.model": metadata.get("model_name") or metadata.get("model"),
        "gen_ai.response.finish_reasons": [reason] if reason else None,
        "gen_ai.usage.input_tokens": usage.get("input_tokens"),
        "gen_ai.usage.output_tokens": usage.get("output_tokens"),
    }
    return {key: value for key, value in found.items() if value is not None}
