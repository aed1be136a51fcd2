"""Turns into training sequences."""

import subprocess
import sys

import pytest
from hypothesis import given, settings, strategies as st

from sharpen.errors import InvalidInputError
from tests.errors import raises
from tests.llm.internals import NOT_SAMPLED, Sample, Turn, merge_turns

# -- by hand -----------------------------------------------------------------------------------------


def test_a_turn_that_extends_the_one_before_joins_its_sequence() -> None:
    first = Turn([1, 2], [3, 4], [-0.3, -0.4], reward=0.5, weights_versions=["7", "8"])
    second = Turn([1, 2, 3, 4, 9, 9], [5], [-0.5])

    assert merge_turns([first, second], rollout_id="ro-1", group="task-1", reward=1.0) == [
        Sample(
            token_ids=(1, 2, 3, 4, 9, 9, 5),
            loss_mask=(False, False, True, True, False, False, True),
            logprobs=(0.0, 0.0, -0.3, -0.4, 0.0, 0.0, -0.5),
            turn_of_token=(NOT_SAMPLED, NOT_SAMPLED, 0, 0, NOT_SAMPLED, NOT_SAMPLED, 1),
            weights_versions=(None, None, "7", "8", None, None, None),
            turns=(0, 1),
            turn_rewards=(0.5, None),
            num_turns=2,
            rollout_id="ro-1",
            group="task-1",
            reward=1.0,
        )
    ]


def test_one_other_token_begins_a_new_sequence() -> None:
    first, second = merge_turns([Turn([1, 2], [3], [-0.3]), Turn([1, 2, 8, 9], [5], [-0.5], reward=1.0)])

    assert (first.token_ids, first.turns, first.turn_rewards) == ((1, 2, 3), (0,), (None,))
    assert (second.token_ids, second.turns, second.turn_rewards) == ((1, 2, 8, 9, 5), (1,), (1.0,))
    assert second.turn_of_token == (NOT_SAMPLED, NOT_SAMPLED, NOT_SAMPLED, NOT_SAMPLED, 1)
    assert first.num_turns == second.num_turns == 2


def test_a_shorter_prompt_begins_a_new_sequence() -> None:
    assert len(merge_turns([Turn([1, 2], [3], [-0.3]), Turn([1, 2], [4], [-0.4])])) == 2


def test_a_prompt_that_is_exactly_the_sequence_joins_it() -> None:
    (sample,) = merge_turns([Turn([1, 2], [3], [-0.3]), Turn([1, 2, 3], [4], [-0.4])])

    assert sample.loss_mask == (False, False, True, True)
    assert sample.turn_of_token == (NOT_SAMPLED, NOT_SAMPLED, 0, 1)


def test_interleaved_conversations_stay_apart() -> None:
    turns = [
        Turn([1], [2], [-0.2]),
        Turn([5], [6], [-0.6]),
        Turn([1, 2, 3], [4], [-0.4]),
        Turn([5, 6, 7], [8], [-0.8]),
    ]

    samples = merge_turns(turns)

    assert [each.token_ids for each in samples] == [(1, 2, 3, 4), (5, 6, 7, 8)]
    assert [each.turns for each in samples] == [(0, 2), (1, 3)]


def test_what_two_branches_share_is_trained_once() -> None:
    trunk, left, right = Turn([1], [2], [-0.2]), Turn([1, 2, 3], [4], [-0.4]), Turn([1, 2, 3], [5], [-0.5])

    first, second = merge_turns([trunk, left, right])

    assert first.loss_mask == (False, True, False, True)
    assert second.token_ids == (1, 2, 3, 5)
    assert second.loss_mask == (False, False, False, True)


def test_the_longest_sequence_that_fits_is_extended() -> None:
    turns = [Turn([1], [2], [-0.2]), Turn([1], [2, 3], [-0.2, -0.3]), Turn([1, 2, 3], [4], [-0.4])]

    samples = merge_turns(turns)

    assert [each.token_ids for each in samples] == [(1, 2), (1, 2, 3, 4)]


def test_a_turn_that_sampled_nothing_keeps_its_reward() -> None:
    (sample,) = merge_turns([Turn([1], [2], [-0.2]), Turn([1, 2, 3], [], [], reward=-1.0)])

    assert sample.token_ids == (1, 2, 3)
    assert sample.num_trained == 1
    assert sample.turn_rewards == (None, -1.0)


def test_no_turns_give_no_sequences() -> None:
    assert merge_turns([]) == []


# -- as a property -----------------------------------------------------------------------------------


@st.composite
def rollouts(draw: st.DrawFn) -> list[Turn]:
    """Turns of few different tokens, so that prompts often extend, repeat or nearly match what came before."""
    tokens = st.lists(st.integers(0, 2), max_size=3)
    turns: list[Turn] = []
    for number in range(draw(st.integers(0, 6))):
        history: list[int] = []
        if turns and draw(st.booleans()):
            before = draw(st.sampled_from(turns))
            history = [*before.prompt_ids, *before.response_ids]
        response = draw(tokens)
        # Each log-probability is its own, so that a swapped one would show.
        logprobs = [-(number + 1) - position / 10 for position in range(len(response))]
        turns.append(Turn([*history, *draw(tokens), 1], response, logprobs, reward=float(number)))
    return turns


@settings(max_examples=100, deadline=None)
@given(rollouts())
def test_every_sampled_token_is_trained_exactly_once_with_its_own_logprob_and_no_other_token_is(
    turns: list[Turn],
) -> None:
    samples = merge_turns(turns)

    trained = [
        (sample.turn_of_token[t], sample.token_ids[t], sample.logprobs[t], sample.token_ids[:t])
        for sample in samples
        for t in range(len(sample))
        if sample.loss_mask[t]
    ]
    sampled = [
        (number, token, turn.logprobs[i], (*turn.prompt_ids, *turn.response_ids[:i]))
        for number, turn in enumerate(turns)
        for i, token in enumerate(turn.response_ids)
    ]
    assert sorted(trained) == sorted(sampled)
    for sample in samples:
        for t in range(len(sample)):
            if not sample.loss_mask[t]:
                assert (sample.logprobs[t], sample.turn_of_token[t]) == (0.0, NOT_SAMPLED)


@settings(max_examples=50, deadline=None)
@given(rollouts())
def test_every_turn_and_its_reward_is_in_one_sequence_and_the_first_token_is_never_trained(turns: list[Turn]) -> None:
    samples = merge_turns(turns)

    rewards = [pair for sample in samples for pair in zip(sample.turns, sample.turn_rewards, strict=True)]
    assert sorted(rewards) == [(number, turn.reward) for number, turn in enumerate(turns)]
    for sample in samples:
        assert not sample.loss_mask[0]
        columns = (sample.token_ids, sample.loss_mask, sample.logprobs, sample.turn_of_token, sample.weights_versions)
        assert {len(each) for each in columns} == {len(sample)}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=4), st.lists(st.integers(0, 9), max_size=4)), min_size=1)
)
def test_one_growing_conversation_is_one_sequence(steps: list[tuple[list[int], list[int]]]) -> None:
    history, turns = [0], []
    for read, sampled in steps:
        turns.append(Turn([*history, *read], sampled, [-1.0] * len(sampled)))
        history = [*history, *read, *sampled]

    (sample,) = merge_turns(turns)

    assert list(sample.token_ids) == history
    assert sample.num_trained == sum(len(sampled) for _, sampled in steps)


# -- bad input ---------------------------------------------------------------------------------------


def test_a_missing_logprob_is_refused() -> None:
    with raises(InvalidInputError, 1, 2):
        Turn([1], [2, 3], [-0.1])


def test_a_missing_version_is_refused() -> None:
    with raises(InvalidInputError, "weights_versions", 1, 2):
        Turn([1], [2, 3], [-0.1, -0.1], weights_versions=["1"])


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), None, "0"])
def test_a_logprob_that_is_no_finite_number_is_refused(value: float) -> None:
    with raises(InvalidInputError, "logprobs[1]"):
        Turn([1], [2, 3], [-0.1, value])


def test_an_empty_prompt_is_refused() -> None:
    with raises(InvalidInputError, "prompt_ids"):
        Turn([], [2], [-0.1])


@pytest.mark.parametrize("token", [-1, True, "a", 1.0])
def test_a_token_that_is_no_id_is_refused(token: int) -> None:
    with raises(InvalidInputError, "prompt_ids[1]"):
        Turn([1, token], [2], [-0.1])
    with raises(InvalidInputError, "response_ids[0]"):
        Turn([1], [token], [-0.1])


def test_a_reward_that_is_no_finite_number_is_refused() -> None:
    with raises(InvalidInputError, "nan"):
        Turn([1], [2], [-0.1], reward=float("nan"))


def test_samples_need_no_torch() -> None:
    code = "import sys; import sharpen.llm.policy.samples; print('torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "False"
