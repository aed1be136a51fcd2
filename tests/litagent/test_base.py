"""The base class of agents: what to override, how it is run, what it remembers."""

import copy
import gc
import pickle
import threading

import cloudpickle
import pytest

from sharpen.errors import ConfigError
from sharpen.litagent import LitAgent
from sharpen.types import Rollout
from tests.errors import raises

from .module_agents import Summing

ROLLOUT = Rollout("ro-1", "task", 0.0)


class Holder:
    """Stands where a trainer or a runner would: anything with a tracer."""

    def __init__(self, tracer=None):
        self.tracer = tracer


class Sync(LitAgent[str]):
    def rollout(self, task, resources, rollout):
        return float(len(task))


class Async(LitAgent[str]):
    async def rollout_async(self, task, resources, rollout):
        return float(len(task))


class AsyncUnderThePlainName(LitAgent[str]):
    async def rollout(self, task, resources, rollout):
        return float(len(task))


class WithoutSuper(LitAgent[str]):
    def __init__(self, path):
        self.path = path

    def rollout(self, task, resources, rollout):
        return 1.0


# -- what to override --------------------------------------------------------------------------------


def test_a_sync_agent_uses_its_rollout_in_every_mode():
    agent = Sync()
    assert not agent.is_async()
    assert agent.training_rollout("abc", {}, ROLLOUT) == 3.0
    assert agent.validation_rollout("abcd", {}, ROLLOUT) == 4.0


@pytest.mark.parametrize("kind", [Async, AsyncUnderThePlainName])
async def test_an_async_agent_uses_its_rollout_in_every_mode(kind):
    agent = kind()
    assert agent.is_async()
    assert await agent.rollout_async("ab", {}, ROLLOUT) == 2.0
    assert await agent.training_rollout_async("abc", {}, ROLLOUT) == 3.0
    assert await agent.validation_rollout_async("abcd", {}, ROLLOUT) == 4.0


@pytest.mark.parametrize("name", ["rollout_async", "training_rollout_async", "validation_rollout_async"])
def test_overriding_any_async_method_makes_an_agent_async(name):
    async def method(self, task, resources, rollout):
        return 1.0

    assert type("Agent", (LitAgent,), {name: method})().is_async()


def test_training_and_validation_can_differ():
    class Agent(Sync):
        def training_rollout(self, task, resources, rollout):
            return -1.0

        def validation_rollout(self, task, resources, rollout):
            return -2.0

    assert Agent().training_rollout("abc", {}, ROLLOUT) == -1.0
    assert Agent().validation_rollout("abc", {}, ROLLOUT) == -2.0


async def test_an_async_training_and_a_sync_rollout_work_side_by_side():
    class Agent(Sync):
        thread = None

        async def training_rollout_async(self, task, resources, rollout):
            return -1.0

        def rollout(self, task, resources, rollout):
            self.thread = threading.current_thread()
            return super().rollout(task, resources, rollout)

    agent = Agent()
    assert agent.is_async()
    assert await agent.training_rollout_async("abc", {}, ROLLOUT) == -1.0
    assert await agent.validation_rollout_async("abc", {}, ROLLOUT) == 3.0
    assert agent.thread is not threading.current_thread()  # the event loop was not blocked


async def test_a_method_for_one_mode_wins_over_the_general_one():
    class Agent(Async):
        def validation_rollout(self, task, resources, rollout):
            return -2.0

    assert await Agent().validation_rollout_async("abc", {}, ROLLOUT) == -2.0
    assert await Agent().training_rollout_async("abc", {}, ROLLOUT) == 3.0


async def test_an_agent_without_any_method_says_what_to_override():
    class Empty(LitAgent[str]):
        pass

    method = "rollout(self, task, resources, rollout)"
    with raises(NotImplementedError, "Empty", method):
        Empty().training_rollout("t", {}, ROLLOUT)
    with raises(NotImplementedError, "Empty", method):
        await Empty().validation_rollout_async("t", {}, ROLLOUT)


def test_calling_an_async_agent_as_a_sync_one_is_a_clear_error():
    with raises(NotImplementedError, "Async", "rollout_async"):
        Async().training_rollout("t", {}, ROLLOUT)


def test_trained_agents_is_kept_and_may_be_left_out():
    assert Sync(trained_agents="writer|critic").trained_agents == "writer|critic"
    assert Sync().trained_agents is None


def test_an_agent_that_does_not_call_super_works():
    agent = WithoutSuper("x")
    assert agent.trained_agents is None
    assert agent.rollout("t", {}, ROLLOUT) == 1.0
    with pytest.raises(ConfigError):
        _ = agent.trainer


# -- trainer, runner, tracer -------------------------------------------------------------------------


def test_trainer_and_runner_are_found_both_ways():
    agent, trainer, runner = Sync(), Holder(), Holder()
    agent.set_trainer(trainer)
    agent.set_runner(runner)
    assert agent.trainer is agent.get_trainer() is trainer
    assert agent.runner is agent.get_runner() is runner


@pytest.mark.parametrize("what", ["trainer", "runner", "tracer"])
def test_what_is_not_set_is_a_clear_error(what):
    with raises(ConfigError, what):
        getattr(Sync(), what)


def test_an_agent_keeps_no_trainer_alive():
    agent, trainer = Sync(), Holder()
    agent.set_trainer(trainer)
    del trainer
    gc.collect()
    with pytest.raises(ConfigError):
        agent.get_trainer()


def test_the_tracer_is_the_runners_or_else_the_trainers():
    agent, trainer, runner = Sync(), Holder("trainer's"), Holder("runner's")
    agent.set_trainer(trainer)
    assert agent.tracer == "trainer's"
    agent.set_runner(runner)
    assert agent.get_tracer() == "runner's"
    runner.tracer = None
    assert agent.tracer == "trainer's"


# -- travelling --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_an_agent_travels_without_its_trainer_and_runner(dumps):
    agent, holder = Summing(trained_agents="solver"), Holder(threading.Lock())
    agent.set_trainer(holder)
    agent.set_runner(holder)
    back = pickle.loads(dumps(agent))
    assert back.trained_agents == "solver"
    assert back.rollout([1, 2], {}, ROLLOUT) == 3.0
    with pytest.raises(ConfigError):
        back.get_trainer()
    assert agent.trainer is holder  # the original keeps its own


def test_an_agent_defined_in_a_function_travels():
    class Local(LitAgent[int]):
        __slots__ = ("_factor",)

        def __init__(self, factor):
            super().__init__()
            self._factor = factor
            self.seen = []

        def rollout(self, task, resources, rollout):
            return task * self._factor

    agent, holder = Local(3.0), Holder()
    agent.set_runner(holder)
    back = pickle.loads(cloudpickle.dumps(agent))
    assert back.rollout(2, {}, ROLLOUT) == 6.0
    assert back.seen == []
    with pytest.raises(ConfigError):
        back.get_runner()


def test_an_agent_without_state_travels():
    assert pickle.loads(cloudpickle.dumps(WithoutSuper.__new__(WithoutSuper))).rollout("t", {}, ROLLOUT) == 1.0


def test_a_copy_is_tied_to_no_run():
    agent, holder = Sync(trained_agents="a"), Holder()
    agent.set_trainer(holder)
    for copied in (copy.copy(agent), copy.deepcopy(agent)):
        assert copied.trained_agents == "a"
        with pytest.raises(ConfigError):
            copied.get_trainer()
