"""Other applications at the address of the store: made where the store is served, when somebody asks for them."""

import asyncio
import contextlib
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sharpen import InMemoryLightningStore, LightningStore, SQLiteStore
from sharpen.execution import ClientServerExecutionStrategy
from tests.errors import raises
from tests.execution.internals import Mount, Served, announce, serve
from tests.store.internals import VARIABLE

GREETER = """
from pathlib import Path

from sharpen.errors import MissingExtraError

Path({sign!r}).touch()


def make(store, *, edit_token, word):
    async def app(scope, receive, send):
        count = (await store.statistics())["total_rollouts"]
        stops = "sharpen.stopping" in scope
        body = f"{{word}} {{scope['root_path']}} {{edit_token}} {{count}} {{stops}}".encode()
        await send({{"type": "http.response.start", "status": 200, "headers": []}})
        await send({{"type": "http.response.body", "body": body}})
    return app


def lacking(store, *, edit_token):
    raise MissingExtraError.of("paint", extra="paint", feature="the picture")
"""


@pytest.fixture
def sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once the application's module has been imported, in whichever process."""
    path = tmp_path / "imported"
    name = f"greeter_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(GREETER.format(sign=str(path)))
    monkeypatch.syspath_prepend(str(tmp_path))
    return path.with_name(name)


@contextlib.asynccontextmanager
async def served(store: LightningStore, *mounts: Mount) -> AsyncIterator[Served]:
    serving = serve(store, managed=None, host="127.0.0.1", port=None, token="secret", mounts=mounts)
    await serving.open(lambda _: None)
    try:
        yield serving
    finally:
        await serving.close()
        await store.close()


async def get(url: str) -> str:
    def ask() -> str:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(ask)


@pytest.mark.parametrize("kind", ["in a process", "in a thread"])
async def test_an_application_is_made_at_the_first_request_where_the_store_is_served(
    kind: str, sign: Path, tmp_path: Path
) -> None:
    store = SQLiteStore(tmp_path / "store.db") if kind == "in a process" else InMemoryLightningStore()
    await store.enqueue_rollout("a task")
    mount = Mount("/greeter", f"{sign.name}:make", "greeter", {"word": "hello"})
    async with served(store, mount) as serving:
        await get(f"{serving.url}/health")
        assert not (tmp_path / "imported").exists()
        assert await get(f"{serving.url}/greeter/page") == "hello /greeter secret 1 True"
        assert (tmp_path / "imported").exists()


async def test_what_lacks_its_packages_says_so_and_the_store_goes_on(sign: Path) -> None:
    mount = Mount("/greeter", f"{sign.name}:lacking", "greeter")
    async with served(InMemoryLightningStore(), mount) as serving:
        with raises(urllib.error.HTTPError, 503) as refused:
            await get(f"{serving.url}/greeter/")
        assert "pip install 'sharpen[paint]'" in refused.value.read().decode()
        assert "ok" in await get(f"{serving.url}/health")


def test_the_token_is_never_logged_but_where_to_find_it(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level("INFO", "sharpen"):
        announce([Mount("/greeter", "a:b", "greeter")], "http://127.0.0.1:1", "secret", Path("/some/file"))
        announce([Mount("/greeter", "a:b", "greeter")], "http://127.0.0.1:1", "secret", None)
    assert "http://127.0.0.1:1/greeter/ (its token is in /some/file)" in caplog.text
    assert "(its token is in SHARPEN_TOKEN)" in caplog.text
    assert "secret" not in caplog.text + "".join(capsys.readouterr())


@pytest.mark.parametrize("given", ["chosen-by-the-user", None])
def test_whoever_looks_at_a_run_finds_its_token(
    given: str | None, sign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both roles here: the store's address, and a token that somebody in another terminal can have."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(VARIABLE, given)
    strategy = ClientServerExecutionStrategy()
    strategy.mounts = [Mount("/greeter", f"{sign.name}:make", "greeter", {"word": "hello"})]
    seen: list[str] = []

    async def look(store: LightningStore, event: object) -> None:
        (file,) = (tmp_path / "state" / "sharpen" / "tokens").glob("*") if given is None else [None]
        token = given if file is None else file.read_text()
        seen.append((await get(f"{client_url(store)}/greeter/")).replace(str(token), "TOKEN"))

    async def idle(store: LightningStore, worker_id: int, event: object) -> None:
        return None

    strategy.execute(look, idle, SQLiteStore(tmp_path / "store.db"))
    assert seen == ["hello /greeter TOKEN 0 True"]
    assert not list((tmp_path / "state").rglob("127*"))


def client_url(store: object) -> str:
    return str(store.url)  # type: ignore[attr-defined]
