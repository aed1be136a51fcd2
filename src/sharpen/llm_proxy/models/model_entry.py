"""`ModelEntry`: one upstream of a model, and what is known about it. Its repr holds no key."""

import math
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from ...chat.wire import is_secret
from ...errors import ConfigError
from ..calls import PATHS
from .keys import HIDDEN, check_reference, hidden

Provider = Literal["openai", "anthropic", "litellm"]
Engine = Literal["vllm", "sglang", "sharpen", "none"]
DEFAULT_URLS: dict[Provider, str] = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com/v1",
}


class ModelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One upstream of a model. Invalid values are refused when it is created."""

    model_name: str
    """The name that agents use. A trailing `*` matches any suffix, `*` alone any model."""
    model: str | None = None
    """The name at the upstream. None: the same name; a `*` is replaced by what the `*` of `model_name` matched."""
    base_url: str | None = None
    """The URL of the server, including `/v1` if it has that. None: the public API of the provider."""
    api_key: str | None = None
    """A reference such as `env:NAME`, or the key itself."""
    provider: Provider = "openai"
    engine: Engine | None = None
    """The inference engine of the upstream. None: detected automatically."""
    weight: float = 1.0
    rpm: float | None = None
    """Requests per minute."""
    tpm: float | None = None
    """Tokens per minute, input and output."""
    defaults: dict[str, Any] = {}
    """Sampling parameters for requests that lack them."""
    headers: dict[str, str] = {}
    """Sent with every request. A value may be a reference."""
    timeout: float | None = None
    """Seconds until the response begins, and between two parts of it."""
    weights_version: str | int | None = None
    input_cost_per_token: float | None = None
    output_cost_per_token: float | None = None
    litellm_params: dict[str, Any] = {}
    """Parameters for LiteLLM only."""

    def __post_init__(self) -> None:
        if not self.model_name:
            raise ConfigError("model_name is empty: use the name that agents ask for, or '*' for any")
        _check_star(self)
        if self.base_url is not None:
            _check_url(self.base_url)
        _check_numbers(self)
        if self.api_key is not None:
            check_reference(self.api_key, what="api_key")
        _check_headers(self.headers)
        _check_defaults(self.defaults)
        if self.litellm_params and self.provider != "litellm":
            raise ConfigError(
                f"it has litellm_params, but provider is {self.provider!r}, which does not use LiteLLM: put request "
                "parameters into defaults"
            )

    @property
    def url(self) -> str:
        """The base URL without a trailing slash; empty if LiteLLM chooses it."""
        url = (self.base_url or DEFAULT_URLS.get(self.provider, "")).rstrip("/")
        # LiteLLM and Anthropic's own SDK leave the version out.
        return f"{url}/v1" if self.provider == "anthropic" and not url.endswith("/v1") else url

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc or (self.model or self.model_name).partition("/")[0]

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"{self.model_name} at {self.host}"

    def matches(self, asked: str) -> bool:
        stem, star, _ = self.model_name.partition("*")
        return asked.startswith(stem) if star else asked == self.model_name

    def upstream_model(self, asked: str) -> str:
        """Return the name of the model at the upstream for the name that an agent used."""
        if self.model is None:
            return asked
        stem, star, _ = self.model_name.partition("*")
        return self.model.replace("*", asked.removeprefix(stem) if star else asked)

    def asked_name(self, upstream_model: str) -> str | None:
        """Return the name under which agents reach a model of the upstream; None if there is none, or any name does."""
        theirs = "*" if self.model is None else self.model
        head, star, tail = theirs.partition("*")
        if not star or not (upstream_model.startswith(head) and upstream_model.endswith(tail)):
            return None
        stem = "" if self.model is None else self.model_name.partition("*")[0]
        asked = stem + upstream_model[len(head) : len(upstream_model) - len(tail)]
        return asked if self.matches(asked) else None

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        own: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        own["api_key"] = hidden(self.api_key)
        own["headers"] = {name: hidden(value) for name, value in self.headers.items()}
        own["litellm_params"] = dict.fromkeys(self.litellm_params, HIDDEN)
        defaults = dict(zip(self.__struct_fields__[1:], self.__struct_defaults__, strict=True))
        return [(name, value) for name, value in own.items() if value not in (None, {}) and value != defaults.get(name)]

    def __repr__(self) -> str:
        return f"ModelEntry({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


def _check_star(entry: ModelEntry) -> None:
    if "*" in entry.model_name[:-1]:
        raise ConfigError(f"model_name is {entry.model_name!r}: a * is only allowed at the end")


def _check_url(url: str) -> None:
    """What is wrong is said in words: any part of a URL may hold a key."""
    problem = _problem_of(url)
    if problem is not None:
        raise ConfigError(f"base_url {problem}: use a URL such as http://127.0.0.1:8000/v1")
    parts = urlsplit(url)
    if parts.username is not None or "?" in url or "#" in url:
        raise ConfigError("base_url has a login, a query or a fragment: remove it; put a key into api_key")
    path = next((path for path in PATHS.values() if parts.path.rstrip("/").endswith(path)), None)
    if path is not None:
        raise ConfigError(f"base_url ends in {path}, which the gateway adds: use only the part before {path}")


def _problem_of(url: str) -> str | None:
    if not (url.isascii() and url.isprintable()) or " " in url:
        return "contains a character that is not allowed in a URL"
    if not url.lower().startswith(("http://", "https://")):
        return "does not begin with http:// or https://"
    try:
        parts = urlsplit(url)
        has_host, has_port = bool(parts.hostname), (parts.port or 1) > 0
    except ValueError:
        return "has no valid host, or a port that is not a number from 1 to 65535"
    return None if has_host and has_port else "has no valid host"


def _check_numbers(entry: ModelEntry) -> None:
    for name in ("rpm", "tpm", "timeout"):
        value = getattr(entry, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name} is {value!r}: use a number above 0, or omit it for no limit")
    for name in ("weight", "input_cost_per_token", "output_cost_per_token"):
        value = getattr(entry, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{name} is {value!r}: use a number of 0 or more")


def _check_headers(headers: Mapping[str, str]) -> None:
    for number, (name, value) in enumerate(headers.items(), start=1):
        if not name or not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
            raise ConfigError(f"the name of header {number} in headers is not a valid HTTP header name")
        if not (value.isascii() and value.isprintable()):
            raise ConfigError(f"headers[{name!r}] contains characters that are not allowed in an HTTP header")
        check_reference(value, what=f"headers[{name!r}]")


def _check_defaults(defaults: Mapping[str, Any]) -> None:
    for name in defaults:
        if is_secret(name):
            raise ConfigError(f"defaults has {name!r}: put a key into api_key and other secrets into headers")
        if name == "model":
            raise ConfigError("defaults has 'model', which every request sets: set the model of the entry instead")
