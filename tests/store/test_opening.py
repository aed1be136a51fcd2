"""A database URL opens the store that it names, and a wrong one is refused in words."""

import os
import pickle
import subprocess
import sys

import pytest
from rich.pretty import pretty_repr as rich_repr

from sharpen.errors import InvalidInputError, MissingExtraError
from sharpen.store import InMemoryLightningStore, SQLiteStore
from tests.errors import raises
from tests.store.internals import DatabaseAddress, ServerAddress, address_of, open_url

from .databases import in_server


@pytest.mark.parametrize("scheme", ["", "sqlite:///", "SQLITE:///"])
async def test_a_path_is_that_of_a_file(tmp_path, scheme):
    store = open_url(f"{scheme}{tmp_path}/store.db", synchronous="full")
    assert isinstance(store, SQLiteStore)
    await store.close()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("postgrsql://me:hush@host/db", ("postgresql://",)),
        ("redi://:hush@host", ("redis://",)),
        ("mysql://me:hush@host", ("sqlite:///PATH", "postgresql://", "redis://")),
        ("http://me:hush@host", ()),
    ],
)
def test_an_unknown_scheme_is_refused_without_showing_the_password(url, named):
    with raises(InvalidInputError, *named) as refused:
        open_url(url)
    assert "hush" not in str(refused.value)


def test_an_address_is_shown_without_its_secrets():
    for address in (DatabaseAddress("postgresql://me:hush@host/db"), ServerAddress("http://localhost:1", "hush")):
        assert "hush" not in repr(address)
        assert "hush" not in rich_repr(address)


class Forwarding:
    """A store of the user's own that passes everything on, and so counts what passes."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)


class Named(InMemoryLightningStore):
    """A store of the user's own with an attribute of that name."""

    address = "tcp://elsewhere"


def test_a_store_that_does_not_say_its_address_has_none(tmp_path):
    store = SQLiteStore(tmp_path / "store.db")
    assert address_of(store) == store.address()
    assert address_of(Forwarding(store)) is None
    assert address_of(Named()) is None


def test_an_option_of_files_is_refused_for_a_server():
    with raises(InvalidInputError, "synchronous"):
        open_url("postgresql://host/db", synchronous="full")


def test_files_are_told_from_servers():
    urls = ("store.db", "sqlite:///a.db", "postgres://h", "REDISS://h")
    assert [DatabaseAddress(url).is_file for url in urls] == [True, True, False, False]


async def test_the_address_of_a_store_opens_it_in_another_process(tmp_path):
    store = SQLiteStore(tmp_path / "store.db", busy_seconds=3)
    rollout = await store.enqueue_rollout({"n": 1})
    opened = pickle.loads(pickle.dumps(store.address())).open()
    assert (await opened.get_rollout_by_id(rollout.rollout_id)) == rollout
    assert (opened.store_id, opened.expires_attempts) == (store.store_id, False)
    await opened.close()
    await store.close()


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_a_url_opens_one_part_of_a_server(request, kind):
    server = request.getfixturevalue(kind)
    one, other = in_server(server), in_server(server)
    store = one.open()
    rollout = await store.enqueue_rollout("task")
    await store.close()
    for database, found in ((one, [rollout.rollout_id]), (other, [])):
        store = database.open()
        assert [each.rollout_id for each in await store.query_rollouts()] == found
        await store.close()


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_a_scheme_may_be_written_in_capital_letters(request, kind):
    scheme, _, rest = in_server(request.getfixturevalue(kind)).url.partition("://")
    store = open_url(f"{scheme.upper()}://{rest}")
    assert (await store.enqueue_rollout("task")).input == "task"
    await store.close()


def test_a_server_of_a_wrong_database_ends_with_the_reason_and_without_the_password():
    environment = {**os.environ, "SHARPEN_DATABASE_URL": "redi://:hush@host"}
    served = subprocess.run(
        [sys.executable, "-m", "sharpen.store"], env=environment, capture_output=True, text=True, check=False
    )
    assert served.returncode == 1
    assert "Did you mean 'redis://'" in served.stderr
    assert "hush" not in served.stderr


@pytest.mark.parametrize(
    ("url", "package", "extra"), [("postgresql://h/d", "psycopg", "postgres"), ("redis://h/0", "redis", "redis")]
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, url: str, package: str, extra: str):
    for name in [name for name in sys.modules if name.split(".")[0] == package or f"sharpen.store.{extra}" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with raises(MissingExtraError, package, f"sharpen[{extra}]"):
        open_url(url)
