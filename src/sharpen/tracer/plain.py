"""Attributes as a trace records them: values that every store can write, and no content if none is captured.

A span that a store refuses would cost the attempt it belongs to, so a value is what JSON holds, in text that UTF-8
holds. Content is the words of prompts, responses and tools; names, models, token counts, times and statuses are not.
"""

import re
from collections.abc import Mapping, Sequence, Set as AbstractSet
from functools import lru_cache
from math import isfinite
from typing import Any

from ..types import Attributes

_WHOLE = frozenset((int, bool, type(None)))


def plain_attributes(values: Mapping[str, Any] | None) -> Attributes:
    """Return a copy in which every value is plain."""
    return {plain_text(str(key)): plain(value) for key, value in values.items()} if values else {}


def plain(value: Any) -> Any:
    """Return strings, numbers, None, and lists and dicts of them; anything else is described by its type."""
    kind = type(value)
    if kind is str:
        return plain_text(value)
    if kind is float:
        return value if isfinite(value) else str(value)
    if kind in _WHOLE:
        return value
    if isinstance(value, str):
        return plain_text(str(value))
    if isinstance(value, int | float):  # an IntEnum, numpy's float64
        return int(value) if isinstance(value, int) else plain(float(value))
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return plain_attributes(value)
    if isinstance(value, Sequence | AbstractSet):
        return [plain(item) for item in value]
    return _number_or_type(value)


def plain_text(text: str) -> str:
    """Return the text without lone surrogates, which models sometimes produce."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text


def _number_or_type(value: Any) -> Any:
    """Return the number of a NumPy scalar; other objects are described by their type, as their text may be anything."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        found = item()
        return plain(found) if type(found) is not type(value) else type_name(value)
    return type_name(value)


def type_name(value: Any) -> str:
    """Return how a value that cannot be written is described."""
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


# -- content -----------------------------------------------------------------------------------------

_CONTENT = re.compile(
    "|".join(
        (
            # OpenTelemetry's GenAI names
            r"gen_ai\..*messages(\..*)?",
            r"gen_ai\.system_instructions.*",
            r"gen_ai\.(prompt|completion|content|choice|event\.content)([._].*)?",
            r"gen_ai\.tool\.(call\.(arguments|result)|definitions|message|parameters|result).*",
            r"gen_ai\.(retrieval\.(documents|query\.text)|evaluation\.explanation).*",
            # OpenLLMetry and AgentOps
            r"gen_ai\.(request|response)\.(functions|tools|content|instructions|reasoning\.(content|text))(\..*)?",
            r"traceloop\.entity\.(input|output)",
            r"agentops\.\w+\.(input|output)",
            r"mcp\.(request|response)\.(argument|value).*",
            # OpenInference
            r"(input|output)\.value",
            r"llm\.(input_messages|output_messages|prompts?|completions?|prompt_template|tools|function_call)(\..*)?",
            r"llm\.invocation_parameters",
            r"message\.(contents?|function_call_arguments_json|tool_calls)(\..*)?",
            r"(tool|tool_call)\..*(parameters|arguments|result|json_schema).*",
            r"(retrieval|reranker)\..*(documents|query).*",
            r"embedding\.(text|embeddings.*)",
            # ours
            r"sharpen\.operation\.(input|output)(\..*)?",
        )
    )
)


@lru_cache(maxsize=4096)  # the same few names repeat
def is_content(key: str) -> bool:
    """Whether an attribute of this name holds text of a prompt, a response or a tool."""
    return _CONTENT.fullmatch(key) is not None


def without_content(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that may be recorded."""
    return {key: value for key, value in attributes.items() if not is_content(key)}


def event_without_content(name: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that may be recorded; those of a GenAI event are all content, whatever their names."""
    return {} if name.startswith("gen_ai.") else without_content(attributes)
