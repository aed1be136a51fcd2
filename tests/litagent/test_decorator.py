"""Functions as agents: parameters filled by name, the plain function kept, travelling to other processes."""

import copy
import inspect
import pickle
import subprocess
import sys
import textwrap
import threading

import cloudpickle
import pytest

from sharpen.errors import ComponentTypeError, ConfigError, InvalidInputError, MissingResourceError
from sharpen.litagent import FunctionalLitAgent, LitAgent, as_agent, llm_rollout, prompt_rollout, rollout
from sharpen.types import LLM, Attempt, AttemptedRollout, PromptTemplate, ProxyLLM, Rollout
from tests.errors import raises

from . import module_agents

CLAIMED = AttemptedRollout("ro-1", "task", 0.0, attempt=Attempt("ro-1", "at-1", 1, 0.0))
FIRST, SECOND = LLM("http://first/v1", "small"), LLM("http://second/v1", "large")
PROXY = ProxyLLM("http://gateway/v1", "small")
PROMPT = PromptTemplate("Hello {name}")


# -- filling parameters by name ----------------------------------------------------------------------


def test_every_known_parameter_is_filled_by_its_name_in_any_order():
    @rollout
    def agent(rollout, resources, prompt_template, llm, task):
        return [task, llm, prompt_template, resources, rollout]

    resources = {"prompt": PROMPT, "first": FIRST, "second": SECOND}
    assert agent.rollout("t", resources, CLAIMED) == ["t", FIRST, PROMPT, resources, CLAIMED]


async def test_an_async_function_is_an_async_agent():
    @rollout
    async def agent(task, llm):
        return [task, llm]

    assert agent.is_async()
    assert await agent.rollout_async("t", {"llm": FIRST}, CLAIMED) == ["t", FIRST]
    assert await agent.training_rollout_async("t", {"llm": FIRST}, CLAIMED) == ["t", FIRST]
    with raises(NotImplementedError, "rollout_async"):
        agent.rollout("t", {"llm": FIRST}, CLAIMED)


async def test_a_sync_function_is_a_sync_agent_that_can_be_awaited():
    threads = []

    @rollout
    def agent(task):
        threads.append(threading.current_thread())
        return 1.0

    assert not agent.is_async()
    assert agent.validation_rollout("t", {}, CLAIMED) == 1.0
    assert await agent.rollout_async("t", {}, CLAIMED) == 1.0
    assert threads[0] is threading.current_thread()
    assert threads[1] is not threading.current_thread()


def test_unknown_parameters_with_defaults_are_left_alone():
    @rollout
    def agent(task, retries=3, *rest, verbose=False, **more):
        return [task, retries, rest, verbose, more]

    assert agent.rollout("t", {}, CLAIMED) == ["t", 3, (), False, {}]


def test_positional_only_parameters_are_filled_in_their_places():
    @rollout
    def agent(retries=3, task=None, /, *, llm):
        return [retries, task, llm]

    assert agent.rollout("t", {"llm": FIRST}, CLAIMED) == [3, "t", FIRST]


def test_an_unknown_parameter_is_rejected_at_decoration_by_name():
    with raises(ConfigError, "sample", "prompt_template"):

        @rollout
        def agent(sample, llm):
            return 1.0


def test_a_method_is_rejected_with_the_way_out():
    with raises(ConfigError, "self", "LitAgent"):

        class Agents:
            @rollout
            def agent(self, task):
                return 1.0


@pytest.mark.parametrize("function", [lambda: 1.0, lambda *task: 1.0, lambda **llm: 1.0, lambda verbose=False: 1.0])
def test_a_function_without_a_known_parameter_is_rejected(function):
    with pytest.raises(ConfigError):
        rollout(function)


@pytest.mark.parametrize("thing", [3, "agent", print, LitAgent, lambda task: (yield 1.0)])
def test_what_is_no_function_that_returns_is_rejected(thing):
    with pytest.raises(TypeError):
        rollout(thing)


def test_decorators_work_with_and_without_parentheses():
    def agent(task, llm, prompt_template):
        return [task, llm, prompt_template]

    resources = {"llm": FIRST, "prompt": PROMPT}
    ways = [rollout, rollout(), llm_rollout, llm_rollout(), llm_rollout(strip_proxy=True), prompt_rollout]
    for decorate in [*ways, prompt_rollout()]:
        assert decorate(agent).rollout("t", resources, CLAIMED) == ["t", FIRST, PROMPT]


@pytest.mark.parametrize(("decorate", "needed"), [(llm_rollout, "llm"), (prompt_rollout, "prompt_template")])
def test_a_decorator_needs_the_parameter_that_it_is_for(decorate, needed):
    with raises(ConfigError, needed):
        decorate(lambda task: 1.0)


# -- resources ---------------------------------------------------------------------------------------


def test_a_missing_resource_says_what_is_asked_for_and_what_is_there():
    agent = llm_rollout(lambda task, llm: 1.0)
    with raises(MissingResourceError, "prompt", "PromptTemplate"):
        agent.rollout("t", {"prompt": PROMPT}, CLAIMED)
    with raises(LookupError, "PromptTemplate"):
        prompt_rollout(lambda task, prompt_template: 1.0).rollout("t", {}, CLAIMED)


def test_a_parameter_with_a_default_keeps_it_where_the_resource_is_missing():
    agent = rollout(lambda task, llm=None, prompt_template="none": [llm, prompt_template])
    assert agent.rollout("t", {}, CLAIMED) == [None, "none"]
    assert agent.rollout("t", {"a": FIRST, "b": PROMPT}, CLAIMED) == [FIRST, PROMPT]


def test_a_proxy_llm_is_bound_to_the_attempt():
    bound = llm_rollout(lambda task, llm: llm).rollout("t", {"proxy": PROXY, "llm": FIRST}, CLAIMED)
    assert type(bound) is LLM
    assert bound.endpoint == "http://gateway/rollout/ro-1/attempt/at-1/v1"


def test_a_proxy_llm_stays_one_when_it_is_not_to_be_stripped():
    assert llm_rollout(strip_proxy=False)(lambda task, llm: llm).rollout("t", {"proxy": PROXY}, CLAIMED) == PROXY


def test_a_proxy_llm_without_an_attempt_is_a_clear_error():
    agent = llm_rollout(lambda task, llm: llm)
    with raises(InvalidInputError, "ro-2", "AttemptedRollout"):
        agent.rollout("t", {"proxy": PROXY}, Rollout("ro-2", "task", 0.0))


@pytest.mark.parametrize("kind", [LLM, ProxyLLM])
@pytest.mark.parametrize("strip_proxy", [True, False])
def test_the_agent_gets_the_key_itself(kind, strip_proxy, monkeypatch):
    monkeypatch.setenv("MODEL_KEY", "sk-1")
    llm = kind("http://e/v1", "small", "env:MODEL_KEY", {"temperature": 0.0})
    given = llm_rollout(strip_proxy=strip_proxy)(lambda task, llm: llm).rollout("t", {"llm": llm}, CLAIMED)
    assert given.api_key == "sk-1"
    assert given.sampling_parameters == {"temperature": 0.0}
    assert llm.api_key == "env:MODEL_KEY"  # the resource itself still holds only the reference


def test_a_key_that_is_not_in_the_environment_is_a_clear_error(monkeypatch):
    monkeypatch.delenv("MODEL_KEY", raising=False)
    with raises(ConfigError, "MODEL_KEY"):
        llm_rollout(lambda llm: llm).rollout("t", {"llm": LLM("http://e", "m", "env:MODEL_KEY")}, CLAIMED)


# -- the plain function ------------------------------------------------------------------------------


def test_the_decorated_function_is_still_the_function():
    @rollout
    def agent(task: str, retries: int = 3) -> float:
        """Counts."""
        return len(task) * retries

    assert agent("ab") == agent(task="ab") == 6
    assert agent("ab", retries=1) == 2
    assert (agent.__name__, agent.__doc__, agent.__module__) == ("agent", "Counts.", __name__)
    assert agent.__wrapped__("ab", 2) == 4
    assert list(inspect.signature(agent).parameters) == ["task", "retries"]
    assert isinstance(agent, LitAgent)
    assert "agent" in repr(agent)


async def test_a_decorated_async_function_can_be_awaited_as_it_was_written():
    @rollout()
    async def agent(task):
        return task * 2

    assert await agent("ab") == "abab"


# -- what people pass as an agent --------------------------------------------------------------------


def test_an_agent_is_its_own_agent():
    agent = module_agents.Summing()
    assert as_agent(agent) is agent
    assert as_agent(module_agents.guarded) is module_agents.guarded


def test_a_class_of_agents_is_built():
    assert isinstance(as_agent(module_agents.Summing), module_agents.Summing)


def test_a_class_that_needs_arguments_is_a_clear_error():
    class Agent(LitAgent):
        def __init__(self, path):
            self.path = path

    with raises(TypeError, "Agent"):
        as_agent(Agent)


async def test_plain_functions_become_agents():
    async def solve(task):
        return 2.0

    class Team:
        def solve(self, task):
            return 3.0

    assert as_agent(lambda task: 1.0).rollout("t", {}, CLAIMED) == 1.0
    assert await as_agent(solve).rollout_async("t", {}, CLAIMED) == 2.0
    assert as_agent(Team().solve).rollout("t", {}, CLAIMED) == 3.0


@pytest.mark.parametrize("thing", [None, 1, "agent", dict, object(), {"type": "agent"}])
def test_anything_else_is_no_agent(thing):
    with raises(ComponentTypeError, "LitAgent"):
        as_agent(thing)


# -- travelling --------------------------------------------------------------------------------------


def run_python(code, repository, *, text=None):
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=repository, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# The receiver of a pickle, in a process that has run nothing else.
LOAD_AND_RUN = """
    import asyncio, pickle, sys
    from sharpen.types import Attempt, AttemptedRollout, LLM
    agent = pickle.loads(bytes.fromhex(sys.stdin.read()))
    claimed = AttemptedRollout("ro-1", 4, 0.0, attempt=Attempt("ro-1", "at-1", 1, 0.0))
    resources = {"llm": LLM("http://e", "m")}
    if agent.is_async():
        print(asyncio.run(agent.rollout_async("abcd", resources, claimed)))
    else:
        print(agent.rollout(4, resources, claimed), agent(task=5), agent.__name__, agent.__doc__)
"""


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_an_agent_of_a_module_travels_by_name(dumps, repository):
    sent = dumps(module_agents.guarded)  # by value this would fail: the function uses a lock
    expected = "5.0 6.0 guarded Adds one step to the task, one caller at a time."
    assert run_python(LOAD_AND_RUN, repository, text=sent.hex()) == expected
    assert run_python(LOAD_AND_RUN, repository, text=dumps(module_agents.asking).hex()) == "12.0"


async def test_an_agent_that_travelled_by_name_keeps_its_settings():
    agent = copy.copy(module_agents.asking)
    agent.trained_agents = "writer"
    back = pickle.loads(pickle.dumps(agent))
    assert back.trained_agents == "writer"
    assert back.function is module_agents.asking.function
    assert module_agents.asking.trained_agents is None
    # strip_proxy=False came along: a rollout without an attempt will do.
    given = await back.rollout_async("t", {"proxy": PROXY}, Rollout("ro-2", "t", 0.0))
    assert given == float(len("t" + PROXY.endpoint))


def test_an_undecorated_function_of_a_module_travels_by_name_too():
    agent = pickle.loads(cloudpickle.dumps(as_agent(module_agents.Grouped.plain)))
    assert agent.function is module_agents.Grouped.plain


def test_an_agent_of_a_script_travels_to_a_process_that_never_sees_the_script(repository):
    script = """
        import cloudpickle
        from sharpen.litagent import rollout

        STEP = 10

        @rollout
        def countdown(task: int, *, step: int = STEP) -> float:
            "Calls itself by its own name."
            return float(step) if task == 0 else countdown(task - 1) + 1

        print(cloudpickle.dumps(countdown).hex())
    """
    sent = run_python(script, repository)
    assert run_python(LOAD_AND_RUN, repository, text=sent) == "14.0 15.0 countdown Calls itself by its own name."


def test_an_agent_of_a_script_travels_with_the_function_that_leads_to_it(repository):
    script = """
        import cloudpickle
        from sharpen.litagent import rollout

        def plain(task: int, *, step: int = 2) -> float:
            "Written first."
            return float(task + step) if step else agent(task)

        agent = rollout(plain)
        print(cloudpickle.dumps((plain, agent)).hex())
    """
    receive = LOAD_AND_RUN.replace("sys.stdin.read()))", "sys.stdin.read()))[1]")
    assert run_python(receive, repository, text=run_python(script, repository)) == "6.0 7.0 plain Written first."


def test_a_module_whose_code_is_to_be_sent_along_is_not_looked_up(repository):
    script = """
        import cloudpickle, sys, types
        module = types.ModuleType("only_here")
        sys.modules["only_here"] = module
        exec('''
        from sharpen.litagent import rollout
        @rollout
        def agent(task: int) -> float:
            "Sent by value."
            return float(task)
        '''.replace("\\n        ", "\\n"), vars(module))
        cloudpickle.register_pickle_by_value(module)
        print(cloudpickle.dumps(module.agent).hex())
    """
    sent = run_python(script, repository)
    assert run_python(LOAD_AND_RUN, repository, text=sent) == "4.0 5.0 agent Sent by value."


def test_a_name_that_the_receiver_lacks_is_a_clear_error(monkeypatch):
    sent = pickle.dumps(module_agents.guarded)
    monkeypatch.delattr(module_agents, "guarded")
    with raises(TypeError, "module_agents", "guarded"):
        pickle.loads(sent)


def test_copies_of_a_decorated_agent_work():
    @rollout
    def agent(task, llm=None):
        return [task, llm]

    for made in (copy.copy(agent), copy.deepcopy(agent), copy.copy(module_agents.guarded)):
        assert isinstance(made, FunctionalLitAgent)
        assert made.rollout(1, {}, CLAIMED) in ([1, None], 2.0)
