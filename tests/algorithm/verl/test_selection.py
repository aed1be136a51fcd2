"""What is trained beside what was sampled."""

from sharpen.algorithm.verl.collected import CollectedRollout
from sharpen.algorithm.verl.selection import Selection


def rollout(length: int, reward: float | None, **more: bool) -> CollectedRollout:
    return CollectedRollout(
        rollout_id="r", group="g", reward=reward, response_lengths=(length,), is_lost=more.get("is_lost", False)
    )


def test_a_lost_rollout_was_sampled_and_not_trained() -> None:
    found = Selection()
    found.add([rollout(10, 1.0), rollout(20, 0.0), rollout(90, None, is_lost=True)])
    assert found.metrics() == {
        "sampled/length_mean": 40.0,
        "sampled/reward_mean": 0.5,
        "trained/length_mean": 15.0,
        "trained/reward_mean": 0.5,
    }
    assert found.in_words().startswith("sampled: 3 rollouts, mean length 40 ±")


def test_a_resumed_run_counts_on() -> None:
    first = Selection()
    first.add([rollout(10, 1.0)])
    second = Selection(first.state())
    second.add([rollout(30, 0.0)])
    assert second.metrics()["trained/length_mean"] == 20.0
    assert second.metrics()["trained/reward_mean"] == 0.5


def test_nothing_sampled_is_no_number() -> None:
    assert Selection().metrics() == {}
    assert Selection().in_words() == (
        "sampled: 0 rollouts, mean length -, reward -; trained: 0 rollouts, mean length -, reward -"
    )
