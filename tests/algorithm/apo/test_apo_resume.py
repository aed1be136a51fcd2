"""A search that was broken off goes on where it was: nothing is paid for twice, and it comes to the same."""

import asyncio
import json
import math
from collections import Counter
from typing import Any

import pytest

from sharpen import APO
from sharpen.errors import ConfigError, RunError
from tests.algorithm.apo.scenes import CRITIC, SEED, edited, good_words, make, play, search, shape
from tests.algorithm.prompts.scripted_openai import Reply, ScriptedOpenAI
from tests.algorithm.prompts.world import World
from tests.errors import raises


class Script:
    """Answers so many calls, then none; keeps what it was paid for."""

    def __init__(self, calls: float) -> None:
        self.left = calls
        self.paid: Counter[str] = Counter()

    def __call__(self, request: dict[str, Any]) -> str | Reply:
        if self.left <= 0:
            return Reply(status=401)
        self.left -= 1
        self.paid[json.dumps(request, sort_keys=True)] += 1
        return good_words(request)


@pytest.mark.parametrize("calls", [0, 3, 8, 13])
async def test_a_search_that_is_resumed_pays_for_nothing_twice_and_comes_to_the_same(calls: int) -> None:
    first, second, world = Script(calls), Script(math.inf), World(play)
    options = {"max_concurrent_calls": 1, "val_batch_size": 8}  # no answer is on its way when another call fails
    with ScriptedOpenAI(first) as server:
        with raises(RunError, 401):
            await search(make(server, **options), world)
        assert sum(first.paid.values()) == calls
    with ScriptedOpenAI(second) as server:
        again = make(server, **options)
        again.load_state_dict(world.state)
        await search(again, world)
    with ScriptedOpenAI(good_words) as server:
        sound = make(server, **options)
        alone = await search(sound)
        asked = len(server.requests)
    paid = first.paid + second.paid
    assert max(paid.values()) == 1
    assert len(paid) == asked
    assert shape(again) == shape(sound)
    assert world.count() == alone.count()
    assert max(Counter(each.rollout_id for each in world.played).values()) == 1
    assert again.cost == sound.cost
    assert again.beam == sound.beam
    assert again.book.as_json() == sound.book.as_json()


@pytest.mark.parametrize("rollouts", [5, 25, 45, 90])
async def test_a_search_that_was_stopped_between_rollouts_goes_on(rollouts: int) -> None:
    world = World(play)
    stopped = asyncio.Event()

    def watched(prompt: str, task: dict[str, int]) -> float:
        if world.count() == rollouts:
            stopped.set()
        return play(prompt, task)

    world.play = watched
    with ScriptedOpenAI(good_words) as server:
        running = asyncio.ensure_future(search(make(server), world))
        await stopped.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        latest = await world.store.get_latest_resources()
        assert latest is not None
        assert set(latest.resources) == {"prompt"}
        again, sound = make(server), make(server)
        again.load_state_dict(world.state)
        await search(again, world)
        alone = await search(sound)
    assert shape(again) == shape(sound)
    assert world.count() == alone.count()


async def test_a_search_that_is_done_and_resumed_pays_for_nothing() -> None:
    world = World(play)
    with ScriptedOpenAI(good_words) as server:
        first = make(server, beam_rounds=1)
        await search(first, world)
        paid, asked = world.count(), len(server.requests)
        again = make(server, beam_rounds=1)
        again.load_state_dict(world.state)
        assert again.get_best_prompt() == first.get_best_prompt()  # before it runs
        await search(again, world)
        assert (world.count(), len(server.requests)) == (paid, asked)
        longer = make(server, beam_rounds=2, beam_width=1, branch_factor=3)  # and otherwise from here on
        longer.load_state_dict(world.state)
        await search(longer, world)
    assert shape(again) == shape(first)
    assert longer.round == 2
    assert [each.version for each in longer.candidates] == [f"v{number}" for number in range(1 + 4 + 3)]
    assert [each[:4] for each in shape(longer)[:5]] == [each[:4] for each in shape(first)]


async def test_the_state_goes_through_json_and_back() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=1)
        assert apo.state_dict() == {}
        await search(apo)
        state = json.loads(json.dumps(apo.state_dict()))
        again = make(server)
        again.load_state_dict(state)
    assert again.state_dict() == state
    assert (again.beam, again.round, again.seed) == (apo.beam, 1, 7)
    assert shape(again) == shape(apo)
    again.load_state_dict({})
    assert again.state_dict() == state  # nothing to load is nothing to do


async def test_the_seed_of_a_search_is_in_its_state() -> None:
    world, script = World(play), Script(3)
    with ScriptedOpenAI(script) as server:
        first = make(server, seed=None, beam_rounds=1)
        with pytest.raises(RunError):
            await search(first, world)
    with ScriptedOpenAI(good_words) as server:
        again = make(server, seed=None, beam_rounds=1)
        again.load_state_dict(world.state)
        await search(again, world)
    assert again.seed == first.seed


@pytest.mark.parametrize("reply", [edited("no placeholder"), Reply(None, refusal="no")], ids=["broken", "refused"])
async def test_an_edit_of_no_use_that_was_paid_for_is_not_asked_for_again(reply: str | Reply) -> None:
    def useless(request: dict[str, Any]) -> str | Reply:
        said = first(request)
        return said if request["model"] == CRITIC or isinstance(said, Reply) else reply

    first, second, world = Script(2), Script(math.inf), World(play)
    options = {"beam_rounds": 1, "beam_width": 1, "branch_factor": 1}
    with ScriptedOpenAI(useless) as server, raises(RunError, 401):
        await search(make(server, **options), world)
    with ScriptedOpenAI(second) as server:
        again = make(server, **options)
        again.load_state_dict(world.state)
        await search(again, world)
    assert max((first.paid + second.paid).values()) == 1
    assert sum(second.paid.values()) == 1  # the second edit
    assert again.candidates[1].status != "rejected"
    assert again.candidates[1].cost.calls == 3


async def test_a_damaged_state_is_an_error_that_says_so() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=1)
        await search(apo)
        state = {**apo.state_dict(), "book": {"format": 1, "best_version": "v9", "candidates": []}}
        with pytest.raises(ConfigError):
            make(server).load_state_dict(state)


async def test_a_search_can_be_resumed_from_any_moment_of_a_round() -> None:
    """A subclass may keep the state whenever it likes."""

    class Saving(APO):
        async def challenge(self, version: str) -> bool:
            self.checkpoint()
            if self.round == 1 and not is_mended:
                raise RunError("the disk is full")
            return await super().challenge(version)

    is_mended = False
    world = World(play)
    with ScriptedOpenAI(good_words) as server:
        with raises(RunError, "the disk is full"):
            await search(make(server, Saving), world)
        is_mended = True
        again, sound = make(server, Saving), make(server)
        again.load_state_dict(world.state)
        await search(again, world)
        alone = await search(sound)
    assert shape(again) == shape(sound)
    assert again.book.seed.template == SEED
    assert world.count() == alone.count()
