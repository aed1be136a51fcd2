"""Who is asked, what goes out, and what becomes of an upstream that fails."""

import asyncio
import json
import logging
import pickle
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sharpen import ModelEntry
from tests.errors import raises
from tests.http.internals import Unsent
from tests.llm_proxy.internals import (
    FIRST_SECONDS,
    LONGEST_SECONDS,
    TRIAL_SECONDS,
    Call,
    ModelUpstream,
    Place,
    Refusal,
    Upstreams,
    Usage,
)

from .scripted import Fault, Reply, ScriptedUpstream
from .sending import KEY, Clock, call_to, entry_of, events_in, read

PLACE = Place("ro-1", "at-1")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def upstreams(clock: Clock) -> AsyncIterator[Upstreams]:
    made = Upstreams([], num_retries=9, clock=clock)
    yield made
    await made.aclose()


def hosts(count: int, **more: Any) -> list[ModelEntry]:
    return [entry_of(f"http://host-{number}:8000/v1", **more) for number in range(1, count + 1)]


def talk(*said: str, system: str | None = None, place: Place | None = PLACE) -> Call:
    """A conversation whose turns are of the user, the assistant, the user …"""
    roles = ["user", "assistant"]
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(said)]
    opening = [] if system is None else [{"role": "system", "content": system}]
    return call_to({"messages": opening + messages}, place=place)


def first(upstreams: Upstreams, call: Call) -> str:
    return upstreams.choose(call)[0].entry.url


async def ask(upstreams: Upstreams, call: Call) -> bytes:
    return await read(await upstreams.choose(call)[0].send(call))


# -- which model -------------------------------------------------------------------------------------


def test_an_unknown_model_is_refused_with_the_known_names(upstreams: Upstreams) -> None:
    upstreams.replace([entry_of("http://a/v1", "gpt"), entry_of("http://b/v1", "claude")])
    with raises(Refusal, "scripted") as caught:
        upstreams.choose(call_to())
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    with pytest.raises(Refusal):
        upstreams.choose(call_to({"model": None}))


def test_without_models_it_says_so(upstreams: Upstreams) -> None:
    with pytest.raises(Refusal):
        upstreams.choose(call_to())


def test_the_most_precise_name_wins(upstreams: Upstreams) -> None:
    names = ["*", "scripted-*", "scripted-small", "scripted-sm*"]
    upstreams.replace([entry_of(f"http://host-{number}/v1", name) for number, name in enumerate(names)])
    asked = {
        "other": "*",
        "scripted-large": "scripted-*",
        "scripted-small": "scripted-small",
        "scripted-smart": names[3],
    }
    for model, name in asked.items():
        assert upstreams.choose(call_to({"model": model}))[0].entry.model_name == name
    assert upstreams.model_names == names


def test_no_more_are_chosen_than_may_be_asked() -> None:
    assert len(Upstreams(hosts(5), num_retries=0).choose(call_to())) == 1
    assert len(Upstreams(hosts(5), num_retries=2).choose(call_to())) == 3
    assert len(Upstreams(hosts(2), num_retries=9).choose(call_to())) == 2


# -- conversations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("system", [None, "You are kind."])
def test_a_conversation_stays_while_it_grows(upstreams: Upstreams, system: str | None) -> None:
    upstreams.replace(hosts(5))
    for number in range(50):
        said = [f"question {number}", "answer", "more", "yes", "thanks"]
        homes = {first(upstreams, talk(*said[:turns], system=system)) for turns in (1, 3, 5)}
        assert len(homes) == 1


def test_messages_before_the_first_of_the_user_count_and_those_after_do_not(upstreams: Upstreams) -> None:
    upstreams.replace(hosts(8))
    greeted = [{"role": "assistant", "content": "Hi, I am Bo"}, {"role": "user", "content": "hello"}]
    more = [*greeted, {"role": "assistant", "content": "x"}, {"role": "tool", "tool_call_id": "1", "content": "y"}]
    assert first(upstreams, call_to({"messages": greeted})) == first(upstreams, call_to({"messages": more}))


def test_a_mark_that_moves_from_turn_to_turn_moves_no_conversation(upstreams: Upstreams) -> None:
    upstreams.replace(hosts(8))
    for number in range(20):
        text: dict[str, Any] = {"type": "text", "text": f"question {number}"}
        marked = text | {"cache_control": {"type": "ephemeral"}}
        turns = [{"role": "assistant", "content": "a"}, {"role": "user", "content": [marked]}]
        early = {"system": [marked], "messages": [{"role": "user", "content": [marked]}]}
        late = {"system": [text], "messages": [{"role": "user", "content": [text]}, *turns]}
        assert first(upstreams, call_to(early, api="messages")) == first(upstreams, call_to(late, api="messages"))


@pytest.mark.parametrize("api", ["completions", "responses"])
def test_an_attempt_keeps_its_upstream_where_every_turn_is_new(upstreams: Upstreams, api: Any) -> None:
    upstreams.replace(hosts(8))
    name = {"completions": "prompt", "responses": "input"}[api]
    for number in range(10):
        place = Place(f"ro-{number}", "at-1", "solver")
        calls = [call_to({name: text}, api=api, place=place) for text in ("a", "a b", "something else")]
        assert len({first(upstreams, call) for call in calls}) == 1


def test_attempts_and_roles_are_spread(upstreams: Upstreams) -> None:
    upstreams.replace(hosts(4))
    places = [Place(f"ro-{number}", "at-1", role) for number in range(50) for role in (None, "judge")]
    assert len({first(upstreams, talk("same", place=place)) for place in places}) == 4
    judged = {first(upstreams, talk("same", place=Place("ro-1", "at-1", f"role-{number}"))) for number in range(50)}
    assert len(judged) == 4


def test_embeddings_are_spread_by_what_they_are_of(upstreams: Upstreams) -> None:
    upstreams.replace(hosts(4))
    calls = [call_to({"input": f"text {number}"}, api="embeddings", place=PLACE) for number in range(100)]
    assert len({first(upstreams, call) for call in calls}) == 4


def test_conversations_follow_the_weights(upstreams: Upstreams) -> None:
    weights = [1.0, 2.0, 5.0, 0.0]
    entries = [entry_of(f"http://host-{number}/v1", weight=weight) for number, weight in enumerate(weights)]
    upstreams.replace(entries)
    count = 4000
    seen = Counter(first(upstreams, talk(f"question {number}")) for number in range(count))
    for entry in entries:
        assert seen[entry.url] / count == pytest.approx(entry.weight / sum(weights), abs=0.03)


def test_one_upstream_more_moves_only_what_it_takes(upstreams: Upstreams) -> None:
    calls = [talk(f"question {number}") for number in range(1000)]
    upstreams.replace(hosts(4))
    before = [first(upstreams, call) for call in calls]
    upstreams.replace(hosts(5))
    after = [first(upstreams, call) for call in calls]
    moved = [new for old, new in zip(before, after, strict=True) if new != old]
    assert set(moved) == {"http://host-5:8000/v1"}
    assert len(moved) / 1000 == pytest.approx(1 / 5, abs=0.05)


def test_two_gateways_choose_alike() -> None:
    one, two = Upstreams(hosts(5)), Upstreams(list(reversed(hosts(5))))
    for number in range(50):
        assert first(one, talk(f"{number}")) == first(two, talk(f"{number}"))


@pytest.mark.parametrize("messages", [None, "text", [], [1], [{"content": None}], [{"role": "user", "content": 3}]])
def test_odd_messages_are_for_the_upstream_to_judge(upstreams: Upstreams, messages: Any) -> None:
    upstreams.replace(hosts(3))
    assert upstreams.choose(call_to({"messages": messages}))


# -- health ------------------------------------------------------------------------------------------


def order(upstreams: Upstreams, call: Call) -> list[str]:
    return [each.entry.url for each in upstreams.choose(call)]


def test_a_failing_upstream_is_last_until_its_time_is_over(upstreams: Upstreams, clock: Clock) -> None:
    upstreams.replace(hosts(3))
    call = talk("hello")
    home, *rest = upstreams.choose(call)
    upstreams.report(home, False)
    assert order(upstreams, call) == [each.entry.url for each in [*rest, home]]
    clock.now += FIRST_SECONDS
    assert upstreams.choose(call)[0] is home


def test_one_call_at_a_time_tries_it_again(upstreams: Upstreams, clock: Clock) -> None:
    upstreams.replace(hosts(2))
    call = talk("hello")
    home, other = upstreams.choose(call)
    upstreams.report(home, False)
    clock.now += FIRST_SECONDS
    assert [upstreams.choose(call)[0] for _ in range(3)] == [home, other, other]
    upstreams.report(home, True)
    assert [upstreams.choose(call)[0] for _ in range(3)] == [home] * 3


def test_a_trial_of_which_nobody_tells_the_end_is_forgotten(upstreams: Upstreams, clock: Clock) -> None:
    upstreams.replace(hosts(2))
    call = talk("hello")
    home, other = upstreams.choose(call)
    upstreams.report(home, False)
    clock.now += FIRST_SECONDS
    upstreams.choose(call)
    assert upstreams.choose(call)[0] is other
    clock.now += TRIAL_SECONDS
    assert upstreams.choose(call)[0] is home


def test_a_trial_that_tells_nothing_makes_room_for_the_next(upstreams: Upstreams, clock: Clock) -> None:
    upstreams.replace(hosts(2))
    call = talk("hello")
    home, other = upstreams.choose(call)
    upstreams.report(home, False)
    clock.now += FIRST_SECONDS
    assert [upstreams.choose(call)[0] for _ in range(2)] == [home, other]
    upstreams.report(home, None)
    assert [upstreams.choose(call)[0] for _ in range(2)] == [home, other]


def test_each_further_failure_doubles_the_time_up_to_a_bound(upstreams: Upstreams, clock: Clock) -> None:
    upstreams.replace(hosts(2))
    call = talk("hello")
    home = upstreams.choose(call)[0]
    pauses = []
    for _ in range(1100):  # far beyond what a float could hold when doubled
        upstreams.report(home, False)
        pause = 0.0
        while upstreams.choose(call)[0] is not home:
            clock.now += FIRST_SECONDS
            pause += FIRST_SECONDS
        pauses.append(pause)
    assert pauses[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert max(pauses) == LONGEST_SECONDS


def test_calls_that_fail_together_are_one_failure(upstreams: Upstreams, clock: Clock) -> None:
    upstreams.replace(hosts(2))
    call = talk("hello")
    home = upstreams.choose(call)[0]
    for _ in range(8):
        upstreams.report(home, False)
    clock.now += FIRST_SECONDS
    assert upstreams.choose(call)[0] is home


def test_an_upstream_that_says_how_long_is_left_alone_so_long(upstreams: Upstreams, clock: Clock) -> None:
    upstreams.replace(hosts(2))
    call = talk("hello")
    home = upstreams.choose(call)[0]
    upstreams.report(home, False, retry_after_seconds=30)
    clock.now += 29
    assert upstreams.choose(call)[0] is not home
    clock.now += 1
    assert upstreams.choose(call)[0] is home


def test_the_only_upstream_is_asked_although_it_fails(upstreams: Upstreams) -> None:
    upstreams.replace(hosts(1))
    (only,) = upstreams.choose(call_to())
    for _ in range(5):
        upstreams.report(only, False)
        assert upstreams.choose(call_to()) == [only]


# -- rates -------------------------------------------------------------------------------------------


async def test_upstreams_at_their_rate_are_left_out_then_refused(
    upstreams: Upstreams, clock: Clock, upstream: ScriptedUpstream
) -> None:
    with ScriptedUpstream() as other:
        upstreams.replace([entry_of(each.base_url, rpm=1) for each in (upstream, other)])
        call = talk("hello")
        home, spare = upstreams.choose(call)
        await read(await home.send(call))
        assert upstreams.choose(call) == [spare]
        clock.now += 20
        await read(await spare.send(call))
        with raises(Refusal, 1) as caught:
            upstreams.choose(call)
        assert (caught.value.status, caught.value.retry_after_seconds) == (429, 40)
        with pytest.raises(Refusal):
            await home.send(call)
        clock.now += 40
        assert upstreams.choose(call) == [home]


async def test_a_second_request_of_one_call_counts_toward_the_rate(
    upstreams: Upstreams, upstream: ScriptedUpstream
) -> None:
    """One with added fields, which is refused, and one without."""
    upstreams.replace([entry_of(upstream.base_url, engine="vllm", rpm=3)])
    wrong = Fault("status", status=400, message="context too long")
    upstream.script(*[wrong] * 6)
    for _ in range(2):
        assert (await upstreams.choose(call_to())[0].send(call_to())).status == 400
    with pytest.raises(Refusal):
        upstreams.choose(call_to())
    assert len(upstream.requests) == 4


def test_tokens_count_toward_the_rate_when_they_are_settled(upstreams: Upstreams, clock: Clock) -> None:
    upstreams.replace(hosts(1, tpm=100))
    (only,) = upstreams.choose(call_to())
    upstreams.settled(only, Usage(60, 30))
    upstreams.settled(only, None)
    assert upstreams.choose(call_to()) == [only]
    upstreams.settled(only, Usage(10, 0))
    with raises(Refusal, 100) as caught:
        upstreams.choose(call_to())
    assert caught.value.retry_after_seconds == 60


# -- another list ------------------------------------------------------------------------------------


def test_a_new_list_keeps_the_health_and_the_rates_of_who_stays(upstreams: Upstreams, clock: Clock) -> None:
    upstreams.replace(hosts(2, rpm=5))
    call = talk("hello")
    home, other = upstreams.choose(call)
    upstreams.report(home, False)
    other.rates.reserve()
    changed = [ModelEntry("scripted", base_url=each.base_url, rpm=5, weights_version=2) for each in hosts(2)]
    upstreams.replace(changed)
    now = upstreams.choose(call)
    assert [each.entry.url for each in now] == [other.entry.url, home.entry.url]
    assert [each.entry.weights_version for each in now] == [2, 2]
    assert now[0].rates is other.rates
    assert home.entry.weights_version is None, "a call under way keeps the version that it was sent with"


async def test_a_call_under_way_survives_a_new_list_and_its_connection_is_closed_after_it(
    upstreams: Upstreams, upstream: ScriptedUpstream
) -> None:
    upstreams.replace([entry_of(upstream.base_url)])
    call = call_to({"stream": True})
    upstream.script(Reply(chunk_seconds=0.02))
    answer = await upstreams.choose(call)[0].send(call)
    upstreams.replace([entry_of("http://127.0.0.1:9/v1")])
    assert events_in(await read(answer))
    async with asyncio.timeout(5):
        while upstream.open_connections:
            await asyncio.sleep(0.01)


async def test_connections_are_kept_and_shared_by_entries_of_one_server(
    upstreams: Upstreams, upstream: ScriptedUpstream
) -> None:
    upstreams.replace([entry_of(upstream.base_url, name, engine="none") for name in ("scripted", "other")])
    for model in ("scripted", "other", "scripted"):
        await ask(upstreams, call_to({"model": model}))
    assert upstream.connections == 1


def test_upstreams_can_be_used_in_one_loop_after_another(vllm: ScriptedUpstream) -> None:
    upstreams = Upstreams([entry_of(vllm.base_url)])

    async def once() -> None:
        assert b"token_ids" in await ask(upstreams, call_to())
        await upstreams.aclose()

    for _ in range(2):
        asyncio.run(once())
    assert len(vllm.requests) == 2


# -- what goes out: the body -------------------------------------------------------------------------

ODD = (
    b'{"model":"scripted",\n\t"messages": [{"role":"user", "content":"\\u00e9\\/ \xe2\x82\xac"}], "temperature": 1.0}  '
)


async def test_an_unchanged_request_goes_out_byte_for_byte(upstreams: Upstreams, upstream: ScriptedUpstream) -> None:
    upstreams.replace([entry_of(upstream.base_url, model="scripted", defaults={"temperature": 0.1})])
    call = call_to(body=ODD)
    await ask(upstreams, call)
    assert upstream.requests[0].body == ODD
    assert call.added == frozenset()


async def test_a_model_with_another_name_is_renamed_and_nothing_else(
    upstreams: Upstreams, upstream: ScriptedUpstream
) -> None:
    upstreams.replace([entry_of(upstream.base_url, model="org/scripted-7B")])
    call = call_to(body=ODD)
    await ask(upstreams, call)
    assert upstream.requests[0].json == call.request | {"model": "org/scripted-7B"}
    assert call.added == frozenset()


async def test_defaults_are_added_where_they_are_missing(upstreams: Upstreams, upstream: ScriptedUpstream) -> None:
    upstreams.replace([entry_of(upstream.base_url, defaults={"temperature": 0.5, "seed": 7})])
    call = call_to({"temperature": 0.0, "seed": None})
    await ask(upstreams, call)
    assert upstream.requests[0].json == call.request | {"seed": 7}
    assert call.added == {"seed"}
    assert call.request["seed"] is None, "what the agent asked for stays as it was"


# -- what goes out: paths and headers ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "path"),
    [
        ("chat", "/v1/chat/completions"),
        ("completions", "/v1/completions"),
        ("responses", "/v1/responses"),
        ("embeddings", "/v1/embeddings"),
        ("messages", "/v1/messages"),
    ],
)
async def test_each_api_has_its_path(upstreams: Upstreams, upstream: ScriptedUpstream, api: Any, path: str) -> None:
    upstreams.replace([entry_of(upstream.base_url)])
    call = call_to(api=api)
    answer = await upstreams.choose(call)[0].send(call)
    assert answer.status == 200
    assert json.loads(await read(answer))
    assert upstream.requests[0].path == path


async def test_the_key_of_the_entry_opens_the_upstream(upstreams: Upstreams, upstream: ScriptedUpstream) -> None:
    upstreams.replace([entry_of(upstream.base_url, api_key=KEY)])
    await ask(upstreams, call_to(headers={"authorization": "Bearer theirs", "x-api-key": "theirs"}))
    headers = upstream.requests[0].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert "theirs" not in str(headers)


async def test_anthropic_is_opened_in_its_own_way(upstreams: Upstreams, upstream: ScriptedUpstream) -> None:
    upstreams.replace([entry_of(upstream.anthropic_url, provider="anthropic", api_key=KEY)])
    await ask(upstreams, call_to(api="messages"))
    await ask(upstreams, call_to(api="messages", headers={"anthropic-version": "2099-01-01", "anthropic-beta": "x"}))
    one, two = (asked.headers for asked in upstream.requests)
    assert one["x-api-key"] == KEY
    assert "authorization" not in one
    assert one["anthropic-version"] == "2023-06-01"
    assert (two["anthropic-version"], two["anthropic-beta"]) == ("2099-01-01", "x")
    assert upstream.requests[0].path == "/v1/messages"


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
async def test_an_entry_without_key_passes_the_clients_on_unless_told_not_to(
    upstream: ScriptedUpstream, name: str
) -> None:
    for passes_keys in (True, False):
        upstreams = Upstreams([entry_of(upstream.base_url)], passes_keys=passes_keys)
        await ask(upstreams, call_to(headers={name: "Bearer theirs"}))
        assert (name in upstream.requests[-1].headers) is passes_keys
        await upstreams.aclose()


async def test_a_key_is_read_from_the_environment_at_every_call(
    upstreams: Upstreams, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = entry_of(upstream.base_url, api_key="env:MY_KEY", headers={"x-team": "os.environ/MY_TEAM"})
    upstreams.replace([entry])
    monkeypatch.setenv("MY_TEAM", "blue")
    with raises(Refusal, "MY_KEY") as caught:
        await ask(upstreams, call_to())
    assert caught.value.status == 500
    for key in ("sk-one", "sk-two"):
        monkeypatch.setenv("MY_KEY", key)
        await ask(upstreams, call_to())
        assert upstream.requests[-1].headers["authorization"] == f"Bearer {key}"
        assert upstream.requests[-1].headers["x-team"] == "blue"


async def test_headers_of_the_client_are_passed_on_but_not_those_of_its_connection(
    upstreams: Upstreams, upstream: ScriptedUpstream
) -> None:
    upstreams.replace([entry_of(upstream.base_url, headers={"X-Team": "blue"})])
    mine = {"user-agent": "OpenAI/Python", "x-stainless-lang": "python", "traceparent": "00-1-2-01", "x-team": "red"}
    connection = {
        "host": "gateway:1",
        "connection": "keep-alive, x-private",
        "x-private": "1",
        "keep-alive": "timeout=5",
        "transfer-encoding": "chunked",
        "content-length": "3",
        "cookie": "session=1",
        "accept-encoding": "gzip, br",
        "te": "trailers",
        "proxy-authorization": "Basic x",
    }
    await ask(upstreams, call_to(headers=mine | connection))
    headers = upstream.requests[0].headers
    assert headers.items() >= (mine | {"x-team": "blue", "accept-encoding": "identity"}).items()
    assert headers["host"] == f"127.0.0.1:{upstream.port}"
    assert not headers.keys() & (connection.keys() - {"host", "content-length", "accept-encoding"})


@pytest.mark.parametrize("engine", ["sharpen", "vllm", "none", None])
async def test_only_an_engine_of_ours_is_told_whose_call_it_is(
    upstreams: Upstreams, upstream: ScriptedUpstream, engine: Any
) -> None:
    upstreams.replace([entry_of(upstream.base_url, engine=engine)])
    claimed = {"x-sharpen-rollout-id": "another", "x-sharpen-attempt-id": "another-1"}
    for place in (Place("r\u00f6-1", "at-1"), None):
        await ask(upstreams, call_to(headers=claimed, place=place))
    told = [
        {name: value for name, value in request.headers.items() if name in claimed}
        for request in upstream.requests
        if request.path.endswith("completions")
    ]
    ours = {"x-sharpen-rollout-id": "r%C3%B6-1", "x-sharpen-attempt-id": "at-1"}
    assert [ours in told, all(each in (ours, {}) for each in told)] == [engine == "sharpen", True]


async def test_headers_of_the_answer_come_back_without_cookies_and_connection(
    upstreams: Upstreams, upstream: ScriptedUpstream
) -> None:
    upstreams.replace([entry_of(upstream.base_url)])
    upstream.script(Reply(headers={"Set-Cookie": "a=b", "connection": "close", "X-RateLimit-Remaining": "5"}))
    call = call_to()
    answer = await upstreams.choose(call)[0].send(call)
    names = [name for name, _ in answer.headers]
    assert "x-ratelimit-remaining" in names
    assert not {"set-cookie", "connection"} & set(names)
    await read(answer)


# -- faults ------------------------------------------------------------------------------------------


async def test_nobody_there_is_certain_not_to_have_read_anything(upstreams: Upstreams) -> None:
    with ScriptedUpstream() as gone:
        url = gone.base_url
    upstreams.replace([entry_of(url)])
    with pytest.raises(Unsent):
        await ask(upstreams, call_to())


async def test_a_reset_is_not_certain_to_be_unread(upstreams: Upstreams, upstream: ScriptedUpstream) -> None:
    upstreams.replace([entry_of(upstream.base_url, engine="none")])
    upstream.script(Fault("reset"))
    with pytest.raises(ConnectionError) as caught:
        await ask(upstreams, call_to())
    assert not isinstance(caught.value, Unsent)


async def test_an_upstream_that_hangs_is_given_up_in_time(upstreams: Upstreams, upstream: ScriptedUpstream) -> None:
    upstreams.replace([entry_of(upstream.base_url, engine="none", timeout=0.1)])
    upstream.script(Fault("hang"))
    with pytest.raises(TimeoutError):
        await ask(upstreams, call_to())


async def test_a_cut_stream_is_an_error_after_its_bytes(upstreams: Upstreams, upstream: ScriptedUpstream) -> None:
    upstreams.replace([entry_of(upstream.base_url)])
    upstream.script(Fault("cut"))
    call = call_to({"stream": True})
    answer = await upstreams.choose(call)[0].send(call)
    assert await anext(aiter(answer))
    with pytest.raises(ConnectionError):
        await read(answer)
    await answer.aclose()  # a second time


@pytest.mark.parametrize("status", [429, 500])
async def test_an_error_of_the_upstream_is_its_answer(
    upstreams: Upstreams, upstream: ScriptedUpstream, status: int
) -> None:
    upstreams.replace([entry_of(upstream.base_url)])
    upstream.script(Fault("status", status=status, retry_after="7"))
    call = call_to()
    answer = await upstreams.choose(call)[0].send(call)
    assert answer.status == status
    assert ("retry-after", "7") in answer.headers
    assert b"scripted fault" in await read(answer)


# -- secrets -----------------------------------------------------------------------------------------


async def test_no_key_is_in_a_name_a_log_or_an_error(
    upstreams: Upstreams, upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    upstreams.replace([entry_of(upstream.base_url, api_key=KEY, engine="vllm", timeout=0.2, rpm=3)])
    (only,) = upstreams.choose(call_to())
    assert KEY not in f"{only!r} {only.name} {only.entry!r}"
    upstream.script(Fault("reset"), Fault("hang"))
    shown = []
    for _ in range(4):
        try:
            await read(await only.send(call_to()))
        except (OSError, TimeoutError, Refusal) as error:
            shown.append(repr(error) + repr(pickle.dumps(error.args)))
    assert len(shown) == 3
    assert KEY not in "".join(shown) + caplog.text


def test_an_upstream_that_is_not_of_the_list_is_no_trouble(upstreams: Upstreams) -> None:
    class Foreign:
        name = "replay"

        async def send(self, call: Call) -> Any:
            raise NotImplementedError

    upstreams.report(Foreign(), False)
    upstreams.settled(Foreign(), Usage(1, 1))
    assert not isinstance(Foreign(), ModelUpstream)
