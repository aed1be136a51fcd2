"""`sharpen replay`: an agent run again on a recorded rollout."""

import asyncio
import shutil
from pathlib import Path

import pytest

from sharpen.store import SQLiteStore

from .rollout_run import RUN, Terminal, make_run

AGENT = """
import json, urllib.request
from sharpen import rollout

def ask(llm, messages, **options):
    body = json.dumps({"model": llm.model, "messages": messages, **options}).encode()
    request = urllib.request.Request(f"{llm.endpoint}/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]

@rollout
def tries(task, llm):
    print("thinking aloud")
    return float(ask(llm, [{"role": "user", "content": task}])["content"] == "two") / 2

@rollout
def asks_otherwise(task, llm):
    ask(llm, [{"role": "user", "content": task + "?"}])
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder)
    return folder


@pytest.fixture
def terminal(
    capsys: pytest.CaptureFixture[str], made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Terminal:
    """In a folder with the agent's file, and with a copy of the run."""
    shutil.copytree(made, tmp_path / "runs")
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "replayed_agent.py").write_text(AGENT)
    return Terminal(capsys)


async def _contents(path: Path) -> tuple[int, int]:
    store = SQLiteStore(path, read_only=True)
    found = await store.statistics()
    await store.close()
    return found["total_rollouts"], found["total_spans"]


def test_a_replay_gets_the_recorded_answers_and_compares_the_reward(terminal: Terminal) -> None:
    shown = terminal.run("replay", "again", "--agent", "replayed_agent.py:tries")
    assert "before: succeeded, reward 0.5" in shown
    assert "now:    succeeded, reward 0.5 (same reward)" in shown
    assert "  assistant\n    two" in shown
    assert "thinking aloud" not in shown  # what the agent prints is no part of the answer
    assert "thinking aloud" in terminal.said


def test_an_earlier_attempt_can_be_replayed(terminal: Terminal) -> None:
    told = terminal.value("replay", "again", "--agent", "replayed_agent:tries", "--attempt", "1")
    assert (told["before"], told["now"]) == (
        {"status": "failed", "reward": None},
        {"status": "succeeded", "reward": 0.0},
    )
    assert told["is_same_reward"] is False
    assert told["calls"] == {"recorded": 1, "answered": 1}
    assert told["transcript"]["entries"][0]["answer"]["text"] == "one"


def test_an_agent_that_asks_something_else_is_told_what_differs(terminal: Terminal) -> None:
    shown = terminal.run("replay", "again", "--agent", "replayed_agent:asks_otherwise", code=1)
    assert "is not in the record" in shown
    assert "now:    failed" in shown


def test_a_replay_writes_nothing_to_the_store(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "runs" / RUN / "store.db"
    before = asyncio.run(_contents(path))
    terminal.run("replay", "again", "--agent", "replayed_agent:tries")
    assert asyncio.run(_contents(path)) == before


def test_the_configuration_of_the_run_names_the_agent(terminal: Terminal, tmp_path: Path) -> None:
    config = f"agent: 'replayed_agent.py:tries'\nfolder: {str(tmp_path)!r}\n"
    (tmp_path / "runs" / RUN / "train.yaml").write_text(config)
    assert terminal.value("replay", "again")["is_same_reward"] is True
    (tmp_path / "other.yaml").write_text("agent: 'replayed_agent.py:asks_otherwise'\n")
    assert terminal.value("replay", "again", "--config", "other.yaml", code=1)["now"]["status"] == "failed"


def test_without_an_agent_it_says_how_to_name_one(terminal: Terminal) -> None:
    terminal.run("replay", "again", code=2)
    assert "--config config.yaml or --agent module:name" in terminal.said
    terminal.run("replay", "again", "--agent", "replayed_agent:nothing", code=2)
    assert "has no 'nothing'" in terminal.said


def test_a_rollout_that_was_not_recorded_says_how_to_record(terminal: Terminal) -> None:
    terminal.run("replay", "hostile", "--agent", "replayed_agent:tries", code=2)
    assert "llm_proxy: {mode: record" in terminal.said
    terminal.run("replay", "nobody", "--agent", "replayed_agent:tries", code=3)
    assert "there is no rollout 'nobody'" in terminal.said
