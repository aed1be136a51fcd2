"""Totals in the store: each gateway has a record of its own, and goes on with it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from sharpen import InMemoryLightningStore
from tests.llm_proxy.internals import Budget, Said, Usage, budgets_keeping as keeping

from .asked import call_of


@pytest.fixture
async def store() -> AsyncIterator[InMemoryLightningStore]:
    opened = InMemoryLightningStore()
    yield opened
    await opened.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(keeping, "ALIVE_SECONDS", 0.5)
    monkeypatch.setattr(keeping, "LOOK_SECONDS", 0.01)


async def started(store: InMemoryLightningStore, instance: str) -> Budget:
    budget = Budget(None, None, store, instance=instance)
    await budget.restore()
    return budget


async def spend(budget: Budget, calls: int) -> None:
    for _ in range(calls):
        call = call_of()
        assert await budget.admit(call) is None
        budget.settle(call, Said(usage=Usage(1, 1)))


async def stats(store: InMemoryLightningStore, worker_id: str) -> dict[str, Any]:
    worker = await store.get_worker_by_id(worker_id)
    assert worker is not None
    return worker.heartbeat_stats or {}


async def test_two_gateways_of_one_name_do_not_overwrite_each_others_totals(store: InMemoryLightningStore) -> None:
    one, other = await started(store, "a"), await started(store, "b")
    await spend(one, 5)
    await spend(other, 3)
    await one.aclose()
    await other.aclose()
    assert (await stats(store, "gateway-gateway"))["calls"] == 5
    assert (await stats(store, "gateway-gateway-2"))["calls"] == 3


async def test_a_gateway_that_starts_again_goes_on_with_its_own(store: InMemoryLightningStore) -> None:
    one, other = await started(store, "a"), await started(store, "b")
    await spend(other, 3)
    await other.aclose()
    again = await started(store, "b")
    assert (again.worker_id, again.totals().calls) == ("gateway-gateway-2", 3)
    for each in (one, again):
        await each.aclose()


async def test_a_new_gateway_goes_on_with_the_totals_of_one_that_has_ended(store: InMemoryLightningStore) -> None:
    one = await started(store, "a")
    await spend(one, 5)
    await one.aclose()
    new = await started(store, "b")
    assert (new.worker_id, new.totals().calls) == ("gateway-gateway", 5)
    await new.aclose()


async def test_a_new_gateway_goes_on_with_the_totals_of_one_that_has_just_died(store: InMemoryLightningStore) -> None:
    await store.update_worker("gateway-gateway", {"calls": 5, "instance": "dead"})
    new = await started(store, "b")
    assert (new.worker_id, new.totals().calls) == ("gateway-gateway", 5)
    await new.aclose()
