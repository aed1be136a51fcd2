"""gepa's evaluations as rollouts: what gepa calls, in its own thread."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ...adapter import TraceToMessages
from ...errors import SpansEvictedError
from ...types import Span
from ..prompts.evaluations import Evaluation, Item
from ..prompts.race import side_by_side
from .budget import Budget
from .family import Family, Texts, texts_key
from .feedback import record_of, record_without_trace
from .scores import ScoreScale
from .search_thread import SearchThread

Evaluate = Callable[[str, Sequence[Item]], Awaitable[list[Evaluation]]]
Pair = tuple[Texts, list[Item]]


class Examples(dict[str, list[dict[str, Any]]]):
    """What a reflection is shown, by component; and the tasks that it is about."""

    about: list[Item]


class RolloutAdapter:
    """`enter_merged` gives a candidate that gepa has put together from others a version."""

    # gepa asks for it: we propose through a reflector of our own.
    propose_new_texts = None

    def __init__(
        self,
        thread: SearchThread,
        family: Family,
        budget: Budget,
        scale: ScoreScale,
        *,
        evaluate: Evaluate,
        spans: Callable[[Evaluation], Awaitable[Sequence[Span]]],
        to_messages: TraceToMessages,
        enter_merged: Callable[[Texts], str],
    ) -> None:
        self._thread, self._family, self._budget, self._scale = thread, family, budget, scale
        self._evaluate, self._enter_merged = evaluate, enter_merged
        self._spans, self._to_messages = spans, to_messages

    # -- evaluating ----------------------------------------------------------------------------------

    def evaluate(self, batch: list[Item], candidate: Texts, capture_traces: bool = False) -> Any:
        return self.batch_evaluate([(candidate, batch)])[0]

    def batch_evaluate(self, items: Sequence[Pair]) -> list[Any]:
        """Side by side. The traces stay in the store until they are asked for."""
        from gepa.core.adapter import EvaluationBatch

        costs = self._pay(items)
        found = self._thread.wait_for(lambda: self._evaluate_all(items))
        return [
            EvaluationBatch(each, self._scale.of_all(each), each, num_metric_calls=cost)
            for each, cost in zip(found, costs, strict=True)
        ]

    def _pay(self, pairs: Sequence[Pair]) -> list[int]:
        """How many rollouts are new, for each pair. Where they do not fit into the budget, the search is over."""
        costs = self._budget.take(
            [[(texts_key(texts), item.split, item.index) for item in batch] for texts, batch in pairs]
        )
        if costs is None:
            self._thread.end()
        return costs

    async def _evaluate_all(self, pairs: Sequence[Pair]) -> list[list[Evaluation]]:
        asked = [(self._family.version_of(texts) or self._enter_merged(texts), batch) for texts, batch in pairs]
        return await side_by_side(*(self._evaluate(version, batch) for version, batch in asked))

    # -- feedback ------------------------------------------------------------------------------------

    def make_reflective_dataset(
        self, candidate: Texts, eval_batch: Any, components_to_update: Sequence[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        evaluations: list[Evaluation] = eval_batch.trajectories
        unique = list({each.rollout_id: each for each in evaluations}.values())
        records = self._thread.wait_for(lambda: self._records(unique))
        examples = Examples({self._family.name(name): records for name in components_to_update})
        examples.about = [each.item for each in unique]
        return examples

    async def _records(self, evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
        return await side_by_side(*map(self._record, evaluations))

    async def _record(self, evaluation: Evaluation) -> dict[str, Any]:
        try:
            spans = await self._spans(evaluation)
        except SpansEvictedError:
            return record_without_trace(evaluation)
        return record_of(evaluation, spans, self._to_messages.adapt(spans))
