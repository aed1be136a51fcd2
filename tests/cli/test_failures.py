"""Failures say what to do next."""

import asyncio

import pytest

from sharpen import InMemoryLightningStore, LightningStoreServer
from sharpen.cli import main


async def test_a_wrong_token_names_the_variable_it_belongs_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = LightningStoreServer(InMemoryLightningStore(), token="right")
    await server.start()
    monkeypatch.setenv("SHARPEN_TOKEN", "wrong")
    try:
        code = await asyncio.to_thread(main, ["rollouts", "list", "--store", server.endpoint])
    finally:
        await server.close()
    said = capsys.readouterr().err
    assert code == 1
    assert "the token is missing or wrong" in said
    assert "Set SHARPEN_TOKEN to the token of that store" in said
