"""Functions as algorithms: parameters by name, refused early, still a function."""

import inspect
from typing import Any

import cloudpickle
import pytest

from sharpen.adapter import TracerTraceToTriplet
from sharpen.algorithm import Algorithm, FunctionalAlgorithm, algo
from sharpen.errors import ConfigError
from sharpen.store import InMemoryLightningStore
from sharpen.types import PromptTemplate
from tests.errors import raises


def equipped(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    algorithm.set_store(InMemoryLightningStore())
    algorithm.set_adapter(TracerTraceToTriplet())
    algorithm.set_initial_resources({"prompt": PromptTemplate("hi")})
    return algorithm


def test_every_part_is_given_by_name() -> None:
    seen: dict[str, Any] = {}

    @algo
    def mine(
        *, initial_resources: Any, adapter: Any, llm_proxy: Any, val_dataset: Any, train_dataset: Any, store: Any
    ) -> None:
        seen.update(locals())

    algorithm = equipped(mine)
    algorithm.run([1], [2])
    assert seen["train_dataset"] == [1]
    assert seen["val_dataset"] == [2]
    assert seen["store"] is algorithm.get_store()
    assert seen["adapter"] is algorithm.get_adapter()
    assert seen["llm_proxy"] is None
    assert seen["initial_resources"] == {"prompt": PromptTemplate("hi")}


def test_a_part_that_nobody_asks_for_need_not_be_there() -> None:
    seen = []

    @algo
    def mine(train_dataset: Any) -> None:
        seen.append(train_dataset)

    mine.run([1])
    assert seen == [[1]]


async def test_an_async_function_is_an_async_algorithm() -> None:
    @algo
    async def mine(*, store: Any) -> None:
        await store.enqueue_rollout("task")

    algorithm = equipped(mine)
    assert algorithm.is_async()
    running = algorithm.run()
    assert inspect.isawaitable(running)
    await running
    assert (await algorithm.get_store().statistics())["total_rollouts"] == 1


def test_the_decorated_thing_stays_the_function() -> None:
    @algo
    def add(train_dataset: int, val_dataset: int = 1) -> int:
        """Adds."""
        return train_dataset + val_dataset

    assert add(2) == 3
    assert add(2, val_dataset=5) == 7
    assert isinstance(add, FunctionalAlgorithm)
    assert (add.__name__, add.__doc__) == ("add", "Adds.")


def test_a_parameter_with_a_default_keeps_it() -> None:
    seen = []

    @algo
    def mine(train_dataset: Any, rounds: int = 3, *args: Any, **kwargs: Any) -> None:
        seen.append((train_dataset, rounds, args, kwargs))

    mine.run([1])
    assert seen == [([1], 3, (), {})]


def test_a_parameter_that_nobody_can_give_is_refused_at_decoration() -> None:
    with raises(ConfigError, "datasets", "train_dataset", "val_dataset"):

        @algo
        def mine(store: Any, datasets: Any) -> None:
            return


def test_a_parameter_by_position_only_is_refused_at_decoration() -> None:
    with raises(ConfigError, "store"):

        @algo
        def mine(store: Any, /) -> None:
            return


def test_what_is_no_function_is_refused() -> None:
    with raises(ConfigError, "@algo"):
        algo(3)  # type: ignore[arg-type]


def test_a_function_travels() -> None:
    @algo
    def double(train_dataset: int) -> int:
        return train_dataset * 2

    there = cloudpickle.loads(cloudpickle.dumps(equipped(double)))
    assert there(4) == 8
    with pytest.raises(ConfigError):
        there.get_store()
