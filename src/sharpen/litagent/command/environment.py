"""What a program finds in its environment: the task, the prompts, the model, and where to send a reward.

What is too large for the environment stands only in the files, which only this user can read.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...errors import ConfigError, InvalidInputError, TaskError
from ...semconv import LightningResourceAttributes as Names
from ...tracer.base import active_tracer
from ...tracer.trace import current_trace
from ...types import LLM, AttemptedRollout, NamedResources, PromptTemplate, ProxyLLM, Rollout
from .reports import REWARD, TRACES

PREFIX = "SHARPEN_"
MAX_VALUE_BYTES = 100_000  # Linux takes 128 KiB in one variable
TASK_FILE, RESOURCES_FILE = "task.json", "resources.json"
NO_KEY = "none"  # SDKs insist on a key
GATEWAY_URL, FOREIGN_KEY = "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN"
PLAIN = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM")
"""What is inherited in any case, with the variables of the locale (LC_*)."""

Inherited = bool | Sequence[str]


class Environment:
    """The environment of the programs of an agent: `extra` variables are the user's own."""

    def __init__(self, inherited: Inherited, extra: Mapping[str, str]) -> None:
        self._inherited = _check_inherited(inherited)
        self._extra = _check_extra(extra)

    def base(self) -> dict[str, str]:
        """What every program of the agent gets."""
        chosen = {name: value for name, value in os.environ.items() if self._is_inherited(name)}
        return _with_this_python(chosen) | self._extra

    def of(self, task: Any, resources: NamedResources, rollout: Rollout, folder: Path, url: str) -> dict[str, str]:
        """What the program of one rollout gets; its files are written to the folder, and it reports to the URL."""
        llms = {name: bound(each, rollout) for name, each in resources.items() if isinstance(each, LLM)}
        own = dict(_about(rollout))
        own |= _in_file("TASK", folder / TASK_FILE, _task_json(task))
        own |= _in_file("RESOURCES", folder / RESOURCES_FILE, msgspec.json.encode({**resources, **llms}))
        own |= prompt_variables(resources)
        own |= _model_variables(resources, llms)
        own |= _report_variables(url) | {"OTEL_RESOURCE_ATTRIBUTES": _resource_attributes(rollout)}
        return _beside_proxies({**_without_foreign_keys(self.base(), own), **own, **self._extra})

    def _is_inherited(self, name: str) -> bool:
        if name.startswith(PREFIX):
            return False  # settings and tokens of the runner
        if isinstance(self._inherited, bool) and self._inherited:
            return True
        named = () if isinstance(self._inherited, bool) else self._inherited
        return name in PLAIN or name.startswith("LC_") or name in named


def _check_inherited(inherited: Any) -> Inherited:
    if isinstance(inherited, bool):
        return inherited
    if (
        not isinstance(inherited, Sequence)
        or isinstance(inherited, str)
        or not all(isinstance(name, str) for name in inherited)
    ):
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


def _about(rollout: Rollout) -> Iterator[tuple[str, str]]:
    yield "SHARPEN_ROLLOUT_ID", rollout.rollout_id
    yield "SHARPEN_MODE", rollout.mode or ""
    if isinstance(rollout, AttemptedRollout):
        yield "SHARPEN_ATTEMPT_ID", rollout.attempt.attempt_id


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
    found = {f"{PREFIX}{name}_FILE": str(path)}
    return found | ({f"{PREFIX}{name}": content.decode()} if len(content) <= MAX_VALUE_BYTES else {})


def _report_variables(url: str) -> dict[str, str]:
    """Where it sends rewards, and where an instrumented program sends its spans."""
    return {
        "SHARPEN_REWARD_URL": f"{url}{REWARD}",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{url}{TRACES}",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        **_trace_parent(),
    }


def _trace_parent() -> dict[str, str]:
    """The span below which the program's own spans stand, as W3C writes it."""
    tracer, trace = active_tracer(), current_trace()
    parent = None if tracer is None else tracer._current_parent()
    return {} if trace is None or parent is None else {"TRACEPARENT": f"00-{trace.trace_id}-{parent}-01"}


def _resource_attributes(rollout: Rollout) -> str:
    """Spans that reach the store on another way than ours are told apart by these."""
    ids = {Names.ROLLOUT_ID.value: rollout.rollout_id}
    if isinstance(rollout, AttemptedRollout):
        ids[Names.ATTEMPT_ID.value] = rollout.attempt.attempt_id
    before = os.environ.get("OTEL_RESOURCE_ATTRIBUTES")
    return ",".join([*([before] if before else []), *(f"{name}={value}" for name, value in ids.items())])


# -- resources ---------------------------------------------------------------------------------------


def prompt_variables(resources: NamedResources) -> dict[str, str]:
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


def bound(llm: LLM, rollout: Rollout) -> LLM:
    """The LLM with the attempt's own URL where it stands behind the gateway."""
    if isinstance(llm, ProxyLLM) and isinstance(rollout, AttemptedRollout):
        return llm.with_attempted_rollout(rollout)
    return llm


def _model_variables(resources: NamedResources, llms: Mapping[str, LLM]) -> dict[str, str]:
    """The first LLM, under the names that SDKs look for."""
    for name, llm in llms.items():
        is_gateway = isinstance(resources[name], ProxyLLM)
        key = llm.resolve_api_key() or (NO_KEY if is_gateway else None)
        found = {
            "SHARPEN_MODEL": llm.model,
            "OPENAI_BASE_URL": llm.endpoint,
            "OPENAI_API_BASE": llm.endpoint,
        } | ({} if key is None else {"OPENAI_API_KEY": key})
        if is_gateway and key is not None:
            found[GATEWAY_URL] = llm.endpoint.rstrip("/").removesuffix("/v1")  # that SDK adds it
            found["ANTHROPIC_API_KEY"] = key
        return found
    return {}


def _without_foreign_keys(base: dict[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """A token of the user's that an SDK would send along to the gateway is no business of the gateway."""
    return {name: value for name, value in base.items() if name != FOREIGN_KEY or GATEWAY_URL not in own}


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
    known: Iterable[str] = filter(None, (host.strip() for host in hosts.split(",")))
    return ",".join(dict.fromkeys([*known, "127.0.0.1", "localhost"]))
