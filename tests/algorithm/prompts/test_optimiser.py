"""What every search stands on: answers that are kept, chance by place, rounds, and the best published last."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sharpen import LLM, PromptTemplate
from sharpen.adapter import TraceToMessages
from sharpen.errors import ConfigError
from tests.algorithm.internals import SEED, Answer, Candidate, Cost, PromptOptimiser, read_records
from tests.algorithm.prompts.world import LOST, World
from tests.errors import raises

PROMPT = PromptTemplate("10 {question}")
TASKS = list(range(20))


def by_number(prompt: str, task: int) -> float:
    """Prompts begin with the number of tasks that they are good for."""
    return float(task < int(prompt.split(maxsplit=1)[0]))


class Growing(PromptOptimiser):
    """Every round makes a prompt that is good for two tasks more; what `step` says happens on the way."""

    asked = 0
    rounds = 3

    async def search(self) -> None:
        await self.validate_seed()
        while self.round < self.rounds and not self.should_stop:
            self.begin_iteration()
            answer = await self.once(f"r{self.round}", self.ask)
            version = f"v{self.round + 1}"
            if version not in self.book:
                prompts = {"prompt": PromptTemplate(f"{answer.text} {{question}}")}
                self.add(Candidate(version, prompts, [self.book.best.version], round=self.round + 1, cost=answer.cost))
            await self.step()
            improved = await self.challenge(version)
            if await self.end_round({"number": float(answer.text)}, has_improved=improved):
                break

    async def ask(self) -> Answer:
        self.asked += 1
        return Answer(str(12 + 2 * self.round), Cost(calls=1))

    async def step(self) -> None:
        """Nothing by default."""


async def run(optimiser: PromptOptimiser, world: World | None = None, **options: Any) -> World:
    world = world or World(by_number)
    given: dict[str, Any] = {"train": TASKS, "val": TASKS, "resources": {"prompt": PROMPT}}
    await world.search(optimiser, **{**given, **options})
    return world


async def published(world: World) -> list[str]:
    found = await world.store.query_resources()
    return [each.resources["prompt"].template for each in found.items]  # type: ignore[union-attr]


# -- a search ----------------------------------------------------------------------------------------


async def test_a_search_leaves_the_best_the_book_and_what_it_cost(tmp_path: Path) -> None:
    optimiser = Growing(promotion="mean")
    optimiser.run_dir = tmp_path
    world = await run(optimiser)
    assert optimiser.get_best_prompt().template == "16 {question}"
    assert [each.version for each in optimiser.candidates] == ["v0", "v1", "v2", "v3"]
    assert optimiser.cost.rollouts == world.count() == 4 * 20
    assert optimiser.cost.calls == 3
    assert read_records(tmp_path).as_json() == optimiser.book.as_json()
    assert (await published(world))[-1] == "16 {question}"


async def test_seed_prompts_and_items_are_ready() -> None:
    optimiser = Growing(train_split=0.25)
    await run(optimiser, val=None)
    assert optimiser.seed_prompts == {"prompt": PROMPT}
    assert (len(optimiser.train_items), len(optimiser.val_items)) == (5, 15)
    assert optimiser.val_items[0].task == 5


async def test_the_val_batch_of_a_round_has_no_task_twice_and_follows_from_seed_and_round() -> None:
    one, other, third = Growing(seed=1, val_batch_size=8), Growing(seed=1, val_batch_size=8), Growing(seed=2)
    for each in (one, other, third):
        await run(each)
    assert one.val_batch() == other.val_batch()
    assert len({item.index for item in one.val_batch()}) == 8
    assert third.val_batch() != one.val_batch()
    one.round += 1
    assert one.val_batch() != other.val_batch()


async def test_chance_follows_from_seed_and_place_alone() -> None:
    optimiser = Growing(seed=5)
    await run(optimiser)
    first = optimiser.chance("a", 1).random()
    assert optimiser.chance("b", 1).random() != first
    assert optimiser.chance("a", 1).random() == first


async def test_the_adapter_of_the_trainer_reads_conversations_where_it_can() -> None:
    optimiser = Growing()
    assert isinstance(optimiser.to_messages, TraceToMessages)
    own = TraceToMessages()
    optimiser.set_adapter(own)
    assert optimiser.to_messages is own


def test_a_search_must_be_written() -> None:
    with pytest.raises(NotImplementedError):
        asyncio.run(run(PromptOptimiser()))


def test_outside_of_a_run_nothing_is_evaluated() -> None:
    with pytest.raises(ConfigError):
        asyncio.run(Growing().evaluate(SEED, []))


# -- when it ends ------------------------------------------------------------------------------------


class Stuck(Growing):
    rounds = 9

    async def ask(self) -> Answer:
        return Answer("10", Cost(calls=1))


async def test_patience_counts_rounds_without_a_better_one() -> None:
    optimiser = Stuck(patience=2, promotion="mean")
    await run(optimiser)
    assert optimiser.round == 2


class Loop:
    """What callbacks would do."""

    should_stop, current_iter = False, 0

    def __init__(self, stop_after: int | None = None) -> None:
        self.reported: list[tuple[dict[str, float], dict[str, float] | None]] = []
        self.validations: list[dict[str, float]] = []
        self.stop_after = stop_after

    def begin_iteration(self) -> None:
        self.current_iter += 1

    def report_validation(self, metrics: Any, /) -> None:
        self.validations.append(dict(metrics))

    def report_iteration(self, metrics: Any, val_metrics: Any, /) -> bool:
        self.reported.append((dict(metrics), val_metrics))
        return len(self.reported) == self.stop_after


async def test_rounds_are_iterations_and_the_seed_is_a_validation_before_them() -> None:
    optimiser, loop = Growing(promotion="mean"), Loop(stop_after=2)
    optimiser.set_loop(loop)
    await run(optimiser)
    assert optimiser.round == 2  # a callback has ended it
    assert [each["reward_mean"] for each in loop.validations] == [0.5]
    metrics, val = loop.reported[1]
    assert metrics == {"number": 14, "candidates_total": 3, "rollouts_total": 60, "calls_total": 2, "tokens_total": 0}
    assert val is not None
    assert val["reward_mean"] == 0.7


async def test_without_a_scored_best_a_round_has_no_validation() -> None:
    class Idle(PromptOptimiser):
        async def search(self) -> None:
            await self.validate_seed()
            await self.end_round({}, has_improved=False)

    optimiser, loop = Idle(run_initial_validation=False), Loop()
    optimiser.set_loop(loop)
    await run(optimiser)
    assert loop.validations == []
    assert [val for _, val in loop.reported] == [None]


# -- when it is broken off ---------------------------------------------------------------------------


class Failing(Growing):
    fails_in = 1

    async def step(self) -> None:
        if self.round == self.fails_in:
            # What is under way must not be published after the best.
            self.left = asyncio.ensure_future(self.evaluate(f"v{self.round + 1}", self.val_items))
            for _ in range(3):
                await asyncio.sleep(0)
            raise RuntimeError("broken off")


async def test_the_best_so_far_is_published_last_when_a_search_fails() -> None:
    optimiser, world = Failing(promotion="mean"), World(by_number)
    with raises(RuntimeError, "broken off"):
        await run(optimiser, world)
    assert (await published(world))[-1] == "12 {question}"
    with pytest.raises(asyncio.CancelledError):
        await optimiser.left
    assert (await published(world))[-1] == "12 {question}"


async def test_a_search_that_goes_on_asks_and_pays_for_nothing_twice() -> None:
    world, first = World(by_number), Failing(promotion="mean")
    with pytest.raises(RuntimeError):
        await run(first, world)
    again = Failing(promotion="mean")
    again.fails_in = 99
    again.load_state_dict(world.state)
    await run(again, world)
    assert first.asked + again.asked == 3
    assert world.count() == again.cost.rollouts == 4 * 20
    assert (again.key, again.seed) == (first.key, first.seed)
    assert again.get_best_prompt().template == "16 {question}"


async def test_a_run_does_not_go_on_with_another_prompt() -> None:
    world = World(by_number)
    with pytest.raises(RuntimeError):
        await run(Failing(promotion="mean"), world)
    again, paid = Failing(promotion="mean"), world.count()
    again.load_state_dict(world.state)
    with raises(ConfigError, "prompt"):
        await run(again, world, resources={"prompt": PromptTemplate("11 {question}")})
    assert world.count() == paid


async def test_a_higher_mean_that_is_no_evidence_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    optimiser = Growing()
    optimiser.rounds = 1
    await run(optimiser, val=[0, 10])  # one of two is better: 10 tasks against 12
    assert optimiser.book.best.version == SEED
    (told,) = [message for message in caplog.messages if 'promotion="mean"' in message]
    assert told.startswith("v1 ")
    assert "1.00 (" in told
    assert "0.50 (" in told
    caplog.clear()
    await run(Growing(promotion="mean"), val=[0, 10])
    assert 'promotion="mean"' not in caplog.text


# -- a search that can see nothing -------------------------------------------------------------------


async def test_an_agent_without_rewards_ends_the_search_before_it_costs_more() -> None:
    optimiser, world = Growing(), World(lambda prompt, task: None)
    with pytest.raises(ConfigError):
        await run(optimiser, world)
    assert world.count() == 20


async def test_an_agent_that_lacks_a_resource_ends_the_search_before_it_costs_more() -> None:
    class MissingResourceError(ArithmeticError):
        """By the name under which the runner records it."""

    def failing(prompt: str, task: int) -> float:
        raise MissingResourceError("the agent asks for llm, but its rollout has no LLM: give one")

    optimiser, world = Growing(), World(failing)
    with raises(ConfigError, "asks for llm", "model="):
        await run(optimiser, world)
    assert world.count() == 20
    with raises(ConfigError, "asks for llm") as caught:  # what it lacks is another resource
        await run(Growing(), World(failing), resources={"prompt": PROMPT, "llm": LLM("http://127.0.0.1:9", "tiny")})
    assert "model=" not in str(caught.value)


async def test_a_prompt_that_no_rollout_can_fill_in_ends_the_search_before_it_costs_more() -> None:
    class MissingValueError(ArithmeticError):
        """By the name under which the runner records it."""

    def failing(prompt: str, task: int) -> float:
        raise MissingValueError("the template has {txt}, but ...")

    optimiser, world = Growing(), World(failing)
    with raises(ConfigError, "{txt}"):
        await run(optimiser, world)
    assert world.count() == 20


async def test_an_agent_that_always_fails_is_told_and_may_be_mended_by_a_prompt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(prompt: str, task: int) -> float:
        if prompt == PROMPT.template:
            raise ArithmeticError("no such tool")
        return 1.0

    optimiser = Growing()
    await run(optimiser, World(failing))
    assert any("seed prompt" in told and "ArithmeticError: no such tool" in told for told in caplog.messages)
    assert optimiser.book.best.version == "v1"


async def test_an_agent_that_no_prompt_mends_ends_the_search_after_a_round() -> None:
    def failing(prompt: str, task: int) -> float:
        raise ArithmeticError("no such tool")

    optimiser = Growing()
    with raises(RuntimeError, "ArithmeticError"):
        await run(optimiser, World(failing))
    assert optimiser.round == 1


async def test_a_seed_that_is_lost_altogether_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        await run(Growing(), World(lambda prompt, task: LOST), val=TASKS[:2])
