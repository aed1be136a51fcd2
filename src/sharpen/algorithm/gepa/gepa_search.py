"""One search of gepa, from its start to its end, joined to the run: to its rollouts, its book and its rounds.

gepa is synchronous, so it runs in a thread of its own (`SearchThread`) and waits there for what happens on the loop of
the run. Its evaluations are rollouts (`RolloutAdapter`), its reflections go through `Reflector`, and what it reports of
its iterations is kept until they end (`Iterations`).

gepa has no state here that outlives its thread. Under its seed it is a function of scores and answers, so a run that is
resumed starts gepa again from the beginning: what was paid for comes from the store and from the checkpoint, until gepa
is where it was. Nothing that gepa gets may depend on time, on ids, or on the order in which things happen to finish.
"""

import asyncio
import hashlib
import json
import logging
import re
import threading
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec

from ...errors import ConfigError, RunError, SpansEvictedError, describe
from ...types import PromptTemplate
from ..prompts.candidates import Candidate, CandidateBook, Cost
from ..prompts.critic import record_of, record_without_trace
from ..prompts.evaluations import Evaluation, Item
from ..prompts.failure_cause import NoAnswerError
from ..prompts.models import Answer, Assistant
from ..prompts.race import side_by_side
from ..prompts.templates import as_child, placeholders, why_unfit
from ..threads import run_in_thread

if TYPE_CHECKING:
    from .gepa import GEPA, Budget, ScoreScale

log = logging.getLogger(__name__)
T = TypeVar("T")
Texts = Mapping[str, str]
Event = Mapping[str, Any]
Messages = list[dict[str, Any]]

MOST_UNANSWERED = 5
MOST_VAIN = 10
MOST_ERRORS = 3
ATTEMPTS = 2
"""How often a text is asked for until it can be used."""


class GepaSearch:
    """The search: what gepa asks for and reports comes here."""

    def __init__(self, optimiser: "GEPA", assistant: Assistant, budget: "Budget", scale: "ScoreScale") -> None:
        self.optimiser, self.budget, self.scale = optimiser, budget, scale
        self._options, self._assistant = optimiser.options, assistant
        self.thread = SearchThread()
        self.family = Family(optimiser.book, optimiser.add, has_stable_names=self._options["use_merge"])
        self._iterations = Iterations(self)
        self._reflector = Reflector(self, self._options["reflection_prompt_template"])
        self._has_to_stop = False
        self._num_unanswered = self._num_idle = self._num_vain = self._num_rounds = 0
        self._work_before = (0, 0)
        self._paid: set[str] = set()

    async def run(self) -> None:
        await self.thread.run(self._optimise)
        await self._close_open()
        log.info("gepa finished after %d of %d rollouts", self.budget.spent, self.budget.limit)

    def _optimise(self) -> None:
        """All of gepa, in its thread."""
        from gepa.api import optimize

        train, val = self.optimiser.train_items, self.optimiser.val_items
        # By name and untyped: gepa's protocols ask for methods that it does not need.
        parts: dict[str, Any] = {
            "adapter": RolloutAdapter(self),
            "reflection_strategy": self._reflector,
            "callbacks": [self._iterations],
            "stop_callbacks": [self._is_time_to_stop, *self._options.stop_callbacks],
            "logger": SimpleNamespace(log=lambda message: log.debug("gepa: %s", message)),
        }
        optimize(
            self.family.seed_texts,
            train,
            val,
            seed=self.optimiser.chance("gepa").getrandbits(32),
            # What is an Exception to gepa is gepa's own: a single slip need not end the search.
            raise_on_exception=False,
            track_best_outputs=False,
            **parts,
            **self._options.for_gepa(num_train=len(train), num_val=len(val)),
            **self._perfect_score(),
        )

    def _perfect_score(self) -> dict[str, Any]:
        """Without a stated maximum no score is perfect, whatever gepa takes for one by default."""
        reward = self.optimiser.perfect_reward
        if reward is None:
            return {"skip_perfect_score": False, "perfect_score": None}
        return {"skip_perfect_score": self._options["skip_perfect_score"], "perfect_score": self.scale.of(reward)}

    def _is_time_to_stop(self, state: Any) -> bool:
        """Without the rollouts for one more candidate, an iteration could change nothing."""
        optimiser = self.optimiser
        least = self._options.minibatch_size(len(optimiser.train_items)) + len(optimiser.val_items)
        return self._has_to_stop or self.budget.left < least

    # -- what gepa asks for --------------------------------------------------------------------------

    async def evaluate(self, texts: Texts, items: Sequence[Item]) -> list[Evaluation]:
        """Evaluate a candidate, which is new where gepa has merged it from others."""
        version = self.family.version_of(texts) or self._iterations.enter_merged(texts)
        if items[0].split == "val":
            self.family.settle(version)
            return await self.optimiser.evaluate(version, items)
        found = await self.optimiser.evaluations.evaluate(self.family.prompts_of(version), items)
        for each in found:
            if each.rollout_id not in self._paid:
                self._paid.add(each.rollout_id)
                self.family.spend(each.cost, version)
        return found

    async def record(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return what a reflection is shown of a rollout."""
        try:
            spans = await self.optimiser.evaluations.spans(evaluation)
        except SpansEvictedError:
            return record_without_trace(evaluation)
        return record_of(evaluation, spans, self.optimiser.to_messages.adapt(spans))

    async def ask(self, place: str, messages: Messages) -> Answer:
        """An answer; its text is empty where the model gave none. That is kept too: the search has gone on from it."""
        answer = await self.optimiser.once(f"reflection/{place}", lambda: self._answer(messages))
        self._num_unanswered = 0 if answer.text else self._num_unanswered + 1
        return answer

    async def _answer(self, messages: Messages) -> Answer:
        model = self.optimiser.reflection_model
        try:
            return await self._assistant.ask(model, messages, temperature=self.optimiser.reflection_temperature)
        except NoAnswerError as error:
            if self._num_unanswered + 1 >= MOST_UNANSWERED:
                raise RunError(
                    f"{model!r} gave no answer {MOST_UNANSWERED} times in a row, most recently: {error}. Finished work "
                    "is kept: resume the run when the model answers again"
                ) from error
            log.warning("skipping a reflection: %s", error)
            return Answer("", error.cost)

    # -- iterations ----------------------------------------------------------------------------------

    async def begin(self) -> int:
        """Return the number of the round that begins."""
        if self._num_rounds >= self.optimiser.round:
            self.optimiser.begin_iteration()
        return self._num_rounds + 1

    async def close(self, done: "Iteration") -> None:
        """Bring the book up to date, and end the round; one that was ended before is only replayed."""
        self._settle(done)
        if not self._has_worked():
            return
        self._num_rounds += 1
        if self._num_rounds <= self.optimiser.round:
            return
        self._mark(done)
        if done.leader is not None:
            await self.optimiser.challenge(done.leader)
        metrics = {
            "metric_calls": self.budget.spent,
            "proposed": len(done.made),
            "accepted": len(done.validated),
            "unanswered_total": self._reflector.num_unanswered,
            "front_size": self._iterations.front_size,
        }
        if await self.optimiser.end_round(metrics, has_improved=done.leader is not None):
            self._has_to_stop = True

    def _has_worked(self) -> bool:
        """Whether an iteration had a use for new rollouts or for the model; it is no round otherwise."""
        spent, asked = self.budget.spent, self._reflector.num_asked
        has_spent, has_asked = spent > self._work_before[0], asked > self._work_before[1]
        self._work_before = (spent, asked)
        self._num_idle = 0 if has_spent else self._num_idle + 1
        self._num_vain = 0 if has_spent else self._num_vain + has_asked
        self._end_where_nothing_is_new()
        return has_spent or has_asked

    def _end_where_nothing_is_new(self) -> None:
        """Nothing that gepa asks for costs a rollout any more, so the budget would never end it."""
        num_train = len(self.optimiser.train_items)
        epoch = num_train // (self._options.minibatch_size(num_train) or 1)
        if self._num_vain >= MOST_VAIN:
            log.warning("%d reflections in a row had no result; stopping the search", self._num_vain)
            self._has_to_stop = True
        elif self._num_idle >= MOST_VAIN + 2 * epoch:
            log.info("%d iterations in a row found nothing new; stopping the search", self._num_idle)
            self._has_to_stop = True

    async def _close_open(self) -> None:
        """An iteration that the budget has broken off is no round: with a greater one the run resumes in it."""
        done = self._iterations.open
        if done is None or done.number <= self.optimiser.round:
            return
        done.is_broken_off = True
        self._settle(done)
        self._mark(done)
        self.optimiser.write_records()
        self.optimiser.checkpoint()

    def _settle(self, done: "Iteration") -> None:
        for version in done.made:
            self.family.settle(version)
        self.optimiser.book.other_cost = self.family.open_cost

    def _mark(self, done: "Iteration") -> None:
        book, reasons = self.optimiser.book, done.why_dropped()
        for version in done.made:
            if book.get(version).status == "best":  # of an earlier life, which ended just after that
                continue
            reason = reasons.get(version)
            book.update(version, status="dropped" if version in reasons else "kept", reason=reason)
            log.info("round %d: %s: %s", done.number, version, reason or "kept")


# -- the thread of gepa ------------------------------------------------------------------------------


class SearchOver(BaseException):
    """Ends gepa. No `Exception`: gepa logs those and goes on."""


class SearchThread:
    """Runs one function in a thread; `wait_for` is for that thread.

    It ends with the search: every call after the end raises `SearchOver`, and so does the one that is waited for. What
    goes wrong on the loop ends the search too, and is raised where the search is awaited.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._awaited: asyncio.Task[Any] | None = None
        self._failure: BaseException | None = None
        self.is_over = False

    async def run(self, work: Callable[[], object]) -> None:
        """Until the work has ended, by itself or by `SearchOver`. Cancelling this ends the thread."""
        await run_in_thread(lambda: self._work(work), what="gepa", interrupt=SearchOver, wake=self._break_off)
        if self._failure is not None:
            raise self._failure

    def wait_for(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What this gives on the loop of the run. Whatever it raises ends the search."""
        if self.is_over:
            raise SearchOver
        try:
            return asyncio.run_coroutine_threadsafe(self._unless_over(ask), self._loop).result()
        except (CancelledError, SearchOver):
            raise SearchOver from None
        except BaseException as error:  # noqa: BLE001 - raised again where the search is awaited
            self.fail(error)

    async def _unless_over(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """On the loop, where `_break_off` runs too: a call has either begun, and is cancelled, or does not begin."""
        if self.is_over:
            raise asyncio.CancelledError
        self._awaited = asyncio.current_task()
        return await ask()

    def fail(self, error: BaseException) -> NoReturn:
        """End the search with this error."""
        self._failure = error
        self.end()

    def end(self) -> NoReturn:
        """End the search here: gepa gets no further."""
        self.is_over = True
        raise SearchOver

    def _work(self, work: Callable[[], object]) -> None:
        threading.current_thread().name = "sharpen-gepa"
        try:
            work()
        except SearchOver:
            log.debug("gepa was stopped")
        except BaseException as error:  # noqa: BLE001 - raised again where the search is awaited
            if self._failure is None and not self.is_over:
                self._failure = RunError(f"the gepa package failed: {describe(error)}")
                self._failure.__cause__ = error

    def _break_off(self) -> None:
        """Called on the loop, again until the thread has ended."""
        self.is_over = True
        if self._awaited is not None:
            self._awaited.cancel()


# -- candidates --------------------------------------------------------------------------------------


class StableName(str):
    """A name whose hash is the same in every process.

    gepa draws lots for components in the order of a set of their names, which is another one in every process for
    plain texts: a resumed search would come to other candidates.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return zlib.crc32(self.encode())

    def __deepcopy__(self, memo: dict[int, Any]) -> "StableName":
        return self


class Family:
    """The candidates as gepa knows them (texts by name, numbers) and as the book does (prompts, versions).

    A version follows from the round that made it, so a search that is replayed gives every candidate the name that it
    has in the book already. A candidate is in the book from its first validation task on, or from the end of its round:
    then it is known what it took to make it. `add` enters one there.
    """

    def __init__(
        self, book: CandidateBook, add: Callable[[Candidate], Candidate], *, has_stable_names: bool = False
    ) -> None:
        self._book, self._add, seed = book, add, book.seed
        self._engines = {name: prompt.engine for name, prompt in seed.prompts.items()}
        self._names = {name: StableName(name) if has_stable_names else name for name in self._engines}
        self._unsettled: dict[str, Candidate] = {}
        self.seed_texts = {self._names[name]: prompt.template for name, prompt in seed.prompts.items()}
        self._versions = {texts_key(self.seed_texts): seed.version}
        self.by_number = [seed.version]
        self.open_cost = Cost()
        """What was paid and belongs to no candidate yet."""
        self.round = 0
        self.made: list[str] = []

    def begin(self, number: int) -> None:
        """A new round, in which nothing is made yet."""
        self.round, self.made = number, []

    def name(self, component: str) -> str:
        """A component by the name that is in gepa's candidates."""
        return self._names[str(component)]

    def prompt(self, component: str, text: str) -> PromptTemplate:
        return PromptTemplate(text, self._engines[str(component)])

    def prompts_of(self, version: str) -> dict[str, PromptTemplate]:
        return (self._unsettled.get(version) or self._book.get(version)).prompts

    def version_of(self, texts: Texts) -> str | None:
        """None where no such candidate was made yet, since this process began."""
        return self._versions.get(texts_key(texts))

    def enter(
        self,
        version: str,
        texts: Texts,
        *,
        parents: Sequence[str],
        critique: str | None,
        cost: Cost | None = None,
        why_rejected: str | None = None,
    ) -> None:
        """A new candidate; one that is rejected is for the book alone."""
        prompts = {str(name): self.prompt(name, text) for name, text in texts.items()}
        made = Candidate(version, prompts, list(parents), self.round, critique, cost=cost or Cost())
        if why_rejected is not None:
            self._add_once(msgspec.structs.replace(made, status="rejected", reason=why_rejected))
            return
        self._versions[texts_key(texts)] = version
        self._unsettled[version] = made
        self.made.append(version)

    def settle(self, version: str) -> None:
        """Put it into the book, with all that was paid since the last one."""
        made = self._unsettled.pop(version, None)
        if made is not None:
            self._add_once(msgspec.structs.replace(made, cost=made.cost + self.open_cost))
            self.open_cost = Cost()

    def spend(self, cost: Cost, version: str | None = None) -> None:
        """Where the version is in the book already, the next one bears the cost."""
        made = self._unsettled.get(version or "")
        if made is None:
            self.open_cost += cost
        else:
            self._unsettled[made.version] = msgspec.structs.replace(made, cost=made.cost + cost)

    def _add_once(self, candidate: Candidate) -> None:
        if candidate.version not in self._book:
            self._add(candidate)
        elif self._book.get(candidate.version).prompts != candidate.prompts:
            raise ConfigError(
                f"{candidate.version} of this search differs from {candidate.version} of the run, which was started "
                "with other options or tasks: resume it with those, or start a new run"
            )


def texts_key(texts: Texts) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(name), text) for name, text in texts.items()))


# -- evaluations -------------------------------------------------------------------------------------


class Examples(dict[str, list[dict[str, Any]]]):
    """What a reflection is shown, by component; and the tasks that it is about."""

    about: list[Item]


class RolloutAdapter:
    """gepa's evaluations as rollouts: what gepa calls, in its own thread."""

    # gepa asks for it: new texts come from the `Reflector`.
    propose_new_texts = None

    def __init__(self, search: GepaSearch) -> None:
        self._search = search

    def evaluate(self, batch: list[Item], candidate: Texts, capture_traces: bool = False) -> Any:
        return self.batch_evaluate([(candidate, batch)])[0]

    def batch_evaluate(self, items: Sequence[tuple[Texts, list[Item]]]) -> list[Any]:
        """Side by side; where the rollouts do not fit into the budget, the search is over.

        The traces stay in the store until they are asked for.
        """
        from gepa.core.adapter import EvaluationBatch

        search = self._search
        asked = [[(texts_key(texts), item.split, item.index) for item in batch] for texts, batch in items]
        costs = search.budget.take(asked)
        if costs is None:
            search.thread.end()
        found = search.thread.wait_for(lambda: side_by_side(*(search.evaluate(*each) for each in items)))
        return [
            EvaluationBatch(each, search.scale.of_all(each), each, num_metric_calls=cost)
            for each, cost in zip(found, costs, strict=True)
        ]

    def make_reflective_dataset(
        self, candidate: Texts, eval_batch: Any, components_to_update: Sequence[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        unique = list({each.rollout_id: each for each in eval_batch.trajectories}.values())
        records = self._search.thread.wait_for(lambda: side_by_side(*map(self._search.record, unique)))
        examples = Examples({self._search.family.name(name): records for name in components_to_update})
        examples.about = [each.item for each in unique]
        return examples


# -- what gepa reports -------------------------------------------------------------------------------


@dataclass(slots=True)
class Iteration:
    """One iteration of gepa. Versions are in the order of making."""

    number: int
    """Of the round that it is, if it has any work to do."""
    made: list[str] = field(default_factory=list)
    validated: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Why gepa did not take those that were made, in the same order."""
    leader: str | None = None
    """The candidate with the best mean so far, where it is a new one."""
    is_broken_off: bool = False

    def why_dropped(self) -> dict[str, str]:
        dropped = [version for version in self.made if version not in self.validated]
        default = "the budget was used up before it was validated" if self.is_broken_off else "gepa did not accept it"
        return dict(zip(dropped, [*self.reasons, *[default] * len(dropped)], strict=False))


class Iterations:
    """Callbacks of gepa, called in its thread.

    Whatever they raise but `SearchOver` gepa logs and forgets, so they do no more than note; what is to be done at the
    beginning and the end of an iteration is done on the loop of the run.
    """

    def __init__(self, search: GepaSearch) -> None:
        self._search, self._thread, self._family = search, search.thread, search.family
        self._parents: list[str] = []
        self._num_errors, self._has_failed = 0, False
        self.front_size = 1
        self.open: Iteration | None = None
        """The iteration that was broken off, where there is one."""

    def enter_merged(self, texts: Texts) -> str:
        """Return the version of a candidate that gepa has put together from others."""
        version = f"v{self._family.round}"
        words = f"merged from the texts of {' and '.join(self._parents)}"
        self._family.enter(version, texts, parents=self._parents, critique=words)
        return version

    def on_iteration_start(self, event: Event) -> None:
        number = self._thread.wait_for(self._search.begin)
        self._family.begin(number)
        self.open = Iteration(number, self._family.made)

    def on_evaluation_start(self, event: Event) -> None:
        if event["candidate_idx"] is None:
            self._parents = [self._family.by_number[number] for number in event["parent_ids"]]

    def on_valset_evaluated(self, event: Event) -> None:
        if self.open is None:  # the seed
            return
        version = self._family.version_of(event["candidate"])
        if version is None:
            self._thread.fail(RunError("gepa validated a candidate that was never evaluated: this is a bug"))
        self._family.by_number.append(version)
        self.open.validated.append(version)
        if event["is_best_program"]:
            self.open.leader = version

    def on_pareto_front_updated(self, event: Event) -> None:
        self.front_size = len(event["new_front"])

    def on_candidate_rejected(self, event: Event) -> None:
        reason, new, old = event["reason"], event["new_score"], event["old_score"]
        if reason.startswith("New subsample score"):
            reason = f"not better than its parent on the same training tasks (sum {new:.4g}, its parent {old:.4g})"
        self._note(reason)

    def on_merge_rejected(self, event: Event) -> None:
        self._note("worse than the better of its parents on validation tasks")

    def _note(self, reason: str) -> None:
        if self.open is not None:
            self.open.reasons.append(reason)

    def on_error(self, event: Event) -> None:
        error = event["exception"]
        log.warning("gepa failed in iteration %d: %s", event["iteration"], describe(error))
        self._num_errors, self._has_failed = self._num_errors + 1, True
        if self._num_errors >= MOST_ERRORS:
            self._thread.fail(
                RunError(f"gepa failed {MOST_ERRORS} times in a row, most recently with {describe(error)}")
            )

    def on_iteration_end(self, event: Event) -> None:
        done = self.open
        if done is None or self._thread.is_over:
            return
        self._num_errors = self._num_errors if self._has_failed else 0
        self._has_failed = False
        self._thread.wait_for(lambda: self._search.close(done))
        self.open = None


# -- reflections -------------------------------------------------------------------------------------

Job = tuple[Texts, Examples, Sequence[str]]
_FENCE = "```"
_ORDER = (
    "Before the new instruction, say in two or three sentences what went wrong and what you change. Write nothing but "
    "the new instruction itself within the ``` blocks."
)
_PART = "The instruction is the part called {name!r} of a system that has several: write this part only."


@dataclass(frozen=True, slots=True)
class Draft:
    """One answer of the model: a text for one component, and why it cannot be used."""

    component: str
    text: str
    reflection: str
    why_unfit: str | None
    cost: Cost


class Reflector:
    """New texts for the components of a candidate, by a model that reflects on rollouts.

    gepa writes the question and we add what it does not know: which places for values the text must keep. An answer
    that cannot be used is asked for once more, with the reason, before any rollout is spent on it; each is in the book.
    """

    def __init__(self, search: GepaSearch, template: str | Mapping[str, str] | None) -> None:
        self._search, self._family, self._template = search, search.family, template
        self._given = search.optimiser.given_names
        self.num_asked = self.num_unanswered = 0

    def reflect(self, candidate: Texts, examples: Examples, components: Sequence[str]) -> tuple[Any, "Reflector"]:
        return self.reflect_many([(candidate, examples, components)])[0]

    def reflect_many(self, jobs: Sequence[Job]) -> list[tuple[Any, "Reflector"]]:
        """One proposal for each job; without texts where nothing came of it."""
        return [(each, self) for each in self._search.thread.wait_for(lambda: self._propose_all(jobs))]

    async def _propose_all(self, jobs: Sequence[Job]) -> list[Any]:
        ends = [f".{number}" for number in range(1, len(jobs) + 1)] if len(jobs) > 1 else [""]
        versions = [f"v{self._family.round}{end}" for end in ends]
        written = await side_by_side(*(self._write(*each) for each in zip(versions, jobs, strict=True)))
        # In the order of the jobs, so that it does not matter which answer came first.
        return [self._propose(*each) for each in zip(versions, jobs, written, strict=True)]

    async def _write(self, version: str, job: Job) -> list[Draft]:
        texts, examples, components = job
        written = await side_by_side(*(self._write_one(version, texts, examples, each) for each in components))
        return [draft for drafts in written for draft in drafts]

    async def _write_one(self, version: str, texts: Texts, examples: Examples, component: str) -> list[Draft]:
        """All answers for one component; only the last can be one that can be used."""
        component = self._family.name(component)
        messages: Messages = [{"role": "user", "content": self._question(texts, examples, component)}]
        place, drafts = f"{version}/{component}/{_digest(texts, examples)}", list[Draft]()
        for attempt in range(ATTEMPTS):
            answer = await self._search.ask(f"{place}/{attempt}", messages)
            self.num_asked += 1
            if not answer.text:
                self.num_unanswered += 1
                self._family.spend(answer.cost)
                break
            drafts.append(self._read(component, texts[component], answer))
            reason = drafts[-1].why_unfit
            if reason is None:
                break
            order = f"This cannot be used: {reason}. Write the whole new instruction again, within ``` blocks."
            said = [{"role": "assistant", "content": answer.text}, {"role": "user", "content": order}]
            messages = [*messages, *said]
        return drafts

    def _question(self, texts: Texts, examples: Examples, component: str) -> str:
        """gepa's prompt, or the user's; what the text must keep is said at its end."""
        from gepa.strategies.instruction_proposal import InstructionProposalSignature as Signature

        own = self._template.get(str(component)) if isinstance(self._template, Mapping) else self._template
        given = {
            "current_instruction_doc": texts[component],
            "dataset_with_feedback": examples[component],
            "prompt_template": own,
        }
        orders = [
            _ORDER if own is None else "",
            _PART.format(name=str(component)) if len(texts) > 1 else "",
            what_to_keep(self._family.prompt(component, texts[component]), self._given(str(component))),
        ]
        return "\n\n".join(filter(None, [str(Signature.prompt_renderer(given)), *orders]))

    def _read(self, component: str, old: str, answer: Answer) -> Draft:
        text, reflection = split_answer(answer.text)
        parent = self._family.prompt(component, old)
        new = as_child(self._family.prompt(component, text), parent)
        cut_off = "it was cut off at the token limit of the model" if answer.is_cut_off else None
        reason = cut_off or why_unfit(new, parent, self._given(str(component)))
        return Draft(component, new.template, reflection, reason, answer.cost)

    def _propose(self, version: str, job: Job, drafts: Sequence[Draft]) -> Any:
        """Enter what the model wrote into the book; the new texts, unless there is such a candidate already."""
        from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal

        texts = job[0]
        parent = self._family.version_of(texts)
        assert parent is not None, "gepa reflected on a candidate that was never evaluated"
        self._reject(version, texts, parent, [draft for draft in drafts if draft.why_unfit is not None])
        fit = [draft for draft in drafts if draft.why_unfit is None]
        if not fit:
            return ReflectionProposal(new_texts={})
        new = {draft.component: draft.text for draft in fit}
        twin = self._family.version_of({**texts, **new})
        self._family.enter(
            version,
            {**texts, **new},
            parents=[parent],
            critique=_critique(fit),
            cost=sum((draft.cost for draft in fit), Cost()),
            why_rejected=None if twin is None else f"it is the same as {twin}",
        )
        return ReflectionProposal(new_texts=new if twin is None else {})

    def _reject(self, version: str, texts: Texts, parent: str, drafts: Sequence[Draft]) -> None:
        for number, draft in enumerate(drafts, start=1):
            name = f"{version}-unfit{number if len(drafts) > 1 else ''}"
            log.info("%s was rejected: %s", name, draft.why_unfit)
            self._family.enter(
                name,
                {**texts, draft.component: draft.text},
                parents=[parent],
                critique=draft.reflection or None,
                cost=draft.cost,
                why_rejected=draft.why_unfit or "",
            )


def what_to_keep(prompt: PromptTemplate, given: Sequence[str] = ()) -> str:
    """The order to keep the places for values; empty where there are none."""
    names = placeholders(prompt, given)
    if not names:
        return ""
    if prompt.engine != "f-string":
        return f"It is a {prompt.engine} template: the new instruction must use the values {', '.join(names)} too."
    fields = ", ".join(f"{{{name}}}" for name in names)
    return f"Values take the place of {fields}: the new instruction must hold each of them, written exactly so."


def split_answer(answer: str) -> tuple[str, str]:
    """The new text, and what was said beside it. An answer without ``` is the text itself."""
    from gepa.strategies.instruction_proposal import InstructionProposalSignature as Signature

    before, fence, rest = answer.partition(_FENCE)
    if fence and _FENCE not in rest and rest.strip():  # a block that was not closed
        return re.sub(r"^\S*\n", "", rest).strip(), before.strip()
    text = str(Signature.output_extractor(answer.strip())["new_instruction"])
    if not fence:
        return text, ""
    after = rest.rpartition(_FENCE)[2]
    return text, "\n".join(filter(None, (before.strip(), after.strip())))


def _critique(drafts: Sequence[Draft]) -> str | None:
    if len(drafts) == 1:
        return drafts[0].reflection or None
    return "\n".join(f"{draft.component}: {draft.reflection}" for draft in drafts if draft.reflection) or None


def _digest(texts: Texts, examples: Examples) -> str:
    """What was asked about: an answer is never taken for the answer to another question."""
    told = [sorted(texts.items()), [(item.split, item.index) for item in examples.about]]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]
