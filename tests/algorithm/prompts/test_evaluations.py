"""Evaluations: one rollout for the same prompts and task for ever, honest rewards, and nothing lost in silence."""

import asyncio
import logging
from typing import Any

import pytest

from sharpen import LLM, InMemoryLightningStore, PromptTemplate, RolloutConfig, Span
from sharpen.errors import ConfigError
from tests.algorithm.internals import Cost, Evaluations, Item, cost_of
from tests.algorithm.prompts.world import LOST, World
from tests.errors import raises

PROMPTS = {"prompt": PromptTemplate("Answer {question}.")}
OTHER = {"prompt": PromptTemplate("Answer {question} well.")}
VAL = [Item("val", number, number) for number in range(6)]
TRAIN = [Item("train", number, number) for number in range(6)]


def number(prompt: str, task: int) -> float:
    return float(task)


async def rewards(evaluations: Evaluations, items: list[Item], prompts: Any = PROMPTS, **options: Any) -> list[float]:
    return [each.reward for each in await evaluations.evaluate(prompts, items, **options)]


# -- one rollout for ever ----------------------------------------------------------------------------


async def test_they_come_in_the_order_of_items_and_are_paid_for_once() -> None:
    world = World(number)
    evaluations = Evaluations(world.store, "k")
    async with world.working(), evaluations.following():
        assert await rewards(evaluations, [VAL[4], VAL[0], VAL[2]]) == [4.0, 0.0, 2.0]
        assert await rewards(evaluations, [VAL[0], VAL[5], VAL[0]]) == [0.0, 5.0, 0.0]
    assert sorted(each.task for each in world.played) == [0, 2, 4, 5]


async def test_asked_for_at_the_same_time_they_are_one() -> None:
    world = World(number)
    evaluations = Evaluations(world.store, "k")
    async with world.working(), evaluations.following():
        both = await asyncio.gather(rewards(evaluations, VAL), rewards(evaluations, VAL[::-1]))
    assert both == [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]]
    assert world.count() == 6


async def test_another_task_in_the_same_place_is_another_rollout() -> None:
    """A run may be resumed with a data set that was shuffled, or has grown at its front."""
    world = World(number)
    first, second = Evaluations(world.store, "k"), Evaluations(world.store, "k")
    async with world.working(), first.following():
        assert await rewards(first, VAL[:3]) == [0.0, 1.0, 2.0]
    async with world.working(), second.following():
        moved = [Item("val", 0, 1), Item("val", 1, 1), Item("val", 2, 5)]
        assert await rewards(second, moved) == [1.0, 1.0, 5.0]
    assert world.count() == 5  # the second of them is what it was


async def test_a_task_that_an_agent_changes_stays_the_same_item() -> None:
    def spoil(prompt: str, task: dict[str, int]) -> float:
        task["seen"] = 1
        return 1.0

    world, item = World(spoil), Item("val", 0, {"number": 3})
    evaluations = Evaluations(world.store, "k")
    async with world.working(), evaluations.following():
        for _ in range(2):
            item.task["number"] += 1
            await evaluations.evaluate(PROMPTS, [item])
    assert world.count() == 1


async def test_a_task_that_json_cannot_hold_is_known_by_its_place() -> None:
    world = World(lambda prompt, task: 1.0)
    first, second = Evaluations(world.store, "k"), Evaluations(world.store, "k")
    for evaluations in (first, second):
        async with world.working(), evaluations.following():
            await evaluations.evaluate(PROMPTS, [Item("val", 0, {(1, 2): object()})])
    assert world.count() == 1


async def test_other_prompts_splits_occasions_and_samplings_are_other_rollouts() -> None:
    world = World(number)
    llm = LLM(endpoint="http://127.0.0.1:1", model="m", sampling_parameters={"top_p": 0.5})
    others = {"train": {"main_llm": llm}, "val": {"main_llm": llm}}
    evaluations = Evaluations(world.store, "k", others=others)  # type: ignore[arg-type]
    async with world.working(), evaluations.following():
        for options in ({}, {"occasion": "r1"}, {"occasion": "r2"}, {"sampling": {"temperature": 0.7}}):
            await rewards(evaluations, VAL[:1], **options)  # type: ignore[arg-type]
        await rewards(evaluations, TRAIN[:1])
        await rewards(evaluations, VAL[:1], OTHER)
    assert world.count() == 6
    sampled = [each.resources["main_llm"].sampling_parameters for each in world.played]
    assert sampled.count({"top_p": 0.5, "temperature": 0.7}) == 1
    assert sampled.count({"top_p": 0.5}) == 5


async def test_a_later_life_of_the_run_finds_them_in_the_store_and_another_run_does_not() -> None:
    world = World(number)
    async with world.working():
        for key in ("k", "k", "other"):
            evaluations = Evaluations(world.store, key)
            async with evaluations.following():
                assert await rewards(evaluations, VAL) == [0, 1, 2, 3, 4, 5]
    assert world.count() == 12


async def test_one_that_was_broken_off_is_not_asked_for_twice() -> None:
    world = World(number)
    first, second = Evaluations(world.store, "k"), Evaluations(world.store, "k")
    async with first.following():
        waiting = asyncio.ensure_future(first.evaluate(PROMPTS, VAL))
        while not (await world.store.query_rollouts()).total:
            await asyncio.sleep(0)
        waiting.cancel()
    assert [task for task in asyncio.all_tasks() if not task.done()] == [asyncio.current_task()]
    async with world.working(), second.following():
        assert await rewards(second, VAL) == [0, 1, 2, 3, 4, 5]
    assert world.count() == 6


async def test_resources_that_have_changed_are_published_again_under_their_name() -> None:
    world = World(number)
    for port in (1, 2):
        others = {"val": {"main_llm": LLM(endpoint=f"http://127.0.0.1:{port}", model="m")}}
        evaluations = Evaluations(world.store, "k", others=others)  # type: ignore[arg-type]
        async with world.working(), evaluations.following():
            await rewards(evaluations, VAL[:port])
    assert [each.resources["main_llm"].endpoint[-1] for each in world.played] == ["1", "2"]


async def test_sampling_without_a_model_is_an_error() -> None:
    evaluations = Evaluations(InMemoryLightningStore(), "k")
    async with evaluations.following():
        with pytest.raises(ConfigError):
            await evaluations.evaluate(PROMPTS, VAL, sampling={"temperature": 1.0})


async def test_no_items_are_no_evaluations() -> None:
    evaluations = Evaluations(InMemoryLightningStore(), "k")
    async with evaluations.following():
        assert await evaluations.evaluate(PROMPTS, []) == []


# -- honest rewards ----------------------------------------------------------------------------------


async def test_a_failure_of_the_agent_counts_as_zero_and_says_why() -> None:
    def failing(prompt: str, task: int) -> float:
        raise ArithmeticError("divided by nothing")

    world = World(failing)
    evaluations = Evaluations(world.store, "k")
    async with world.working(), evaluations.following():
        (found,) = await evaluations.evaluate(PROMPTS, VAL[:1])
    assert (found.status, found.reward, found.is_lost, found.has_reward) == ("failed", 0.0, False, False)
    assert found.error == "ArithmeticError: divided by nothing"
    assert world.count() == 1  # its own fault: not tried again


async def test_a_missing_reward_is_zero_and_told(caplog: pytest.LogCaptureFixture) -> None:
    world = World(lambda prompt, task: None)
    evaluations = Evaluations(world.store, "k")
    async with world.working(), evaluations.following():
        with caplog.at_level(logging.WARNING, logger="sharpen"):
            (found,) = await evaluations.evaluate(PROMPTS, VAL[:1])
            await evaluations.evaluate(PROMPTS, VAL[:1])
    assert (found.reward, found.has_reward, found.is_lost) == (0.0, False, False)
    assert caplog.text.count("ended without a reward") == 1


async def test_a_lost_one_is_tried_again_and_its_cost_is_that_of_all_tries() -> None:
    left = [2]

    def flaky(prompt: str, task: int) -> Any:
        left[0] -= 1
        return LOST if left[0] >= 0 else 1.0

    world = World(flaky)
    evaluations = Evaluations(world.store, "k")
    async with world.working(), evaluations.following():
        (found,) = await evaluations.evaluate(PROMPTS, VAL[:1])
    assert (found.reward, found.is_lost, found.cost.rollouts) == (1.0, False, 3)
    assert world.count() == 3


async def test_what_stays_lost_is_told_once_and_tried_anew_by_a_later_life(caplog: pytest.LogCaptureFixture) -> None:
    is_down = [True]
    world = World(lambda prompt, task: LOST if is_down[0] else 1.0)
    first, second = Evaluations(world.store, "k"), Evaluations(world.store, "k")
    async with world.working(), first.following():
        with caplog.at_level(logging.WARNING, logger="sharpen"):
            (found,) = await first.evaluate(PROMPTS, VAL[:1])
    assert (found.is_lost, found.reward, found.cost.rollouts) == (True, 0.0, 3)
    assert found.error is not None
    assert "worker-0" in found.error
    told = [message for message in caplog.messages if found.error in message]
    assert len(told) == 3  # two further tries, and the end
    assert found.rollout_id in told[-1]
    is_down[0] = False
    async with world.working(), second.following():
        (found,) = await second.evaluate(PROMPTS, VAL[:1])
    assert (found.is_lost, found.reward, found.cost.rollouts) == (False, 1.0, 4)
    assert world.count() == 4


async def test_one_that_takes_too_long_is_cancelled_and_lost() -> None:
    store = InMemoryLightningStore()
    evaluations = Evaluations(store, "k", timeout_seconds=0.02)
    async with evaluations.following():
        (found,) = await evaluations.evaluate(PROMPTS, VAL[:1])
    assert (found.is_lost, found.is_too_late, found.status) == (True, True, "cancelled")
    assert found.error == "not finished within 0.02 s (rollout_batch_timeout)"
    assert found.cost == Cost(rollouts=1)
    rollout = await store.get_rollout_by_id(found.rollout_id)
    assert rollout is not None
    assert rollout.status == "cancelled"


async def test_an_agent_that_takes_too_long_has_failed() -> None:
    store = InMemoryLightningStore()
    evaluations = Evaluations(store, "k", timeout_seconds=0.3)
    async with evaluations.following():
        asking = asyncio.ensure_future(evaluations.evaluate(PROMPTS, VAL[:1]))
        assert await store.dequeue_rollout(wait_seconds=5) is not None  # whose worker never ends
        (found,) = await asking
    assert (found.is_lost, found.is_too_late, found.reward) == (False, True, 0.0)


async def test_another_model_is_another_evaluation_wherever_it_is_served() -> None:
    ids = []
    for address, model in (("http://a/v1", "small"), ("http://b/v1", "small"), ("http://a/v1", "large")):
        store = InMemoryLightningStore()
        evaluations = Evaluations(store, "k", others={"val": {"llm": LLM(address, model)}}, timeout_seconds=0.01)
        async with evaluations.following():
            ids += [each.rollout_id for each in await evaluations.evaluate(PROMPTS, VAL[:1])]
    assert ids[0] == ids[1] != ids[2]


async def test_an_error_of_the_store_reaches_who_asked() -> None:
    class Failing(InMemoryLightningStore):
        async def enqueue_many_rollouts(self, requests: Any) -> Any:
            raise ConnectionError("the store is gone")

    evaluations = Evaluations(Failing(), "k")
    async with evaluations.following():
        with raises(ConnectionError, "the store is gone"):
            await evaluations.evaluate(PROMPTS, VAL)


async def test_every_attempt_of_a_rollout_is_in_its_cost() -> None:
    """Also the one whose worker was not heard of any more: its calls were paid for."""
    store = InMemoryLightningStore()
    evaluations = Evaluations(store, "k")
    usage = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 5}
    config = RolloutConfig(max_attempts=2, retry_condition=["unresponsive"])

    async def work() -> None:
        for status in ("unresponsive", "succeeded"):
            (claimed,) = await store.dequeue_many_rollouts(limit=1, worker_id="w", wait_seconds=10)
            await store.update_rollout(claimed.rollout_id, config=config)
            ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
            await store.add_span(Span.from_attributes(attributes=usage, name="chat", **ids))
            await store.update_attempt(*ids.values(), status=status)

    async with evaluations.following():
        working = asyncio.create_task(work())
        (found,) = await evaluations.evaluate(PROMPTS, VAL[:1])
        await working
    assert found.status == "succeeded"
    assert found.cost == Cost(rollouts=1, calls=2, input_tokens=20, output_tokens=10)


# -- costs -------------------------------------------------------------------------------------------


def test_the_cost_of_a_rollout_is_that_of_its_calls_each_counted_once() -> None:
    def span(name: str, **attributes: Any) -> Span:
        return Span.from_attributes(attributes=attributes, rollout_id="r", attempt_id="a", name=name)

    usage = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 5}
    agents = [span("chat", **usage), span("tool"), span("chat", **usage)]
    assert cost_of(agents) == Cost(rollouts=1, calls=2, input_tokens=20, output_tokens=10)
    assert cost_of([]) == Cost(rollouts=1)
    from sharpen.semconv import SHARPEN_LLM_CALL, LightningLLMAttributes

    gateways = [span(SHARPEN_LLM_CALL, **usage, **{LightningLLMAttributes.COST.value: 0.25})]
    assert cost_of([*agents, *gateways]) == Cost(1, 1, 10, 5, 0.25)
