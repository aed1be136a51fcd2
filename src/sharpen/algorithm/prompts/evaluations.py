"""What prompts are worth on tasks: every evaluation is a rollout, and none is paid for twice.

The id of a rollout is made from the run, the prompts, and the task with its place. The store knows an id that comes
twice, so what was evaluated once comes from there, also in a run that is resumed after it was killed.

A rollout that failed by its agent's fault counts with its reward, or 0. One that was lost to infrastructure is asked
for again; if retries fail, it is reported, and returned as lost for its askers to count. A resumed run tries again what
was lost before.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from ...adapter import TraceToMessages
from ...adapter.messages import OpenAIMessages
from ...errors import ConfigError, RunError
from ...semconv import SHARPEN_LLM_CALL, LightningLLMAttributes
from ...store import LightningStore
from ...types import (
    LLM,
    AttemptedRollout,
    EnqueueRolloutRequest,
    NamedResources,
    PromptTemplate,
    Rollout,
    RolloutStatus,
    Span,
)
from ..finished import FinishedRollouts
from ..rewards import is_lost, why_failed, with_last_attempt
from .candidates import Cost
from .failure_cause import infrastructure_fault, spent_limit

log = logging.getLogger(__name__)

Split = Literal["train", "val"]
_FAR = 1 << 40  # from here on, tasks are numbered that belong to no data set of the run


@dataclass(frozen=True, slots=True)
class Item:
    """One task of a data set, by its place."""

    split: Split
    index: int
    task: Any
    mark: str = field(init=False, compare=False, repr=False)
    """What the task says, in short. Taken at once: agents in the same process may change a task."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mark", _mark(self.task))


def as_items(tasks: Sequence[Any], split: Split, known: Sequence[Item]) -> list[Item]:
    """Tasks of a data set as the items that they are; others have a number that follows from what they say."""
    wanted = set(map(id, tasks))
    own: dict[int, list[Item]] = {}
    for item in reversed(known):
        if id(item.task) in wanted:
            own.setdefault(id(item.task), []).append(item)
    seen: Counter[bytes] = Counter()
    return [own[id(task)].pop() if own.get(id(task)) else _foreign(task, split, seen) for task in tasks]


def _foreign(task: Any, split: Split, seen: Counter[bytes]) -> Item:
    try:
        text = msgspec.json.encode(task, enc_hook=repr, order="sorted")
    except (TypeError, ValueError, RecursionError):  # what JSON cannot hold
        text = repr(task).encode("utf-8", "replace")
    seen[text] += 1  # the same task twice is two of them
    return Item(split, _FAR * seen[text] + zlib.crc32(text), task)


def _mark(task: Any) -> str:
    """What a task says, in short. Those that JSON cannot hold are known by their places alone."""
    try:
        return f"_{zlib.crc32(msgspec.json.encode(task, order='sorted')):08x}"
    except (TypeError, ValueError, RecursionError):
        return ""


Prompts = Mapping[str, PromptTemplate]
SPLITS: tuple[Split, ...] = ("train", "val")
# Before each further try of a rollout that was lost because a model did not answer. A gateway that has died is back
# after a few seconds; at once every try would be spent before that.
PAUSES_SECONDS = (1.0, 5.0)
MOST_TRIES = 1 + len(PAUSES_SECONDS)
"""How many rollouts one evaluation takes at most, in one life of a run."""
READS_AT_ONCE = 16
_INPUT, _OUTPUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of one rollout."""

    rollout_id: str
    item: Item
    status: RolloutStatus
    reward: float
    is_lost: bool = False
    """Whether infrastructure failed it: then it says nothing about the prompt."""
    has_reward: bool = True
    """Whether the reward is its own; otherwise it is 0."""
    is_too_late: bool = False
    """Whether it was cancelled because it did not end in time."""
    is_unanswered: bool = False
    """Whether it is lost because a model could not be reached, or broke down."""
    error: str | None = None
    error_type: str | None = None
    """The class of the exception that ended its last attempt, by name."""
    cost: Cost = field(default_factory=Cost)
    """Of all rollouts that it took."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was enqueued: with which resources, and which of it an earlier life of the run had finished."""

    resources_id: str
    known: frozenset[str]


class Evaluations:
    """Asks for rollouts with given prompts, and remembers what came of them."""

    def __init__(
        self,
        store: LightningStore,
        key: str,
        *,
        others: Mapping[Split, NamedResources] | None = None,
        timeout_seconds: float = 3600.0,
        messages: TraceToMessages | None = None,
    ) -> None:
        """`key` names the run in the ids of rollouts, `others` are the resources beside the prompts, for tasks of
        each split, and a rollout that has not ended `timeout_seconds` after it was asked for is cancelled and counts as
        lost, or with 0 where its agent worked on it for most of that time."""
        self._store, self._key, self._others = store, key, others or {}
        self._timeout, self._to_messages = timeout_seconds, messages or TraceToMessages()
        self._finished = FinishedRollouts(store, self._read)
        self._reading = asyncio.Semaphore(READS_AT_ONCE)
        self._known: dict[str, asyncio.Task[Evaluation]] = {}
        self._published: dict[str, asyncio.Task[str]] = {}
        self._asking: set[asyncio.Task[_Asked]] = set()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Completions are taken as long as the block lasts."""
        async with self._finished.following():
            try:
                yield
            finally:
                under_way = (*self._known.values(), *self._published.values(), *self._asking)
                for each in under_way:
                    each.cancel()
                await asyncio.gather(*under_way, return_exceptions=True)

    async def evaluate(
        self,
        prompts: Prompts,
        items: Sequence[Item],
        *,
        occasion: str = "",
        sampling: Mapping[str, Any] | None = None,
    ) -> list[Evaluation]:
        """One for every item, in their order. The same prompts on the same item are one rollout for ever; `occasion`
        names a further one. `sampling` is laid over the sampling parameters of every LLM."""
        digests = {split: self._digest(prompts, sampling, split) for split in SPLITS}
        places = [_place(digests[item.split], item, occasion) for item in items]
        for split in SPLITS:
            new = {
                place: item
                for place, item in zip(places, items, strict=True)
                if item.split == split and place not in self._known
            }
            if not new:
                continue
            resources = _with_sampling({**self._others.get(split, {}), **prompts}, sampling)
            asked = asyncio.ensure_future(self._ask(f"{digests[split]}-{split}", resources, new))
            self._asking.add(asked)
            asked.add_done_callback(self._asking.discard)
            for place, item in new.items():
                self._known[place] = asyncio.ensure_future(self._follow_one(place, item, asked))
        waiting = [self._known[place] for place in places]
        return list(await asyncio.gather(*map(asyncio.shield, waiting)))

    async def rollouts(self, ids: Sequence[str]) -> list[Rollout]:
        async with self._reading:
            return list(await self._store.query_rollouts(rollout_id_in=ids))

    async def spans(self, evaluation: Evaluation) -> list[Span]:
        async with self._reading:
            return list((await self._store.query_spans(evaluation.rollout_id, "latest")).items)

    async def messages(self, evaluation: Evaluation) -> list[OpenAIMessages]:
        """The conversations of the agent with models, one for each call."""
        return self._to_messages.adapt(await self.spans(evaluation))

    def _digest(self, prompts: Prompts, sampling: Mapping[str, Any] | None, split: Split) -> str:
        """What is evaluated: prompts, how tokens are sampled, and the models, wherever they are served."""
        told = [(name, each.engine, each.template) for name, each in sorted(prompts.items())]
        others = sorted(self._others.get(split, {}).items())
        models = [(name, each.model) for name, each in others if isinstance(each, LLM)]
        data = msgspec.json.encode((told, dict(sampling or {}), models), order="sorted")
        return hashlib.sha256(data).hexdigest()[:16]

    # -- asking --------------------------------------------------------------------------------------

    async def _ask(self, name: str, resources: NamedResources, items: Mapping[str, Item]) -> _Asked:
        resources_id = await self._publish_once(name, resources)
        requests = [self._request(place, item, resources_id) for place, item in items.items()]
        return _Asked(resources_id, await self._enqueue(requests))

    async def _enqueue(self, requests: Sequence[EnqueueRolloutRequest]) -> frozenset[str]:
        """Those that were finished before."""
        self._finished.expect(str(request.rollout_id) for request in requests)
        rollouts = await self._store.enqueue_many_rollouts(requests)
        self._finished.take(rollouts)
        return frozenset(each.rollout_id for each in rollouts if each.is_finished)

    def _request(self, place: str, item: Item, resources_id: str, attempt: int = 0) -> EnqueueRolloutRequest:
        rollout_id = f"ro-{self._key}-{place}" + (f"-again{attempt}" if attempt else "")
        about = {"prompt": place.split("-", maxsplit=1)[0], "index": item.index}
        return EnqueueRolloutRequest(item.task, item.split, resources_id, metadata=about, rollout_id=rollout_id)

    async def _publish_once(self, name: str, resources: NamedResources) -> str:
        """The id under which these resources are in the store, once for every name."""
        if name not in self._published:
            self._published[name] = asyncio.ensure_future(self._publish(f"rs-{self._key}-{name}", resources))
        return await asyncio.shield(self._published[name])

    async def _publish(self, resources_id: str, resources: NamedResources) -> str:
        known = await self._store.get_resources_by_id(resources_id)
        if known is None:
            await self._store.add_resources(resources, resources_id=resources_id)
        elif known.resources != resources:  # a run that goes on may have its gateway at another address
            await self._store.update_resources(resources_id, resources)
        return resources_id

    # -- following -----------------------------------------------------------------------------------

    async def _follow_one(self, place: str, item: Item, asking: "asyncio.Future[_Asked]") -> Evaluation:
        asked = await asyncio.shield(asking)
        request, known = self._request(place, item, asked.resources_id), asked.known
        pauses, number, cost = list(PAUSES_SECONDS), 0, Cost()
        while True:
            found = await self._wait_for(request, item)
            cost += found.cost
            if not found.is_lost or found.is_too_late:
                break
            if found.rollout_id not in known:  # what an earlier life of the run lost takes nothing away
                _refuse_more_cost(found)
                if not pauses:
                    break
                log.warning("rollout %s was lost (%s); trying again", found.rollout_id, found.error)
                pause = pauses.pop(0)
                await asyncio.sleep(pause if found.is_unanswered else 0)
            number += 1
            request = self._request(place, item, asked.resources_id, number)
            known = await self._enqueue([request])
        return _told(replace(found, cost=cost))

    async def _wait_for(self, request: EnqueueRolloutRequest, item: Item) -> Evaluation:
        rollout_id = str(request.rollout_id)
        try:
            async with asyncio.timeout(self._timeout):
                rollout, cost, fault = await self._finished.result(rollout_id)
        except TimeoutError:
            return await self._give_up(rollout_id, item)
        return _evaluation(rollout, item, cost, fault)

    async def _give_up(self, rollout_id: str, item: Item) -> Evaluation:
        """One that is too late is cancelled. An agent that worked on it for most of the time has failed; a rollout that
        waited for a worker says nothing."""
        self._finished.forget(rollout_id)
        attempt = await self._store.get_latest_attempt(rollout_id)
        seconds = 0.0 if attempt is None or attempt.end_time is not None else time.time() - attempt.start_time
        await self._store.cancel_rollouts([rollout_id])
        error = f"not finished within {self._timeout:g} s (rollout_batch_timeout)"
        late = Evaluation(rollout_id, item, "cancelled", 0.0, has_reward=False, is_too_late=True, error=error)
        return replace(late, is_lost=seconds < self._timeout / 2, cost=Cost(rollouts=1))

    async def _read(self, rollout: Rollout) -> tuple[Rollout, Cost, str | None]:
        async with self._reading:
            rollout = await with_last_attempt(self._store, rollout)
            spans = list((await self._store.query_spans(rollout.rollout_id)).items)
        # Every attempt was paid for; the last one says why it failed.
        last = rollout.attempt.attempt_id if isinstance(rollout, AttemptedRollout) else None
        fault = infrastructure_fault(rollout, [span for span in spans if span.attempt_id == last])
        return rollout, cost_of(spans), fault


def _evaluation(rollout: Rollout, item: Item, cost: Cost, fault: str | None) -> Evaluation:
    return Evaluation(
        rollout.rollout_id,
        item,
        rollout.status,
        rollout.reward if rollout.reward is not None and fault is None else 0.0,
        is_lost=fault is not None,
        is_unanswered=fault is not None and rollout.status == "failed" and not is_lost(rollout),
        has_reward=rollout.reward is not None,
        error=fault or why_failed(rollout),
        error_type=_error_type(rollout),
        cost=cost,
    )


def _error_type(rollout: Rollout) -> str | None:
    about = rollout.attempt.metadata if isinstance(rollout, AttemptedRollout) else None
    return (about or {}).get("error_type")


def _refuse_more_cost(lost: Evaluation) -> None:
    """When the run has spent what it may, every further rollout would fail by that alone."""
    limit = spent_limit(lost.error or "")
    if limit is not None:
        raise RunError(f"the run has reached a limit: {limit}. Finished rollouts are kept: raise it and resume the run")


def _told(evaluation: Evaluation) -> Evaluation:
    """None is left out in silence."""
    if evaluation.is_lost:
        log.warning("rollout %s was lost and is excluded from scores: %s", evaluation.rollout_id, evaluation.error)
    elif not evaluation.has_reward and evaluation.status == "succeeded":
        log.warning("rollout %s ended without a reward; it counts as 0", evaluation.rollout_id)
    return evaluation


def cost_of(spans: Sequence[Span]) -> Cost:
    """What one rollout took: calls and tokens, and money where the gateway knows prices."""
    # The gateway and the agent's own tracer may both have recorded a call: the gateway knows more.
    recorded = [span for span in spans if span.name == SHARPEN_LLM_CALL] or spans
    calls = [span.attributes for span in recorded if _INPUT in span.attributes or _OUTPUT in span.attributes]
    prices = [float(each[name]) for each in calls if (name := LightningLLMAttributes.COST.value) in each]
    return Cost(
        rollouts=1,
        calls=len(calls),
        input_tokens=sum(int(each.get(_INPUT) or 0) for each in calls),
        output_tokens=sum(int(each.get(_OUTPUT) or 0) for each in calls),
        dollars=sum(prices) if prices else None,
    )


def _place(digest: str, item: Item, occasion: str) -> str:
    return "-".join(filter(None, (digest, occasion, f"{item.split}{item.index}{item.mark}")))


def _with_sampling(resources: NamedResources, sampling: Mapping[str, Any] | None) -> NamedResources:
    if not sampling:
        return resources
    if not any(isinstance(each, LLM) for each in resources.values()):
        raise ConfigError(
            f"sampling is {dict(sampling)}, but the resources contain no LLM: add one to initial_resources"
        )
    return {name: _sampled(each, sampling) if isinstance(each, LLM) else each for name, each in resources.items()}


def _sampled(llm: LLM, sampling: Mapping[str, Any]) -> LLM:
    return msgspec.structs.replace(llm, sampling_parameters={**llm.sampling_parameters, **sampling})
