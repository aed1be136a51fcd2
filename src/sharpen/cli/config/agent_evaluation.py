"""Evaluation of an agent on a data set: with the resources of a configuration, the prompts of a run, or a model that
is served to it through the gateway."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...algorithm import VERL, Baseline
from ...algorithm.prompts import PromptOptimiser
from ...algorithm.sequence import stages_of
from ...algorithm.verl.config import validation_sampling
from ...errors import ConfigError
from ...types import LLM, NamedResources, PromptTemplate
from .last_run import EVALUATION

if TYPE_CHECKING:
    from ...archive.catalog import RunEntry
    from ...trainer import RunResult
    from .train_config import TrainConfig

MAX_TOKENS = 512
_GATEWAY_NAME = "evaluated"


class Evaluated(Mapping[str, Any]):
    """What was measured, and with what."""

    def __init__(self, result: "RunResult", prompts_of: str | None, model: str | None) -> None:
        self.result = result
        self._told = {"prompts_of": prompts_of, "model": model}

    def __getitem__(self, name: str) -> Any:
        return self._told[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)


def evaluate_agent(
    config: "TrainConfig", *, dataset: str, repeat: int, entry: "RunEntry | None", model: str | None
) -> Evaluated:
    """Run the agent on every task `repeat` times, with a Baseline."""
    config.require("agents")
    agent = config.agent()
    tasks = config.dataset(f"{dataset}_dataset")
    if tasks is None:
        raise ConfigError(f"{config.path.name} has no {dataset}_dataset: add one, or choose another --dataset")
    if tasks == []:
        raise ConfigError(f"{dataset}_dataset is empty: add tasks, or choose another --dataset")
    prompts = {} if entry is None else _prompts_of(entry)
    own = _OwnModel.of(config)
    chosen = model or (None if entry is None else _model_of_run(entry)) or own.path
    if entry is not None and not prompts and chosen is None:
        raise ConfigError(f"run {entry.name!r} has neither prompts nor a model to evaluate")
    resources = {**(config.resources() or {}), **prompts}
    with _served(config, chosen, resources, own.sampling) as changes:
        trainer = config.trainer(**_fixed(repeat), **changes)
        trainer.on_folder = config.found_in
        sets = {"train": (tasks, []), "val": (None, tasks)}[dataset]
        with config.hiding():
            result = trainer.fit(agent, *sets)
    return Evaluated(result, entry.name if entry is not None and prompts else None, chosen)


def _fixed(repeat: int) -> dict[str, Any]:
    algorithm = Baseline(n_epochs=repeat, span_verbosity="none")
    return {
        "algorithm": algorithm,
        "callbacks": None,
        "loggers": None,
        "dev": False,
        "name": EVALUATION,
        "run_dir": None,
    }


# -- what is measured --------------------------------------------------------------------------------


def _prompts_of(entry: "RunEntry") -> NamedResources:
    """Return the best prompts of a run's last search, otherwise those that it published last."""
    from ...algorithm.prompts.tree import read_records

    folders = entry.prompt_folders()
    if folders:
        return dict(read_records(folders[-1]).best.prompts)
    return _published(entry)


def _published(entry: "RunEntry") -> NamedResources:
    import asyncio

    from ...archive.lookup import open_store

    if not entry.has_store:
        return {}

    async def latest() -> NamedResources:
        async with open_store(str(entry.store_path)) as opened:
            found = await opened.store.get_latest_resources()
        return {} if found is None else dict(found.resources)

    return {name: each for name, each in asyncio.run(latest()).items() if isinstance(each, PromptTemplate)}


def _model_of_run(entry: "RunEntry") -> str | None:
    """Return the best model that a run has saved."""
    from ...archive.best import choose, model_choices

    best = choose(entry, model_choices(entry))
    return None if best is None else str(best.path)


@dataclass(frozen=True)
class _OwnModel:
    """The model that the algorithm of a configuration starts from, and how validations sample it."""

    path: str | None
    sampling: Mapping[str, Any]

    @classmethod
    def of(cls, config: "TrainConfig") -> "_OwnModel":
        for stage in stages_of(config.trainer(store="memory").algorithm):
            if isinstance(stage, VERL):
                return cls(stage.settings.model.path, validation_sampling(stage.settings).defaults())
            if isinstance(stage, PromptOptimiser) and stage.model is not None:
                return cls(str(stage.model), {"temperature": 0.0, "max_tokens": stage.max_response_tokens})
        return cls(None, {"temperature": 0.0, "max_tokens": MAX_TOKENS})


# -- serving -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _served(
    config: "TrainConfig", model: str | None, resources: NamedResources, sampling: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield what changes in the trainer: the resources and, if a model is served, the gateway with an entry for it."""
    if model is None:
        yield {"initial_resources": resources or None}
        return
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported
    from ...llm.engine import Engine
    from ...llm.models.loading import load_model
    from ...llm.server import EngineServer

    loaded = load_model(_place_of(model, config.folder))
    engine = Engine(loaded.model, loaded.tokenizer)
    with EngineServer(engine, loaded.tokenizer, name=_GATEWAY_NAME, seed=0) as server:
        entry = {
            "model_name": _GATEWAY_NAME,
            "model": _GATEWAY_NAME,
            "base_url": server.base_url,
            "engine": "sharpen",
            "defaults": dict(sampling),
        }
        left = {name: each for name, each in resources.items() if not isinstance(each, LLM)}
        yield {"initial_resources": left or None, "llm_proxy": _with_entry(config, entry)}


def _place_of(model: str, folder: Path) -> str:
    beside = folder / model
    return str(beside) if not Path(model).exists() and beside.exists() else model


def _with_entry(config: "TrainConfig", entry: Mapping[str, Any]) -> dict[str, Any]:
    proxy = config.specs.ready(config.values.get("llm_proxy"), ("llm_proxy",))
    given = dict(proxy) if isinstance(proxy, Mapping) else {}
    return {**given, "model_list": [dict(entry), *(given.get("model_list") or ())]}
