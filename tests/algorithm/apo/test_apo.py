"""The search: parents, batches, candidates, the beam and the best, and what is random in it."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from sharpen import APO, PromptTemplate
from sharpen.errors import ConfigError
from tests.algorithm.apo.scenes import (
    CRITIC,
    EDITOR,
    SEED,
    TRAIN,
    VAL,
    WORDS,
    edited,
    good_words,
    make,
    play,
    search,
    shape,
    tasks,
    template_of,
)
from tests.algorithm.prompts.scripted_openai import Reply, ScriptedOpenAI, text_of
from tests.algorithm.prompts.world import World
from tests.errors import raises

# -- it improves a prompt ----------------------------------------------------------------------------


async def test_a_search_finds_a_better_prompt_and_keeps_its_placeholder() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=3)
        await search(apo)
    best = apo.get_best_prompt().template
    assert sum(word in best for word in WORDS) == 3  # one more in every round
    assert "{question}" in best
    assert apo.book.best.score is not None
    assert apo.book.best.score.mean == pytest.approx(0.6)
    assert apo.book.best.score.count == len(VAL)


def _graded(prompt: str, task: dict[str, int]) -> float:
    """The same on all tasks: every word that the prompt gained is worth 0.1."""
    return round(0.1 + 0.1 * sum(word in prompt for word in WORDS), 1)


async def test_equal_rewards_on_all_tasks_do_not_end_a_search() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=4, promotion="mean")
        await search(apo, World(_graded))
    assert apo.round == 4
    assert apo.book.best.score is not None
    assert apo.book.best.score.mean == pytest.approx(0.5)


@pytest.mark.parametrize(("perfect_reward", "rounds"), [(0.1, 0), (0.3, 2), (0.5, 4), (0.6, 6), (None, 6)])
async def test_a_search_ends_at_the_stated_perfect_reward(perfect_reward: float | None, rounds: int) -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=6, promotion="mean", perfect_reward=perfect_reward)
        await search(apo, World(_graded))
    assert apo.round == rounds


async def test_a_perfect_candidate_ends_a_search_that_has_no_evidence_for_it() -> None:
    """With one validation task nothing is promoted on evidence, and nothing can be better than perfect."""
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=6, perfect_reward=0.3)
        await search(apo, World(_graded), val=VAL[:1])
        assert apo.round == 2
        assert apo.book.best.version == "v0"


# -- values and text in braces -----------------------------------------------------------------------


def _writes(text: str) -> Callable[[dict[str, Any]], str | Reply]:
    """An editor that always writes this template."""
    return lambda request: "It is weak." if request["model"] == CRITIC else edited(text)


def _whole_task(prompt: str, task: dict[str, Any]) -> float:
    """The reward of an agent that formats its prompt with the whole task, and of a model that copies the answer."""
    return float(str(task["answer"]) in PromptTemplate(prompt).format(**task))


def _questions(count: int) -> list[dict[str, Any]]:
    return [{"q": f"double {number}", "answer": 1000 + number} for number in range(count)]


@pytest.mark.parametrize("told", ['Reply as {"answer": "{answer}"}', r"Reply as \boxed{answer}", "Reply as a_{answer}"])
async def test_a_candidate_cannot_copy_the_reference_answer_into_the_prompt(told: str) -> None:
    seed = PromptTemplate("Question: {q}")
    with ScriptedOpenAI(_writes(f"{seed.template}\n{told}")) as server:
        apo = make(server, beam_rounds=1)
        await search(apo, World(_whole_task), train=_questions(6), val=_questions(20), resources={"prompt": seed})
    made = apo.book.get("v1")
    assert made.status != "rejected"
    assert made.template.format(q="?", answer=1000) == f"Question: ?\n{told}"
    assert {each.score.mean for each in apo.candidates if each.score} == {0.0}
    assert apo.book.best.version == "v0"


async def test_a_candidate_may_write_an_example_in_json_in_another_way() -> None:
    seed = PromptTemplate('Q: {q}\nReply as JSON: {"answer": {number}}')
    with ScriptedOpenAI(_writes('Q: {q}\nReply as JSON: {"answer": <number>}')) as server:
        apo = make(server, beam_rounds=1)
        await search(
            apo, World(lambda prompt, task: 0.5), train=_questions(6), val=_questions(4), resources={"p": seed}
        )
        assert "Placeholders: {q}\n" in server.requests[0].text
    assert apo.book.get("v1").status != "rejected"


@pytest.mark.parametrize("text", [r"Solve \textbf{q}", r"\textbf{Problem:}{q}"])
async def test_a_candidate_must_keep_a_question_in_latex(text: str) -> None:
    world = World(lambda prompt, task: 0.5)
    with ScriptedOpenAI(_writes("Solve the problem.")) as server:
        apo = make(server, beam_rounds=1)
        await search(apo, world, train=_questions(6), val=_questions(4), resources={"p": PromptTemplate(text)})
        assert "Placeholders: {q}\n" in server.requests[0].text
    assert {each.reason for each in apo.candidates[1:]} == {"it lost {q}"}
    assert {each.prompt for each in world.played} == {text}


async def test_every_branch_of_every_round_is_in_the_book_with_parent_critique_and_round() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server)
        await search(apo)
    seed, *made = apo.candidates
    assert (seed.version, seed.template, seed.parents) == ("v0", SEED, [])
    assert [each.version for each in made] == [f"v{number}" for number in range(1, 9)]
    assert [each.round for each in made] == [1] * 4 + [2] * 4
    for each in made:
        assert each.critique is not None
        assert each.critique.startswith("It lacks the word: ")
        assert each.cost.calls >= 2
        parent = apo.book.get(str(each.parent))
        assert each.round > parent.round
        assert each.template.template == f"{parent.template.template} {each.critique.split()[-1]}"


async def test_the_critic_is_shown_the_parent_and_its_rollouts_and_the_editor_the_critique() -> None:
    with ScriptedOpenAI(good_words) as server:
        await search(make(server, beam_rounds=1))
    critiques = [each for each in server.requests if each.model == CRITIC]
    edits = [each for each in server.requests if each.model == EDITOR]
    assert len(critiques) == len(edits) == 4
    for each in critiques:
        assert template_of(each.text) == SEED.template
        assert each.text.count("succeeded") >= 3  # the rollouts of its batch
    assert all("It lacks the word" in each.text for each in edits)
    assert {each.body["temperature"] for each in server.requests} == {1.0}


async def test_one_of_several_ways_to_ask_is_chosen_at_random_for_every_branch() -> None:
    told = "<template>\n{prompt}\n</template>"
    ways = [f"{letter} {told}" for letter in "ABC"]
    with ScriptedOpenAI(good_words) as server:
        critiques = [f"{way} {{rollouts}}" for way in ways]
        edits = [f"{way} {{critique}}" for way in ways]
        apo = make(server, branch_factor=4, beam_rounds=1, critique_prompts=critiques, edit_prompts=edits)
        await search(apo)
    for model in (CRITIC, EDITOR):
        assert len({each.text[0] for each in server.requests if each.model == model}) > 1


# -- parents and the beam ----------------------------------------------------------------------------


async def test_a_beam_that_is_not_full_gives_its_parents_in_turn() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_width=3, branch_factor=1, beam_rounds=1)
        await search(apo)
    assert [each.parent for each in apo.candidates[1:]] == ["v0", "v0", "v0"]
    assert 1 <= len(apo.beam) <= 3


async def test_parents_come_from_the_beam_each_once_when_it_is_full() -> None:
    beams: list[list[str]] = []

    class Watched(APO):
        def begin_iteration(self) -> None:
            beams.append(list(self.beam))

    with ScriptedOpenAI(good_words) as server:
        apo = make(server, Watched, beam_rounds=3)
        await search(apo)
    assert beams[0] == ["v0"]
    for number, beam in enumerate(beams[1:], start=2):
        parents = [str(each.parent) for each in apo.candidates if each.round == number]
        assert len(beam) == 2
        assert sorted(parents) == sorted(beam * 2)  # both, with two branches each


async def test_the_old_beam_stays_when_nothing_better_comes() -> None:
    def worse(request: dict[str, Any]) -> str:
        if request["model"] == CRITIC:
            return "Say anything else."
        template = template_of(text_of(request))
        return edited(template.replace("briefly", "") + f" hm{request['seed']}")

    with ScriptedOpenAI(worse) as server:
        apo = make(server)
        await search(apo, resources={"prompt": PromptTemplate("Answer {question} briefly.")})
    assert apo.beam[0] == "v0"
    assert apo.get_best_prompt().template == "Answer {question} briefly."
    assert {each.status for each in apo.candidates[1:]} <= {"dropped", "kept", "rejected"}


async def test_the_best_is_led_by_its_mean_on_all_validation_tasks() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, val_batch_size=8, promotion="mean")
        world = await search(apo)
    best = apo.get_best_prompt().template
    met = {each.task["number"] for each in world.played if each.prompt == best and each.split == "val"}
    assert met == set(range(20))


# -- batches of training tasks -----------------------------------------------------------------------


def batches(world: World) -> list[list[int]]:
    """The training tasks of every branch, in the order of the branches."""
    found: dict[str, list[int]] = {}
    for each in world.played:
        if each.split == "train":
            place = each.rollout_id.split("-", 3)[3].rsplit("-", 1)[0]
            found.setdefault(place, []).append(each.task["number"])
    return [sorted(found[place]) for place in sorted(found)]


async def test_batches_are_fresh_and_no_task_comes_twice_in_a_pass() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server)  # 4 branches of 3 tasks a round: 12 tasks are one pass
        world = await search(apo)
    found = batches(world)
    assert [len(batch) for batch in found] == [3] * 8
    for first in (0, 4):
        assert sorted(chain.from_iterable(found[first : first + 4])) == list(range(100, 112))
    assert found[:4] != found[4:]


async def test_a_train_set_smaller_than_a_batch_is_used_whole() -> None:
    with ScriptedOpenAI(good_words) as server:
        world = await search(make(server, gradient_batch_size=5), train=tasks(2, first=100))
    assert batches(world) == [[100, 101]] * 8


# -- the seed of the random choices ------------------------------------------------------------------


async def test_the_same_seed_makes_the_same_search_whatever_takes_how_long() -> None:
    async def shaped(seed: int, *, slow: int | None = None) -> list[tuple[Any, ...]]:
        chance = random.Random(slow)

        def reply(request: dict[str, Any]) -> Reply:
            said = good_words(request)
            return Reply(str(said), delay_seconds=chance.random() * 0.02 if slow is not None else 0.0)

        pauses = (lambda: chance.random() * 0.004) if slow is not None else None
        with ScriptedOpenAI(reply) as server:
            apo = make(server, seed=seed)
            await search(apo, World(play, workers=1 if slow is None else 3, pauses=pauses))
        return shape(apo)

    first = await shaped(7)
    assert await shaped(7, slow=1) == first
    assert await shaped(8) != first


async def test_a_branch_that_is_slow_keeps_no_other_waiting() -> None:
    """So a round takes as long as its slowest branch: the others are validated before its rollouts have begun."""
    ready: list[str | None] = []
    world = World(play)

    class Slow(APO):
        async def evaluate_prompt_on_batch(self, *given: Any, prefix: str | None = None) -> Any:
            while prefix == "r1-p0-b0" and not (len(ready) == 3 and is_validated()):
                await asyncio.sleep(0.005)
            return await super().evaluate_prompt_on_batch(*given, prefix=prefix)

        async def textual_gradient_and_apply_edit(self, *given: Any, prefix: str | None = None) -> str | None:
            text = await super().textual_gradient_and_apply_edit(*given, prefix=prefix)
            ready.append(prefix)
            return text

    def is_validated() -> bool:
        return any(each.split == "val" and each.prompt != SEED.template for each in world.played)

    with ScriptedOpenAI(good_words) as server:
        apo = make(server, Slow, beam_rounds=1)
        async with asyncio.timeout(30):
            await search(apo, world)
    assert ready[-1] == "r1-p0-b0"
    assert apo.round == 1


async def test_without_a_seed_two_searches_differ() -> None:
    with ScriptedOpenAI(good_words) as server:
        both = [make(server, seed=None, beam_rounds=1) for _ in range(2)]
        for apo in both:
            await search(apo)
    assert both[0].seed != both[1].seed


async def test_a_second_run_of_the_same_object_begins_anew() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo, world = make(server, beam_rounds=1), World(play)
        await search(apo, world)
        first, paid = shape(apo), world.count()
        await search(apo, world)
    assert shape(apo) == first  # not more candidates, and by the same seed the same ones
    assert world.count() == 2 * paid  # nothing is shared between two runs


async def test_two_searches_at_a_time_in_one_store_do_not_mix() -> None:
    with ScriptedOpenAI(good_words) as server:
        alone, one, other = (make(server, beam_rounds=1, seed=seed) for seed in (7, 7, 99))
        world = World(play)
        paid = (await search(alone)).count()
        await asyncio.gather(search(one, world), search(other, world))
    assert shape(one) == shape(alone) != shape(other)
    by_key = Counter(each.rollout_id.split("-")[1] for each in world.played)
    assert by_key.keys() == {one.key, other.key}
    assert by_key[one.key] == paid == one.cost.rollouts


# -- where it begins ---------------------------------------------------------------------------------


async def test_the_named_prompt_is_improved_and_other_resources_stay() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=1, resource_name="one")
        other = PromptTemplate("never touched")
        world = await search(apo, resources={"one": SEED, "two": other})
    assert apo.get_seed_prompt_template() == ("one", SEED)
    assert all(each.resources["two"] == other for each in world.played)
    latest = await world.store.get_latest_resources()
    assert latest is not None
    assert latest.resources == {"one": apo.get_best_prompt(), "two": other}


async def test_the_agents_own_prompt_is_the_seed_where_resources_have_none() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=1)
        apo.agent_prompt = SEED
        world = await search(apo, resources=None)
    assert apo.get_seed_prompt_template() == ("prompt_template", SEED)
    assert {"prompt_template"} == set(world.played[0].resources)


@pytest.mark.parametrize(
    ("resources", "named"),
    [
        ({}, ("initial_resources", "prompt_template")),
        (None, ()),
        ({"a": SEED, "b": SEED}, ("a", "b", "resource_name")),
    ],
)
async def test_no_seed_or_several_are_errors_that_say_what_to_do(resources: Any, named: tuple[object, ...]) -> None:
    with ScriptedOpenAI(good_words) as server:
        apo, world = make(server), World(play)
        with raises(ConfigError, *named):
            await search(apo, world, resources=resources)
    assert world.played == []
    assert server.requests == []


async def test_a_jinja_template_stays_one() -> None:
    seed = PromptTemplate("Answer {{ question }}.", "jinja")
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=1)
        await search(apo, resources={"prompt": seed})
    best = apo.get_best_prompt()
    assert best.engine == "jinja"
    assert best != seed
    assert best.format(question="7").startswith("Answer 7.")


# -- tasks -------------------------------------------------------------------------------------------


async def test_without_a_val_set_the_train_set_is_divided_as_baseline_divides_it() -> None:
    with ScriptedOpenAI(good_words) as server:
        listed, streamed = make(server, beam_rounds=1), make(server, beam_rounds=1, train_split=0.25)
        world = await search(listed, train=tasks(20), val=None)
        await search(streamed, train=iter(tasks(8)), val=None)
    assert [each.task["number"] for each in listed.train_items] == list(range(10))
    assert [each.task["number"] for each in listed.val_items] == list(range(10, 20))
    # An iterable is dealt out on the way, so that both sides see all of it.
    assert [each.task["number"] for each in streamed.train_items] == [3, 7]
    for each in world.played:
        assert (each.task["number"] < 10) == (each.split == "train")


@pytest.mark.parametrize(
    ("train", "val", "named"),
    [
        (None, VAL, ("train_dataset",)),
        ([], VAL, (0, 20)),
        (TRAIN, [], (12, 0)),
        (tasks(1), None, ("train_split",)),
    ],
)
async def test_missing_tasks_are_said_before_anything_is_spent(train: Any, val: Any, named: tuple[object, ...]) -> None:
    with ScriptedOpenAI(good_words) as server:
        world = World(play)
        with raises(ConfigError, *named):
            await search(make(server), world, train=train, val=val)
    assert world.played == []
    assert server.requests == []


# -- when it ends ------------------------------------------------------------------------------------


async def test_patience_ends_the_search_after_rounds_without_a_better_leader() -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=9, patience=2)
        await search(apo)
    # Four words are four better leaders; then two rounds in vain.
    assert apo.round == 4 + 2
    assert apo.book.best.score is not None
    assert apo.book.best.score.mean == pytest.approx(0.8)


@pytest.mark.parametrize(("promotion", "is_promoted"), [("mean", True), ("interval", False)])
async def test_a_slightly_better_mean_is_enough_for_mean_and_not_for_interval(
    promotion: Any, is_promoted: bool
) -> None:
    def slightly(prompt: str, task: dict[str, int]) -> float:
        """Better on three tasks, worse on two."""
        number = task["number"] % 20
        return float(number in (0, 1, 2)) if "better" in prompt else float(number in (3, 4))

    def reply(request: dict[str, Any]) -> str:
        return "It lacks a word." if request["model"] == CRITIC else edited("Answer {question} better.")

    with ScriptedOpenAI(reply) as server:
        apo = make(server, beam_width=1, branch_factor=1, beam_rounds=1, promotion=promotion, val_batch_size=20)
        await search(apo, World(slightly))
    assert (apo.book.best.version == "v1") == is_promoted
    assert apo.book.get("v1").score is not None
    assert apo.book.get("v1").score.count == 20


async def test_a_search_that_ended_at_the_perfect_reward_costs_nothing_when_it_is_resumed() -> None:
    def reply(request: dict[str, Any]) -> str:
        return "Say it better." if request["model"] == CRITIC else edited("Better: {question}")

    with ScriptedOpenAI(reply) as server:
        apo = make(server, beam_rounds=3, perfect_reward=1.0)
        world = await search(apo, World(lambda prompt, task: float(prompt != SEED.template)))
        assert apo.round == 1
        again = make(server, beam_rounds=3, perfect_reward=1.0)
        again.load_state_dict(json.loads(json.dumps(apo.state_dict())))
        num_asked = len(server.requests)
        await search(again, world)
        assert len(server.requests) == num_asked  # a search that has ended costs nothing
    assert again.get_best_prompt().template == "Better: {question}"
