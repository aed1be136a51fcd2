"""Where a search over prompts begins: in the resources of the run, or with the agent."""

import inspect
from typing import Any

from ...errors import ConfigError
from ...litagent import FunctionalLitAgent, LitAgent
from ...types import NamedResources, PromptTemplate

PROMPT_NAME = "prompt_template"
_WAYS = (
    "add a PromptTemplate to initial_resources of the Trainer, set the attribute prompt_template of the agent "
    "(a PromptTemplate or a str), or give the parameter prompt_template of the agent's function a default"
)


def seed_prompts(
    resources: NamedResources | None,
    agent_prompt: PromptTemplate | None,
    *,
    name: str | None,
    many: bool = False,
) -> dict[str, PromptTemplate]:
    """The prompts to improve, by the names of their resources. Only with `many` may there be several."""
    given = resources or {}
    found = {key: each for key, each in given.items() if isinstance(each, PromptTemplate)}
    if name is not None and name in found:
        found = {name: found[name]}
    elif name is not None and (found or name in given):
        raise ConfigError(
            f"resource_name is {name!r}, which is not a PromptTemplate: the resources are {_shown(given)}"
        )
    elif not found and agent_prompt is not None:
        found = {name or _free_name(given): agent_prompt}
    if not found:
        raise ConfigError(f"there is no prompt to start with: {_WAYS}")
    if len(found) > 1 and not many:
        raise ConfigError(
            f"the resources contain several prompts, {', '.join(map(repr, found))}: choose the one to improve with "
            "resource_name="
        )
    return _checked(found)


def prompt_of_agent(agent: LitAgent[Any]) -> PromptTemplate | None:
    """The agent's attribute `prompt_template`, or the default of the parameter of that name of its function."""
    own = _as_template(getattr(agent, PROMPT_NAME, None))
    if own is not None or not isinstance(agent, FunctionalLitAgent):
        return own
    parameter = inspect.signature(agent.function).parameters.get(PROMPT_NAME)
    return None if parameter is None else _as_template(parameter.default)


def takes_prompt(agent: LitAgent[Any]) -> bool:
    """Whether an agent can see a prompt: a function asks for it by name, or for all resources; a class gets them."""
    if not isinstance(agent, FunctionalLitAgent):
        return True
    return bool({PROMPT_NAME, "resources"} & inspect.signature(agent.function).parameters.keys())


def _as_template(value: object) -> PromptTemplate | None:
    if isinstance(value, str):
        return PromptTemplate(str(value))
    return value if isinstance(value, PromptTemplate) else None


def _free_name(resources: NamedResources) -> str:
    if PROMPT_NAME in resources:
        kind = type(resources[PROMPT_NAME]).__name__
        raise ConfigError(
            f"the resource {PROMPT_NAME!r} is of type {kind}, but the agent's own prompt has that name: rename the "
            "resource, or choose a name for the prompt with resource_name="
        )
    return PROMPT_NAME


def _checked(prompts: dict[str, PromptTemplate]) -> dict[str, PromptTemplate]:
    for name, prompt in prompts.items():
        if prompt.allows_code:
            raise ConfigError(
                f"the prompt {name!r} allows code, but prompts that a model writes must not run code: pass it without "
                "allows_code, or choose the prompt to improve with resource_name="
            )
        if prompt.template != prompt.template.encode("utf-8", "replace").decode():
            raise ConfigError(f"the prompt {name!r} contains a lone surrogate: write it as valid UTF-8 text")
    return prompts


def _shown(resources: NamedResources) -> str:
    return ", ".join(f"{name!r} ({type(each).__name__})" for name, each in resources.items())
