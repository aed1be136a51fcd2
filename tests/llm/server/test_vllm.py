"""vLLM as a child process, played by a small program that speaks its protocol."""

import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from sharpen import ModelEntry
from sharpen.errors import ConfigError, MissingExtraError, PortTakenError, RunError
from sharpen.llm import ModelError
from tests.errors import raises
from tests.llm.internals import VLLMServer

from . import fake_vllm

FAKE = [sys.executable, str(fake_vllm.__file__)]


def make(model: str = "model", **options: Any) -> VLLMServer:
    return VLLMServer(model, **{"name": "m", "command": FAKE, "start_seconds": 30.0, **options})


def told_by(server: VLLMServer) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.base_url}/models").json()
    return found


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    return folder


def test_it_starts_with_its_options_and_ends_with_its_process() -> None:
    with make(options={"max-model-len": 512}) as server:
        told = told_by(server)
        assert (told["model"], told["models"], told["max_model_len"]) == ("model", ["m"], 512)
        assert told["logprobs_mode"] == "processed_logprobs"
        process = server._process
    assert process is not None
    assert process.returncode is not None
    assert not server.is_serving
    server.stop()


def test_adapters_take_over_one_after_another(adapter: Path) -> None:
    with make(lora_rank=8, token="sk-mine") as server:
        assert server.model_entry()["model"] == "m"
        for version, models in ((1, ["m", "m-v1"]), (2, ["m", "m-v1", "m-v2"]), (3, ["m", "m-v2", "m-v3"])):
            server.load_adapter(adapter, version)
            assert told_by(server)["models"] == models
        entry = server.model_entry()
        assert (entry["model"], entry["weights_version"], entry["engine"]) == ("m-v3", "3", "vllm")
        entry["model_name"] = entry.pop("name")
        assert ModelEntry(**entry).upstream_model("m") == "m-v3"


def test_an_adapter_that_vllm_refuses_changes_nothing(adapter: Path) -> None:
    broken = adapter.rename(adapter.with_name("broken"))
    with make(lora_rank=8) as server:
        with raises(RunError, 400):
            server.load_adapter(broken, 1)
        with raises(ModelError, "adapter_config.json"):
            server.load_adapter(broken.parent, 1)
        assert (server.served_name, server.weights_version) == ("m", 0)
    with pytest.raises(ConfigError):
        make().load_adapter(broken, 1)


def test_other_weights_are_taken_by_a_new_process_at_the_same_address() -> None:
    with make() as server:
        before, url = told_by(server), server.base_url
        server.load_model("other", 5)
        after = told_by(server)
        assert server.base_url == url
    assert (after["model"], server.weights_version) == ("other", 5)
    assert after["pid"] != before["pid"]


def test_a_start_that_fails_tells_its_last_words_and_leaves_nothing() -> None:
    server = make("missing")
    with raises(RunError, 1):
        server.start()
    assert not server.is_serving
    with make() as running:
        port = int(running.base_url.split(":")[2].partition("/")[0])
        with raises(PortTakenError, port):
            make(port=port).start()


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with raises(MissingExtraError, "vllm"):
        VLLMServer("model", name="m")


def test_it_is_not_open_to_others_without_a_token() -> None:
    with pytest.raises(ConfigError):
        make(host="0.0.0.0")
