"""Resources: named things an agent is given to work with. Every change is a new version.

`resource_type` tells them apart on the wire. A key is a secret: outside this process it is written only as a
reference (`env:NAME`). How a prompt template is rendered stands in `prompt_template.py`.
"""

import os
import re
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from ..checks import check_choice
from ..errors import ConfigError, InvalidInputError, SecretError
from ..secrets import ENV_PREFIX, HIDDEN, REFERENCE, map_secrets, secret_in_url, secrets_in
from .prompt_template import fill_fields, render_jinja, render_poml
from .rollouts import AttemptedRollout


class _ResourceMeta(msgspec.StructMeta):
    """Accepts `resource_type` in the constructor, as people write it, and refuses a wrong one."""

    def __call__(cls, *args: Any, resource_type: str | None = None, **kwargs: Any) -> Any:
        expected = cls.__struct_config__.tag
        if resource_type is not None and resource_type != expected:
            raise ConfigError(f"resource_type is {resource_type!r}, but {cls.__name__} is {expected!r}")
        return super().__call__(*args, **kwargs)


class _Resource(msgspec.Struct, metaclass=_ResourceMeta, tag_field="resource_type", frozen=True):
    @property
    def resource_type(self) -> str:
        return str(self.__struct_config__.tag)


class LLM(_Resource, frozen=True, tag="llm"):
    """An OpenAI-compatible endpoint and the model to ask there."""

    endpoint: str
    model: str
    api_key: str | None = None
    sampling_parameters: dict[str, Any] = {}

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """Return the endpoint; the ids matter only behind the gateway."""
        return self.endpoint

    @property
    def has_literal_key(self) -> bool:
        return self.api_key is not None and not self.api_key.startswith(ENV_PREFIX)

    def resolve_api_key(self) -> str | None:
        """Return the key itself, read from the environment if it is a reference."""
        if self.api_key is None or self.has_literal_key:
            return self.api_key
        return _from_environment("api_key", self.api_key)

    def resolve_sampling_parameters(self) -> dict[str, Any]:
        """Return the parameters, with references to secrets such as `env:NAME` read from the environment."""

        def resolve(place: str, text: str) -> str:
            is_reference = REFERENCE.fullmatch(text)
            return _from_environment(f"sampling_parameters{place}", text) if is_reference else text

        found: dict[str, Any] = map_secrets(self.sampling_parameters, resolve)
        return found

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.has_literal_key:
            shown["api_key"] = HIDDEN
        if secret_in_url(self.endpoint):
            shown["endpoint"] = f"{self.endpoint.partition('://')[0]}://{HIDDEN}"
        if any(secrets_in(self.sampling_parameters)):
            shown["sampling_parameters"] = HIDDEN
        return list(shown.items())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"


def _from_environment(place: str, reference: str) -> str:
    name = reference.removeprefix(ENV_PREFIX)
    if name not in os.environ:
        raise ConfigError(f"{place} is {reference!r}, but the environment variable {name} is not set")
    return os.environ[name]


_GATEWAY_URL = re.compile(r"(?P<base>.*?)(?P<role>/role/[^/]+)?(?P<version>/v1)?/?")


def _split_url(endpoint: str) -> tuple[str, str, str]:
    match = _GATEWAY_URL.fullmatch(endpoint)
    return (match["base"], match["role"] or "", match["version"] or "") if match else (endpoint, "", "")


class ProxyLLM(LLM, frozen=True, tag="proxy_llm"):
    """An LLM behind the gateway; its URL names the rollout and attempt that a call belongs to."""

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        if rollout_id is None and attempt_id is None:
            return self.endpoint
        if rollout_id is None or attempt_id is None:
            raise ConfigError("a gateway URL needs both rollout_id and attempt_id, or neither")
        base, role, version = _split_url(self.endpoint)
        return f"{base}/rollout/{quote(rollout_id, safe='')}/attempt/{quote(attempt_id, safe='')}{role}{version}"

    def with_attempted_rollout(self, rollout: AttemptedRollout) -> LLM:
        """Return the plain LLM for one attempt."""
        url = self.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        return LLM(url, self.model, self.api_key, self.sampling_parameters)

    def for_role(self, name: str) -> "ProxyLLM":
        """Return the same endpoint for one named agent of several."""
        if not isinstance(name, str) or not name:
            raise ConfigError(f"the name of a role is {name!r}: pass a str such as 'critic'")
        base, _, version = _split_url(self.endpoint)
        return msgspec.structs.replace(self, endpoint=f"{base}/role/{quote(name, safe='')}{version}")


class PromptTemplate(_Resource, frozen=True, tag="prompt_template"):
    """A prompt with places for values, written for one of three engines.

    **f-string** (the default) replaces `{name}` with the value of that name:

    - A `{name}` without a value is a `MissingValueError`, which is also a `KeyError`.
    - `{{name}}` is the text `{name}`, and `{{{name}}}` is the value in braces.
    - `{name:…}`, `{name!r}`, `{name.attribute}` and `{name[item]}` are errors: pass the value as it should read.
      With doubled braces they are text too.
    - LaTeX and JSON are filled only if a value of that name is given, and are text otherwise. This holds for an
      argument of a LaTeX command, directly behind it or behind another argument (`\\boxed{answer}`, `\\frac{a}{b}`,
      `\\sqrt[3]{x}`), for a subscript or superscript (`x_{i}`, `2^{n}`), and for a field inside other braces
      (`{"answer": {number}}`). An argument keeps its braces: with `answer=7`, `\\boxed{answer}` is `\\boxed{7}`.
    - Every other brace is text: `{"a": 1}`, `{}`, `{0}`, `{ name }`, or one that is never closed.

    Values are inserted unchanged, whatever braces they hold.

    **jinja** runs in an immutable sandbox. To print or loop over a value that was not given is an error;
    `{% if name %}`, `name is defined` and `default(…)` may ask for it.

    **poml** replaces `{{name}}`, in texts and attributes; a missing value is an error. Expressions, `for=`, `if=` and
    `<let>` are JavaScript, which runs only with `allows_code=True`: for templates that you wrote yourself, since such
    code can use the network. Files are out of reach in any case. Optimisers refuse a prompt that allows code, as their
    candidates are written by models.
    """

    template: str
    engine: Literal["f-string", "jinja", "poml"] = "f-string"
    allows_code: bool = False

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, ("f-string", "jinja", "poml"))
        if self.allows_code and self.engine != "poml":
            raise ConfigError(f'allows_code works only with engine="poml", but the engine is {self.engine!r}')

    def format(self, /, **values: Any) -> str:
        """Return the text of the template with these values."""
        if self.engine == "jinja":
            return render_jinja(self.template, values)
        if self.engine == "poml":
            return render_poml(self.template, values, allows_code=self.allows_code)
        return fill_fields(self.template, values)


Resource = LLM | ProxyLLM | PromptTemplate
ResourceUnion = Resource
NamedResources = dict[str, Resource]


class ResourcesUpdate(msgspec.Struct, frozen=True):
    """One version of a set of resources."""

    resources_id: str
    create_time: float
    update_time: float
    version: int
    resources: dict[str, Resource]


def check_no_secrets(resources: NamedResources) -> None:
    """Raise `SecretError` for a literal key or password, which must not be written to a durable or remote store."""
    if not isinstance(resources, dict):
        raise InvalidInputError(f"resources are {resources!r}: pass a dict of LLM, ProxyLLM or PromptTemplate by name")
    for name, resource in resources.items():
        if isinstance(resource, ProxyLLM) and resource.has_literal_key:
            raise SecretError(
                f"resource {name!r} holds the literal token of a gateway, which the store would save: pass a "
                'reference to the gateway instead, LLMProxy(token="env:NAME")'
            )
        if isinstance(resource, LLM) and resource.has_literal_key:
            raise SecretError(
                f"resource {name!r} holds a literal api_key, which the store would save: pass a reference such as "
                'api_key="env:OPENAI_API_KEY", or let the gateway hold the key'
            )
        if isinstance(resource, LLM):
            _check_no_other_secrets(name, resource)


def _check_no_other_secrets(name: str, llm: LLM) -> None:
    if found := secret_in_url(llm.endpoint):
        raise SecretError(
            f"resource {name!r} holds {found} in its endpoint, a secret that the store would save: pass the key as a "
            'reference, api_key="env:NAME", or let the gateway call the endpoint and hold the secret'
        )
    if place := next(secrets_in(llm.sampling_parameters), None):
        raise SecretError(
            f"resource {name!r} holds a secret in sampling_parameters{place}, which the store would save: pass "
            'a reference, "env:NAME", which is read where the agent runs, or let the gateway hold the secret'
        )
