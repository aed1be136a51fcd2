"""Looking for demonstrations: training tasks are rolled out, and what succeeded is kept.

Batches grow while they are in vain. The next batch is rolled out with the prompt that has succeeded most often, so that
one lucky rollout, shown in the prompt, leads to more. The order of tasks follows from the number of the batch, so a run
that is resumed asks for the same rollouts again, which are then in the store.
"""

import logging
import random
from collections.abc import Callable, Sequence

from ...errors import InvalidInputError, RunError
from ...types import PromptTemplate
from ..base import State
from ..prompts.candidates import Candidate, Cost
from ..prompts.evaluations import Evaluation, Evaluations, Item
from ..prompts.race import side_by_side
from .demonstration import read_demonstration
from .layout import why_unshowable
from .pool import Pool
from .template_parts import value_names

log = logging.getLogger(__name__)

FIRST_BATCH, LARGEST_BATCH = 16, 128
ENOUGH_UNFIT = 8
"""After so many successes of which none can be shown, others will not be different."""


class Exploration:
    """What was tried so far and what came of it. `state` is what the method of that name gave."""

    def __init__(
        self, *, min_reward: float | None, temperatures: Sequence[float], max_rollouts: int, state: State | None = None
    ) -> None:
        state = state or {}
        self._min_reward, self._temperatures, self._max_rollouts = min_reward, temperatures, max_rollouts
        self.pool = Pool(min_reward=min_reward, state=state.get("pool"))
        self._num_batches, self._num_rollouts, self._batch_size = state.get("batches", (0, 0, FIRST_BATCH))
        self._tried: dict[str, tuple[int, int]] = {name: (each[0], each[1]) for name, each in state.get("tried", [])}
        # Of this life of the run alone: the agent may have been mended since the last.
        self._is_vain, self._num_unfit = False, 0

    def state(self) -> State:
        return {
            "pool": self.pool.state(),
            "batches": [self._num_batches, self._num_rollouts, self._batch_size],
            "tried": [[version, list(counts)] for version, counts in self._tried.items()],
        }

    def can_go_on(self, items: Sequence[Item]) -> bool:
        """Whether there are rollouts left to pay for, tasks that none has succeeded on, and hope."""
        return not self._is_vain and self._num_rollouts < self._max_rollouts and len(self.pool.solved()) < len(items)

    # -- a batch -------------------------------------------------------------------------------------

    def choose(self, candidates: Sequence[Candidate]) -> Candidate:
        """The one whose rollouts have succeeded most often; one that was not tried yet may be better."""
        return max(candidates, key=lambda each: _hope(*self._tried.get(each.version, (0, 0))))

    async def explore(
        self,
        candidate: Candidate,
        items: Sequence[Item],
        evaluations: Evaluations,
        *,
        frame: PromptTemplate,
        chance: Callable[[str, int], random.Random],
        has_llm: bool,
    ) -> Cost:
        """One batch of rollouts; what succeeded and can be shown in `frame` is in the pool afterwards."""
        parts = self._parts(items, chance("explore", self._num_batches))
        sampling = self._sampling() if has_llm else None
        log.info("exploring with %d rollouts of %s", sum(map(len, parts)), candidate.version)
        found = await side_by_side(
            *(
                evaluations.evaluate(
                    candidate.prompts, part, occasion=f"x{self._num_batches}-{turn}", sampling=sampling
                )
                for turn, part in enumerate(parts)
            )
        )
        all_found = [each for part in found for each in part]
        await self._take(candidate, all_found, evaluations, frame)
        return sum((each.cost for each in all_found), Cost())

    def _parts(self, items: Sequence[Item], chance: random.Random) -> list[list[Item]]:
        """Tasks that none has succeeded on, again and again where they are few: in no part one comes twice."""
        solved = self.pool.solved()
        open_items = [item for item in items if item.index not in solved]
        chance.shuffle(open_items)
        left = min(self._batch_size, self._max_rollouts - self._num_rollouts)
        return [open_items[: left - begin] for begin in range(0, left, len(open_items))]

    def _sampling(self) -> dict[str, float] | None:
        if not self._temperatures:
            return None
        return {"temperature": self._temperatures[self._num_batches % len(self._temperatures)]}

    # -- what came of it -----------------------------------------------------------------------------

    async def _take(
        self, candidate: Candidate, found: Sequence[Evaluation], evaluations: Evaluations, frame: PromptTemplate
    ) -> None:
        known = [each for each in found if not each.is_lost]
        self.pool.see([each.reward for each in known])
        good = [each for each in known if each.status == "succeeded" and self.pool.is_success(each.reward)]
        num_unfit = sum(self.pool.unfit.values())
        num_new = sum([await self._keep(candidate, each, evaluations, frame) for each in good])
        self._num_unfit += sum(self.pool.unfit.values()) - num_unfit
        is_enough = self._num_unfit >= ENOUGH_UNFIT or 0 < len(good) == len(known)
        self._is_vain = is_enough and not self.pool.has_any
        tried, succeeded = self._tried.get(candidate.version, (0, 0))
        self._tried[candidate.version] = (tried + len(known), succeeded + len(good))
        self._num_batches += 1
        self._num_rollouts += len(found)
        self._batch_size = FIRST_BATCH if num_new else min(2 * self._batch_size, LARGEST_BATCH)
        log.info(
            "%d of %d succeeded (%s); demonstrations: %d", len(good), len(known), self._rule(), len(self.pool.usable())
        )

    def _rule(self) -> str:
        if self._min_reward is not None:
            return f"a reward of at least {self._min_reward:g}"
        highest = self.pool.highest
        if highest is None:
            return "none had a reward"
        is_above = "is" if self.pool.is_success(highest) else "is not"
        return f"the highest reward seen, {highest:g}, {is_above} above the mean"

    async def _keep(
        self, candidate: Candidate, evaluation: Evaluation, evaluations: Evaluations, frame: PromptTemplate
    ) -> bool:
        item = evaluation.item
        try:
            said = await evaluations.messages(evaluation)
            made = read_demonstration(
                evaluation.rollout_id,
                evaluation.reward,
                candidate.template,
                item.task,
                said,
                names=value_names(frame),
            )
        except InvalidInputError as error:
            self.pool.count_unfit(str(error))
            return False
        reason = why_unshowable(frame, made)
        if reason is not None:
            self.pool.count_unfit(reason)
            return False
        return self.pool.add(made, item.index)

    def check_found(self) -> None:
        """Without any demonstration there is nothing to search in: say why there is none."""
        tried, highest = f"tried {self._num_rollouts} rollouts of training tasks", self.pool.highest
        if self.pool.usable():
            return
        if self.pool.unfit:
            reason, count = max(self.pool.unfit.items(), key=lambda each: each[1])
            raise RunError(
                f"{tried}, but the successful ones cannot serve as demonstrations, {count} of them because: {reason}. "
                "The agent must call its model through the gateway, and send the prompt unchanged"
            )
        if self.pool.is_all_the_same and highest is not None and highest > 0 and self._min_reward is None:
            log.warning(
                "%s, and all had the reward %g: none is better than another, so the prompt stays as it is. If %g is "
                "the highest possible reward, set perfect_reward=%g to stop such a search at once",
                tried,
                *(highest,) * 3,
            )
            return
        best = "none had a reward" if highest is None else f"the best reward was {highest:g}"
        raise RunError(
            f"{tried}, and none succeeded ({best}), so there are no demonstrations. Try more max_explore_rollouts, "
            "another explore_temperature, easier training tasks, a lower min_reward, or a reward with partial credit"
        )


def _hope(tried: int, succeeded: int) -> float:
    return (succeeded + 1) / (tried + 1)
