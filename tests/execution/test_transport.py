"""What travels to another process, and how what cannot is refused."""

import importlib.util
import subprocess
import sys
import textwrap
import threading
import types
import weakref
import zipfile
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import pytest

from sharpen.errors import TransportError
from sharpen.execution import ClientServerExecutionStrategy
from sharpen.litagent import LitAgent, rollout
from sharpen.store import InMemoryLightningStore
from tests.errors import raises
from tests.execution.internals import pack
from tests.runner.internals import unpack

from . import agents_by_name

LOCK = threading.Lock()
POOL = ThreadPoolExecutor()
POOLS = {"first": POOL}


class Bundle:
    """As the trainer makes it: components as attributes."""

    def __init__(self, agent=agents_by_name.plain, hooks=(), tracer=None):
        self.agent, self.hooks, self.tracer = agent, hooks, tracer


def by_value(function):
    """The function as if it stood in a script: its module cannot be imported elsewhere."""
    globals_ = {**function.__globals__, "__name__": "__main__"}
    copy = types.FunctionType(function.__code__, globals_, function.__name__, function.__defaults__)
    copy.__module__ = "__main__"
    return copy


def uses_lock(task):
    with LOCK:
        return 1.0


def uses_pool(task):
    return POOL.submit(len, task)


def uses_pools(task):
    return POOLS["first"]


def uses_default(task, *, pool=POOL):
    return pool


def uses_nothing(task):
    return task + 1


def test_a_bundle_comes_back_equal():
    bundle = unpack(pack(Bundle(by_value(uses_nothing), hooks=["a"])))
    assert (bundle.agent(1), bundle.hooks) == (2, ["a"])


def test_an_agent_in_a_module_may_use_what_cannot_be_pickled():
    assert unpack(pack(Bundle(agents_by_name.with_a_lock_in_its_module))).agent("task") == 1.0


@pytest.mark.parametrize(
    ("bundle", "words"),
    [
        (Bundle(tracer=threading.Lock()), ["the tracer (lock)"]),
        (Bundle(hooks=[threading.RLock()]), ["the hooks (list)", "the item 0", "RLock"]),
        (Bundle(agent=by_value(uses_lock)), ["the agent (function uses_lock)", "the global 'LOCK'", "lock"]),
    ],
)
def test_what_cannot_travel_is_named_with_the_reason_and_the_way_out(bundle, words):
    with pytest.raises(TransportError) as caught:
        pack(bundle)
    for each in [*words, "inside the function", "strategy='shm'"]:
        assert each in str(caught.value)


def test_the_variable_of_a_closure_is_named():
    lock = threading.Lock()

    def agent(task):
        with lock:
            return 1.0

    with raises(TransportError, "lock", "agent"):
        pack(Bundle(agent))


def test_the_attribute_of_an_agent_is_named():
    class Agent:
        def __init__(self):
            self.connection = threading.Lock()

    with raises(TransportError, "Agent", "connection"):
        pack(Bundle(Agent()))


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        (uses_pool, ("POOL", "uses_pool", "ThreadPoolExecutor", "_work_queue", "SimpleQueue")),
        (uses_pools, ("POOLS", "uses_pools", "_work_queue", "SimpleQueue")),
        (uses_default, ("pool", "uses_default", "ThreadPoolExecutor", "_work_queue", "SimpleQueue")),
    ],
)
def test_the_outermost_thing_that_the_user_wrote_is_named_with_the_innermost_reason(agent, named):
    copy = by_value(agent)
    copy.__kwdefaults__ = agent.__kwdefaults__
    for each in (copy, rollout(copy)):
        with raises(TransportError, *named):
            pack(Bundle(each))


def test_an_agent_that_says_itself_that_it_cannot_travel_is_not_looked_into():
    class Agent(LitAgent):
        def __reduce__(self):
            raise RuntimeError("not by this road")

    agent = Agent()
    agent._trainer_ref = weakref.ref(Agent)
    with raises(TransportError, "Agent", "RuntimeError") as caught:
        pack(Bundle(agent))
    assert "_trainer_ref" not in str(caught.value)


def test_a_function_as_a_bundle_is_named_too():
    with raises(TransportError, "uses_lock", "LOCK"):
        pack(by_value(uses_lock))


def test_a_module_made_on_the_fly_is_refused(monkeypatch):
    module = types.ModuleType("made_on_the_fly")
    exec("def agent(task):\n    return 1.0", module.__dict__)
    monkeypatch.setitem(sys.modules, "made_on_the_fly", module)
    with raises(TransportError, "made_on_the_fly"):
        pack(Bundle(module.agent))


def test_a_module_loaded_from_outside_of_the_path_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "hidden_agent.py"
    file.write_text("def agent(task):\n    return 1.0\n")
    spec = importlib.util.spec_from_file_location("hidden_agent", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "hidden_agent", module)
    spec.loader.exec_module(module)
    with raises(TransportError, "hidden_agent", "sys.path"):
        pack(Bundle(module.agent))
    monkeypatch.syspath_prepend(tmp_path)
    assert unpack(pack(Bundle(module.agent))).agent("task") == 1.0


def test_a_module_that_a_new_process_would_find_elsewhere_is_refused(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ambiguous_agent.py").write_text(f"def agent(task):\n    return {name!r}\n")
    monkeypatch.syspath_prepend(tmp_path / "one")
    module = importlib.import_module("ambiguous_agent")
    monkeypatch.setitem(sys.modules, "ambiguous_agent", module)
    monkeypatch.syspath_prepend(tmp_path / "two")
    with raises(TransportError, "one/ambiguous_agent.py", "two/ambiguous_agent.py"):
        pack(Bundle(module.agent))


def test_a_module_in_an_archive_on_the_path_travels(tmp_path, monkeypatch):
    archive = tmp_path / "agents.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped_agent.py", "def agent(task):\n    return 1.0\n")
    monkeypatch.syspath_prepend(archive)
    module = importlib.import_module("zipped_agent")
    monkeypatch.setitem(sys.modules, "zipped_agent", module)
    data = pack(Bundle(module.agent))
    code = f"import sys; sys.path[:0] = [{str(archive)!r}, {str(tmp_path)!r}]; import pickle; pickle.loads({data!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "zipped_agent" not in done.stderr


class OwnFinder:
    """Finds one module, as import hooks of a program's own do."""

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "conjured_agent" else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec("def agent(task):\n    return 1.0", module.__dict__)


def test_a_module_with_a_loader_of_its_own_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, OwnFinder()])
    module = importlib.import_module("conjured_agent")
    monkeypatch.setitem(sys.modules, "conjured_agent", module)
    with raises(TransportError, "conjured_agent", "OwnFinder"):
        pack(Bundle(module.agent))


def test_a_module_that_a_script_only_mentions_counts_too(monkeypatch):
    module = types.ModuleType("made_on_the_fly")
    monkeypatch.setitem(sys.modules, "made_on_the_fly", module)

    agent = by_value(uses_lock)
    agent.__globals__["LOCK"] = module
    with raises(TransportError, "made_on_the_fly"):
        pack(Bundle(agent))


def test_a_cached_function_of_a_script_travels_without_what_it_remembers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import pickle, subprocess, sys
            from functools import cache, lru_cache

            from sharpen.execution.transport import pack

            CALLS = []

            @cache
            def table():
                CALLS.append(1)
                return {1: 10}

            @lru_cache(maxsize=3, typed=True)
            def plus(number):
                return number + 1

            def agent(task):
                return plus(table()[task]), plus.cache_parameters(), table.cache_info().misses

            table()
            sys.stdout.buffer.write(pack(agent))
            """
        ),
        encoding="utf-8",
    )
    data = subprocess.run([sys.executable, str(script)], capture_output=True, check=True).stdout
    assert unpack(data)(1) == (11, {"maxsize": 3, "typed": True}, 1)


def test_what_a_package_makes_on_the_fly_comes_with_the_package():
    import os.path

    assert unpack(pack(Bundle(os.path.join))).agent("a", "b") == "a/b"


def test_nothing_starts_where_something_cannot_travel():
    async def algorithm(store, event):
        raise AssertionError("the algorithm was started")

    with raises(TransportError, "the tracer"):
        ClientServerExecutionStrategy().execute(algorithm, Bundle(tracer=threading.Lock()), InMemoryLightningStore())


def test_a_notebook_cell_travels_by_value(tmp_path):
    """A cell is executed in `__main__`, without a file."""
    cell = textwrap.dedent("""
        import sys
        FACTOR = 3
        def agent(task):
            return task * FACTOR
        from sharpen.execution.transport import pack
        sys.stdout.buffer.write(pack(agent))
    """)
    made = subprocess.run([sys.executable, "-"], input=cell.encode(), capture_output=True, check=True)
    assert cloudpickle.loads(made.stdout)(2) == 6
