"""Replaying a rollout: its task, resources and recorded exchanges, in a separate store and gateway."""

import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from ..archive.lookup import find_attempt, find_rollout
from ..archive.transcript import Transcript, read_transcript
from ..emitter import find_final_reward
from ..errors import ConfigError, MissingResourceError
from ..llm_proxy import LLMProxy
from ..llm_proxy.recording.exchanges import Exchange
from ..llm_proxy.recording.record import RecordFile
from ..llm_proxy.recording.replay import record_of_rollout
from ..runner import LitAgentRunner
from ..store import InMemoryLightningStore, LightningStore
from ..types import LLM, Attempt, NamedResources, Rollout, RolloutConfig
from ..types.resources import ProxyLLM

_ROLE = re.compile(r"/role/([^/]+)")
HOW_TO_RECORD = (
    "to make rollouts replayable, set llm_proxy: {mode: record, ...} in the configuration of `sharpen train`, or use "
    "Trainer(llm_proxy=LLMProxy(..., mode='record')) in Python"
)


class Original(msgspec.Struct, frozen=True):
    """The rollout to replay."""

    rollout: Rollout
    attempt: Attempt
    """The attempt that made the exchanges."""
    reward: float | None
    """The reward of the attempt."""
    resources: NamedResources
    exchanges: list[Exchange]


class Replayed(msgspec.Struct, frozen=True):
    """The result of a replay."""

    transcript: Transcript
    num_recorded: int
    num_answered: int


async def read_original(store: LightningStore, rollout_text: str, attempt_text: str | None = None) -> Original:
    """Read a rollout from its store. One that was not recorded raises a `ConfigError` that says how to record."""
    rollout = await find_rollout(store, rollout_text)
    exchanges = await _recorded(store, rollout.rollout_id)
    attempts = list(await store.query_attempts(rollout.rollout_id))
    attempt = _chosen(attempts, exchanges, attempt_text)
    of_attempt = [each for each in exchanges if each.attempt_id == attempt.attempt_id]
    if not of_attempt:
        raise ConfigError(
            f"attempt {attempt.sequence_id} of rollout {rollout.rollout_id!r} has no recorded model calls"
        )
    reward = find_final_reward(list(await store.query_spans(rollout.rollout_id, attempt.attempt_id)))
    return Original(rollout, attempt, reward, await _resources(store, rollout), of_attempt)


def _chosen(attempts: Sequence[Attempt], exchanges: Sequence[Exchange], text: str | None) -> Attempt:
    """Return the named attempt, otherwise the latest that called a model."""
    if text is not None:
        return find_attempt(attempts, text)
    recorded = {each.attempt_id for each in exchanges}
    return next((each for each in reversed(attempts) if each.attempt_id in recorded), attempts[-1])


async def _recorded(store: LightningStore, rollout_id: str) -> list[Exchange]:
    try:
        return await record_of_rollout(store, rollout_id)
    except ConfigError as error:
        raise ConfigError(f"{error}; {HOW_TO_RECORD}") from error


async def _resources(store: LightningStore, rollout: Rollout) -> NamedResources:
    if rollout.resources_id is None:
        latest = await store.get_latest_resources()
        return {} if latest is None else dict(latest.resources)
    found = await store.get_resources_by_id(rollout.resources_id, rollout.resources_version)
    if found is None:
        raise MissingResourceError(f"the store no longer has the resources {rollout.resources_id!r} of this rollout")
    return dict(found.resources)


async def replay(original: Original, agent: Any, *, warn: Callable[[str], object]) -> Replayed:
    """Run the agent once more, under the same id and with the same timeout."""
    store = InMemoryLightningStore()
    with tempfile.TemporaryDirectory(prefix="sharpen-replay-") as folder:
        record = _write_record(Path(folder) / "record.jsonl", original.exchanges)
        async with LLMProxy(store=store, mode="replay", record=record, launch_mode="thread") as gateway:
            resources = _with_gateway(original.resources, gateway, warn)
            await _enqueue(store, original.rollout, resources)
            runner: LitAgentRunner[Any] = LitAgentRunner(max_rollouts=1)
            # Output of the agent is not part of the result.
            with redirect_stdout(sys.stderr), runner.run_context(agent=agent, store=store):
                await runner.iter()
    transcript = await read_transcript(store, original.rollout.rollout_id)
    answered = [entry for entry in transcript.entries if entry.kind == "call" and entry.error is None]
    await store.close()
    return Replayed(transcript, len(original.exchanges), len(answered))


def _write_record(path: Path, exchanges: Sequence[Exchange]) -> Path:
    with RecordFile(path) as file:
        for exchange in exchanges:
            file.append(exchange)
    return path


async def _enqueue(store: LightningStore, rollout: Rollout, resources: NamedResources) -> None:
    published = await store.add_resources(resources) if resources else None
    await store.enqueue_rollout(
        rollout.input,
        rollout.mode,
        None if published is None else published.resources_id,
        RolloutConfig(timeout_seconds=rollout.config.timeout_seconds),
        rollout.metadata,
        rollout.rollout_id,
    )


def _with_gateway(resources: NamedResources, gateway: LLMProxy, warn: Callable[[str], object]) -> NamedResources:
    """Return the resources, with models of the original gateway now served by the replaying one."""
    found: NamedResources = {}
    for name, each in resources.items():
        found[name] = _behind(each, gateway) if isinstance(each, ProxyLLM) else each
        if isinstance(each, LLM) and not isinstance(each, ProxyLLM):
            warn(f"resource {name!r} did not use the gateway: calls to {each.endpoint} are made for real, not replayed")
    return found


def _behind(llm: ProxyLLM, gateway: LLMProxy) -> LLM:
    made = gateway.as_resource(model=llm.model, sampling_parameters=llm.sampling_parameters)
    role = _ROLE.search(llm.endpoint)
    return made.for_role(unquote(role[1])) if role and isinstance(made, ProxyLLM) else made
