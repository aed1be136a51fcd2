"""Critiques and edits, asked of a scripted model over HTTP with the real client."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sharpen.errors import ConfigError, InvalidInputError
from sharpen.types import PromptTemplate
from tests.algorithm.internals import Assistant, Critic, NoAnswerError, load_prompts, template_in
from tests.errors import raises

from ..prompts.scripted_openai import Reply, ScriptedOpenAI

SEED = PromptTemplate('Answer {question} as JSON: {"answer": 1}. {{question}} is text.')
RUN = {
    "status": "succeeded",
    "final_reward": 0.25,
    "messages": [{"messages": [{"role": "user", "content": "the {prompt} of {critique}"}], "tools": None}],
}


def critic_of(server: ScriptedOpenAI, **settings: Any) -> Critic:
    models = {"gradient_model": "critic", "apply_edit_model": "editor", "temperature": 0.8}
    return Critic(Assistant(server.client(max_retries=0)), **(models | settings))


async def edited(answer: str | Reply, template: PromptTemplate = SEED) -> str:
    with ScriptedOpenAI(answer) as server:
        return (await critic_of(server).edit(template, "too short", random.Random(1))).text


# -- critiques ---------------------------------------------------------------------------------------


async def test_the_critic_sees_the_prompt_its_placeholders_and_the_rollouts() -> None:
    with ScriptedOpenAI("- Weakness: vague.") as server:
        answer = await critic_of(server).critique(SEED, [RUN], random.Random(1))
    assert answer.text == "- Weakness: vague."
    assert answer.cost.calls == 1
    sent = server.requests[0]
    assert (sent.model, sent.body["temperature"]) == ("critic", 0.8)
    assert f"<template>\n{SEED.template}\n</template>" in sent.text
    assert "Placeholders: {question}\n" in sent.text
    assert "reward 0.25" in sent.text


async def test_braces_in_a_conversation_stay_what_they_are() -> None:
    with ScriptedOpenAI("ok") as server:
        await critic_of(server).critique(SEED, [RUN], random.Random(1))
    assert "[user] the {prompt} of {critique}" in server.requests[0].text


async def test_huge_conversations_are_clipped() -> None:
    talk = [{"role": "user", "content": "z" * 100_000}] * 50
    results = [{"status": "succeeded", "final_reward": 0.0, "messages": talk}] * 8
    with ScriptedOpenAI("ok") as server:
        await critic_of(server).critique(SEED, results, random.Random(1))
    assert len(server.requests[0].text) < 27_000
    assert "characters left out" in server.requests[0].text


async def test_a_critique_of_nothing_is_an_error_before_any_call() -> None:
    with ScriptedOpenAI() as server, pytest.raises(InvalidInputError):
        await critic_of(server).critique(SEED, [], random.Random(1))
    assert server.count() == 0


async def test_a_small_model_is_shown_less_until_it_fits() -> None:
    def reply(request: dict[str, Any]) -> str | Reply:
        length = len(request["messages"][0]["content"])
        return "fits" if length < 9_000 else Reply(status=400, error="the prompt exceeds the maximum context length")

    talk = [{"role": "user", "content": "z" * 100_000}]
    results = [{"status": "succeeded", "final_reward": 0.0, "messages": talk}] * 8
    with ScriptedOpenAI(reply) as server:
        assert (await critic_of(server).critique(SEED, results, random.Random(1))).text == "fits"
    assert server.count() == 3
    assert [len(asked.text) > 9_000 for asked in server.requests] == [True, True, False]


async def test_a_model_without_room_for_any_rollout_is_no_answer() -> None:
    with ScriptedOpenAI(Reply(status=400, error="context_length_exceeded")) as server:
        with pytest.raises(NoAnswerError):
            await critic_of(server).critique(SEED, [RUN], random.Random(1))
        assert server.count() == 1


@pytest.mark.parametrize(
    "ask",
    [lambda critic, rng: critic.critique(SEED, [RUN], rng), lambda critic, rng: critic.edit(SEED, "vague", rng)],
    ids=["critique", "edit"],
)
async def test_the_way_of_asking_follows_from_the_rng(ask: Callable[[Critic, random.Random], Any]) -> None:
    with ScriptedOpenAI("ok") as server:
        for seed in (*range(12), 3):
            await ask(critic_of(server), random.Random(seed))
    ways = [(asked.text, asked.body["seed"]) for asked in server.requests]
    assert ways[3] == ways[12]
    assert len({text for text, _ in ways}) == 3
    assert len({seed for _, seed in ways}) == 12


# -- edits -------------------------------------------------------------------------------------------


async def test_the_editor_sees_the_prompt_and_the_critique() -> None:
    with ScriptedOpenAI("<new_template>\nnew {question}\n</new_template>") as server:
        answer = await critic_of(server).edit(SEED, "say {more}", random.Random(1))
    assert answer.text == "new {question}"
    sent = server.requests[0]
    assert sent.model == "editor"
    assert f"<template>\n{SEED.template}\n</template>" in sent.text
    assert "<review>\nsay {more}\n</review>" in sent.text
    assert "Placeholders: {question}\n" in sent.text


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (PromptTemplate("plain"), "Placeholders: none\n"),
        (PromptTemplate("{a} and {b}"), "Placeholders: {a}, {b}\n"),
        (PromptTemplate("{% if a %}{{ b }}{% endif %}", "jinja"), "{{a}}, {{b}} (the template is Jinja"),
        (PromptTemplate("<poml>{{ a }}</poml>", "poml"), "{{a}} (the template is POML"),
    ],
)
async def test_placeholders_are_named_as_the_template_writes_them(template: PromptTemplate, words: str) -> None:
    with ScriptedOpenAI("ok") as server:
        await critic_of(server).edit(template, "vague", random.Random(1))
    assert words in server.requests[0].text


INNER = "Do {question}.\n\n  - one\n```json\n{}\n```\nEnd"


@pytest.mark.parametrize(
    ("answer", "inner"),
    [
        (f"<new_template>{INNER}</new_template>", INNER),
        (f"<new_template>\n{INNER}\n</new_template>", INNER),
        (f"<new_template>\r\n{INNER}\r\n</new_template>\n", INNER),
        (f"Sure, here it is:\n<new_template>\n{INNER}\n</new_template>\nI hope this helps.", INNER),
        (f"I write between <new_template> and </new_template>.\n<new_template>\n{INNER}\n</new_template>", INNER),
        (f"<new_template>\n{INNER}\n</new_template>\nAs <new_template>…</new_template> asks.", INNER),
        (f"```xml\n<new_template>\n{INNER}\n</new_template>\n```", INNER),
        ("<new_template>\n```text\nDo {question}.\n```\n</new_template>", "Do {question}."),
        ("<new_template>\n<template>\nDo {question}.\n</template>\n</new_template>", "Do {question}."),
        ("<new_template>\n  two  \n\n</new_template>", "  two  \n"),
        ("<new_template>\n```\na\n```\nand\n```\nb\n```\n</new_template>", "```\na\n```\nand\n```\nb\n```"),
        ("<new_template>\nno end mark {question}", "no end mark {question}"),
        ("no begin mark {question}\n</new_template>", "no begin mark {question}"),
        ("\nno marks {question}\n", "no marks {question}"),
        ("```\nfenced {question}\n```", "fenced {question}"),
        ("Here it is:\n\n```markdown\nfenced {question}\n```\n\nBetter now.", "fenced {question}"),
        ("<template>\ntagged {question}\n</template>", "tagged {question}"),
    ],
)
async def test_an_edit_is_the_new_template_and_nothing_else(answer: str, inner: str) -> None:
    assert await edited(answer) == inner


def test_a_fence_that_the_parent_has_stays() -> None:
    parent = "```\nDo {question}.\n```"
    assert template_in("<new_template>\n```\nDo it: {question}.\n```\n</new_template>", parent) == (
        "```\nDo it: {question}.\n```"
    )
    assert (
        template_in("See:\n```\nDo {question}\n```", "Ask {question}:\n```\nx\n```\n")
        == "See:\n```\nDo {question}\n```"
    )


def test_a_template_that_speaks_of_the_marks_stays_whole() -> None:
    inner = "Answer in <new_template> and </new_template>: {question}"
    assert template_in(f"<new_template>\n{inner}\n</new_template>", inner) == inner


@pytest.mark.parametrize(
    "answer",
    [
        "<new_template>\n\n</new_template>",
        Reply("<new_template>\nDo {question} and", finish_reason="length"),
        Reply("Do {question} and", finish_reason="length"),
    ],
    ids=["empty", "cut-off-within", "cut-off-without-mark"],
)
async def test_an_edit_without_a_whole_template_is_no_answer_but_is_paid_for(answer: str | Reply) -> None:
    with pytest.raises(NoAnswerError) as caught:
        await edited(answer)
    assert caught.value.cost.input_tokens > 50


async def test_an_edit_that_was_whole_before_it_was_cut_off_is_used() -> None:
    answer = Reply("<new_template>\nDo {question}\n</new_template>\nI changed", finish_reason="length")
    assert await edited(answer) == "Do {question}"


# -- prompts -----------------------------------------------------------------------------------------


def test_our_prompts_are_three_of_each_and_ask_for_what_is_needed() -> None:
    critiques, edits = load_prompts("critique", None), load_prompts("edit", None)
    assert len({each.template for each in critiques}) == len({each.template for each in edits}) == 3
    assert all("{placeholders}" in each.template for each in critiques + edits)
    assert all("<new_template>" in each.template and "</new_template>" in each.template for each in edits)
    assert all(len(each.template) < 1_800 for each in critiques + edits)


async def test_prompts_of_the_user_take_the_place_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "critique.txt"
    path.write_text("Judge {prompt} by {rollouts}, größer", encoding="utf-8")
    mine = {"critique_prompts": [str(path)], "edit_prompts": ["Mend {prompt} by {critique} with {placeholders}"]}
    with ScriptedOpenAI("fine") as server:
        critic = critic_of(server, **mine)
        await critic.critique(PromptTemplate("P {x}"), [RUN], random.Random(1))
        assert (await critic.edit(PromptTemplate("P {x}"), "C", random.Random(1))).text == "fine"
    critique, edit = (asked.text for asked in server.requests)
    assert critique.startswith("Judge P {x} by === Run 1")
    assert critique.endswith(", größer")
    assert edit == "Mend P {x} by C with {x}"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Judge {prompt}", ("{rollouts}",)),
        ("Judge\nthis", ("{prompt}", "{rollouts}")),
        ("{promt} {rollouts}", ("{promt}", "{prompt}")),
        ("{prompt} {rollouts} {question}", ("{question}", "{{question}}")),
        ("{prompt} {rollouts} {critique}", ("{critique}", "{prompt}")),
        ("{prompt} {rollouts} {{prompt}} {prompt.text}", ("prompt.text",)),
    ],
)
def test_a_prompt_that_cannot_serve_is_an_error_at_once(text: str, named: tuple[object, ...], tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(text, encoding="utf-8")
    with raises(ConfigError, "critique_prompts", "mine.txt", *named):
        load_prompts("critique", [path])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Say what is wrong.", ("{prompt}", "{rollouts}")),
        ("Here: {promt} {rollouts}", ("{promt}", "{prompt}")),
        ("Judge {rollouts}", ("{prompt}",)),
        ("word " * 2_000, ("{prompt}",)),
        ("null \0", ("{prompt}",)),
        ("", ("{prompt}",)),
    ],
)
def test_a_text_that_cannot_serve_is_no_missing_file(text: str, named: tuple[object, ...]) -> None:
    with raises(ConfigError, "critique_prompts", *named):
        load_prompts("critique", [text])


@pytest.mark.parametrize("path", ["critique.txt", "prompts/mine.md", "../a.b/critique.jinja2"])
def test_a_path_that_leads_nowhere_is_no_text(path: str) -> None:
    with raises(ConfigError, path):
        load_prompts("critique", [path])


def test_a_file_is_read_whatever_its_name_looks_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my {prompt}").write_text("Judge {prompt} by {rollouts}", encoding="utf-8")
    assert load_prompts("critique", ["my {prompt}"])[0].template == "Judge {prompt} by {rollouts}"


def test_a_field_in_doubled_braces_is_text() -> None:
    text = "Keep fields such as {{question}} in {prompt}, by {critique}"
    assert load_prompts("edit", [text])[0].format(prompt="P", critique="C") == (
        "Keep fields such as {question} in P, by C"
    )


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe{prompt}")
    for path, words in (
        (tmp_path / "none.txt", ()),
        (tmp_path / "binary.txt", ("utf-8",)),
        (tmp_path, ("directory",)),
    ):
        with raises(ConfigError, "edit_prompts", path, *words):
            load_prompts("edit", [path])


@pytest.mark.parametrize("paths", [[], "critique.txt", 3])
def test_prompts_that_are_no_list_are_an_error(paths: Any) -> None:
    with raises(ConfigError, "edit_prompts"):
        load_prompts("edit", paths)
