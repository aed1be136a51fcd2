"""`sharpen train`: runs, dry runs, and how they end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharpen.cli import main
from tests.archive.internals import RunEntry
from tests.cli.projects import own_imports, write


@pytest.fixture(autouse=True)
def own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    with own_imports():
        yield tmp_path / "runs"


def only_run(root: Path) -> Path:
    (found,) = root.iterdir()
    return found


def test_a_run_ends_with_rewards_their_interval_and_what_to_do_next(
    tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "project")
    assert main(["train", str(path), "--name", "first"]) == 0
    told = capsys.readouterr().out
    folder = only_run(own_runs)
    assert folder.name.endswith("-first")
    assert f"{folder.name}: succeeded" in told
    assert "validation reward: 0.6667 (95 %: 0.2077 to 0.9385) on 3 tasks" in told
    assert str(folder) in told
    assert f"sharpen runs show {folder.name}" in told


def test_the_configuration_is_kept_in_the_folder_of_the_run(
    tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THE_TOKEN", "hush-hush-hush")
    own = """
        from sharpen import Baseline
        class Own(Baseline):
            def __init__(self, n_epochs, opens):
                super().__init__(n_epochs=n_epochs)
    """
    path = write(tmp_path / "project", own__py=own)
    assert main(["train", str(path), 'algorithm={type: "own.py:Own", n_epochs: 2, opens: "${THE_TOKEN}"}']) == 0
    for file in only_run(own_runs).glob("*.*"):
        assert b"hush" not in file.read_bytes(), file
    kept = only_run(own_runs) / "train.yaml"
    assert "n_epochs: 2" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0
    assert main(["train", str(kept), "--dry-run", "--json"]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown[shown.index("{") :].splitlines()[-1])["bound"]["rollouts"] == 10


SPELLS = """
    import logging
    from sharpen import Baseline
    class Own(Baseline):
        def __init__(self, opens, address, fails):
            super().__init__(n_epochs=1)
            self.opens, self.address, self.fails = opens, {"of": [address]}, fails
        async def run(self, *datasets):
            logging.getLogger("sharpen.own").warning("it opens with %s", self.opens)
            await super().run(*datasets)
            self.report_iteration({"loss": 1.0})
            if self.fails:
                raise RuntimeError(f"{self.address} does not open")
"""


@pytest.mark.parametrize(("fails", "code"), [("false", 0), ("true", 1)])
def test_no_file_of_a_run_has_a_secret_whatever_its_key_is_called(
    tmp_path: Path,
    own_runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fails: str,
    code: int,
) -> None:
    monkeypatch.setenv("THE_TOKEN", "hush-hush-hush")
    path = str(write(tmp_path / "project", own__py=SPELLS))
    given = f'opens: "${{THE_TOKEN}}", address: "https://host/?q=${{THE_TOKEN}}", fails: {fails}'
    assert main(["train", path, f'algorithm={{type: "own.py:Own", {given}}}', "loggers=[jsonl]"]) == code
    folder = only_run(own_runs)
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert {"store.db", "config.json", "result.json", "metrics.jsonl", "run.log"} <= {file.name for file in files}
    assert [file for file in files if b"hush" in file.read_bytes()] == []
    options = json.loads((folder / "config.json").read_text())["components"]["algorithm"]["options"]
    assert (options["opens"], options["address"]) == ("${THE_TOKEN}", {"of": ["https://host/?q=${THE_TOKEN}"]})
    assert "it opens with ${THE_TOKEN}" in (folder / "run.log").read_text()
    error = RunEntry.of(folder).error_line or ""
    assert ("https://host/?q=${THE_TOKEN}" in error) is (code == 1)
    capsys.readouterr()


def test_machines_get_one_json_value(tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(write(tmp_path / "project")), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["kind"], found["run_dir"]) == ("succeeded", "agents", str(only_run(own_runs)))
    assert found["scores"][0]["mode"] == "val"


CHATTY = """
    import os
    import sys
    from sharpen import rollout
    print("at the import")
    @rollout
    def agent(task):
        print("by the agent")
        sys.__stdout__.write("past the redirection")
        os.write(1, b"by a library in C")
        os.system("echo by a child")
        return 1.0
"""


@pytest.mark.parametrize("command", [["train"], ["train", "--dry-run"], ["eval"]])
def test_what_the_users_code_prints_is_no_part_of_the_json(
    tmp_path: Path, command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "project", chatty__py=CHATTY)
    assert main([command[0], str(path), "agent=chatty.py:agent", "--json", *command[1:]]) == 0
    told = capfd.readouterr()
    assert isinstance(json.loads(told.out), dict)
    assert "at the import" in told.err
    assert ("by a child" in told.err) is ("--dry-run" not in command)
    os.write(1, b"afterwards")
    assert capfd.readouterr().out == "afterwards"


def test_what_is_printed_before_an_error_is_no_part_of_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "project", chatty__py=CHATTY)
    assert main(["train", str(path), "agent=chatty.py:nobody", "--json"]) == 2
    assert json.loads(capfd.readouterr().out)["error"]["type"] == "ConfigError"


INTERRUPTED = """
    import asyncio, os, signal
    from sharpen import Baseline
    class Own(Baseline):
        async def run(self, *datasets):
            os.kill(os.getpid(), signal.NAME)
            await asyncio.sleep(60)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_program_learns_where_an_interrupted_run_is(
    tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str], name: str, code: int
) -> None:
    path = write(tmp_path / "project", own__py=INTERRUPTED.replace("NAME", name))
    assert main(["train", str(path), "algorithm=own.py:Own", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["run_dir"], found["kind"]) == ("interrupted", str(only_run(own_runs)), "agents")


def test_without_tasks_there_is_no_run(tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path / "project"))
    assert main(["train", path, "train_dataset=null", "val_dataset=null"]) == 2
    assert "config.yaml has no tasks for Baseline" in capsys.readouterr().err
    assert not own_runs.exists()


@pytest.mark.parametrize("given", [["train_dataset=[]"], ["train_dataset=null", "val_dataset=[]"]])
def test_a_list_without_tasks_is_as_wrong_as_a_file_without(
    tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    assert main(["train", str(write(tmp_path / "project")), *given]) == 2
    assert "_dataset" in capsys.readouterr().err
    assert not own_runs.exists()


def test_an_empty_list_is_no_validation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(write(tmp_path / "project")), "val_dataset=[]", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["rollouts"] == 2


def test_a_run_that_cannot_be_written_to_is_not_gone_on_with(
    tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(write(tmp_path / "project"))
    assert main(["train", path]) == 0
    monkeypatch.setattr(os, "access", lambda *_: False)  # as on a read-only file system
    assert main(["train", path, "--resume", "last"]) == 1
    assert f"run {only_run(own_runs).name!r}" in capsys.readouterr().err


def test_what_to_do_next_can_be_pasted_into_a_shell(
    tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "my project")
    assert main(["train", str(path)]) == 0
    assert f"sharpen eval '{path}' --run" in capsys.readouterr().out
    assert main(["init", str(tmp_path / "an other")]) == 0
    assert f"sharpen train '{tmp_path}/an other/config.yaml'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told", "untold"),
    [
        (["config.yaml", "agent=odd.py:agent"], "override agent: 3 is not an agent", "config.yaml:1"),
        ([], "required: CONFIG", "key=value\n"),
        (["config.yml"], "Did you mean 'config.yaml'?", "nothing"),
        (["config.yaml", "store=Foo"], "Known names: InMemoryLightningStore", "APO"),
        (["config.yaml", "algorithm=Basline"], "Did you mean 'baseline'?", "sqlite"),
        (["config.yaml", "fooo=1"], "run_dir", "name, name"),
        (["config.yaml", "--jsn"], "did you mean '--json'?", "nothing"),
        (["config.yaml", "--xyzzy"], "unknown argument", "did you mean"),
    ],
)
def test_what_is_wrong_is_told_with_what_can_be_meant(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
    untold: str,
) -> None:
    monkeypatch.chdir(write(tmp_path / "project", odd__py="agent = 3").parent)
    assert main(["train", *arguments]) == 2
    said = capsys.readouterr().err.partition("usage:")[0]
    assert told in said
    assert untold not in said


def test_dev_needs_no_algorithm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(write(tmp_path / "project")), "algorithm=null", "--dev"]) == 0
    assert "succeeded" in capsys.readouterr().out


def test_a_wrong_configuration_leaves_nothing_and_is_exit_2(
    tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(write(tmp_path / "project")), "algorithm.n_epochs=0"]) == 2
    assert "sharpen train: override algorithm.n_epochs: n_epochs is 0" in capsys.readouterr().err
    assert not own_runs.exists()


def test_a_run_that_fails_is_exit_1_and_says_how_to_go_on(
    tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = """
        from sharpen import algo
        @algo
        async def broken(store, train_dataset):
            raise RuntimeError("it broke")
    """
    path = write(tmp_path / "project", broken__py=broken)
    assert main(["train", str(path), "algorithm=broken.py:broken"]) == 1
    told = capsys.readouterr().err
    folder = only_run(own_runs)
    assert "it broke" in told
    assert f"sharpen train {path} --resume {folder.name}" in told
    assert RunEntry.of(folder).state == "failed"


def test_a_run_goes_on_by_its_name(tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path / "project"))
    assert main(["train", path]) == 0
    name = only_run(own_runs).name
    assert main(["train", path, "algorithm.n_epochs=2", "--resume", name[:-3]]) == 0
    assert only_run(own_runs).name == name
    assert main(["train", path, "--resume", "no-such-run"]) == 3
    capsys.readouterr()


# -- dry runs ----------------------------------------------------------------------------------------


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["train", *arguments, "--dry-run", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_dry_run_starts_nothing(tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(write(tmp_path / "project")), "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert not own_runs.exists()
    assert "sharpen.algorithm.fast.Baseline" in told
    assert "config.yaml:5" in told
    assert "rollouts    5" in told
    assert "attempts    15" in told
    assert "cost        unknown" in told


def test_limits_of_the_gateway_bound_calls_and_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path / "project"))
    limits = "llm_proxy={limits: {rollout_calls: 4, run_cost: 1.5}, model_list: []}"
    bound = plan(capsys, path, limits)["bound"]
    assert bound == {"rollouts": 5, "attempts": 15, "calls": 20, "cost": 1.5}


def test_tokens_cost_what_the_dearest_model_takes_and_unknown_prices_stay_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path / "project"))
    known = "llm_proxy={limits: {run_tokens: 1000000}, model_list: [{model_name: gpt-5-mini}]}"
    assert plan(capsys, path, known)["bound"]["cost"] == 2.0
    unknown = "llm_proxy={limits: {run_tokens: 1000000}, model_list: [{model_name: mine, base_url: 'http://h/v1'}]}"
    found = plan(capsys, path, unknown)
    assert found["bound"]["cost"] is None
    assert any("has no known price" in sentence for sentence in found["because"])


def test_a_critic_outside_the_gateway_has_no_known_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path / "project"))
    apo = "algorithm={type: APO, beam_rounds: 1, beam_width: 1, branch_factor: 1}"
    outside = plan(capsys, path, apo, "llm_proxy={limits: {run_cost: 1.0}}")
    assert outside["bound"]["cost"] is None
    assert any("gpt-5-mini" in sentence for sentence in outside["because"])
    inside = plan(capsys, path, apo, 'llm_proxy={limits: {run_cost: 1.0}, model_list: [{model_name: "gpt-*"}]}')
    assert inside["bound"]["cost"] == 1.0


def test_runners_that_end_bound_the_attempts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, str(write(tmp_path / "project")), "max_rollouts=3")
    assert found["bound"]["attempts"] == 3


# -- processes ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_ends_a_run_in_order_and_it_can_be_resumed(tmp_path: Path, own_runs: Path) -> None:
    slow = """
        import time
        from sharpen import rollout
        @rollout
        def agent(task):
            time.sleep(0.2)
            print("in a process of its own", flush=True)
            return 1.0
    """
    config = """
        agent: slow.py:agent
        train_dataset: {file: "agent.py:tasks"}
        val_dataset: []
        algorithm: {type: Baseline, n_epochs: 10, span_verbosity: none}
        n_runners: 1
    """
    path = write(tmp_path / "project", config, slow__py=slow)
    command = [sys.executable, "-m", "sharpen.cli", "train", str(path), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(own_runs.glob("*/metrics.jsonl")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    answer, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    folder = only_run(own_runs)
    assert json.loads(answer)["run_dir"] == str(folder)
    assert f"--resume {folder.name}" in errors
    assert RunEntry.of(folder).state == "interrupted"
    resumed = [*command, "--resume", "last", "algorithm.n_epochs=1"]
    ran = subprocess.run(resumed, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["status"] == "succeeded"
    assert "in a process of its own" in ran.stderr


LEAKS = """
    import os
    from sharpen import rollout
    @rollout
    def leak(task):
        raise RuntimeError(f"the upstream refused {os.environ['THE_TOKEN']}")
"""


def test_a_secret_in_an_agents_exception_reaches_neither_log_nor_store_from_a_runner_process(
    tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THE_TOKEN", "hush-hush-hush")
    monkeypatch.setenv("SHARPEN_LOG", "debug")
    path = str(write(tmp_path / "project", own__py=SPELLS, leaky__py=LEAKS))
    own = 'algorithm={type: "own.py:Own", opens: "${THE_TOKEN}", address: "", fails: false}'
    main(["train", path, own, "agent=leaky.py:leak", "strategy=cs"])
    files = [file for file in only_run(own_runs).rglob("*") if file.is_file()]
    assert [file for file in files if b"hush" in file.read_bytes()] == []
    written, shown = (only_run(own_runs) / "run.log").read_text(), capfd.readouterr()
    assert "hush" not in shown.out + shown.err
    for text in (written, shown.err):
        assert "[runner" in text
        assert "the upstream refused ${THE_TOKEN}" in text
