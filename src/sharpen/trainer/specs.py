"""What the specs of parts mean to a trainer, beyond what `components` makes of any spec."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..checks import did_you_mean, listed
from ..components import DEFAULT_REGISTRY, ComponentSpec, build_component
from ..components.build import has_methods_of
from ..components.paths import Origin, is_address, load_from, resolve_address
from ..components.registry import Target, classes_in_main
from ..errors import ComponentError, ComponentTypeError, ConfigError
from ..secrets import hidden_password
from ..store import LightningStore

_SQLITE = re.compile(r"sqlite|(sharpen\.(store\.(sqlite\.)?)?)?SQLiteStore")


def taken_by(method: Callable[..., Any], **offered: Any) -> dict[str, Any]:
    """Of the keywords that are offered those that a method takes: an override may have fewer."""
    parameters = inspect.signature(method).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {name: value for name, value in offered.items() if takes_all or name in parameters}


def takes_two(method: Callable[..., Any]) -> bool:
    """Whether a method takes a second argument by its place."""
    kinds = [each.kind for each in inspect.signature(method).parameters.values()]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Parameter.VAR_POSITIONAL in kinds or sum(kind in positional for kind in kinds) > 1


def is_runner_only(strategy: object) -> bool:
    """Whether this process only runs agents for a store and an algorithm elsewhere."""
    return getattr(strategy, "role", None) == "runner"


# -- stores and gateways -----------------------------------------------------------------------------


def has_no_place(store: ComponentSpec[LightningStore]) -> bool:
    """Whether a spec asks for a durable store without saying where: then it lies in the folder of the run."""
    if isinstance(store, Mapping):
        return _is_sqlite(store.get("type")) and "database_url" not in store
    loaded = getattr(sys.modules.get("sharpen.store.sqlite"), "SQLiteStore", None)  # by whoever has the class
    return store is None or store is loaded or _is_sqlite(store)


def _is_sqlite(name: object) -> bool:
    return isinstance(name, str) and _SQLITE.fullmatch(name) is not None


def store_at(url: str) -> LightningStore:
    """Open the store that an address names; `env:NAME` stands for one with a password."""
    found = resolve_address(url)
    if not found.startswith(("http://", "https://")):
        from ..store.opening import open_url

        return open_url(found)
    from ..store.client import LightningStoreClient

    try:
        return LightningStoreClient(found)
    except ValueError as error:  # a port that is no number; and our own errors, which say more
        raise ConfigError(f"store is {hidden_password(found)!r}: {error}") from error


def gateway_spec(llm_proxy: ComponentSpec[Any]) -> ComponentSpec[Any]:
    """A dict without a type is for the gateway of this package, which is imported only then; an address is that of one
    that runs elsewhere."""
    if is_address(llm_proxy):
        return {"type": "LLMProxyClient", "url": resolve_address(llm_proxy)}
    return {"type": "LLMProxy", **llm_proxy} if isinstance(llm_proxy, Mapping) else llm_proxy


# -- callbacks and loggers, which are built where the algorithm runs ---------------------------------


def listener_specs(specs: Any, expected_type: type, spec_name: str) -> list[Any]:
    """The specs of one or several parts. What can be no spec at all is refused here, not in the middle of a run."""
    if specs is None:
        return []
    several = list(specs) if isinstance(specs, Sequence) and not isinstance(specs, str) else [specs]
    for spec in several:
        if isinstance(spec, str | Mapping):
            _check_name(spec, expected_type, spec_name)
        elif not callable(spec):
            build_component(spec, expected_type=expected_type, spec_name=spec_name)
    return several


def _check_name(spec: str | Mapping[str, Any], expected_type: type, spec_name: str) -> None:
    """Refuse a name that leads nowhere, with the nearest that does, and one that leads to another kind of part. The
    modules of others are not imported for that."""
    name, origin = spec if isinstance(spec, str) else spec.get("type"), Origin(spec_name, spec)
    if name is None:
        raise ComponentError(f"{origin}: {spec_name} dict must have a 'type' key: a name or an import path")
    known: dict[str, Target] = {**classes_in_main(), **DEFAULT_REGISTRY}
    target = known.get(name, name) if isinstance(name, str) else name
    if isinstance(target, str):
        module = target.rpartition(".")[0]
        if not module:
            package = expected_type.__module__.rpartition(".")[0]
            fitting = sorted(each for each, path in known.items() if str(path).startswith(package))
            hint = did_you_mean(name, fitting) or f" Known names: {listed(fitting)}."
            raise ComponentError(f"{origin}: no component is named {name!r}.{hint}")
        if module in sys.modules:
            target = load_from(target, origin)
    if isinstance(target, type) and not (issubclass(target, expected_type) or has_methods_of(target, expected_type)):
        raise ComponentTypeError(f"{origin} resolves to {target.__name__}, which is not a {expected_type.__name__}")
