"""From specs to the parts of a run. Override a `_make_*` method to build a part your own way.

Callbacks and loggers are built later, in the process of the algorithm; their specs are checked here.
"""

import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..algorithm import Algorithm
from ..algorithm.base import Gateway
from ..algorithm.sequence import AlgorithmSequence, build_stages
from ..callbacks import Callback
from ..checks import did_you_mean, listed
from ..compat.trainer import TrainerLegacy
from ..components import DEFAULT_REGISTRY, ComponentSpec, build_component
from ..components.build import has_methods_of
from ..components.paths import Origin, is_address, load_from, resolve_address
from ..components.registry import Target, classes_in_main
from ..errors import ComponentError, ComponentTypeError, ConfigError
from ..execution import ClientServerExecutionStrategy, ExecutionStrategy
from ..loggers import Logger
from ..runner import LitAgentRunner, Runner
from ..secrets import hidden_password
from ..store import LightningStore
from ..types import Hook, NamedResources

if TYPE_CHECKING:
    from pathlib import Path

    from ..adapter import TraceAdapter
    from ..tracer import Tracer

log = logging.getLogger(__name__)
_SQLITE = (
    "SQLiteStore",
    "sqlite",
    "sharpen.SQLiteStore",
    "sharpen.store.SQLiteStore",
    "sharpen.store.sqlite.SQLiteStore",
)


class Factories(TrainerLegacy):
    """Builds the parts. What a part's own constructor takes of its siblings, it is given."""

    tracer: "Tracer"
    adapter: "TraceAdapter[Any]"
    strategy: ExecutionStrategy
    hooks: list[Hook]
    n_runners: int | None
    max_rollouts: int | None
    port: int | None
    initial_resources: NamedResources | None
    _specs: dict[str, Any]
    _store: LightningStore | None = None
    _llm_proxy: Gateway | None = None

    @property
    def store(self) -> LightningStore:
        """The store of the run under way, of the last one, or of the next: made when it is first asked for."""
        if self._store is None:
            offered = taken_by(self._make_store, strategy=self.strategy)
            self._store = self._make_store(self._specs["store"], **offered)
        return self._store

    @property
    def made_store(self) -> LightningStore | None:
        """The store, if it has been made already."""
        return self._store

    @property
    def llm_proxy(self) -> Gateway | None:
        """The gateway, made when it is first asked for."""
        if self._llm_proxy is None and self._specs["llm_proxy"] is not None:
            self._llm_proxy = self._make_llm_proxy(self._specs["llm_proxy"], store=self.store)
        return self._llm_proxy

    def _make_tracer(self, tracer: "ComponentSpec[Tracer]") -> "Tracer":
        from ..tracer import OtelTracer, Tracer

        return build_component(tracer, expected_type=Tracer, spec_name="tracer", default_factory=OtelTracer)

    def _make_adapter(self, adapter: "ComponentSpec[TraceAdapter[Any]]") -> "TraceAdapter[Any]":
        from ..adapter import TraceAdapter, TracerTraceToTriplet

        return build_component(
            adapter,
            expected_type=TraceAdapter,  # type: ignore[type-abstract]
            spec_name="adapter",
            default_factory=TracerTraceToTriplet,
            dict_requires_type=False,
            dict_default_cls=TracerTraceToTriplet,
        )

    def _make_algorithm(
        self, algorithm: ComponentSpec[Algorithm[Any]] | Sequence[ComponentSpec[Algorithm[Any]]]
    ) -> Algorithm[Any] | None:
        # The store is made when the run begins, the gateway with it: asking for either is what makes it now.
        offered = {
            "store": lambda: self.store,
            "llm_proxy": lambda: self.llm_proxy,
            "tracer": lambda: self.tracer,
            "adapter": lambda: self.adapter,
            "initial_resources": lambda: self.initial_resources,
        }
        if isinstance(algorithm, list | tuple):
            return AlgorithmSequence(build_stages(algorithm, offered=offered))
        return build_component(
            algorithm, expected_type=Algorithm, spec_name="algorithm", allow_none=True, optional_defaults=offered
        )

    def _make_strategy(
        self, strategy: ComponentSpec[ExecutionStrategy], *, n_runners: int | None = None, port: int | None = None
    ) -> ExecutionStrategy:
        # An override may pass neither number on. Where nobody gave n_runners, the strategy has its own default.
        n_runners = self.n_runners if n_runners is None else n_runners
        is_given = self.n_runners is not None or n_runners != 1
        wanted = {"n_runners": n_runners if is_given else None, "server_port": self.port if port is None else port}
        offered = {name: value for name, value in wanted.items() if value is not None}
        return build_component(
            ClientServerExecutionStrategy if strategy is None else strategy,
            expected_type=ExecutionStrategy,
            spec_name="strategy",
            optional_defaults=offered,
            dict_requires_type=False,
            dict_default_cls=ClientServerExecutionStrategy,
        )

    def _make_runner(self, runner: ComponentSpec[Runner[Any]]) -> Runner[Any]:
        offered = {"tracer": lambda: self.tracer, "max_rollouts": self.max_rollouts, "hooks": lambda: self.hooks}
        return build_component(
            LitAgentRunner if runner is None else runner,
            expected_type=Runner,
            spec_name="runner",
            optional_defaults=offered,
            dict_requires_type=False,
            dict_default_cls=LitAgentRunner,
        )

    def _make_store(
        self, store: ComponentSpec[LightningStore], strategy: ExecutionStrategy | None = None
    ) -> LightningStore:
        if store is None and is_runner_only(self.strategy if strategy is None else strategy):
            store = "memory"  # never used: the store of this run is served elsewhere
        if is_address(store):
            return _opened(store)
        if has_no_place(store):
            given = store if isinstance(store, Mapping) else {}
            store = {**given, "type": "SQLiteStore", "database_url": self._place_of_store()}
        return build_component(
            store, expected_type=LightningStore, spec_name="store", optional_defaults={"thread_safe": True}
        )

    def _place_of_store(self) -> "Path":
        raise NotImplementedError

    def _make_llm_proxy(self, llm_proxy: ComponentSpec[Any], *, store: LightningStore) -> Gateway | None:
        return build_component(
            _with_type(llm_proxy),
            expected_type=Gateway,  # type: ignore[type-abstract]
            spec_name="llm_proxy",
            allow_none=True,
            optional_defaults={"store": lambda: store},
        )

    def _normalize_hooks(self, hooks: Hook | Sequence[Any] | None) -> list[Hook]:
        if hooks is None:
            return []
        several = hooks if isinstance(hooks, Sequence) and not isinstance(hooks, str) else [hooks]
        return [build_component(each, expected_type=Hook, spec_name="hooks") for each in several]

    def _normalize_callbacks(self, callbacks: Any) -> list[Any]:
        """The specs; they are built in the process of the algorithm."""
        return _spec_list(callbacks, Callback, "callbacks")

    def _normalize_loggers(self, loggers: Any) -> list[Any]:
        """The specs; they are built in the process of the algorithm."""
        return _spec_list(loggers, Logger, "loggers")

    # -- settings that two parts must agree on -------------------------------------------------------

    def _check_strategy(self) -> None:
        """What was given to the trainer must be what the strategy has: nothing is dropped in silence."""
        name = type(self.strategy).__name__
        if self.port is not None:
            port = getattr(self.strategy, "server_port", None)
            if not hasattr(self.strategy, "server_port"):
                raise ConfigError(f"port is {self.port}, but {name} has no store server: omit port, or use 'cs'")
            if port != self.port:
                raise ConfigError(f"port is {self.port}, but the given {name} has server_port={port}")
        if self.n_runners is not None:
            count = getattr(self.strategy, "n_runners", None)
            if count is None:
                log.warning("n_runners is %d, but %s does not have that setting", self.n_runners, name)
            elif count != self.n_runners:
                raise ConfigError(
                    f"n_runners is {self.n_runners}, but the given {name} has n_runners={count}: change it there, "
                    "or pass only the strategy's name ('shm', 'cs') and n_runners here"
                )

    def _check_runner(self, runner: Runner[Any]) -> None:
        name = type(runner).__name__
        limit = getattr(runner, "max_rollouts", None)
        if self.max_rollouts is not None and limit != self.max_rollouts:
            raise ConfigError(f"max_rollouts is {self.max_rollouts}, but the given {name} has max_rollouts={limit}")
        if getattr(runner, "tracer", None) is None:
            runner.tracer = self.tracer


def _opened(url: str) -> LightningStore:
    """The store that an address names; `env:NAME` stands for one with a password."""
    from ..store.opening import open_url

    found = resolve_address(url)
    if not found.startswith(("http://", "https://")):
        return open_url(found)
    from ..store.client import LightningStoreClient

    try:
        return LightningStoreClient(found)
    except ValueError as error:  # a port that is no number; and our own errors, which say more
        raise ConfigError(f"store is {hidden_password(found)!r}: {error}") from error


def _with_type(llm_proxy: ComponentSpec[Any]) -> ComponentSpec[Any]:
    """A dict without a type is for the gateway of this package, which is imported only then; an address is that of one
    that runs elsewhere."""
    if is_address(llm_proxy):
        return {"type": "LLMProxyClient", "url": resolve_address(llm_proxy)}
    return {"type": "LLMProxy", **llm_proxy} if isinstance(llm_proxy, Mapping) else llm_proxy


def has_no_place(store: ComponentSpec[LightningStore]) -> bool:
    """Whether a spec asks for a durable store without saying where: then it lies in the folder of the run."""
    if isinstance(store, Mapping):
        return store.get("type") in _SQLITE and "database_url" not in store
    module = sys.modules.get("sharpen.store.sqlite")  # whoever has the class has loaded it
    is_class = module is not None and store is module.SQLiteStore
    return store is None or is_class or (isinstance(store, str) and store in _SQLITE)


def taken_by(method: Callable[..., Any], **offered: Any) -> dict[str, Any]:
    """Of the keywords that are offered those that a method takes: an override may have fewer."""
    parameters = inspect.signature(method).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {name: value for name, value in offered.items() if takes_all or name in parameters}


def is_runner_only(strategy: object) -> bool:
    """Whether this process only runs agents for a store and an algorithm elsewhere."""
    return getattr(strategy, "role", None) == "runner"


# -- specs of what is built later --------------------------------------------------------------------


def _spec_list(specs: Any, expected_type: type, spec_name: str) -> list[Any]:
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
    """Refuse a name that leads nowhere, with the nearest that does, and one that leads to another kind of part."""
    name, origin = spec if isinstance(spec, str) else spec.get("type"), Origin(spec_name, spec)
    if name is None:
        raise ComponentError(f"{origin}: {spec_name} dict must have a 'type' key: a name or an import path")
    if not isinstance(name, str):
        return
    known: dict[str, Target] = {**classes_in_main(), **DEFAULT_REGISTRY}
    target = known.get(name, name)
    if isinstance(target, str) and "." not in target:
        fitting = sorted(each for each, leads_to in known.items() if _is_a(_loaded(leads_to), expected_type))
        hint = did_you_mean(name, fitting) or f" Known names: {listed(fitting)}."
        raise ComponentError(f"{origin}: no component is named {name!r}.{hint}")
    found = _loaded(target)
    if isinstance(found, str) and _is_in_loaded_module(found):
        load_from(found, origin)  # which tells what the module has instead
    if isinstance(found, type) and not _is_a(found, expected_type):
        raise ComponentTypeError(f"{origin} resolves to {found.__name__}, which is not a {expected_type.__name__}")


def _loaded(target: Target) -> Target:
    """What a path leads to, if it is imported already; otherwise the path."""
    if not isinstance(target, str):
        return target
    module, _, name = target.rpartition(".")
    found: Target = vars(sys.modules[module]).get(name, target) if module in sys.modules else target
    return found


def _is_in_loaded_module(path: str) -> bool:
    """Whether the module is loaded and tells what it has. One that loads names on first use lists them in `__all__`."""
    module_name, _, name = path.rpartition(".")
    module = sys.modules.get(module_name)
    return module is not None and (not hasattr(module, "__getattr__") or name not in getattr(module, "__all__", [name]))


def _is_a(found: Target, expected_type: type) -> bool:
    return isinstance(found, type) and (issubclass(found, expected_type) or has_methods_of(found, expected_type))
