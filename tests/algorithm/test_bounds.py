"""The most that an algorithm may ask for: true of what it asks for, and worked out by hand where that is dear."""

import contextlib
from collections import Counter
from typing import Any

import pytest

from sharpen import APO, GRPO, Algorithm, Baseline
from sharpen.algorithm import AlgorithmSequence, FewShot
from sharpen.errors import RunError
from tests.algorithm.apo import scenes as apo_scenes
from tests.algorithm.few_shot import scenes as few_shot_scenes
from tests.algorithm.gepa import scenes as gepa_scenes
from tests.algorithm.internals import (
    UpperBound,
    least,
    product,
    prompts_evaluations as evaluations,
    split_sizes,
    sum_of,
)
from tests.algorithm.prompts.scripted_openai import ScriptedOpenAI
from tests.algorithm.prompts.world import LOST, Play, World


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluations, "PAUSES_SECONDS", (0.0, 0.0))


def test_what_is_not_known_makes_a_sum_unknown_and_nothing_times_it_nothing() -> None:
    assert sum_of((1, None)) is None
    assert (product(0, None), product(2, None), product(2, 3)) == (0, None, 6)
    assert (least(None, 4), least(None)) == (4, None)


def test_a_training_set_without_a_validation_set_is_divided() -> None:
    assert split_sizes(10, 0, 0.5) == (5, 5)
    assert split_sizes(10, 4, 0.5) == (10, 4)
    assert split_sizes(None, 0, 0.5) == (None, None)


def test_an_algorithm_that_does_not_say_is_unknown_and_not_free() -> None:
    class Own(Algorithm[Any]):
        pass

    bound = Own().upper_bound(3, 3)
    assert (bound.rollouts, bound.own_calls) == (None, None)
    assert "Own " in bound.because[0]


def test_a_baseline_asks_for_every_task_in_every_epoch() -> None:
    bound = Baseline(n_epochs=3).upper_bound(4, 2)
    assert (bound.rollouts, bound.own_calls) == (18, 0)
    assert "3 epochs" in bound.because[0]
    assert Baseline().upper_bound(None, 2).rollouts is None


@pytest.mark.parametrize("options", [{}, {"run_initial_validation": False}, {"val_batch_size": 4, "beam_rounds": 3}])
async def test_apo_never_asks_for_more_than_its_bound(options: dict[str, Any]) -> None:
    with ScriptedOpenAI(apo_scenes.good_words) as server:
        apo = apo_scenes.make(server, **options)
        bound = apo.upper_bound(len(apo_scenes.TRAIN), len(apo_scenes.VAL))
        await apo_scenes.search(apo)
    assert bound.rollouts is not None
    assert bound.own_calls is not None
    assert 0 < apo.cost.rollouts <= bound.rollouts
    assert 0 < apo.cost.calls <= bound.own_calls
    assert bound.own_models == ("critic", "editor")


def test_the_bound_of_apo_is_worked_out_from_its_settings() -> None:
    apo = APO(beam_width=2, branch_factor=2, beam_rounds=2, gradient_batch_size=3, val_batch_size=5, edit_attempts=2)
    bound = apo.upper_bound(100, 100)
    # 8 branches x 3, and the seed on 100, and 2 rounds of (4 + 2) x 5 and the leader on 100; each lost twice
    assert bound.rollouts == 3 * (8 * 3 + 100 + 2 * ((4 + 2) * 5 + 100))
    assert "384 rollouts" in bound.because[-1]
    assert "3 times" in bound.because[-1]
    assert bound.own_calls == 8 * 3


async def test_few_shot_never_asks_for_more_than_its_bound() -> None:
    few_shot = FewShot(seed=1, candidates=4, max_explore_rollouts=64)
    bound = few_shot.upper_bound(len(few_shot_scenes.TRAIN), len(few_shot_scenes.VAL))
    await few_shot_scenes.search(few_shot)
    assert bound.rollouts == 3 * (64 + 5 * len(few_shot_scenes.VAL))
    assert 0 < few_shot.cost.rollouts <= bound.rollouts


# -- what is lost is asked for again -----------------------------------------------------------------


class Losing:
    """Plays, but loses every rollout twice before it ends."""

    def __init__(self, play: Play) -> None:
        self._play, self._lost = play, Counter[str]()

    def __call__(self, prompt: str, task: Any) -> Any:
        self._lost[f"{prompt} {task}"] += 1
        return LOST if self._lost[f"{prompt} {task}"] % 3 else self._play(prompt, task)


async def test_apo_keeps_its_bound_where_rollouts_are_lost(no_pauses: None) -> None:
    with ScriptedOpenAI(apo_scenes.good_words) as server:
        apo = apo_scenes.make(server, val_batch_size=len(apo_scenes.VAL))
        bound = apo.upper_bound(len(apo_scenes.TRAIN), len(apo_scenes.VAL))
        world = await apo_scenes.search(apo, World(Losing(apo_scenes.play)))
    assert bound.rollouts is not None
    assert bound.rollouts // 3 < world.count() <= bound.rollouts


async def test_few_shot_keeps_its_bound_where_every_rollout_is_lost(no_pauses: None) -> None:
    few_shot = FewShot(seed=1, candidates=1, max_explore_rollouts=8)
    bound = few_shot.upper_bound(4, 2)
    train, val = few_shot_scenes.tasks(4, first=100), few_shot_scenes.tasks(2)
    world = World(Losing(lambda prompt, task: 0.0))
    with contextlib.suppress(RunError):  # nothing is found to show
        await world.search(few_shot, train, val, resources={"prompt": few_shot_scenes.SEED})
    assert bound.rollouts == 3 * (8 + 2 * 2)
    assert 8 + 2 < world.count() <= bound.rollouts


@pytest.mark.parametrize("is_losing", [False, True])
async def test_gepa_never_asks_for_more_than_its_bound(is_losing: bool, no_pauses: None) -> None:
    def play(prompt: str, task: Any) -> float:
        return float(task["word"] in prompt)

    with ScriptedOpenAI(gepa_scenes.add_what_lacks) as server:
        gepa = gepa_scenes.make(server, max_metric_calls=30)
        bound = gepa.upper_bound(8, 8)
        world = World(Losing(play) if is_losing else play)
        data = gepa_scenes.tasks(8, first=100), gepa_scenes.tasks(8)
        await world.search(gepa, *data, resources={"prompt": gepa_scenes.SEED})
    assert (bound.rollouts, bound.own_calls) == (90, None)
    assert (30 if is_losing else 0) < world.count() <= (90 if is_losing else 30)


def test_grpo_counts_groups_and_validations() -> None:
    grpo = GRPO("none", group_size=4, batch_size=3, epochs=2, validate_every=2)
    # 10 tasks are 4 steps an epoch: 8 steps, validated before the first and after 2, 4, 6 and 8
    assert grpo.upper_bound(10, 5).rollouts == 2 * 10 * 4 + 5 * 5
    assert GRPO("none", group_size=4, batch_size=3, steps=5).upper_bound(10, 0).rollouts == (10 + 3) * 4
    # without validate_every: before the first step and after the last
    assert GRPO("none", group_size=4, batch_size=3, steps=5).upper_bound(10, 7).rollouts == (10 + 3) * 4 + 2 * 7
    assert GRPO("none", group_size=4, batch_size=3, steps=5).upper_bound(None, 0).rollouts == 5 * 3 * 4
    assert GRPO("none", group_size=4, batch_size=3).upper_bound(None, 0).rollouts is None


def test_a_sequence_adds_its_stages() -> None:
    bound = AlgorithmSequence([Baseline(), Baseline(n_epochs=2)]).upper_bound(2, 1)
    assert (bound.rollouts, len(bound.because)) == (9, 2)
    assert (UpperBound(1) + UpperBound(None)).rollouts is None
