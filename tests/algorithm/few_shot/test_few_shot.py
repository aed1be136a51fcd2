"""The search: rollouts that succeed become demonstrations, and the best set of them becomes the prompt."""

import asyncio
import logging
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sharpen import LLM, FewShot, PromptTemplate
from sharpen.errors import ConfigError, RunError
from tests.algorithm.few_shot.scenes import (
    SEED,
    TRAIN,
    VAL,
    ModelWorld,
    count_shown,
    fit,
    imitator,
    question_of,
    search,
    shape,
)
from tests.algorithm.internals import ENOUGH_UNFIT, read_records
from tests.algorithm.prompts.world import World
from tests.errors import raises
from tests.llm.tiny_models import write_tiny_model

# -- it improves a prompt ----------------------------------------------------------------------------


def test_a_search_under_the_trainer_finds_demonstrations_that_help(tmp_path: Path) -> None:
    few_shot = FewShot(seed=1)
    fit(few_shot, tmp_path / "run")
    best = few_shot.book.best
    assert best.score is not None
    assert few_shot.book.seed.score is not None
    assert few_shot.book.seed.score.mean < 0.3
    assert best.score.mean >= 0.8
    assert best.score.count == len(VAL)
    assert best.template.template.endswith("\n\nQuestion: {question}\nAnswer:")
    assert 1 <= count_shown(best.template.template) == len(few_shot.demonstrations) <= 4
    assert read_records(tmp_path / "run").best == best
    assert "+Answer: <" in few_shot.best_diff()


async def test_every_demonstration_is_a_training_rollout_that_succeeded_as_it_was_recorded() -> None:
    few_shot = FewShot(seed=2)
    world = await search(few_shot)
    asked = {each.rollout_id: each for each in world.played}
    assert few_shot.demonstrations
    for each in few_shot.demonstrations:
        task = asked[each.rollout_id].task
        assert asked[each.rollout_id].split == "train"
        assert each.values == {"question": task["question"]}
        assert each.answer == f"<{2 * task['number']}>"
        assert each.reward == 1.0


async def test_every_candidate_is_in_the_book_with_its_parent_its_demonstrations_and_what_was_changed() -> None:
    few_shot = FewShot(seed=3, candidates=9, max_demos=2)
    world = await search(few_shot, ModelWorld(_hard_to_please))
    seed, *made = few_shot.candidates
    assert (seed.version, seed.template) == ("v0", SEED)
    assert [each.version for each in made] == [f"v{number}" for number in range(1, 10)]
    ids = {each.rollout_id for each in world.played}
    for each in made:
        assert each.critique is not None
        shown = few_shot.sets[each.version]
        assert set(shown) <= ids
        assert each.critique.endswith(", ".join(shown))
        assert count_shown(each.template.template) == len(shown) <= 2
        changed = any(word in each.critique for word in ("added", "dropped", "replaced", "reordered"))
        assert changed == ("at random" not in each.critique)
        if changed:
            parent = set(few_shot.sets[str(each.parent)])
            assert len(parent ^ set(shown)) in (0, 1, 2)
    assert any("at random" not in str(each.critique) for each in made)
    assert len({each.template.template for each in few_shot.candidates}) == len(few_shot.candidates)


def _hard_to_please(prompt: str, luck: random.Random) -> str:
    """Shown or not, it errs at times, so that no prompt is perfect."""
    answer = f"<{2 * question_of(prompt)}>"
    return answer if luck.random() < (0.1, 0.6, 0.7)[count_shown(prompt)] and question_of(prompt) != 3 else "what?"


async def test_one_lucky_rollout_is_enough_to_begin_with() -> None:
    few_shot = FewShot(seed=4)

    def rarely(prompt: str, luck: random.Random) -> str:
        number, shown = question_of(prompt), count_shown(prompt)
        return f"<{2 * number}>" if number == 117 or luck.random() < (0.0, 0.5, 1.0, 1.0, 1.0)[shown] else "no"

    world = await search(few_shot, ModelWorld(rarely))
    with_demos = [each for each in world.played if each.split == "train" and count_shown(each.prompt)]
    assert with_demos  # the next batches were rolled out with what the first has found
    assert few_shot.book.best.score is not None
    assert few_shot.book.best.score.mean >= 0.9


async def test_a_set_that_helps_only_when_sampled_still_leads_to_more() -> None:
    """One demonstration changes nothing in validation, which a search that follows the best alone would not survive."""

    def stubborn(prompt: str, luck: random.Random) -> str:
        shown, number = count_shown(prompt), question_of(prompt)
        is_training = number >= 100
        is_right = shown >= 2 or (is_training and (number == 105 or (shown == 1 and luck.random() < 0.3)))
        return f"<{2 * number}>" if is_right else "no"

    few_shot = FewShot(seed=5)
    await search(few_shot, ModelWorld(stubborn))
    assert few_shot.book.best.score is not None
    assert few_shot.book.best.score.mean == 1.0
    assert len(few_shot.demonstrations) >= 2


def _quick(prompt: str, luck: random.Random) -> str:
    """One demonstration is enough for it."""
    return imitator(prompt, luck) if not count_shown(prompt) else f"<{2 * question_of(prompt)}>"


@pytest.mark.parametrize(("perfect_reward", "rounds"), [(1.0, 1), (1.5, 4), (None, 4)])
async def test_a_search_ends_early_only_at_the_stated_perfect_reward(perfect_reward: float | None, rounds: int) -> None:
    few_shot = FewShot(seed=6, perfect_reward=perfect_reward)
    await search(few_shot, ModelWorld(_quick))
    assert few_shot.round == rounds
    assert few_shot.book.best.score is not None
    assert few_shot.book.best.score.mean == 1.0


async def test_equal_rewards_on_all_tasks_do_not_end_a_search() -> None:
    """Any demonstration makes all rewards 0.5, but three of them, which the first round does not try, make them 1."""

    def graded(prompt: str, luck: random.Random) -> str:
        shown = count_shown(prompt)
        half = 0.5 * (shown > 0 or luck.random() < 0.1)
        return f"<{1.0 if shown == 3 else half}>"

    few_shot = FewShot(seed=1, promotion="mean")
    await search(few_shot, ModelWorld(graded, reward=lambda answer, task: float(answer[1:-1])))
    assert {len(few_shot.sets[each.version]) for each in few_shot.candidates if each.round == 1} == {1, 2, 4}
    assert few_shot.book.best.score is not None
    assert few_shot.book.best.score.mean == 1.0
    assert len(few_shot.demonstrations) == 3


async def test_the_best_prompt_is_published_and_every_rollout_is_in_the_cost() -> None:
    few_shot = FewShot(seed=1)
    world = await search(few_shot)
    assert few_shot.cost.rollouts == world.count()
    latest = await world.store.get_latest_resources()
    assert latest is not None
    assert latest.resources["prompt"] == few_shot.get_best_prompt()


async def test_an_example_in_json_is_not_a_value_and_stays_as_it_is() -> None:
    json, latex = '{"answer": {number}}', r"\section{examples}"
    seed = PromptTemplate(f"{latex}\nDouble the number. Reply like {json}.\n\nQuestion: {{question}}\nAnswer:")
    few_shot = FewShot(seed=1)
    await search(few_shot, resources={"prompt": seed})
    assert few_shot.demonstrations
    assert {name for each in few_shot.demonstrations for name in each.values} == {"question"}
    filled = few_shot.get_best_prompt().format(question="?", number=5, examples=6)
    assert filled.startswith(f"{latex}\nDouble the number. Reply like {json}.\n\nQuestion: What")


async def test_demonstrations_stand_before_a_question_in_latex() -> None:
    few_shot = FewShot(seed=1)
    seed = PromptTemplate("Double the number.\n\n\\textbf{question}\nAnswer:")
    await search(few_shot, resources={"prompt": seed})
    assert few_shot.demonstrations
    assert few_shot.get_best_prompt().template.endswith("\n\n\\textbf{question}\nAnswer:")


async def test_patience_ends_a_search_that_finds_nothing_better() -> None:
    few_shot = FewShot(seed=1, patience=1, candidates=40)

    def lucky_only(prompt: str, luck: random.Random) -> str:
        return f"<{2 * question_of(prompt)}>" if luck.random() < 0.3 else "no"

    await search(few_shot, ModelWorld(lucky_only))
    assert few_shot.round <= 3


# -- luck and repetition -----------------------------------------------------------------------------


async def test_the_same_seed_gives_the_same_search() -> None:
    first, second, other = FewShot(seed=7), FewShot(seed=7), FewShot(seed=8)
    await search(first, ModelWorld(workers=1))
    await search(second, ModelWorld(workers=3))
    await search(other)
    assert shape(first) == shape(second)
    assert shape(first) != shape(other)


async def test_no_set_is_tried_twice_and_no_more_than_were_asked_for() -> None:
    few_shot = FewShot(seed=1, candidates=11, max_demos=3)
    await search(few_shot, ModelWorld(_hard_to_please_three))
    assert len(few_shot.sets) == len(set(few_shot.sets.values())) == 11


def _hard_to_please_three(prompt: str, luck: random.Random) -> str:
    return f"<{2 * question_of(prompt)}>" if luck.random() < 0.3 else "no"


async def test_a_search_ends_when_all_sets_of_few_demonstrations_were_tried() -> None:
    few_shot = FewShot(seed=1, candidates=50)

    def two_only(prompt: str, luck: random.Random) -> str:
        number = question_of(prompt)
        return f"<{2 * number}>" if number in (100, 101) else "no"

    await search(few_shot, ModelWorld(two_only), train=TRAIN[:3])
    assert sorted(map(len, few_shot.sets.values())) == [1, 1, 2, 2]  # both orders are tried


@pytest.mark.parametrize("rollouts", [5, 30, 60, 100])
async def test_a_search_that_is_broken_off_pays_for_nothing_twice_and_comes_to_the_same(rollouts: int) -> None:
    settings: dict[str, Any] = {"seed": 9, "max_demos": 2, "candidates": 8}
    whole = FewShot(**settings)
    alone = await search(whole, ModelWorld(_hard_to_please))
    world = ModelWorld(_hard_to_please)
    await _broken_off(FewShot(**settings), world, after=rollouts)
    again = FewShot(**settings)
    again.load_state_dict(world.state)
    await search(again, world)
    assert shape(again) == shape(whole)
    assert again.search_state()["exploration"]["batches"] == whole.search_state()["exploration"]["batches"]
    ended = Counter(each.rollout_id for each in world.played)
    assert max(ended.values()) == 1
    assert world.count() == alone.count()


async def _broken_off(few_shot: FewShot, world: ModelWorld, *, after: int) -> None:
    searching = asyncio.create_task(search(few_shot, world))
    while world.count() < after and not searching.done():
        await asyncio.sleep(0)
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching


# -- succeeding --------------------------------------------------------------------------------------


async def test_without_a_least_reward_only_the_highest_counts() -> None:
    def graded(answer: str, task: dict[str, Any]) -> float:
        return {"<": 1.0, "I": 0.4}.get(answer[0], 0.0)

    few_shot = FewShot(seed=1)
    await search(few_shot, ModelWorld(reward=graded))
    assert {each.reward for each in few_shot.demonstrations} == {1.0}


async def test_a_reward_that_everything_has_is_no_reason_to_end() -> None:
    """Where every rollout gets something, one that gets more is still looked for."""

    def model(prompt: str, luck: random.Random) -> str:
        return f"<{2 * question_of(prompt)}>" if count_shown(prompt) or question_of(prompt) == 131 else "It is."

    few_shot = FewShot(seed=1)
    await search(few_shot, ModelWorld(model, reward=lambda answer, task: 1.0 if answer[0] == "<" else 0.4))
    assert few_shot.book.best.score is not None
    assert few_shot.book.best.score.mean == 1.0


async def test_one_and_the_same_reward_for_everything_is_told_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    few_shot = FewShot(seed=1, max_explore_rollouts=40)
    world = await search(few_shot, ModelWorld(reward=lambda answer, task: 0.4))
    assert few_shot.get_best_prompt() == SEED
    assert world.count("train") == 40
    assert "all had the reward 0.4" in caplog.text


async def test_a_least_reward_lets_others_count_too() -> None:
    def graded(answer: str, task: dict[str, Any]) -> float:
        return 0.4 if answer.startswith("It") else 0.0

    few_shot = FewShot(seed=1, min_reward=0.4, candidates=2)
    await search(few_shot, ModelWorld(lambda prompt, luck: f"It is {question_of(prompt)}", reward=graded))
    assert {each.reward for each in few_shot.pool.usable()} == {0.4}


async def test_a_search_without_any_success_says_how_much_was_tried_and_what_to_do() -> None:
    few_shot = FewShot(seed=1, max_explore_rollouts=50)
    world = ModelWorld(lambda prompt, luck: "no")
    with raises(RunError, 50, 0, "max_explore_rollouts"):
        await search(few_shot, world)
    assert world.count("train") == 50
    assert few_shot.cost.rollouts == world.count()
    assert few_shot.tree().endswith("cost: 70 rollouts; 50 rollouts of it produced no candidate")


@pytest.mark.parametrize(("perfect_reward", "paid"), [(1.0, 0), (None, 64)])
async def test_a_prompt_whose_rollouts_are_all_alike_stays(perfect_reward: float | None, paid: int) -> None:
    """Whether they are all perfect, only the user knows."""
    few_shot = FewShot(seed=1, perfect_reward=perfect_reward, max_explore_rollouts=64)
    world = await search(few_shot, ModelWorld(lambda prompt, luck: f"<{2 * question_of(prompt)}>"))
    assert few_shot.get_best_prompt() == SEED
    assert world.count("train") == paid


async def test_rollouts_that_cannot_be_shown_are_counted_and_told() -> None:
    few_shot = FewShot(seed=1, max_explore_rollouts=20)
    with pytest.raises(RunError):
        await search(few_shot, ModelWorld(lambda p, luck: " ", reward=lambda a, t: float(t["number"] % 2)))


async def test_an_agent_whose_calls_are_not_recorded_is_told_so() -> None:
    few_shot = FewShot(seed=1, max_explore_rollouts=20)
    with pytest.raises(RunError):
        await search(few_shot, World(lambda prompt, task: float(task["number"] % 2)))


@pytest.mark.parametrize(("min_reward", "num_paid"), [(None, 16), (0.0, 16)])
async def test_an_agent_of_whom_nothing_can_be_shown_is_told_so_before_it_costs_much(
    min_reward: float | None, num_paid: int
) -> None:
    world = World(lambda prompt, task: float(task["number"] % 2))
    with raises(RunError, 16):
        await search(FewShot(seed=1, min_reward=min_reward), world)
    assert world.count("train") == num_paid


async def test_successes_that_cannot_be_shown_do_not_end_a_search_that_has_others() -> None:
    """Some are unfit by their task, in the end as many as would be too many; the others come to something."""

    def some_unfit(prompt: str, luck: random.Random) -> str:
        number = question_of(prompt)
        return " " if number % 10 == 0 else f"<{2 * number}>" if luck.random() < 0.3 else "no"

    few_shot = FewShot(seed=1)
    await search(few_shot, ModelWorld(some_unfit, reward=lambda answer, task: float(answer != "no")))
    assert sum(few_shot.pool.unfit.values()) >= ENOUGH_UNFIT
    assert len(few_shot.candidates) > 1


# -- exploring ---------------------------------------------------------------------------------------


async def test_training_rollouts_are_sampled_at_the_temperature_and_validation_is_left_alone() -> None:
    resources = {"prompt": SEED, "llm": LLM("http://nowhere.invalid/v1", "m", sampling_parameters={"top_p": 0.9})}
    few_shot = FewShot(seed=1, explore_temperature=[0.5, 1.5], candidates=4)
    world = await search(few_shot, resources=resources)
    seen = {split: set[Any]() for split in ("train", "val")}
    for each in world.played:
        parameters = each.resources["llm"].sampling_parameters
        assert parameters["top_p"] == 0.9
        seen[str(each.split)].add(parameters.get("temperature"))
    assert seen["val"] == {None}
    assert seen["train"] <= {0.5, 1.5}
    assert 0.5 in seen["train"]


@pytest.mark.parametrize(("temperature", "expected"), [(0.3, 0.3), ([0.4, 1.5], 0.4), (None, 1.0)])
async def test_a_model_that_is_served_samples_at_the_temperature_also_when_the_agent_says_nothing(
    temperature: Any, expected: float, tmp_path: Path
) -> None:
    few_shot = FewShot(seed=1, model=write_tiny_model(tmp_path), explore_temperature=temperature, candidates=1)
    gateway = ListingGateway()
    few_shot.set_llm_proxy(gateway)
    await search(few_shot)
    defaults = {each["model_name"]: each["defaults"]["temperature"] for each in gateway.listed_at_first}
    assert sorted(defaults.values()) == [0.0, expected]
    assert [defaults[name] for name in defaults if name.endswith(":val")] == [0.0]


class ListingGateway:
    """Knows which models there are, and serves none."""

    def __init__(self) -> None:
        self._updates: list[list[dict[str, Any]]] = [[]]

    @property
    def model_list(self) -> list[dict[str, Any]]:
        return self._updates[-1]

    @property
    def listed_at_first(self) -> list[dict[str, Any]]:
        return self._updates[1]

    def update_model_list(self, model_list: list[dict[str, Any]]) -> None:
        self._updates.append(model_list)

    def as_resource(self, *, model: str, sampling_parameters: dict[str, Any]) -> LLM:
        return LLM("http://nowhere.invalid/v1", model, sampling_parameters=sampling_parameters)


async def test_exploring_can_leave_the_sampling_alone() -> None:
    resources = {"prompt": SEED, "llm": LLM("http://nowhere.invalid/v1", "m")}
    world = await search(FewShot(seed=1, explore_temperature=None, candidates=2), resources=resources)
    assert {str(each.resources["llm"].sampling_parameters) for each in world.played} == {"{}"}


async def test_batches_grow_while_they_are_in_vain(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(RunError):
        await search(FewShot(seed=1, max_explore_rollouts=400), ModelWorld(lambda prompt, luck: "no"))
    sizes = [each.args for each in caplog.records if each.msg.startswith("exploring")]
    assert [size for size, _ in sizes] == [16, 32, 64, 128, 128, 32]  # type: ignore[misc]


# -- settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"max_demos": 0},
        {"candidates": 0},
        {"candidates": True},
        {"max_explore_rollouts": 0},
        {"min_reward": float("nan")},
        {"min_reward": "high"},
        {"explore_temperature": -1},
        {"explore_temperature": [0.5, 3]},
        {"explore_temperature": "hot"},
        {"val_batch_size": 0},
        {"patience": 0},
    ],
)
def test_a_setting_that_cannot_work_is_named(settings: dict[str, Any]) -> None:
    (name,) = settings
    with raises(ConfigError, name):
        FewShot(**settings)


async def test_a_template_with_a_place_begins_without_demonstrations_and_shows_them_there() -> None:
    place = PromptTemplate("Double it.\n\n{examples}\n\nNow you.\n\nQuestion: {question}\nAnswer:")
    few_shot = FewShot(seed=1)
    await search(few_shot, resources={"prompt": place})
    assert few_shot.book.seed.template.template == "Double it.\n\nNow you.\n\nQuestion: {question}\nAnswer:"
    head, _, rest = few_shot.get_best_prompt().template.partition("\n\n")
    assert head == "Double it."
    assert rest.endswith("\n\nNow you.\n\nQuestion: {question}\nAnswer:")
    assert count_shown(rest) == len(few_shot.demonstrations) > 0
