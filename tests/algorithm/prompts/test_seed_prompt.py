"""Where a search over prompts begins."""

from typing import Any

import pytest

from sharpen.errors import ConfigError, InvalidInputError
from sharpen.litagent import LitAgent, rollout
from sharpen.types import LLM, NamedResources, PromptTemplate
from tests.algorithm.internals import Candidate, prompt_of_agent, seed_prompts, takes_prompt
from tests.errors import raises

ONE, TWO, OWN = PromptTemplate("one {x}"), PromptTemplate("two {x}"), PromptTemplate("own {x}")
MODEL = LLM("http://127.0.0.1:1/v1", "m")


@pytest.mark.parametrize(
    ("resources", "name", "expected"),
    [
        ({"a": ONE, "llm": MODEL}, None, {"a": ONE}),
        ({"a": ONE, "b": TWO}, "b", {"b": TWO}),
        ({"llm": MODEL}, None, {"prompt_template": OWN}),
        (None, None, {"prompt_template": OWN}),
        ({}, "mine", {"mine": OWN}),
    ],
)
def test_the_search_begins_with_the_resources_then_the_agent(
    resources: NamedResources | None, name: str | None, expected: NamedResources
) -> None:
    assert seed_prompts(resources, OWN, name=name) == expected


def test_several_prompts_need_a_name_unless_many_are_wanted() -> None:
    with raises(ConfigError, "a", "b", "resource_name="):
        seed_prompts({"a": ONE, "b": TWO}, None, name=None)
    assert seed_prompts({"a": ONE, "llm": MODEL, "b": TWO}, None, name=None, many=True) == {"a": ONE, "b": TWO}
    assert seed_prompts({"a": ONE, "b": TWO}, None, name="a", many=True) == {"a": ONE}


def test_no_prompt_at_all_says_the_three_ways_to_give_one() -> None:
    with pytest.raises(ConfigError) as caught:
        seed_prompts({"llm": MODEL}, None, name=None)
    for way in ("initial_resources", "attribute prompt_template", "default"):
        assert way in str(caught.value)


@pytest.mark.parametrize("name", ["c", "llm"])
def test_a_name_that_is_no_prompt_lists_what_there_is(name: str) -> None:
    with raises(ConfigError, "resource_name", name, "a", "PromptTemplate", "llm"):
        seed_prompts({"a": ONE, "llm": MODEL}, OWN, name=name)


def test_the_prompt_of_the_agent_does_not_take_the_place_of_a_model() -> None:
    with raises(ConfigError, "prompt_template"):
        seed_prompts({"prompt_template": MODEL}, OWN, name=None)
    assert seed_prompts({"prompt_template": MODEL}, OWN, name="mine") == {"mine": OWN}


def test_a_seed_that_no_file_can_hold_is_refused() -> None:
    with raises(ConfigError, "a"):
        seed_prompts({"a": PromptTemplate("\ud800")}, None, name=None)


# -- the agent's own prompt --------------------------------------------------------------------------


def agent_with(value: Any) -> LitAgent[Any]:
    agent: LitAgent[Any] = LitAgent()
    agent.prompt_template = value  # type: ignore[attr-defined]
    return agent


@pytest.mark.parametrize(("value", "expected"), [(OWN, OWN), ("own {x}", OWN), (None, None), (3, None)])
def test_the_attribute_of_an_agent_is_its_prompt(value: Any, expected: PromptTemplate | None) -> None:
    assert prompt_of_agent(agent_with(value)) == expected


def test_an_agent_without_the_attribute_has_no_prompt() -> None:
    assert prompt_of_agent(LitAgent()) is None


def test_the_default_of_a_function_is_its_prompt() -> None:
    @rollout
    def with_template(task: Any, prompt_template: PromptTemplate = OWN) -> float:
        return 0.0

    @rollout
    def with_text(task: Any, *, prompt_template: Any = "own {x}") -> float:
        return 0.0

    assert prompt_of_agent(with_template) == prompt_of_agent(with_text) == OWN


def test_a_function_without_a_default_has_no_prompt() -> None:
    @rollout
    def asks(task: Any, prompt_template: PromptTemplate) -> float:
        return 0.0

    @rollout
    def asks_not(task: Any) -> float:
        return 0.0

    assert prompt_of_agent(asks) is None
    assert prompt_of_agent(asks_not) is None


def test_the_attribute_comes_before_the_default() -> None:
    @rollout
    def agent(task: Any, prompt_template: PromptTemplate = ONE) -> float:
        return 0.0

    agent.prompt_template = TWO  # type: ignore[attr-defined]
    assert prompt_of_agent(agent) == TWO


def test_an_agent_that_cannot_see_a_prompt_is_known_by_its_signature() -> None:
    class Own(LitAgent[Any]):
        def rollout(self, task: Any, resources: NamedResources, rollout: Any) -> float:
            return 1.0

    assert takes_prompt(Own())
    assert takes_prompt(rollout(lambda task, prompt_template: 1.0))
    assert takes_prompt(rollout(lambda task, resources: 1.0))
    assert not takes_prompt(rollout(lambda task, llm: 1.0))


def test_a_prompt_that_allows_code_is_not_improved() -> None:
    code = PromptTemplate("<p>{{ x + 1 }}</p>", "poml", allows_code=True)
    with raises(ConfigError, "code", "resource_name"):
        seed_prompts({"code": code, "a": ONE}, None, name=None, many=True)
    assert seed_prompts({"code": code, "a": ONE}, None, name="a") == {"a": ONE}
    with raises(InvalidInputError, "v1"):
        Candidate("v1", {"code": code})
