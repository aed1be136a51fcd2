"""What a reflecting model is shown of a rollout."""

from typing import Any

from sharpen import Span
from sharpen.adapter.messages import OpenAIMessages
from sharpen.algorithm.gepa.feedback import clipped, conversation_text, record_of, record_without_trace
from sharpen.algorithm.prompts.evaluations import Evaluation, Item


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
    assert record["Conversation"] == '[user] 2 + 2?\n[assistant] calls add({"a": 2})'
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
    text = conversation_text([talk(USER, CALL), talk(USER, CALL, RESULT, {"role": "assistant", "content": "4"})])
    assert text.count("2 + 2?") == 1
    assert text.splitlines()[-1] == "[assistant] 4"
    other = conversation_text([talk(USER, CALL), talk({"role": "user", "content": "again"}, RESULT)])
    assert "--- another conversation ---" in other


def test_what_is_not_there_is_said() -> None:
    assert "no call of a model" in record_of(evaluation(), [], [])["Conversation"]
    assert "no longer in the store" in record_without_trace(evaluation())["Conversation"]
    assert "ended without a reward" in record_of(evaluation(has_reward=False), [], [])["Feedback"]
    assert "lost to a failure of the machine" in record_of(evaluation(is_lost=True), [], [])["Feedback"]


def test_a_long_text_loses_its_middle_and_says_how_much() -> None:
    text = clipped("a" * 50 + "b" * 50, 20)
    assert text == "a" * 10 + "\n… 80 characters left out …\n" + "b" * 10
    assert clipped("short", 20) == "short"
