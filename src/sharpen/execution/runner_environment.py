"""What is different for an agent in a runner process: there is no terminal, and the statements of the user's script
did not run."""

import functools
import io
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import AgentError
from ..tracer.instrumentation import ImportWatch

log = logging.getLogger(__name__)
HINT = (
    "a runner process has no terminal. To debug, run the agent in this process with Trainer(strategy='shm'), or set "
    "PYTHONBREAKPOINT to a remote debugger, such as debugpy.breakpoint"
)


def prepare_for_agents() -> None:
    """Let breakpoints and reads from the terminal say what to do, and the OpenAI Agents SDK send no traces."""
    sys.breakpointhook = _break
    sys.stdin = _NoTerminal(open(os.devnull, "rb"))  # noqa: SIM115 - open as long as the process
    ImportWatch(["pdb"], _refuse_pdb).start()
    keep_agents_sdk_private()


# -- breakpoints -------------------------------------------------------------------------------------


def _break(*arguments: Any, **options: Any) -> Any:
    """`breakpoint()`: the debugger of the user's choice where one was chosen."""
    if os.environ.get("PYTHONBREAKPOINT", "") in ("", "pdb.set_trace"):
        _refuse()
    return sys.__breakpointhook__(*arguments, **options)


def _refuse(*arguments: Any, **options: Any) -> NoReturn:
    raise AgentError(f"the agent stopped at a breakpoint, but {HINT}")


def _refuse_pdb(name: str) -> None:
    sys.modules[name].set_trace = _refuse  # type: ignore[attr-defined]


class _NoTerminal(io.TextIOWrapper):
    """Standard input without anybody behind it."""

    def readline(self, size: int | None = -1, /) -> NoReturn:
        raise EOFError(f"the agent tried to read from the terminal, but {HINT}")

    def __next__(self) -> NoReturn:
        raise StopIteration


# -- the OpenAI Agents SDK ---------------------------------------------------------------------------


def keep_agents_sdk_private() -> None:
    """Keep the SDK's default exporter from sending prompts to the SDK's maker, unless the agent has set that up.

    A script switches it off at its top level, and those statements do not run here. The SDK is not imported for it.
    Processors that the user adds get everything.
    """
    ImportWatch(["agents"], _guard_export).start()


def _guard_export(name: str) -> None:
    processors = sys.modules.get(f"{name}.tracing.processors")
    exporter = getattr(processors, "BackendSpanExporter", None)
    if exporter is None:  # another package of that name
        return
    has_tracing_key = threading.Event()
    # Only the public function counts. `set_default_openai_key` and `set_default_openai_client`, which set the key for
    # model calls, pass it to the exporter as well, but they call the SDK's own reference to the function.
    for module in (sys.modules[name], sys.modules[f"{name}.tracing"]):
        module.set_tracing_export_api_key = _noting(  # type: ignore[attr-defined]
            module.set_tracing_export_api_key, has_tracing_key
        )
    exporter.export = _guarded(exporter.export, processors, has_tracing_key)


def _noting(set_key: Callable[[str], None], has_tracing_key: threading.Event) -> Callable[[str], None]:
    @functools.wraps(set_key)
    def set_tracing_export_api_key(api_key: str) -> None:
        has_tracing_key.set()
        set_key(api_key)

    return set_tracing_export_api_key


def _guarded(
    export: Callable[[Any, Any], None], processors: Any, has_tracing_key: threading.Event
) -> Callable[[Any, Any], None]:
    @functools.wraps(export)
    def export_wanted(self: Any, items: Any) -> None:
        is_ours = self is not getattr(processors, "_global_exporter", self)
        is_wanted = is_ours or has_tracing_key.is_set() or _is_enabled()
        wanted = [item for item in items if is_wanted or getattr(item, "tracing_api_key", None)]
        if wanted:
            export(self, wanted)
        if len(wanted) < len(items):
            _log_dropped()

    return export_wanted


def _is_enabled() -> bool:
    """Whether the agent called `set_tracing_disabled(False)`, or the environment says that tracing is not disabled."""
    provider = getattr(sys.modules.get("agents.tracing.setup"), "GLOBAL_TRACE_PROVIDER", None)
    if getattr(provider, "_manual_disabled", None) is False:
        return True
    return os.environ.get("OPENAI_AGENTS_DISABLE_TRACING", "").lower() in ("0", "false")


@functools.cache
def _log_dropped() -> None:
    log.info(
        "runner processes do not send traces of the OpenAI Agents SDK to OpenAI; to send them, call "
        "agents.set_tracing_disabled(False) in the agent, or set OPENAI_AGENTS_DISABLE_TRACING=0"
    )
