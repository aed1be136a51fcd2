"""A client that hangs up ends what it asked for."""

from typing import Any

import httpx
import pytest

from sharpen.llm.engine import Engine
from sharpen.llm.server import EngineServer

from .conftest import NAME, client_of, wait_until

LONG = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}


def test_a_client_that_leaves_a_stream_cancels_its_request(long_engine: Engine, tokenizer: Any) -> None:
    with EngineServer(long_engine, tokenizer, name=NAME) as server, client_of(server) as client:
        stream = client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "hi"}], stream=True, extra_body={"ignore_eos": True}
        )
        next(stream)
        assert long_engine.num_running == 1
        stream.close()
        assert wait_until(lambda: long_engine.num_running == 0, seconds=2.0)


def test_a_client_that_does_not_wait_for_its_answer_cancels_its_request(long_engine: Engine, tokenizer: Any) -> None:
    with EngineServer(long_engine, tokenizer, name=NAME) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.base_url}/chat/completions", json=LONG, timeout=httpx.Timeout(5.0, read=0.2))
        assert wait_until(lambda: long_engine.num_running == 0, seconds=2.0)
        assert long_engine.num_waiting == 0


def test_a_refused_call_leaves_nothing_in_the_engine(server: EngineServer) -> None:
    """The second prompt is too long; the first must not be sampled for nobody."""
    body = {"model": NAME, "prompt": [[5], [5] * 4096], "max_tokens": 200, "ignore_eos": True}
    answer = httpx.post(f"{server.base_url}/completions", json=body)
    assert answer.status_code == 400
    assert server.engine.num_running + server.engine.num_waiting == 0
