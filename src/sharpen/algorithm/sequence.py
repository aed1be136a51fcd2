"""`AlgorithmSequence`: one algorithm after another on the same agent.

A stage begins with the resources that were published last when the one before it ended. A checkpoint keeps which stage
it is, what it began with and its own state: a run that goes on skips the stages that have ended, and the one under way
begins with the same again, whatever it has published meanwhile.
"""

import itertools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..components import ComponentSpec, build_component
from ..components.paths import class_path
from ..errors import ComponentError, ConfigError, RunError
from ..types import Dataset, NamedResources, ProxyLLM
from .base import Algorithm, State
from .bounds import UpperBound
from .decorator import FunctionalAlgorithm
from .gateway_hold import HeldCalls
from .handoff import HandedOn, is_below
from .threads import run_to_end

log = logging.getLogger(__name__)
Spec = ComponentSpec[Algorithm[Any]]


class Place(msgspec.Struct, frozen=True):
    """Where a sequence is."""

    stage: int = 0
    state: State | None = None
    """That of the stage; None where it has not kept any."""
    handed_on: HandedOn | None = None
    """What the stage began with; None where that is what the run began with."""


class AlgorithmSequence(Algorithm[Any]):
    """Runs several algorithms in order on the same agent.

    Each stage starts from the resources that the previous one published last. Stages share the data sets, the callbacks
    and the loggers. Iterations are counted across all stages, and a callback that asks to stop ends the whole sequence.
    Each stage writes to a separate folder: `1-fewshot`, `2-grpo`.
    """

    def __init__(self, stages: Sequence[Spec]) -> None:
        self.stages = tuple(build_stages(stages))
        self.needs_gateway = any(stage.needs_gateway for stage in self.stages)
        self.runs_side_by_side = any(stage.runs_side_by_side for stage in self.stages)
        self.holds_calls = any(stage.holds_calls for stage in self.stages)
        self._place = Place()
        self._loaded: Place | None = None
        self._running: Algorithm[Any] | None = None

    @property
    def publishes_model(self) -> bool:
        return self.stages[0].publishes_model

    @property
    def default_loggers(self) -> Sequence[Any]:
        """The default loggers of all stages, without duplicates."""
        found: list[Any] = []
        for stage in self.stages:
            found += [each for each in stage.default_loggers if each not in found]
        return found

    def upper_bound(self, train_size: int | None, val_size: int | None) -> UpperBound:
        """Return the sum of the bounds of all stages."""
        return sum((stage.upper_bound(train_size, val_size) for stage in self.stages), UpperBound(0))

    # -- the run -------------------------------------------------------------------------------------

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        place, self._loaded = self._loaded or Place(), None  # a second run is a new one
        self._place = place
        datasets = {"train_dataset": train_dataset, "val_dataset": val_dataset}
        if len(self.stages) - place.stage > 1:
            self._refuse_read_once(datasets)
            self._warn_of_models_that_end(place)
        while place.stage < len(self.stages):
            if self.should_stop and place.state is None:
                log.info("a callback asked to stop; skipping %s", self._title(place))
                return
            await self._run_stage(place, datasets)
            place = await self._end_stage(place)

    async def _run_stage(self, place: Place, datasets: Mapping[str, Dataset[Any] | None]) -> None:
        stage = self.stages[place.stage]
        self._equip(stage, place)
        stage.set_initial_resources(await self._resources(stage, place))
        if place.state is not None:
            stage.load_state_dict(place.state)
        if not stage.holds_calls:
            await HeldCalls(self._llm_proxy, is_ours=self.own_gateway_address is not None).let_go()
        log.info("%s %s", self._title(place), "started" if place.state is None else "resumed")
        self._running = stage
        try:
            await run_to_end(stage, **datasets)
        finally:
            self._running = None
            stage.set_checkpointer(None)  # what it kept from now on would undo what later stages keep

    async def _end_stage(self, place: Place) -> Place:
        """The place of the next stage."""
        log.info("%s finished", self._title(place))
        handed_on = await HandedOn.latest(self.get_store(), self.own_gateway_address)
        following = Place(place.stage + 1, None, handed_on)
        self._keep(following)
        return following

    def _equip(self, stage: Algorithm[Any], place: Place) -> None:
        """Give the stage what the sequence was given."""
        trainer = self._trainer() if self._trainer is not None else None
        if trainer is not None:
            stage.set_trainer(trainer)
        stage.set_store(self.get_store())
        if self._adapter is not None:
            stage.set_adapter(self._adapter)
        stage.set_llm_proxy(self._llm_proxy)
        stage.set_loop(self._loop)
        stage.agent_prompt, stage.agent_takes_prompt = self.agent_prompt, self.agent_takes_prompt
        stage.own_gateway_address = self.own_gateway_address
        stage.run_dir, stage.records_dir = self._folder_of(stage, place), self.records_dir
        keep = lambda state: self._keep(msgspec.structs.replace(place, state=state))  # noqa: E731
        stage.set_checkpointer(None if self._save is None else keep)

    def _folder_of(self, stage: Algorithm[Any], place: Place) -> Path | None:
        if self.run_dir is None:
            return None
        folder = Path(self.run_dir) / f"{place.stage + 1}-{file_name(stage)}"
        folder.mkdir(exist_ok=True)
        return folder

    async def _resources(self, stage: Algorithm[Any], place: Place) -> NamedResources | None:
        """What the stage begins with. It is the latest in the store, too, unless the stage has come further."""
        if place.handed_on is None:
            return self.get_initial_resources()
        store = self.get_store()
        resources = await place.handed_on.read(store, self.own_gateway_address)
        if not stage.publishes_model:
            self._refuse_unserved(resources, place)
        latest = await store.get_latest_resources()
        if place.state is None and (latest is None or latest.resources != resources):
            await store.update_resources(place.handed_on.resources_id, resources)
        return resources

    def _title(self, place: Place) -> str:
        return f"stage {place.stage + 1} of {len(self.stages)} ({title_of(self.stages[place.stage])})"

    def _refuse_read_once(self, datasets: Mapping[str, Dataset[Any] | None]) -> None:
        for name, dataset in datasets.items():
            if hasattr(dataset, "__next__"):
                raise ConfigError(
                    f"{name} is a {type(dataset).__name__}, which can be read only once, but {len(self.stages)} "
                    "algorithms need it: use a list, or an object whose __iter__ starts from the beginning"
                )

    def _warn_of_models_that_end(self, place: Place) -> None:
        """At once, and not only when the first stage is done, which may take hours."""
        for before, after in itertools.pairwise(self.stages[place.stage :]):
            if before.publishes_model and not after.publishes_model:
                names = title_of(before), title_of(after)
                log.warning(
                    "the model of %s may stop when it finishes; %s does not serve a model and needs another one", *names
                )

    def _refuse_unserved(self, resources: NamedResources, place: Place) -> None:
        """A model of ours is behind the gateway only as long as the stage that serves it."""
        address, served = self.own_gateway_address, getattr(self._llm_proxy, "model_names", None)
        if address is None or served is None or any("*" in name for name in served):
            return
        for name, each in resources.items():
            if isinstance(each, ProxyLLM) and is_below(each, address) and each.model not in served:
                raise RunError(
                    f"{self._title(place)} cannot start: {name} refers to the model {each.model!r}, which an earlier "
                    "stage served until it finished. Put this stage before that one, or let it serve its own model "
                    "(model=...)"
                )

    # -- checkpoints ---------------------------------------------------------------------------------

    def _keep(self, place: Place) -> None:
        self._place = place
        if self._save is not None:
            self._save(self._state_of(place))

    def state_dict(self) -> State:
        """Return the current stage, what it started with, and its state."""
        if self._loaded is not None:
            return self._state_of(self._loaded)
        if self._running is None:
            return self._state_of(self._place)
        return self._state_of(msgspec.structs.replace(self._place, state=self._running.state_dict()))

    def load_state_dict(self, state: State) -> None:
        """Set where the next run resumes; during a run, restore the state of the current stage."""
        place = self._place_in(state) if state else None
        if self._running is None:
            self._loaded = place
        elif place is not None and place.stage == self._place.stage:
            self._running.load_state_dict(place.state or {})
        else:
            log.warning(
                "%s keeps its state, since the state to restore belongs to another stage", self._title(self._place)
            )

    def _state_of(self, place: Place) -> State:
        handed_on = None if place.handed_on is None else msgspec.structs.asdict(place.handed_on)
        return {"stage": place.stage, "stages": self.paths, "state": place.state, "handed_on": handed_on}

    def _place_in(self, state: State) -> Place:
        if state.get("stages") != self.paths:
            before = ", then ".join(state.get("stages") or ["no sequence"])
            raise ConfigError(
                f"the saved state belongs to {before}, but the sequence is {', then '.join(self.paths)}: a run must be "
                "resumed with the same algorithms in the same order"
            )
        given = state["handed_on"]
        return Place(state["stage"], state["state"], None if given is None else HandedOn(**given))

    @property
    def paths(self) -> list[str]:
        """The import paths of the algorithms, as checkpoints record them."""
        return [path_of(stage) for stage in self.stages]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_running": None}


def build_stages(specs: Sequence[Spec], *, offered: Mapping[str, Any] | None = None) -> list[Algorithm[Any]]:
    """The algorithms that specs ask for; `offered` is what their constructors may take."""
    if isinstance(specs, str) or not isinstance(specs, Sequence):
        raise ComponentError(f"a sequence takes a list of algorithms, not a {type(specs).__name__}")
    if not specs:
        raise ConfigError("algorithm is an empty list: add at least one algorithm, or leave it out")
    stages: list[Algorithm[Any]] = []
    for number, spec in enumerate(specs):
        name = f"algorithm[{number}]"
        stage = _build_stage(spec, name, offered)
        if any(stage is other for other in stages):
            raise ConfigError(
                f"{name} is the same object as an earlier stage: create a separate {title_of(stage)} for each"
            )
        stages.append(stage)
    return stages


def _build_stage(spec: Spec, name: str, offered: Mapping[str, Any] | None) -> Algorithm[Any]:
    if not isinstance(spec, list | tuple):
        stage = build_component(spec, expected_type=Algorithm, spec_name=name, optional_defaults=offered)
        if not isinstance(stage, AlgorithmSequence):
            return stage
    raise ConfigError(f"{name} is itself a sequence: use one list with all algorithms in order")


def stages_of(algorithm: Algorithm[Any] | None) -> Sequence[Algorithm[Any]]:
    """Those of a sequence, or the algorithm itself."""
    if algorithm is None:
        return ()
    return algorithm.stages if isinstance(algorithm, AlgorithmSequence) else (algorithm,)


def title_of(algorithm: Algorithm[Any]) -> str:
    """What people call it."""
    if isinstance(algorithm, AlgorithmSequence):
        return ", then ".join(map(title_of, algorithm.stages))
    if isinstance(algorithm, FunctionalAlgorithm):
        return str(getattr(algorithm, "__name__", "algo"))
    return type(algorithm).__name__


def file_name(algorithm: Algorithm[Any]) -> str:
    """What a folder of it is called."""
    if isinstance(algorithm, AlgorithmSequence):
        return "-".join(map(file_name, algorithm.stages))[:100]
    title = title_of(algorithm)
    return title.strip("<>") if isinstance(algorithm, FunctionalAlgorithm) else title.lower().lstrip("_")


def path_of(algorithm: Algorithm[Any]) -> str:
    """Where its class, or its function, is defined."""
    if isinstance(algorithm, FunctionalAlgorithm) and hasattr(algorithm, "__qualname__"):
        return f"{algorithm.__module__}.{algorithm.__qualname__}"
    return class_path(algorithm)
