"""A server of a tiny model that the tests of a module share, and a client of it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from openai import OpenAI

from sharpen.llm.engine import Engine
from sharpen.llm.server import EngineServer

from ..engine.tiny import build
from .models import chat_tokenizer

NAME = "tiny"


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return chat_tokenizer()


@pytest.fixture(scope="session")
def model(tokenizer: Any) -> Any:
    """No test changes it."""
    return build("Llama", vocab=len(tokenizer))


@pytest.fixture
def engine(model: Any, tokenizer: Any) -> Engine:
    """Not started."""
    return Engine(model, tokenizer, max_batch=8, max_tokens=1024)


@pytest.fixture
def long_engine(tokenizer: Any) -> Engine:
    """Of a model with a long window: an answer that may fill it is under way for a while. Not started."""
    model = build("Llama", vocab=len(tokenizer), max_position_embeddings=8192)
    return Engine(model, tokenizer, max_batch=8, max_tokens=8192)


@pytest.fixture(scope="module")
def server(model: Any, tokenizer: Any) -> Iterator[EngineServer]:
    torch.set_num_threads(1)
    with EngineServer(Engine(model, tokenizer, max_batch=8, max_tokens=2048), tokenizer, name=NAME) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: EngineServer) -> Iterator[OpenAI]:
    with client_of(server) as opened:
        yield opened


def client_of(server: EngineServer, **options: Any) -> OpenAI:
    return OpenAI(base_url=server.base_url, **{"api_key": "none", "max_retries": 0, **options})


def wait_until(condition: Callable[[], Any], seconds: float = 20.0) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
