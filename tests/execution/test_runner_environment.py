"""What agents meet in a runner process, which has no terminal and did not run the user's script."""

import asyncio
import pdb
import socket
import threading

import pytest

from sharpen.execution import ClientServerExecutionStrategy
from sharpen.runner import Runner
from sharpen.store import SQLiteStore
from sharpen.types import RolloutConfig

from .bundles import Enqueue

pytestmark = pytest.mark.usefixtures("no_spares")


def run_one(agent, store_path):
    """The attempt of the agent's one rollout, in a runner process."""

    async def run_agents(store, worker_id, event):
        own = Runner()
        with own.run_context(agent=agent, store=store, worker_id=worker_id):
            await own.iter(event=event)

    store, algorithm = SQLiteStore(store_path), Enqueue("a task", config=RolloutConfig())
    ClientServerExecutionStrategy().execute(algorithm, run_agents, store)
    (attempt,) = asyncio.run(store.query_attempts(algorithm.rollouts[0].rollout_id))
    asyncio.run(store.close())
    return attempt


# -- no terminal -------------------------------------------------------------------------------------


def stops_at_a_breakpoint(task):
    breakpoint()
    return 1.0


def stops_in_pdb(task):
    pdb.set_trace()
    return 1.0


def asks_the_terminal(task):
    input("Go on? ")
    return 1.0


@pytest.mark.parametrize(
    ("agent", "kind"),
    [(stops_at_a_breakpoint, "AgentError"), (stops_in_pdb, "AgentError"), (asks_the_terminal, "EOFError")],
)
def test_an_agent_that_needs_a_terminal_fails_with_how_to_debug_it(store_path, agent, kind):
    attempt = run_one(agent, store_path)
    assert (attempt.status, attempt.metadata["error_type"]) == ("failed", kind)
    assert "strategy='shm'" in attempt.metadata["error"]


def test_a_debugger_that_the_user_chose_gets_the_breakpoint(store_path, monkeypatch):
    monkeypatch.setenv("PYTHONBREAKPOINT", "builtins.len")  # which raises, as it gets no argument
    attempt = run_one(stops_at_a_breakpoint, store_path)
    assert "len()" in attempt.metadata["error"]


# -- the OpenAI Agents SDK ---------------------------------------------------------------------------


class Internet(threading.Thread):
    """A proxy that all HTTPS requests would go through: it notes what they ask for and refuses them."""

    def __init__(self):
        super().__init__(daemon=True)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.requests = []
        self.start()

    def run(self):
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                self.requests.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.join()


@pytest.fixture
def internet(monkeypatch):
    opened = Internet()
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, opened.url)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-fake")
    monkeypatch.delenv("OPENAI_AGENTS_DISABLE_TRACING", raising=False)
    yield opened
    opened.close()


def traced(task):
    import agents

    agents.tracing.default_exporter().max_retries = 0
    with agents.trace("a workflow"), agents.custom_span("a prompt", {"text": task}):
        pass
    agents.flush_traces()
    return 1.0


def traced_with_its_own_key(task):
    import agents

    agents.set_tracing_export_api_key("sk-mine")
    return traced(task)


def traced_with_a_key_for_its_model(task):
    import agents

    agents.set_default_openai_key("sk-mine")
    return traced(task)


def traced_on_purpose(task):
    import agents

    agents.set_tracing_disabled(False)
    return traced(task)


def traced_by_a_processor_of_ones_own(task):
    import agents

    class Count(agents.TracingProcessor):
        spans = 0

        def on_trace_start(self, trace): ...
        def on_trace_end(self, trace): ...
        def on_span_start(self, span): ...

        def on_span_end(self, span):
            Count.spans += 1

        def shutdown(self): ...
        def force_flush(self): ...

    agents.add_trace_processor(Count())
    traced(task)
    assert Count.spans == 1
    return 1.0


@pytest.mark.parametrize("agent", [traced, traced_with_a_key_for_its_model])
def test_the_agents_sdk_sends_nothing_to_its_maker_from_a_runner(store_path, internet, agent):
    assert run_one(agent, store_path).status == "succeeded"
    assert internet.requests == []


@pytest.mark.slow
@pytest.mark.parametrize("agent", [traced_with_its_own_key, traced_on_purpose])
def test_tracing_that_the_agent_itself_has_set_up_is_kept(store_path, internet, agent):
    assert run_one(agent, store_path).status == "succeeded"
    assert any(b"api.openai.com" in request for request in internet.requests)


@pytest.mark.slow
def test_a_processor_of_the_users_own_gets_the_spans(store_path, internet):
    assert run_one(traced_by_a_processor_of_ones_own, store_path).status == "succeeded"
    assert internet.requests == []
