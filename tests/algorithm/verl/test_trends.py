"""Runs whose numbers say that something is wrong are warned about."""

from typing import Any

from sharpen import GRPO, VERL
from tests.algorithm.internals import CollectedRollout, final_warning, limit_warning, step_warnings

GRPO_NAMES = GRPO("none").spelled


def run_of(count: int, **metrics: Any) -> list[dict[str, float]]:
    """Steps whose metrics go from one value to another in equal parts, or stay."""
    ends = {name: value if isinstance(value, tuple) else (value, value) for name, value in metrics.items()}
    return [
        {"step": n + 1, **{name: first + (last - first) * n / (count - 1) for name, (first, last) in ends.items()}}
        for n in range(count)
    ]


def test_an_update_of_more_than_half_a_nat_is_warned_about() -> None:
    assert step_warnings(run_of(2, update_nats=0.4)) == {}
    found = step_warnings(run_of(2, update_nats=(0.1, 0.6)), spell=GRPO_NAMES)
    assert found.keys() == {"update"}
    assert "learning_rate=" in found["update"]
    assert (
        "actor_rollout_ref.actor.optim.lr" in step_warnings(run_of(2, update_nats=0.6), spell=VERL().spelled)["update"]
    )


def test_what_runs_away_while_the_reward_rises_is_warned_about() -> None:
    rising = {"reward_mean": (0.1, 0.6)}
    healthy: dict[str, Any] = {
        "response_length_mean": (100, 120),
        "entropy": (0.9, 0.2),
        "rollouts": 10,
        "truncated": 1,
    }
    assert step_warnings(run_of(8, **rising, **healthy)) == {}
    for kind, wrong in (
        ("length", {"response_length_mean": (50, 300)}),
        ("truncated", {"truncated": (0, 6)}),
        ("entropy", {"entropy": (0.3, 4.0)}),
    ):
        assert step_warnings(run_of(8, **rising, **(healthy | wrong))).keys() == {kind}
        assert step_warnings(run_of(4, **rising, **(healthy | wrong))) == {}  # too early to tell
        assert step_warnings(run_of(8, **(healthy | wrong), reward_mean=(0.6, 0.1))) == {}


def rollout(length: int, *, is_cut: bool = False) -> CollectedRollout:
    return CollectedRollout(
        rollout_id="r", group="g", reward=1.0, truncated=is_cut, response_lengths=(length,), num_calls=1
    )


def test_rollouts_that_run_to_the_limit_are_counted_with_what_to_set() -> None:
    short = [rollout(40), rollout(60)] * 10
    assert limit_warning(short, limit=512) is None
    few = limit_warning([*short, rollout(512, is_cut=True)], limit=512, spell=GRPO_NAMES)
    assert few is not None
    for word in ("1 of 21", "max_response_length= (512)", "60", "lower"):
        assert word in few
    most = limit_warning([rollout(512, is_cut=True)] * 3, limit=512, spell=VERL().spelled)
    assert most is not None
    assert "data.max_response_length (512)" in most
    by_the_agent = limit_warning([*short, rollout(100, is_cut=True)], limit=512)
    assert by_the_agent is not None
    assert "max_tokens (100)" in by_the_agent


def test_a_run_in_which_no_weight_changed_ends_with_the_reason() -> None:
    never = final_warning(run_of(3, updates=0, reward_min=0, reward_max=0), spell=GRPO_NAMES)
    assert never is not None
    assert "SFT" in never
    assert "example" in never
    mixed = final_warning(run_of(3, updates=0, reward_min=0, reward_max=1), spell=GRPO_NAMES)
    assert mixed is not None
    assert "group_size=" in mixed
    unrewarded = final_warning(run_of(3, updates=0))
    assert unrewarded is not None
    assert "run.log" in unrewarded
    assert final_warning(run_of(3, updates=(0, 1), reward_min=0, reward_max=1)) is None
    assert final_warning([]) is None
