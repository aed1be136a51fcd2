"""What is learned from beside what was sampled."""

from tests.algorithm.internals import CollectedRollout, Selection
from tests.llm.internals import Turn, merge_turns


def rollout(name: str, length: int, reward: float | None, *, is_lost: bool = False) -> CollectedRollout:
    samples = merge_turns([Turn([1], [2] * length, [-1.0] * length)])
    return CollectedRollout(
        rollout_id=name, group="g", reward=reward, response_lengths=(length,), is_lost=is_lost, samples=samples
    )


def test_a_lost_rollout_is_not_compared_and_a_flat_group_is_not_trained() -> None:
    found = Selection()
    found.add([rollout("a", 10, 1.0), rollout("b", 20, 0.0), rollout("c", 90, None, is_lost=True)], {"a"})
    assert found.metrics() == {
        "sampled/length_mean": 40.0,
        "sampled/reward_mean": 0.5,
        "compared/length_mean": 15.0,
        "compared/reward_mean": 0.5,
        "trained/length_mean": 10.0,
        "trained/reward_mean": 1.0,
    }
    assert found.describe().startswith("sampled: 3 rollouts, mean length 40 ±")


def test_a_rollout_without_anything_to_train_is_not_compared() -> None:
    found = Selection()
    found.add([CollectedRollout(rollout_id="a", group="g", reward=1.0, response_lengths=(50,))], set())
    assert "compared/length_mean" not in found.metrics()


def test_a_resumed_run_counts_on() -> None:
    first = Selection()
    first.add([rollout("a", 10, 1.0)], {"a"})
    second = Selection(first.state())
    second.add([rollout("b", 30, 0.0)], {"b"})
    assert second.metrics()["trained/length_mean"] == 20.0
    assert second.metrics()["trained/reward_mean"] == 0.5


def test_nothing_sampled_is_no_number() -> None:
    assert Selection().metrics() == {}
    assert Selection().describe().startswith("sampled: 0 rollouts, mean length -, reward -;")
