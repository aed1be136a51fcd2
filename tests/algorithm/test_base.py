"""What an algorithm is given, and what it leaves behind when it travels."""

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypedDict

import pytest

from sharpen.adapter import TraceAdapter, TracerTraceToTriplet
from sharpen.algorithm import (
    APO,
    GEPA,
    GRPO,
    VERL,
    Algorithm,
    Baseline,
    FastAlgorithm,
    FewShot,
    with_llm_proxy,
    with_store,
)
from sharpen.errors import ConfigError
from sharpen.store import InMemoryLightningStore, LightningStore
from sharpen.types import LLM, PromptTemplate, ProxyLLM
from tests.algorithm.internals import Gateway
from tests.errors import raises

ROOT = Path(__file__).parents[2]


class Sync(Algorithm[Any]):
    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        self.ran_on = (train_dataset, val_dataset)


class Async(Algorithm[Any]):
    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        self.ran_on = (train_dataset, val_dataset)


class FakeGateway:
    """A gateway that counts its starts and stops."""

    def __init__(self) -> None:
        self.starts = self.stops = 0

    async def start(self) -> None:
        self.starts += 1

    async def stop(self) -> None:
        self.stops += 1

    def is_running(self) -> bool:
        return self.starts > self.stops

    def as_resource(self) -> LLM:
        return ProxyLLM("http://127.0.0.1:9/v1", "small")


class SomeTrainer:
    pass


def test_an_algorithm_knows_whether_it_is_async() -> None:
    assert Async().is_async()
    assert not Sync().is_async()


def test_a_class_without_run_says_what_to_do() -> None:
    with raises(NotImplementedError, "Algorithm"):
        Algorithm().run()


def test_calling_an_algorithm_runs_it() -> None:
    algorithm = Sync()
    algorithm([1], val_dataset=[2])
    assert algorithm.ran_on == ([1], [2])


@pytest.mark.parametrize("part", ["trainer", "store", "adapter"])
def test_what_was_not_given_is_a_clear_error(part: str) -> None:
    with raises(ConfigError, "Sync", part):
        getattr(Sync(), f"get_{part}")()


@pytest.mark.parametrize("part", ["llm_proxy", "initial_resources"])
def test_what_may_be_missing_is_none(part: str) -> None:
    assert getattr(Sync(), f"get_{part}")() is None


def test_what_was_given_comes_back() -> None:
    algorithm, trainer, store = Sync(), SomeTrainer(), InMemoryLightningStore()
    adapter, proxy, resources = TracerTraceToTriplet(), FakeGateway(), {"prompt": PromptTemplate("hi")}
    algorithm.set_trainer(trainer)
    algorithm.set_store(store)
    algorithm.set_adapter(adapter)
    algorithm.set_llm_proxy(proxy)
    algorithm.set_initial_resources(resources)
    got = [algorithm.get_trainer(), algorithm.get_store(), algorithm.get_adapter(), algorithm.get_llm_proxy()]
    assert got == [trainer, store, adapter, proxy]
    assert algorithm.get_initial_resources() == resources


def test_an_algorithm_does_not_keep_its_trainer_alive() -> None:
    algorithm = Sync()
    algorithm.set_trainer(SomeTrainer())
    with raises(ConfigError, "Sync"):
        algorithm.get_trainer()


def test_an_algorithm_travels_without_trainer_and_store() -> None:
    algorithm, trainer = Sync(), SomeTrainer()
    algorithm.set_trainer(trainer)
    algorithm.set_store(InMemoryLightningStore())
    algorithm.set_checkpointer(lambda state: None)
    algorithm.ran_on = (1, 2)
    there = pickle.loads(pickle.dumps(algorithm))
    assert there.ran_on == (1, 2)
    with pytest.raises(ConfigError):
        there.get_store()
    with pytest.raises(ConfigError):
        there.get_trainer()
    there.checkpoint()  # nobody to give it to


def test_a_checkpoint_is_the_state_of_the_moment() -> None:
    class Counting(Sync):
        step = 0

        def state_dict(self) -> dict[str, Any]:
            return {"step": self.step}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.step = state["step"]

    saved: list[dict[str, Any]] = []
    algorithm = Counting()
    algorithm.set_checkpointer(saved.append)
    algorithm.checkpoint()
    algorithm.step = 5
    algorithm.checkpoint()
    assert saved == [{"step": 0}, {"step": 5}]
    again = Counting()
    again.load_state_dict(saved[-1])
    assert again.step == 5


async def test_the_client_talks_to_the_gateway() -> None:
    pytest.importorskip("openai")
    algorithm = Sync()
    algorithm.set_llm_proxy(FakeGateway())
    client = algorithm.get_client()
    assert str(client.base_url) == "http://127.0.0.1:9/v1/"
    await client.close()


def test_a_client_without_a_gateway_is_a_clear_error() -> None:
    with raises(ConfigError, "Sync.get_client()", "llm_proxy"):
        Sync().get_client()


class Methods(Sync):
    @with_store
    async def count(self, store: LightningStore, more: int = 0) -> int:
        return (await store.statistics())["total_rollouts"] + more

    @with_llm_proxy()
    async def is_up(self, proxy: Gateway | None) -> bool | None:
        return None if proxy is None else proxy.is_running()

    @with_llm_proxy(required=True)
    async def needs(self, proxy: Gateway | None) -> bool:
        return True

    @with_llm_proxy(auto_start=False)
    async def is_up_by_itself(self, proxy: Gateway | None) -> bool | None:
        return None if proxy is None else proxy.is_running()

    @with_llm_proxy()
    async def fails(self, proxy: Gateway | None) -> None:
        raise ArithmeticError


async def test_a_method_is_handed_the_store() -> None:
    algorithm = Methods()
    algorithm.set_store(InMemoryLightningStore())
    await algorithm.get_store().enqueue_rollout(1)
    assert await algorithm.count() == 1
    assert await algorithm.count(more=2) == 3


async def test_a_method_is_handed_a_gateway_that_runs_for_the_time_of_the_call() -> None:
    algorithm, proxy = Methods(), FakeGateway()
    algorithm.set_llm_proxy(proxy)
    assert await algorithm.is_up() is True
    assert (proxy.starts, proxy.stops) == (1, 1)
    with pytest.raises(ArithmeticError):
        await algorithm.fails()
    assert (proxy.starts, proxy.stops) == (2, 2)


async def test_a_gateway_that_runs_already_is_left_running() -> None:
    algorithm, proxy = Methods(), FakeGateway()
    algorithm.set_llm_proxy(proxy)
    await proxy.start()
    assert await algorithm.is_up() is True
    assert (proxy.starts, proxy.stops) == (1, 0)


async def test_a_gateway_is_started_only_where_that_is_wanted() -> None:
    algorithm = Methods()
    assert await algorithm.is_up() is None
    algorithm.set_llm_proxy(FakeGateway())
    assert await algorithm.is_up_by_itself() is False


async def test_a_method_that_needs_a_gateway_says_so() -> None:
    with raises(ConfigError, "Methods.needs()"):
        await Methods().needs()


def test_an_adapter_of_the_right_kind_is_what_algorithms_get() -> None:
    assert isinstance(TracerTraceToTriplet(), TraceAdapter)


def test_run_may_return_something_to_wait_for() -> None:
    class Lazy(Algorithm[Any]):
        def run(self, train_dataset: Any = None, val_dataset: Any = None) -> Awaitable[None]:
            return asyncio.sleep(0)

    assert not Lazy().is_async()


class Question(TypedDict):
    text: str


def test_algorithms_name_the_kind_of_their_tasks_or_leave_it_out() -> None:
    bare: list[APO | FewShot | GEPA | Baseline | VERL | GRPO | FastAlgorithm | Algorithm] = [
        APO[Question](beam_rounds=2),
        FewShot[Question](),
        GEPA[Question](),
        Baseline[Question](n_epochs=2),
        VERL[Question]({"actor_rollout_ref.model.path": "some/model"}),
        GRPO[Question]("some/model"),
    ]
    assert [type(each) for each in bare] == [APO, FewShot, GEPA, Baseline, VERL, GRPO]
    assert isinstance(bare[0], APO)
    assert bare[0].beam_rounds == 2


@pytest.mark.slow
def test_type_checkers_take_algorithms_and_runners_with_and_without_a_kind_of_task(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(
        "from sharpen import APO, GRPO, VERL, Algorithm, Baseline, FewShot, GEPA, LitAgentRunner, Runner\n"
        "def use(first: APO, second: VERL | GRPO | Baseline | FewShot | GEPA | Algorithm) -> APO[dict[str, str]]:\n"
        "    return APO[dict[str, str]](beam_rounds=2)\n"
        "def run(first: LitAgentRunner, second: Runner) -> LitAgentRunner[dict[str, str]]:\n"
        "    return LitAgentRunner[dict[str, str]](max_rollouts=2)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache")]
    command.append(str(tmp_path / "snippet.py"))
    checked = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
