"""The GenAI libraries that OpenTelemetry knows how to watch, and who watches them."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "opentelemetry_instrumentor"


# The module, and what instrumentations of it call themselves (without case, dashes and underscores).
TARGETS: dict[str, str] = {
    "openai": "openai openaiv2",
    "anthropic": "anthropic",
    "agents": "openaiagents openaiagentsv2",
    "claude_agent_sdk": "claudeagentsdk",
    "google.genai": "googlegenai googlegenerativeai",
    "google.generativeai": "googlegenerativeai",
    "vertexai": "vertexai",
    "botocore": "bedrock",
    "mistralai": "mistral mistralai",
    "cohere": "cohere",
    "groq": "groq",
    "ollama": "ollama",
    "litellm": "litellm",
    "langchain_core": "langchain",
    "llama_index.core": "llamaindex",
    "crewai": "crewai",
    "haystack": "haystack",
    "dspy": "dspy",
    "autogen_agentchat": "autogenagentchat",
    "smolagents": "smolagents",
    "pydantic_ai": "pydanticai",
    "agno": "agno",
    "together": "together",
    "replicate": "replicate",
    "ibm_watsonx_ai": "watsonx",
    "transformers": "transformers",
    "huggingface_hub": "huggingfacehub",
    "mcp": "mcp",
}


@cache
def _installed() -> "tuple[EntryPoint, ...]":
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def candidates(module: str) -> "list[EntryPoint]":
    """The installed instrumentations of this module, the best first: OpenTelemetry's own GenAI family."""
    names = TARGETS[module].split()
    found = [entry for entry in _installed() if _plain(entry.name) in names]
    return sorted(found, key=_rank)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(".", "")


def _rank(entry: "EntryPoint") -> tuple[bool, bool, str]:
    distribution = entry.dist.name.lower().replace("_", "-") if entry.dist is not None else ""
    return (
        "-genai-" not in distribution,
        not distribution.startswith("opentelemetry-instrumentation-"),
        distribution,
    )
