"""From the spans of random rollouts to training samples: nothing is lost, nothing is added, nothing is mixed up."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from sharpen.adapter import LlmProxyTraceToTriplet
from sharpen.semconv import AGL_REWARD, PRIMARY_REWARD_VALUE, SHARPEN_LLM_CALL, LightningLLMAttributes
from sharpen.types import Rollout, Span
from tests.algorithm.internals import CollectedRollout, Estimator, assign_credit, collect

torch.set_num_threads(1)
MAX_PROMPT, MAX_RESPONSE = 8, 3


@dataclass(frozen=True)
class Choice:
    """One answer of a call; `logprobs` None is one that was not recorded."""

    response: list[int]
    logprobs: list[float] | None


@dataclass(frozen=True)
class Call:
    """One call as it happened, with one choice or several; `reward` is what came after it."""

    prompt: list[int]
    choices: list[Choice]
    reward: float | None

    def num_trained(self, choice: Choice) -> int:
        if choice.logprobs is None or not choice.response or len(self.prompt) > MAX_PROMPT:
            return 0
        return min(len(choice.response), MAX_RESPONSE)


@st.composite
def rollouts(draw: st.DrawFn) -> list[Call]:
    """Calls of few different tokens, so that prompts often extend, repeat or nearly match what came before."""
    tokens = st.lists(st.integers(0, 2), max_size=3)
    calls: list[Call] = []
    turn = 0
    for _ in range(draw(st.integers(0, 5))):
        history: list[int] = []
        if calls and draw(st.booleans()):
            before = draw(st.sampled_from(calls))
            history = [*before.prompt, *draw(st.sampled_from(before.choices)).response]
        is_recorded = draw(st.integers(0, 5)) > 0
        choices = []
        for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
            response = [*draw(tokens), *draw(tokens)]
            # Each log-probability is its own, so that a swapped one would show: whole numbers are those of the choice.
            logprobs = [-(turn + 1) - position / 10 for position in range(len(response))]
            choices.append(Choice(response, logprobs if is_recorded else None))
            turn += 1
        reward = draw(st.sampled_from([None, None, 0.0, 0.5, 1.0]))
        prompt = [*history, *draw(tokens)] or [1]
        calls.append(Call(prompt, choices, reward))
    return calls


def turn_of(logprob: float) -> int:
    """The number of the choice that sampled a token, by its log-probability."""
    return int(-logprob) - 1


def by_choice(lists: list[Any]) -> Any:
    """As a gateway writes it: a flat list of one choice, JSON of several."""
    return lists[0] if len(lists) == 1 else json.dumps(lists)


batches = st.lists(st.tuples(st.integers(0, 1), rollouts(), st.sampled_from([0.0, 0.25, 1.0])), max_size=6)
Batch = list[tuple[int, list[Call], float]]


def spans_of(rollout_id: str, calls: Sequence[Call], final: float) -> list[Span]:
    """As the gateway and the emitter write them."""
    spans: list[Span] = []

    def add(name: str, attributes: dict[str, object]) -> None:
        number = len(spans) + 1
        spans.append(
            Span.from_attributes(
                attributes=attributes,  # type: ignore[arg-type]
                rollout_id=rollout_id,
                attempt_id="at-1",
                sequence_id=number,
                name=name,
                trace_id="t" * 32,
                span_id=f"span-{number}",
                start_time=float(number),
                end_time=number + 0.5,
            )
        )

    for call in calls:
        told: dict[str, object] = {
            "gen_ai.operation.name": "chat",
            LightningLLMAttributes.PROMPT_TOKEN_IDS.value: call.prompt,
            LightningLLMAttributes.RESPONSE_TOKEN_IDS.value: by_choice([each.response for each in call.choices]),
            "gen_ai.request.choice.count": len(call.choices),
        }
        if call.choices[0].logprobs is not None:
            told[LightningLLMAttributes.RESPONSE_LOGPROBS.value] = by_choice([each.logprobs for each in call.choices])
        add(SHARPEN_LLM_CALL, told)
        if call.reward is not None:
            add(AGL_REWARD, {PRIMARY_REWARD_VALUE: call.reward})
    add(AGL_REWARD, {PRIMARY_REWARD_VALUE: final})
    return spans


def collected(batch: Batch) -> list[CollectedRollout]:
    found = []
    for number, (group, calls, final) in enumerate(batch):
        rollout = Rollout(f"ro-{group}-{number}", None, 0.0, 1.0, status="succeeded", reward=final)
        triplets = LlmProxyTraceToTriplet().adapt(spans_of(rollout.rollout_id, calls, final))
        found.append(collect(rollout, triplets, max_prompt_length=MAX_PROMPT, max_response_length=MAX_RESPONSE))
    return found


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus", "gae"])
@settings(max_examples=40, deadline=None)
@given(batch=batches)
def test_every_sampled_token_is_trained_once_with_its_own_log_probability_and_no_other_token_is(
    estimator: Estimator, batch: Batch
) -> None:
    rollouts = collected(batch)
    values = [[0.5] * len(sample) for each in rollouts for sample in each.samples]

    credit = assign_credit(rollouts, estimator=estimator, values=values, keeps_flat_groups=True)

    sizes = [sum(other == group for other, _, _ in batch) for group, _, _ in batch]
    sampled = [
        (f"ro-{group}-{number}", (*call.prompt, *choice.response[:i]), choice.response[i], choice.logprobs[i])
        for number, (group, calls, _) in enumerate(batch)
        if sizes[number] > 1 or estimator in ("reinforce_plus_plus", "gae")
        for call in calls
        for choice in call.choices
        for i in range(call.num_trained(choice))
        if choice.logprobs is not None
    ]
    trained = [
        (source.rollout_id, tuple(sample.token_ids[:t]), sample.token_ids[t], sample.old_logprobs[t])
        for sample, source in zip(credit.samples, credit.sources, strict=True)
        for t in range(len(sample))
        if sample.loss_mask[t]
    ]
    assert sorted(trained) == sorted(sampled)
    assert credit.metrics["trained_tokens"] == len(sampled)
    for sample in credit.samples:
        assert not any(a for a, is_trained in zip(sample.advantages, sample.loss_mask, strict=True) if not is_trained)


# -- against a slow reference ------------------------------------------------------------------------


def earned(calls: Sequence[Call], final: float) -> list[float]:
    """A reward goes to the last choice of the call before it; the final one too, also where that has one already."""
    rewards = [reward for call in calls for reward in [0.0] * (len(call.choices) - 1) + [call.reward or 0.0]]
    if calls and calls[-1].reward != final:
        rewards[-1] += final
    return rewards


def to_go(batch: Batch, number: int, place: int) -> float:
    """What a rollout earned from a choice on, or from its last where it has fewer."""
    _, calls, final = batch[number]
    rewards = earned(calls, final)
    return sum(rewards[min(place, len(rewards) - 1) :]) if rewards else final


@settings(max_examples=80, deadline=None)
@given(batch=batches)
def test_every_token_has_the_advantage_of_its_call_in_its_group(batch: Batch) -> None:
    credit = assign_credit(collected(batch), norm_by_std=False, keeps_flat_groups=True)

    for sample, source in zip(credit.samples, credit.sources, strict=True):
        number = int(source.rollout_id.rpartition("-")[2])
        group = [place for place, (name, _, _) in enumerate(batch) if name == batch[number][0]]
        for t, logprob in enumerate(sample.old_logprobs):
            if sample.loss_mask[t]:
                turn = turn_of(logprob)
                mean = statistics.fmean(to_go(batch, each, turn) for each in group)
                assert sample.advantages[t] == pytest.approx(to_go(batch, number, turn) - mean, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(batch=batches)
def test_along_a_trajectory_every_token_returns_what_its_rollout_earned_from_its_call_on(batch: Batch) -> None:
    rollouts = collected(batch)
    values = [[0.0] * len(sample) for each in rollouts for sample in each.samples]

    credit = assign_credit(rollouts, estimator="gae", values=values)

    for sample, source in zip(credit.samples, credit.sources, strict=True):
        number = int(source.rollout_id.rpartition("-")[2])
        turns = [turn_of(logprob) if logprob else None for logprob in sample.old_logprobs]
        expected = [0.0 if turn is None else to_go(batch, number, turn) for turn in turns]
        assert sample.returns == pytest.approx(expected, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(batch=batches)
def test_what_is_left_out_would_have_moved_nothing(batch: Batch) -> None:
    rollouts = collected(batch)

    kept = {(each.rollout_id, each.turns) for each in assign_credit(rollouts).sources}
    credit = assign_credit(rollouts, keeps_flat_groups=True)

    for sample, source in zip(credit.samples, credit.sources, strict=True):
        assert (source.rollout_id, source.turns) in kept or not any(sample.advantages)
