"""What the program of a `CommandAgent` finds in its environment: the task, the prompts, the model, where to report.

What is too large for the environment is only in the files, which only this user can read.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError, InvalidInputError, TaskError
from ..semconv import LightningResourceAttributes as Names
from ..tracer.base import active_tracer
from ..tracer.trace import current_trace
from ..types import LLM, AttemptedRollout, NamedResources, PromptTemplate, ProxyLLM, Resource, Rollout

PREFIX = "SHARPEN_"
MAX_VALUE_BYTES = 100_000  # Linux takes 128 KiB in one variable
TASK_FILE, RESOURCES_FILE = "task.json", "resources.json"
REWARD_PATH, TRACES_PATH = "/reward", "/v1/traces"
NO_KEY = "none"  # SDKs insist on a key
GATEWAY_URL, FOREIGN_KEY = "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN"
BASIC = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM")
"""What is inherited in any case, with the variables of the locale (LC_*)."""

Inherited = bool | Sequence[str]


class CommandEnvironment:
    """The environment of the programs of an agent: `extra` variables are the user's own."""

    def __init__(self, inherited: Inherited, extra: Mapping[str, str]) -> None:
        self._inherited = _check_inherited(inherited)
        self._extra = _check_extra(extra)

    def base(self) -> dict[str, str]:
        """Return what every program of the agent gets."""
        chosen = {name: value for name, value in os.environ.items() if self._is_inherited(name)}
        return _with_this_python(chosen) | self._extra

    def of(self, task: Any, resources: NamedResources, rollout: Rollout, folder: Path, url: str) -> dict[str, str]:
        """Return what the program of one rollout gets; its files are written to the folder, it reports to the URL."""
        own = _rollout_variables(rollout)
        own |= _in_file("TASK", folder / TASK_FILE, _task_json(task))
        bound = {name: _bound(each, rollout) for name, each in resources.items()}
        own |= _in_file("RESOURCES", folder / RESOURCES_FILE, msgspec.json.encode(bound))
        own |= _prompt_variables(resources) | _model_variables(resources, rollout) | _report_variables(url)
        base = self.base()
        if GATEWAY_URL in own:
            base.pop(FOREIGN_KEY, None)  # the SDK would send this token of the user's to the gateway
        return _beside_proxies({**base, **own, **self._extra})

    def _is_inherited(self, name: str) -> bool:
        if name.startswith(PREFIX):
            return False  # settings and tokens of the runner
        if isinstance(self._inherited, bool):
            named: Sequence[str] = [name] if self._inherited else []
        else:
            named = self._inherited
        return name in BASIC or name.startswith("LC_") or name in named


def _check_inherited(inherited: Any) -> Inherited:
    if isinstance(inherited, bool):
        return inherited
    is_list = isinstance(inherited, Sequence) and not isinstance(inherited, str)
    if not is_list or not all(isinstance(name, str) for name in inherited):
        raise ConfigError(f"inherit_env is {inherited!r}: use True, False, or a list of names")
    return tuple(inherited)


def _check_extra(extra: Any) -> dict[str, str]:
    if not isinstance(extra, Mapping):
        raise ConfigError(f"env is a {type(extra).__name__}: pass a dict of names and values, such as {{'LEVEL': '3'}}")
    for name, value in extra.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise ConfigError(f"env has the name {name!r}: use a str without '='")
        if name.startswith(PREFIX):
            raise ConfigError(
                f"env sets {name}, but names starting with {PREFIX} are set for each rollout: use another name"
            )
        if not isinstance(value, str) or "\0" in value:  # the value may be a secret
            raise ConfigError(f"env[{name!r}] is a {type(value).__name__}: use a str without NUL")
    return dict(extra)


# -- the rollout -------------------------------------------------------------------------------------


def _rollout_variables(rollout: Rollout) -> dict[str, str]:
    variables = {"SHARPEN_ROLLOUT_ID": rollout.rollout_id, "SHARPEN_MODE": rollout.mode or ""}
    ids = {Names.ROLLOUT_ID.value: rollout.rollout_id}
    if isinstance(rollout, AttemptedRollout):
        variables["SHARPEN_ATTEMPT_ID"] = ids[Names.ATTEMPT_ID.value] = rollout.attempt.attempt_id
    # By these attributes, spans that reach the store by another way than ours still name their attempt.
    inherited = os.environ.get("OTEL_RESOURCE_ATTRIBUTES")
    attributes = [*([inherited] if inherited else []), *(f"{name}={value}" for name, value in ids.items())]
    return {**variables, "OTEL_RESOURCE_ATTRIBUTES": ",".join(attributes)}


def _task_json(task: Any) -> bytes:
    try:
        return msgspec.json.encode(task)
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(
            f"the task is a {type(task).__name__}, but a program receives it as JSON: {error}; "
            "use dicts with str keys, lists, strings and finite numbers"
        ) from None


def _in_file(name: str, path: Path, content: bytes) -> dict[str, str]:
    path.write_bytes(content)
    value = {f"{PREFIX}{name}": content.decode()} if len(content) <= MAX_VALUE_BYTES else {}
    return {f"{PREFIX}{name}_FILE": str(path), **value}


def _report_variables(url: str) -> dict[str, str]:
    """Where the program sends rewards, and an instrumented one its spans, below the span that is open here."""
    found = {
        "SHARPEN_REWARD_URL": f"{url}{REWARD_PATH}",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{url}{TRACES_PATH}",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }
    tracer, trace = active_tracer(), current_trace()
    parent = None if tracer is None else tracer._current_parent()
    if trace is not None and parent is not None:
        found["TRACEPARENT"] = f"00-{trace.trace_id}-{parent}-01"
    return found


# -- resources ---------------------------------------------------------------------------------------


def _prompt_variables(resources: NamedResources) -> dict[str, str]:
    """The text of every prompt template under its name, and that of the first one as SHARPEN_PROMPT."""
    owners: dict[str, str] = {}
    found: dict[str, str] = {}
    for name, each in resources.items():
        if not isinstance(each, PromptTemplate):
            continue
        variable = f"{PREFIX}PROMPT_{re.sub(r'[^A-Z0-9]', '_', name.upper())}"
        if variable in owners:
            raise InvalidInputError(
                f"the prompts {owners[variable]!r} and {name!r} both map to the environment variable {variable}: "
                "rename one"
            )
        owners[variable] = name
        found |= {variable: each.template} | ({} if found else {f"{PREFIX}PROMPT": each.template})
    return {name: text for name, text in found.items() if _fits(text)}


def _fits(text: str) -> bool:
    return "\0" not in text and len(text.encode("utf-8", "surrogateescape")) <= MAX_VALUE_BYTES


def _bound(resource: Resource, rollout: Rollout) -> Resource:
    """Return a model behind the gateway with the attempt's own URL, other resources as they are."""
    if isinstance(resource, ProxyLLM) and isinstance(rollout, AttemptedRollout):
        return resource.with_attempted_rollout(rollout)
    return resource


def _model_variables(resources: NamedResources, rollout: Rollout) -> dict[str, str]:
    """The first LLM, under the names that SDKs look for."""
    llm = next((each for each in resources.values() if isinstance(each, LLM)), None)
    if llm is None:
        return {}
    bound, key = _bound(llm, rollout), llm.resolve_api_key()
    assert isinstance(bound, LLM)
    found = {"SHARPEN_MODEL": llm.model, "OPENAI_BASE_URL": bound.endpoint, "OPENAI_API_BASE": bound.endpoint}
    if isinstance(llm, ProxyLLM):
        key = key or NO_KEY
        found[GATEWAY_URL] = bound.endpoint.rstrip("/").removesuffix("/v1")  # that SDK adds it
        found["ANTHROPIC_API_KEY"] = key
    return found if key is None else {**found, "OPENAI_API_KEY": key}


# -- the machine -------------------------------------------------------------------------------------


def _with_this_python(environment: dict[str, str]) -> dict[str, str]:
    """In a virtual environment `python` is its own, also where nobody has activated it."""
    here = str(Path(sys.executable).parent)
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    if sys.prefix == sys.base_prefix or here in folders:
        return environment
    return {**environment, "PATH": os.pathsep.join([here, *folders])}


def _beside_proxies(environment: dict[str, str]) -> dict[str, str]:
    """Calls to this machine do not go through a proxy that the environment names."""
    if not any(name.lower().endswith("_proxy") for name in environment):
        return environment
    return environment | {name: _with_loopback(environment.get(name, "")) for name in ("NO_PROXY", "no_proxy")}


def _with_loopback(hosts: str) -> str:
    known = filter(None, (host.strip() for host in hosts.split(",")))
    return ",".join(dict.fromkeys([*known, "127.0.0.1", "localhost"]))
