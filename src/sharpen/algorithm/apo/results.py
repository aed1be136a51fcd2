"""What the critic is shown of a rollout, and a prompt with its version."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from ...adapter.messages import OpenAIMessages
from ...types import PromptTemplate, RolloutStatus, Span


@dataclass(frozen=True)
class VersionedPromptTemplate:
    """A candidate prompt; its score is the mean reward on validation tasks, where it has one."""

    version: str
    prompt_template: PromptTemplate
    score: float | None = None


class RolloutResultForAPO(TypedDict):
    """What came of one rollout; one that failed has its reward or 0."""

    status: RolloutStatus
    final_reward: float | None
    spans: Sequence[Span]
    messages: Sequence[OpenAIMessages]
    error: NotRequired[str | None]
    is_lost: NotRequired[bool]
    """Whether infrastructure failed it: the critic is not shown it."""
