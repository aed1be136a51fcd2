"""What a reflecting model is shown of a rollout."""

from typing import Any

from sharpen import Span
from sharpen.adapter import OpenAIMessages
from tests.algorithm.internals import Evaluation, Item, record_of, record_without_trace


def evaluation(**more: Any) -> Evaluation:
    return Evaluation("ro-1", Item("train", 0, {"question": "2 + 2"}), more.pop("status", "succeeded"), 0.25, **more)


def talk(*messages: dict[str, Any]) -> OpenAIMessages:
    return {"messages": list(messages), "tools": None}


def span(attributes: dict[str, Any]) -> Span:
    return Span.from_attributes(attributes=attributes, rollout_id="ro-1", attempt_id="at-1", name="note")


USER = {"role": "user", "content": "2 + 2?"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 2}'}}]}
RESULT = {"role": "tool", "content": "4"}


def test_a_record_has_the_task_the_conversation_and_the_reward() -> None:
    record = record_of(evaluation(), [], [talk(USER, CALL)])
    assert record["Inputs"] == '{\n "question": "2 + 2"\n}'
    assert record["Conversation"] == '[user] 2 + 2?\n[assistant] -> calls add({"a": 2})'
    assert record["Feedback"] == "The reward is 0.25; higher is better."


def test_errors_notes_and_the_parts_of_a_reward_are_feedback() -> None:
    parts = {"0.name": "right", "0.value": 0.25, "1.name": "brief", "1.value": 1.0}
    notes = [
        span({"sharpen.message.body": "gave up"}),
        span({f"sharpen.reward.{name}": value for name, value in parts.items()}),
    ]
    found = record_of(evaluation(status="failed", error="ValueError: odd"), notes, [])["Feedback"]
    assert found.splitlines() == [
        "The reward is 0.25; higher is better.",
        "Its parts: right 0.25, brief 1",
        "It failed: ValueError: odd",
        "What was noted on the way:",
        "- gave up",
    ]


def test_a_conversation_that_goes_on_is_not_repeated() -> None:
    calls = [talk(USER, CALL), talk(USER, CALL, RESULT, {"role": "assistant", "content": "4"})]
    text = record_of(evaluation(), [], calls)["Conversation"]
    assert text.count("2 + 2?") == 1
    assert text.splitlines()[-1] == "[assistant] 4"


def test_what_is_not_there_is_said() -> None:
    assert "no conversation" in record_of(evaluation(), [], [])["Conversation"]
    assert "no longer in the store" in record_without_trace(evaluation())["Conversation"]
    assert "ended without a reward" in record_of(evaluation(has_reward=False), [], [])["Feedback"]
    assert "lost to a failure of the machine" in record_of(evaluation(is_lost=True), [], [])["Feedback"]


def test_long_conversations_and_tasks_keep_to_their_bounds() -> None:
    calls = [talk(*({"role": "user", "content": f"{number}" + "z" * 9_000} for number in range(9)))]
    long = Evaluation("ro-1", Item("train", 0, "q" * 9_000), "failed", 0.0, error="e" * 9_000)
    record = record_of(long, [], calls)
    assert len(record["Inputs"]) <= 4_000
    assert len(record["Conversation"]) <= 8_000
    assert len(record["Feedback"]) <= 2_100
    assert all("characters left out" in each for each in record.values())
