"""What a search costs: the exact number of rollouts, what is reused, and what is rejected before any is spent."""

from collections import Counter
from itertools import product
from typing import Any

from sharpen import APO
from tests.algorithm.apo.scenes import CRITIC, SEED, VAL, edited, good_words, make, quality, search, tasks, template_of
from tests.algorithm.internals import Race
from tests.algorithm.prompts.scripted_openai import ScriptedOpenAI, text_of
from tests.algorithm.prompts.world import World


def numbered(request: dict[str, Any]) -> str:
    """Every edit is another one, and none is better than its parent."""
    if request["model"] == CRITIC:
        return "Say it otherwise."
    return edited(f"{template_of(text_of(request))} hm{request['seed']}")


def pairs(world: World) -> Counter[tuple[str, int]]:
    """How often each template met each validation task."""
    return Counter((each.prompt, each.task["number"]) for each in world.played if each.split == "val")


# -- the exact number --------------------------------------------------------------------------------


async def test_a_small_search_spends_exactly_what_can_be_worked_out() -> None:
    with ScriptedOpenAI(numbered) as server:
        apo = make(server, beam_rounds=1, val_batch_size=4)
        world = await search(apo, val=tasks(10))
    seed, branches, batch = 10, 2 * 2, 4
    assert world.count("train") == branches * 3
    # Nobody is better than the seed, so it leads, and its validation is paid for.
    assert world.count("val") == seed + branches * batch
    assert len(server.requests) == 2 * branches
    assert apo.cost.rollouts == world.count()
    assert apo.cost.calls == len(server.requests)


async def test_a_new_leader_pays_for_the_validation_tasks_it_has_not_met() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_width=1, branch_factor=1, beam_rounds=1, val_batch_size=5)
        world = await search(apo, World(lambda prompt, task: float(prompt != SEED.template)), val=tasks(10))
    assert apo.get_best_prompt() != SEED
    assert pairs(world) == Counter({(each.template.template, n): 1 for each in apo.candidates for n in range(10)})
    assert world.count() == 10 + 3 + 5 + (10 - 5)


async def test_without_initial_validation_the_seed_meets_only_what_it_is_compared_on() -> None:
    with ScriptedOpenAI(numbered) as server:
        apo = make(server, beam_rounds=1, val_batch_size=4, run_initial_validation=False)
        world = await search(apo, val=tasks(10))
    seed = [number for (prompt, number) in pairs(world) if prompt == SEED.template]
    assert len(seed) == 4
    assert world.count() == 4 * 3 + 4 * 4 + 4
    assert apo.book.best.version == "v0"


async def test_without_initial_validation_a_better_candidate_still_becomes_the_best() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=1, run_initial_validation=False)
        await search(apo, World(lambda prompt, task: float(prompt != SEED.template)))
    assert apo.book.best.version != "v0"
    assert apo.book.best.score is not None
    assert apo.book.best.score.count == len(VAL)


async def test_the_clearly_worse_leave_the_race_early() -> None:
    with ScriptedOpenAI(numbered) as server:
        apo = make(server, beam_width=1, branch_factor=4, beam_rounds=1, val_batch_size=40)
        world = await search(apo, World(lambda prompt, task: float(prompt == SEED.template)), val=tasks(40))
    met = Counter(prompt for prompt, _ in pairs(world))
    assert met.pop(SEED.template) == 40
    assert set(met.values()) == {min(met.values())}
    assert max(met.values()) <= 40 // 3
    assert {each.status for each in apo.candidates[1:]} == {"dropped"}
    assert all(each.reason and "worse than v0" in each.reason for each in apo.candidates[1:])


async def test_a_round_pays_for_the_slices_of_its_races_and_for_its_leader() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, branch_factor=3, beam_rounds=1, val_batch_size=30)
        world = await search(apo, val=tasks(40))
    apo.round = 0
    numbers = [item.task["number"] for item in apo.val_batch()]
    fresh = {each.version: each.template.template for each in apo.candidates if each.status != "rejected"}
    expected = {(SEED.template, number) for number in range(40)}

    def run(names: list[str], keep: int) -> list[str]:
        """The race once more, by hand."""
        race = Race(names, num_items=30, keep=keep)
        while (cut := race.next_slice()) is not None:
            for name, position in product(cut.names, cut.items):
                expected.add((fresh[name], numbers[position]))
                race.add(name, position, quality(fresh[name], numbers[position]))
        return [name for name in race.ranking() if name in race.alive]

    leader, *_ = run(run(list(fresh), 2)[:2], 1)
    expected |= {(fresh[leader], number) for number in range(40)}
    assert leader == apo.beam[0] != "v0"
    assert pairs(world) == Counter(expected)
    assert world.count("train") == 6 * 3


async def test_candidates_meet_the_same_tasks() -> None:
    with ScriptedOpenAI(numbered) as server:
        apo = make(server, beam_rounds=1, val_batch_size=5, run_initial_validation=False)
        world = await search(apo)
    met: dict[str, set[int]] = {}
    for prompt, number in pairs(world):
        met.setdefault(prompt, set()).add(number)
    assert len(met) == 5
    assert len(set(map(frozenset, met.values()))) == 1


# -- nothing is paid for twice -----------------------------------------------------------------------


async def test_no_template_meets_a_validation_task_twice_in_any_round() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=4)
        world = await search(apo)
    assert set(pairs(world).values()) == {1}
    assert apo.cost.rollouts == world.count()


async def test_a_round_whose_candidates_are_all_known_pays_for_training_rollouts_alone() -> None:
    counts: list[int] = []

    class Watched(APO):
        def begin_iteration(self) -> None:
            counts.append(world.count("val"))

    def reply(request: dict[str, Any]) -> str:
        return "Say it better." if request["model"] == CRITIC else edited("Better: {question}")

    world = World(lambda prompt, task: float(prompt != SEED.template and task["number"] % 5 > 0))
    with ScriptedOpenAI(reply) as server:
        apo = make(server, Watched, beam_rounds=3, val_batch_size=20)
        await search(apo, world)
    assert counts == [20, 40, 40]  # the seed, the one better prompt, and nothing after that
    assert world.count("val") == 40
    assert world.count("train") == 3 * 4 * 3
    assert [each.status for each in apo.candidates].count("rejected") == 3 * 4 - 1
