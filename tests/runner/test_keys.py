"""Keys are read where the agent runs, and one that is not there is pointed out."""

import pytest

from sharpen import LLM
from tests.runner.internals import with_keys

URL = "http://127.0.0.1:1/v1"


def test_a_key_that_is_here_is_read(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("KEY_THAT_IS_HERE", "a secret")
    found = with_keys({"llm": LLM(URL, "m", api_key="env:KEY_THAT_IS_HERE"), "open": LLM(URL, "m")})
    assert [each.api_key for each in found.values()] == ["a secret", None]  # type: ignore[union-attr]
    assert not caplog.records


def test_a_key_that_is_not_here_is_told_once_by_the_name_of_its_variable(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        found = with_keys({"llm": LLM(URL, "m", api_key="env:KEY_OF_NOBODY")})
    assert found["llm"].api_key == "env:KEY_OF_NOBODY"  # type: ignore[union-attr]
    (told,) = caplog.messages
    assert "'llm'" in told
    assert "KEY_OF_NOBODY" in told
