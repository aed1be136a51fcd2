"""`FewShot`: chooses demonstrations for a prompt from rollouts that succeeded, by search on validation reward.

No second model has a say. A round: training tasks are rolled out, and what succeeded becomes demonstrations; sets of
them are written into the prompt and race on validation tasks; the leader may become the best prompt of the run. Later
rounds change the best set. Rollouts with demonstrations in the prompt succeed more often, so one lucky rollout is
enough to begin with: the next batch is rolled out with the prompt that has succeeded most.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any, Unpack

from ...checks import check_ints
from ...errors import ConfigError
from ...types import PromptTemplate, TaskT
from ..base import State
from ..bounds import UpperBound, counted, product, split_sizes, sum_of
from ..prompts.candidates import Candidate, Cost
from ..prompts.optimiser import SEED, PromptOptimiser
from ..prompts.preflight import SharedOptions, check_options
from ..prompts.race import Promotion
from .demo_sets import DemoSet, Proposal, changed_set, random_set
from .demonstration import Demonstration
from .exploration import Exploration
from .layout import why_broken, with_demonstrations
from .pool import Pool
from .template_parts import as_frame, with_text, without_demos

log = logging.getLogger(__name__)

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
        if isinstance(each, bool) or not isinstance(each, int | float) or not 0 <= each <= 2:
            raise ConfigError(
                f"explore_temperature is {given!r}: use a number from 0 to 2, a list of them, or None to leave the "
                "sampling of the LLM unchanged"
            )
    return [float(each) for each in found]
