"""Resources as pages show them: without keys, with URLs stripped of possible secrets, and with their changes."""

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from ...secrets import ENV_PREFIX, looks_secret
from ...types import LLM, NamedResources, PromptTemplate, Resource, ResourcesUpdate
from .shown_text import as_json, visible
from .word_diff import TextDiff, text_diff

Change = Literal["added", "removed", "changed", "same"]
HIDDEN = "(hidden)"


class ShownResource(msgspec.Struct, frozen=True):
    """One resource: the text of a prompt, or the facts of an endpoint."""

    name: str
    kind: str
    change: Change | None = None
    template: str | None = None
    facts: list[tuple[str, str]] = []
    diff: TextDiff | None = None


class VersionChanges(msgspec.Struct, frozen=True):
    """The changes of a version from the one before it."""

    update: ResourcesUpdate
    before: ResourcesUpdate | None
    changes: list[tuple[str, Change]]

    @property
    def against(self) -> str | None:
        """The value of the parameter `against`."""
        return None if self.before is None else f"{self.before.resources_id}@{self.before.version}"


def shown_resources(resources: NamedResources, before: NamedResources | None = None) -> list[ShownResource]:
    """Return all resources by name; compared with others, with their changes, including removed ones."""
    if before is None:
        return [shown_resource(name, resource) for name, resource in resources.items()]
    return [_compared(name, before.get(name), resources.get(name)) for name in {**resources, **before}]


def shown_resource(name: str, resource: Resource) -> ShownResource:
    if isinstance(resource, PromptTemplate):
        facts: list[tuple[str, str]] = [] if resource.engine == "f-string" else [("engine", resource.engine)]
        return ShownResource(visible(name), "prompt template", template=visible(resource.template), facts=facts)
    return ShownResource(visible(name), "LLM behind the gateway" if resource.resource_type == "proxy_llm" else "LLM",
                         facts=_llm_facts(resource))  # fmt: skip


def changes_of(update: ResourcesUpdate, before: ResourcesUpdate | None) -> VersionChanges:
    """Return which names were added, removed or changed."""
    old = {} if before is None else before.resources
    names = {**update.resources, **old}
    changes = [(visible(name), _change(old.get(name), update.resources.get(name))) for name in names]
    return VersionChanges(update, before, changes)


def _compared(name: str, old: Resource | None, new: Resource | None) -> ShownResource:
    shown = shown_resource(name, new if new is not None else old)  # type: ignore[arg-type]
    change = _change(old, new)
    diff = None if change == "same" else text_diff(_text(old), _text(new))
    return msgspec.structs.replace(shown, change=change, diff=diff)


def _change(old: Resource | None, new: Resource | None) -> Change:
    if old is None:
        return "added"
    if new is None:
        return "removed"
    return "same" if old == new else "changed"


def _text(resource: Resource | None) -> str:
    """Return the text to compare: the template, or the facts line by line."""
    if resource is None:
        return ""
    if isinstance(resource, PromptTemplate):
        return (
            resource.template if resource.engine == "f-string" else f"(engine: {resource.engine})\n{resource.template}"
        )
    return "\n".join(f"{name}: {value}" for name, value in _llm_facts(resource))


def _llm_facts(resource: LLM) -> list[tuple[str, str]]:
    facts = [("model", visible(resource.model)), ("endpoint", safe_address(resource.endpoint))]
    facts.append(("key", _key_words(resource.api_key)))
    if resource.sampling_parameters:
        facts.append(("sampling", visible(as_json(without_secrets(resource.sampling_parameters)))))
    return facts


def _key_words(key: str | None) -> str:
    if key is None:
        return "none"
    return "from an environment variable" if key.startswith(ENV_PREFIX) else "set (not shown)"


def safe_address(address: str) -> str:
    """Return scheme, host and path: a user, a password or a query may be secret."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(invalid URL)"
    if not parts.scheme or not host:
        return visible(address.partition("?")[0].rpartition("@")[2])
    shown_host = f"[{host}]" if ":" in host else host
    return visible(f"{parts.scheme}://{shown_host}{port}{parts.path}")


def without_secrets(value: Any, depth: int = 0) -> Any:
    """Return the value without fields whose names sound like secrets."""
    if depth > 30:
        return HIDDEN
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if looks_secret(str(key), item) else without_secrets(item, depth + 1)
            for key, item in value.items()
        }
    return [without_secrets(item, depth + 1) for item in value] if isinstance(value, list | tuple) else value
