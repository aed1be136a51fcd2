"""A local model that agents talk to while prompts are searched for: our engine behind the gateway of the run.

In training it samples, in validation it is greedy: scores of prompts are then not a matter of luck.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from ...types import NamedResources
from ..base import Gateway
from ..computing import compute
from ..serving import PublishedModel, Sampling, model_name
from .items import Split

if TYPE_CHECKING:
    from ...llm.server import EngineServer


@contextlib.asynccontextmanager
async def served_model(
    path: str | os.PathLike[str],
    gateway: Gateway | None,
    others: NamedResources | None,
    *,
    training_temperature: float,
    max_response_tokens: int,
    seed: int,
    rollout_prefix: str,
    feature: str,
) -> AsyncIterator[dict[Split, NamedResources]]:
    """The resources of agents, with the model in them, for tasks of each split."""
    name = model_name(str(path))
    published = PublishedModel(
        gateway,
        name=name,
        training=Sampling(training_temperature, 1.0, max_response_tokens),
        validation=Sampling(0.0, 1.0, max_response_tokens),
        feature=feature,
    )
    # A thread that spins while it waits takes the core that another process needs; read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    server = await compute(_load, path, name, seed, rollout_prefix)
    try:
        await compute(server.start)
        with published.listed([{"model": name, "base_url": server.base_url, "engine": "sharpen"}]):
            yield {"train": published.resources(others), "val": published.resources(others, is_validation=True)}
    finally:
        await asyncio.to_thread(server.stop)


def _load(path: str | os.PathLike[str], name: str, seed: int, rollout_prefix: str) -> "EngineServer":
    from ...llm.models.loading import load_model
    from ...llm.server import EngineServer

    loaded = load_model(path)
    from ...llm.engine import Engine

    engine = Engine(loaded.model, loaded.tokenizer)
    return EngineServer(engine, loaded.tokenizer, name=name, seed=seed, rollout_prefix=rollout_prefix)
