"""What a critic reads of a rollout."""

import itertools
from typing import Any

import pytest

from sharpen.algorithm.apo.shown_rollouts import clip, show_rollouts

USER = {"role": "user", "content": "What is 2 + 3?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "5"}
ANSWER = {"role": "assistant", "content": "It is 5."}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


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


def test_calls_of_tools_can_be_read() -> None:
    given = result()
    given["messages"] = [{"messages": [USER, CALLING, RESULT, ANSWER], "tools": TOOLS}]
    assert show_rollouts([given]).splitlines()[1:] == [
        "(the model can call: add)",
        "[user] What is 2 + 3?",
        '[assistant] -> calls add({"a": 2, "b": 3})',
        "[tool] 5",
        "[assistant] It is 5.",
    ]


def test_a_conversation_that_a_later_call_repeats_is_shown_once() -> None:
    given = result()
    given["messages"] = [
        {"messages": [USER, CALLING], "tools": TOOLS},
        {"messages": [USER, CALLING, RESULT, ANSWER], "tools": TOOLS},
    ]
    assert show_rollouts([given]).count("What is 2 + 3?") == 1


def test_other_conversations_of_a_rollout_are_told_apart() -> None:
    given = result()
    given["messages"] = [{"messages": [USER, ANSWER], "tools": None}, {"messages": [ANSWER, USER], "tools": None}]
    shown = show_rollouts([given])
    assert shown.index("--- Conversation 1 ---") < shown.index("--- Conversation 2 ---")


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ({"role": "assistant", "content": ""}, "[assistant] (nothing)"),
        ({"role": "assistant", "content": None, "refusal": "no"}, "[assistant] (refuses: no)"),
        ({"role": "assistant", "content": "", "reasoning_content": "hm"}, "[assistant] (thinks, and says nothing: hm)"),
        ({"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url"}]}, "see\n(image_url)"),
        ({"role": "user", "content": {"a": "ü"}}, '[user] {"a": "ü"}'),
        ({"role": "assistant", "tool_calls": [{"custom": {"name": "sql", "input": "select 1"}}]}, "sql(select 1)"),
    ],
)
def test_messages_of_every_kind_can_be_read(message: dict[str, Any], line: str) -> None:
    assert show_rollouts([result(message)]).endswith(line)


def test_a_plain_list_of_messages_is_one_conversation() -> None:
    given = {"status": "succeeded", "final_reward": 1.0, "messages": [USER, ANSWER]}
    assert show_rollouts([given]).endswith("[user] What is 2 + 3?\n[assistant] It is 5.")


# -- bounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "most"), list(itertools.product([0, 1, 50, 100, 101, 5000], [0, 10, 60, 100])))
def test_a_clipped_text_keeps_to_its_bound_and_says_what_is_left_out(length: int, most: int) -> None:
    text = "".join(chr(ord("a") + number % 26) for number in range(length))
    found = clip(text, most)
    assert len(found) <= most
    if "left out" in found:
        start, _, rest = found.partition("\n[... ")
        count, _, end = rest.partition(" characters left out ...]\n")
        assert text.startswith(start)
        assert text.endswith(end)
        assert len(start) + len(end) + int(count.replace(",", "")) == length
    else:
        assert text.startswith(found)


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
