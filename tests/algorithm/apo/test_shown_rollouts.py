"""What a critic reads of a rollout."""

from typing import Any

from tests.algorithm.internals import show_rollouts

USER = {"role": "user", "content": "What is 2 + 3?"}
ANSWER = {"role": "assistant", "content": "It is 5."}


def result(*messages: Any, reward: float | None = 1.0, **more: Any) -> dict[str, Any]:
    conversations = [{"messages": list(messages), "tools": None}] if messages else []
    return {"status": "succeeded", "final_reward": reward, "messages": conversations, **more}


def test_a_rollout_is_shown_with_reward_status_and_conversation() -> None:
    assert show_rollouts([result(USER, ANSWER, reward=0.5)]) == (
        "=== Run 1 of 1: reward 0.5, succeeded ===\n[user] What is 2 + 3?\n[assistant] It is 5."
    )


def test_the_worst_comes_first() -> None:
    shown = show_rollouts([result(USER, reward=reward) for reward in (0.5, float("nan"), 1.0, None, -2.0)])
    heads = [line for line in shown.splitlines() if line.startswith("===")]
    assert [head.partition(": ")[2].partition(",")[0] for head in heads] == [
        "reward nan",
        "no reward",
        "reward -2",
        "reward 0.5",
        "reward 1",
    ]


def test_an_error_is_shown_and_kept_short() -> None:
    shown = show_rollouts([result(reward=0.0, status="failed", error="ValueError: no number " + "x" * 5000)])
    assert shown.startswith("=== Run 1 of 1: reward 0, failed ===\nError: ValueError: no number x")
    assert shown.endswith("\n(no conversation was recorded)")
    assert len(shown) < 800


# -- bounds ------------------------------------------------------------------------------------------


def test_a_huge_message_leaves_the_others_in_sight() -> None:
    huge = {"role": "tool", "content": "y" * 1_000_000}
    shown = show_rollouts([result(USER, huge, ANSWER)])
    assert len(shown) <= 6_200
    assert "[user] What is 2 + 3?" in shown
    assert "[assistant] It is 5." in shown
    assert "characters left out" in shown


def test_many_huge_rollouts_keep_to_the_bound_in_all() -> None:
    talk = [{"role": "user", "content": f"{number}: " + "z" * 2000} for number in range(500)]
    shown = show_rollouts([result(*talk) for _ in range(20)])
    assert len(shown) <= 24_000
    assert shown.count("=== Run ") == 20
    assert len(show_rollouts([result(USER)] * 2000)) <= 24_000


def test_a_long_rollout_takes_the_room_that_short_ones_leave() -> None:
    long = {"role": "user", "content": "z" * 900}
    shown = show_rollouts([result(long), result(ANSWER), result(ANSWER)], most_in_all=1_200, most_each=2_000)
    assert shown.count("z") > 700
    assert shown.count("It is 5.") == 2
