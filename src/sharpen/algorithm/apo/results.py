"""What the critic is shown of a rollout, and a prompt with its version."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from ...adapter.messages import OpenAIMessages
from ...types import PromptTemplate, RolloutStatus, Span


@dataclass(frozen=True)
class VersionedPromptTemplate:
    """A candidate prompt. `score` is its mean reward on validation tasks, if it was evaluated."""

    version: str
    prompt_template: PromptTemplate
    score: float | None = None


class RolloutResultForAPO(TypedDict):
    """The result of one rollout. The reward of a failed rollout is 0 unless it has one."""

    status: RolloutStatus
    final_reward: float | None
    spans: Sequence[Span]
    messages: Sequence[OpenAIMessages]
    error: NotRequired[str | None]
    is_lost: NotRequired[bool]
    """Whether it failed because of infrastructure; such rollouts are not shown to the critic."""
