"""Addresses of parts that stand elsewhere, and what may be shown of them."""

import pytest

from sharpen.errors import ConfigError
from sharpen.secrets import hidden_password
from tests.components.internals import is_address, resolve_address
from tests.errors import raises


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@db:5432/runs", "postgresql://me:***@db:5432/runs"),
        ("postgresql://me:hun@ter/2?@db/runs?a=b", "postgresql://me:***@db/runs?a=b"),
        ("postgresql:///runs?user=me&password=hunter2&a=b", "postgresql:///runs?user=me&password=***&a=b"),
        ("postgresql://me@db/runs?sslpassword=hunter2", "postgresql://me@db/runs?sslpassword=***"),
        ("redis://:hunter2@db/0", "redis://:***@db/0"),
        ("redis://db:6379/0?prefix=a", "redis://db:6379/0?prefix=a"),
        ("runs/store.db", "runs/store.db"),
    ],
)
def test_the_password_of_a_database_is_hidden_and_nothing_else(url: str, shown: str) -> None:
    assert hidden_password(url) == shown


def test_an_address_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_DATABASE", " postgresql://me:hunter2@db/runs ")
    assert is_address("env:A_DATABASE")
    assert resolve_address("env:A_DATABASE") == "postgresql://me:hunter2@db/runs"
    assert resolve_address("runs/store.db") == "runs/store.db"
    with raises(ConfigError, "NO_SUCH"):
        resolve_address("env:NO_SUCH")


@pytest.mark.parametrize("spec", ["SQLiteStore", "sqlite", "pkg.module.Store", "file.py:Store", None, {"type": "x"}])
def test_a_name_is_no_address(spec: object) -> None:
    assert not is_address(spec)
