"""Behind the gateway: what was sampled reaches the store, and from there the samples of training."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from openai import OpenAI

from sharpen import InMemoryLightningStore, LlmProxyTraceToTriplet
from sharpen.llm.engine import Engine
from sharpen.llm.server import EngineServer
from sharpen.llm_proxy import LLMProxy
from sharpen.types import AttemptedRollout, Triplet
from tests.errors import raises

from .conftest import NAME, wait_until

HELLO = [{"role": "user", "content": "How many clips?"}]
Attempt = tuple[OpenAI, Callable[[], list[Triplet]]]


@contextmanager
def gateway_to(server: EngineServer, **entry: Any) -> Iterator[Callable[..., Attempt]]:
    """Each call begins a rollout: a client of its own, and the triplets of what it asked."""
    store = InMemoryLightningStore()
    listed = {"name": NAME, "base_url": server.base_url, "engine": "sharpen", **entry}
    proxy = LLMProxy(model_list=[listed], store=store, launch_mode="thread")
    proxy.start_sync()

    def attempt(rollout_id: str | None = None) -> Attempt:
        rollout: AttemptedRollout = asyncio.run(store.start_rollout("task", rollout_id=rollout_id))
        place = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        url = proxy.as_resource(**place, model=NAME).endpoint
        adapter = LlmProxyTraceToTriplet()
        client = OpenAI(base_url=url, api_key="none", max_retries=0)
        return client, lambda: adapter.adapt(asyncio.run(store.query_spans(rollout.rollout_id)))

    try:
        yield attempt
    finally:
        proxy.stop_sync()


@pytest.mark.parametrize("stream", [False, True])
def test_ids_log_probabilities_and_versions_survive_the_gateway(server: EngineServer, stream: bool) -> None:
    with gateway_to(server) as attempt:
        client, triplets = attempt()
        asked: dict[str, Any] = {"model": NAME, "messages": HELLO, "max_tokens": 10, "seed": 1}
        answer = client.chat.completions.create(**asked, temperature=0.5, top_p=0.9, stream=stream)
        if stream:
            assert "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        client.completions.create(model=NAME, prompt="Natalia", max_tokens=4, stream=False)
        chat, completion = triplets()
        direct = OpenAI(base_url=server.base_url, api_key="none").chat.completions.create(
            **asked, temperature=0.5, top_p=0.9, logprobs=True, extra_body={"return_token_ids": True}
        )
    (choice,) = direct.choices
    assert chat.prompt["token_ids"] == direct.prompt_token_ids
    assert chat.response["token_ids"] == choice.token_ids
    assert chat.response["logprobs"] == pytest.approx([each.logprob for each in choice.logprobs.content], abs=1e-4)
    told = {name: chat.metadata.get(name) for name in ("weights_version", "finish_reason", "temperature", "top_p")}
    expected = {"weights_version": "0", "finish_reason": choice.finish_reason, "temperature": 0.5, "top_p": 0.9}
    assert told == expected
    assert "weights_versions" not in chat.metadata
    assert len(completion.response["logprobs"]) == len(completion.response["token_ids"]) > 0


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_over_a_change_of_weights_has_a_version_for_each_token_in_its_triplet(
    long_engine: Engine, tokenizer: Any, stream: bool
) -> None:
    asked: dict[str, Any] = {"model": NAME, "messages": HELLO, "max_tokens": 200, "extra_body": {"ignore_eos": True}}
    with (
        EngineServer(long_engine, tokenizer, name=NAME) as server,
        gateway_to(server) as attempt,
        ThreadPoolExecutor() as pool,
    ):
        client, triplets = attempt()
        asking = pool.submit(lambda: list(client.chat.completions.create(**asked, stream=stream)))
        assert wait_until(lambda: long_engine.num_running)
        long_engine.update_weights(1)
        asking.result()
        (triplet,) = triplets()
    versions = triplet.metadata["weights_versions"]
    assert len(versions) == len(triplet.response["token_ids"]) == 200
    assert (versions[0], versions[-1], versions) == ("0", "1", sorted(versions))
    assert triplet.metadata["weights_version"] == "0"


def test_the_temperature_of_the_model_list_is_that_of_the_triplet(server: EngineServer) -> None:
    with gateway_to(server, defaults={"temperature": 0.25}) as attempt:
        client, triplets = attempt()
        client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=2)  # type: ignore[arg-type]
        client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=2, temperature=0)  # type: ignore[arg-type]
        assert [triplet.metadata["temperature"] for triplet in triplets()] == [0.25, 0]


def test_rollouts_that_are_repeated_through_the_gateway_sample_the_same(model: Any, tokenizer: Any) -> None:
    def played(order: list[str]) -> dict[str, list[list[int]]]:
        engine, told = Engine(model, tokenizer, max_batch=8, max_tokens=1024), {}
        with EngineServer(engine, tokenizer, name=NAME, seed=1) as server, gateway_to(server) as attempt:
            for rollout_id in order:
                client, triplets = attempt(rollout_id)
                for _ in range(2):
                    client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=12)  # type: ignore[arg-type]
                told[rollout_id] = [triplet.response["token_ids"] for triplet in triplets()]
        return told

    first = played(["key-s1-t0-0", "key-s1-t0-1"])
    assert len({tuple(ids) for lists in first.values() for ids in lists}) == 4
    assert played(["key-s1-t0-1", "key-s1-t0-0"]) == first


def test_what_the_server_refuses_reaches_the_agent_in_its_words(server: EngineServer) -> None:
    with gateway_to(server) as attempt:
        client, triplets = attempt()
        with raises(Exception, 256):
            client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "clips " * 500}])
        assert triplets() == []
