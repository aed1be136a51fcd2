"""`APO`: a beam search over prompts, led by what a critic says about rollouts.

A round: parents are chosen from the beam; for every branch of each a fresh batch of training tasks is rolled out with
the parent, a critic says what is wrong with the prompt, an editor rewrites it. The new candidates and the old beam race
on validation tasks, the best stay, and their leader may become the best prompt of the run.

Branches run side by side, from their rollouts to their first validation tasks: a round takes about as long as its
slowest branch. A branch works in a task of its own and is known there without being passed along. So its random choices
and its paid answers are its own however the public methods of `APO` are called, also by a subclass that overrides some.
"""

import asyncio
import logging
import random
import warnings
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, TypeVar, Unpack

from ...adapter.messages import OpenAIMessages
from ...checks import check_ints
from ...errors import ConfigError, InvalidInputError, RunError
from ...types import PromptTemplate, Rollout, RolloutStatus, Span, TaskT
from ..base import State
from ..bounds import UpperBound, counted, least, product, split_sizes, sum_of
from ..datasets import indices_of_batch
from ..prompts.candidates import Candidate, Cost
from ..prompts.critic import Critic, load_prompts
from ..prompts.evaluations import Evaluation, Item, Split, as_items
from ..prompts.failure_cause import NoAnswerError, infrastructure_fault
from ..prompts.models import Answer, Assistant, choose_client
from ..prompts.optimiser import SEED, PromptOptimiser
from ..prompts.preflight import SharedOptions, check_client, check_models, check_options, check_seed, check_temperature
from ..prompts.race import Promotion, Race, side_by_side
from ..prompts.templates import as_child, why_unfit
from ..rewards import why_failed, with_last_attempt

if TYPE_CHECKING:
    from openai import AsyncOpenAI

log = logging.getLogger(__name__)

# -- values ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VersionedPromptTemplate:
    """A candidate prompt. `score` is its mean reward on validation tasks, if it was evaluated."""

    version: str
    prompt_template: PromptTemplate
    score: float | None = None


class RolloutResultForAPO(TypedDict):
    """The result of one rollout. The reward of a failed rollout is 0 unless it has one."""

    status: RolloutStatus
    final_reward: float | None
    spans: Sequence[Span]
    messages: Sequence[OpenAIMessages]
    error: NotRequired[str | None]
    is_lost: NotRequired[bool]
    """Whether it failed because of infrastructure; such rollouts are not shown to the critic."""


# -- branches --------------------------------------------------------------------------------------


class AllLostError(RunError):
    """Not one rollout says anything about the prompt."""


@dataclass
class Branch:
    """What it begins with, and what it came to."""

    place: str
    version: str
    parent: Candidate
    tasks: Sequence[Item]
    text: str | None = None
    unfit_text: str | None = None
    """The last one that was made and cannot be used."""
    critique: str | None = None
    why_none: str | None = None
    is_unanswered: bool = False
    """Whether it came to nothing because something else than the prompt failed."""
    answers_cost: Cost = field(default_factory=Cost)
    rollouts: dict[str, Evaluation] = field(default_factory=dict)
    reward_mean: float | None = None
    asked: Counter[str] = field(default_factory=Counter)

    @property
    def cost(self) -> Cost:
        return sum((each.cost for each in self.rollouts.values()), self.answers_cost)

    def give_up(self, reason: str, *, text: str | None = None, is_unanswered: bool = False) -> None:
        """For now: a later attempt may succeed. `text` is what cannot be used. Who had no answer has told so."""
        if not is_unanswered:
            log.info("%s: no candidate: %s", self.place, reason)
        self.why_none, self.unfit_text, self.is_unanswered = reason, text, is_unanswered


_current: ContextVar[Branch | None] = ContextVar("branch", default=None)
"""The branch that a task works for; None outside of a round."""


def next_place(what: str) -> str | None:
    """The name of the next answer of this kind; None outside of a branch, where answers are not kept."""
    branch = _current.get()
    if branch is None:
        return None
    branch.asked[what] += 1
    return f"{branch.place}/{what}{branch.asked[what]}"


def pay(cost: Cost) -> None:
    branch = _current.get()
    if branch is not None:
        branch.answers_cost += cost


def give_up(reason: str, *, text: str | None = None, is_unanswered: bool = False) -> None:
    branch = _current.get()
    if branch is not None:
        branch.give_up(reason, text=text, is_unanswered=is_unanswered)


def occasion_of(prefix: str | None) -> str:
    """In a branch, the branch; else by the name of the work, whatever characters it has."""
    branch = _current.get()
    if branch is not None:
        return branch.place
    return f"{zlib.crc32(prefix.encode('utf-8', 'replace')):08x}" if prefix else ""


# -- the algorithm ---------------------------------------------------------------------------------


T = TypeVar("T", int, float)


class _Rounds(int):
    """A default that can be told from the same number given."""


class _Temperature(float):
    """A default that can be told from the same number given."""


class APO(PromptOptimiser[TaskT]):
    """Automatic prompt optimisation with textual gradients.

    Each round, a critic reads rollouts of the current prompts and says what is wrong with them, and an editor rewrites
    the prompts. The new candidates are compared with the old ones on validation tasks, and the best are kept.

    Example:
        ```python
        trainer = Trainer(algorithm=APO(beam_rounds=2), initial_resources={"prompt": PromptTemplate("...")})
        trainer.fit(agent, train_dataset=tasks, val_dataset=val_tasks)
        ```

    Args:
        async_openai_client: The client that calls critic and editor. By default the trainer's gateway if it lists both
            models, otherwise a client made from the environment (`OPENAI_API_KEY`).
        gradient_model: The model that writes critiques.
        apply_edit_model: The model that writes new prompts.
        diversity_temperature: Sampling temperature of both models.
        gradient_batch_size: How many rollouts of training tasks each candidate is made from.
        val_batch_size: How many validation tasks the candidates of a round are compared on.
        beam_width: How many prompts are kept after each round.
        branch_factor: How many candidates are made from each of them, so that a round makes `beam_width` times
            `branch_factor` candidates.
        beam_rounds: The number of rounds.
        max_iterations: Another name for `beam_rounds`.
        temperature: Another name for `diversity_temperature`.
        critique_prompts: Texts or text files to use as critique prompts instead of the built-in ones.
        edit_prompts: Texts or text files to use as edit prompts instead of the built-in ones.
        max_concurrent_calls: The maximum number of concurrent calls to critic and editor.
        edit_attempts: How often to ask for an edit until it can be used.

    The other arguments (`patience`, `rollout_batch_timeout`, `run_initial_validation`, `promotion`, `train_split`,
    `resource_name`, `seed`, `perfect_reward`, `model`, `max_response_tokens`) are those of
    `sharpen.algorithm.prompts.PromptOptimiser`.
    """

    def __init__(
        self,
        async_openai_client: "AsyncOpenAI | None" = None,
        *,
        gradient_model: str = "gpt-5-mini",
        apply_edit_model: str = "gpt-4.1-mini",
        diversity_temperature: float = _Temperature(1.0),
        gradient_batch_size: int = 4,
        val_batch_size: int = 16,
        beam_width: int = 4,
        branch_factor: int = 4,
        beam_rounds: int = _Rounds(3),
        rollout_batch_timeout: float = 3600.0,
        run_initial_validation: bool = True,
        patience: int | None = None,
        promotion: Promotion = "interval",
        max_iterations: int | None = None,
        temperature: float | None = None,
        critique_prompts: Sequence[str | Path] | None = None,
        edit_prompts: Sequence[str | Path] | None = None,
        max_concurrent_calls: int = 16,
        edit_attempts: int = 2,
        _poml_trace: bool | None = None,
        **shared: Unpack[SharedOptions],
    ) -> None:
        check_options(self, APO, shared)
        if _poml_trace is not None:
            told = "APO(_poml_trace=...) is deprecated and has no effect: critiques and edits are in the run folder"
            warnings.warn(told, DeprecationWarning, stacklevel=2)
        super().__init__(
            val_batch_size=val_batch_size,
            rollout_batch_timeout=rollout_batch_timeout,
            run_initial_validation=run_initial_validation,
            patience=patience,
            promotion=promotion,
            **shared,
        )
        self.async_openai_client = async_openai_client
        self.gradient_model, self.apply_edit_model = gradient_model, apply_edit_model
        self.beam_rounds = _one_of("beam_rounds", beam_rounds, "max_iterations", max_iterations)
        self.diversity_temperature = _one_of("diversity_temperature", diversity_temperature, "temperature", temperature)
        self.gradient_batch_size, self.beam_width, self.branch_factor = gradient_batch_size, beam_width, branch_factor
        self.max_concurrent_calls, self.edit_attempts = max_concurrent_calls, edit_attempts
        self._prompts = {"critique_prompts": critique_prompts, "edit_prompts": edit_prompts}
        check_ints(
            gradient_batch_size=gradient_batch_size,
            beam_width=beam_width,
            branch_factor=branch_factor,
            beam_rounds=self.beam_rounds,
            max_concurrent_calls=max_concurrent_calls,
            edit_attempts=edit_attempts,
        )
        self.diversity_temperature = check_temperature("diversity_temperature", self.diversity_temperature)
        check_models(gradient_model=gradient_model, apply_edit_model=apply_edit_model)
        check_client("async_openai_client", async_openai_client)
        load_prompts("critique", critique_prompts)  # a file that cannot be used is said here, and not in a run
        load_prompts("edit", edit_prompts)

    beam: list[str]
    """The versions that parents are chosen from, best first."""
    _critic: Critic | None = None

    def upper_bound(self, train_size: int | None, val_size: int | None) -> UpperBound:
        train, val = split_sizes(train_size, val_size, self.train_split)
        branches = self.beam_width * self.branch_factor
        made = self.beam_rounds * branches
        learned = product(made, least(self.gradient_batch_size, train))
        # A prompt meets a task once, however often it is asked for; and in a round the beam, its new candidates and
        # one leader at most.
        of_round = sum_of((product(branches + self.beam_width, least(self.val_batch_size, val)), val))
        validated = least(product(1 + made, val), sum_of((val, product(self.beam_rounds, of_round))))
        told = (
            f"APO: {self.beam_rounds} rounds (beam_rounds) of {branches} branches (beam_width x branch_factor), each "
            f"with up to {self.gradient_batch_size} rollouts of training tasks (gradient_batch_size)",
            f"APO: every round compares the beam and its new candidates on {self.val_batch_size} validation tasks "
            f"(val_batch_size), and the leader and the seed on all {counted(val, 'task')}",
            f"APO: one critique and up to {self.edit_attempts} edits (edit_attempts) for every branch; retries of a "
            "refused request are not counted",
        )
        calls = made * (1 + self.edit_attempts)
        bound = UpperBound(sum_of((learned, validated)), calls, told, (self.gradient_model, self.apply_edit_model))
        return self.with_lost(bound)

    # -- the search ----------------------------------------------------------------------------------

    async def search(self) -> None:
        critic = self.critic  # a client that is missing is said before anything is paid for
        if self.round < self.beam_rounds:
            await critic.check()
        await self.validate_seed()
        if await self.is_perfect():
            return
        while self.round < self.beam_rounds and not self.should_stop:
            self.begin_iteration()
            if await self._run_round():
                break

    async def _run_round(self) -> bool:
        """True when it is time to stop."""
        log.info("round %d of %d, starting from %s", self.round + 1, self.beam_rounds, ", ".join(self.beam))
        batch = self.val_batch()
        branches = self._plan()
        # The old beam meets the first tasks while the new candidates are made.
        await side_by_side(
            *(self._grow(branch, batch) for branch in branches),
            *(self._meet_first(version, batch) for version in self.beam),
        )
        self._check_answers(branches)
        fresh = [version for branch in branches if (version := self._enter(branch)) is not None]
        self.write_records()
        beam = await self.race([*self.beam, *fresh], batch, keep=self.beam_width)
        has_improved = await self.challenge(beam[0])
        self.beam = beam  # only now: a round that is broken off begins again with the old one
        self._answers.clear()  # what they came to is in the book
        return await self.end_round(_metrics(branches, fresh), has_improved=has_improved)

    def _plan(self) -> list[Branch]:
        parents = self._choose_parents()
        # Counted, as the rounds before may have been wider: those who resume a run may change that.
        first = sum(0 < each.round <= self.round for each in self.book)
        return [
            Branch(
                place=f"r{self.round + 1}-p{number // self.branch_factor}-b{number % self.branch_factor}",
                version=f"v{first + number + 1}",
                parent=self.book.get(parents[number // self.branch_factor]),
                tasks=self._fresh_tasks(first + number),
            )
            for number in range(self.beam_width * self.branch_factor)
        ]

    def _choose_parents(self) -> list[str]:
        """As many as the beam is wide, in turn where it is not full yet."""
        chosen = self.chance("parents", self.round).sample(self.beam, len(self.beam))
        return [chosen[number % len(chosen)] for number in range(self.beam_width)]

    def _fresh_tasks(self, number: int) -> list[Item]:
        size, count = self.gradient_batch_size, len(self.train_items)
        return [self.train_items[i] for i in indices_of_batch(number, size=size, count=count, seed=self.seed)]

    async def _meet_first(self, version: str, batch: Sequence[Item]) -> None:
        found = await self.evaluate(version, _first_of(batch))
        if version == SEED and not self.round and not self.run_initial_validation:
            check_seed(found, has_llm=self._has_llm)

    async def _grow(self, branch: Branch, batch: Sequence[Item]) -> None:
        """From rollouts of the parent to a new prompt and its first validation tasks."""
        _current.set(branch)
        name, template = next(iter(branch.parent.prompts.items()))
        current = VersionedPromptTemplate(branch.parent.version, template, _mean(branch.parent))
        tasks = [item.task for item in branch.tasks]
        try:
            found = await self.evaluate_prompt_on_batch(current, name, tasks, "train", prefix=branch.place)
        except AllLostError as error:
            log.warning("%s: no candidate: %s", branch.place, error)
            branch.give_up(str(error), is_unanswered=True)
            return
        results, branch.reward_mean = found
        text = await self.textual_gradient_and_apply_edit(current, results, prefix=branch.place)
        made = self._made(branch, text)
        if made is not None and self.book.find(made) is None:
            await self.evaluations.evaluate(made, _first_of(batch))

    def _made(self, branch: Branch, text: str | None) -> dict[str, PromptTemplate] | None:
        """The new prompt of a branch, where it can be used."""
        name, template = next(iter(branch.parent.prompts.items()))
        if text is None:
            branch.why_none = branch.why_none or "no new prompt was created"
            return None
        new = as_child(PromptTemplate(text, template.engine), template)
        reason = why_unfit(new, template, self.given_names())
        if reason is not None:
            branch.give_up(reason, text=text)
            return None
        branch.text, branch.why_none, branch.is_unanswered = new.template, None, False
        return {name: new}

    def _check_answers(self, branches: Sequence[Branch]) -> None:
        if all(branch.is_unanswered for branch in branches):
            # When the run goes on, those are asked for again: nothing else could come of it.
            self._answers = {place: each for place, each in self._answers.items() if each.why_none is None}
            self.checkpoint()
            raise RunError(
                f"none of {len(branches)} branches produced a new prompt, the first because: {branches[0].why_none}. "
                "Finished work is kept: fix the cause, then resume the run"
            )

    def _enter(self, branch: Branch) -> str | None:
        """Into the book; the version of a candidate that takes part."""
        if branch.version in self.book:  # by an earlier life of the run
            return None if self.book.get(branch.version).status == "rejected" else branch.version
        name, template = next(iter(branch.parent.prompts.items()))
        text = branch.text if branch.text is not None else branch.unfit_text
        prompts = branch.parent.prompts if text is None else {name: PromptTemplate(text, template.engine)}
        known = None if branch.text is None else self.book.find(prompts)
        reason = branch.why_none if known is None else f"the same as {known.version}"
        self.add(
            Candidate(
                branch.version,
                prompts,
                [branch.parent.version],
                round=self.round + 1,
                critique=branch.critique,
                cost=branch.cost,
                status="new" if reason is None else "rejected",
                reason=reason,
            )
        )
        return branch.version if reason is None else None

    # -- critique and edit ---------------------------------------------------------------------------

    async def compute_textual_gradient(
        self,
        current_prompt: VersionedPromptTemplate,
        rollout_results: Sequence[RolloutResultForAPO],
        *,
        prefix: str | None = None,
    ) -> str | None:
        """Return what the critic says about a prompt, given up to `gradient_batch_size` results of it.

        Args:
            prefix: A name for this step in the log.

        Returns:
            The critique, or None if the critic gave no answer.
        """
        place = next_place("critique")
        chance = self._chance_of(place)
        shown = [each for each in rollout_results if not each.get("is_lost")]
        if len(shown) > self.gradient_batch_size:
            shown = chance.sample(shown, self.gradient_batch_size)
        template, given = current_prompt.prompt_template, self.given_names()
        criticise = partial(self.critic.critique, template, shown, chance, given=given)
        answer = await self._ask(place, "critique", prefix, criticise)
        branch = _current.get()
        if answer is not None and branch is not None:
            branch.critique = answer.text
        return None if answer is None else answer.text

    async def textual_gradient_and_apply_edit(
        self,
        current_prompt: VersionedPromptTemplate,
        rollout: Sequence[RolloutResultForAPO],
        *,
        prefix: str | None = None,
    ) -> str | None:
        """Return a new template, written after a critique of the current one, or None if no edit could be used."""
        critique = await self.compute_textual_gradient(current_prompt, rollout, prefix=prefix)
        if critique is None:
            return None
        template, given = current_prompt.prompt_template, self.given_names()
        for _ in range(self.edit_attempts):
            place = next_place("edit")
            edit = partial(self.critic.edit, template, critique, self._chance_of(place), given=given)
            answer = await self._ask(place, "edit", prefix, edit)
            if answer is None:
                continue
            new = as_child(PromptTemplate(answer.text, template.engine), template)
            reason = why_unfit(new, template, given)
            if reason is None:
                return new.template
            give_up(reason, text=answer.text)
        return None

    async def _ask(
        self, place: str | None, what: str, prefix: str | None, ask: Callable[[], Awaitable[Answer]]
    ) -> Answer | None:
        """An answer, paid for once in a branch; None where the model gave none, which is told."""
        try:
            answer = await (ask() if place is None else self.once(place, partial(_kept, ask)))
            if answer.why_none is not None:
                raise NoAnswerError(answer.why_none, answer.cost)
        except NoAnswerError as error:
            log.warning("%s: no %s: %s", prefix or place or type(self).__name__, what, error)
            pay(error.cost)
            give_up(str(error), is_unanswered=True)
            return None
        pay(answer.cost)
        return answer

    def _chance_of(self, place: str | None) -> random.Random:
        return random.Random() if place is None else self.chance(place)

    @property
    def critic(self) -> Critic:
        if self._critic is None:
            self._critic = self._make_critic()
        return self._critic

    def _make_critic(self) -> Critic:
        models = (self.gradient_model, self.apply_edit_model)
        client = self.async_openai_client
        if client is None:
            client = choose_client(self, models, feature=type(self).__name__)
        return Critic(
            Assistant(client, limit=self.max_concurrent_calls),
            gradient_model=self.gradient_model,
            apply_edit_model=self.apply_edit_model,
            temperature=float(self.diversity_temperature),
            **self._prompts,
        )

    # -- other public parts --------------------------------------------------------------------------

    def get_seed_prompt_template(self) -> tuple[str, PromptTemplate]:
        """Return the name of the prompt to improve, and its seed template."""
        return next(iter(super()._find_seed().items()))

    def _find_seed(self) -> dict[str, PromptTemplate]:
        return dict([self.get_seed_prompt_template()])

    async def evaluate_prompt_on_batch(
        self,
        prompt: VersionedPromptTemplate,
        resource_name: str,
        dataset: Sequence[Any],
        mode: Split,
        *,
        prefix: str | None = None,
    ) -> tuple[list[RolloutResultForAPO], float]:
        """Run rollouts of a prompt on tasks, and return their results and the mean reward. Works only during a run.

        Finished rollouts are reused: on validation tasks always, on training tasks for the same `prefix`. The critic
        is shown these results; candidates are compared with `evaluate`.
        """
        if not dataset:
            raise InvalidInputError("no tasks to evaluate the prompt on: pass at least one")
        self.board  # noqa: B018 - without a run this is an error that says so
        known = self.train_items if mode == "train" else self.val_items
        items = as_items(dataset, mode, known)
        occasion = occasion_of(prefix) if mode == "train" else ""
        found = await self.evaluations.evaluate({resource_name: prompt.prompt_template}, items, occasion=occasion)
        branch = _current.get()
        if branch is not None and mode == "train":
            branch.rollouts |= {each.rollout_id: each for each in found}
        rewards = [each.reward for each in found if not each.is_lost]
        if not rewards:
            raise AllLostError(f"every rollout of prompt {prompt.version} was lost: {found[0].error}")
        return await self._results(found, prefix), sum(rewards) / len(rewards)

    async def _results(self, found: Sequence[Evaluation], prefix: str | None) -> list[RolloutResultForAPO]:
        ids = [each.rollout_id for each in found]
        rollouts = {each.rollout_id: each for each in await self.evaluations.rollouts(ids)}
        return await self.get_rollout_results([rollouts[each] for each in ids], prefix=prefix)

    async def get_rollout_results(
        self, rollouts: Sequence[Rollout], *, prefix: str | None = None
    ) -> list[RolloutResultForAPO]:
        """Return what the critic is shown of finished rollouts."""
        return list(await asyncio.gather(*map(self._result, rollouts)))

    async def _result(self, rollout: Rollout) -> RolloutResultForAPO:
        rollout = await with_last_attempt(self.get_store(), rollout)
        spans = list((await self.get_store().query_spans(rollout.rollout_id, "latest")).items)
        has_failed = rollout.status == "failed"
        return {
            "status": rollout.status,
            "final_reward": 0.0 if has_failed and rollout.reward is None else rollout.reward,
            "spans": spans,
            "messages": self.to_messages.adapt(spans),
            "error": why_failed(rollout),
            "is_lost": infrastructure_fault(rollout, spans) is not None,
        }

    # -- state ---------------------------------------------------------------------------------------

    def search_state(self) -> State:
        return {"beam": self.beam}

    def load_search_state(self, state: State) -> None:
        self.beam = list(state.get("beam", [SEED]))
        self._critic = None  # it belongs to the event loop of one run

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_critic": None}


async def _kept(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """An answer that is of no use was paid for like any other, so a run that goes on must know of it."""
    try:
        return await ask()
    except NoAnswerError as error:
        if not error.is_paid:
            raise
        return Answer("", error.cost, why_none=str(error))


def _first_of(batch: Sequence[Item]) -> list[Item]:
    """What every candidate meets, whatever comes of the race."""
    cut = Race(["one", "other"], num_items=len(batch)).next_slice()
    return [batch[position] for position in (cut.items if cut is not None else ())]


def _mean(candidate: Candidate) -> float | None:
    return None if candidate.score is None else candidate.score.mean


def _metrics(branches: Sequence[Branch], fresh: Sequence[str]) -> dict[str, float]:
    rewards = [branch.reward_mean for branch in branches if branch.reward_mean is not None]
    found: dict[str, float] = {
        "candidates": len(fresh),
        "rejected": len(branches) - len(fresh),
        "unanswered": sum(branch.is_unanswered for branch in branches),
        "lost": sum(each.is_lost for branch in branches for each in branch.rollouts.values()),
    }
    return {**found, "reward_mean": sum(rewards) / len(rewards)} if rewards else found


def _one_of(name: str, value: T, other_name: str, other: T | None) -> T:
    """The value of a setting that has two names."""
    if other is None:
        return value
    if not isinstance(value, _Rounds | _Temperature):
        raise ConfigError(f"{other_name} is another name for {name}: use only one of them")
    return other
