"""What is learned from a finished rollout: its training sequences, its rewards, and what was left out. No torch.

Invariants: every sampled token that is kept is in exactly one sequence, after the tokens that its sampler saw, with the
log-probability that its sampler gave it. A call that cannot be trained is counted, still has its place in the order of
calls, and keeps its reward. Calls at different temperatures stand in different sequences. A call with several choices
counts as one call for each, and its reward counts once: it stands at the last, so that all of them lead to it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ...errors import ConfigError, InvalidInputError
from ...llm.policy.samples import NOT_SAMPLED, Sample, Turn, merge_turns
from ...types import AttemptedRollout, Rollout, Triplet
from ..rewards import is_lost

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedRollout:
    """One finished rollout. Turns are its calls to the model, numbered from 0, also those that are not trained."""

    rollout_id: str
    group: str
    reward: float | None
    """The final one. None where there is none, and where the rollout was lost."""
    turn_rewards: tuple[float, ...] = ()
    """What each call earned, the final reward included; empty where the final reward is all there is."""
    is_failed: bool = False
    """By its agent's fault. It counts with its reward, or 0."""
    is_lost: bool = False
    """To infrastructure, or cancelled: it says nothing about the agent and leaves its group."""
    samples: Sequence[Sample] = ()
    temperatures: Sequence[float | None] = ()
    """Of each of `samples`; None where it was not recorded."""
    temperature: float | None = None
    """Of all of its calls; None where it is not known, or not one."""
    is_cut: bool = False
    """Whether a call sampled from a part of the distribution only (`top_p`, `top_k`)."""
    num_calls: int = 0
    """Each choice of a call is one."""
    num_untokenised: int = 0
    """Calls without token ids or log-probabilities. They are not trained, and neither are the next two kinds."""
    num_too_long: int = 0
    """Calls whose prompt is longer than allowed."""
    num_greedy: int = 0
    """Calls at temperature 0: nothing was sampled, so there is no distribution to move."""
    truncated: bool = False
    """A response ran into its limit, or a call was too long."""
    prompt_lengths: tuple[int, ...] = ()
    """Tokens of each call that has them, before anything is cut."""
    response_lengths: tuple[int, ...] = ()
    duration_seconds: float | None = None

    @property
    def counts(self) -> bool:
        """Whether it can be compared with others: it was not lost and has a reward."""
        return not self.is_lost and self.reward is not None

    @property
    def is_unrewarded(self) -> bool:
        return not self.is_lost and self.reward is None

    def with_reward(self, reward: float) -> "CollectedRollout":
        """The same with a final reward that was found afterwards."""
        samples = [msgspec.structs.replace(sample, reward=reward) for sample in self.samples]
        return replace(self, reward=reward, samples=samples)


def collect(
    rollout: Rollout,
    triplets: Sequence[Triplet],
    *,
    max_prompt_length: int,
    max_response_length: int,
    group: str | None = None,
    temperature: float | None = None,
) -> CollectedRollout:
    """From a finished rollout and the triplets of its last attempt, in the order of time.

    A failed rollout comes with that attempt (`with_last_attempt`), which knows whose fault it was. The group is, unless
    it is given, the rollout id without its last `-part`. A call with a longer prompt is not trained; a longer response
    is trained up to its limit. `temperature` is that of calls that do not say, where it is known.
    """
    if not rollout.is_finished:
        raise InvalidInputError(f"rollout {rollout.rollout_id!r} is {rollout.status}: wait until it has finished")
    if max_prompt_length < 1 or max_response_length < 1:
        raise ConfigError(
            f"max_prompt_length is {max_prompt_length} and max_response_length {max_response_length}: use 1 or more"
        )
    calls = [_Call.of(each, rollout.rollout_id, temperature) for triplet in triplets for each in _choices(triplet)]
    group = rollout.rollout_id.rpartition("-")[0] or rollout.rollout_id if group is None else group
    reward = _final_reward(rollout)
    wanted = [each for each in calls if each.is_trainable(max_prompt_length)]
    samples, temperatures = _sequences(calls, wanted, max_response_length, rollout.rollout_id, group, reward)
    known = [each.turn for each in calls if each.turn is not None]
    num_too_long = sum(len(turn.prompt_ids) > max_prompt_length for turn in known)
    return CollectedRollout(
        rollout_id=rollout.rollout_id,
        group=group,
        reward=reward,
        turn_rewards=_turn_rewards([each.reward for each in calls], reward),
        is_failed=rollout.status == "failed" and not is_lost(rollout),
        is_lost=_has_no_say(rollout),
        samples=samples,
        temperatures=temperatures,
        temperature=asked.pop() if len(asked := {each.temperature for each in calls}) == 1 else None,
        is_cut=any(_is_cut(each.metadata) for each in triplets),
        num_calls=len(calls),
        num_untokenised=len(calls) - len(known),
        num_too_long=num_too_long,
        num_greedy=sum(each.is_greedy for each in calls),
        truncated=num_too_long > 0 or any(each.is_truncated(max_response_length) for each in calls),
        prompt_lengths=tuple(len(turn.prompt_ids) for turn in known),
        response_lengths=tuple(len(turn.response_ids) for turn in known),
        duration_seconds=_duration(rollout),
    )


# -- calls -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Call:
    """One choice of a call: the turn that it is where all of its tokens are known, and what was asked for."""

    turn: Turn | None
    reward: float | None
    temperature: float | None
    finish_reason: str | None

    @classmethod
    def of(cls, triplet: Triplet, rollout_id: str, usual_temperature: float | None) -> "_Call":
        metadata = triplet.metadata
        temperature, reason = metadata.get("temperature"), metadata.get("finish_reason")
        return cls(
            _turn(triplet, rollout_id),
            triplet.reward,
            float(temperature) if isinstance(temperature, int | float) else usual_temperature,
            reason if isinstance(reason, str) else None,
        )

    @property
    def is_greedy(self) -> bool:
        return self.temperature is not None and self.temperature <= 0

    def is_trainable(self, max_prompt_length: int) -> bool:
        return self.turn is not None and len(self.turn.prompt_ids) <= max_prompt_length and not self.is_greedy

    def is_truncated(self, max_response_length: int) -> bool:
        is_longer = self.turn is not None and len(self.turn.response_ids) > max_response_length
        return is_longer or self.finish_reason == "length"


_OF_ONE_CHOICE = frozenset({"weights_versions", "finish_reason", "further_choices", "num_untrained_choices"})


def _choices(triplet: Triplet) -> list[Triplet]:
    """A triplet for each choice of a call; the last has its reward."""
    further, num_untrained = triplet.metadata.get("further_choices"), triplet.metadata.get("num_untrained_choices")
    if not further and not num_untrained:
        return [triplet]
    shared = {name: value for name, value in triplet.metadata.items() if name not in _OF_ONE_CHOICE}
    found = [msgspec.structs.replace(triplet, reward=None)]
    found += [Triplet(triplet.prompt, each, None, shared | each) for each in further or ()]
    found += [Triplet({}, {}, None, shared)] * (num_untrained or 0)
    return [*found[:-1], msgspec.structs.replace(found[-1], reward=triplet.reward)]


def _is_cut(metadata: Mapping[str, Any]) -> bool:
    top_p, top_k = metadata.get("top_p"), metadata.get("top_k")
    return (isinstance(top_p, int | float) and top_p < 1) or (isinstance(top_k, int | float) and top_k > 0)


def _turn(triplet: Triplet, rollout_id: str) -> Turn | None:
    """None where a part is missing, or does not fit the others."""
    prompt_ids, response_ids = _part(triplet.prompt, "token_ids"), _part(triplet.response, "token_ids")
    logprobs = _part(triplet.response, "logprobs")
    if not prompt_ids or not response_ids or not logprobs:
        return None
    try:
        return Turn(prompt_ids, response_ids, logprobs, triplet.reward, _versions(triplet.metadata, len(response_ids)))
    except InvalidInputError as error:
        log.warning("a call of rollout %r is excluded from training: %s", rollout_id, error)
        return None


def _part(side: Any, name: str) -> Sequence[Any] | None:
    found = side.get(name) if isinstance(side, Mapping) else None
    return found if isinstance(found, list | tuple) else None


def _versions(metadata: Mapping[str, Any], num_tokens: int) -> list[str] | None:
    each = metadata.get("weights_versions")
    if isinstance(each, list | tuple) and len(each) == num_tokens:
        return list(map(str, each))
    one = metadata.get("weights_version")
    return None if one is None else [str(one)] * num_tokens


def _cut(turn: Turn, max_response_length: int) -> Turn:
    if len(turn.response_ids) <= max_response_length:
        return turn
    versions = turn.weights_versions
    return Turn(
        turn.prompt_ids,
        turn.response_ids[:max_response_length],
        turn.logprobs[:max_response_length],
        turn.reward,
        None if versions is None else versions[:max_response_length],
    )


# -- sequences ---------------------------------------------------------------------------------------


def _sequences(
    calls: Sequence[_Call],
    wanted: Sequence[_Call],
    max_response_length: int,
    rollout_id: str,
    group: str,
    reward: float | None,
) -> tuple[list[Sample], list[float | None]]:
    """The training sequences, and the temperature of each."""
    numbers = {id(call): number for number, call in enumerate(calls)}
    by_temperature: dict[float | None, list[_Call]] = {}
    for call in wanted:
        by_temperature.setdefault(call.temperature, []).append(call)
    samples: list[Sample] = []
    temperatures: list[float | None] = []
    for temperature, alike in by_temperature.items():
        turns = [_cut(call.turn, max_response_length) for call in alike if call.turn is not None]
        merged = merge_turns(turns, rollout_id=rollout_id, group=group, reward=reward)
        places = [numbers[id(call)] for call in alike]
        samples += merged if len(places) == len(calls) else [_renumbered(each, places, len(calls)) for each in merged]
        temperatures += [temperature] * len(merged)
    return samples, temperatures


def _renumbered(sample: Sample, places: Sequence[int], num_calls: int) -> Sample:
    """With the numbers that its turns have among all calls of the rollout."""
    table = [*places, NOT_SAMPLED]  # an index of -1 is the last entry
    return msgspec.structs.replace(
        sample,
        turns=tuple(places[turn] for turn in sample.turns),
        turn_of_token=tuple(map(table.__getitem__, sample.turn_of_token)),
        num_turns=num_calls,
    )


# -- rewards -----------------------------------------------------------------------------------------


def _has_no_say(rollout: Rollout) -> bool:
    return is_lost(rollout) or rollout.status == "cancelled"


def _final_reward(rollout: Rollout) -> float | None:
    if _has_no_say(rollout):
        return None
    return rollout.reward or 0.0 if rollout.status == "failed" else rollout.reward


def _turn_rewards(rewards: Sequence[float | None], final: float | None) -> tuple[float, ...]:
    """What each call earned. The final reward counts once: at the last call, or where it was emitted before."""
    rewarded = [number for number, reward in enumerate(rewards) if reward is not None]
    if final is None or not rewarded:
        return ()
    # The final reward is the last that was emitted, and a reward goes to the last call before it.
    is_emitted = rewards[rewarded[-1]] == final
    if is_emitted and rewarded == [len(rewards) - 1]:
        return ()
    earned = [reward or 0.0 for reward in rewards]
    if not is_emitted:
        earned[-1] += final
    return tuple(earned)


def _duration(rollout: Rollout) -> float | None:
    """Of its last attempt where it is known, or else of the whole rollout."""
    timed = rollout.attempt if isinstance(rollout, AttemptedRollout) else rollout
    return None if timed.end_time is None else timed.end_time - timed.start_time
