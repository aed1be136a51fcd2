"""Limits hold: for calls made at once, over attempts, after a restart; counting needs no memory for each rollout."""

import asyncio
import logging
import re
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from sharpen import InMemoryLightningStore, LightningStore, Limits, Span, SQLiteStore, Totals
from sharpen.errors import ConfigError, InvalidInputError, StoreUnavailableError
from sharpen.semconv import SHARPEN_LLM_CALL, LightningLLMAttributes
from sharpen.types import WorkerHeartbeat
from tests.errors import raises, whole
from tests.llm_proxy.internals import MAX_MODELS, OTHER_MODELS, Budget, Call, Place, Prices, Refusal, Said, Usage

from .asked import HELLO, call_of

PRICES = Prices({"gpt-4o": (1_000_000, 2_000_000)})  # a dollar for a token of input, two for one of output


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = SQLiteStore(tmp_path / "store.db")
    yield opened
    await opened.close()


def said(input_tokens: int = 3, output_tokens: int = 2, **fields: Any) -> Said:
    return Said(usage=Usage(input_tokens, output_tokens), **fields)


async def spend(budget: Budget, call: Call, answer: Said | None = None) -> Refusal | None:
    """One call from its beginning to its end."""
    refusal = await budget.admit(call)
    if refusal is None:
        budget.settle(call, answer or said())
    return refusal


async def new_rollout(store: LightningStore) -> tuple[str, str]:
    rollout = await store.start_rollout("task")
    return rollout.rollout_id, rollout.attempt.attempt_id


async def add_call_span(store: LightningStore, rollout_id: str, attempt_id: str, **attributes: Any) -> None:
    """A call as the gateway writes it: 3 tokens in, 2 out, 7 dollars."""
    usage = {"gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 2, LightningLLMAttributes.COST.value: 7.0}
    await store.add_span(
        Span.from_attributes(
            name=SHARPEN_LLM_CALL, attributes=usage | attributes, rollout_id=rollout_id, attempt_id=attempt_id
        )
    )


# -- limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "value", "calls", "named"),
    [
        ("rollout_calls", 2, 2, ("rollout 'ro-1'", "2 calls", 2)),
        ("rollout_calls", 1, 1, ("rollout 'ro-1'", "1 call", 1)),
        ("rollout_tokens", 11, 3, ("rollout 'ro-1'", "11 tokens", 15)),
        ("rollout_cost", 7.5, 2, ("rollout 'ro-1'", "$7.5", "$14")),
        ("run_calls", 2, 2, ("this run", "2 calls", 2)),
        ("run_tokens", 11, 3, ("this run", "11 tokens", 15)),
        ("run_cost", 7.5, 2, ("this run", "$7.5", "$14")),
    ],
)
async def test_a_call_beyond_its_limit_is_refused_and_told_which(
    limit: str, value: float, calls: int, named: tuple[object, ...]
) -> None:
    budget = Budget(Limits(**{limit: value}), PRICES, None)
    for _ in range(calls):
        assert await spend(budget, call_of(rollout_id="ro-1")) is None
    refusal = await spend(budget, call_of(rollout_id="ro-1"))
    assert refusal is not None
    assert all(re.search(whole(each), refusal.message) for each in (limit, *named))
    assert (refusal.status, refusal.code, refusal.should_retry) == (429, "limit_reached", False)
    assert (budget.totals().calls, budget.totals().refused) == (calls, 1)


async def test_each_rollout_has_its_own_limit_and_the_run_one_for_all() -> None:
    budget = Budget(Limits(rollout_calls=2, run_calls=3), PRICES, None)
    asked = [call_of(rollout_id=rollout) for rollout in ("ro-1", "ro-1", "ro-1", "ro-2", "ro-2")] + [call_of()]
    refusals = [await spend(budget, call) for call in asked]
    assert [refusal is None for refusal in refusals] == [True, True, False, True, False, False]
    assert "ro-1" in str(refusals[2])
    assert "this run" in str(refusals[4])


async def test_without_limits_everything_passes_and_is_counted() -> None:
    budget = Budget(None, PRICES, None)
    for number in range(100):
        assert await spend(budget, call_of(rollout_id=f"ro-{number % 3}")) is None
    assert budget.totals() == Totals(
        calls=100, input_tokens=300, output_tokens=200, cost=700.0, by_model=budget.totals().by_model
    )


@settings(deadline=None, max_examples=50)
@given(limit=st.integers(1, 20), callers=st.integers(1, 40))
def test_calls_made_at_once_cannot_pass_a_limit_together(limit: int, callers: int) -> None:
    async def ask() -> tuple[int, Totals]:
        store = InMemoryLightningStore()
        rollout_id, attempt_id = await new_rollout(store)
        budget = Budget(Limits(rollout_calls=limit), PRICES, store)
        calls = [call_of(rollout_id=rollout_id, attempt_id=attempt_id) for _ in range(callers)]
        refusals = await asyncio.gather(*map(budget.admit, calls))
        totals = budget.totals()
        await budget.aclose()
        return refusals.count(None), totals

    admitted, totals = asyncio.run(ask())
    assert admitted == totals.calls == min(limit, callers)
    assert totals.refused == max(0, callers - limit)


async def test_a_call_that_is_refused_after_its_admission_does_not_count() -> None:
    budget = Budget(Limits(rollout_calls=1), PRICES, None)
    for _ in range(5):
        call = call_of(rollout_id="ro-1")
        assert await budget.admit(call) is None
        budget.refuse(call)
    assert await spend(budget, call_of(rollout_id="ro-1")) is None
    assert (budget.totals().calls, budget.totals().refused) == (1, 5)


async def test_a_call_that_was_never_admitted_counts_as_refused_alone() -> None:
    budget = Budget(None, PRICES, None)
    budget.refuse(call_of())
    assert budget.totals() == Totals(refused=1)


@pytest.mark.parametrize(
    "limits",
    [{"rollout_calls": 0}, {"run_calls": 1.5}, {"run_tokens": -1}, {"run_cost": float("nan")}, {"run_calls": True},
     {"rollout_cost": float("inf")}, {"rollout_cost": "5"}],
)  # fmt: skip
def test_a_limit_that_cannot_be_is_refused(limits: dict[str, Any]) -> None:
    with raises(ConfigError, next(iter(limits))):
        Limits(**limits)


def test_limits_are_read_from_a_dict() -> None:
    assert Limits.of({"run_cost": 5}) == Limits(run_cost=5)
    assert Limits.of(None) == Limits()
    assert Limits.of(Limits(run_calls=1)) == Limits(run_calls=1)
    with raises(ConfigError, "calls", "rollout_calls"):
        Limits.of({"calls": 1})
    with raises(ConfigError, 5):
        Limits.of(5)  # type: ignore[arg-type]


def test_limits_travel_as_json() -> None:
    limits = Limits(rollout_calls=3, run_cost=1.5)
    assert msgspec.json.decode(msgspec.json.encode(limits), type=Limits) == limits


# -- cost --------------------------------------------------------------------------------------------


@dataclass
class Entry:
    model: str | None = "local"
    input_cost_per_token: float | None = 0.5
    output_cost_per_token: float | None = 0.25


async def test_the_cost_of_a_call_is_told() -> None:
    budget = Budget(None, PRICES, None)
    call = call_of()
    await budget.admit(call)
    assert budget.settle(call, said(3, 2)) == pytest.approx(7.0)
    assert budget.settle(call_of(), said(4, 4), Entry()) == pytest.approx(3.0)


async def test_an_unknown_price_counts_as_nothing_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    budget = Budget(Limits(run_cost=1.0), Prices(), None)
    for _ in range(3):
        assert await spend(budget, call_of(HELLO | {"model": "my-model"})) is None
    assert budget.totals().cost == 0.0
    assert budget.totals().unpriced == 3
    assert len(caplog.records) == 1
    assert "'my-model'" in caplog.text
    assert "prices=" in caplog.text


async def test_without_a_cost_limit_an_unknown_price_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    await spend(Budget(None, Prices(), None), call_of(HELLO | {"model": "my-model"}))
    assert not caplog.records


async def test_an_upstream_that_tells_no_tokens_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    budget = Budget(Limits(run_tokens=10), PRICES, None)
    for answer in (Said(), Said(), Said(error="cut", is_complete=False)):
        await spend(budget, call_of(), answer)
    assert len(caplog.records) == 1
    assert "include_usage" in caplog.text


async def test_a_replay_costs_nothing() -> None:
    budget = Budget(None, None, None)
    call = call_of()
    await budget.admit(call)
    assert budget.settle(call, said()) is None
    assert (budget.totals().cost, budget.totals().unpriced, budget.totals().input_tokens) == (0.0, 0, 3)


async def test_a_call_that_ends_before_it_is_admitted_is_no_call() -> None:
    budget = Budget(None, PRICES, None)
    budget.settle(call_of(), Said(error="client hung up", is_complete=False))
    totals = budget.totals()
    assert (totals.calls, totals.by_model["gpt-4o"].calls, totals.errors) == (0, 0, 1)


# -- totals ------------------------------------------------------------------------------------------


async def test_totals_are_kept_by_model_with_errors() -> None:
    budget = Budget(None, PRICES, None)
    await spend(budget, call_of())
    await spend(budget, call_of(HELLO | {"model": "other-model"}), said(error="upstream said 500"))
    totals = budget.totals()
    assert totals.errors == 1
    assert {name: (each.calls, each.errors, each.cost) for name, each in totals.by_model.items()} == {
        "gpt-4o": (1, 0, 7.0),
        "other-model": (1, 1, 0.0),
    }


async def test_names_of_models_that_callers_make_up_do_not_fill_the_memory() -> None:
    budget = Budget(None, PRICES, None)
    for number in range(MAX_MODELS + 50):
        await spend(budget, call_of(HELLO | {"model": f"model-{number}"}))
    totals = budget.totals()
    assert len(totals.by_model) == MAX_MODELS + 1
    assert totals.by_model[OTHER_MODELS].calls == 50


async def test_a_copy_of_the_totals_does_not_change() -> None:
    budget = Budget(None, PRICES, None)
    await spend(budget, call_of())
    before = budget.totals()
    await spend(budget, call_of())
    assert (before.calls, before.by_model["gpt-4o"].calls) == (1, 1)


# -- over attempts and restarts ----------------------------------------------------------------------


async def test_a_new_attempt_goes_on_with_what_its_rollout_spent(store: SQLiteStore) -> None:
    rollout_id, first = await new_rollout(store)
    second = (await store.start_attempt(rollout_id)).attempt.attempt_id
    budget = Budget(Limits(rollout_calls=3), PRICES, store)
    for attempt_id in (first, first, second):
        assert await spend(budget, call_of(rollout_id=rollout_id, attempt_id=attempt_id)) is None
    assert await spend(budget, call_of(rollout_id=rollout_id, attempt_id=second)) is not None
    await budget.aclose()


@pytest.mark.parametrize("limits", [Limits(rollout_calls=150), Limits(rollout_tokens=750), Limits(rollout_cost=1050)])
async def test_after_a_restart_a_rollout_goes_on_with_what_its_spans_say(store: SQLiteStore, limits: Limits) -> None:
    rollout_id, attempt_id = await new_rollout(store)
    for number in range(149):
        await add_call_span(store, rollout_id, attempt_id, number=number)
    refused = {LightningLLMAttributes.REFUSED.value: "limit_reached"}
    await add_call_span(store, rollout_id, attempt_id, **refused)
    await store.add_span(Span.from_attributes(name="else", attributes={}, rollout_id=rollout_id, attempt_id=attempt_id))
    budget = Budget(limits, PRICES, store)
    assert await spend(budget, call_of(rollout_id=rollout_id, attempt_id=attempt_id)) is None
    assert await spend(budget, call_of(rollout_id=rollout_id, attempt_id=attempt_id)) is not None
    await budget.aclose()


async def test_after_a_restart_the_run_goes_on_with_its_totals(tmp_path: Path) -> None:
    for expected in (True, True, False):
        store = SQLiteStore(tmp_path / "run.db")
        budget = Budget(Limits(run_calls=2), PRICES, store)
        await budget.restore()
        assert (await spend(budget, call_of()) is None) is expected
        await budget.aclose()
        await store.close()
    assert (budget.totals().calls, budget.totals().refused) == (2, 1)
    assert budget.totals().by_model["gpt-4o"].calls == 2


async def test_two_gateways_of_one_store_keep_their_totals_apart(store: SQLiteStore) -> None:
    for name in ("one", "two"):
        budget = Budget(None, PRICES, store, name=name)
        await budget.restore()
        await spend(budget, call_of())
        await budget.aclose()
        assert budget.totals().calls == 1


async def test_totals_that_cannot_be_read_are_told(store: SQLiteStore, caplog: pytest.LogCaptureFixture) -> None:
    await store.update_worker("gateway-gateway", {"calls": "many"})
    budget = Budget(None, PRICES, store)
    await budget.restore()
    assert budget.totals() == Totals()
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert "'gateway-gateway'" in warning.getMessage()


def test_a_name_that_no_store_takes_is_refused_at_once() -> None:
    with pytest.raises(InvalidInputError):
        Budget(None, None, None, name="my gateway")


class CountedStore(InMemoryLightningStore):
    """Counts what is written and read, and is away on request."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = self.reads = 0
        self.is_away = False

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | None = None) -> WorkerHeartbeat:
        if self.is_away:
            raise StoreUnavailableError("nobody answers")
        self.writes += 1
        return await super().update_worker(worker_id, heartbeat_stats)

    async def query_spans(self, *args: Any, **kwargs: Any) -> Any:
        self.reads += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise StoreUnavailableError("nobody answers")
        return await super().query_spans(*args, **kwargs)


async def stored_calls(store: LightningStore) -> int:
    worker = await store.get_worker_by_id("gateway-gateway")
    return int((worker.heartbeat_stats or {})["calls"]) if worker else 0


async def until_stored(store: LightningStore, calls: int) -> None:
    async with asyncio.timeout(10):
        while await stored_calls(store) != calls:
            await asyncio.sleep(0.005)


async def test_totals_are_written_soon_and_many_calls_need_one_write() -> None:
    store = CountedStore()
    budget = Budget(None, PRICES, store, save_seconds=0.05)
    for _ in range(500):
        await spend(budget, call_of())
    assert store.writes <= 2
    await until_stored(store, 500)
    writes = store.writes
    await budget.aclose()
    assert store.writes == writes  # nothing new to write


async def test_a_store_that_is_away_is_told_once_and_written_later(caplog: pytest.LogCaptureFixture) -> None:
    store = CountedStore()
    store.is_away = True
    budget = Budget(None, PRICES, store, save_seconds=0.01)
    with caplog.at_level(logging.WARNING):
        await spend(budget, call_of())
        assert await budget.save() is False
        assert await budget.save() is False
    assert len(caplog.records) == 1
    store.is_away = False
    await until_stored(store, 1)
    await budget.aclose()


async def test_what_a_rollout_spent_is_read_once_for_all_its_calls() -> None:
    store = CountedStore()
    rollout_id, attempt_id = await new_rollout(store)
    budget = Budget(Limits(rollout_calls=100), PRICES, store)
    await asyncio.gather(*(spend(budget, call_of(rollout_id=rollout_id, attempt_id=attempt_id)) for _ in range(20)))
    assert store.reads == 1
    await budget.aclose()


async def test_without_rollout_limits_nothing_is_read() -> None:
    store = CountedStore()
    budget = Budget(Limits(run_calls=10), PRICES, store)
    await spend(budget, call_of(rollout_id="ro-1"))
    assert store.reads == 0
    await budget.aclose()


async def test_spending_that_cannot_be_read_is_refused_for_now() -> None:
    store = CountedStore()
    rollout_id, attempt_id = await new_rollout(store)
    store.is_away = True
    budget = Budget(Limits(rollout_calls=1), PRICES, store)
    refusal = await spend(budget, call_of(rollout_id=rollout_id, attempt_id=attempt_id))
    assert refusal is not None
    assert (refusal.status, refusal.should_retry, refusal.retry_after_seconds) == (503, True, 1.0)
    store.is_away = False
    assert await spend(budget, call_of(rollout_id=rollout_id, attempt_id=attempt_id)) is None
    await budget.aclose()


async def test_a_call_given_up_while_its_rollout_is_read_takes_nothing_from_the_others() -> None:
    store = CountedStore()
    rollout_id, attempt_id = await new_rollout(store)
    budget = Budget(Limits(rollout_calls=1), PRICES, store)
    given_up = asyncio.ensure_future(budget.admit(call_of(rollout_id=rollout_id, attempt_id=attempt_id)))
    other = asyncio.ensure_future(budget.admit(call_of(rollout_id=rollout_id, attempt_id=attempt_id)))
    await asyncio.sleep(0)
    given_up.cancel()
    assert await other is None
    assert given_up.cancelled()
    await budget.aclose()


# -- memory ------------------------------------------------------------------------------------------


async def test_a_forgotten_rollout_is_read_again_and_one_under_way_is_not_forgotten(store: SQLiteStore) -> None:
    budget = Budget(Limits(rollout_calls=2), PRICES, store, max_accounts=2)
    rollout_id, attempt_id = await new_rollout(store)
    under_way = call_of(rollout_id=rollout_id, attempt_id=attempt_id)
    assert await budget.admit(under_way) is None
    for _ in range(5):
        other, attempt = await new_rollout(store)
        assert await spend(budget, call_of(rollout_id=other, attempt_id=attempt)) is None
    assert await spend(budget, call_of(rollout_id=rollout_id, attempt_id=attempt_id)) is None
    assert await spend(budget, call_of(rollout_id=rollout_id, attempt_id=attempt_id)) is not None
    budget.settle(under_way, said())
    for _ in range(2):
        await add_call_span(store, rollout_id, attempt_id)  # as the gateway has done
    for _ in range(5):
        other, attempt = await new_rollout(store)
        await spend(budget, call_of(rollout_id=other, attempt_id=attempt))
    assert await spend(budget, call_of(rollout_id=rollout_id, attempt_id=attempt_id)) is not None
    await budget.aclose()


@pytest.mark.parametrize("rollouts", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_memory_stays_flat_over_many_rollouts(rollouts: int) -> None:
    budget = Budget(Limits(rollout_calls=5), PRICES, None, max_accounts=500)
    call = call_of()

    async def spend_over(first: int, last: int) -> int:
        for number in range(first, last):
            call.call_id, call.place = f"call-{number}", Place(f"ro-{number}", "at-1")
            await spend(budget, call)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        early = await spend_over(0, 2_000)
        late = await spend_over(2_000, rollouts)
    finally:
        tracemalloc.stop()
    assert late < early * 1.2
    assert budget.totals().calls == rollouts
    await budget.aclose()
