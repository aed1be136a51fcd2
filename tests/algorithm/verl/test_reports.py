"""What is told of steps and validations."""

import pytest

from sharpen.errors import ConfigError
from sharpen.stats import mean_interval, wilson_interval
from tests.algorithm.internals import CollectedRollout, describe_metrics, group_labels, staleness, validation_metrics
from tests.errors import raises
from tests.llm.internals import Turn, merge_turns


def rollout(reward: float | None, group: str = "g", *, is_lost: bool = False, version: str = "3") -> CollectedRollout:
    samples = merge_turns([Turn([1], [2, 3], [-1.0, -1.0], None, [version, version])])
    return CollectedRollout(rollout_id="r", group=group, reward=reward, is_lost=is_lost, samples=samples)


def test_what_was_lost_says_nothing_about_the_policy() -> None:
    found = validation_metrics([rollout(1.0, "a"), rollout(0.0, "b"), rollout(None, "c", is_lost=True)])
    assert (found["rollouts"], found["lost"], found["rewarded"], found["reward_mean"]) == (3, 1, 2, 0.5)
    assert (found["reward_low"], found["reward_high"]) == wilson_interval(1, 2)


def test_several_answers_to_a_task_are_one_observation() -> None:
    found = validation_metrics([rollout(float(n % 2), group) for group in "abc" for n in range(4)])
    assert found["reward_mean"] == 0.5
    assert (found["reward_low"], found["reward_high"]) == mean_interval([0.5, 0.5, 0.5])


def test_groups_of_tasks_have_means_of_their_own() -> None:
    tasks = [{"kind": "plain"}, {"kind": "plain"}, {"kind": "story"}, {"kind": "failed"}, {}]
    labels = group_labels(tasks, "kind")
    assert labels == ["plain", "plain", "story", "kind_failed", None]  # `failed` is a metric already
    found = validation_metrics([rollout(reward, str(n)) for n, reward in enumerate([1.0, 0.0, 1.0, 0.0, 1.0])], labels)
    assert (found["plain"], found["story"], found["kind_failed"], found["reward_mean"]) == (0.5, 1.0, 0.0, 0.6)
    assert (found["plain_low"], found["plain_high"]) == wilson_interval(1, 2)
    assert found["failed"] == 0
    assert group_labels(tasks, None) == []
    with raises(ConfigError, "colour"):
        group_labels(tasks, "colour")


@pytest.mark.parametrize(
    "kinds", [["reward", "b"], ["a", "a_low"], ["a_low", "a"], ["a", "a_low", "kind_a"], ["a_high", "a"]]
)
def test_no_group_has_the_name_of_another_metric(kinds: list[str]) -> None:
    labels = group_labels([{"kind": kind} for kind in kinds], "kind")
    rollouts = [rollout(reward, str(n)) for n, reward in enumerate([1.0, 0.0, 0.0][: len(kinds)])]
    found, alone = validation_metrics(rollouts, labels), validation_metrics(rollouts)
    assert {name: found[name] for name in alone} == alone
    assert len(found) == len(alone) + 3 * len(kinds)
    assert labels == group_labels([{"kind": kind} for kind in kinds * 2], "kind")[: len(kinds)]


def test_without_rewards_there_is_no_mean() -> None:
    assert "reward_mean" not in validation_metrics([rollout(None)])
    assert describe_metrics({}) == "reward -"
    assert describe_metrics({"reward_mean": 0.25, "kl": 0.5}) == "reward 0.250, KL 0.5"


def test_staleness_is_a_mean_over_tokens_of_known_versions() -> None:
    assert staleness([rollout(1.0, version="3"), rollout(1.0, version="1")], 3) == pytest.approx(1.0)
    assert staleness([rollout(1.0, version="default")], 3) == 0.0
