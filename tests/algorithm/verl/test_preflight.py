"""What is looked at before anything is learned."""

from typing import Any

import pytest

from sharpen.llm import TrainingError
from tests.algorithm.internals import (
    Check,
    CollectedRollout,
    check_agreement,
    check_answers,
    check_length,
    check_outcomes,
    check_rewards,
    check_spread,
    check_temperature,
    check_template,
    check_tokens,
    conclude,
    run_checks,
)
from tests.llm.tiny_models import tiny_tokenizer

from .made_rollouts import call, collected

FORGETFUL = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' and not loop.last %}{{ '...' }}{% else %}{{ message['content'] }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def rollout(number: int = 0, reward: float | None = 1.0, **more: Any) -> CollectedRollout:
    given: dict[str, Any] = {"num_calls": 1, "temperature": 1.0, **more}
    return CollectedRollout(rollout_id=f"ro-{number}", group=given.pop("group", "g"), reward=reward, **given)


def test_a_template_that_keeps_earlier_turns_passes() -> None:
    assert check_template(tiny_tokenizer()).level == "passed"


def test_a_template_that_is_not_prefix_preserving_is_caught() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = FORGETFUL
    found = check_template(tokenizer)
    assert found.level == "warning"
    assert "does not extend prefixes" in found.message
    with pytest.raises(TrainingError):
        conclude([found], is_strict=True)


def test_a_template_is_checked_with_the_arguments_that_it_is_given() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = FORGETFUL.replace("and not loop.last", "and not loop.last and not keeps_all")
    assert check_template(tokenizer).level == "warning"
    assert check_template(tokenizer, {"keeps_all": True}).level == "passed"
    rollouts = [rollout(reward=0.0), rollout(reward=1.0)]
    checks = run_checks(tokenizer, rollouts, nats=1e-6, template_kwargs={"keeps_all": True})
    assert {check.level for check in checks} == {"passed"}


def test_a_template_that_refuses_a_conversation_is_an_error() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('one turn only') }}"
    found = check_template(tokenizer)
    assert found.level == "error"
    assert "one turn only" in found.message


def test_agents_that_never_call_the_model_are_caught() -> None:
    found = check_tokens([rollout(num_calls=0)])
    assert found.level == "error"
    assert "endpoint" in found.message


def test_calls_without_token_ids_are_caught() -> None:
    assert check_tokens([rollout(num_untokenised=1)]).level == "error"
    assert check_tokens([rollout(), rollout(num_untokenised=1)]).level == "warning"
    assert check_tokens([rollout()]).level == "passed"


def test_greedy_sampling_is_caught() -> None:
    assert check_temperature([rollout(temperature=0.0)]).level == "error"
    assert check_temperature([rollout(temperature=0.0), rollout()]).level == "warning"
    assert check_temperature([rollout(temperature=None)]).level == "passed"


@pytest.mark.parametrize(("nats", "level"), [(1e-5, "passed"), (0.2, "warning"), (3.0, "error"), (None, "warning")])
def test_sampler_and_trainer_that_disagree_are_caught(nats: float | None, level: str) -> None:
    assert check_agreement(nats).level == level


def test_missing_rewards_are_caught() -> None:
    assert check_rewards([rollout(reward=None)]).level == "error"
    assert check_rewards([rollout(reward=None), rollout()]).level == "warning"
    assert check_rewards([rollout()]).level == "passed"
    assert check_rewards([rollout(reward=None, is_lost=True), rollout()]).level == "passed"


def test_groups_without_spread_are_told() -> None:
    flat = [rollout(reward=0.0), rollout(reward=0.0), rollout(reward=1.0, group="h"), rollout(reward=1.0, group="h")]
    assert check_spread(flat).level == "warning"
    assert "SFT" in check_spread([rollout(reward=0.0), rollout(reward=0.0)]).message  # what is right was never seen
    assert check_spread([*flat, rollout(reward=0.5)]).level == "passed"


def test_groups_of_one_are_compared_over_the_batch() -> None:
    alone = [rollout(reward=1.0, group="a"), rollout(reward=0.0, group="b")]
    assert check_spread(alone).level == "passed"
    flat = check_spread([rollout(reward=1.0, group="a"), rollout(reward=1.0, group="b")])
    assert flat.level == "warning"
    assert "the batch" in flat.message


def test_where_the_batch_is_compared_flat_groups_do_not_matter() -> None:
    flat = [rollout(reward=0.0), rollout(reward=0.0), rollout(reward=1.0, group="h"), rollout(reward=1.0, group="h")]
    assert check_spread(flat, compares_batch=True).level == "passed"


def test_rewards_of_calls_are_a_spread_too() -> None:
    final = call([1, 2, 3], [2], reward=1.0)
    rollouts = [
        collected(f"ro-t0-{i}", 1.0, call([1], [2], reward=earned), final) for i, earned in enumerate((0.3, 0.9))
    ]
    assert check_spread(rollouts).level == "passed"
    assert check_spread([rollouts[0], rollouts[0]]).level == "warning"


def test_rollouts_that_all_sampled_the_same_are_told() -> None:
    same = [collected(f"ro-t{group}-{i}", 1.0, call([1], [2 + group])) for group in range(2) for i in range(2)]
    found = check_answers(same)
    assert found.level == "warning"
    assert "seed" in found.message
    assert check_answers([*same, collected("ro-t1-2", 1.0, call([1], [9]))]).level == "passed"
    assert check_answers(same[::2]).level == "passed"  # groups of one
    assert check_answers([rollout(), rollout()]).level == "passed"  # nothing was sampled


def test_failures_and_cut_answers_are_told() -> None:
    assert check_outcomes([rollout(is_failed=True)]).level == "error"
    assert check_outcomes([rollout(is_failed=True)] * 2 + [rollout()]).level == "warning"
    assert check_outcomes([rollout()]).level == "passed"
    assert check_length([rollout(truncated=True)]).level == "warning"
    assert check_length([rollout()]).level == "passed"


def test_an_error_ends_the_run_and_names_every_failed_check() -> None:
    checks = [Check("a", "error", "one"), Check("b", "warning", "two"), Check("c", "error", "three")]
    with pytest.raises(TrainingError):
        conclude(checks, is_strict=False)
    conclude(checks[1:2], is_strict=False)


def test_a_healthy_beginning_passes_all_checks() -> None:
    rollouts = [rollout(reward=0.0), rollout(reward=1.0)]
    assert {check.level for check in run_checks(tiny_tokenizer(), rollouts, nats=1e-6)} == {"passed"}
