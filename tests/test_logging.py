"""Levels per room, one handler, nothing touched that belongs to the user's program."""

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharpen.errors import ConfigError
from sharpen.logging import also_to_file, apply_settings, current_settings, is_set_up, setup_logging
from sharpen.secrets import hiding
from tests.dashboard.internals import parse
from tests.errors import raises
from tests.store.internals import new_id

from .logs import forget_logging


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins with a library that nobody has configured, and leaves one behind."""
    monkeypatch.delenv("SHARPEN_LOG", raising=False)
    forget_logging()
    yield
    forget_logging()


def test_importing_configures_nothing() -> None:
    code = (
        "import logging, sharpen, sharpen.logging; logger = logging.getLogger('sharpen'); "
        "print(logger.handlers, logger.level, logging.getLogger().handlers)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] 0 []"


def test_lines_name_their_level_and_room() -> None:
    stream = io.StringIO()
    setup_logging("info", stream=stream)
    logging.getLogger("sharpen.store.client").warning("the server is away")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING store.client: the server is away\n", stream.getvalue()
    )


def test_the_random_part_of_an_attempts_id_is_hidden() -> None:
    stream, attempt_id = io.StringIO(), new_id("at")
    setup_logging("info", stream=stream)
    logging.getLogger("sharpen.runner").info("POST http://h/rollout/ro-1/attempt/%s/v1, %r", attempt_id, attempt_id)
    assert attempt_id not in stream.getvalue()
    assert stream.getvalue().count(attempt_id[:15]) == 2


@pytest.mark.parametrize("secret", ["hush\x1b\x07hush", "hush\r\nhush", "hush\u2028hush"])
def test_a_secret_with_control_characters_is_hidden(secret: str, tmp_path: Path) -> None:
    setup_logging(file=tmp_path / "log")
    with hiding({secret: "X"}):
        logging.getLogger("sharpen.store").info("%s and %r and %s", secret, secret, json.dumps(secret))
    assert "hush" not in (tmp_path / "log").read_text()


def test_the_random_part_of_an_attempt_id_is_hidden_wherever_it_stands(tmp_path: Path) -> None:
    setup_logging(file=tmp_path / "log")
    logging.getLogger("sharpen.store").info("folder_at-%s%s_1", "0" * 12, "feedbeef" * 2)
    assert "feedbeef" not in (tmp_path / "log").read_text()


def test_text_of_an_agent_forges_no_line_and_sends_no_escape(tmp_path: Path) -> None:
    stream, forged = io.StringIO(), "2026-01-01 00:00:00.000 ERROR   store: all is lost"
    setup_logging("info", stream=stream, file=tmp_path / "run.log")
    try:
        raise ValueError(f"no\n{forged}\r{forged}\u2028{forged}\x1b[2J\x9b31m\x7f\u202e")
    except ValueError as error:
        logging.getLogger("sharpen.runner").info("failed: %s", error, exc_info=error)
    for text in (stream.getvalue(), (tmp_path / "run.log").read_text("utf-8")):
        assert not [line for line in text.splitlines() if line.startswith("2026-01-01")]
        assert not re.search("[\r\x1b\x7f-\x9f\u2028\u202e]", text)
        assert r"\x1b[2J" in text
        assert "Traceback" in text
    assert len(parse((tmp_path / "run.log").read_bytes())) == 1


def test_a_room_has_a_level_of_its_own() -> None:
    stream = io.StringIO()
    setup_logging("warning", levels={"store": "debug"}, stream=stream)
    logging.getLogger("sharpen.store.client").debug("heard")
    logging.getLogger("sharpen.runner").info("not heard")
    assert [line.rpartition(" ")[2] for line in stream.getvalue().splitlines()] == ["heard"]


def test_the_variable_is_read_when_nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARPEN_LOG", "warning, store=debug,runner = error")
    setup_logging(stream=io.StringIO())
    settings = current_settings()
    assert settings["level"] == logging.WARNING
    assert settings["levels"] == {"store": logging.DEBUG, "runner": logging.ERROR}


def test_what_is_given_counts_more_than_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARPEN_LOG", "debug")
    setup_logging("error", stream=io.StringIO())
    assert current_settings()["level"] == logging.ERROR


def test_the_level_is_info_when_nobody_says_anything() -> None:
    setup_logging(stream=io.StringIO())
    assert current_settings()["level"] == logging.INFO


def test_calling_it_twice_doubles_no_line() -> None:
    stream = io.StringIO()
    setup_logging("info", stream=stream)
    setup_logging("info", stream=stream)
    logging.getLogger("sharpen.trainer").info("once")
    assert stream.getvalue().count("once") == 1


def test_the_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup_logging("info", levels={"store": "debug"}, stream=first)
    setup_logging("info", stream=second)
    logging.getLogger("sharpen.store").debug("not heard")
    logging.getLogger("sharpen.store").info("heard")
    assert first.getvalue() == ""
    assert "not heard" not in second.getvalue()
    assert "heard" in second.getvalue()


def test_the_root_logger_stays_as_it_is() -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    setup_logging("debug", stream=io.StringIO())
    assert (root.level, list(root.handlers)) == before


def test_a_program_that_shows_its_log_on_the_screen_sees_no_line_twice() -> None:
    code = (
        "import logging; logging.basicConfig(format='mine %(message)s'); "
        "from sharpen.logging import setup_logging; setup_logging('info'); "
        "logging.getLogger('sharpen.store').info('words')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "mine words\n"


@pytest.mark.parametrize("level", ["loud", -1, True, 1.5])
def test_an_unknown_level_is_refused(level: object) -> None:
    with raises(ConfigError, f"{level!r}"):
        setup_logging(level)  # type: ignore[arg-type]


def test_an_unknown_room_is_refused_with_the_nearest() -> None:
    with raises(ConfigError, "stor", "store"):
        setup_logging(levels={"stor": "debug"})


def test_an_error_in_the_variable_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARPEN_LOG", "info,store=loud")
    with raises(ConfigError, "SHARPEN_LOG", "info,store=loud", "loud"):
        setup_logging()


def test_a_refused_call_changes_nothing() -> None:
    setup_logging("error", stream=io.StringIO())
    before = current_settings()
    with pytest.raises(ConfigError):
        setup_logging("info", file="/no/such/folder/run.log")
    assert current_settings() == before


def test_a_file_is_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    file.write_text("what was there\n", encoding="utf-8")
    setup_logging("info", file=file, stream=io.StringIO())
    logging.getLogger("sharpen.runs").info("more")
    assert [line.rpartition(": ")[2] for line in file.read_text("utf-8").splitlines()] == ["what was there", "more"]


def test_one_more_file_comes_and_goes(tmp_path: Path) -> None:
    setup_logging("info", stream=io.StringIO())
    log = logging.getLogger("sharpen.trainer")
    with also_to_file(tmp_path / "run.log"):
        setup_logging("info", stream=io.StringIO())  # a user's own call in between
        log.info("inside")
    log.info("outside")
    assert [line.rpartition(": ")[2] for line in (tmp_path / "run.log").read_text("utf-8").splitlines()] == ["inside"]


def test_a_child_logs_as_its_parent_does_and_says_who_it_is(tmp_path: Path) -> None:
    setup_logging("warning", levels={"runner": "info"}, file=tmp_path / "run.log", stream=io.StringIO())
    code = (
        "import json, logging, sys; from sharpen.logging import apply_settings; "
        "apply_settings(json.loads(sys.argv[1]), role='runner-3'); "
        "logging.getLogger('sharpen.runner').info('in the child'); logging.getLogger('sharpen.store').info('silent')"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, json.dumps(current_settings())], capture_output=True, text=True, check=True
    )
    written = (tmp_path / "run.log").read_text("utf-8")
    assert re.fullmatch(r"\S+ \S+ INFO    \[runner-3 \d+\] runner: in the child\n", written)
    assert child.stderr == written


def test_children_of_a_silent_parent_are_silent() -> None:
    assert not is_set_up()
    apply_settings(current_settings(), role="runner-0")
    assert not is_set_up()


def test_lines_of_several_processes_stay_whole(tmp_path: Path) -> None:
    code = (
        "import logging, sys; from sharpen.logging import setup_logging; setup_logging('info', file=sys.argv[1]); "
        "[logging.getLogger('sharpen.store').info('x' * 200) for _ in range(300)]"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run.log")]
    children = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    lines = (tmp_path / "run.log").read_text("utf-8").splitlines()
    assert len(lines) == 900
    assert all(line.endswith("store: " + "x" * 200) for line in lines)


def test_a_log_on_a_full_disk_is_said_once_and_breaks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging()
    with also_to_file("/dev/full"):
        for number in range(5):
            logging.getLogger("sharpen.store").warning("line %d", number)
    shown = capsys.readouterr().err
    assert [f"line {number}" in shown for number in range(5)] == [True] * 5
    assert shown.count("/dev/full") == 1
    assert "Traceback" not in shown
