"""Whether the words of a prompt stand in what an agent said to its model."""

from typing import Any

import pytest

from sharpen.types import PromptTemplate
from tests.algorithm.internals import optional_fields_filled, unfilled_fields, unused_prompts


def conversation(text: str) -> Any:
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}], "tools": None}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (PromptTemplate('Say "hello" to {name},\nplease.'), 'Say "hello" to Eva,\nplease.'),
        (PromptTemplate("Translate into French: {{ text }}", "jinja"), "Translate into  French: tea"),
        (PromptTemplate("{a} {b}"), "nothing of it, but it has no words of its own"),
    ],
)
def test_a_prompt_whose_words_were_said_is_used(template: PromptTemplate, text: str) -> None:
    assert unused_prompts({"prompt": template}, [conversation("before"), conversation(text)]) == []


def test_a_prompt_whose_words_were_never_said_is_named() -> None:
    found = unused_prompts({"other": PromptTemplate("Answer in one word: {question}")}, [conversation("What is it?")])
    assert found == ["other"]


def test_without_recorded_conversations_nobody_can_tell() -> None:
    assert unused_prompts({"prompt": PromptTemplate("Answer in one word: {question}")}, []) == []


def test_a_place_that_got_no_value_is_named() -> None:
    prompts = {"prompt": PromptTemplate("Read {txet} as {kind}."), "other": PromptTemplate("{{ x }}", "jinja")}
    assert unfilled_fields(prompts, [conversation("Read {txet} as a date.")]) == [("prompt", "txet")]
    assert unfilled_fields(prompts, [conversation("Read tea as a date.")]) == []


def test_an_example_in_json_is_not_a_place_without_a_value() -> None:
    prompt = PromptTemplate('Q: {q}\nReply as JSON: {"answer": {number}}')
    assert unfilled_fields({"prompt": prompt}, [conversation('Q: 2+2?\nReply as JSON: {"answer": {number}}')]) == []


def test_a_conversation_shows_which_optional_fields_are_filled() -> None:
    prompt = PromptTemplate(r'Solve this: \textbf{q}. Reply as {"answer": {number}}')
    said = conversation(r'Solve this: \textbf{2+2}. Reply as {"answer": {number}}')
    assert optional_fields_filled(prompt, [conversation("before"), said]) == {"q": True, "number": False}
    assert optional_fields_filled(prompt, [conversation("before")]) == {}


def test_what_the_model_answers_does_not_count_as_its_prompt() -> None:
    prompt = PromptTemplate(r"Solve this: \textbf{q}")
    said = conversation(r"Solve this: \textbf{2+2}")
    said["messages"][-1]["content"] = "{q}"
    assert optional_fields_filled(prompt, [said]) == {"q": True}
