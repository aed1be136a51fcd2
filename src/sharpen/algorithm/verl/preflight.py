"""Before anything is learned: what silently ruins such runs.

The checks look at the first rollouts of the first step, which count as any other afterwards. A check that fails says
what to change. An error ends the run before a weight has changed; a warning is told, and ends it where `strict`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Literal

from ...llm.errors import TrainingError
from .training_data import CollectedRollout

log = logging.getLogger(__name__)

Spelling = Callable[[str], str]
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
    tokenizer: Any,
    rollouts: Sequence[CollectedRollout],
    *,
    nats: float | None,
    corrects: bool = False,
    template_kwargs: Mapping[str, Any] | None = None,
    compares_batch: bool = False,
    spell: Spelling = str,
) -> list[Check]:
    """All checks. `nats` is how far sampler and trainer disagree about a token on average; `corrects` says that the
    loss makes up for it. `template_kwargs` go to the chat template. `compares_batch` says that a rollout is compared
    with the whole batch, not with its group. `spell` gives a key as the user writes it."""
    return [
        check_template(tokenizer, template_kwargs),
        check_outcomes(rollouts),
        check_tokens(rollouts),
        check_temperature(rollouts),
        check_answers(rollouts),
        check_agreement(nats, corrects=corrects),
        check_rewards(rollouts),
        check_spread(rollouts, compares_batch=compares_batch, spell=spell),
        check_length(rollouts, spell=spell),
    ]


def conclude(checks: Sequence[Check], *, is_strict: bool) -> None:
    """Tell what was found; raise where the run cannot go on."""
    for check in checks:
        log.log({"passed": logging.DEBUG, "warning": logging.WARNING, "error": logging.ERROR}[check.level], "%s", check)
    failed = [check for check in checks if check.level == "error" or (is_strict and check.level == "warning")]
    if failed:
        listed = "; ".join(map(str, failed))
        raise TrainingError(f"the preflight check failed and nothing was trained: {listed}")
    num_warnings = sum(check.level == "warning" for check in checks)
    told = f"{num_warnings} warnings" if num_warnings else "all passed"
    log.info("preflight: %d checks, %s", len(checks), told)


# -- the checks --------------------------------------------------------------------------------------

_QUESTION, _NEXT_QUESTION = "What is 2 plus 3?", "And 4 plus 4?"
_ANSWER = "Let me see: it is 5."
_THOUGHT, _AFTER_THOUGHT = "Two and three make five.", "\n\nIt is 5."


def check_template(tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None) -> Check:
    """A second turn must begin with exactly the tokens of the first, the answer that was sampled included."""
    name = "chat template"
    if getattr(tokenizer, "chat_template", None) is None:
        return Check(name, "warning", "the tokenizer has no chat template: agents can only use /v1/completions")
    try:
        prompt = _prompt(tokenizer, template_kwargs, [_QUESTION])
        # Some templates open the thought in the prompt.
        opening = "" if prompt.rstrip().endswith("<think>") else "<think>\n"
        thinking = f"{opening}{_THOUGHT}\n</think>{_AFTER_THOUGHT}"
        keeps_answers, keeps_thoughts = (
            _extends(
                tokenizer, prompt, answer, _prompt(tokenizer, template_kwargs, [_QUESTION, answer, _NEXT_QUESTION])
            )
            for answer in (_ANSWER, thinking)
        )
    except Exception as error:  # noqa: BLE001 - a template is a program of somebody else's
        return Check(name, "error", f"it cannot render two turns: {error}. Use a model with a chat template")
    if keeps_answers and keeps_thoughts:
        return Check(name, "passed", "a second turn starts with the tokens of the first")
    told = (
        "it removes the reasoning (<think>...</think>) of earlier answers"
        if keeps_answers
        else "it renders earlier turns with different tokens"
    )
    return Check(
        name,
        "warning",
        f"it does not extend prefixes: {told}. The turns of a conversation are then trained separately, each after the "
        "prompt that the model read: the credit is the same, but every turn computes its history again, and the model "
        "does not see its earlier reasoning, in training as in use. Some templates have a switch that keeps it; set it "
        "with data.apply_chat_template_kwargs. Agents with a single turn are not affected",
    )


def _prompt(tokenizer: Any, template_kwargs: Mapping[str, Any] | None, turns: Sequence[str]) -> str:
    """What the model reads before its next answer. Questions and answers take turns."""
    messages = [
        {"role": "assistant" if place % 2 else "user", "content": content} for place, content in enumerate(turns)
    ]
    how = {**(template_kwargs or {}), "tokenize": False, "add_generation_prompt": True}
    return str(tokenizer.apply_chat_template(messages, **how))


def _extends(tokenizer: Any, prompt: str, answer: str, following: str) -> bool:
    """Whether the next prompt begins with the tokens of this one and of its answer."""
    before, after = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt + answer, following))
    return bool(after[: len(before)] == before)


def check_outcomes(rollouts: Sequence[CollectedRollout]) -> Check:
    name = "rollouts"
    failed, lost = sum(each.is_failed for each in rollouts), sum(each.is_lost for each in rollouts)
    if rollouts and failed + lost == len(rollouts):
        return Check(name, "error", f"all {len(rollouts)} failed: run the agent with Trainer.dev to see why")
    if failed + lost > len(rollouts) / 2:
        return Check(name, "warning", f"{failed + lost} of {len(rollouts)} failed: see run.log in the run folder")
    return Check(name, "passed", f"{len(rollouts) - failed - lost} of {len(rollouts)} succeeded")


def check_tokens(rollouts: Sequence[CollectedRollout]) -> Check:
    name = "token ids"
    running = [each for each in rollouts if not each.is_lost]
    calls, without = sum(each.num_calls for each in running), sum(each.num_untokenised for each in running)
    if running and not calls:
        return Check(
            name,
            "error",
            "no rollout called the model through the gateway: the agent must use the endpoint and the model name of "
            "the LLM resource it is given, not its own address",
        )
    if calls and without == calls:
        return Check(
            name,
            "error",
            "no call has token ids with log-probabilities: check whether another proxy in between drops them",
        )
    if without:
        told = f"{without} of {calls} calls have no token ids, or are for a second prompt in the same request"
        return Check(name, "warning", f"{told}: they are excluded from training")
    return Check(name, "passed", f"{calls} calls have token ids and log-probabilities")


def check_temperature(rollouts: Sequence[CollectedRollout]) -> Check:
    name = "temperature"
    greedy = sum(each.temperature == 0 for each in rollouts)
    if rollouts and greedy == len(rollouts):
        return Check(
            name,
            "error",
            "the agent sets temperature 0, so all rollouts of a group are the same: do not set the temperature, or "
            "use llm.sampling_parameters",
        )
    if greedy:
        return Check(
            name,
            "warning",
            f"{greedy} of {len(rollouts)} rollouts were sampled at temperature 0, so nothing can be learned from them",
        )
    return Check(name, "passed", "calls are sampled")


def check_answers(rollouts: Sequence[CollectedRollout]) -> Check:
    """Rollouts of one task that sample are not the same, token by token, in every group."""
    name = "answers"
    groups = _groups([each for each in rollouts if any(sample.num_trained for sample in each.samples)])
    distinct = [len(set(map(_sampled, members))) for members in groups.values() if len(members) > 1]
    if distinct and max(distinct) == 1:
        return Check(
            name,
            "warning",
            "all rollouts of a group sampled exactly the same tokens, although the temperature is above 0: the agent "
            "probably sends a seed with its calls, or its answers come from a cache. Remove the seed (or use a "
            "different one in every rollout) and turn the cache off; if there is neither, the model is too certain of "
            "its answer: use harder tasks or a higher temperature",
        )
    return Check(name, "passed", f"answers differ in {sum(each > 1 for each in distinct)} of {len(distinct)} groups")


def _sampled(rollout: CollectedRollout) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(compress(sample.token_ids, sample.loss_mask)) for sample in rollout.samples)


def check_agreement(nats: float | None, *, corrects: bool = False) -> Check:
    name = "log-probabilities"
    if nats is None:
        return Check(name, "warning", "there are no sampled tokens to compare sampler and trainer on")
    if nats <= AGREES_NATS:
        return Check(name, "passed", f"sampler and trainer agree within {nats:.2g} nats per token")
    if corrects:
        told = f"sampler and trainer differ by {nats:.2g} nats per token, which importance_correction compensates"
        return Check(name, "passed" if nats <= DISAGREES_NATS else "warning", told)
    way_out = (
        "if a top_p below 1 or a top_k is set, remove it; otherwise set algorithm.importance_correction=True or "
        "actor_rollout_ref.model.precision=fp32"
    )
    level: Level = "warning" if nats <= DISAGREES_NATS else "error"
    return Check(name, level, f"sampler and trainer differ by {nats:.2g} nats per token: {way_out}")


def check_rewards(rollouts: Sequence[CollectedRollout]) -> Check:
    name = "rewards"
    running = [each for each in rollouts if not each.is_lost and not each.is_failed]
    without = sum(each.reward is None for each in running)
    if running and without == len(running):
        return Check(name, "error", "no rollout has a reward: return a number from the agent, or call emit_reward")
    if without:
        return Check(name, "warning", f"{without} of {len(running)} rollouts have no reward and are excluded")
    return Check(name, "passed", f"{len(running)} rollouts have a reward")


def check_spread(rollouts: Sequence[CollectedRollout], *, compares_batch: bool = False, spell: Spelling = str) -> Check:
    """Of final rewards, and of those of calls. Where no group has two members, the batch is compared."""
    name = "spread"
    groups = _groups([each for each in rollouts if each.counts])
    if compares_batch or all(len(members) == 1 for members in groups.values()):
        groups = {"": [each for members in groups.values() for each in members]} if groups else {}
        whole, more = "the batch", spell("data.train_batch_size")
    else:
        whole, more = "a group", spell("actor_rollout_ref.rollout.n")
    flat = sum(len({(each.reward, each.turn_rewards) for each in members}) < 2 for members in groups.values())
    if groups and flat == len(groups):
        values = sorted({each.reward for each in rollouts if each.counts and each.reward is not None})
        return Check(
            name,
            "warning",
            f"all rollouts of {whole} have the same reward (seen: {', '.join(f'{v:g}' for v in values[:4])}), so there "
            f"is nothing to learn from yet: {advice_for_flat(values[:1] + values[-1:], more=more)}",
        )
    if whole == "the batch":
        return Check(name, "passed", "the rewards of the batch differ")
    return Check(name, "passed", f"{len(groups) - flat} of {len(groups)} groups have different rewards")


def advice_for_flat(values: Sequence[float], *, more: str) -> str:
    """What to do where rewards do not differ within groups, by the least and the greatest of them. A reward for half an
    answer is not advised: what is learned from it tends to end there."""
    unseen = (
        "if a correct answer earns more, the model never gave one: show an example of a correct answer in the prompt, "
        "or fine-tune the model on a few (SFT) first"
    )
    if len(set(values)) > 1:
        return f"raise {more} or the temperature, or use tasks that the model solves sometimes"
    return unseen if not values or values[0] <= 0 else f"{unseen}; if no answer can earn more, the tasks are too easy"


def _groups(rollouts: Sequence[CollectedRollout]) -> dict[str, list[CollectedRollout]]:
    groups: dict[str, list[CollectedRollout]] = {}
    for each in rollouts:
        groups.setdefault(each.group, []).append(each)
    return groups


def check_length(rollouts: Sequence[CollectedRollout], *, spell: Spelling = str) -> Check:
    name = "length"
    cut = sum(each.truncated for each in rollouts)
    if rollouts and cut > len(rollouts) / 2:
        return Check(
            name,
            "warning",
            f"{cut} of {len(rollouts)} rollouts were cut off: raise {spell('data.max_response_length')}, or max_tokens "
            "of the agent",
        )
    return Check(name, "passed", f"{cut} of {len(rollouts)} rollouts were cut off")
