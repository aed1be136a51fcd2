"""Before anything is learned: what silently ruins such runs.

The checks look at the first rollouts of the first step, which count as any other afterwards. A check that fails says
what to change. An error ends the run before a weight has changed; a warning is told, and ends it where `strict`.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...llm.errors import TrainingError
from .collected import CollectedRollout

log = logging.getLogger(__name__)

Level = Literal["passed", "warning", "error"]
NUM_GROUPS = 2
AGREES_NATS = 0.05
DISAGREES_NATS = 0.5


@dataclass(frozen=True)
class Check:
    """What one check found."""

    name: str
    level: Level
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


def run_checks(
    tokenizer: Any, rollouts: Sequence[CollectedRollout], *, nats: float | None, corrects: bool = False
) -> list[Check]:
    """All checks. `nats` is how far sampler and trainer disagree about a token on average; `corrects` says that the
    loss makes up for it."""
    return [
        check_template(tokenizer),
        check_outcomes(rollouts),
        check_tokens(rollouts),
        check_temperature(rollouts),
        check_agreement(nats, corrects=corrects),
        check_rewards(rollouts),
        check_spread(rollouts),
        check_length(rollouts),
    ]


def conclude(checks: Sequence[Check], *, is_strict: bool) -> None:
    """Tell what was found; raise where the run cannot go on."""
    for check in checks:
        log.log({"passed": logging.DEBUG, "warning": logging.WARNING, "error": logging.ERROR}[check.level], "%s", check)
    failed = [check for check in checks if check.level == "error" or (is_strict and check.level == "warning")]
    if failed:
        listed = "; ".join(map(str, failed))
        raise TrainingError(f"the preflight failed, nothing was trained: {listed}")
    num_warnings = sum(check.level == "warning" for check in checks)
    told = f"{num_warnings} warnings" if num_warnings else "all passed"
    log.info("preflight: %d checks, %s", len(checks), told)


# -- the checks --------------------------------------------------------------------------------------

_CONVERSATION = [
    {"role": "user", "content": "What is 2 plus 3?"},
    {"role": "assistant", "content": "Let me see: it is 5."},
    {"role": "user", "content": "And 4 plus 4?"},
]


def check_template(tokenizer: Any) -> Check:
    """A second turn must begin with exactly the tokens of the first."""
    name = "chat template"
    if getattr(tokenizer, "chat_template", None) is None:
        return Check(name, "warning", "the tokenizer has none: agents can use /v1/completions only")
    try:
        first, answered, second = (_ids(tokenizer, count) for count in (1, 2, 3))
    except Exception as error:  # noqa: BLE001 - a template is a program of somebody else's
        return Check(name, "error", f"it cannot write two turns: {error}. Use a model with a template for chats")
    if answered[: len(first)] == first and second[: len(answered)] == answered:
        return Check(name, "passed", "a second turn begins with the tokens of the first")
    return Check(
        name,
        "warning",
        "it does not extend prefixes: a second turn is written with other tokens than the first was. Every turn is "
        "then trained as a sequence of its own, which is right but slower. Use a template that keeps earlier turns as "
        "they were (one that removes earlier thoughts does not), or agents of one turn",
    )


def _ids(tokenizer: Any, count: int) -> list[int]:
    is_open = _CONVERSATION[count - 1]["role"] == "user"
    text = tokenizer.apply_chat_template(_CONVERSATION[:count], tokenize=False, add_generation_prompt=is_open)
    if not is_open:  # after an answer some templates write a line break that nobody samples
        text = text.rstrip()
    found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return found


def check_outcomes(rollouts: Sequence[CollectedRollout]) -> Check:
    name = "rollouts"
    failed, lost = sum(each.is_failed for each in rollouts), sum(each.is_lost for each in rollouts)
    if rollouts and failed + lost == len(rollouts):
        return Check(name, "error", f"all {len(rollouts)} failed: run the agent with Trainer.dev to see why")
    if failed + lost > len(rollouts) / 2:
        return Check(
            name, "warning", f"{failed + lost} of {len(rollouts)} failed: run.log in the folder of the run says why"
        )
    return Check(name, "passed", f"{len(rollouts) - failed - lost} of {len(rollouts)} ended well")


def check_tokens(rollouts: Sequence[CollectedRollout]) -> Check:
    name = "token ids"
    running = [each for each in rollouts if not each.is_lost]
    calls, without = sum(each.num_calls for each in running), sum(each.num_untokenised for each in running)
    if running and not calls:
        return Check(
            name,
            "error",
            "no rollout has called the model through the gateway: let the agent use the endpoint and the model of the "
            "LLM that it is given, and no address of its own",
        )
    if calls and without == calls:
        return Check(
            name,
            "error",
            "no call has token ids with log-probabilities: is there another proxy on the way that drops them?",
        )
    if without:
        return Check(name, "warning", f"{without} of {calls} calls have no token ids and are not trained")
    return Check(name, "passed", f"{calls} calls came with token ids and log-probabilities")


def check_temperature(rollouts: Sequence[CollectedRollout]) -> Check:
    name = "temperature"
    greedy = sum(each.temperature == 0 for each in rollouts)
    if rollouts and greedy == len(rollouts):
        return Check(
            name,
            "error",
            "the agent asks for temperature 0, so all rollouts of a group are the same: leave the temperature out, or "
            "use llm.sampling_parameters",
        )
    if greedy:
        return Check(
            name, "warning", f"{greedy} of {len(rollouts)} rollouts sampled at temperature 0 and teach nothing"
        )
    return Check(name, "passed", "calls are sampled")


def check_agreement(nats: float | None, *, corrects: bool = False) -> Check:
    name = "log-probabilities"
    if nats is None:
        return Check(name, "warning", "no sampled token to compare sampler and trainer by")
    if nats <= AGREES_NATS:
        return Check(name, "passed", f"sampler and trainer agree to {nats:.2g} nats a token")
    if corrects:
        told = f"sampler and trainer differ by {nats:.2g} nats a token, for which importance_correction makes up"
        return Check(name, "passed" if nats <= DISAGREES_NATS else "warning", told)
    way_out = (
        "is a top_p below 1 or a top_k asked for? Leave it out, set algorithm.importance_correction=True, or "
        "actor_rollout_ref.model.precision=fp32"
    )
    level: Level = "warning" if nats <= DISAGREES_NATS else "error"
    return Check(name, level, f"sampler and trainer differ by {nats:.2g} nats a token: {way_out}")


def check_rewards(rollouts: Sequence[CollectedRollout]) -> Check:
    name = "rewards"
    running = [each for each in rollouts if not each.is_lost and not each.is_failed]
    without = sum(each.reward is None for each in running)
    if running and without == len(running):
        return Check(name, "error", "no rollout has one: return a number from the agent, or call emit_reward")
    if without:
        return Check(name, "warning", f"{without} of {len(running)} rollouts have none and are left out")
    return Check(name, "passed", f"{len(running)} rollouts have one")


def check_spread(rollouts: Sequence[CollectedRollout]) -> Check:
    name = "spread"
    groups: dict[str, set[float]] = {}
    for each in rollouts:
        if each.reward is not None and not each.is_lost:
            groups.setdefault(each.group, set()).add(each.reward)
    flat = sum(len(values) < 2 for values in groups.values())
    if groups and flat == len(groups):
        values = sorted(set().union(*groups.values()))
        return Check(
            name,
            "warning",
            f"all rollouts of a group have the same reward (seen: {', '.join(f'{v:g}' for v in values[:4])}), so there "
            "is nothing to learn yet: use easier or harder tasks, a reward with steps in between, more samples a group "
            "(rollout.n), or a higher temperature",
        )
    return Check(name, "passed", f"{len(groups) - flat} of {len(groups)} groups have rewards that differ")


def check_length(rollouts: Sequence[CollectedRollout]) -> Check:
    name = "length"
    cut = sum(each.truncated for each in rollouts)
    if rollouts and cut > len(rollouts) / 2:
        return Check(
            name,
            "warning",
            f"{cut} of {len(rollouts)} rollouts were cut: raise data.max_response_length, or the agent's max_tokens",
        )
    return Check(name, "passed", f"{cut} of {len(rollouts)} rollouts were cut")
