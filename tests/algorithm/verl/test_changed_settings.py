"""Settings that differ from those of the run that is gone on with."""

from typing import Any

from sharpen.errors import ConfigError
from tests.algorithm.internals import changes, read_config, settings_of
from tests.errors import raises


def settings(num_tasks: int = 4, **given: Any) -> dict[str, Any]:
    config = {name.replace("__", "."): value for name, value in given.items()}
    return settings_of(read_config(config), num_tasks=num_tasks, num_val_tasks=0)


def test_what_differs_is_told_with_both_values() -> None:
    (change,) = changes(settings(), settings(actor_rollout_ref__actor__optim__lr=1e-5))
    assert str(change) == "actor_rollout_ref.actor.optim.lr was 1e-06 and is 1e-05"
    assert change.is_of_rollouts
    assert changes(settings(), settings()) == []
    assert changes({}, settings()) == []  # a checkpoint that does not say


def test_where_things_lie_is_not_told_and_how_often_to_look_changes_no_rollout() -> None:
    assert changes(settings(), settings(trainer__default_local_dir="elsewhere", trainer__resume_mode="disable")) == []
    (change,) = changes(settings(), settings(trainer__test_freq=5))
    assert not change.is_of_rollouts
    (change,) = changes(settings(), settings(num_tasks=5))
    assert change.is_of_rollouts


def test_what_the_weights_depend_on_is_refused() -> None:
    before = settings(actor_rollout_ref__model__lora_rank=8)
    with raises(ConfigError, "model.lora_rank", 8, 16):
        changes(before, settings(actor_rollout_ref__model__lora_rank=16))
    with raises(ConfigError, "lora_alpha"):
        changes(before, settings(actor_rollout_ref__model__lora_rank=8, actor_rollout_ref__model__lora_alpha=32))
    with raises(ConfigError, "grpo", "gae"):
        changes(settings(), settings(algorithm__adv_estimator="gae"))
