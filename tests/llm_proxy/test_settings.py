"""The settings of a gateway: what cannot work is refused when it is made, and no secret is shown."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sharpen import Limits, Price
from sharpen.errors import ConfigError, SharpenError
from sharpen.llm_proxy import LLMProxy
from sharpen.store import InMemoryLightningStore
from tests.errors import raises
from tests.llm_proxy.internals import GatewaySettings, make_settings

MODELS = [{"name": "qwen", "base_url": "http://127.0.0.1:9/v1", "api_key": "sk-hidden"}]


def test_settings_come_back_equal_from_json() -> None:
    settings = make_settings(
        {
            "name": "teacher",
            "token": "secret",
            "model_list": MODELS,
            "limits": Limits(run_cost=1.5),
            "prices": {"qwen": [0.5, 1.5]},
            "mode": "record",
            "record": "/tmp/record.jsonl",
        }
    )
    assert msgspec.json.decode(msgspec.json.encode(settings), type=GatewaySettings) == settings


def test_no_secret_is_shown() -> None:
    settings = make_settings({"token": "tok-hidden", "model_list": MODELS})
    proxy = LLMProxy(model_list=MODELS, token="tok-hidden")
    for shown in (repr(settings), str(settings), repr(proxy), str(dict(settings.__rich_repr__()))):
        assert "hidden" not in shown
        assert "qwen" in shown


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"num_retries": "2"}, ("num_retries", 2)),
        ({"num_retries": -1}, ("num_retries", -1)),
        ({"timeout": 0}, ("timeout", 0)),
        ({"first_byte_timeout": 0}, ("first_byte_timeout", 0)),
        ({"chunk_timeout": -1}, ("chunk_timeout", -1)),
        ({"max_body_bytes": 0}, ("max_body_bytes", 0)),
        ({"timeout": None}, ("timeout", None)),
        ({"timeout": float("inf")}, ("timeout", "inf")),
        ({"strict": "yes"}, ("strict", "yes")),
        ({"mode": "rec"}, ("mode", "rec", "live", "record", "replay")),
        ({"when_paused": "block"}, ("when_paused", "block", "wait", "refuse")),
        ({"record": 5}, ("record", 5)),
        ({"host": 5}, ("host", 5)),
        ({"host": ""}, ("host",)),
        ({"token": 12345}, ("token",)),
        ({"name": "a b"}, ("a b",)),
        ({"store": "sqlite"}, ("store", "sqlite", "InMemoryLightningStore")),
        ({"store": InMemoryLightningStore}, ("store", "InMemoryLightningStore")),
        ({"launch_mode": "asyncio"}, ("launch_mode", "asyncio", "thread", "process")),
        ({"port": 70000}, ("port", 70000)),
        ({"port": "8000"}, ("port", 8000)),
        ({"host": "0.0.0.0"}, ("host", "0.0.0.0")),
        ({"token": "two words"}, ("token",)),
        ({"limits": {"run_coast": 1}}, ("run_coast",)),
        ({"limits": {"run_cost": 0}}, ("run_cost",)),
        ({"prices": {"qwen": (1,)}}, ("qwen",)),
        ({"prices": {"qwen": (-1, 1)}}, ("qwen",)),
        ({"mode": "live", "record": "calls.jsonl"}, ("mode", "live")),
        ({"mode": "replay"}, ("mode",)),
        ({"mode": "record", "replay_rollout": "ro-1"}, ("mode", "record")),
        ({"model_list": [{"base_url": "http://127.0.0.1:9/v1"}]}, (1, "model_list")),
        ({"model_list": {"name": "qwen"}}, ("model_list",)),
        ({"model_list": 3}, ("model_list",)),
        ({"model_list": 0}, ("model_list",)),
        ({"model_list": "qwen"}, ("model_list",)),
        ({"model_list": [{"name": "gpt-4o", "defaults": {"stop": object()}}]}, ("model_list",)),
        ({"redact": 3}, ("redact", 3)),
        ({"litellm_config": {}}, ("LLMProxy", "litellm_config")),
        ({"num_workers": 4}, ("LLMProxy", "num_workers")),
        ({"launcher_args": None}, ("LLMProxy", "launcher_args")),
        ({"middlewares": []}, ("LLMProxy", "middlewares")),
        ({"callbacks": []}, ("LLMProxy", "callbacks")),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(given: dict[str, Any], named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        LLMProxy(**given)


def test_an_unknown_argument_suggests_the_nearest() -> None:
    with raises(TypeError, "model_list"):
        LLMProxy(models_list=[])
    with raises(TypeError, "num_retries"):
        LLMProxy(num_retrys=2)
    with raises(TypeError, "zzz"):
        LLMProxy(zzz=2)


def test_beyond_loopback_a_token_is_enough_also_by_reference() -> None:
    assert LLMProxy(host="0.0.0.0", token="env:NOT_SET_YET").host == "0.0.0.0"
    assert LLMProxy(host="::1").host == "::1"


def test_a_token_that_is_not_in_the_environment_is_an_error_at_the_start() -> None:
    with raises(ConfigError, "SHARPEN_TEST_NO_SUCH"):
        LLMProxy(token="env:SHARPEN_TEST_NO_SUCH").start_sync()


def test_prices_may_be_written_as_pairs_or_as_prices() -> None:
    proxy = LLMProxy(prices={"a": (1, 2), "b": Price(1, 2, 0.5)})
    assert proxy._settings.prices == {"a": [1, 2], "b": [1, 2, 0.5]}


def test_the_record_is_found_also_by_a_process_that_works_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert LLMProxy(mode="record", record="calls.jsonl")._settings.record == str(tmp_path / "calls.jsonl")


@pytest.mark.parametrize("launch_mode", ["thread", "process"])
def test_a_record_without_a_place_is_an_error_at_the_start(launch_mode: Any) -> None:
    proxy = LLMProxy(mode="record", launch_mode=launch_mode)
    with pytest.raises(ConfigError):
        proxy.start_sync()
    assert not proxy.is_running()


def test_a_replay_of_a_rollout_needs_its_store() -> None:
    with pytest.raises(SharpenError):
        LLMProxy(mode="replay", replay_rollout="ro-1").start_sync()


def test_importing_the_room_loads_no_web_server() -> None:
    code = "import sys, sharpen.llm_proxy; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "sharpen.llm_proxy.proxy" in loaded
    assert not [name for name in loaded if name.startswith(("uvicorn", "aiohttp", "opentelemetry.sdk", "litellm"))]
