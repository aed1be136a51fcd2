"""Algorithms one after another: what each is given, what a checkpoint keeps, and what is refused."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from sharpen import LLM, AlgorithmSequence, InMemoryLightningStore, NamedResources, PromptTemplate, ProxyLLM
from sharpen.adapter import TraceToMessages
from sharpen.algorithm import Algorithm, Baseline, FastAlgorithm, FunctionalAlgorithm, algo
from sharpen.components import build_component
from sharpen.errors import ComponentError, ConfigError, RunError
from tests.algorithm.internals import file_name, stages_of, title_of
from tests.errors import raises


class Adding(Algorithm[Any]):
    """Adds a letter to the prompt, once for each step, and keeps how far it is."""

    default_loggers = ("csv", "jsonl")

    def __init__(self, letter: str = "a", steps: int = 1, *, fails_at: int | None = None) -> None:
        self.letter, self.steps, self.fails_at, self.done = letter, steps, fails_at, 0
        self.begun_with: list[str | None] = []
        self.threads: list[threading.Thread] = []

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        text = prompt_in(self.get_initial_resources()) or ""
        self.begun_with.append(text)
        while self.done < self.steps:
            if self.done == self.fails_at:
                self.fails_at = None
                raise RuntimeError("lost")
            self.done += 1
            await self.get_store().add_resources(prompt(text + self.letter * self.done))
            self.checkpoint()

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state.get("done", 0)


class AddingInThread(Adding):
    """The same for people who write no async code."""

    default_loggers = ("jsonl", "console")

    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:  # type: ignore[override]
        self.threads.append(threading.current_thread())
        asyncio.run(super().run(train_dataset, val_dataset))


def prompt(text: str) -> NamedResources:
    return {"prompt": PromptTemplate(text)}


def prompt_in(resources: NamedResources | None) -> str | None:
    found = (resources or {}).get("prompt")
    return found.template if isinstance(found, PromptTemplate) else None


def equipped(stages: Sequence[Any], store: InMemoryLightningStore, **attributes: Any) -> AlgorithmSequence:
    sequence = AlgorithmSequence(stages)
    sequence.set_store(store)
    sequence.set_initial_resources(prompt(">"))
    for name, value in attributes.items():
        setattr(sequence, name, value)
    return sequence


async def latest(store: InMemoryLightningStore) -> str | None:
    found = await store.get_latest_resources()
    return None if found is None else prompt_in(found.resources)


# -- the run -----------------------------------------------------------------------------------------


async def test_each_stage_begins_with_what_the_last_one_published() -> None:
    store = InMemoryLightningStore()
    stages = [Adding("a", 2), AddingInThread("b"), Adding("c")]
    await equipped(stages, store).run()
    assert [stage.begun_with for stage in stages] == [[">"], [">aa"], [">aab"]]
    assert await latest(store) == ">aabc"


async def test_a_sync_stage_has_a_thread_of_its_own() -> None:
    stage = AddingInThread()
    await equipped([Adding(), stage], InMemoryLightningStore()).run()
    (thread,) = stage.threads
    assert thread is not threading.current_thread()


async def test_a_stage_after_one_that_published_nothing_begins_with_the_same() -> None:
    store, second = InMemoryLightningStore(), Adding()
    await store.add_resources(prompt(">"))
    await equipped([algo(lambda: None), second], store).run()
    assert second.begun_with == [">"]


async def test_every_stage_is_given_what_the_sequence_was_given(tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []

    class Looking(Algorithm[Any]):
        def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            found = (self.get_trainer(), self.get_store(), self.get_adapter(), self.get_llm_proxy(), self._loop)
            more = (self.run_dir, self.records_dir, self.agent_prompt, self.own_gateway_address)
            seen.append((*found, *more, train_dataset, val_dataset))

    class Trainer:
        pass

    store, trainer, adapter, loop = InMemoryLightningStore(), Trainer(), TraceToMessages(), FakeLoop()
    gateway = SomeGateway()
    sequence = equipped([Looking(), Looking()], store, run_dir=tmp_path, records_dir=tmp_path)
    sequence.set_trainer(trainer)
    sequence.set_adapter(adapter)
    sequence.set_llm_proxy(gateway)  # type: ignore[arg-type]
    sequence.set_loop(loop)
    sequence.agent_prompt, sequence.own_gateway_address = PromptTemplate("own"), "http://here"
    await sequence.run([1], [2])
    common = (trainer, store, adapter, gateway, loop)
    rest = (tmp_path, PromptTemplate("own"), "http://here", [1], [2])
    assert seen == [(*common, tmp_path / f"{number}-looking", *rest) for number in (1, 2)]
    assert (tmp_path / "1-looking").is_dir()


class FakeLoop:
    should_stop = False
    current_iter = 0

    def begin_iteration(self) -> None:
        """Nobody listens."""

    def report_validation(self, metrics: Any, /) -> None:
        """Nobody listens."""

    def report_iteration(self, metrics: Any, val_metrics: Any, /) -> bool:
        return self.should_stop


async def test_no_stage_begins_after_a_callback_has_asked_for_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sharpen")
    loop, second = FakeLoop(), Adding()

    @algo
    def first() -> None:
        loop.should_stop = True

    sequence = equipped([first, second], InMemoryLightningStore())
    sequence.set_loop(loop)
    await sequence.run()
    assert second.begun_with == []
    assert any(message.startswith("stage 1 of 2 (first) ") for message in caplog.messages)
    assert any("callback" in message and "stage 2 of 2 (Adding)" in message for message in caplog.messages)
    assert sequence.state_dict()["stage"] == 1


async def test_a_data_set_that_can_be_read_once_is_refused_before_anything_runs() -> None:
    first = Adding()
    with raises(ConfigError, "val_dataset", "list_iterator", 2):
        await equipped([first, Adding()], InMemoryLightningStore()).run([1], iter([2]))
    assert first.begun_with == []
    await equipped([first], InMemoryLightningStore()).run([1], iter([2]))
    assert first.begun_with == [">"]


# -- checkpoints -------------------------------------------------------------------------------------


async def test_a_sequence_goes_on_in_its_stage_with_what_that_began_with() -> None:
    store, saved = InMemoryLightningStore(), list[dict[str, Any]]()
    failing = equipped([Adding("a"), Adding("b", 3, fails_at=2)], store)
    failing.set_checkpointer(saved.append)
    with raises(RuntimeError, "lost"):
        await failing.run()
    assert [(each["stage"], each["state"]) for each in saved] == [
        (0, {"done": 1}),
        (1, None),
        (1, {"done": 1}),
        (1, {"done": 2}),
    ]
    stages = [Adding("a"), Adding("b", 3)]
    sequence = equipped(stages, store)
    sequence.load_state_dict(saved[-1])
    assert sequence.state_dict() == saved[-1]
    await sequence.run()
    assert [stage.begun_with for stage in stages] == [[], [">a"]]
    assert await latest(store) == ">abbb"


async def test_a_stage_that_kept_nothing_begins_anew_from_what_it_began_with() -> None:
    store, texts = InMemoryLightningStore(), list[str | None]()

    class Forgetful(Algorithm[Any]):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            texts.append(await latest(store))
            await store.add_resources(prompt("half done"))
            if len(texts) == 1:
                raise RuntimeError("lost")

    sequence = equipped([Adding("a"), Forgetful()], store)
    with pytest.raises(RuntimeError):
        await sequence.run()
    sequence.load_state_dict(sequence.state_dict())
    await sequence.run()
    assert texts == [">a", ">a"]


async def test_a_sequence_that_has_ended_runs_nothing_when_it_is_resumed() -> None:
    store, stage = InMemoryLightningStore(), Adding()
    sequence = equipped([stage], store)
    await sequence.run()
    state = sequence.state_dict()
    assert state["stage"] == 1
    sequence.load_state_dict(state)
    await sequence.run()
    assert stage.begun_with == [">"]


async def test_a_second_run_is_a_new_one() -> None:
    stage = Adding()
    sequence = equipped([stage], InMemoryLightningStore())
    await sequence.run()
    await sequence.run()
    assert stage.begun_with == [">", ">"]


async def test_a_stage_that_has_ended_keeps_nothing_any_more() -> None:
    saved = list[dict[str, Any]]()
    first = Adding()
    sequence = equipped([first, Adding()], InMemoryLightningStore())
    sequence.set_checkpointer(saved.append)
    await sequence.run()
    first.checkpoint()
    assert [each["stage"] for each in saved] == [0, 1, 1, 2]


async def test_within_a_run_only_the_stage_under_way_goes_back(caplog: pytest.LogCaptureFixture) -> None:
    before: list[dict[str, Any]] = []

    class GoingBack(Adding):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            before.append(sequence.state_dict())
            self.done = 5
            sequence.load_state_dict(before[-1])
            assert self.done == 0
            if len(before) == 2:
                self.done = 7
                sequence.load_state_dict(before[0])
                assert self.done == 7

    sequence = equipped([GoingBack(), GoingBack()], InMemoryLightningStore())
    await sequence.run()
    assert [each["stage"] for each in before] == [0, 1]
    assert any("stage 2 of 2 (GoingBack) keeps its state" in message for message in caplog.messages)


@pytest.mark.parametrize("others", [[Adding()], [Adding(), Baseline()], [algo(lambda: None), Adding()]])
def test_the_state_of_other_stages_is_refused(others: list[Any]) -> None:
    with raises(ConfigError, "Adding", "AddingInThread"):
        AlgorithmSequence([Adding(), AddingInThread()]).load_state_dict(AlgorithmSequence(others).state_dict())


def test_the_state_of_a_single_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError):
        AlgorithmSequence([Adding()]).load_state_dict({"done": 1})


async def test_resources_that_the_store_has_lost_are_a_clear_error() -> None:
    sequence = equipped([Adding(), Adding()], InMemoryLightningStore())
    await sequence.run()
    state = {**sequence.state_dict(), "stage": 1}
    other = equipped([Adding(), Adding()], InMemoryLightningStore())
    other.load_state_dict(state)
    with pytest.raises(RunError):
        await other.run()


# -- behind a gateway --------------------------------------------------------------------------------


class SomeGateway:
    """As much of a gateway as a sequence looks at."""

    def __init__(self, *names: str) -> None:
        self.model_names = list(names)


def llm(address: str, model: str = "m") -> NamedResources:
    return {"main_llm": ProxyLLM(f"{address}/v1", model), "other": LLM("http://elsewhere/v1", "m")}


async def test_a_stage_that_goes_on_finds_the_gateway_where_it_is_now() -> None:
    store, found = InMemoryLightningStore(), list[NamedResources | None]()

    @algo
    async def publish() -> None:
        await store.add_resources(llm("http://old:1"))

    @algo
    def look(initial_resources: NamedResources) -> None:
        found.append(initial_resources)

    sequence = equipped([publish, look], store, own_gateway_address="http://old:1")
    await sequence.run()
    state = {**sequence.state_dict(), "stage": 1}
    for address in ("http://new:2", "http://newer:3"):
        sequence.own_gateway_address = address
        sequence.load_state_dict(state)
        await sequence.run()
    assert found == [llm("http://old:1"), llm("http://new:2"), llm("http://newer:3")]


@pytest.mark.parametrize(("models", "is_served"), [(["m"], True), (["*"], True), (["n"], False)])
async def test_a_stage_whose_model_has_ended_with_an_earlier_one_does_not_begin(
    models: list[str], is_served: bool
) -> None:
    store, second = InMemoryLightningStore(), Adding()

    @algo
    async def serve() -> None:
        await store.add_resources(llm("http://here:1"))

    sequence = equipped([serve, second], store, own_gateway_address="http://here:1")
    sequence.set_llm_proxy(SomeGateway(*models))  # type: ignore[arg-type]
    if is_served:
        await sequence.run()
        return
    with raises(RunError, 2, "Adding", "main_llm", "m"):
        await sequence.run()
    second.needs_gateway = True
    await sequence.run()
    assert second.begun_with == [""]


async def test_a_model_that_will_end_before_its_time_is_pointed_out_at_once(caplog: pytest.LogCaptureFixture) -> None:
    first = Adding(fails_at=0)
    first.needs_gateway = True
    with raises(RuntimeError, "lost"):
        await equipped([first, AddingInThread()], InMemoryLightningStore()).run()
    assert any("Adding " in message and "AddingInThread " in message for message in caplog.messages)


# -- making one --------------------------------------------------------------------------------------


def test_stages_are_specs_of_any_form() -> None:
    made = AlgorithmSequence([Adding("x"), Adding, "Baseline", {"type": "Baseline", "n_epochs": 3}, algo(lambda: None)])
    assert [type(stage) for stage in made.stages] == [Adding, Adding, Baseline, Baseline, FunctionalAlgorithm]
    by_name = build_component(
        {"type": "AlgorithmSequence", "stages": ["Baseline"]}, expected_type=Algorithm, spec_name="algorithm"
    )
    assert isinstance(by_name, AlgorithmSequence)


@pytest.mark.parametrize(
    ("stages", "error", "named"),
    [
        ([], ConfigError, ()),
        ([[Baseline()]], ConfigError, ("algorithm[0]",)),
        ([Baseline(), AlgorithmSequence([Baseline()])], ConfigError, ("algorithm[1]",)),
        ([Baseline(), None], ComponentError, ("algorithm[1]", None)),
        (["Basline"], ComponentError, ("algorithm[0]='Basline'", "baseline")),
        ([3], ComponentError, ("algorithm[0]=3", "Algorithm")),
        ("Baseline", ComponentError, ()),
        (Baseline(), ComponentError, ("Baseline",)),
    ],
)
def test_what_is_no_list_of_algorithms_is_refused(
    stages: Any, error: type[Exception], named: tuple[object, ...]
) -> None:
    with raises(error, *named):
        AlgorithmSequence(stages)


def test_one_object_cannot_be_two_stages() -> None:
    stage = Adding()
    with raises(ConfigError, "algorithm[1]", "Adding"):
        AlgorithmSequence([stage, stage])


class Serving(Algorithm[Any]):
    needs_gateway = True
    runs_side_by_side = True


def test_a_sequence_needs_what_any_stage_needs_and_the_first_says_who_gives_a_model() -> None:
    for stages, needs, publishes in (
        ([Adding(), Adding()], False, False),
        ([Adding(), Serving()], True, False),
        ([Serving(), Adding()], True, True),
    ):
        sequence = AlgorithmSequence(stages)  # type: ignore[arg-type]
        assert (sequence.needs_gateway, sequence.runs_side_by_side) == (needs, needs)
        assert sequence.publishes_model is publishes


def test_the_loggers_of_all_stages_are_joined() -> None:
    assert AlgorithmSequence([Adding(), AddingInThread(), Baseline()]).default_loggers == ["csv", "jsonl", "console"]


def test_names_for_people_and_for_folders() -> None:
    class _Mine(FastAlgorithm):
        pass

    @algo
    def Tune() -> None:
        """Some function."""

    sequence = AlgorithmSequence([Adding(), Tune, _Mine()])
    assert title_of(sequence) == "Adding, then Tune, then _Mine"
    assert file_name(sequence) == "adding-Tune-mine"
    assert file_name(algo(lambda: None)) == "lambda"
    assert len(file_name(AlgorithmSequence([Adding() for _ in range(40)]))) == 100
    assert stages_of(sequence) == sequence.stages
    assert stages_of(sequence.stages[0]) == (sequence.stages[0],)
    assert stages_of(None) == ()


async def test_a_sequence_travels_with_its_stages_and_its_place() -> None:
    sequence = equipped([Adding("a"), Adding("b")], InMemoryLightningStore())
    sequence.agent_prompt = PromptTemplate("own")
    sequence.load_state_dict(sequence.state_dict())
    found = cloudpickle.loads(cloudpickle.dumps(sequence))
    assert [stage.letter for stage in found.stages] == ["a", "b"]
    assert (found.agent_prompt, found.state_dict()) == (PromptTemplate("own"), sequence.state_dict())
