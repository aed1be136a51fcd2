"""Switches on OpenTelemetry's instrumentations of GenAI libraries, and our provider with them.

Nothing is imported for a library that the agent does not use: each instrumentation waits for the import of its library,
and the SDK, which takes a tenth of a second, for the first thing that needs it. All of it is on while any tracer of the
process needs it, and off after the last one. An instrumentation that is missing or broken is a warning in the log and
never the end of an attempt.
"""

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from .provider import Sdk

logger = logging.getLogger(__name__)

_OTEL_API = "opentelemetry.trace"
# The variables that decide whether instrumentations write messages to their spans.
_CONTENT_VARIABLES = {
    True: {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only"},
    False: {
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "no_content",
        "TRACELOOP_TRACE_CONTENT": "false",
        "OPENINFERENCE_HIDE_INPUTS": "true",
        "OPENINFERENCE_HIDE_OUTPUTS": "true",
    },
}
_CONVENTIONS, _LATEST = "OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental"

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


class Instrumentation:
    """The instrumentations of this process; `load_sdk` returns the SDK that they write to."""

    def __init__(self, load_sdk: "Callable[[], Sdk]") -> None:
        self._load_sdk = load_sdk
        # Held while modules are imported, so whoever is called by an import must not wait for it.
        self._switching = threading.Lock()
        self._claiming = threading.Lock()
        self._holders = {True: 0, False: 0}
        self._watch: ImportWatch | None = None
        self._captures = True
        self._variables_before: dict[str, str | None] = {}
        self._running: dict[str, Any] = {}

    def hold(self, *, capture_content: bool) -> None:
        """Keep it on, with content if any holder wants it: the others leave it out when they record."""
        with self._switching:
            self._holders[capture_content] += 1
            if self._watch is not None and capture_content and not self._captures:
                self._switch_off()
            if self._watch is None:
                self._switch_on(capture_content)

    def release(self, *, capture_content: bool) -> None:
        with self._switching:
            self._holders[capture_content] -= 1
            if not any(self._holders.values()):
                self._switch_off()

    def _switch_on(self, capture_content: bool) -> None:
        self._captures = capture_content
        wanted = _wanted_variables(capture_content)
        self._variables_before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        self._watch = ImportWatch([_OTEL_API, *TARGETS], self._on_import)
        self._watch.start()

    def _switch_off(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        for name, instrumentor in self._running.items():
            try:
                if instrumentor is not None:
                    instrumentor.uninstrument()
            except Exception as error:  # noqa: BLE001 - third-party; what stays behind records nothing outside a trace
                logger.warning("the instrumentation of %s cannot be switched off: %s", name, error)
        self._running.clear()
        for name, value in self._variables_before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._variables_before.clear()

    def _on_import(self, name: str) -> None:
        """Called inside the import of the module, by whichever thread imports it."""
        if name == _OTEL_API:
            try:
                self._load_sdk()
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the agent's import must continue
                logger.warning("the OpenTelemetry SDK cannot be loaded, so its spans are not recorded: %s", error)
            return
        with self._claiming:
            if name in self._running:
                return
            self._running[name] = None
        self._running[name] = self._start(name)

    def _start(self, name: str) -> Any:
        """Switch on the first instrumentation of this library that works, and return it; None if there is none."""
        for entry in _candidates(name):
            package = entry.dist.name if entry.dist is not None else entry.value
            try:
                instrumentor = entry.load()()
                if getattr(instrumentor, "is_instrumented_by_opentelemetry", False):
                    logger.debug("%s was switched on already by other code", package)
                    return None
                instrumentor.instrument(tracer_provider=self._load_sdk().provider, raise_exception_on_conflict=True)
            except Exception as error:  # noqa: BLE001 - third-party code; without it the agent still works
                logger.warning("the instrumentation %s of %s does not work: %s", package, name, error)
            else:
                logger.debug("%s is on", package)
                return instrumentor
        return None


def _wanted_variables(capture_content: bool) -> dict[str, str]:
    wanted = dict(_CONTENT_VARIABLES[capture_content])
    if capture_content:
        # A variable that the user has set is not changed.
        wanted = {name: value for name, value in wanted.items() if name not in os.environ}
    conventions = os.environ.get(_CONVENTIONS, "")
    if _LATEST not in conventions:
        wanted[_CONVENTIONS] = f"{conventions},{_LATEST}" if conventions else _LATEST
    return wanted


@cache
def _installed() -> "tuple[EntryPoint, ...]":
    from importlib.metadata import entry_points

    return tuple(entry_points(group="opentelemetry_instrumentor"))


def _candidates(module: str) -> "list[EntryPoint]":
    """Return the installed instrumentations of this module, the best first: OpenTelemetry's GenAI family."""
    names = TARGETS[module].split()
    found = [entry for entry in _installed() if re.sub("[-_.]", "", entry.name.lower()) in names]
    return sorted(found, key=_rank)


def _rank(entry: "EntryPoint") -> tuple[bool, bool, str]:
    name = entry.dist.name.lower().replace("_", "-") if entry.dist is not None else ""
    return "-genai-" not in name, not name.startswith("opentelemetry-instrumentation-"), name


# -- imports ---------------------------------------------------------------------------------------


class ImportWatch:
    """Calls `on_import(name)` after each of the named modules was loaded, without importing it.

    Our own, since `wrapt`, which offers the same, takes 20 to 110 ms to import and every runner process would pay that.
    """

    def __init__(self, names: Sequence[str], on_import: Callable[[str], None]) -> None:
        self._names = frozenset(names)
        self._on_import = on_import
        self._asking = threading.local()

    def start(self) -> None:
        """Start watching; modules that are loaded already count as imported now."""
        sys.meta_path.insert(0, self)
        for name in sorted(self._names & sys.modules.keys()):
            self._on_import(name)

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names or getattr(self._asking, "is_on", False):
            return None
        self._asking.is_on = True
        try:
            spec = find_spec(fullname)
        finally:
            self._asking.is_on = False
        return self._watched(spec)

    def _watched(self, spec: ModuleSpec | None) -> ModuleSpec | None:
        loader = spec.loader if spec is not None else None
        if spec is None or loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute, name = loader.exec_module, spec.name

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if module.__name__ == name:
                self._on_import(name)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
