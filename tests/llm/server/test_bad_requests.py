"""Requests with values that no sampler can use are refused over HTTP, and those beside them get their answers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from sharpen.llm.server import EngineServer

from ..tiny_models import write_tiny_model
from .conftest import NAME

BAD: list[tuple[str, str]] = [
    ("top_k", "9223372036854775808"),
    ("top_k", "2147483648"),
    ("top_k", "1" + "0" * 400),
    ("top_k", "-2"),
    ("seed", "18446744073709551616"),
    ("seed", "1" + "0" * 30),
    ("temperature", "-1"),
    ("temperature", "1e300"),
    ("temperature", "1e999"),
    ("temperature", "1" + "0" * 400),
    ("top_p", "0"),
    ("top_p", "1e-400"),
    ("n", "0"),
    ("n", "1000000"),
    ("n", "1" + "0" * 30),
    ("max_tokens", "0"),
    ("max_tokens", "-9223372036854775809"),
    ("stop", '""'),
    ("stop", json.dumps(["x" * 100_000])),
    ("stop", json.dumps(["x"] * 1_000)),
    ("stop_token_ids", "[-1]"),
    ("logit_bias", '{"99999999999999999999": 1}'),
    ("logit_bias", '{"5": 1e300}'),
    ("logprobs", "1" + "0" * 30),
]
NOT_JSON = ["NaN", "Infinity", "-Infinity"]


@pytest.fixture(params=["thread", pytest.param("sharpen serve", marks=pytest.mark.slow)])
def base_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "thread":
        server: EngineServer = request.getfixturevalue("server")
        yield server.base_url
        return
    folder = write_tiny_model(tmp_path / "model")
    command = [sys.executable, "-m", "sharpen.cli", "serve", str(folder), "--port", "0", "--name", NAME]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[4]
        finally:
            process.terminate()


def post(base_url: str, body: str) -> httpx.Response:
    return httpx.post(f"{base_url}/completions", content=body, headers={"content-type": "application/json"}, timeout=60)


def asked(place: int) -> str:
    prompt = [5 + place, 6, 7]
    return json.dumps({"prompt": prompt, "max_tokens": 150, "temperature": 0, "ignore_eos": True})


def text_of(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def test_a_bad_value_is_refused_by_name_and_disturbs_nobody(base_url: str) -> None:
    wanted = [text_of(post(base_url, asked(place))) for place in range(4)]
    with ThreadPoolExecutor(8) as pool:
        good = [pool.submit(post, base_url, asked(place)) for place in range(4)]
        bad = [(name, pool.submit(post, base_url, f'{{"prompt": [5], "{name}": {value}}}')) for name, value in BAD]
        broken = [pool.submit(post, base_url, f'{{"prompt": [5], "temperature": {value}}}') for value in NOT_JSON]
        for name, sent in bad:
            answer = sent.result()
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name), answer.text
        for sent in broken:
            assert (sent.result().status_code, sent.result().json()["error"]["code"]) == (400, "malformed_json")
        assert [text_of(sent.result()) for sent in good] == wanted
