"""Parts of a run that are named by their address."""

from pathlib import Path

import pytest

from sharpen import InMemoryLightningStore, LightningStoreClient, LightningStoreServer, SQLiteStore
from sharpen.errors import ConfigError, InvalidInputError
from sharpen.llm_proxy import LLMProxyClient
from sharpen.trainer import Trainer
from tests.store.internals import left_in_file, token_file


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("SHARPEN_TOKEN", "SHARPEN_GATEWAY_TOKEN"):
        monkeypatch.delenv(name, raising=False)


async def test_a_store_server_is_found_with_the_token_that_it_left() -> None:
    server = LightningStoreServer(InMemoryLightningStore(), token="a-token")
    await server.start()
    try:
        with left_in_file(token_file("127.0.0.1", server.port or 0), "a-token"):
            store = Trainer(store=server.endpoint).store
        assert isinstance(store, LightningStoreClient)
        assert (await store.statistics())["total_rollouts"] == 0
        await store.close()
    finally:
        await server.stop()


async def test_a_store_may_stand_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_STORE", f"sqlite:///{tmp_path}/store.db")
    store = Trainer(store="env:A_STORE").store
    assert isinstance(store, SQLiteStore)
    assert store.path == tmp_path / "store.db"
    await store.close()


def test_a_gateway_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_GATEWAY", "http://10.0.0.7:4749/")
    gateway = Trainer(store="memory", llm_proxy="env:A_GATEWAY").llm_proxy
    assert isinstance(gateway, LLMProxyClient)
    assert gateway.url == "http://10.0.0.7:4749"


@pytest.mark.parametrize("url", ["http://me:hunter2@h:x", "mysql://me:hunter2@db/runs", "env:NO_SUCH_VARIABLE"])
def test_an_address_that_leads_nowhere_is_refused_without_its_password(url: str) -> None:
    with pytest.raises((ConfigError, InvalidInputError)) as caught:
        _ = Trainer(store=url).store
    assert "hunter2" not in str(caught.value)
