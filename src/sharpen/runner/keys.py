"""Keys are resolved where the agent runs: resources hold only references to them."""

import logging
import os
from functools import cache

from msgspec.structs import replace

from ..types import LLM, NamedResources
from ..types.resources import ENV_PREFIX

log = logging.getLogger(__name__)


def with_keys(resources: NamedResources) -> NamedResources:
    """The resources with the keys that this environment has; what it lacks stays a reference, for whoever uses it."""
    return {name: _with_key(name, each) if isinstance(each, LLM) else each for name, each in resources.items()}


def _with_key(name: str, llm: LLM) -> LLM:
    reference = llm.api_key or ""
    if not reference.startswith(ENV_PREFIX):
        return llm
    variable = reference.removeprefix(ENV_PREFIX)
    if variable in os.environ:
        return replace(llm, api_key=llm.resolve_api_key())
    _tell_of_missing(name, variable)
    return llm


@cache
def _tell_of_missing(name: str, variable: str) -> None:
    """Once: the agent may have a key of its own, or find its calls refused."""
    log.warning(
        "the key of the resource %r is in the environment variable %s, which is not set where this runner runs: "
        "the calls of agents that use it will be refused",
        name,
        variable,
    )
