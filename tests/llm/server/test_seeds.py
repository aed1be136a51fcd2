"""Seeds that follow from who asks what."""

from typing import Any

import httpx
import pytest

from sharpen.llm.engine import Engine
from sharpen.llm.server import EngineServer
from tests.llm.internals import CallSeeds, server_requests as seeds

from .conftest import NAME

PROMPT, OTHER = b"a" * 16, b"b" * 16


def seed_of(book: CallSeeds, rollout: str = "r", attempt: str = "at", prompt: bytes = PROMPT) -> int:
    return book.next(rollout_id=rollout, attempt_id=attempt, prompt_digest=prompt)


def test_a_run_that_is_repeated_gets_the_same_seeds() -> None:
    first, again = CallSeeds(1), CallSeeds(1)
    told = [seed_of(first), seed_of(first, prompt=OTHER), seed_of(first), seed_of(first, "r2", "at2")]
    # Rollouts call in another order, and in attempts of other names.
    other = [seed_of(again, "r2", "x2"), seed_of(again, attempt="x"), seed_of(again, attempt="x")]
    assert other == [told[3], told[0], told[2]]
    assert seed_of(again, attempt="x", prompt=OTHER) == told[1]


def test_seeds_differ_by_server_rollout_prompt_and_turn() -> None:
    book = CallSeeds(1)
    told = [seed_of(book) for _ in range(4)]
    told += [seed_of(book, "r2", "at2"), seed_of(book, prompt=OTHER), seed_of(CallSeeds(2))]
    assert len(set(told)) == len(told)
    assert all(0 <= each < 2**64 for each in told)


def test_the_name_of_a_run_has_no_say_where_it_is_known() -> None:
    first, second = CallSeeds(1, "run1-"), CallSeeds(1, "run2-")
    assert seed_of(first, "run1-s0-t0-0") == seed_of(second, "run2-s0-t0-0") == seed_of(CallSeeds(1), "s0-t0-0")


def test_rollout_ids_of_any_letters_arrive(model: Any, tokenizer: Any) -> None:
    """The gateway quotes them, since headers hold few letters."""
    told = []
    for prefix, header in (("l\u00e4uf-", "l%C3%A4uf-0"), ("", "0")):
        engine = Engine(model, tokenizer, max_batch=8, max_tokens=1024)
        with EngineServer(engine, tokenizer, name=NAME, seed=3, rollout_prefix=prefix) as server:
            told.append(_said(server, {"x-sharpen-rollout-id": header, "x-sharpen-attempt-id": "a"}))
    assert told[0] == told[1]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "MAX_COUNTS", 2)
    book = CallSeeds(1)
    first = seed_of(book)
    for name in ("b", "c"):
        seed_of(book, attempt=name)
    assert seed_of(book) == first  # it was forgotten, and counts from the beginning


def test_an_agent_that_asks_again_gets_another_answer_and_a_repeated_rollout_the_same(
    model: Any, tokenizer: Any
) -> None:
    def played(server_seed: int, order: list[str]) -> dict[str, list[str]]:
        engine, told = Engine(model, tokenizer, max_batch=8, max_tokens=1024), {}
        with EngineServer(engine, tokenizer, name=NAME, seed=server_seed) as server:
            for rollout in order:
                headers = {"x-sharpen-rollout-id": rollout, "x-sharpen-attempt-id": f"{rollout}-1"}
                told.setdefault(rollout, []).append(_said(server, headers))
        return told

    first = played(3, ["a", "a", "b", "b"])
    assert len({text for texts in first.values() for text in texts}) == 4
    assert played(3, ["b", "a", "b", "a"]) == first
    assert played(4, ["a"])["a"][0] != first["a"][0]


def test_a_seed_of_the_request_wins(model: Any, tokenizer: Any) -> None:
    engine = Engine(model, tokenizer, max_batch=8, max_tokens=1024)
    with EngineServer(engine, tokenizer, name=NAME, seed=3) as server:
        assert _said(server, {}, seed=9) == _said(server, {}, seed=9) != _said(server, {})


def _said(server: EngineServer, headers: dict[str, str], **fields: Any) -> str:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16, "ignore_eos": True, **fields}
    answer = httpx.post(f"{server.base_url}/chat/completions", json=body, headers=headers)
    return str(answer.json()["choices"][0]["message"]["content"])
