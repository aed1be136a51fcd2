"""Keys are resolved where the agent runs: resources hold only references to them."""

import os

from msgspec.structs import replace

from ..types import LLM, NamedResources
from ..types.resources import ENV_PREFIX


def with_keys(resources: NamedResources) -> NamedResources:
    """The resources with the keys that this environment has; what it lacks stays a reference, for whoever uses it."""
    return {name: _with_key(each) if isinstance(each, LLM) else each for name, each in resources.items()}


def _with_key(llm: LLM) -> LLM:
    reference = llm.api_key or ""
    is_here = reference.startswith(ENV_PREFIX) and reference.removeprefix(ENV_PREFIX) in os.environ
    return replace(llm, api_key=llm.resolve_api_key()) if is_here else llm
