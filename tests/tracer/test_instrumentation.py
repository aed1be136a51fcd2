"""Which instrumentations are switched on, and what happens when one of them does not work."""

import sys
from pathlib import Path

import pytest

from tests.errors import raises
from tests.tracer.internals import ImportWatch

from .scenes import run_script

# A library that agents might use, and instrumentations of it as packages bring them.
LIBRARY = "def complete(prompt): return prompt.upper()\n"
INSTRUMENTOR = """
import groq
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
from opentelemetry import trace

class Instrumentor(BaseInstrumentor):
    def instrumentation_dependencies(self):
        return {needs!r}
    def _instrument(self, **kwargs):
        tracer, self.plain = trace.get_tracer({name!r}, tracer_provider=kwargs["tracer_provider"]), groq.complete
        def complete(prompt):
            with tracer.start_as_current_span({name!r}, attributes={{"gen_ai.prompt.0.content": prompt}}):
                return self.plain(prompt)
        groq.complete = complete
    def _uninstrument(self, **kwargs):
        groq.complete = self.plain
"""
AGENT = """
import logging, sys
logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
from sharpen.emitter import emit_message
from sharpen.tracer import OtelTracer

def agent():
    import groq
    emit_message(groq.complete("hello"))

tracer = OtelTracer()
with tracer.lifespan():
    assert "opentelemetry.instrumentation" not in sys.modules
    tracer.trace_run(agent)
    print([span.name for span in tracer.get_last_trace()])
import groq
assert groq.complete.__name__ == "complete" and "plain" not in groq.complete.__code__.co_freevars
tracer.trace_run(agent)
print([span.name for span in tracer.get_last_trace()])
"""


def install(folder: Path, distribution: str, *, code: str, entry: str = "groq") -> None:
    """What `pip install` leaves behind: a module, and metadata with an entry point."""
    module = distribution.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[opentelemetry_instrumentor]\n{entry} = {module}:Instrumentor\n")


def instrumentor(name: str, needs: tuple[str, ...] = ()) -> str:
    return INSTRUMENTOR.format(name=name, needs=needs)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "groq.py").write_text(LIBRARY)
    return tmp_path


def test_an_installed_instrumentation_is_on_when_its_library_is_imported_and_off_at_the_end(site: Path) -> None:
    install(site, "opentelemetry-instrumentation-groq", code=instrumentor("theirs"))
    done = run_script(AGENT, path=site)
    assert done.stdout.splitlines() == ["['theirs', 'sharpen.message']"] * 2
    assert done.stderr == ""


def test_of_several_for_one_library_only_the_genai_one_is_used(site: Path) -> None:
    install(site, "aaa-instrumentation-groq", code=instrumentor("other"))
    install(site, "opentelemetry-instrumentation-groq", code=instrumentor("older"))
    install(site, "opentelemetry-instrumentation-genai-groq", code=instrumentor("genai"))
    assert run_script(AGENT, path=site).stdout.splitlines()[0] == "['genai', 'sharpen.message']"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise RuntimeError('made for another version')", "made for another version"),
        (
            "class Instrumentor:\n    def instrument(self, **kwargs): raise TypeError('no such method')",
            "no such method",
        ),
        (instrumentor("conflicting", needs=("pytest < 1",)), "pytest < 1"),
    ],
    ids=["cannot be loaded", "cannot be switched on", "wants another version"],
)
def test_a_broken_instrumentation_is_a_warning_and_the_next_one_is_tried(site: Path, code: str, reason: str) -> None:
    install(site, "opentelemetry-instrumentation-genai-groq", code=code)
    install(site, "opentelemetry-instrumentation-groq", code=instrumentor("second"))
    done = run_script(AGENT, path=site)
    assert done.stdout.splitlines()[0] == "['second', 'sharpen.message']"
    assert "WARNING sharpen.tracer.instrumentation" in done.stderr
    assert "opentelemetry-instrumentation-genai-groq of groq does not work" in done.stderr
    assert reason in done.stderr


def test_without_any_instrumentation_the_agent_runs_as_ever(site: Path) -> None:
    done = run_script(AGENT, path=site)
    assert done.stdout.splitlines() == ["['sharpen.message']"] * 2
    assert done.stderr == ""


def test_instrumentations_of_other_libraries_are_left_alone(site: Path) -> None:
    install(site, "opentelemetry-instrumentation-requests", code=instrumentor("never"), entry="requests")
    assert run_script(AGENT, path=site).stdout.splitlines() == ["['sharpen.message']"] * 2


# -- watching imports --------------------------------------------------------------------------------


@pytest.fixture
def watched_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "seen_by_watch.py").write_text("ready = True\n")
    (tmp_path / "broken_for_watch.py").write_text("raise ValueError('broken')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("seen_by_watch", "broken_for_watch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "seen_by_watch"


def test_a_watch_is_called_after_the_import_and_once(watched_module: str) -> None:
    seen: list[bool] = []
    watch = ImportWatch([watched_module], lambda name: seen.append(sys.modules[name].ready))
    watch.start()
    try:
        __import__(watched_module)
        __import__(watched_module)
    finally:
        watch.stop()
    assert seen == [True]


def test_a_module_that_is_there_already_counts_as_imported(watched_module: str) -> None:
    __import__(watched_module)
    seen: list[str] = []
    watch = ImportWatch([watched_module, "never_imported"], seen.append)
    watch.start()
    watch.stop()
    assert seen == [watched_module]


def test_a_stopped_watch_sees_nothing(watched_module: str) -> None:
    seen: list[str] = []
    watch = ImportWatch([watched_module], seen.append)
    watch.start()
    watch.stop()
    watch.stop()
    __import__(watched_module)
    assert seen == []


@pytest.mark.usefixtures("watched_module")
def test_a_module_that_cannot_be_imported_fails_as_it_would_without_a_watch() -> None:
    watch = ImportWatch(["broken_for_watch", "not_there_at_all"], lambda name: pytest.fail("called"))
    watch.start()
    try:
        with pytest.raises(ValueError):
            __import__("broken_for_watch")
        with raises(ModuleNotFoundError, "not_there_at_all"):
            __import__("not_there_at_all")
    finally:
        watch.stop()
