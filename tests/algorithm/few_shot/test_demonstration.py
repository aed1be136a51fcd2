"""What is read from a rollout: the values as they stood in the recorded prompt, and the answer to it."""

from typing import Any

import pytest

from sharpen import PromptTemplate
from tests.algorithm.internals import UnfitRolloutError, read_demonstration, values_in
from tests.errors import raises

PROMPT = PromptTemplate("Add.\n\nQuestion: {question}\nAnswer:")


def conversation(*messages: tuple[str, Any]) -> Any:
    return {"messages": [{"role": role, "content": content} for role, content in messages], "tools": None}


def read(*conversations: Any, prompt: PromptTemplate = PROMPT, task: Any = None) -> Any:
    return read_demonstration("ro-1", 1.0, prompt, task, conversations)


# -- values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "text", "expected"),
    [
        ("Q: {question}\nA:", "Q: 2+2?\nA:", {"question": "2+2?"}),
        ("Q: {question}\nA:", "Q: one\n\ntwo\nA:", {"question": "one\n\ntwo"}),
        ("Q: {question}\nA:", "Q: \nA:\nA:", {"question": "\nA:"}),
        ("{a} and {b}", "x and y", {"a": "x", "b": "y"}),
        ("{a} and {b}", "x and y and z", {"a": "x", "b": "y and z"}),
        ("{a}, {a}", "x, x", {"a": "x"}),
        ("{a}, {a}", "x, y", None),
        ("{a}{b}", "xy", None),
        ('{"k": {a}}', '{"k": 1}', {"a": "1"}),
        (r"Solve \textbf{q}.", r"Solve \textbf{2+2}.", {"q": "2+2"}),
        ("Q: {question}", "R: 2+2?", None),
        ("no fields", "no fields", {}),
        ("no fields", "others", None),
    ],
)
def test_values_are_those_with_which_the_template_gives_the_text(
    template: str, text: str, expected: dict[str, str] | None
) -> None:
    assert values_in(text, PromptTemplate(template)) == expected


def test_values_of_jinja_are_read_where_its_fields_are_plain() -> None:
    assert values_in("Q: x!", PromptTemplate("Q: {{ q }}!", "jinja")) == {"q": "x"}
    assert values_in("Q: X!", PromptTemplate("Q: {{ q | upper }}!", "jinja"), likely={"q": "x"}) == {"q": "x"}


def test_reading_takes_no_longer_for_a_text_that_is_made_to_be_hard() -> None:
    template = PromptTemplate("".join(f"{{f{number}}} a " for number in range(20)) + "end")
    assert values_in("a " * 40_000, template) is None


# -- demonstrations ----------------------------------------------------------------------------------


def test_the_prompt_is_found_in_any_message_and_the_answer_is_the_one_to_it() -> None:
    found = read(
        conversation(("user", "other"), ("assistant", "before")),
        conversation(("system", "Add.\n\nQuestion: 2+2?\nAnswer:"), ("user", "go"), ("assistant", " four\n")),
        conversation(("user", "judge: four"), ("assistant", "good")),
    )
    assert (found.values, found.answer, found.rollout_id) == ({"question": "2+2?"}, "four", "ro-1")


def test_the_last_of_several_calls_with_the_prompt_counts() -> None:
    first = ("user", "Add.\n\nQuestion: 2+2?\nAnswer:")
    found = read(
        conversation(first, ("assistant", "thinking")),
        conversation(first, ("assistant", "thinking"), ("user", "well?"), ("assistant", "four")),
    )
    assert (found.values, found.answer) == ({"question": "2+2?"}, "four")


def test_values_come_from_the_task_where_the_prompt_is_not_recognised() -> None:
    found = read(conversation(("user", "something else"), ("assistant", "4")), task={"question": 22, "more": 1})
    assert found.values == {"question": "22"}


def test_the_only_value_is_what_the_user_said_where_the_task_does_not_hold_it() -> None:
    found = read(conversation(("system", "s"), ("user", "something else"), ("assistant", "4")), task="t")
    assert found.values == {"question": "something else"}


def test_a_system_prompt_without_values_takes_the_user_for_the_input() -> None:
    prompt = PromptTemplate("Add.")
    found = read(conversation(("system", "Add."), ("user", "2+2?"), ("assistant", "4")), prompt=prompt)
    assert (found.values, found.input) == ({}, "2+2?")
    alone = read(conversation(("user", "Add."), ("assistant", "4")), prompt=prompt, task={"a": 2})
    assert alone.input == '{"a":2}'


def test_what_an_agent_adds_to_a_prompt_without_values_is_the_input() -> None:
    found = read(conversation(("user", "Add.\n\n2+2?"), ("assistant", "4")), prompt=PromptTemplate("Add.\n"))
    assert found.input == "2+2?"


def test_a_message_that_holds_the_prompt_and_more_does_not_stand_for_a_value() -> None:
    with pytest.raises(UnfitRolloutError):
        read(conversation(("user", "Hello! Add.\n\nQuestion: 2+2?\nAnswer: Please!"), ("assistant", "4")), task="t")


def test_only_values_of_the_task_are_read_from_a_prompt_that_shows_others() -> None:
    prompt = PromptTemplate("Q: x\n{other}\n\nQ: {question}")
    said = conversation(("user", "Q: x\n{other}\n\nQ: y"), ("assistant", "4"))
    assert read_demonstration("ro-1", 1.0, prompt, None, [said], names=["question"]).values == {"question": "y"}


def test_an_answer_in_parts_is_read_as_text() -> None:
    parts = [{"type": "text", "text": "fo"}, {"type": "text", "text": "ur"}]
    assert read(conversation(("user", "x"), ("assistant", parts)), task={"question": "x"}).answer == "four"


@pytest.mark.parametrize(
    "conversations",
    [
        [],
        [conversation(("user", "x"))],
        [conversation(("user", "x"), ("assistant", None))],
        [conversation(("user", "x"), ("assistant", " \n"))],
        [conversation(("user", "x"), ("assistant", "y" * 30_000))],
    ],
    ids=["no-call", "no-answer", "no-text", "blank", "too-long"],
)
def test_a_rollout_that_shows_nothing_is_unfit(conversations: list[Any]) -> None:
    with pytest.raises(UnfitRolloutError):
        read(*conversations, task={"question": "x"})


def test_a_prompt_with_several_values_that_nobody_knows_is_told() -> None:
    with raises(UnfitRolloutError, "a", "b"):
        read(conversation(("user", "x"), ("assistant", "y")), prompt=PromptTemplate("{a} {b}!"))
