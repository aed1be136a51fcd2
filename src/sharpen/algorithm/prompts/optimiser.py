"""`PromptOptimiser`: what every search over prompts stands on.

A search makes candidates; each is evaluated on validation tasks by rollouts, and the best replaces the seed on evidence
alone. What it keeps:

- Nothing is paid for twice: evaluations are in the store under ids that follow from their prompts and task, answers of
  a second model are in the checkpoint (`once`).
- Every random choice follows from the seed of the run and the place of the choice (`chance`), so it does not matter
  what happens side by side, or whether a run was resumed on the way.
- Every candidate is in the book, and the book is in the folder of the run after each round.
"""

import contextlib
import logging
import os
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from ...adapter import TraceToMessages
from ...checks import check_choice, check_int, check_ints, check_number
from ...errors import ConfigError, RunError, SharpenError
from ...files import remove_leftovers
from ...runs.screen import screen, show
from ...types import LLM, Dataset, NamedResources, PromptTemplate, TaskT
from ..base import Algorithm, State
from ..bounds import UpperBound
from ..datasets import all_tasks, divided, indices_of_batch
from ..gateway_hold import HeldCalls
from .candidates import Candidate, CandidateBook, Cost
from .evaluations import MOST_TRIES, Evaluation, Evaluations, Item, Split
from .models import Answer, served_model
from .preflight import check_seed, check_timeout, optional_fields_filled, unfilled_fields, unused_prompts
from .race import Promotion, Scoreboard, cost_metrics
from .templates import optional_names, seed_prompts
from .tree import best_diff, draw_tree, show_best_diff, write_records

if TYPE_CHECKING:
    from rich.text import Text

log = logging.getLogger(__name__)
SEED = "v0"


class PromptOptimiser(Algorithm[TaskT]):
    """Base class of searches over prompts.

    Override `search`, and `search_state` together with `load_search_state` if the search has state of its own.

    Args:
        val_batch_size: How many validation tasks the candidates of a round are compared on. The leader of the round is
            evaluated on all of them.
        rollout_batch_timeout: Seconds that rollouts may take. Rollouts that have not finished by then are lost.
        run_initial_validation: Whether to score the seed prompt on all validation tasks first.
        patience: Stop the search after this many rounds without a better prompt.
        promotion: When a prompt replaces the best one: "interval" if the difference is significant, "mean" if its mean
            reward is higher.
        train_split: The fraction of the training set to train on if there is no validation set.
        resource_name: The prompt to improve if the resources contain several.
        seed: Seed of every random choice. None draws a new one for every run.
        perfect_reward: The highest possible reward. The search stops early once a prompt has it on every validation
            task; `promotion` still decides whether that prompt becomes the best. With None the search never stops
            early, since the highest reward seen may not be the highest possible.
        model: A local model (a folder, a GGUF file, a name on the Hugging Face hub) to serve to the agents during the
            search.
        max_response_tokens: The maximum number of tokens in an answer of that model.
    """

    enqueues_tasks = True
    runs_side_by_side = True
    takes_many_prompts = False
    training_temperature = 1.0
    """Sampling temperature of `model` on training tasks, unless the agent sets one."""

    def __init__(
        self,
        *,
        val_batch_size: int = 16,
        rollout_batch_timeout: float = 3600.0,
        run_initial_validation: bool = True,
        patience: int | None = None,
        promotion: Promotion = "interval",
        train_split: float = 0.5,
        resource_name: str | None = None,
        seed: int | None = None,
        perfect_reward: float | None = None,
        model: str | os.PathLike[str] | None = None,
        max_response_tokens: int = 512,
    ) -> None:
        check_ints(val_batch_size=val_batch_size, patience=patience, max_response_tokens=max_response_tokens)
        check_choice("promotion", promotion, get_args(Promotion))
        self.perfect_reward = check_number("perfect_reward", perfect_reward, optional=True)
        self.rollout_batch_timeout = check_timeout("rollout_batch_timeout", rollout_batch_timeout)
        self.val_batch_size = val_batch_size
        self.run_initial_validation, self.patience, self.promotion = run_initial_validation, patience, promotion
        self.train_split = check_number("train_split", train_split, above=0, below=1)
        self.resource_name, self.model = resource_name, model
        self.max_response_tokens = max_response_tokens
        self._wanted_seed = check_int("seed", seed, optional=True)
        if model is not None:
            self.needs_gateway = self.holds_calls = True
        self._loaded: State | None = None
        self._reset({})

    def _reset(self, state: State) -> None:
        """To the beginning of a run, or to where it was."""
        self.key: str = state.get("key", "")
        self.seed: int = state.get("seed", 0)
        self.round: int = state.get("round", 0)
        self._num_fruitless: int = state.get("fruitless", 0)
        self.book = CandidateBook.of(state["book"]) if "book" in state else CandidateBook()
        self._answers = {place: msgspec.convert(each, Answer) for place, each in state.get("answers", {}).items()}
        self._scores: State = state.get("scores", {})
        self.fields_filled: dict[str, dict[str, bool]] = state.get("fields_filled", {})
        self._board: Scoreboard | None = None
        self.load_search_state(state.get("search", {}))

    # -- to override ---------------------------------------------------------------------------------

    async def search(self) -> None:
        """Run the whole search. Items, evaluations and the book with the seed prompt are ready when it is called."""
        raise NotImplementedError(f"{type(self).__name__} does not implement search(): override it")

    def search_state(self) -> State:
        """Return what the search needs to resume, besides what the base class saves."""
        return {}

    def load_search_state(self, state: State) -> None:
        """Resume from what `search_state` returned; start from the beginning if it is empty."""

    # -- the run -------------------------------------------------------------------------------------

    async def run(self, train_dataset: Dataset[TaskT] | None = None, val_dataset: Dataset[TaskT] | None = None) -> None:
        calls = HeldCalls(self.get_llm_proxy(), is_ours=self.model is not None and self.own_gateway_address is not None)
        await calls.hold()  # first of all: runners are at work already
        self._reset(self._loaded or {"key": secrets.token_hex(6), "seed": self._first_seed()})
        self._loaded = None  # a second run is a new one
        self._check_agent()
        self.train_items, self.val_items = self._split(train_dataset, val_dataset)
        self.seed_prompts = self._find_seed()
        self._check_same_seed()
        self.fields_filled = self._fields_of_tasks() | self.fields_filled
        self.checkpoint()  # a run that is killed from here on finds its rollouts again
        async with self._resources() as others, self._searching(others), calls.let_through(self._are_agents_at_work):
            if not len(self.book):
                self.add(Candidate(SEED, self.seed_prompts))
                self.book.best_version = SEED
            await self.search()
        self.write_records()  # with what was paid after the last round
        self._conclude()

    def _check_agent(self) -> None:
        if not self.agent_takes_prompt:
            raise ConfigError(
                f"{type(self).__name__} improves a prompt, but the agent does not take one: add a parameter "
                "prompt_template or resources to its function"
            )

    def _first_seed(self) -> int:
        return random.getrandbits(32) if self._wanted_seed is None else self._wanted_seed

    def _split(self, train: Dataset[Any] | None, val: Dataset[Any] | None) -> tuple[list[Item], list[Item]]:
        name = type(self).__name__
        if train is None:
            raise ConfigError(f"{name} needs training tasks: pass train_dataset to fit")
        if val is None:
            tasks, val_tasks = divided(train, self.train_split)
            log.info("no val_dataset: using %d tasks for training and %d for validation", len(tasks), len(val_tasks))
        else:
            tasks, val_tasks = all_tasks(train), all_tasks(val)
        if not tasks or not val_tasks:
            found = f"{len(tasks)} training tasks and {len(val_tasks)} validation tasks"
            way_out = "" if val is not None else ", or change train_split, which divides the training set,"
            raise ConfigError(f"{name} has {found}: add tasks{way_out} so that there is at least one of each")
        return [Item("train", *each) for each in enumerate(tasks)], [
            Item("val", *each) for each in enumerate(val_tasks)
        ]

    def _find_seed(self) -> dict[str, PromptTemplate]:
        resources, own = self.get_initial_resources(), self.agent_prompt
        return seed_prompts(resources, own, name=self.resource_name, many=self.takes_many_prompts)

    def _fields_of_tasks(self) -> dict[str, dict[str, bool]]:
        """Until a rollout shows which optional fields are filled: those that are named like a part of the task."""
        task = self.train_items[0].task
        parts = task if isinstance(task, Mapping) else ()
        return {
            prompt: {name: True for name in optional_names(template) if name in parts}
            for prompt, template in self.seed_prompts.items()
        }

    def _check_same_seed(self) -> None:
        """Candidates of one search all come from one prompt."""
        if len(self.book) and self.book.seed.prompts != self.seed_prompts:
            raise ConfigError(
                f"this run started with another prompt than {', '.join(map(repr, self.seed_prompts))} has now: resume "
                "it with the original one (see candidates.json in its folder), or start a new run"
            )

    @contextlib.asynccontextmanager
    async def _resources(self) -> AsyncIterator[Mapping[Split, NamedResources]]:
        """What agents are given beside the prompts."""
        others = self.get_initial_resources() or {}
        if self.model is None:
            yield {"train": others, "val": others}
            return
        async with served_model(
            self.model,
            self.get_llm_proxy(),
            others,
            training_temperature=self.training_temperature,
            max_response_tokens=self.max_response_tokens,
            seed=self.seed,
            rollout_prefix=f"ro-{self.key}-",
            feature=f"{type(self).__name__}(model=...)",
        ) as found:
            yield found

    @contextlib.asynccontextmanager
    async def _searching(self, others: Mapping[Split, NamedResources]) -> AsyncIterator[None]:
        """However it ends, the resources that were published last are those with the best prompt."""
        self._others = others["val"]
        self.evaluations = Evaluations(
            self.get_store(),
            self.key,
            others=others,
            timeout_seconds=self.rollout_batch_timeout,
            messages=self.to_messages,
        )
        self._board = Scoreboard(
            self.book, self.evaluations, self.val_items, promotion=self.promotion, saved=self._scores
        )
        try:
            async with self.evaluations.following():
                yield
        except BaseException:
            with contextlib.suppress(SharpenError):
                await self._publish_best()
            raise
        await self._publish_best()

    async def _are_agents_at_work(self) -> bool:
        working = await self.get_store().query_rollouts(
            status_in=["preparing", "running"], rollout_id_contains=f"ro-{self.key}-", limit=1
        )
        return len(working) > 0

    def _conclude(self) -> None:
        best, seed = self.book.best, self.book.seed
        told = "the seed prompt is still the best" if best.version == seed.version else f"best prompt: {best.version}"
        before = "" if best.version == seed.version else f" (seed: {self.board.score_text(seed.version)})"
        log.info("%s, %s%s; %s", told, self.board.score_text(best.version), before, self.cost.text())
        unproven = self.board.unproven()
        if unproven is not None:
            log.warning(
                "%s has a higher mean than the best, %s against %s, but the difference is not significant: add "
                'validation tasks, or use promotion="mean"',
                unproven,
                self.board.score_text(unproven),
                self.board.score_text(best.version),
            )
        show(_as_text(draw_tree(self.book, width=screen().width)))
        if best.version != seed.version:
            show_best_diff(self.book)

    # -- what a search uses --------------------------------------------------------------------------

    def chance(self, *place: object) -> random.Random:
        """Return a random generator for one place in the search; it depends only on the seed and on `place`."""
        return random.Random("/".join(map(str, (self.seed, *place))))

    @property
    def to_messages(self) -> TraceToMessages:
        """The adapter that reads the agents' conversations: the trainer's, if it is a `TraceToMessages`."""
        return self._adapter if isinstance(self._adapter, TraceToMessages) else TraceToMessages()

    async def once(self, place: str, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the model's answer for this place. Answers are saved with the run, so none is paid for twice."""
        if place not in self._answers:
            self._answers[place] = await ask()
            self.checkpoint()
        return self._answers[place]

    def val_batch(self) -> list[Item]:
        """Return the validation tasks of this round."""
        indices = indices_of_batch(self.round, size=self.val_batch_size, count=len(self.val_items), seed=self.seed)
        return [self.val_items[index] for index in indices]

    @property
    def board(self) -> Scoreboard:
        """The scores of all candidates."""
        if self._board is None:
            raise ConfigError(f"{type(self).__name__} evaluates prompts only during a run: use Trainer.fit")
        return self._board

    def with_lost(self, bound: UpperBound) -> UpperBound:
        """Return the bound for the case that every rollout is lost to a model or a worker and has to be retried."""
        return bound.asked_again(MOST_TRIES, type(self).__name__)

    def add(self, candidate: Candidate) -> Candidate:
        """Add a new candidate, whose cost is what it took to create it, and return it."""
        return self.board.add(candidate)

    async def evaluate(self, version: str, items: Sequence[Item]) -> list[Evaluation]:
        """Evaluate a candidate on validation tasks, and update its score and cost in the book."""
        return await self.board.evaluate(version, items)

    async def race(self, versions: Sequence[str], items: Sequence[Item], *, keep: int) -> list[str]:
        """Compare candidates on the same tasks, drop the clearly worse ones, and return the others, best first."""
        return await self.board.race(versions, items, keep=keep)

    async def challenge(self, version: str) -> bool:
        """Score a candidate on all validation tasks; return True if it replaces the best (see `promotion`)."""
        return await self.board.challenge(version)

    def given_names(self, prompt: str | None = None) -> list[str]:
        """Return the optional fields that agents fill in the seed prompt of this name, or in any of them."""
        of = list(self.fields_filled.values()) if prompt is None else [self.fields_filled.get(prompt, {})]
        return [name for found in of for name, is_filled in found.items() if is_filled]

    @property
    def _has_llm(self) -> bool:
        """Whether agents are given a model beside their prompts."""
        return any(isinstance(each, LLM) for each in self._others.values())

    async def validate_seed(self) -> None:
        """Score the seed prompt on all validation tasks, unless `run_initial_validation` is off."""
        if not self.run_initial_validation:
            return
        is_told = self.round > 0 or len(self._scores.get("met", {}).get(SEED, ())) == len(self.val_items)
        found = await self.evaluate(SEED, self.val_items)
        check_seed(found, has_llm=self._has_llm)
        if is_told:  # by an earlier life of the run
            return
        await self._check_use(found)
        log.info("seed prompt: %s", self.board.score_text(SEED))
        self.report_validation(self.board.metrics())
        self.checkpoint()

    async def _check_use(self, evaluations: Sequence[Evaluation]) -> None:
        """Say so when the agent seems to have its prompt from elsewhere."""
        done = next((each for each in evaluations if each.status == "succeeded"), None)
        conversations = [] if done is None else await self.evaluations.messages(done)
        for name, prompt in self.seed_prompts.items():
            self.fields_filled[name] |= optional_fields_filled(prompt, conversations)
        for name, field in unfilled_fields(self.seed_prompts, conversations):
            log.warning(
                "{%s} in prompt %r got no value and was sent to the model as it is: check that the agent passes it to "
                "format() under that name",
                field,
                name,
            )
        for name in unused_prompts(self.seed_prompts, conversations):
            log.warning(
                "the text of prompt %r does not appear in any model call of the agent, so changing it may have no "
                "effect: the agent must use resources[%r] or its parameter prompt_template",
                name,
                name,
            )

    async def end_round(self, metrics: Mapping[str, float], *, has_improved: bool) -> bool:
        """Write the records, publish the best prompt, report the iteration and save the state.

        Returns:
            True if the search should stop.
        """
        self.round += 1
        self._num_fruitless = 0 if has_improved else self._num_fruitless + 1
        self.write_records()
        await self._publish_best()
        self._tell_round()
        has_to_stop = self.report_iteration(
            {**metrics, "candidates_total": len(self.book), **cost_metrics(self.cost)},
            val_metrics=self.board.metrics() or None,
        )
        self.checkpoint()
        self._check_failures()
        if has_to_stop or self.should_stop:
            return True
        if self.patience is not None and self._num_fruitless >= self.patience:
            log.info("no better prompt for %d rounds; stopping the search (patience)", self._num_fruitless)
            return True
        return await self.is_perfect()

    async def is_perfect(self) -> bool:
        """Return True if a prompt has `perfect_reward` on every validation task, so that no other can do better."""
        if self.perfect_reward is None:
            return False
        version = await self.board.perfect_version(self.perfect_reward)
        if version is None:
            return False
        log.info(
            "%s has the perfect reward of %g on every validation task; stopping the search",
            version,
            self.perfect_reward,
        )
        return True

    def _check_failures(self) -> None:
        """What no candidate of a round has mended is not the prompt's fault."""
        error = self.board.only_failures()
        if error is not None:
            raise RunError(
                f"every rollout failed so far, with the seed prompt and with every candidate, the first with {error}: "
                "fix the agent, and return a reward of 0 for answers that it cannot use"
            )

    def _tell_round(self) -> None:
        made = [each.status for each in self.book if each.round == self.round]
        best, rejected = self.book.best.version, made.count("rejected")
        new = len(made) - rejected
        level = logging.WARNING if rejected and not new else logging.INFO
        score = self.board.score_text(best)
        text = "round %d: %d new candidates, %d rejected; best: %s, %s"
        log.log(level, text, self.round, new, rejected, best, score)

    async def _publish_best(self) -> None:
        """What agents get from here on: rollouts without resources of their own are bound to the latest."""
        if not len(self.book):
            return
        resources = {**self._others, **self.book.best.prompts}
        latest = await self.get_store().get_latest_resources()
        if latest is None or latest.resources != resources:
            await self.get_store().add_resources(resources)

    # -- what came of it -----------------------------------------------------------------------------

    def get_best_prompt(self) -> PromptTemplate:
        """Return the best prompt so far."""
        if not len(self.book):
            raise ConfigError("there is no best prompt yet: run the search with Trainer.fit first")
        return self.book.best.template

    @property
    def candidates(self) -> list[Candidate]:
        """Every candidate, in the order of creation."""
        return list(self.book)

    @property
    def cost(self) -> Cost:
        """The cost of the search so far."""
        return self.book.cost

    def best_diff(self) -> str:
        """Return a unified diff from the seed prompt to the best one; several prompts give several diffs."""
        return best_diff(self.book)

    def tree(self) -> str:
        """Return all candidates as a text tree."""
        return draw_tree(self.book)

    def write_records(self) -> None:
        """Write every candidate and the best prompt to files in the run folder."""
        if self.run_dir is not None:
            folder = Path(self.run_dir) / "prompts"
            write_records(folder, self.book)
            remove_leftovers(folder)  # of a life of the run that was killed at this

    # -- checkpoints ---------------------------------------------------------------------------------

    def state_dict(self) -> State:
        if not self.key:
            return self._loaded or {}
        return {
            "key": self.key,
            "seed": self.seed,
            "round": self.round,
            "fruitless": self._num_fruitless,
            "answers": msgspec.to_builtins(self._answers),
            "scores": self._scores if self._board is None else self._board.state(),
            "fields_filled": self.fields_filled,
            "search": self.search_state(),
            **({"book": self.book.as_json()} if len(self.book) else {}),
        }

    def load_state_dict(self, state: State) -> None:
        self._loaded = state or None
        if state:
            self._reset(state)


def _as_text(drawing: str) -> "Text":
    """Words of models may look like markup, and are none."""
    from rich.text import Text

    return Text(drawing, no_wrap=True)
