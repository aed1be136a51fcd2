"""Rewards into advantages on tokens, with numbers worked by hand."""

import math
from typing import Any, get_args

import pytest
import torch

from sharpen.errors import ConfigError, InvalidInputError
from tests.algorithm.internals import CollectedRollout, Credit, Estimator, assign_credit, collect
from tests.errors import raises
from tests.llm.internals import TrainingSample

from .made_rollouts import call, collected, failed, untokenised

torch.set_num_threads(1)
ESTIMATORS = get_args(Estimator)
HALF_SQRT = 0.5**0.5


def plain(group: str, *rewards: float | None) -> list[CollectedRollout]:
    """Rollouts of one call and two sampled tokens."""
    return [collected(f"{group}-{i}", reward, call([1], [2, 3], temperature=1.0)) for i, reward in enumerate(rewards)]


def trained(sample: TrainingSample) -> list[float]:
    """The advantages of sampled tokens; elsewhere there must be none."""
    pairs = list(zip(sample.advantages, sample.loss_mask, strict=True))
    assert all(advantage == 0 for advantage, is_trained in pairs if not is_trained)
    return [advantage for advantage, is_trained in pairs if is_trained]


def advantages(credit: Credit) -> list[list[float]]:
    return [trained(sample) for sample in credit.samples]


def close(*rows: list[float]) -> Any:
    return [pytest.approx(row, rel=1e-5) for row in rows]


# -- relative to a group -----------------------------------------------------------------------------


def test_grpo_compares_within_the_group() -> None:
    credit = assign_credit([*plain("a", 1.0, 0.0), *plain("b", 4.0, 0.0)])

    ours, theirs = [HALF_SQRT] * 2, [-HALF_SQRT] * 2
    assert advantages(credit) == close(ours, theirs, ours, theirs)
    assert [source.rollout_id for source in credit.sources] == ["a-0", "a-1", "b-0", "b-1"]
    assert [len(group) for group in credit.by_group()] == [2, 2]
    assert not credit.is_flat


def test_grpo_without_the_standard_deviation_is_the_distance_to_the_mean() -> None:
    credit = assign_credit(plain("a", 1.0, 0.0, 0.5), norm_by_std=False)

    assert advantages(credit) == close([0.5, 0.5], [-0.5, -0.5], [0.0, 0.0])


def test_rloo_compares_with_the_others() -> None:
    credit = assign_credit(plain("a", 1.0, 0.0, 0.0), estimator="rloo")

    assert advantages(credit) == close([1.0, 1.0], [-0.5, -0.5], [-0.5, -0.5])


def test_a_sample_carries_what_the_sampler_said() -> None:
    (sample, _) = assign_credit(plain("a", 1.0, 0.0)).samples

    assert list(sample.token_ids) == [1, 2, 3]
    assert list(sample.loss_mask) == [False, True, True]
    assert list(sample.old_logprobs) == [0.0, -0.2, -0.3]
    assert sample.sampler_logprobs is None
    assert sample.temperature == 1.0


def test_all_sequences_of_a_rollout_have_its_advantage() -> None:
    two = collected("a-0", 1.0, call([1], [2]), call([7], [8, 9]))

    credit = assign_credit([two, *plain("a", 1.0, 0.0)[1:]], norm_by_std=False)

    assert advantages(credit) == close([0.5], [0.5, 0.5], [-0.5, -0.5])


def test_a_rollout_that_called_nothing_counts_in_its_group() -> None:
    silent = collect(failed("a-1"), [], max_prompt_length=9, max_response_length=9)

    credit = assign_credit([*plain("a", 1.0), silent], norm_by_std=False)

    assert advantages(credit) == close([0.5, 0.5])
    assert credit.metrics["failed"] == 1


def test_a_lost_rollout_leaves_its_group() -> None:
    lost = collect(
        failed("a-2", 5.0, as_what="unresponsive"), [call([1], [2])], max_prompt_length=9, max_response_length=9
    )

    credit = assign_credit([*plain("a", 1.0, 0.0), lost], norm_by_std=False)

    assert advantages(credit) == close([0.5, 0.5], [-0.5, -0.5])
    assert (credit.metrics["lost"], credit.metrics["reward_max"]) == (1, 1.0)


@pytest.mark.parametrize("keeps_flat_groups", [False, True])
def test_a_group_of_one_is_not_trained(keeps_flat_groups: bool) -> None:
    credit = assign_credit(plain("a", 1.0, None), keeps_flat_groups=keeps_flat_groups)

    assert (credit.samples, credit.is_flat) == ([], True)
    assert (credit.metrics["alone"], credit.metrics["unrewarded"], credit.metrics["groups"]) == (1, 1, 0)


def test_a_flat_group_is_left_out_and_counted() -> None:
    credit = assign_credit([*plain("a", 1.0, 1.0), *plain("b", 1.0, 0.0)])

    assert {source.group for source in credit.sources} == {"b"}
    assert (credit.metrics["groups"], credit.metrics["flat_groups"], credit.metrics["sequences"]) == (2, 0.5, 2)


def test_a_flat_group_is_kept_where_other_losses_want_it() -> None:
    credit = assign_credit(plain("a", 0.1, 0.1, 0.1), keeps_flat_groups=True)

    assert advantages(credit) == [[0.0, 0.0]] * 3
    assert credit.is_flat


def test_a_rollout_at_the_mean_of_a_group_with_spread_stays() -> None:
    assert len(assign_credit(plain("a", 1.0, 0.5, 0.0)).samples) == 3


# -- by turn -----------------------------------------------------------------------------------------


def two_turns(rollout_id: str, first: float | None, last: float, final: float) -> CollectedRollout:
    return collected(rollout_id, final, call([1], [2], reward=first), call([1, 2, 5], [3, 4], reward=last))


def test_with_turn_rewards_every_call_is_credited_with_what_came_from_it_on() -> None:
    rollouts = [two_turns("a-0", 0.5, 1.0, 1.0), two_turns("a-1", 0.0, 0.0, 0.0)]

    credit = assign_credit(rollouts, norm_by_std=False)

    assert advantages(credit) == close([0.75, 0.5, 0.5], [-0.75, -0.5, -0.5])


def test_turn_rewards_are_discounted_from_call_to_call() -> None:
    rollouts = [two_turns("a-0", 0.5, 1.0, 1.0), two_turns("a-1", 0.0, 0.0, 0.0)]

    credit = assign_credit(rollouts, norm_by_std=False, gamma=0.5)

    assert advantages(credit) == close([0.5, 0.5, 0.5], [-0.5, -0.5, -0.5])


def test_a_final_reward_alone_is_not_discounted() -> None:
    rollouts = [two_turns("a-0", None, 1.0, 1.0), two_turns("a-1", None, 0.0, 0.0)]

    credit = assign_credit(rollouts, norm_by_std=False, gamma=0.5)

    assert advantages(credit) == close([0.5] * 3, [-0.5] * 3)


def test_one_rollout_with_turn_rewards_makes_its_group_compare_calls() -> None:
    rollouts = [two_turns("a-0", 1.0, 0.0, 0.0), two_turns("a-1", None, 1.0, 1.0)]

    credit = assign_credit(rollouts, norm_by_std=False)

    # From the first call on both earned 1; from the second on, 0 and 1.
    assert advantages(credit) == close([0.0, -0.5, -0.5], [0.0, 0.5, 0.5])


def test_the_reward_of_a_call_that_is_not_trained_is_credited_to_those_before_it() -> None:
    rollouts = [
        collected("a-0", 0.0, call([1], [2]), untokenised(reward=1.0), call([1, 2, 3], [4], reward=0.0)),
        collected("a-1", 0.0, call([1], [2]), untokenised(reward=0.0), call([1, 2, 3], [4], reward=0.0)),
    ]

    credit = assign_credit(rollouts, norm_by_std=False)

    assert advantages(credit) == close([0.5, 0.0], [-0.5, 0.0])


def test_a_sequence_whose_calls_are_all_without_spread_is_left_out() -> None:
    apart = [
        collected(f"a-{i}", 0.0, call([1], [2], reward=float(i)), call([7], [8], reward=0.0), call([9], [9]))
        for i in range(2)
    ]

    credit = assign_credit(apart, norm_by_std=False)

    assert [source.turns for source in credit.sources] == [(0,), (0,)]
    assert credit.metrics["flat_groups"] == 0


# -- turns that do not extend each other -------------------------------------------------------------


def three_turns(rollout_id: str, rewards: list[float | None], *, keeps_thoughts: bool) -> CollectedRollout:
    """Each answer is a thought (8), and a word (2). A template that drops thoughts keeps the words in later prompts."""
    shown = [8, 2] if keeps_thoughts else [2]
    prompts = [[1], [1, *shown, 5], [1, *shown, 5, *shown, 6]]
    calls = [call(each, [8, 2], reward=reward) for each, reward in zip(prompts, rewards, strict=True)]
    return collected(rollout_id, rewards[-1], *calls)


@pytest.mark.parametrize("rewards", [[None, None, 1.0], [0.5, 0.25, 1.0]])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_turns_that_are_trained_apart_have_the_credit_of_turns_in_one_sequence(
    estimator: Estimator, rewards: list[float | None]
) -> None:
    found = {}
    for keeps_thoughts in (True, False):
        rollouts = [
            three_turns("a-0", rewards, keeps_thoughts=keeps_thoughts),
            three_turns("a-1", [None, None, 0.0], keeps_thoughts=keeps_thoughts),
        ]
        samples = [sample for rollout in rollouts for sample in rollout.samples]
        assert len(samples) == (2 if keeps_thoughts else 6)
        given = [[0.25 if is_sampled else 9.0 for is_sampled in sample.loss_mask] for sample in samples]
        credit = assign_credit(
            rollouts,
            estimator=estimator,
            gamma=0.5,
            values=given,
            ref_logprobs=[[-0.5] * len(sample) for sample in samples],
            kl_in_reward_coef=0.1,
            kl_kind="k1",
        )
        found[keeps_thoughts] = [value for sample in advantages(credit) for value in sample], credit.metrics
    (together, metrics), (apart, metrics_apart) = found[True], found[False]

    assert apart == pytest.approx(together)
    assert len(apart) == metrics["trained_tokens"] == 12
    assert metrics_apart == pytest.approx(metrics | {"sequences": 6, "prompt_length_mean": pytest.approx(3)})


# -- along the trajectory ----------------------------------------------------------------------------


def test_reinforce_plus_plus_normalises_over_all_sampled_tokens() -> None:
    rollouts = [collected("a-0", 1.0, call([1], [2])), collected("b-0", 0.0, call([1], [2, 3, 4]))]

    credit = assign_credit(rollouts, estimator="reinforce_plus_plus")

    # Returns 1, 0, 0, 0: their mean is 1/4, their standard deviation 1/2.
    assert advantages(credit) == close([1.5], [-0.5] * 3)


def test_reinforce_plus_plus_goes_in_the_order_of_time_where_conversations_take_turns() -> None:
    calls = call([1], [2], reward=0.0), call([7], [8], reward=1.0), call([1, 2], [3], reward=0.0)

    credit = assign_credit([collected("a-0", 0.0, *calls)], estimator="reinforce_plus_plus")

    # Returns 1, 1, 0: their mean is 2/3, their standard deviation sqrt(1/3).
    high, low = 3**-0.5, -2 * 3**-0.5
    assert advantages(credit) == close([high, low], [high])


def test_reinforce_plus_plus_without_spread_teaches_nothing() -> None:
    credit = assign_credit(plain("a", 1.0, 1.0), estimator="reinforce_plus_plus")

    assert (credit.samples, credit.is_flat) == ([], True)


def test_gae_takes_what_the_critic_expected() -> None:
    rollouts = [collected("a-0", 1.0, call([1], [2, 3]))]

    credit = assign_credit(rollouts, estimator="gae", lam=0.5, values=[[9.0, 0.5, 0.25]])

    # Surprises -1/4 and 3/4, so advantages 1/8 and 3/4 before they are normalised.
    (sample,) = credit.samples
    assert sample.returns == pytest.approx([0.0, 0.625, 1.0])
    assert sample.values == [9.0, 0.5, 0.25]
    assert advantages(credit) == close([-HALF_SQRT, HALF_SQRT])


def test_gae_learns_its_critic_also_where_rewards_are_the_same() -> None:
    credit = assign_credit(plain("a", 1.0, 1.0), estimator="gae", values=[[0.0] * 3] * 2)

    assert len(credit.samples) == 2


@pytest.mark.parametrize("estimator", ["reinforce_plus_plus", "gae"])
def test_along_a_trajectory_the_reward_of_an_untrained_call_stands_at_the_one_before(estimator: Estimator) -> None:
    calls = untokenised(reward=5.0), call([1], [2]), untokenised(reward=1.0), call([7], [8, 9], reward=0.0)

    credit = assign_credit([collected("a-0", 0.0, *calls)], estimator=estimator, values=[[0.0] * 2, [0.0] * 3])

    # Returns 1, 0, 0: what was earned before the first trained call is not its merit.
    assert advantages(credit) == close([2 * 3**-0.5], [-(3**-0.5)] * 2)


@pytest.mark.parametrize("estimator", ["reinforce_plus_plus", "gae"])
def test_along_a_trajectory_groups_need_no_second_member(estimator: Estimator) -> None:
    rollouts = [*plain("a", 1.0), *plain("b", 0.0)]

    assert len(assign_credit(rollouts, estimator=estimator, values=[[0.0] * 3] * 2).samples) == 2


# -- KL in the reward --------------------------------------------------------------------------------


def test_kl_is_taken_from_the_reward_of_a_rollout() -> None:
    rollouts = plain("a", 1.0, 0.0)
    ref = [[0.0, -1.2, -1.3], [0.0, -0.2, -0.3]]  # one nat away at each token of the first rollout

    credit = assign_credit(rollouts, norm_by_std=False, kl_in_reward_coef=0.1, kl_kind="k1", ref_logprobs=ref)

    assert advantages(credit) == close([0.4, 0.4], [-0.4, -0.4])
    assert credit.metrics["reward_kl"] == pytest.approx(0.5)
    assert credit.samples[0].ref_logprobs == ref[0]


def test_kl_is_taken_from_the_call_that_it_belongs_to() -> None:
    rollouts = [two_turns("a-0", 0.5, 1.0, 1.0), two_turns("a-1", 0.0, 0.0, 0.0)]
    far, near = [0.0, -0.2, 0.0, -1.3, -0.4], [0.0, -0.2, 0.0, -0.3, -0.4]

    credit = assign_credit(rollouts, norm_by_std=False, kl_in_reward_coef=0.5, kl_kind="k1", ref_logprobs=[far, near])

    assert advantages(credit) == close([0.5, 0.25, 0.25], [-0.5, -0.25, -0.25])


def test_kl_is_taken_from_the_reward_of_a_token() -> None:
    rollouts = [collected("a-0", 1.0, call([1], [2, 3]))]

    credit = assign_credit(
        rollouts,
        estimator="gae",
        values=[[0.0, 0.0, 0.0]],
        kl_in_reward_coef=0.5,
        kl_kind="k1",
        ref_logprobs=[[5.0, -1.2, -0.3]],
    )

    assert credit.samples[0].returns == pytest.approx([0.0, 0.5, 1.0])


def test_kl_counts_only_sampled_tokens_and_is_discounted_with_the_rewards() -> None:
    # The KL of the sampled tokens is 1 and 2 in the first rollout, and 0 in the second. Rewards: -1 and 5 - 2, and 5.5.
    # Returns with a discount of 0.5: -1 + 0.5 * 3 = 0.5 and 3, and 5.5. Their mean is 3, their standard deviation 2.5.
    rollouts = [
        collected("a-0", 5.0, call([1], [2], [-1.0]), call([1, 2, 9], [3], [-1.0])),
        collected("b-0", 5.5, call([1], [2], [-1.0])),
    ]
    ref = [[math.nan, -2.0, 99.0, -3.0], [7.0, -1.0]]

    credit = assign_credit(
        rollouts,
        estimator="reinforce_plus_plus",
        gamma=0.5,
        kl_in_reward_coef=1.0,
        kl_kind="k1",
        ref_logprobs=ref,
    )

    assert advantages(credit) == [pytest.approx([-1.0, 0.0], abs=1e-6), pytest.approx([1.0])]
    assert credit.metrics["reward_kl"] == pytest.approx(1.0)


def test_kl_is_that_of_the_trainer_where_sampler_and_trainer_are_told_apart() -> None:
    old = [[0.0, -1.0, -1.0], [0.0, -2.0, -2.0]]

    credit = assign_credit(
        plain("a", 1.0, 0.0), kl_in_reward_coef=0.1, kl_kind="k1", ref_logprobs=old, old_logprobs=old
    )

    assert credit.metrics["reward_kl"] == 0
    assert credit.samples[0].old_logprobs == old[0]
    assert list(credit.samples[0].sampler_logprobs or ()) == [0.0, -0.2, -0.3]


# -- temperatures and metrics ------------------------------------------------------------------------


def test_a_sample_has_the_temperature_of_its_calls_or_else_the_one_given() -> None:
    rollouts = [
        collected("a-0", 1.0, call([1], [2], temperature=0.7)),
        collected("a-1", 0.0, call([1], [2])),
    ]

    assert [sample.temperature for sample in assign_credit(rollouts, temperature=0.9).samples] == [0.7, 0.9]


def test_the_metrics_say_what_the_batch_was_like() -> None:
    rollouts = [
        *plain("a", 1.0, 0.0, None),
        collected("b-0", 0.5, call([1, 2, 3], [4], finish_reason="length"), untokenised()),
        collect(failed("b-1", as_what="unresponsive"), [], max_prompt_length=9, max_response_length=9),
    ]

    assert assign_credit(rollouts).metrics == pytest.approx(
        {
            "rollouts": 5,
            "failed": 0,
            "lost": 1,
            "unrewarded": 1,
            "truncated": 1,
            "untokenised": 1,
            "too_long": 0,
            "greedy": 0,
            "reward_mean": 0.5,
            "reward_std": (1 / 6) ** 0.5,
            "reward_min": 0,
            "reward_max": 1,
            "response_length_mean": 7 / 4,
            "response_length_max": 2,
            "prompt_length_mean": 6 / 4,
            "turns_mean": 5 / 4,
            "groups": 1,
            "flat_groups": 0,
            "alone": 1,
            "sequences": 2,
            "trained_tokens": 4,
        }
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_an_empty_batch_teaches_nothing(estimator: Estimator) -> None:
    credit = assign_credit([], estimator=estimator, values=[])

    assert (credit.samples, credit.is_flat, credit.metrics["rollouts"]) == ([], True, 0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rollouts_without_sampled_tokens_teach_nothing(estimator: Estimator) -> None:
    rollouts = [collected(f"a-{i}", float(i), untokenised()) for i in range(2)]

    assert assign_credit(rollouts, estimator=estimator, values=[]).samples == []


# -- bad input ---------------------------------------------------------------------------------------


def test_an_unknown_estimator_is_refused() -> None:
    with raises(ConfigError, "estimator", "ppo", "grpo"):
        assign_credit([], estimator="ppo")  # type: ignore[arg-type]


def test_gae_without_a_critic_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        assign_credit(plain("a", 1.0), estimator="gae")


def test_kl_without_a_reference_is_refused() -> None:
    with raises(InvalidInputError, "ref_logprobs"):
        assign_credit(plain("a", 1.0), kl_in_reward_coef=0.1)


def test_numbers_for_other_sequences_are_refused() -> None:
    with raises(InvalidInputError, "values", 1, 2):
        assign_credit(plain("a", 1.0, None), estimator="gae", values=[[0.0] * 3])


def test_numbers_for_another_length_are_refused() -> None:
    with raises(InvalidInputError, "old_logprobs", 2, 3):
        assign_credit(plain("a", 1.0), old_logprobs=[[0.0] * 2])
