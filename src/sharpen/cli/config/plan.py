"""What a configuration would do: its components, where every value came from, and upper limits.

Making a plan imports the agent and reads the data, but starts nothing: no rollout, no model, no run folder.
"""

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ...algorithm import Baseline
from ...algorithm.bounds import UpperBound, product
from ...algorithm.datasets import size_of
from ...algorithm.sequence import path_of, stages_of
from ...components.paths import class_path, is_address
from ...secrets import HIDDEN, hidden_password, looks_secret, shown
from .gateway_bounds import run_bound
from .sources import Path_, dotted

if TYPE_CHECKING:
    from .recording_trainer import RecordingTrainer
    from .train_config import TrainConfig


class PlannedValue(msgspec.Struct, frozen=True):
    """A value and where it came from."""

    key: str
    value: Any
    source: str
    """`config.yaml:12`, an override, a reference to the environment, or `default`."""
    kind: str
    """file, override, environment or default."""


class Plan(msgspec.Struct, frozen=True):
    """The plan of a run."""

    config: str
    kind: str
    parts: dict[str, str]
    values: list[PlannedValue]
    datasets: dict[str, int | None]
    """The number of tasks, rows or initial states; None if unknown."""
    bound: dict[str, Any]
    """The upper limit of each; None if unknown."""
    because: list[str]


def make_plan(config: "TrainConfig") -> Plan:
    """Return the plan of a configuration of any kind."""
    make = {"agents": _of_agents, "simulator": _of_simulator, "fine-tuning": _of_fine_tuning}[config.kind]
    parts, datasets, bound, because = make(config)
    return Plan(str(config.path), config.kind, parts, _values(config), datasets, bound, [*because])


_Found = tuple[dict[str, str], dict[str, int | None], dict[str, Any], tuple[str, ...]]


# -- the values --------------------------------------------------------------------------------------


def _values(config: "TrainConfig") -> list[PlannedValue]:
    given = [
        PlannedValue(dotted(path), _seen(config, path, value), str(config.source(path)), config.source(path).kind)
        for path, value in _folded(config)
    ]
    defaults = [
        PlannedValue(dotted(path), _plain(value), "default", "default") for path, value in _defaults(config, (), None)
    ]
    return [*given, *defaults]


def _folded(config: "TrainConfig") -> Iterator[tuple[Path_, Any]]:
    """Yield the values; tasks written in the file itself are counted, not listed."""
    told: set[str | int] = set()
    for path, value in config.leaves():
        whole = config.values[str(path[0])]
        if not isinstance(whole, list) or not str(path[0]).endswith(("_dataset", "_states")):
            yield path, value
        elif path[0] not in told:
            told.add(path[0])
            yield path[:1], f"({len(whole)} in the file)"


def _seen(config: "TrainConfig", path: Path_, value: Any) -> Any:
    """Return what may be shown: nothing under a key that looks secret, the reference for a value of the environment."""
    if path in config.references.secret_paths:
        return config.references.texts[path]
    if path in config.references.literals or any(looks_secret(str(key), value) for key in path):
        return HIDDEN
    return config.hidden(value)


def _defaults(config: "TrainConfig", path: Path_, make: Any) -> Iterator[tuple[Path_, Any]]:
    """Yield the settings that are not set: those of the trainer and of every named component."""
    if not path:
        for key, value in _top_defaults(config):
            if key not in config.values:
                yield (key,), value
        for key, value in config.values.items():
            yield from _inner_defaults(config, (key,), value)
        return
    given = _at(config.values, path)
    for name, value in _parameters(make):
        if name not in given:
            yield (*path, name), value


def _inner_defaults(config: "TrainConfig", path: Path_, value: Any) -> Iterator[tuple[Path_, Any]]:
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from _inner_defaults(config, (*path, number), each)
    elif isinstance(value, Mapping):
        if config.specs.is_spec(value):
            yield from _defaults(config, path, config.specs.find(value["type"], path))
        for key, each in value.items():
            yield from _inner_defaults(config, (*path, key), each)


def _top_defaults(config: "TrainConfig") -> list[tuple[str, Any]]:
    if config.kind == "fine-tuning":
        from .fine_tuning import wrapper_of

        return _parameters(wrapper_of(config))
    if config.kind == "simulator":
        from ...rl import Trainer as PolicyTrainer

        return _parameters(PolicyTrainer)
    from ...trainer import Trainer

    return _parameters(Trainer)


def _parameters(make: Any) -> list[tuple[str, Any]]:
    """Return the defaults of a constructor other than None."""
    try:
        found = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return []
    left_out = (inspect.Parameter.empty, None)
    return [(name, each.default) for name, each in found.items() if not any(each.default is out for out in left_out)]


def _at(values: Any, path: Path_) -> Any:
    for key in path:
        values = values[key]
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | float):
        return float(value) if isinstance(value, float) else int(value)
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else shown(value)


# -- agents ------------------------------------------------------------------------------------------


def _of_agents(config: "TrainConfig") -> _Found:
    agent, sets = config.agent(), config.datasets()
    # An algorithm that needs the store in its constructor gets one that leaves nothing behind.
    trainer = config.trainer(store="memory")
    sizes = [size_of(each) for each in sets]
    bound = _upper_bound(config, trainer, *sizes)
    found = run_bound(
        config, bound, max_attempts=trainer.rollout_config.max_attempts, most_attempts=_most_attempts(trainer)
    )
    numbers = {name: getattr(found, name) for name in ("rollouts", "attempts", "calls", "cost")}
    datasets = {"train": sizes[0], "val": sizes[1]}
    return _parts(config, trainer, agent), datasets, numbers, found.because


def _upper_bound(config: "TrainConfig", trainer: "RecordingTrainer", *sizes: int | None) -> UpperBound:
    algorithm = trainer.algorithm
    if algorithm is None and trainer.is_dev:
        algorithm = Baseline()
    if algorithm is None:
        return UpperBound(None, None, ("there is no algorithm: other programs decide how many rollouts to enqueue",))
    return algorithm.upper_bound(*sizes)


def _most_attempts(trainer: "RecordingTrainer") -> int | None:
    """Return the limit that `max_rollouts` sets: a run ends when all its runners have ended."""
    n_runners = getattr(trainer.strategy, "n_runners", None)
    return product(n_runners, trainer.max_rollouts) if isinstance(n_runners, int) else None


def _parts(config: "TrainConfig", trainer: "RecordingTrainer", agent: Any) -> dict[str, str]:
    name = getattr(agent, "__name__", None)
    found = {"agent": f"{agent.__module__}.{name}" if name else class_path(agent)}
    stages = stages_of(trainer.algorithm)
    found["algorithm"] = ", then ".join(map(path_of, stages)) or "none"
    for part in ("strategy", "runner", "tracer", "adapter"):
        found[part] = class_path(getattr(trainer, part))
    found["store"] = _named(config, "store", "SQLiteStore")
    proxy = trainer.spec_of("llm_proxy")
    found["llm_proxy"] = "none" if proxy is None else _named(config, "llm_proxy", "LLMProxy")
    return found


def _named(config: "TrainConfig", key: str, usual: str) -> str:
    spec = config.values.get(key)
    if is_address(spec):
        return hidden_password(spec)
    name = spec.get("type", usual) if isinstance(spec, Mapping) else spec or usual
    made = config.specs.find(str(name), (key,))
    return f"{made.__module__}.{made.__qualname__}" if isinstance(made, type) else shown(made)


# -- simulators and fine-tuning ----------------------------------------------------------------------


def _of_simulator(config: "TrainConfig") -> _Found:
    from .simulator import STATES, make_vessel

    vessel, values = make_vessel(config), config.values
    parts = {"simulator": shown(vessel.simulator_fn), "vessel": class_path(vessel), "policy": class_path(vessel.policy)}
    sizes = {key.partition("_")[0]: getattr(vessel, key, None) for key in STATES}
    counts = {name: 0 if each is None else len(each) for name, each in sizes.items()}
    every = values.get("val_every_n_iters")
    steps = None if values.get("fast_dev_run") else getattr(vessel, "step_per_iter", None)
    each = None if steps else values.get("fast_dev_run") or getattr(vessel, "episode_per_iter", None)
    iterations, limits = _iterations(values, steps or each)  # an episode has one step at least
    played = product(iterations, each)
    validated = 0 if every is None else product(None if iterations is None else iterations // every, counts["val"])
    episodes = None if played is None or validated is None else played + validated
    told = (
        f"{_count(iterations)} iterations ({limits}) of {_count(each)} episodes (episode_per_iter)"
        if steps is None
        else f"{_count(iterations)} iterations ({limits}) of {steps} steps or more (step_per_iter)",
        f"a validation on {counts['val']} states every {_count(every)} iterations (val_every_n_iters)"
        if every
        else "no validation (val_every_n_iters)",
        "a simulator calls no models, so there is no cost",
    )
    return parts, {**counts}, {"iterations": iterations, "episodes": episodes}, told


def _iterations(values: Mapping[str, Any], least_steps: int | None) -> tuple[int | None, str]:
    """Return the maximum number of iterations of at least `least_steps` steps, and the names of what limits it."""
    max_iters, max_steps = values.get("max_iters"), values.get("max_steps")
    if max_steps is None:
        return max_iters, "max_iters"
    by_steps = math.ceil(max_steps / least_steps) if least_steps else None
    limit = min((each for each in (max_iters, by_steps) if each is not None), default=None)
    return limit, f"max_steps is {max_steps}" if max_iters is None else f"max_iters; max_steps is {max_steps}"


def _of_fine_tuning(config: "TrainConfig") -> _Found:
    from .fine_tuning import class_path_of, extent, wrapper_of

    steps, completions, told = extent(config)
    keys = {"train": "train_dataset", "val": "val_dataset"}
    counts = {name: size_of(config.dataset(key)) for name, key in keys.items()}
    parts = {"trainer": class_path_of(wrapper_of(config)), "model": str(config.values["model_name"])}
    return parts, counts, {"steps": steps, "completions": completions}, told


def _count(number: Any) -> str:
    return "an unknown number of" if number is None else str(number)
