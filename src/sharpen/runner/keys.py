"""Keys are resolved where the agent runs: resources hold only references to them."""

import logging
import os
from functools import cache

from msgspec.structs import replace

from ..secrets import REFERENCE, map_secrets
from ..types import LLM, NamedResources

log = logging.getLogger(__name__)


def with_keys(resources: NamedResources) -> NamedResources:
    """The resources with the keys that this environment has; what it lacks stays a reference, for whoever uses it."""
    return {name: _with_key(name, each) if isinstance(each, LLM) else each for name, each in resources.items()}


def _with_key(name: str, llm: LLM) -> LLM:
    def resolve(_: str, text: str) -> str:
        found = REFERENCE.fullmatch(text)
        if found is None or found[1] in os.environ:
            return os.environ[found[1]] if found else text
        _tell_of_missing(name, found[1])
        return text

    key = resolve("api_key", llm.api_key) if llm.api_key else llm.api_key
    return replace(llm, api_key=key, sampling_parameters=map_secrets(llm.sampling_parameters, resolve))


@cache
def _tell_of_missing(name: str, variable: str) -> None:
    """Once: the agent may have a key of its own, or find its calls refused."""
    log.warning(
        "the key of the resource %r is in the environment variable %s, which is not set where this runner runs: "
        "the calls of agents that use it will be refused",
        name,
        variable,
    )
