"""What goes wrong in an episode: a clear error, no hang, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharpen.errors import ConfigError
from sharpen.rl import Collector, EpisodeError, GymSpaceValidationError, RewardError, WorkerDiedError, vectorize_env
from tests.errors import raises
from tests.rl.internals import EnvParts
from tests.rl.toys import Countdown, InitialAsReward, Left, Two, VectorCartPole, Zeros

KINDS = ["dummy", "subproc", "shmem"]
BAD = 13


class Raises(Countdown):
    def step(self, action: int) -> None:
        super().step(action)
        if self.initial == BAD and self.left == 10:
            raise ZeroDivisionError("the market is closed")


class RaisesAtOnce(Countdown):
    def __init__(self, initial: int) -> None:
        super().__init__(initial)
        if initial == BAD:
            raise ValueError("no such day")


class Dies(Countdown):
    def step(self, action: int) -> None:
        super().step(action)
        if self.initial == BAD:
            os.kill(os.getpid(), signal.SIGKILL)


class Leaves(Countdown):
    def step(self, action: int) -> None:
        super().step(action)
        if self.initial == BAD:
            os._exit(7)


class LongState(Left):
    def interpret(self, simulator_state: float) -> Any:
        obs = super().interpret(simulator_state)
        return np.zeros(3, np.float32) if simulator_state == 10 else obs


class NanReward(InitialAsReward):
    def reward(self, simulator_state: float) -> float:
        return float("nan") if simulator_state == 10 else 1.0


def play(parts: EnvParts, kind: Any) -> None:
    with vectorize_env(parts, kind, 3) as venv:
        venv.bind([2, 3, BAD, 4, 5])
        Collector(Zeros(), venv).play()


def children() -> set[int]:
    """The processes that this one has started and that are not gone."""
    found = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
    )
    return {int(line.split()[0]) for line in found.stdout.splitlines() if "sharpen.rl.worker" in line}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("parts", "named", "cause"),
    [
        (EnvParts(Raises, Left(), Two(), InitialAsReward()), "the market is closed", ZeroDivisionError),
        (EnvParts(RaisesAtOnce, Left(), Two(), InitialAsReward()), "no such day", ValueError),
        (EnvParts(Countdown, LongState(), Two(), InitialAsReward()), "(3,)", GymSpaceValidationError),
        (EnvParts(Countdown, Left(), Two(), NanReward()), "nan", RewardError),
    ],
    ids=["simulator", "beginning", "interpreter", "reward"],
)
def test_an_error_in_an_episode_names_its_initial_state(kind: Any, parts: EnvParts, named: str, cause: type) -> None:
    with raises(EpisodeError, named) as caught:
        play(parts, kind)
    assert f"episode 2 with the initial state {BAD}" in str(caught.value)
    assert isinstance(caught.value.__cause__, cause)
    if kind != "dummy":
        assert "Traceback (most recent call last)" in str(caught.value)
        assert "in step" in str(caught.value) or "in begin" in str(caught.value)
    assert not children()


@pytest.mark.parametrize("kind", ["subproc", "shmem"])
@pytest.mark.parametrize(("simulator", "named"), [(Dies, "SIGKILL"), (Leaves, 7)])
def test_a_worker_that_dies_is_named_with_what_it_played(kind: Any, simulator: Any, named: object) -> None:
    with raises(WorkerDiedError, named) as caught:
        play(EnvParts(simulator, Left(), Two(), InitialAsReward()), kind)
    assert f"episode 2 with {BAD}" in str(caught.value)
    assert not children()


def test_an_action_outside_its_space_is_an_error_of_its_episode() -> None:
    class Threes(Zeros):
        def act(self, obs_N: Any, *, rng: Any, deterministic: bool) -> Any:
            from sharpen.rl import Actions

            return Actions(np.full(len(obs_N), 3))

    with vectorize_env(EnvParts(Countdown, Left(), Two(), None), "dummy", 1) as venv:
        venv.bind([4])
        with raises(EpisodeError, 0, 4) as caught:
            Collector(Threes(), venv).play()
    assert isinstance(caught.value.__cause__, GymSpaceValidationError)


def test_actions_of_the_wrong_kind_are_refused_and_not_rounded() -> None:
    with vectorize_env(EnvParts(Countdown, Left(), Two(), None), "dummy", 1) as venv:
        venv.bind([4])
        venv.open_collection(each_step=True)
        venv.reset()
        with raises(GymSpaceValidationError, "float64"):
            venv.step(np.array([0.7]))


def test_a_vector_simulator_that_gives_nan_is_an_error_with_its_episodes() -> None:
    class Bad(VectorCartPole):
        def step(self, slots_N: Any, action_N: Any) -> Any:
            obs, reward, terminated, truncated = super().step(slots_N, action_N)
            reward[1] = np.nan
            return obs, reward, terminated, truncated

    with vectorize_env(Bad, "dummy", 3) as venv:  # type: ignore[arg-type]
        venv.bind(range(10))
        with raises(EpisodeError, 1, "nan"):
            Collector(Zeros(), venv).play()


def test_a_closed_environment_says_so() -> None:
    venv = vectorize_env(EnvParts(Countdown, Left(), Two(), None), "subproc", 2)
    venv.close()
    venv.close()
    assert not children()
    with raises(ConfigError, "closed"):
        venv.open_collection(each_step=True)


def test_workers_of_a_forgotten_environment_end() -> None:
    venv = vectorize_env(EnvParts(Countdown, Left(), Two(), None), "subproc", 2)
    assert len(children()) >= 1
    del venv
    assert not children()


PROGRAM = """
import os, sys, time
sys.path.insert(0, {root!r})
print("main", flush=True)  # a worker that ran this script again would print it again
from tests.rl.toys import *
from sharpen.rl import *
from sharpen.rl.env_wrapper import EnvParts

class Slow(Countdown):
    def step(self, action):
        super().step(action)
        os.write(1, f"worker {{os.getpid()}}\\n".encode())  # one write: two workers share the pipe
        time.sleep(1000)

venv = vectorize_env(EnvParts(Slow, Left(), Two(), None), {kind!r}, 2, processes=2)
venv.bind([5, 5])
Collector(Zeros(), venv).play()
"""


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["subproc", "shmem"])
def test_workers_in_the_middle_of_a_step_end_with_a_killed_parent(kind: str, tmp_path: Path, repository: Path) -> None:
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    program = PROGRAM.format(root=str(repository), kind=kind)
    (tmp_path / "program.py").write_text(program)
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=repository,
    )
    assert parent.stdout is not None
    lines = [parent.stdout.readline() for _ in range(3)]
    workers = [int(line.split()[1]) for line in lines if line.startswith("worker")]
    assert lines[0] == "main\n"
    assert len(set(workers)) == 2
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(map(is_alive, workers)))
    parent.stdout.close()
    assert os.listdir(tmp_path) == ["program.py"]
    left = set(os.listdir("/dev/shm")) - shared if os.path.isdir("/dev/shm") else set()
    assert not [name for name in left if "sharpen" in name]


class StartsSomething(Countdown):
    def __init__(self, initial: int) -> None:
        super().__init__(initial)
        self.child = subprocess.Popen(["sleep", "1000"])

    def get_state(self) -> float:
        return float(self.child.pid)


class AnyState(Left):
    def interpret(self, simulator_state: float) -> Any:
        return np.array([simulator_state, 0], np.float32)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_simulator_started_ends_with_its_worker() -> None:
    with vectorize_env(EnvParts(StartsSomething, AnyState(), Two(), None), "subproc", 2) as venv:
        venv.bind([3, 3])
        venv.open_collection(each_step=True)
        obs, _ = venv.reset()
        started = [int(pid) for pid in obs[:, 0]]
        assert all(map(is_alive, started))
    wait_for(lambda: not any(map(is_alive, started)))


class GlobalLuck(Countdown):
    def get_state(self) -> float:
        return float(np.random.random())


def test_global_random_numbers_differ_between_workers_and_repeat_with_the_seed() -> None:
    def first(entropy: tuple[int, ...]) -> list[float]:
        with vectorize_env(EnvParts(GlobalLuck, AnyState(), Two(), None), "subproc", 2, processes=2) as venv:
            venv.bind([3, 3], entropy=entropy)
            venv.open_collection(each_step=True)
            found: list[float] = venv.reset()[0][:, 0].tolist()
            return found

    one, again, other = first((1,)), first((1,)), first((2,))
    assert one == again != other
    assert one[0] != one[1]


def test_an_environment_that_cannot_be_built_in_a_worker_is_told_with_its_traceback() -> None:
    here = os.getpid()

    def factory() -> Any:
        if os.getpid() != here:
            raise FileNotFoundError("no market data")
        return EnvParts(Countdown, Left(), Two(), None)()

    venv = vectorize_env(factory, "subproc", 2)
    with raises(EpisodeError, "FileNotFoundError"):
        venv.open_collection(each_step=True)
    assert not children()


INTERRUPTED = """
import os, sys, time
sys.path.insert(0, {root!r})
from tests.rl.toys import *
from sharpen.rl import *
from sharpen.rl.env_wrapper import EnvParts

class Slow(Countdown):
    def step(self, action):
        super().step(action)
        os.write(1, f"worker {{os.getpid()}}\\n".encode())  # one write: two workers share the pipe
        time.sleep(1000)

vessel = TrainingVessel(simulator_fn=Slow, state_interpreter=Left(), action_interpreter=Two(), policy=Zeros(),
                        train_initial_states=[5, 5], episode_per_iter=2)
try:
    Trainer(max_iters=1, concurrency=1).fit(vessel)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_ends_a_run_and_its_workers(tmp_path: Path, repository: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(INTERRUPTED.format(root=str(repository)))
    parent = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, cwd=repository)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline().split()[1])
    parent.send_signal(signal.SIGINT)
    assert parent.stdout.readline() == "interrupted\n"
    assert parent.wait(20) == 0
    assert not is_alive(worker)
    parent.stdout.close()
