"""A trainer made of parts of one's own, as the documents show them."""

import asyncio
import math
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sharpen.algorithm import Algorithm, Baseline
from sharpen.errors import ComponentTypeError, ConfigError
from sharpen.execution import ExecutionStrategy, SharedMemoryExecutionStrategy, ThreadingEvent
from sharpen.runner import LitAgentRunner, Runner
from sharpen.store import InMemoryLightningStore, LightningStore
from sharpen.tracer import DummyTracer, OtelTracer
from sharpen.trainer import Trainer
from sharpen.types import LLM, Hook
from tests.errors import raises

from .scenes import double, small_trainer

# -- strategies --------------------------------------------------------------------------------------


class OneLoop(ExecutionStrategy):
    """Algorithm and runners as tasks of one event loop."""

    def __init__(self, n_runners: int = 1) -> None:
        self.n_runners = n_runners

    async def execute(self, algorithm_bundle: Any, runner_bundle: Any, store: Any) -> None:
        event = ThreadingEvent()
        runners = [asyncio.create_task(runner_bundle(store, n, event)) for n in range(self.n_runners)]
        try:
            await algorithm_bundle(store, event)
        finally:
            event.set()
            await asyncio.gather(*runners)


class InThreads(ExecutionStrategy):
    """A sync strategy."""

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        event = ThreadingEvent()
        thread = threading.Thread(target=lambda: asyncio.run(runner(store, 0, event)))
        thread.start()
        try:
            asyncio.run(algorithm(store, event))
        finally:
            event.set()
            thread.join()


class Delegating(ExecutionStrategy):
    """One runner in this process, whatever was asked for."""

    def execute(self, algorithm: Any, runner: Any, store: Any) -> Any:
        return SharedMemoryExecutionStrategy(n_runners=1).execute(algorithm, runner, store)


class NotEvenASubclass:
    """Has the methods, which is enough."""

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        InThreads().execute(algorithm, runner, store)

    def stop(self) -> None:
        return


@pytest.mark.parametrize("strategy", [OneLoop, InThreads, Delegating, NotEvenASubclass])
def test_a_strategy_of_ones_own(strategy: Any) -> None:
    assert small_trainer(strategy=strategy, dev=True).fit(double, [1, 2, 3]).metrics["reward_mean"] == 4


def test_a_strategy_of_ones_own_gets_the_number_of_runners() -> None:
    strategy = small_trainer(strategy=OneLoop, n_runners=3).strategy
    assert isinstance(strategy, OneLoop)
    assert strategy.n_runners == 3


def test_a_setting_that_a_strategy_does_not_have_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    small_trainer(strategy=InThreads, n_runners=3)
    assert "n_runners is 3, but InThreads" in caplog.text


async def test_a_strategy_that_cannot_stop_ends_with_its_algorithm() -> None:
    class Endless(Algorithm[Any]):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            await asyncio.sleep(600)

    trainer = small_trainer(strategy=OneLoop, algorithm=Endless())
    running = asyncio.create_task(trainer.fit_async(double))
    while trainer.status().state != "running":
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert trainer.result is not None
    assert trainer.result.status == "interrupted"


def test_an_error_of_a_strategy_reaches_the_caller() -> None:
    class Broken(ExecutionStrategy):
        def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
            raise ArithmeticError("no machine")

    with raises(ArithmeticError, "no machine"):
        small_trainer(strategy=Broken, dev=True).fit(double, [1])


# -- runners -----------------------------------------------------------------------------------------


class Counting(Runner[Any]):
    counts: Counter[str] = Counter()

    async def execute(self, task: Any) -> Any:
        self.counts["executed"] += 1
        return await super().execute(task)


class OnItsOwn(Runner[Any]):
    async def execute(self, rollout: Any) -> float:
        return float(rollout.input * 10)


def test_a_runner_of_ones_own_may_add_to_execute() -> None:
    Counting.counts.clear()
    assert small_trainer(runner=Counting, dev=True).fit(double, [1, 2]).metrics["reward_mean"] == 3
    assert Counting.counts["executed"] == 2


def test_a_runner_of_ones_own_may_replace_execute() -> None:
    assert small_trainer(runner=OnItsOwn, dev=True).fit(double, [1, 2]).metrics["reward_mean"] == 15


def test_workers_in_one_process_have_runners_and_tracers_of_their_own() -> None:
    seen: set[tuple[int, int]] = set()
    both_are_there = threading.Barrier(2, timeout=30)

    class Watched(Hook):
        async def on_rollout_start(self, *, runner: Any) -> None:  # type: ignore[override]
            seen.add((id(runner), id(runner.tracer)))

    def agent(task: int) -> float:
        both_are_there.wait()
        return 1.0

    small_trainer(n_runners=2, hooks=Watched(), dev=True).fit(agent, [1, 2])
    assert len({runner for runner, _ in seen}) == 2
    assert len({tracer for _, tracer in seen}) == 2


# -- tracers and stores ------------------------------------------------------------------------------


class MyTracer(OtelTracer):
    pass


@pytest.mark.parametrize("tracer", [MyTracer, MyTracer(), "dummy", DummyTracer, {"type": "OtelTracer"}])
def test_a_tracer_comes_in_every_form(tracer: Any) -> None:
    trainer = small_trainer(tracer=tracer, dev=True)
    assert trainer.fit(double, [1, 2]).metrics["reward_mean"] == 3
    assert trainer.runner.tracer is trainer.tracer


class Noting(InMemoryLightningStore):
    def __init__(self) -> None:
        super().__init__()
        self.enqueued = list[Any]()

    async def enqueue_rollout(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        self.enqueued.append(input)
        return await super().enqueue_rollout(input, *args, **kwargs)


def test_a_store_of_ones_own_comes_from_an_overridden_factory() -> None:
    class MyTrainer(Trainer):
        def _make_store(self, store: Any, strategy: ExecutionStrategy) -> Noting:
            assert store is None
            assert strategy is self.strategy
            return Noting()

    class Each(Algorithm[Any]):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            for task in train_dataset:
                await self.get_store().enqueue_rollout(task)

    trainer = MyTrainer(strategy="shm", algorithm=Each)
    trainer.fit(double, [1, 2])
    assert isinstance(trainer.store, Noting)
    assert trainer.store.enqueued == [1, 2]
    store = trainer.store
    trainer.fit(double, [3])
    assert trainer.store is store  # a store of one's own is made once


def test_every_factory_can_be_overridden() -> None:
    called: list[str] = []

    class MyTrainer(Trainer):
        def _make_algorithm(self, algorithm: Any) -> Any:
            called.append("algorithm")
            return Baseline()

        def _make_tracer(self, tracer: Any) -> Any:
            called.append("tracer")
            return DummyTracer()

        def _make_adapter(self, adapter: Any) -> Any:
            called.append("adapter")
            return super()._make_adapter(adapter)

        def _make_store(self, store: Any, strategy: Any) -> Any:
            called.append("store")
            return InMemoryLightningStore()

        def _make_runner(self, runner: Any) -> Any:
            called.append("runner")
            return LitAgentRunner(tracer=self.tracer, concurrency=4)

        def _make_strategy(self, strategy: Any) -> Any:
            called.append("strategy")
            return OneLoop()

        def _make_llm_proxy(self, llm_proxy: Any, *, store: Any) -> Any:
            called.append("llm_proxy")
            assert isinstance(store, InMemoryLightningStore)

        def _normalize_hooks(self, hooks: Any) -> list[Hook]:
            called.append("hooks")
            return super()._normalize_hooks(hooks)

    trainer = MyTrainer(llm_proxy={"port": 1})
    assert trainer.fit(double, [1, 2]).metrics["reward_mean"] == 3
    parts = ["adapter", "algorithm", "hooks", "llm_proxy", "runner", "store", "strategy", "tracer"]
    assert sorted(set(called)) == parts


def test_overrides_with_the_parameters_of_agent_lightning_work() -> None:
    class MyTrainer(Trainer):
        def _make_strategy(self, strategy: Any, *, n_runners: int, port: int | None = None) -> ExecutionStrategy:
            assert (strategy, n_runners, port) == ("shm", 1, None)
            return super()._make_strategy(strategy, n_runners=2, port=port)

        def _make_store(self, store: Any) -> Any:  # type: ignore[override]
            return InMemoryLightningStore()

    trainer = MyTrainer(strategy="shm", algorithm="Baseline")
    assert trainer.strategy.n_runners == 2  # type: ignore[attr-defined]
    assert trainer.fit(double, [1, 2]).metrics["rollouts"] == 2


def test_overrides_that_pass_only_the_spec_on_work() -> None:
    made: list[str] = []

    class MyTrainer(Trainer):
        def _make_strategy(self, strategy: Any) -> ExecutionStrategy:  # type: ignore[override]
            made.append("strategy")
            return super()._make_strategy(strategy)

        def _make_store(self, store: Any) -> Any:  # type: ignore[override]
            made.append("store")
            return super()._make_store(store)

    trainer = MyTrainer(n_runners=3, port=5005)
    assert (trainer.strategy.n_runners, trainer.strategy.server_port) == (3, 5005)  # type: ignore[attr-defined]
    assert MyTrainer(strategy="shm", algorithm="Baseline").fit(double, [1, 2]).metrics["rollouts"] == 2
    assert made == ["strategy", "strategy", "store"]


def test_an_override_may_name_the_strategy_as_it_likes() -> None:
    class MyTrainer(Trainer):
        def _make_store(self, spec: Any, chosen: Any) -> Any:  # type: ignore[override]
            assert chosen is self.strategy
            return InMemoryLightningStore()

    assert MyTrainer(strategy="shm", algorithm="Baseline").fit(double, [1, 2]).metrics["rollouts"] == 2


class Lookalike:
    """A store of the user's own that only looks like one, with the methods that stores of 0.1 have."""

    def __init__(self) -> None:
        self._store = InMemoryLightningStore()

    @property
    def capabilities(self) -> Any:
        return self._store.capabilities


def _passed_on(name: str) -> Any:
    return lambda self, *args, **kwargs: getattr(self._store, name)(*args, **kwargs)


for _name in dir(LightningStore):
    if not _name.startswith("_") and _name not in ("address", "capabilities"):
        setattr(Lookalike, _name, _passed_on(_name))


@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_a_store_that_knows_nothing_of_addresses_serves_a_run(strategy: str) -> None:
    result = Trainer(strategy=strategy, algorithm="Baseline", store=Lookalike()).fit(double, [1, 2])
    assert result.metrics["rollouts"] == 2


class PlainGateway:
    """A gateway of the user's own that takes the store of a run, and knows nothing of tokens and other machines."""

    host, port, name = "127.0.0.1", None, "mine"
    is_on = False

    async def start(self) -> None:
        self.is_on, self.port = True, 9  # type: ignore[assignment]

    async def stop(self) -> None:
        self.is_on = False

    def is_running(self) -> bool:
        return self.is_on

    def as_resource(self, **options: Any) -> LLM:
        return LLM(endpoint="http://127.0.0.1:9/v1", model="m")

    def set_store(self, store: Any) -> None:
        self.store = store

    def get_store(self) -> Any:
        return None


def test_a_gateway_that_knows_nothing_of_tokens_serves_a_run() -> None:
    gateway = PlainGateway()
    result = Trainer(strategy="shm", algorithm="Baseline", llm_proxy=gateway).fit(double, [1, 2])
    assert result.metrics["rollouts"] == 2
    assert not gateway.is_on


@pytest.mark.parametrize("value", [1, 0, "yes"])
@pytest.mark.parametrize("name", ["dev", "dashboard"])
def test_a_switch_is_true_or_false(name: str, value: Any) -> None:
    with raises(ConfigError, name, value):
        Trainer(**{name: value})


def test_a_stall_may_be_of_no_interest() -> None:
    assert small_trainer(stall_seconds=math.inf, dev=None).stall_seconds == math.inf


def test_the_port_and_the_number_of_runners_reach_an_override() -> None:
    given: list[Any] = []

    class MyTrainer(Trainer):
        def _make_strategy(self, strategy: Any, **options: Any) -> ExecutionStrategy:
            given.append(options)
            return super()._make_strategy(strategy, **options)

    MyTrainer(n_runners=3, port=5005)
    assert given == [{"n_runners": 3, "port": 5005}]


def test_a_part_that_lacks_a_method_is_named() -> None:
    class Half:
        def init(self) -> None:
            return

    with raises(ComponentTypeError, "runner=", "Half", "Runner"):
        small_trainer(runner=Half())


# -- hooks -------------------------------------------------------------------------------------------


def test_hooks_are_called_with_what_they_take_in_the_stated_order() -> None:
    order: list[str] = []

    class Full(Hook):
        async def on_rollout_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
            order.append(f"start {rollout.id}")

        async def on_trace_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
            order.append("trace start")

        async def on_trace_end(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
            order.append("trace end")

        async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Any, spans: Any) -> None:
            order.append(f"end {len(spans)}")

    class Narrow(Hook):
        async def on_rollout_start(self, rollout: Any) -> None:  # type: ignore[override]
            order.append(f"narrow {rollout.id}")

    trainer = small_trainer(hooks=[Full(), Narrow()], dev=True)
    trainer.fit(double, [1])
    (rollout,) = asyncio.run(trainer.store.query_rollouts())
    assert order == [f"start {rollout.id}", f"narrow {rollout.id}", "trace start", "trace end", "end 1"]


# -- the documents, word for word but for the name of the package ------------------------------------

PROJECT = {
    "myproject/__init__.py": "",
    "myproject/tracing.py": "from sharpen.tracer import OtelTracer\nclass MyCustomTracer(OtelTracer):\n    pass\n",
    "myproject/algos.py": """
from sharpen import Algorithm

class MyAlgo(Algorithm):
    async def run(self, train_dataset=None, val_dataset=None):
        store = self.get_store()
        rollouts = [await store.enqueue_rollout(task) for task in train_dataset]
        await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id for rollout in rollouts])
        print("MyAlgo saw", [rollout.input for rollout in rollouts])
""",
    "myproject/stores.py": """
from sharpen import InMemoryLightningStore

class RedisLightningStore(InMemoryLightningStore):
    def __init__(self, url, thread_safe):
        super().__init__(thread_safe=thread_safe)
        self.url = url
""",
}
AGENT = "\ndef agent(task):\n    return len(task) / 10\n"
RUNNER_AND_HOOKS = """
from sharpen.trainer import Trainer
from sharpen.runner import Runner
from sharpen import Tracer
from sharpen.types import LLM, Hook

class MyRunner(Runner):
    async def execute(self, task):
        # Custom execution logic
        return await super().execute(task)

class LogRolloutStart(Hook):
    async def on_rollout_start(self, rollout):
        print(f"🚀 rollout {rollout.id} started")

trainer = Trainer(
    runner=MyRunner,
    hooks=[LogRolloutStart()],
    n_runners=4,
    max_rollouts=50,
)
trainer.dev(agent, ["one", "two", "three"])
"""
SHARED_MEMORY = """
from sharpen import SharedMemoryExecutionStrategy
from sharpen.trainer import Trainer

trainer = Trainer(
    strategy=SharedMemoryExecutionStrategy,
    n_runners=2,
)
print(trainer.dev(agent, ["one", "two", "three"]).metrics["rollouts"])
"""
TRACER = """
from myproject.tracing import MyCustomTracer
from sharpen.trainer import Trainer

for tracer in (MyCustomTracer, {"type": "myproject.tracing.MyCustomTracer"}):
    trainer = Trainer(tracer=tracer)
    print(type(trainer.tracer).__name__, trainer.dev(agent, ["one", "two"]).metrics["rollouts"])
"""
STORE = """
from sharpen.trainer import Trainer
from sharpen import ExecutionStrategy

class MyTrainer(Trainer):
    def _make_store(self, store, strategy: ExecutionStrategy):
        from myproject.stores import RedisLightningStore
        return RedisLightningStore(
            url="redis://localhost:6379",
            thread_safe=False
        )

trainer = MyTrainer(algorithm="myproject.algos.MyAlgo")
trainer.fit(agent, ["one", "two"])
print(type(trainer.store).__name__, trainer.status().succeeded)
"""
DEV_MODE = """
from sharpen import Trainer, LitAgent

class MyAgent(LitAgent):
    def rollout(self, task, resources, rollout):
        result = len(task) / 10
        return result

small_dataset = ["one", "two"]
trainer = Trainer(dev=True)
trainer.dev(MyAgent(), small_dataset)
print(trainer.status().succeeded)
"""
CUSTOM_COMPONENTS = """
from sharpen import Algorithm, Trainer

class MyAlgorithm(Algorithm):
    def __init__(self, custom_param):
        self.custom_param = custom_param

    def run(self, train_dataset=None, val_dataset=None):
        print("custom_param is", self.custom_param)

trainer = Trainer(
    algorithm={
        "type": "MyAlgorithm",
        "custom_param": "value"
    },
    store={
        "type": "SQLiteStore",
        "database_url": "sqlite:///training.db"
    }
)
trainer.fit(agent)
"""
ALGO = """
from sharpen import algo
from sharpen.trainer import Trainer

@algo
async def custom_apo_algorithm(*, store, train_dataset, val_dataset):
    print("custom", len(train_dataset), len(val_dataset))

Trainer(algorithm=custom_apo_algorithm).fit(agent, ["one", "two"], ["three"])
"""
SETTINGS = """
from sharpen import Trainer

trainer = Trainer(
    algorithm="Baseline",
    n_runners=4,
    max_rollouts=1000,
    strategy="ClientServerExecutionStrategy",
    store="InMemoryLightningStore",
    tracer="OtelTracer",
    adapter="TracerTraceToTriplet",
    initial_resources=None,
    llm_proxy=None,
    port=None,
    hooks=[],
)
print(trainer.fit(agent, ["one", "two"]).metrics["rollouts"])
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (RUNNER_AND_HOOKS, ["🚀 rollout * started"] * 3),
        (SHARED_MEMORY, ["3"]),
        (TRACER, ["MyCustomTracer 2", "MyCustomTracer 2"]),
        (STORE, ["MyAlgo saw ['one', 'two']", "RedisLightningStore 2"]),
        (DEV_MODE, ["2"]),
        (CUSTOM_COMPONENTS, ["custom_param is value"]),
        (ALGO, ["custom 2 1"]),
        (SETTINGS, ["2"]),
    ],
    ids=["runner", "shared memory", "tracer", "store", "dev", "components", "algo", "settings"],
)
def test_the_documents_run_as_written(tmp_path: Path, code: str, said: list[str]) -> None:
    """Without a `__main__` guard, and with agents of the script itself."""
    for name, text in {**PROJECT, "script.py": AGENT + code}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    words = [["*" if word.startswith("ro-") else word for word in line.split(" ")] for line in done.stdout.splitlines()]
    assert [" ".join(line) for line in words] == said
