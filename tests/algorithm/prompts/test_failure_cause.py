"""Whose fault a failed rollout is."""

import json
from typing import Any

import pytest

from sharpen import Limits
from sharpen.semconv import SHARPEN_LLM_CALL
from sharpen.store import InMemoryLightningStore
from sharpen.types import Rollout, Span
from tests.algorithm.internals import infrastructure_fault, spent_limit, with_last_attempt
from tests.llm_proxy.asked import call_of
from tests.llm_proxy.internals import Budget, Said, Usage, error_body
from tests.store.scenes import make_span

SPENT_BY_0_1 = (
    "Error code: 429 - {'error': {'message': 'this run may spend $2 and has spent $2.01: its limit run_cost is "
    "reached; raise it in limits'}}"
)


async def refused_by(limit: str, dialect: Any) -> str:
    """The error of an SDK whose call the gateway refuses because this limit is reached after 7 calls."""
    budget, call = Budget(Limits(**{limit: 7}), None, None), call_of(rollout_id="ro-1")
    for _ in range(7):
        assert await budget.admit(call) is None
        budget.settle(call, Said(usage=Usage(1, 0)))
    refusal = await budget.admit(call)
    assert refusal is not None
    return f"Error code: 429 - {json.loads(error_body(refusal, dialect))}"


async def ended(*calls: dict[str, Any], status: Any = "failed", **about: Any) -> tuple[Rollout, list[Span]]:
    """A rollout that ended so, with these calls through the gateway."""
    store = InMemoryLightningStore()
    await store.enqueue_rollout("task")
    claimed = await store.dequeue_rollout()
    assert claimed is not None
    spans = [make_span(claimed, name=SHARPEN_LLM_CALL, attributes=each) for each in calls]
    ids = (claimed.rollout_id, claimed.attempt.attempt_id)
    await store.complete_attempt(*ids, spans=spans, status=status, metadata=about)
    rollout = await store.get_rollout_by_id(claimed.rollout_id)
    assert rollout is not None
    return await with_last_attempt(store, rollout), spans


@pytest.mark.parametrize("name", ["APIConnectionError", "RateLimitError", "InternalServerError", "ConnectError"])
async def test_a_model_that_cannot_be_reached_is_not_the_agents_fault(name: str) -> None:
    fault = infrastructure_fault(*await ended(error_type=name, error="no answer"))
    assert fault == f"{name}: no answer"


@pytest.mark.parametrize("kind", ["500", "503", "429", "upstream_error"])
async def test_a_last_call_that_broke_at_the_upstream_is_not_the_agents_fault(kind: str) -> None:
    fault = infrastructure_fault(*await ended({}, {"error.type": kind}, error_type="MyError", error="gave up"))
    assert fault == "MyError: gave up"


async def test_an_agent_that_failed_by_itself_has_the_fault() -> None:
    assert infrastructure_fault(*await ended({}, error_type="ValueError", error="no JSON")) is None
    recovered = await ended({"error.type": "500"}, {}, error_type="ValueError", error="no JSON")
    assert infrastructure_fault(*recovered) is None
    assert infrastructure_fault(*await ended({"error.type": "400"}, error_type="BadRequestError", error="no")) is None


async def test_an_agent_that_succeeded_is_never_excused() -> None:
    assert infrastructure_fault(*await ended({"error.type": "500"}, status="succeeded")) is None


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("limit", ["rollout_calls", "rollout_tokens"])
async def test_a_rollout_that_spent_its_own_limit_has_the_fault_itself(limit: str, dialect: str) -> None:
    error, refused = await refused_by(limit, dialect), {"error.type": "429", "sharpen.llm.refused": "limit_reached"}
    assert infrastructure_fault(*await ended(refused, error_type="RateLimitError", error=error)) is None


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("limit", ["run_calls", "run_tokens"])
async def test_a_limit_of_the_run_is_told_apart(limit: str, dialect: str) -> None:
    fault = infrastructure_fault(*await ended(error_type="RateLimitError", error=await refused_by(limit, dialect)))
    message = spent_limit(fault or "")
    assert message is not None
    assert limit in message
    assert "7" in message
    assert "{" not in message
    assert spent_limit("RateLimitError: slow down") is None


async def test_a_limit_of_the_run_is_told_apart_in_an_older_run() -> None:
    fault = infrastructure_fault(*await ended(error_type="RateLimitError", error=SPENT_BY_0_1))
    assert (spent_limit(fault or "") or "").startswith("this run may spend $2 and has spent $2.01")
