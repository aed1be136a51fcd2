"""What is written down about a call, and that nothing of it can spoil the answer."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sharpen.semconv import SHARPEN_LLM_EXCHANGE, LightningLLMAttributes
from sharpen.store import InMemoryLightningStore
from sharpen.types import AttemptedRollout
from tests.llm_proxy.internals import (
    Books,
    Budget,
    Call,
    Gateway,
    Only,
    Passage,
    Place,
    Recorder,
    RecordFile,
    Redaction,
    Refusal,
    Service,
    WrittenRecord,
    recording_exchanges as exchanges,
)

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
SAID = b'{"id": "c1", "model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}'  # noqa: E501


class Model:
    name = "m at nowhere"

    async def send(self, call: Call) -> Any:
        raise NotImplementedError


class Head:
    status = 200
    headers = (("content-type", "application/json"),)


@pytest.fixture
async def store() -> AsyncIterator[InMemoryLightningStore]:
    opened = InMemoryLightningStore()
    yield opened
    await opened.close()


@pytest.fixture
async def rollout(store: InMemoryLightningStore) -> AttemptedRollout:
    return await store.start_rollout("task")


def _books(store: InMemoryLightningStore, **options: Any) -> Books:
    return Books(Budget(None, None, store), Recorder(store), Only(Model()), **options)


async def _opened(books: Books, rollout: AttemptedRollout | None) -> Passage:
    place = None if rollout is None else Place(rollout.rollout_id, rollout.attempt.attempt_id)
    request = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    passage = books.open(Call("call-1", "chat", place, BODY, request, {}))
    assert await books.budget.admit(passage.call) is None
    return passage


async def _answered(books: Books, rollout: AttemptedRollout | None) -> Passage:
    passage = await _opened(books, rollout)
    head: Any = Head()
    passage.begin(Model(), head)
    passage.feed(SAID)
    return passage


async def test_a_call_is_written_down_once_however_often_it_ends(
    store: InMemoryLightningStore, rollout: AttemptedRollout
) -> None:
    books = _books(store)
    passage = await _answered(books, rollout)
    await books.note(passage)
    await books.note(passage, error="the client hung up")
    (span,) = await store.query_spans(rollout.rollout_id)
    totals = books.budget.totals()
    assert span.status.status_code == "OK"
    assert (totals.calls, totals.errors, totals.input_tokens, totals.output_tokens) == (1, 0, 3, 2)
    assert span.attributes[LightningLLMAttributes.UPSTREAM] == "m at nowhere"
    assert span.attributes[LightningLLMAttributes.TIME_TO_FIRST_TOKEN] >= 0


async def test_a_call_that_broke_off_keeps_what_came(store: InMemoryLightningStore, rollout: AttemptedRollout) -> None:
    books = _books(store)
    passage = await _opened(books, rollout)
    await books.note(passage, error="the upstream broke off")
    (span,) = await store.query_spans(rollout.rollout_id)
    assert span.status.description == "the upstream broke off"
    assert "hello" in span.attributes["gen_ai.input.messages"]
    assert books.budget.totals().errors == 1


@pytest.mark.parametrize(("code", "spans"), [("paused", 1), ("unknown_attempt", 0), ("store_unavailable", 0)])
async def test_a_refusal_is_a_span_where_it_can_be_one(
    store: InMemoryLightningStore, rollout: AttemptedRollout, code: str, spans: int
) -> None:
    books = _books(store)
    passage = await _opened(books, rollout)
    await books.note_refusal(passage, Refusal(429, code, "not now"))
    found = await store.query_spans(rollout.rollout_id)
    assert [span.attributes[LightningLLMAttributes.REFUSED] for span in found] == [code] * spans
    assert (books.budget.totals().calls, books.budget.totals().refused) == (0, 1)


async def test_an_exchange_without_an_attempt_is_in_the_record_alone(
    store: InMemoryLightningStore, tmp_path: Path
) -> None:
    with RecordFile(tmp_path / "calls.jsonl") as record:
        books = _books(store, record=record)
        await books.note(await _answered(books, None))
    (exchange,) = WrittenRecord(tmp_path / "calls.jsonl")
    assert (exchange.request.encode(), exchange.body, exchange.rollout_id) == (BODY, SAID, None)


@pytest.mark.parametrize("header", ["x-sharpen-weights-version", "x-weights-version"])
async def test_the_version_of_the_weights_is_read_from_either_header(
    store: InMemoryLightningStore, rollout: AttemptedRollout, header: str
) -> None:
    books = _books(store)
    passage = await _opened(books, rollout)
    head: Any = Head()
    head.headers = (*Head.headers, (header, "8"))
    passage.begin(Model(), head)
    passage.feed(SAID)
    await books.note(passage)
    (span,) = await store.query_spans(rollout.rollout_id)
    assert span.attributes[LightningLLMAttributes.WEIGHTS_VERSION] == "8"


@pytest.mark.parametrize("has_file", [True, False])
async def test_a_redaction_that_takes_parts_of_exchanges_away_is_told_once(
    store: InMemoryLightningStore,
    rollout: AttemptedRollout,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    has_file: bool,
) -> None:
    def without_request(attributes: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in attributes.items() if name != "sharpen.llm.exchange.request"}

    with RecordFile(tmp_path / "calls.jsonl") as record:
        books = _books(
            store, record=record if has_file else None, keeps_exchanges=True, redaction=Redaction(without_request)
        )
        for _ in range(2):
            await books.note(await _answered(books, rollout))
    assert len(WrittenRecord(tmp_path / "calls.jsonl")) == 0
    assert caplog.text.count("cannot be replayed") == 1


async def test_a_record_that_cannot_be_written_loses_no_span(
    store: InMemoryLightningStore, rollout: AttemptedRollout, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = RecordFile(tmp_path / "calls.jsonl")
    record.close()
    books = _books(store, record=record)
    await books.note(await _answered(books, rollout))
    assert len(await store.query_spans(rollout.rollout_id)) == 1
    assert "is missing in the record" in caplog.text


async def test_a_call_that_cannot_be_written_down_is_told_in_the_log(
    store: InMemoryLightningStore, rollout: AttemptedRollout, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(attributes: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("a part of ours")

    books = _books(store, redaction=broken)
    await books.note(await _answered(books, rollout))
    await books.note_refusal(await _opened(books, rollout), Refusal(429, "paused", "not now"))
    assert caplog.text.count("could not be recorded") == 2


async def test_an_exchange_that_is_too_long_is_left_out_and_its_answer_is_recorded_all_the_same(
    store: InMemoryLightningStore,
    rollout: AttemptedRollout,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchanges, "MAX_TAPE_BYTES", 1000)
    path = tmp_path / "record.jsonl"
    with RecordFile(path) as record:
        books = _books(store, record=record)
        passage = await _opened(books, rollout)
        passage.begin(Model(), Head())
        passage.feed(b" " * 2000)
        passage.feed(SAID)
        await books.note(passage)
        await books.note(await _answered(books, rollout))
    first, second = await store.query_spans(rollout.rollout_id)
    assert first.status.status_code == second.status.status_code == "OK"
    assert not [name for name in first.attributes if name.startswith(SHARPEN_LLM_EXCHANGE)]
    assert [name for name in second.attributes if name.startswith(SHARPEN_LLM_EXCHANGE)]
    assert len(WrittenRecord(path)) == 1
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert first.attributes[LightningLLMAttributes.CALL_ID] in caplog.text


async def test_calls_that_never_reached_the_store_are_counted_and_told(
    store: InMemoryLightningStore, rollout: AttemptedRollout, caplog: pytest.LogCaptureFixture
) -> None:
    books = Books(Budget(None, None, store), Recorder(store, max_bytes=1), Only(Model()))
    await books.note(await _answered(books, rollout))
    assert Service(Gateway(choice=Only(Model()), books=books)).look().totals.lost == 1
    await books.aclose()
    assert "1 calls are missing in the store" in caplog.text
