"""What is learned from a finished rollout, and what is left out."""

import subprocess
import sys
from typing import Any

import pytest

from sharpen.errors import ConfigError, InvalidInputError
from sharpen.types import Rollout, Triplet
from tests.algorithm.internals import CollectedRollout, collect
from tests.errors import raises
from tests.llm.internals import NOT_SAMPLED

from .made_rollouts import call, collected, failed, rollout, untokenised


def collect_one(of: Rollout, *calls: Triplet) -> CollectedRollout:
    return collect(of, calls, max_prompt_length=100, max_response_length=100)


# -- sequences ---------------------------------------------------------------------------------------


def test_calls_that_extend_each_other_are_one_sequence() -> None:
    found = collected("ro-t7-1", 1.0, call([1, 2], [3]), call([1, 2, 3, 9], [4, 5]))

    (sample,) = found.samples
    assert sample.token_ids == (1, 2, 3, 9, 4, 5)
    assert sample.loss_mask == (False, False, True, False, True, True)
    assert sample.logprobs == (0, 0, -0.3, 0, -0.4, -0.5)
    assert (sample.rollout_id, sample.group, sample.reward) == ("ro-t7-1", "ro-t7", 1.0)
    assert (found.num_calls, found.prompt_lengths, found.response_lengths) == (2, (2, 4), (1, 2))


def test_a_group_can_be_named() -> None:
    found = collect(rollout(), [], max_prompt_length=1, max_response_length=1, group="task 5")

    assert found.group == "task 5"


def test_the_version_of_every_token_is_kept() -> None:
    one = call([1], [2, 3], weights_version="7")
    each = call([1, 2, 3], [4, 5], weights_version="7", weights_versions=["7", "8"])

    (sample,) = collected("ro-0", 1.0, one, each).samples

    assert sample.weights_versions == (None, "7", "7", "7", "8")


def test_versions_that_do_not_fit_are_not_believed() -> None:
    (sample,) = collected("ro-0", 1.0, call([1], [2, 3], weights_versions=["7"])).samples

    assert sample.weights_versions == (None, None, None)


def test_a_call_without_token_ids_is_counted_and_keeps_its_place() -> None:
    found = collected("ro-0", 1.0, call([1], [2]), untokenised(), call([1, 2, 3, 4], [5]))

    (sample,) = found.samples
    assert (found.num_calls, found.num_untokenised) == (3, 1)
    assert sample.loss_mask == (False, True, False, False, True)
    assert sample.turn_of_token == (NOT_SAMPLED, 0, NOT_SAMPLED, NOT_SAMPLED, 2)
    assert (sample.turns, sample.num_turns) == ((0, 2), 3)


@pytest.mark.parametrize("logprobs", [[], [-0.1], [-0.1, float("nan")], [-0.1, None]])
def test_a_call_without_the_log_probability_of_every_token_is_counted_and_not_trained(logprobs: list[float]) -> None:
    found = collected("ro-0", 1.0, call([1], [2, 3], logprobs))

    assert (found.num_untokenised, list(found.samples)) == (1, [])


def test_triplets_of_another_shape_are_counted_and_not_trained() -> None:
    found = collected("ro-0", 1.0, Triplet("question", "answer"))

    assert (found.num_calls, found.num_untokenised, list(found.samples)) == (1, 1, [])


def test_a_prompt_above_the_limit_is_not_trained_but_counted() -> None:
    found = collected("ro-0", 1.0, call([1, 2], [3]), call([1, 2, 3, 4], [5]), max_prompt_length=3)

    (sample,) = found.samples
    assert sample.token_ids == (1, 2, 3)
    assert (found.num_too_long, found.truncated, found.prompt_lengths) == (1, True, (2, 4))


def test_a_response_above_the_limit_is_trained_up_to_it() -> None:
    calls = call([1], [2, 3, 4], weights_version="1"), call([1, 2, 3, 4, 5], [6], weights_version="1")

    found = collected("ro-0", 1.0, *calls, max_response_length=2)

    (sample,) = found.samples
    assert sample.token_ids == (1, 2, 3, 4, 5, 6)
    assert sample.loss_mask == (False, True, True, False, False, True)
    assert found.truncated
    assert found.response_lengths == (3, 1)


def test_a_response_that_ran_into_the_limit_of_the_engine_is_truncated() -> None:
    assert collected("ro-0", 1.0, call([1], [2], finish_reason="length")).truncated
    assert not collected("ro-0", 1.0, call([1], [2], finish_reason="stop")).truncated


# -- choices -----------------------------------------------------------------------------------------


def choice(*ids: int, **more: Any) -> dict[str, Any]:
    return {"token_ids": list(ids), "logprobs": [-each / 10 for each in ids], **more}


def test_every_choice_of_a_call_is_a_sequence_after_the_same_prompt() -> None:
    further = [choice(5, weights_versions=["8"]), choice(6, 7, finish_reason="length")]
    found = collected("ro-0", 1.0, call([1, 2], [3], weights_version="7", further_choices=further))

    assert [sample.token_ids for sample in found.samples] == [(1, 2, 3), (1, 2, 5), (1, 2, 6, 7)]
    assert [sample.logprobs for sample in found.samples] == [(0, 0, -0.3), (0, 0, -0.5), (0, 0, -0.6, -0.7)]
    assert [sample.weights_versions[-1] for sample in found.samples] == ["7", "8", "7"]
    assert (found.num_calls, found.num_untokenised, found.response_lengths) == (3, 0, (1, 1, 2))
    assert found.truncated


def test_a_conversation_goes_on_from_the_choice_that_the_agent_took() -> None:
    found = collected("ro-0", 1.0, call([1], [2], further_choices=[choice(3)]), call([1, 3, 4], [5]))

    assert [sample.token_ids for sample in found.samples] == [(1, 2), (1, 3, 4, 5)]
    assert [sample.turns for sample in found.samples] == [(0,), (1, 2)]


def test_the_reward_of_a_call_counts_once_and_all_its_choices_lead_to_it() -> None:
    first = call([1], [2], reward=0.5, further_choices=[choice(3)])
    found = collected("ro-0", 1.0, first, call([1, 2, 4], [5], reward=1.0, further_choices=[choice(6)]))

    assert found.turn_rewards == (0.0, 0.5, 0.0, 1.0)


def test_a_final_reward_after_several_choices_is_no_turn_reward() -> None:
    found = collected("ro-0", 1.0, call([1], [2], reward=1.0, further_choices=[choice(3)]))

    assert (found.reward, found.turn_rewards) == (1.0, ())


def test_choices_that_cannot_be_trained_are_counted() -> None:
    without = {"token_ids": [3], "logprobs": []}
    found = collected("ro-0", 1.0, call([1], [2], further_choices=[without]), call([9], [8], num_untrained_choices=2))

    assert (found.num_calls, found.num_untokenised) == (5, 3)
    assert [sample.token_ids for sample in found.samples] == [(1, 2), (9, 8)]
    assert [sample.turns for sample in found.samples] == [(0,), (2,)]


# -- parts of a distribution -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "is_cut"),
    [
        ({}, False),
        ({"top_p": 1.0, "top_k": 0}, False),
        ({"top_k": -1}, False),
        ({"top_p": 0.9}, True),
        ({"top_k": 20}, True),
    ],
)
def test_a_rollout_tells_whether_a_call_sampled_from_a_part_of_the_distribution(
    asked: dict[str, float], is_cut: bool
) -> None:
    assert collected("ro-0", 1.0, call([1], [2]), call([1, 2], [3], **asked)).is_cut == is_cut


# -- temperatures ------------------------------------------------------------------------------------


def test_the_temperature_of_all_calls_is_that_of_the_rollout() -> None:
    found = collected("ro-0", 1.0, call([1], [2], temperature=0.7), call([1, 2], [3], temperature=0.7))

    assert (found.temperature, found.temperatures) == (0.7, [0.7])


def test_calls_at_different_temperatures_stand_in_different_sequences() -> None:
    calls = call([1], [2], temperature=1), call([1, 2], [3], temperature=0.5), call([1, 2, 3], [4], temperature=1)

    found = collected("ro-0", 1.0, *calls)

    assert (found.temperature, found.temperatures) == (None, [1.0, 0.5])
    assert [sample.turns for sample in found.samples] == [(0, 2), (1,)]
    assert [sample.loss_mask for sample in found.samples] == [(False, True, False, True), (False, False, True)]


def test_a_call_that_does_not_say_has_the_usual_temperature() -> None:
    calls = [call([1], [2], temperature=1.0), call([1, 2], [3])]

    found = collect(rollout(reward=1.0), calls, max_prompt_length=9, max_response_length=9, temperature=1.0)

    assert (found.temperature, found.temperatures) == (1.0, [1.0])


def test_greedy_calls_are_counted_and_not_trained() -> None:
    found = collected("ro-0", 1.0, call([1], [2], temperature=0.0))

    assert (found.num_greedy, list(found.samples), found.temperature) == (1, [], 0.0)


# -- rewards -----------------------------------------------------------------------------------------


def test_a_final_reward_alone_is_no_turn_reward() -> None:
    found = collected("ro-0", 1.0, call([1], [2]), call([1, 2], [3], reward=1.0))

    assert (found.reward, found.turn_rewards) == (1.0, ())


def test_a_final_reward_that_was_emitted_for_the_last_call_counts_once() -> None:
    assert collected("ro-0", 1.0, call([1], [2], reward=0.5), call([1], [3], reward=1.0)).turn_rewards == (0.5, 1.0)


def test_another_final_reward_counts_at_the_last_call() -> None:
    assert collected("ro-0", 1.0, call([1], [2], reward=0.5), call([1], [3], reward=0.25)).turn_rewards == (0.5, 1.25)


def test_a_last_reward_that_came_before_the_last_call_counts_where_it_came() -> None:
    assert collected("ro-0", 0.5, call([1], [2], reward=0.5), call([1], [3])).turn_rewards == (0.5, 0.0)


def test_a_call_that_is_not_trained_keeps_its_reward() -> None:
    found = collected("ro-0", 1.0, call([1], [2]), untokenised(reward=0.5), call([1], [3], reward=1.0))

    assert found.turn_rewards == (0.0, 0.5, 1.0)


@pytest.mark.parametrize(("emitted", "kept"), [(None, 0.0), (0.5, 0.5)])
def test_a_rollout_that_failed_by_its_agents_fault_keeps_its_reward_or_0(emitted: float | None, kept: float) -> None:
    found = collect_one(failed(reward=emitted, as_what="timeout"), call([1], [2]))

    assert (found.is_failed, found.is_lost, found.counts, found.reward) == (True, False, True, kept)
    assert found.duration_seconds == 2.0


def test_a_rollout_that_was_lost_to_infrastructure_does_not_count() -> None:
    found = collect_one(failed(reward=0.5, as_what="unresponsive"), call([1], [2]))

    assert (found.is_failed, found.is_lost, found.counts, found.reward) == (False, True, False, None)


def test_a_cancelled_rollout_does_not_count() -> None:
    found = collect_one(rollout(reward=1.0, status="cancelled"))

    assert (found.is_failed, found.is_lost, found.reward) == (False, True, None)


def test_a_rollout_without_a_reward_does_not_count_until_it_is_given_one() -> None:
    found = collected("ro-0", None, call([1], [2]))
    assert (found.is_unrewarded, found.counts) == (True, False)

    scored = found.with_reward(0.3)

    assert (scored.is_unrewarded, scored.counts, scored.samples[0].reward) == (False, True, 0.3)


# -- bad input ---------------------------------------------------------------------------------------


def test_a_rollout_that_still_runs_is_refused() -> None:
    with raises(InvalidInputError, "ro-t0-0"):
        collect_one(rollout(status="running"))


def test_a_limit_of_nothing_is_refused() -> None:
    with raises(ConfigError, "max_response_length", 0):
        collect(rollout(), [], max_prompt_length=1, max_response_length=0)


def test_collecting_needs_no_torch() -> None:
    code = "import sys; from sharpen.algorithm.verl.training_data import collect; print('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
