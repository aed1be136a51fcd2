"""`sharpen rollouts`: list, show, export."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from sharpen import LightningStoreServer
from sharpen.store import InMemoryLightningStore, SQLiteStore
from sharpen.types import Attempt, EnqueueRolloutRequest

from .rollout_run import RUN, Terminal, make_run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder)
    return folder


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], root: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("SHARPEN_RUNS", str(root))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return Terminal(capsys)


def ids(listed: dict[str, list[dict[str, str]]]) -> list[str]:
    return [each["rollout_id"].removeprefix("ro-") for each in listed["rollouts"]]


# -- list --------------------------------------------------------------------------------------------


def test_the_newest_run_is_listed_by_itself(terminal: Terminal) -> None:
    assert ids(terminal.value("rollouts")) == ["failed", "hostile", "again", "chatty"]
    lines = terminal.run("rollouts").splitlines()
    assert lines[0] == f"Rollouts of {RUN}"
    assert [line.split()[0] for line in lines[3:]] == ["ro-failed", "ro-hostile", "ro-again", "ro-chatty"]
    assert "ValueError" in lines[3]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--status", "failed"], ["failed"]),
        (["--status", "failed", "--mode", "train"], []),
        (["--mode", "val"], ["again"]),
        (["--reward-min", "0.3", "--order", "reward_high"], ["chatty", "again"]),
        (["--reward-max", "0.3"], ["hostile"]),
        (["--search", "weather in rome"], ["chatty"]),
        (["--group", "g"], ["chatty"]),
        (["--worker", "nobody"], []),
        (["--limit", "2", "--order", "oldest"], ["chatty", "again"]),
    ],
)
def test_rollouts_are_filtered(terminal: Terminal, options: list[str], found: list[str]) -> None:
    assert ids(terminal.value("rollouts", "list", *options)) == found


def test_options_count_before_and_behind_the_inner_command(terminal: Terminal) -> None:
    assert ids(terminal.value("rollouts", "--mode", "val")) == ["again"]
    assert ids(terminal.value("rollouts", "--mode", "val", "list")) == ["again"]
    assert json.loads(terminal.run("rollouts", "--json", "list", "--mode", "val"))["total"] in (1, None)


def test_a_list_that_is_cut_says_so(terminal: Terminal) -> None:
    terminal.run("rollouts", "--limit", "3")
    assert "3 of 4 " in terminal.said
    assert terminal.value("rollouts", "--limit", "3")["has_more"] is True
    assert terminal.value("rollouts", "--limit", "0")["has_more"] is False


def test_a_wrong_limit_is_told_in_words(terminal: Terminal) -> None:
    terminal.run("rollouts", "--limit", "abc", code=2)
    assert "--limit: 'abc'" in terminal.said


def test_nothing_that_fits_is_said(terminal: Terminal) -> None:
    assert terminal.run("rollouts", "--status", "cancelled") == ""
    assert "no rollout" in terminal.said


@pytest.mark.parametrize(
    "arguments",
    [
        ["--status", "faild"],
        ["--limit", "x"],
        ["--limit", "-1"],
        ["--reward-min", "high"],
        ["--run", "a", "--store", "b"],
        ["lst"],
    ],
)
def test_wrong_options_are_refused(terminal: Terminal, arguments: list[str]) -> None:
    terminal.run("rollouts", *arguments, code=2)
    assert "sharpen rollouts" in terminal.said


# -- show --------------------------------------------------------------------------------------------


def test_a_rollout_is_shown_as_a_transcript(terminal: Terminal) -> None:
    shown = terminal.run("rollouts", "show", "chatty")
    assert "rollout ro-chatty  succeeded  reward 1" in shown
    conversation = shown[shown.index("── call 1 chat scripted") :].splitlines()
    assert conversation[1:7] == [
        "  system",
        "    Be brief.",
        "  user",
        "    Weather in Rome?",
        "  assistant",
        '    → weather {"city": "Rome"}',
    ]
    assert conversation[7] == "      ← 21 degrees"
    assert shown.count("Weather in Rome?") == 2  # the task, and the first call
    assert "  (5 messages " in shown
    assert ")\n  user\n    thanks\n  assistant\n    You are welcome." in shown
    assert "spans in" not in shown


def test_spans_and_tokens_are_shown_where_they_are_asked_for(terminal: Terminal) -> None:
    shown = terminal.run("rollouts", "show", "chatty", "--spans", "--tokens")
    assert "── 4 spans in" in shown
    assert "3 sampled" in shown
    found = terminal.value("rollouts", "show", "chatty", "--spans", "--tokens")
    assert len(found["spans"]) == 4
    assert len(found["entries"][1]["tokens"]["response_ids"]) == 3
    plain = terminal.value("rollouts", "show", "chatty")
    assert "spans" not in plain
    assert plain["entries"][1]["tokens"] is None


def test_every_attempt_can_be_read_and_says_why_it_ended(terminal: Terminal) -> None:
    latest = terminal.run("rollouts", "show", "again")
    assert "failed by" in latest
    assert "RuntimeError: the first try always fails" in latest
    assert "    two" in latest
    first = terminal.run("rollouts", "show", "again", "--attempt", "1")
    assert "    one" in first
    assert "── error RuntimeError" in first
    assert "/sharpen/runner/" not in first  # how the runner came to call the agent is no news
    reasons = [each["why_ended"] for each in terminal.value("rollouts", "show", "again")["attempts"]]
    assert reasons == ["RuntimeError: the first try always fails", None]


@pytest.mark.parametrize("name", ["hostile", "failed"])
@pytest.mark.parametrize("color", [False, True])
def test_what_agents_print_cannot_steer_the_terminal(
    terminal: Terminal, name: str, color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if color:
        monkeypatch.setenv("FORCE_COLOR", "1")
    for shown in (terminal.run("rollouts", "show", name, "--spans"), terminal.run("rollouts")):
        assert "\x1b]0;" not in shown
        assert "\x07" not in shown
        assert "\u202e" not in shown
        assert ("\x1b[" in shown) is color  # our own colours only
    whole = terminal.run("rollouts", "show", name)
    assert "[bold red]not bold[/]" in whole
    assert "\\x1b]0;owned\\x07" in whole


def test_unknown_rollouts_and_attempts_are_named_with_the_nearest(terminal: Terminal) -> None:
    terminal.run("rollouts", "show", "ro-hostle", code=3)
    assert "there is no rollout 'ro-hostle': the nearest are ro-hostile" in terminal.said
    terminal.run("rollouts", "show", "ro-", code=3)
    assert "4 rollout" in terminal.said
    assert all(name in terminal.said for name in ("'ro-'", "ro-chatty", "ro-again", "ro-hostile", "ro-failed"))
    terminal.run("rollouts", "show", "chatty", "--attempt", "2", code=3)
    assert "there is no attempt '2'" in terminal.said
    answer = terminal.value("rollouts", "show", "nothing", code=3)
    assert answer["error"]["type"] == "UnknownIdError"


# -- export ------------------------------------------------------------------------------------------


def test_rollouts_are_exported(terminal: Terminal, tmp_path: Path) -> None:
    lines = tmp_path / "good.jsonl"
    shown = terminal.run("rollouts", "export", str(lines), "--reward-min", "0.5")
    assert "2 rollouts" in shown
    assert str(lines) in shown
    assert [json.loads(line)["rollout_id"] for line in lines.read_text().splitlines()] == ["ro-chatty", "ro-again"]
    table = tmp_path / "all.parquet"
    told = terminal.value("rollouts", "export", str(table), "--spans")
    assert told == {"file": str(table), "rollouts": 4, "bytes": table.stat().st_size}
    assert parquet.read_table(table).num_rows == 4


def test_an_export_to_another_format_is_refused(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run("rollouts", "export", str(tmp_path / "x.csv"), code=2)
    assert ".jsonl or .parquet" in terminal.said
    assert list(tmp_path.iterdir()) == []


def many(path: Path, count: int) -> str:
    """A store file with so many rollouts."""

    async def fill() -> None:
        store = SQLiteStore(path)
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(number) for number in range(count)])
        await store.close()

    asyncio.run(fill())
    return str(path)


def test_a_list_shows_50_and_an_export_writes_all(terminal: Terminal, tmp_path: Path) -> None:
    store, lines = many(tmp_path / "many.db", 51), tmp_path / "all.jsonl"
    assert terminal.value("rollouts", "export", str(lines), "--store", store)["rollouts"] == 51
    assert len(lines.read_text().splitlines()) == 51
    assert terminal.value("rollouts", "export", str(lines), "--store", store, "--limit", "7")["rollouts"] == 7
    assert terminal.value("rollouts", "--limit", "0", "export", str(lines), "--store", store)["rollouts"] == 51
    for words in (["rollouts"], ["rollouts", "list"]):
        assert len(terminal.value(*words, "--store", store)["rollouts"]) == 50
    assert len(terminal.value("rollouts", "--limit", "0", "list", "--store", store)["rollouts"]) == 51


def test_an_export_that_cannot_be_written_says_what_was_wanted(terminal: Terminal) -> None:
    """In the folder of the kernel nobody can make a file."""
    error = terminal.value("rollouts", "export", "/proc/all.jsonl", code=1)["error"]["message"]
    assert "'/proc/all.jsonl'" in error
    assert ".tmp" not in error


@pytest.mark.parametrize("word", ["nofile.db", "no/store"])
def test_a_store_that_is_not_there_may_have_been_a_file(terminal: Terminal, word: str) -> None:
    terminal.run("rollouts", "--store", word, code=3)
    assert "store file" in terminal.said
    assert terminal.said.count(repr(word)) == 2  # no such file, and no such run


class Patient(InMemoryLightningStore):
    """Tells of an attempt only when those of all 50 rollouts are asked for."""

    asked = 0

    def __init__(self) -> None:
        super().__init__()
        self.are_all_asked = asyncio.Event()

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        self.asked += 1
        if self.asked == 50:
            self.are_all_asked.set()
        await asyncio.wait_for(self.are_all_asked.wait(), 30)
        return await super().get_latest_attempt(rollout_id)


def test_behind_an_address_the_attempts_of_a_list_are_asked_for_at_once(terminal: Terminal) -> None:
    async def listed() -> dict[str, Any]:
        store = Patient()
        for number in range(50):
            await store.start_rollout(number, worker_id=f"worker-{number}")
        server = LightningStoreServer(store, "127.0.0.1", 0, None)
        await server.start()
        try:
            found: dict[str, Any] = await asyncio.to_thread(
                terminal.value, "rollouts", "list", "--store", server.endpoint
            )
            return found
        finally:
            await server.stop()

    workers = {each["attempt"]["worker_id"] for each in asyncio.run(listed())["rollouts"]}
    assert workers == {f"worker-{number}" for number in range(50)}
