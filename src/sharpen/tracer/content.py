"""What a trace leaves out when content is not to be captured: the words of prompts, responses and tools.

Names, models, token counts, times and statuses stay. The list covers OpenTelemetry's GenAI names, old and new, those of
OpenLLMetry and OpenInference, and the inputs and outputs of our own operations.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

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
            # our own
            r"sharpen\.operation\.(input|output)(\..*)?",
        )
    )
)


@lru_cache(maxsize=4096)  # the same few names come again and again
def is_content(key: str) -> bool:
    """Whether an attribute of this name holds words of a prompt, a response or a tool."""
    return _CONTENT.fullmatch(key) is not None


def without_content(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that may be recorded."""
    return {key: value for key, value in attributes.items() if not is_content(key)}


def event_without_content(name: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """An event of a GenAI operation is all content, whatever its attributes are called."""
    return {} if name.startswith("gen_ai.") else without_content(attributes)
