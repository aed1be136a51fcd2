"""Whole runs with a program as the agent: every strategy, a configuration file, Ctrl-C, and the example."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sharpen import LLMProxy, NamedResources, PromptTemplate, Trainer
from sharpen.errors import ConfigError
from sharpen.litagent import CommandAgent
from tests.cli.internals import load_config
from tests.errors import raises

from ..llm_proxy.replies import Reply
from ..llm_proxy.scripted import ScriptedUpstream
from .commands import KIN, KIN_COUNT, is_alive, pids_in, wait_until
from .test_command_languages import PYTHON, SH

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_a_missing_program_is_an_error_before_the_run_begins(strategy: str) -> None:
    with raises(ConfigError, "PATH"):
        Trainer(algorithm="Baseline", strategy=strategy, run_dir=None).fit(CommandAgent(["no-such-thing"]), [1])


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "script"), [("shm", "sh"), ("cs", "python")])
def test_a_program_is_trained_behind_the_gateway(strategy: str, script: str) -> None:
    command = {"sh": ["sh", "-c", SH], "python": [sys.executable, "-I", "-c", PYTHON]}[script]
    with ScriptedUpstream(default_reply=Reply("It is Paris.")) as upstream:
        gateway = LLMProxy(model_list=[{"name": "scripted", "base_url": upstream.base_url}])
        prompts: NamedResources = {"prompt": PromptTemplate("Where?")}
        trainer = Trainer(
            algorithm="Baseline", strategy=strategy, n_runners=2, llm_proxy=gateway, initial_resources=prompts
        )
        result = trainer.fit(CommandAgent(command), list(range(6)))
    assert (result.metrics["succeeded"], result.metrics["reward_mean"], result.metrics["llm/calls"]) == (6, 1.0, 6)


# -- a configuration file ----------------------------------------------------------------------------

CONFIG = """
agent:
  type: sharpen.litagent.CommandAgent
  command: [sh, agent.sh]
  reward: output
  env: {LEVEL: "3"}
  timeout_seconds: 20
algorithm: Baseline
strategy: shm
train_dataset: tasks.jsonl
val_dataset: tasks.jsonl
"""


def write_project(folder: Path, config: str = CONFIG) -> Path:
    (folder / "agent.sh").write_text('echo "reward: $((SHARPEN_TASK * LEVEL))"\n')
    (folder / "tasks.jsonl").write_text("1\n2\n3\n")
    (folder / "config.yaml").write_text(config)
    return folder / "config.yaml"


def test_a_configuration_file_names_a_program(tmp_path: Path) -> None:
    agent = load_config(write_project(tmp_path)).agent()
    assert isinstance(agent, CommandAgent)
    assert (agent.command, agent.timeout_seconds) == (["sh", "agent.sh"], 20.0)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("reward: output", "reward: sometimes", "config.yaml:5:3: reward is 'sometimes': use 'output'"),
        ("timeout_seconds: 20", "timeout: 20", "'timeout'. Did you mean 'timeout_seconds'"),
        ("command: [sh, agent.sh]", "command: sh agent.sh", "config.yaml:4:3: command is 'sh agent.sh'"),
    ],
)
def test_what_is_wrong_in_it_is_told_with_its_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(write_project(tmp_path, CONFIG.replace(old, new))).agent()
    assert words in str(error.value)


@pytest.mark.slow
def test_the_command_line_runs_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sharpen.cli", "train", str(write_project(tmp_path)), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["reward_mean"] == 6.0


# -- ends --------------------------------------------------------------------------------------------

RUN = """
import sys
from sharpen import Trainer
from sharpen.litagent import CommandAgent

if __name__ == "__main__":
    agent = CommandAgent(["sh", "-c", sys.argv[1], "sh", sys.argv[2]], grace_seconds=0.2)
    hurry = {"shm": {"graceful_delay": 0.3}, "cs": {"graceful_timeout": 0.3}}[sys.argv[3]]
    Trainer(algorithm="Baseline", strategy={"type": sys.argv[3], **hurry}).fit(agent, [1])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "number"), [("shm", signal.SIGINT), ("cs", signal.SIGINT), ("cs", signal.SIGKILL)]
)
def test_a_run_that_ends_leaves_no_program_behind(strategy: str, number: signal.Signals, tmp_path: Path) -> None:
    script, folder = tmp_path / "run.py", tmp_path / "kin"
    script.write_text(RUN)
    with subprocess.Popen([sys.executable, str(script), KIN, str(folder), strategy], stderr=subprocess.DEVNULL) as run:
        pids = wait_until(lambda: pids_in(folder, KIN_COUNT), 40)
        run.send_signal(number)
    wait_until(lambda: not any(map(is_alive, pids)), 30)


# -- the example -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_example_improves_the_prompt_of_an_agent_in_sh(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "command_agent.py"), "sh"],
        env={**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "mean reward on validation tasks: 0.00 before, 1.00 after" in done.stdout
