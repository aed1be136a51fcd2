"""What agents meet in a runner process, which has no terminal and did not run the user's script."""

import asyncio
import pdb

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
