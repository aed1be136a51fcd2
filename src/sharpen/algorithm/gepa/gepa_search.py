"""One search of gepa, from its start to its end.

gepa has no state here that outlives its thread. Under its seed it is a function of scores and answers, so a run that is
resumed starts gepa anew: what was paid for comes from the store and from the checkpoint, until gepa is where it was.
Nothing that gepa gets may depend on time, on ids, or on the order in which things happen to finish.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import RunError
from ..prompts.evaluations import Evaluation, Item
from ..prompts.failure_cause import NoAnswerError
from ..prompts.models import Answer, Assistant
from .budget import Budget
from .family import Family
from .iterations import Iteration, Iterations
from .reflector import Messages, Reflector
from .rollout_adapter import RolloutAdapter
from .scores import ScoreScale
from .search_thread import SearchThread

if TYPE_CHECKING:
    from .gepa import GEPA

log = logging.getLogger(__name__)
MOST_UNANSWERED = 5
MOST_VAIN = 10


class GepaSearch:
    """What gepa asks for and tells is here joined to the run: to its rollouts, its book and its rounds."""

    def __init__(self, optimiser: "GEPA", assistant: Assistant, scale: ScoreScale) -> None:
        self._optimiser, self._options, self._assistant, self._scale = optimiser, optimiser.options, assistant, scale
        self._thread = SearchThread()
        self._budget = Budget(optimiser.max_metric_calls)
        self._family = Family(optimiser.book, optimiser.add, has_stable_names=self._options["use_merge"])
        self._iterations = Iterations(self._thread, self._family, begin=self._begin, close=self._close)
        template = self._options["reflection_prompt_template"]
        self._reflector = Reflector(
            self._thread, self._family, ask=self._ask, template=template, given=optimiser.given_names
        )
        self._has_to_stop = False
        self._num_unanswered = self._num_idle = self._num_vain = self._num_rounds = 0
        self._work_before = (0, 0)
        self._paid: set[str] = set()

    async def run(self) -> None:
        await self._thread.run(self._optimise)
        await self._close_open()
        log.info("gepa finished after %d of %d rollouts", self._budget.spent, self._budget.limit)

    def _optimise(self) -> None:
        """All of gepa, in its thread."""
        from gepa.api import optimize

        train, val = self._optimiser.train_items, self._optimiser.val_items
        # By name and untyped: gepa's protocols ask for methods that it does not need.
        parts: dict[str, Any] = {
            "adapter": self._adapter(),
            "reflection_strategy": self._reflector,
            "callbacks": [self._iterations],
            "stop_callbacks": [self._is_time_to_stop, *self._options.stop_callbacks],
            "logger": _Log(),
        }
        optimize(
            self._family.seed_texts,
            train,
            val,
            seed=self._optimiser.chance("gepa").getrandbits(32),
            # What is an Exception to gepa is gepa's own: a single slip need not end the search.
            raise_on_exception=False,
            track_best_outputs=False,
            **parts,
            **self._options.for_gepa(num_train=len(train), num_val=len(val)),
            **self._perfect_score(),
        )

    def _perfect_score(self) -> dict[str, Any]:
        """Without a stated maximum no score is perfect, whatever gepa takes for one by default."""
        reward = self._optimiser.perfect_reward
        if reward is None:
            return {"skip_perfect_score": False, "perfect_score": None}
        return {"skip_perfect_score": self._options["skip_perfect_score"], "perfect_score": self._scale.of(reward)}

    def _adapter(self) -> Any:
        return RolloutAdapter(
            self._thread,
            self._family,
            self._budget,
            self._scale,
            evaluate=self._evaluate,
            spans=self._optimiser.evaluations.spans,
            to_messages=self._optimiser.to_messages,
            enter_merged=self._iterations.enter_merged,
        )

    def _is_time_to_stop(self, state: Any) -> bool:
        """Without the rollouts for one more candidate, an iteration could change nothing."""
        optimiser = self._optimiser
        least = self._options.minibatch_size(len(optimiser.train_items)) + len(optimiser.val_items)
        return self._has_to_stop or self._budget.left < least

    # -- what gepa asks for --------------------------------------------------------------------------

    async def _evaluate(self, version: str, items: Sequence[Item]) -> list[Evaluation]:
        if items[0].split == "val":
            self._family.settle(version)
            return await self._optimiser.evaluate(version, items)
        found = await self._optimiser.evaluations.evaluate(self._family.prompts_of(version), items)
        for each in found:
            if each.rollout_id in self._paid:
                continue
            self._paid.add(each.rollout_id)
            self._family.spend(each.cost, version)
        return found

    async def _ask(self, place: str, messages: Messages) -> Answer:
        """An answer; its text is empty where the model gave none. That is kept too: the search has gone on from it."""
        answer = await self._optimiser.once(f"reflection/{place}", lambda: self._answer(messages))
        self._num_unanswered = 0 if answer.text else self._num_unanswered + 1
        return answer

    async def _answer(self, messages: Messages) -> Answer:
        model = self._optimiser.reflection_model
        try:
            return await self._assistant.ask(model, messages, temperature=self._optimiser.reflection_temperature)
        except NoAnswerError as error:
            if self._num_unanswered + 1 >= MOST_UNANSWERED:
                raise RunError(
                    f"{model!r} gave no answer {MOST_UNANSWERED} times in a row, most recently: {error}. Finished work "
                    "is kept: resume the run when the model answers again"
                ) from error
            log.warning("skipping a reflection: %s", error)
            return Answer("", error.cost)

    # -- iterations ----------------------------------------------------------------------------------

    async def _begin(self) -> int:
        """Gives the number of the round that begins."""
        if self._num_rounds >= self._optimiser.round:
            self._optimiser.begin_iteration()
        return self._num_rounds + 1

    async def _close(self, done: Iteration) -> None:
        """Bring the book up to date, and end the round; one that was ended before is only replayed."""
        self._settle(done)
        if not self._has_worked():
            return
        self._num_rounds += 1
        if self._num_rounds <= self._optimiser.round:
            return
        self._mark(done)
        if done.leader is not None:
            await self._optimiser.challenge(done.leader)
        if await self._optimiser.end_round(self._metrics(done), has_improved=done.leader is not None):
            self._has_to_stop = True

    def _metrics(self, done: Iteration) -> dict[str, float]:
        return {
            "metric_calls": self._budget.spent,
            "proposed": len(done.made),
            "accepted": len(done.validated),
            "unanswered_total": self._reflector.num_unanswered,
            "front_size": self._iterations.front_size,
        }

    def _has_worked(self) -> bool:
        """Whether an iteration had a use for new rollouts or for the model; it is no round otherwise."""
        spent, asked = self._budget.spent, self._reflector.num_asked
        has_spent, has_asked = spent > self._work_before[0], asked > self._work_before[1]
        self._work_before = (spent, asked)
        self._num_idle = 0 if has_spent else self._num_idle + 1
        self._num_vain = 0 if has_spent else self._num_vain + has_asked
        self._end_where_nothing_is_new()
        return has_spent or has_asked

    def _end_where_nothing_is_new(self) -> None:
        """Nothing that gepa asks for costs a rollout any more, so the budget would never end it."""
        num_train = len(self._optimiser.train_items)
        epoch = num_train // (self._options.minibatch_size(num_train) or 1)
        if self._num_vain >= MOST_VAIN:
            log.warning("%d reflections in a row had no result; stopping the search", self._num_vain)
            self._has_to_stop = True
        elif self._num_idle >= MOST_VAIN + 2 * epoch:
            log.info("%d iterations in a row found nothing new; stopping the search", self._num_idle)
            self._has_to_stop = True

    async def _close_open(self) -> None:
        """An iteration that the budget has broken off is no round: with a greater one the run goes on in it."""
        done = self._iterations.open
        if done is None or done.number <= self._optimiser.round:
            return
        done.is_broken_off = True
        self._settle(done)
        self._mark(done)
        self._optimiser.write_records()
        self._optimiser.checkpoint()

    def _settle(self, done: Iteration) -> None:
        for version in done.made:
            self._family.settle(version)
        self._optimiser.book.other_cost = self._family.open_cost

    def _mark(self, done: Iteration) -> None:
        book, reasons = self._optimiser.book, done.why_dropped()
        for version in done.made:
            if book.get(version).status == "best":  # of an earlier life, which ended just after that
                continue
            if version in reasons:
                book.update(version, status="dropped", reason=reasons[version])
            else:
                book.update(version, status="kept", reason=None)
            log.info("round %d: %s: %s", done.number, version, book.get(version).reason or "kept")


class _Log:
    """What gepa has to say."""

    def log(self, message: str) -> None:
        log.debug("gepa: %s", message)
