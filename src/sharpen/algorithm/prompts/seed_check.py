"""Whether a search can see anything: what the first rollouts of the seed prompt say about the agent."""

import logging
from collections.abc import Sequence

from ...errors import ConfigError, MissingResourceError, MissingValueError, RunError
from .evaluations import Evaluation

log = logging.getLogger(__name__)


def check_seed(evaluations: Sequence[Evaluation]) -> None:
    """A search that can see nothing ends before it costs more."""
    if all(each.is_lost for each in evaluations):
        raise RunError(f"every rollout of the seed prompt was lost: {evaluations[0].error}")
    if all(each.status == "failed" for each in evaluations):
        _check_failed(evaluations)
    elif not any(each.has_reward for each in evaluations):
        raise ConfigError(
            "no rollout of the seed prompt has a reward, so prompts cannot be compared: let the agent return a "
            "number, or call emit_reward"
        )


def _check_failed(evaluations: Sequence[Evaluation]) -> None:
    """Another prompt may repair an agent that fails, but gives it no resource and no value that it lacks."""
    first = evaluations[0].error or ""
    if all((each.error or "").startswith(MissingResourceError.__name__) for each in evaluations):
        model = ", or serve a local model with model=" if "no LLM" in first else ""
        raise ConfigError(f"no rollout of the seed prompt could begin. {first}{model}")
    if all((each.error or "").startswith(MissingValueError.__name__) for each in evaluations):
        raise ConfigError(f"no rollout of the seed prompt could fill it in. {first}")
    log.warning(
        "every rollout of the seed prompt failed, the first with %s: the search goes on for a round, as another prompt "
        "may mend that; if none can, stop it and mend the agent",
        first,
    )
