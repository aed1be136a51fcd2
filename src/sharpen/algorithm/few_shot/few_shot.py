"""`FewShot`: chooses demonstrations for a prompt from rollouts that succeeded, by search on validation reward.

No second model has a say. A round: training tasks are rolled out, and what succeeded becomes demonstrations; sets of
them are written into the prompt and race on validation tasks; the leader may become the best prompt of the run. Later
rounds change the best set.

Rollouts with demonstrations in the prompt succeed more often, so one lucky rollout is enough to begin with: the next
batch is rolled out with the prompt that has succeeded most, and batches grow while they are in vain. The order of tasks
follows from the number of the batch, so a resumed run asks for the same rollouts again, which are then in the store.
"""

import logging
import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import msgspec

from ...checks import check_ints
from ...errors import ConfigError, InvalidInputError, RunError
from ...types import PromptTemplate, TaskT
from ..base import State
from ..bounds import UpperBound, counted, product, split_sizes, sum_of
from ..prompts.candidates import Candidate, Cost
from ..prompts.evaluations import Evaluation, Evaluations, Item
from ..prompts.optimiser import SEED, PromptOptimiser
from ..prompts.preflight import SharedOptions, check_options, check_temperature
from ..prompts.race import Promotion, side_by_side
from .demonstrations import (
    Demonstration,
    as_frame,
    read_demonstration,
    value_names,
    why_broken,
    why_unshowable,
    with_demonstrations,
    with_text,
    without_demos,
)

log = logging.getLogger(__name__)

# -- sets of demonstrations to try -----------------------------------------------------------------


DemoSet = tuple[str, ...]
TRIES = 50


@dataclass(frozen=True)
class Proposal:
    """A set, and how it came about."""

    shown: DemoSet
    how: str
    is_change: bool = False
    """Whether it was made from the best set, and not at random."""


def random_set(pool: Sequence[str], size: int, known: Collection[DemoSet], chance: random.Random) -> Proposal | None:
    """A new set of this size, or of the nearest that the pool allows; None where all are known."""
    for smaller in range(min(size, len(pool)), 0, -1):
        for _ in range(TRIES):
            shown = tuple(chance.sample(pool, smaller))
            if shown not in known:
                return Proposal(shown, "chosen at random")
    return None


def changed_set(
    best: DemoSet, pool: Sequence[str], max_demos: int, known: Collection[DemoSet], chance: random.Random
) -> Proposal | None:
    """A new set that differs from the best by one change; None where none was found."""
    for _ in range(TRIES):
        others = [each for each in pool if each not in best]
        found = _change(best, others, max_demos, chance)
        if found is not None and found.shown not in known:
            return found
    return None


def _change(best: DemoSet, others: Sequence[str], max_demos: int, chance: random.Random) -> Proposal | None:
    kind = chance.choice(("add", "add", "drop", "replace", "replace", "reorder"))
    if kind == "add" and others and len(best) < max_demos:
        new, place = chance.choice(others), chance.randint(0, len(best))
        return Proposal((*best[:place], new, *best[place:]), f"added {new}", is_change=True)
    if kind == "drop" and len(best) > 1:
        place = chance.randrange(len(best))
        return Proposal((*best[:place], *best[place + 1 :]), f"dropped {best[place]}", is_change=True)
    if kind == "replace" and others:
        new, place = chance.choice(others), chance.randrange(len(best))
        changed = (*best[:place], new, *best[place + 1 :])
        return Proposal(changed, f"replaced {best[place]} by {new}", is_change=True)
    if kind == "reorder" and len(best) > 1:
        return Proposal(tuple(chance.sample(best, len(best))), "reordered", is_change=True)
    return None


# -- what was found --------------------------------------------------------------------------------


NEXT_TO = 0.05
"""Of the range of rewards: rewards that are so near the highest count as it. Few agents have the same one twice."""


class Found(msgspec.Struct, frozen=True):
    """A demonstration and the place of its task in the training set."""

    demonstration: Demonstration
    index: int


class Pool:
    """What was found so far, in the order of finding."""

    def __init__(self, *, min_reward: float | None, state: State | None = None) -> None:
        state = state or {}
        self._min_reward = min_reward
        self._found: dict[str, Found] = {
            each.demonstration.rollout_id: each for each in msgspec.convert(state.get("found", []), list[Found])
        }
        self._counts = {float(reward): int(count) for reward, count in state.get("rewards", [])}
        self.unfit: dict[str, int] = dict(state.get("unfit", {}))
        """Why rollouts that succeeded could not be shown, and how many."""

    def state(self) -> State:
        return {
            "found": msgspec.to_builtins(list(self._found.values())),
            "rewards": sorted([reward, count] for reward, count in self._counts.items()),
            "unfit": self.unfit,
        }

    # -- rewards -------------------------------------------------------------------------------------

    @property
    def num_seen(self) -> int:
        return sum(self._counts.values())

    @property
    def highest(self) -> float | None:
        return max(self._counts, default=None)

    @property
    def is_all_the_same(self) -> bool:
        """Whether every reward was one and the same, which tells nothing."""
        return len(self._counts) == 1

    def see(self, rewards: Sequence[float]) -> None:
        for reward in rewards:
            self._counts[reward] = self._counts.get(reward, 0) + 1

    def is_success(self, reward: float) -> bool:
        if self._min_reward is not None:
            return reward >= self._min_reward
        if not self._counts:
            return False
        low, high = min(self._counts), max(self._counts)
        mean = math.fsum(each * count for each, count in self._counts.items()) / self.num_seen
        return reward > mean and reward >= high - NEXT_TO * (high - low)

    # -- demonstrations ------------------------------------------------------------------------------

    def add(self, demonstration: Demonstration, index: int) -> bool:
        """Whether it shows something new."""
        if any(each.content == demonstration.content for each in self._all()):
            return False
        self._found[demonstration.rollout_id] = Found(demonstration, index)
        return True

    def count_unfit(self, reason: str) -> None:
        self.unfit[reason] = self.unfit.get(reason, 0) + 1

    @property
    def has_any(self) -> bool:
        """Whether any was found, though others may be better by now."""
        return bool(self._found)

    def usable(self) -> list[Demonstration]:
        """Those that count as successes now."""
        return [each for each in self._all() if self.is_success(each.reward)]

    def solved(self) -> set[int]:
        """The training tasks that a usable one is about."""
        return {each.index for each in self._found.values() if self.is_success(each.demonstration.reward)}

    def get(self, rollout_ids: Sequence[str]) -> list[Demonstration]:
        return [self._found[each].demonstration for each in rollout_ids]

    def _all(self) -> Iterator[Demonstration]:
        return (each.demonstration for each in self._found.values())

    def summary(self) -> dict[str, Any]:
        """For the metrics of a round."""
        return {"demonstrations": len(self.usable()), "explored": self.num_seen}


# -- looking for demonstrations --------------------------------------------------------------------


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


# -- the algorithm ---------------------------------------------------------------------------------


PER_ROUND = 4
"""Candidates that race at a time: enough to find a good size, few enough to learn from it for the next."""
POOL_FACTOR = 4
"""With so many times `max_demos` demonstrations there is enough to choose from."""
CHANGES = 3
"""Of the candidates of a round, once there is a best set; the rest is chosen at random."""


class FewShot(PromptOptimiser[TaskT]):
    """Adds demonstrations from successful rollouts to a prompt. It needs no second model.

    A demonstration shows what the model was asked and what it answered, so the agent's calls must be recorded: the
    agent has to call its model through the gateway of the run, or with an instrumented client.

    Demonstrations replace `{demos}`, `{demonstrations}` or `{examples}` in the template; without such a field they are
    placed before the part about the task.

    Example:
        ```python
        trainer = Trainer(algorithm=FewShot(max_demos=3), initial_resources={"prompt": PromptTemplate("...")})
        trainer.fit(agent, train_dataset=tasks, val_dataset=val_tasks)
        ```

    Args:
        max_demos: The maximum number of demonstrations in a prompt.
        candidates: How many sets of demonstrations to try.
        val_batch_size: How many validation tasks the candidates of a round are compared on.
        min_reward: The lowest reward of a rollout that can become a demonstration. None uses the highest reward seen.
        explore_temperature: Sampling temperature of the rollouts that demonstrations come from. It applies to `model`
            and to agents that pass on `llm.sampling_parameters`. Such agents take several temperatures in turn, while
            `model` uses the first one unless the agent sets one. None leaves the sampling unchanged.
        max_explore_rollouts: The maximum number of rollouts of training tasks.

    The other arguments (`patience`, `rollout_batch_timeout`, `run_initial_validation`, `promotion`, `train_split`,
    `resource_name`, `seed`, `perfect_reward`, `model`, `max_response_tokens`) are those of
    `sharpen.algorithm.prompts.PromptOptimiser`.
    """

    sets: dict[str, DemoSet]
    """The demonstrations of each candidate."""
    leader: str
    """The best candidate of the last round."""
    exploration: Exploration

    def __init__(
        self,
        *,
        max_demos: int = 4,
        candidates: int = 16,
        val_batch_size: int = 16,
        patience: int | None = None,
        min_reward: float | None = None,
        explore_temperature: float | Sequence[float] | None = 1.0,
        max_explore_rollouts: int = 512,
        rollout_batch_timeout: float = 3600.0,
        run_initial_validation: bool = True,
        promotion: Promotion = "interval",
        **shared: Unpack[SharedOptions],
    ) -> None:
        check_options(self, FewShot, shared)
        check_ints(max_demos=max_demos, candidates=candidates, max_explore_rollouts=max_explore_rollouts)
        _check_reward(min_reward)
        self.max_demos, self.num_candidates, self.min_reward = max_demos, candidates, min_reward
        self.explore_temperatures = _temperatures(explore_temperature)
        self.training_temperature = (*self.explore_temperatures, 1.0)[0]
        self.max_explore_rollouts = max_explore_rollouts
        super().__init__(
            val_batch_size=val_batch_size,
            patience=patience,
            rollout_batch_timeout=rollout_batch_timeout,
            run_initial_validation=run_initial_validation,
            promotion=promotion,
            **shared,
        )

    def _find_seed(self) -> dict[str, PromptTemplate]:
        """The prompt without demonstrations. The frame still knows where they go."""
        ((self._name, frame),) = super()._find_seed().items()
        self._frame = as_frame(frame)
        return {self._name: without_demos(self._frame)}

    def upper_bound(self, train_size: int | None, val_size: int | None) -> UpperBound:
        _, val = split_sizes(train_size, val_size, self.train_split)
        told = (
            f"FewShot: up to {self.max_explore_rollouts} rollouts of training tasks (max_explore_rollouts)",
            f"FewShot: the seed prompt and {counted(self.num_candidates, 'candidate')} (candidates) are each evaluated "
            f"at most once on {counted(val, 'validation task')}",
        )
        bound = UpperBound(sum_of((self.max_explore_rollouts, product(1 + self.num_candidates, val))), because=told)
        return self.with_lost(bound)

    # -- the search ----------------------------------------------------------------------------------

    async def search(self) -> None:
        await self.validate_seed()
        filled = self.fields_filled[self._name]
        self._frame = with_text(self._frame, [name for name in filled if not filled[name]])
        if await self.is_perfect():
            return
        while not self.should_stop:
            fresh = await self._next_candidates()
            if not fresh or await self._compare(fresh):
                break

    async def _next_candidates(self) -> list[str]:
        """The candidates of this round; none when the search is over."""
        begun = [each.version for each in self._of_round() if each.status != "rejected"]
        if begun:  # by an earlier life of the run
            return begun
        if self.num_left > 0 and len(self.pool.usable()) < POOL_FACTOR * self.max_demos and self._can_explore:
            await self._explore()
        while self.num_left > 0:
            if fresh := self._propose():
                return fresh
            if not self._can_explore:
                self.exploration.check_found()
                break
            await self._explore()
        return []

    async def _compare(self, fresh: Sequence[str]) -> bool:
        """Race the candidates of a round; True when it is time to stop."""
        best = self.book.best.version
        (leader,) = await self.race([best, *fresh], self.val_batch(), keep=1)
        has_improved = await self.challenge(leader)
        self.leader = max(fresh, key=lambda version: (self._mean(version), len(self.sets[version])))
        metrics = {"candidates": len(fresh), **self.pool.summary()}
        return await self.end_round(metrics, has_improved=has_improved)

    def _mean(self, version: str) -> float:
        score = self.book.get(version).score
        return float("-inf") if score is None else score.mean

    def _of_round(self) -> list[Candidate]:
        return [each for each in self.book if each.round == self.round + 1]

    @property
    def num_left(self) -> int:
        """Candidates that may still be made."""
        return self.num_candidates - len(self.sets)

    # -- proposing -----------------------------------------------------------------------------------

    def _propose(self) -> list[str]:
        """New sets of demonstrations, in the book; none where all that can be made are known."""
        usable = [each.rollout_id for each in self.pool.usable()]
        fresh: list[str] = []
        for number in range(min(PER_ROUND, self.num_left)):
            proposal = self._next_set(usable, number) if usable else None
            if proposal is not None and (version := self._enter(proposal)) is not None:
                fresh.append(version)
        if fresh:
            self.checkpoint()
        return fresh

    def _next_set(self, usable: Sequence[str], number: int) -> Proposal | None:
        known, best = set(self.sets.values()), self.sets.get(self.book.best.version)
        chance = self.chance("propose", self.round, len(self.book))
        size = (self.max_demos, 1, -(-self.max_demos // 2), chance.randint(1, self.max_demos))[number % 4]
        changed = None
        if best is not None and number < CHANGES:
            changed = changed_set(best, usable, self.max_demos, known, chance)
        return changed or random_set(usable, size, known, chance)

    def _enter(self, proposal: Proposal) -> str | None:
        """A candidate in the book; its version, unless it cannot be used."""
        shown = self.pool.get(proposal.shown)
        version = f"v{len(self.book)}"
        reason = why_broken(self._frame, shown)
        prompt = self.seed_prompts[self._name] if reason else with_demonstrations(self._frame, shown)
        parent = self.book.best.version if proposal.is_change else SEED
        candidate = Candidate(
            version,
            {self._name: prompt},
            [parent],
            round=self.round + 1,
            critique=_told(proposal),
            cost=self._take_other_cost(),
            status="new" if reason is None else "rejected",
            reason=reason,
        )
        if reason is not None:
            log.info("%s was rejected: %s", version, reason)
        self.add(candidate)
        self.sets[version] = proposal.shown
        return version if reason is None else None

    def _take_other_cost(self) -> Cost:
        """What was paid since this was asked last: it belongs to the candidate that is made of it."""
        cost, self.book.other_cost = self.book.other_cost, Cost()
        return cost

    # -- exploring -----------------------------------------------------------------------------------

    @property
    def _can_explore(self) -> bool:
        return self.exploration.can_go_on(self.train_items)

    async def _explore(self) -> None:
        versions = dict.fromkeys((self.leader, self.book.best.version, SEED))
        cost = await self.exploration.explore(
            self.exploration.choose([self.book.get(version) for version in versions]),
            self.train_items,
            self.evaluations,
            frame=self._frame,
            chance=self.chance,
            has_llm=self._has_llm,
        )
        self.book.other_cost += cost
        self.checkpoint()

    # -- state ---------------------------------------------------------------------------------------

    @property
    def demonstrations(self) -> list[Demonstration]:
        """The demonstrations in the best prompt, in order."""
        return self.pool.get(self.sets.get(self.book.best.version, ()))

    def search_state(self) -> State:
        sets = {version: list(shown) for version, shown in self.sets.items()}
        return {"sets": sets, "leader": self.leader, "exploration": self.exploration.state()}

    def load_search_state(self, state: State) -> None:
        self.sets = {version: tuple(shown) for version, shown in state.get("sets", {}).items()}
        self.leader = state.get("leader", SEED)
        self.exploration = Exploration(
            min_reward=self.min_reward,
            temperatures=self.explore_temperatures,
            max_rollouts=self.max_explore_rollouts,
            state=state.get("exploration"),
        )

    @property
    def pool(self) -> Pool:
        return self.exploration.pool


def _told(proposal: Proposal) -> str:
    count = len(proposal.shown)
    return f"{count} demonstration{'' if count == 1 else 's'}, {proposal.how}: {', '.join(proposal.shown)}"


def _check_reward(min_reward: float | None) -> None:
    is_number = isinstance(min_reward, int | float) and not isinstance(min_reward, bool)
    if min_reward is not None and (not is_number or math.isnan(min_reward)):
        raise ConfigError(
            f"min_reward is {min_reward!r}: use the lowest reward of a success, or None for the highest reward seen"
        )


def _temperatures(given: float | Sequence[float] | None) -> list[float]:
    found: list[Any] = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    for each in found:
        check_temperature("explore_temperature", each)
    return [float(each) for each in found]
