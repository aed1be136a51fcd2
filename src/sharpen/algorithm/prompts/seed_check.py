"""Whether a search can see anything: what the first rollouts of the seed prompt say about the agent."""

import logging
from collections.abc import Sequence

from ...errors import ConfigError, MissingResourceError, MissingValueError, RunError
from .evaluations import Evaluation

log = logging.getLogger(__name__)


def check_seed(evaluations: Sequence[Evaluation], *, has_llm: bool) -> None:
    """A search that can see nothing ends before it costs more. `has_llm`: whether agents are given a model."""
    if all(each.is_lost for each in evaluations):
        raise RunError(f"every rollout of the seed prompt was lost: {evaluations[0].error}")
    if all(each.status == "failed" for each in evaluations):
        _check_failed(evaluations, has_llm=has_llm)
    elif not any(each.has_reward for each in evaluations):
        raise ConfigError(
            "no rollout of the seed prompt has a reward, so prompts cannot be compared: return a number from the "
            "agent, or call emit_reward in it"
        )


def _check_failed(evaluations: Sequence[Evaluation], *, has_llm: bool) -> None:
    """Another prompt may repair an agent that fails, but gives it no resource and no value that it lacks."""
    first, kinds = evaluations[0].error or "", {each.error_type for each in evaluations}
    if kinds == {MissingResourceError.__name__}:
        model = "" if has_llm else ", or serve a local model with model="
        raise ConfigError(f"no rollout of the seed prompt could start. {first}{model}")
    if kinds == {MissingValueError.__name__}:
        raise ConfigError(f"no rollout could fill in the seed prompt. {first}")
    log.warning(
        "every rollout of the seed prompt failed, the first with %s. The search continues for one round, since another "
        "prompt may help; if none does, stop the run and fix the agent",
        first,
    )
