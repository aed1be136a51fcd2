"""Warnings about a run that goes on, or ends well, although its numbers say that something is wrong.

They are read from what the summary keeps of every step, so a resumed run is judged as a whole.
"""

from collections.abc import Mapping, Sequence

from .collected import CollectedRollout
from .preflight import Spelling, advice_for_flat

Steps = Sequence[Mapping[str, float]]

LARGE_NATS = 0.5  # by which one update may move the log-probability of a sampled token on average
WINDOW = 3  # steps at the beginning and at the end that are compared


def step_warnings(steps: Steps, *, spell: Spelling = str) -> dict[str, str]:
    """What is wrong after the newest step, by its kind."""
    found = {}
    nats = steps[-1].get("update_nats", 0.0) if steps else 0.0
    rate = spell("actor_rollout_ref.actor.optim.lr")
    if nats > LARGE_NATS:
        found["update"] = (
            f"the update of step {steps[-1]['step']:.0f} moved the log-probability of sampled tokens by {nats:.2g} "
            f"nats on average, up to 0.3 is usual: lower {rate} if the reward falls or train/update_nats stays "
            "above 0.5"
        )
    if len(steps) >= 2 * WINDOW and _rises(steps):
        found |= _runaways(steps, spell)
    return found


def limit_warning(rollouts: Sequence[CollectedRollout], *, limit: int, spell: Spelling = str) -> str | None:
    """How many rollouts of a step ran to the limit of tokens, for which all others wait, and what to set."""
    cut = [each for each in rollouts if each.truncated and not each.num_too_long and not each.is_lost]
    if not cut:
        return None
    option = spell("data.max_response_length")
    longest = max((length for each in cut for length in each.response_lengths), default=0)
    ended = [length for each in rollouts if not each.truncated for length in each.response_lengths]
    told = f"{len(cut)} of {len(rollouts)} rollouts reached the token limit"
    if longest < limit:
        return f"{told}, the agent's max_tokens ({longest}): raise it if correct answers are cut off"
    if len(cut) > len(rollouts) / 2:
        return f"{told}, {option} ({limit}): raise it, or prompt for shorter answers"
    others = f"; the longest complete answer has {max(ended)}" if ended else ""
    advice = (
        "A step waits for its longest answer: lower it if correct answers are shorter, raise it if they are cut off"
    )
    return f"{told}, {option} ({limit}){others}. {advice}"


def final_warning(steps: Steps, *, spell: Spelling = str) -> str | None:
    """Why no weight of the model has changed, where that is so."""
    if not steps or any(step.get("updates", 1.0) > 0 for step in steps):
        return None
    told = f"no weight of the model changed in {len(steps)} steps: "
    rewarded = [step for step in steps if "reward_min" in step and "reward_max" in step]
    if not rewarded:
        return f"{told}no rollout had a usable reward; see run.log in the run folder"
    low, high = min(step["reward_min"] for step in rewarded), max(step["reward_max"] for step in rewarded)
    seen = f"always {low:g}" if low == high else f"between {low:g} and {high:g}"
    advice = advice_for_flat([low, high], more=spell("actor_rollout_ref.rollout.n"))
    return f"{told}all rollouts of a group had the same reward ({seen}), so there was nothing to learn from: {advice}"


def _rises(steps: Steps) -> bool:
    before, now = _ends(steps, "reward_mean")
    return before is not None and now is not None and now > before


def _runaways(steps: Steps, spell: Spelling) -> dict[str, str]:
    found = {}
    read = "The reward may favour this: read some answers (sharpen rollouts show), and penalise it in the reward"
    limit, rate = spell("data.max_response_length"), spell("actor_rollout_ref.actor.optim.lr")
    length, now = _ends(steps, "response_length_mean")
    if length and now and now > 2 * length and now > length + 16:
        found["length"] = f"answers grew from {length:.0f} to {now:.0f} tokens while the reward rose. {read}"
    shares = [{"share": step["truncated"] / step["rollouts"]} for step in steps if step.get("rollouts")]
    cut, now = _ends(shares, "share")
    if cut is not None and now is not None and now > cut + 0.2:
        found["truncated"] = (
            f"{now:.0%} of the rollouts reach the token limit, up from {cut:.0%} at the start, while the reward "
            f"rose. {read}, or raise {limit}"
        )
    entropy, now = _ends(steps, "entropy")
    if entropy is not None and now is not None and now > 2 * entropy and now > entropy + 0.5:
        found["entropy"] = (
            f"the entropy grew from {entropy:.2g} to {now:.2g} nats per token while the reward rose: answers become "
            f"random. Lower {rate} or {spell('actor_rollout_ref.actor.entropy_coeff')}"
        )
    return found


def _ends(steps: Steps, name: str) -> tuple[float | None, float | None]:
    """The mean of the first and of the last few steps that have this metric."""
    values = [step[name] for step in steps if name in step]
    if len(values) < 2 * WINDOW:
        return None, None
    return sum(values[:WINDOW]) / WINDOW, sum(values[-WINDOW:]) / WINDOW
