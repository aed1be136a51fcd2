"""Transcripts of rollouts that really happened."""

from typing import Any

import pytest
from openai import OpenAI

from sharpen import (
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    operation,
    reward,
    rollout,
)
from sharpen.errors import UnknownIdError
from sharpen.store import InMemoryLightningStore
from sharpen.types import LLM, Attempt, Rollout, RolloutConfig, Span, TraceStatus
from tests.archive.internals import Entry, Message, ToolCall, Transcript, read_transcript, transcript_of, why_ended
from tests.errors import raises

from ..llm_proxy.replies import Fault, Reply
from .rollout_scenes import CHATTY_REPLIES, TWICE, WEATHER, ask, chatty, play, scene


def calls_of(transcript: Transcript) -> list[Entry]:
    return [entry for entry in transcript.entries if entry.kind == "call"]


def said(messages: list[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


_read: dict[str, Transcript] = {}


async def of_chatty() -> Transcript:
    """Read once: several tests look at the same rollout."""
    if "chatty" not in _read:
        store = InMemoryLightningStore()
        async with scene(store, *CHATTY_REPLIES, prices={"scripted": (1.0, 2.0)}):
            done = await play(store, chatty, "Weather in Rome?")
        _read["chatty"] = await read_transcript(store, done.rollout_id)
    return _read["chatty"]


async def of_talkative() -> Transcript:
    if "talkative" not in _read:
        store = InMemoryLightningStore()
        async with scene(store):
            done = await play(store, talkative, "")
        _read["talkative"] = await read_transcript(store, done.rollout_id)
    return _read["talkative"]


# -- conversations -----------------------------------------------------------------------------------


async def test_a_call_shows_only_what_is_new_in_it() -> None:
    first, second, third = calls_of(await of_chatty())
    assert said(first.messages) == [("system", "Be brief."), ("user", "Weather in Rome?")]
    assert (second.messages, second.num_repeated) == ([], 3)
    assert (said(third.messages), third.num_repeated) == ([("user", "thanks")], 5)
    assert [call.answer.text for call in (second, third) if call.answer] == ["It is warm.", "You are welcome."]
    assert [call.turn for call in (first, second, third)] == [1, 2, 3]


async def test_a_tool_call_stands_with_its_result() -> None:
    first = calls_of(await of_chatty())[0]
    assert first.answer is not None
    assert first.tool_calls == first.answer.tool_calls
    [call] = first.tool_calls
    assert (call.name, call.arguments.replace(" ", ""), call.result) == ("weather", '{"city":"Rome"}', "21 degrees")


async def test_what_calls_took_is_added_up() -> None:
    transcript = await of_chatty()
    each = [call.usage for call in calls_of(transcript) if call.usage is not None]
    assert transcript.usage.calls == len(each) == 3
    assert transcript.usage.input_tokens == sum(usage.input_tokens for usage in each) > 0
    assert transcript.usage.cost == pytest.approx(sum(usage.cost or 0.0 for usage in each))
    assert (transcript.usage.cost or 0.0) > 0
    assert transcript.usage.seconds > 0


@rollout
def forgetful(task: str, llm: LLM) -> None:
    """Keeps its instructions and the last two messages only."""
    system: dict[str, Any] = {"role": "system", "content": "Count."}
    said: list[dict[str, Any]] = []
    for number in range(4):
        said.append({"role": "user", "content": f"number {number}"})
        said.append(ask(llm, [system, *said[-3:]]))


async def test_an_agent_that_drops_old_messages_repeats_nothing_either() -> None:
    store = InMemoryLightningStore()
    async with scene(store, *(Reply(f"answer {number}") for number in range(4))):
        done = await play(store, forgetful, "")
    calls = calls_of(await read_transcript(store, done.rollout_id))
    assert said(calls[0].messages) == [("system", "Count."), ("user", "number 0")]
    assert [said(call.messages) for call in calls[1:]] == [[("user", f"number {number}")] for number in (1, 2, 3)]


@rollout
def crowd(task: str, llm: LLM) -> None:
    """Two conversations at once that begin alike."""
    system: dict[str, Any] = {"role": "system", "content": "Play."}
    left = [system, {"role": "user", "content": "left"}]
    right = [system, {"role": "user", "content": "right"}]
    left += [ask(llm, left), {"role": "user", "content": "left again"}]
    right += [ask(llm, right), {"role": "user", "content": "right again"}]
    ask(llm, left)
    ask(llm, right)


async def test_conversations_that_interleave_are_told_apart() -> None:
    store = InMemoryLightningStore()
    async with scene(store, *map(Reply, "abcd")):
        done = await play(store, crowd, "")
    calls = calls_of(await read_transcript(store, done.rollout_id))
    assert [said(call.messages)[-1][1] for call in calls] == ["left", "right", "left again", "right again"]
    assert [len(call.messages) for call in calls] == [2, 1, 1, 1]


@rollout
def gives_up(task: str, llm: LLM) -> None:
    with OpenAI(base_url=llm.get_base_url(), api_key="none", max_retries=1) as client:
        client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])


async def test_a_traced_call_that_failed_again_and_again_is_one() -> None:
    store = InMemoryLightningStore()
    async with scene(store, *[Fault("status", status=503, message="no room")] * 2) as upstream:
        done = await play(store, gives_up, "hello")
    transcript = await read_transcript(store, done.rollout_id)
    assert len(upstream.requests) == 2
    [call] = calls_of(transcript)
    assert (said(call.messages), call.answer) == ([("user", "hello")], None)
    assert "no room" in (call.error or "")


@rollout
def with_openai(task: str, llm: LLM) -> float:
    """A traced client, which itself tries again, and a tool that is traced as OpenTelemetry says."""
    said: list[Any] = [{"role": "user", "content": task}]
    with OpenAI(base_url=llm.get_base_url(), api_key="none", max_retries=2) as client:
        first = client.chat.completions.create(model=llm.model, messages=said, tools=[WEATHER])  # type: ignore[list-item]
        message = first.choices[0].message
        assert message.tool_calls
        told = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "21 degrees"}
        said += [message.model_dump(exclude_none=True), told]
        client.chat.completions.create(model=llm.model, messages=said)
    return 0.5


async def test_a_traced_client_and_the_gateway_tell_of_one_call() -> None:
    store = InMemoryLightningStore()
    async with scene(store, Fault("status", status=500), *CHATTY_REPLIES[:2]) as upstream:
        done = await play(store, with_openai, "Weather?")
    assert len(upstream.requests) == 3
    transcript = await read_transcript(store, done.rollout_id)
    first, second = calls_of(transcript)
    assert len(transcript.spans) >= 6  # each of both has told, and the reward
    assert said(first.messages) == [("user", "Weather?")]
    assert first.tool_calls[0].result == "21 degrees"
    assert (second.messages, second.answer and second.answer.text) == ([], "It is warm.")
    assert (first.error, second.error, second.text) == (None, None, None)
    assert "500" in (first.text or "")
    assert [(mark.value, mark.turn) for mark in transcript.rewards] == [(0.5, 2)]


# -- what agents write -------------------------------------------------------------------------------


@reward
def judged(llm: LLM) -> float:
    with OpenAI(base_url=llm.get_base_url(), api_key="none") as client:
        client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": "How good was it?"}])
    return 0.25


@rollout
def talkative(task: str, llm: LLM) -> None:
    ask(llm, [{"role": "user", "content": "one"}])
    emit_reward(0.5)
    emit_message("half way")
    with operation(name="look up", shelf=3) as step:
        step.set_input("Rome")
        step.set_output({"found": True})
    ask(llm, [{"role": "user", "content": "two"}])
    emit_object({"x": [1, 2]})
    emit_annotation({"city": {"name": "Rome"}})
    emit_exception(ValueError("not so bad"))
    emit_reward({"right": 1.0, "short": 0.2}, primary_key="right")
    judged(llm)


async def test_everything_that_an_agent_emits_has_an_entry() -> None:
    transcript = await of_talkative()
    kinds = [entry.kind for entry in transcript.entries]
    expected = ["call", "reward", "message", "operation", "call", "object", "annotation", "error", "reward", "reward"]
    assert kinds == [*expected, "call"]
    by_kind = {entry.kind: entry for entry in transcript.entries}
    assert by_kind["message"].text == "half way"
    assert (by_kind["operation"].title, by_kind["operation"].input) == ("look up", '"Rome"')
    assert by_kind["operation"].output == '{"found": true}'
    assert (by_kind["object"].title, by_kind["object"].text) == ("dict", '{"x": [1, 2]}')
    assert by_kind["annotation"].text == "city.name: Rome"
    assert by_kind["error"].error == "ValueError: not so bad"
    assert "ValueError" in (by_kind["error"].text or "")
    assert transcript.errors == ["ValueError: not so bad"]


async def test_rewards_have_names_and_turns() -> None:
    transcript = await of_talkative()
    marks = [(mark.name, mark.value, mark.turn) for mark in transcript.rewards]
    assert marks == [(None, 0.5, 1), ("right", 1.0, 2), ("short", 0.2, 2), (None, 0.25, 2)]
    one, two, judge = calls_of(transcript)
    assert (one.reward, two.reward) == (0.5, 1.0)
    assert (judge.turn, judge.reward) == (None, None)  # made to find a reward, so no turn of the agent
    assert transcript.entries[8].rewards == {"right": 1.0, "short": 0.2}


# -- failures and retries ----------------------------------------------------------------------------

tries: list[str] = []


@rollout
def fails_once(task: str, llm: LLM) -> float:
    ask(llm, [{"role": "user", "content": task}])
    tries.append(task)
    if len(tries) == 1:
        raise ValueError("the first time always fails")
    return 1.0


async def test_every_attempt_can_be_read_with_why_it_ended() -> None:
    store = InMemoryLightningStore()
    tries.clear()
    async with scene(store):
        done = await play(store, fails_once, "again", attempts=2, config=TWICE)
    last = await read_transcript(store, done.rollout_id)
    assert (last.rollout.status, last.errors, len(last.attempts)) == ("succeeded", [], 2)
    assert last.attempt == last.attempts[1]
    assert [why_ended(each) for each in last.attempts] == ["ValueError: the first time always fails", None]
    first = await read_transcript(store, done.rollout_id, last.attempts[0].attempt_id)
    assert first.errors == ["ValueError: the first time always fails"]
    assert [entry.kind for entry in first.entries] == ["call", "error"]
    assert [span.attempt_id for span in first.spans] == [last.attempts[0].attempt_id] * 2
    assert said(calls_of(last)[0].messages) == [("user", "again")]  # what attempt 1 said is news to attempt 2


@rollout
def unlucky(task: str, llm: LLM) -> None:
    ask(llm, [{"role": "user", "content": "hello"}])


async def test_a_call_that_failed_says_why() -> None:
    store = InMemoryLightningStore()
    async with scene(store, Fault("status", status=503, message="no room")):
        done = await play(store, unlucky, "")
    transcript = await read_transcript(store, done.rollout_id)
    [call] = calls_of(transcript)
    assert said(call.messages) == [("user", "hello")]
    assert call.answer is None
    assert "no room" in (call.error or "")
    assert transcript.rollout.status == "failed"
    assert transcript.errors[0].startswith("HTTPError")
    assert call.error in transcript.errors


@rollout
async def slow(task: str, llm: LLM) -> None:
    import asyncio

    await asyncio.sleep(30)


async def test_an_attempt_that_ran_out_of_time_says_so() -> None:
    store = InMemoryLightningStore()
    await store.add_resources({"llm": LLM("http://127.0.0.1:1/v1", "none")})
    done = await play(store, slow, "", config=RolloutConfig(timeout_seconds=0.05))
    transcript = await read_transcript(store, done.rollout_id)
    assert transcript.attempts[0].status == "timeout"
    assert "timeout_seconds=0.05" in transcript.errors[0]


def attempt(status: Any, **fields: Any) -> Attempt:
    return Attempt("ro-1", "at-1", 1, 0.0, status=status, **fields)


def test_an_attempt_that_left_no_reason_still_says_what_is_known() -> None:
    lost = why_ended(attempt("unresponsive", worker_id="w-3")) or ""
    assert "unresponsive_seconds" in lost
    assert "w-3" in lost
    assert "timeout_seconds" in (why_ended(attempt("timeout")) or "")
    assert why_ended(attempt("failed"))
    assert why_ended(attempt("failed", metadata={"error_type": "Boom", "error": "Boom"})) == "Boom"
    assert why_ended(attempt("running")) is None


async def test_a_rollout_that_nobody_claimed_has_an_empty_transcript() -> None:
    store = InMemoryLightningStore()
    queued = await store.enqueue_rollout("wait")
    transcript = await read_transcript(store, queued.rollout_id)
    assert (transcript.attempt, transcript.attempts, transcript.entries) == (None, [], [])


async def test_unknown_ids_are_named() -> None:
    store = InMemoryLightningStore()
    with raises(UnknownIdError, "ro-x"):
        await read_transcript(store, "ro-x")
    started = await store.start_rollout("task")
    with raises(UnknownIdError, "at-x", started.attempt.attempt_id):
        await read_transcript(store, started.rollout_id, "at-x")


# -- spans of other recorders ------------------------------------------------------------------------


def told(name: str, sequence_id: int, **fields: Any) -> Span:
    attributes = fields.pop("attributes", {})
    return Span(
        "ro-1", "at-1", sequence_id, "t" * 32, f"{sequence_id:016x}", name=name, attributes=attributes, **fields
    )


def read(*spans: Span) -> Transcript:
    return transcript_of(Rollout("ro-1", "task", 0.0), [], None, spans)


def chat_span(number: int, asked: str, answered: str, **fields: Any) -> Span:
    names = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": asked, "gen_ai.output.messages": answered}
    return told("chat m", number, attributes=names, start_time=float(number), end_time=number + 0.5, **fields)


ASKED = '[{"role": "user", "parts": [{"type": "text", "content": "weather?"}]}]'
CALLS = '[{"role": "assistant", "parts": [{"type": "tool_call", "id": ID, "name": "weather", "arguments": {"c": 1}}]}]'


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather", "gen_ai.tool.call.result": "warm"},
        {"traceloop.span.kind": "tool", "traceloop.entity.name": "weather", "traceloop.entity.output": "warm"},
        {"openinference.span.kind": "TOOL", "tool.name": "weather", "output.value": "warm"},
    ],
)
def test_the_span_of_a_tool_gives_a_call_its_result(attributes: dict[str, str]) -> None:
    call = chat_span(1, ASKED, CALLS.replace("ID", "null"))
    transcript = read(call, told("tool", 2, attributes=attributes, start_time=2.0, end_time=3.0))
    assert transcript.entries[0].tool_calls == [ToolCall(None, "weather", '{"c": 1}', "warm")]
    assert (transcript.entries[1].kind, transcript.entries[1].title) == ("tool", "weather")


def test_a_result_that_is_told_twice_and_without_an_id_is_shown_once() -> None:
    names = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather", "gen_ai.tool.call.result": "warm"}
    calling = CALLS.replace("ID", '"call_0"')
    result = '{"role": "tool", "parts": [{"type": "text", "content": "warm"}]}'
    again = f"[{ASKED[1:-1]}, {calling[1:-1]}, {result}]"
    tool = told("tool", 2, attributes=names, start_time=2.0, end_time=2.5)
    transcript = read(chat_span(1, ASKED, calling), tool, chat_span(3, again, "[]"))
    assert transcript.entries[0].tool_calls[0].result == "warm"
    assert transcript.entries[2].messages == []


def test_a_call_id_that_is_used_again_belongs_to_the_newest_call() -> None:
    calling = CALLS.replace("ID", '"call_0"')
    result = '{"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_0", "response": "RESULT"}]}'
    first = f"[{ASKED[1:-1]}, {calling[1:-1]}, {result.replace('RESULT', 'cold')}]"
    second = f"[{first[1:-1]}, {calling[1:-1]}, {result.replace('RESULT', 'warm')}]"
    transcript = read(chat_span(1, ASKED, calling), chat_span(2, first, calling), chat_span(3, second, "[]"))
    assert [entry.tool_calls[0].result for entry in transcript.entries[:2]] == ["cold", "warm"]
    assert all(entry.messages == [] for entry in transcript.entries[1:])


def test_an_error_that_passes_through_spans_of_a_framework_is_told_once() -> None:
    failed = TraceStatus("ERROR", "ValueError: x")
    spans = [told(name, number, status=failed) for number, name in enumerate(("graph", "node", "step"), start=1)]
    transcript = read(*spans)
    assert [(entry.kind, entry.title) for entry in transcript.entries] == [("error", "graph")]
    assert transcript.errors == ["ValueError: x"]


def test_spans_that_only_hold_others_have_no_entry() -> None:
    assert read(told("graph", 1), told("invoke_agent x", 2)).entries == []


@pytest.mark.parametrize("damaged", ["", "{", "[1]", '[{"parts": 3}]', '[{"role": 5, "parts": [{}]}]', '{"a": 1}'])
def test_damaged_messages_end_nothing(damaged: str) -> None:
    [entry] = read(chat_span(1, damaged, damaged)).entries
    assert entry.kind == "call"


def test_pictures_are_named_and_not_poured_out() -> None:
    part = '{"type": "blob", "modality": "image", "mime_type": "image/png", "content": "aGVsbG8="}'
    asked = f'[{{"role": "user", "parts": [{{"type": "text", "content": "look"}}, {part}]}}]'
    [entry] = read(chat_span(1, asked, "[]")).entries
    assert said(entry.messages) == [("user", "look\n[image]")]


def test_two_hundred_calls_that_repeat_their_history_are_read_in_a_moment() -> None:
    import time

    turns = [f'{{"role": "user", "parts": [{{"type": "text", "content": "turn {n}"}}]}}' for n in range(200)]
    spans = [chat_span(n, f"[{', '.join(turns[:n])}]", "[]") for n in range(1, 200)]
    start = time.process_time()
    transcript = read(*spans)
    assert [len(entry.messages) for entry in transcript.entries] == [1] * 199
    assert time.process_time() - start < 2.0
