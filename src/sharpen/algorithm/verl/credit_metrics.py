"""What a batch of rollouts was like, in numbers. No torch."""

import math
from collections.abc import Sequence
from itertools import chain

from .collected import CollectedRollout


def batch_metrics(rollouts: Sequence[CollectedRollout]) -> dict[str, float]:
    """Rewards of the rollouts that count, how many do not and why, and lengths; without what nothing is known of."""
    calls = [each for each in rollouts if not each.is_lost]
    found = {
        "rollouts": float(len(rollouts)),
        "failed": float(sum(each.is_failed for each in rollouts)),
        "lost": float(sum(each.is_lost for each in rollouts)),
        "unrewarded": float(sum(each.is_unrewarded for each in rollouts)),
        "truncated": float(sum(each.truncated for each in calls)),
        "untokenised": float(sum(each.num_untokenised for each in calls)),
        "too_long": float(sum(each.num_too_long for each in calls)),
        "greedy": float(sum(each.num_greedy for each in calls)),
    }
    found |= _reward_metrics([each.reward for each in rollouts if each.counts and each.reward is not None])
    responses = list(chain.from_iterable(each.response_lengths for each in calls))
    if responses:
        found["response_length_mean"] = sum(responses) / len(responses)
        found["response_length_max"] = float(max(responses))
        found["prompt_length_mean"] = sum(map(sum, (each.prompt_lengths for each in calls))) / len(responses)
    if calls:
        found["turns_mean"] = sum(each.num_calls for each in calls) / len(calls)
    return found


def _reward_metrics(rewards: Sequence[float]) -> dict[str, float]:
    if not rewards:
        return {}
    mean = math.fsum(rewards) / len(rewards)
    spread = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return {"reward_mean": mean, "reward_std": spread, "reward_min": min(rewards), "reward_max": max(rewards)}
