"""Finished rollouts and what the model was asked and answered in them, as short as they can be read."""

from collections.abc import Sequence
from typing import Any

from sharpen.types import Attempt, AttemptedRollout, Rollout, Triplet
from tests.algorithm.internals import CollectedRollout, collect


def call(
    prompt: Sequence[int],
    response: Sequence[int],
    logprobs: Sequence[float] | None = None,
    *,
    reward: float | None = None,
    **metadata: Any,
) -> Triplet:
    """One call; without log-probabilities each token has its own number as one, over minus ten."""
    logprobs = [-token / 10 for token in response] if logprobs is None else logprobs
    return Triplet(
        {"token_ids": list(prompt)}, {"token_ids": list(response), "logprobs": list(logprobs)}, reward, metadata
    )


def untokenised(*, reward: float | None = None) -> Triplet:
    """A call of which only the messages are known."""
    message = {"role": "assistant", "content": "yes"}
    return Triplet({"token_ids": [], "messages": []}, {"token_ids": [], "messages": [message]}, reward)


def rollout(rollout_id: str = "ro-t0-0", reward: float | None = None, **more: Any) -> Rollout:
    return Rollout(rollout_id, None, 10.0, 14.0, status=more.pop("status", "succeeded"), reward=reward, **more)


def failed(rollout_id: str = "ro-t0-0", reward: float | None = None, *, as_what: Any = "failed") -> Rollout:
    attempt = Attempt(rollout_id, "at-1", 1, 12.0, 14.0, status=as_what)
    return AttemptedRollout(rollout_id, None, 10.0, 14.0, status="failed", reward=reward, attempt=attempt)


def collected(
    rollout_id: str, reward: float | None, *calls: Triplet, max_prompt_length: int = 100, max_response_length: int = 100
) -> CollectedRollout:
    """A rollout that succeeded. What its id begins with, up to the last dash, is its group."""
    return collect(
        rollout(rollout_id, reward),
        calls,
        max_prompt_length=max_prompt_length,
        max_response_length=max_response_length,
    )
