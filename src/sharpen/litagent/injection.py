"""Which parameters a function asks for, and the value of each in one rollout."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from ..errors import ConfigError, InvalidInputError, MissingResourceError
from ..types import LLM, AttemptedRollout, NamedResources, PromptTemplate, ProxyLLM, Rollout

KNOWN = ("task", "llm", "prompt_template", "resources", "rollout")
_OPEN_ENDED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """What a call has to fill; `*args` and `**kwargs` stay empty."""
    return [p for p in inspect.signature(function).parameters.values() if p.kind not in _OPEN_ENDED]


def check_parameters(parameters: list[inspect.Parameter], name: str) -> None:
    """Refuse a function that could never be called, where it is decorated."""
    unknown = [p.name for p in parameters if p.name not in KNOWN and p.default is p.empty]
    if unknown:
        raise ConfigError(
            f"the parameter {unknown[0]!r} of {name} is unknown: parameters are filled by name with "
            f"{', '.join(KNOWN)}; rename it or give it a default{_hint(unknown[0])}"
        )
    if not any(p.name in KNOWN for p in parameters):
        raise ConfigError(f"{name} has no parameter to fill: it may ask for {', '.join(KNOWN)}")


def _hint(name: str) -> str:
    return " (a method cannot be decorated: write a subclass of LitAgent)" if name in ("self", "cls") else ""


def pick_llm(
    agent: str, parameter: inspect.Parameter, resources: NamedResources, rollout: Rollout, *, strip_proxy: bool
) -> Any:
    """The first LLM: bound to this attempt where it stands behind the gateway, its key at hand."""
    llm = _first(LLM, agent, parameter, resources)
    if not isinstance(llm, LLM):
        return llm
    if isinstance(llm, ProxyLLM) and strip_proxy:
        llm = _bind(llm, agent, rollout)
    parameters = llm.resolve_sampling_parameters()
    return msgspec.structs.replace(llm, api_key=llm.resolve_api_key(), sampling_parameters=parameters)


def pick_prompt_template(agent: str, parameter: inspect.Parameter, resources: NamedResources) -> Any:
    """The first prompt template."""
    return _first(PromptTemplate, agent, parameter, resources)


R = TypeVar("R")


def _first(kind: type[R], agent: str, parameter: inspect.Parameter, resources: NamedResources) -> Any:
    found = next((resource for resource in resources.values() if isinstance(resource, kind)), None)
    if found is not None:
        return found
    if parameter.default is not parameter.empty:
        return parameter.default
    there = ", ".join(_described(resources)) or "nothing at all"
    raise MissingResourceError(
        f"the agent {agent} asks for {parameter.name}, but its rollout has no {kind.__name__}: there is {there}; "
        "give one as initial_resources of the Trainer, or publish it with add_resources"
    )


def _described(resources: NamedResources) -> Iterator[str]:
    return (f"{name!r} ({type(resource).__name__})" for name, resource in resources.items())


def _bind(llm: ProxyLLM, agent: str, rollout: Rollout) -> LLM:
    if isinstance(rollout, AttemptedRollout):
        return llm.with_attempted_rollout(rollout)
    raise InvalidInputError(
        f"the agent {agent} is given a ProxyLLM, whose URL names the attempt, but rollout {rollout.rollout_id!r} has "
        "none: pass an AttemptedRollout, or decorate with @llm_rollout(strip_proxy=False)"
    )
