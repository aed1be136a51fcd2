"""`config.json`: what a run was made of, so that it can be understood and repeated. Secrets are never in it."""

import contextlib
import inspect
import os
import platform
import sys
import time
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..algorithm import Algorithm
from ..algorithm.datasets import size_of
from ..algorithm.sequence import AlgorithmSequence, path_of
from ..components.paths import class_path
from ..runs.folder import MOMENT
from ..secrets import HIDDEN, hidden_password, looks_secret, shown, without_secrets
from ..types import Dataset

if TYPE_CHECKING:
    from .run import Run

_PARTS = ("store", "runner", "strategy", "tracer", "adapter", "llm_proxy")
MAX_TEXT = 2000
_PACKAGES = ("msgspec", "cloudpickle", "opentelemetry-sdk", "aiohttp", "uvicorn", "rich")


def resolved_config(run: "Run") -> dict[str, Any]:
    """Every component with its class and the spec it came from, and all settings."""
    trainer, agent, algorithm = run.trainer, run.agent, run.algorithm
    return {
        "started": time.strftime(MOMENT),
        "name": trainer.name,
        "agent": {"class": class_path(agent), "name": getattr(agent, "__name__", type(agent).__name__)},
        "components": {"algorithm": describe(algorithm, trainer.spec_of("algorithm"))}
        | {name: _component(getattr(trainer, name), trainer.spec_of(name)) for name in _PARTS},
        "hooks": [class_path(hook) for hook in trainer.hooks],
        "callbacks": [_named(spec) for spec in trainer.callbacks],
        "loggers": [_named(spec) for spec in trainer.loggers],
        "settings": {name: getattr(trainer, name) for name in trainer.SETTINGS},
        "rollout_config": trainer.rollout_config,
        "initial_resources": sorted(trainer.initial_resources or {}),
        "datasets": {name: _dataset(each) for name, each in zip(("train", "val"), run.datasets, strict=True)},
        "environment": _environment(),
        "versions": _versions(),
    }


def describe(algorithm: Algorithm[Any] | None, spec: object = None) -> dict[str, Any] | None:
    """What an algorithm is, by which a resumed run is known to be the same; a sequence with its stages."""
    if not isinstance(algorithm, AlgorithmSequence):
        return _component(algorithm, spec)
    specs = spec if isinstance(spec, list | tuple) else algorithm.stages
    stages = [
        (_component(*pair) or {}) | {"class": path_of(pair[0])} for pair in zip(algorithm.stages, specs, strict=True)
    ]
    return {"class": class_path(algorithm), "stages": stages}


def made_by(described: Mapping[str, Any] | None) -> str | None:
    """The same in words."""
    if not described:
        return None
    stages = ", then ".join(stage["class"] for stage in described.get("stages", ()))
    return f"a sequence of {stages}" if stages else described.get("class")


def _component(component: object, spec: object) -> dict[str, Any] | None:
    if component is None:
        return None
    described: dict[str, Any] = {"class": class_path(component)}
    if options := options_of(component):
        described["options"] = options
    if isinstance(spec, str):
        spec = hidden_password(spec)  # it may be the address of a store
    return described if spec is component or spec is None else {**described, "spec": shown(spec)}


def _named(spec: object) -> str:
    """A callback or a logger, which is built only in the process of the algorithm."""
    return shown(spec) if isinstance(spec, str | Mapping) or callable(spec) else class_path(spec)


def _dataset(dataset: Dataset[Any] | None) -> dict[str, Any] | None:
    return None if dataset is None else {"class": class_path(dataset), "size": size_of(dataset)}


def _environment() -> dict[str, str]:
    ours = {name: value for name, value in sorted(os.environ.items()) if name.startswith("SHARPEN_")}
    return {name: without_secrets(hidden_password(each)) for name, each in ours.items() if not looks_secret(name)}


@cache
def _versions() -> dict[str, str]:
    from importlib import metadata

    found = {"sharpen": __version__, "python": sys.version.split()[0], "platform": platform.platform()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


# -- options of components ---------------------------------------------------------------------------

_NOT_PLAIN = object()


def options_of(component: object) -> dict[str, Any]:
    """Return the options of a component by name, as far as it keeps them under the names of its constructor.

    They are for people who compare runs: plain values alone, and nothing whose name or content looks like a secret.
    """
    try:
        names = inspect.signature(type(component)).parameters
    except (TypeError, ValueError):  # some classes have no signature
        return {}
    # Some turn what they are given into one configuration.
    return _plain_values({name: _value(component, name) for name in dict.fromkeys([*names, "config"])})


def _value(component: object, name: str) -> Any:
    """What it holds under the name: its own attribute, or a property of its class."""
    if name in getattr(component, "__dict__", {}):
        return component.__dict__[name]
    is_property = isinstance(inspect.getattr_static(type(component), name, None), property)
    return getattr(component, name) if is_property else _NOT_PLAIN


def _plain_values(values: Mapping[Any, Any]) -> dict[str, Any]:
    pairs = {str(name): HIDDEN if looks_secret(str(name), each) else _plain(each) for name, each in values.items()}
    return {name: each for name, each in pairs.items() if each is not _NOT_PLAIN}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):  # JSON knows no classes of numbers, such as a default that can be told apart
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, str):
        text = without_secrets(value)  # before it is cut, or half a secret could stay
        return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return _NOT_PLAIN if any(item is _NOT_PLAIN for item in items) else items
    return _plain_values(value) if isinstance(value, dict) else _NOT_PLAIN
