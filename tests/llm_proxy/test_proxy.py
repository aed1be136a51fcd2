"""`LLMProxy` as its user holds it: its life, its orders, and what agents are given. Most of it in both launch modes."""

import asyncio
import json
import logging
import pickle
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import cloudpickle
import openai
import pytest

from sharpen.errors import ConfigError, PortTakenError, RunError, SecretError, SharpenError
from sharpen.llm_proxy import LLMProxy
from sharpen.store import InMemoryLightningStore, LightningStore, SQLiteStore
from sharpen.types import LLM, AttemptedRollout, ProxyLLM
from tests.errors import raises

from ..execution.processes import child_pids, eventually
from .hooks import without_messages
from .scripted import Reply, ScriptedUpstream

Mode = Literal["thread", "process"]
Make = Callable[..., LLMProxy]


@pytest.fixture(params=["thread", "process"])
def launch_mode(request: pytest.FixtureRequest) -> Mode:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def make(upstream: ScriptedUpstream) -> Iterator[Make]:
    """Gateways before the scripted upstream, which are stopped at the end."""
    made: list[LLMProxy] = []

    def make_one(**settings: Any) -> LLMProxy:
        models = [{"name": "scripted", "base_url": upstream.base_url, "engine": "none"}]
        made.append(LLMProxy(**({"model_list": models} | settings)))
        return made[-1]

    yield make_one
    for each in made:
        each.stop_sync()


async def begun(store: LightningStore) -> AttemptedRollout:
    return await store.start_rollout({"question": 1})


def ask(llm: LLM, text: str = "hello") -> str | None:
    with openai.OpenAI(base_url=llm.get_base_url(), api_key="sk-any", max_retries=0) as client:
        answer = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content


def is_open(port: int | None) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port or 0)) == 0


async def count_of(store: LightningStore, rollout: AttemptedRollout) -> int:
    return len(await store.query_spans(rollout.rollout_id))


# -- life ----------------------------------------------------------------------------------------------


async def test_it_answers_from_start_to_stop(make: Make, launch_mode: Mode) -> None:
    proxy = make(launch_mode=launch_mode)
    assert not proxy.is_running()
    await proxy.start()
    port = proxy.port
    assert proxy.is_running()
    assert is_open(port)
    await proxy.start()  # it runs already
    assert proxy.port == port
    await proxy.stop()
    assert not proxy.is_running()
    assert not is_open(port)
    assert proxy.port is None
    await proxy.stop()  # it has stopped already


async def test_plain_methods_work_inside_a_running_loop(make: Make, launch_mode: Mode) -> None:
    store = InMemoryLightningStore()
    rollout = await begun(store)
    proxy = make(launch_mode=launch_mode, store=store)
    proxy.start_sync()
    llm = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)
    assert await asyncio.to_thread(ask, llm) == "You said: hello"
    assert (proxy.pause_sync(), proxy.drain_sync(5), proxy.resume_sync()) == (0, 0, 0)
    proxy.update_model_list([{"name": "other", "base_url": "http://127.0.0.1:9/v1"}])
    assert proxy.totals_sync().calls == 1
    proxy.restart_sync()
    proxy.stop_sync()
    assert await count_of(store, rollout) == 1


def test_plain_methods_work_without_any_loop(make: Make) -> None:
    with make(launch_mode="thread") as proxy:
        assert ask(proxy.as_resource()) == "You said: hello"
        assert proxy.totals_sync().calls == 1
    assert not proxy.is_running()


async def test_restart_keeps_the_port(make: Make, launch_mode: Mode) -> None:
    async with make(launch_mode=launch_mode) as proxy:
        port = proxy.port
        await proxy.restart()
        assert proxy.port == port
        assert await asyncio.to_thread(ask, proxy.as_resource()) == "You said: hello"


async def test_another_port_holds_from_the_next_start_on(make: Make) -> None:
    proxy = make(launch_mode="thread")
    proxy.port = 4321
    assert proxy.as_resource().endpoint == "http://127.0.0.1:4321/v1"
    with raises(ConfigError, "port", 0):
        proxy.port = 0
    proxy.port = None
    async with proxy:
        with raises(ConfigError, "stop()"):
            proxy.port = 4321


async def test_two_stand_side_by_side_and_share_nothing(make: Make, launch_mode: Mode) -> None:
    stores = [InMemoryLightningStore(), InMemoryLightningStore()]
    rollouts = [await begun(store) for store in stores]
    one, other = (make(launch_mode=launch_mode, store=store) for store in stores)
    await asyncio.gather(one.start(), other.start())
    assert one.port != other.port
    llms = [
        proxy.as_resource(each.rollout_id, each.attempt.attempt_id)
        for proxy, each in zip((one, other), rollouts, strict=True)
    ]
    await asyncio.to_thread(ask, llms[0])
    await asyncio.gather(*(asyncio.to_thread(ask, llms[1]) for _ in range(2)))
    await one.pause()
    await asyncio.to_thread(ask, llms[1])
    assert [await count_of(store, each) for store, each in zip(stores, rollouts, strict=True)] == [1, 3]
    assert [(await each.totals()).calls for each in (one, other)] == [1, 3]
    strange = one.as_resource(rollouts[1].rollout_id, rollouts[1].attempt.attempt_id)
    with pytest.raises(openai.NotFoundError):
        await asyncio.to_thread(ask, strange)
    await one.stop()
    assert await asyncio.to_thread(ask, llms[1]) == "You said: hello"


async def test_a_taken_port_is_an_error_and_nothing_is_left(make: Make, launch_mode: Mode) -> None:
    before = child_pids()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        proxy = make(launch_mode=launch_mode, port=taken.getsockname()[1], store=InMemoryLightningStore())
        with pytest.raises(PortTakenError):
            await proxy.start()
    assert not proxy.is_running()
    assert set(child_pids()) <= set(before)
    await proxy.start()  # the port is free now
    assert proxy.is_running()


async def test_a_failed_start_leaves_nothing(make: Make, launch_mode: Mode, tmp_path: Path) -> None:
    before, threads = child_pids(), {each.name for each in threading.enumerate()}
    record = tmp_path / "nowhere" / "calls.jsonl"
    proxy = make(launch_mode=launch_mode, mode="record", record=record, store=InMemoryLightningStore())
    with pytest.raises(ConfigError):
        await proxy.start()
    assert not proxy.is_running()
    assert set(child_pids()) <= set(before)
    eventually(lambda: not {each.name for each in threading.enumerate() if "gateway" in each.name} - threads)
    record.parent.mkdir()
    await proxy.start()
    assert proxy.is_running()


async def test_a_cancelled_start_leaves_nothing(make: Make, launch_mode: Mode) -> None:
    before = child_pids()
    proxy = make(launch_mode=launch_mode)
    starting = asyncio.create_task(proxy.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not proxy.is_running()
    assert set(child_pids()) <= set(before)


# -- orders --------------------------------------------------------------------------------------------


async def test_pause_drain_and_resume_tell_the_calls_in_flight(
    make: Make, upstream: ScriptedUpstream, launch_mode: Mode
) -> None:
    async with make(launch_mode=launch_mode) as proxy:
        hold = threading.Event()
        upstream.script(Reply(hold=hold))
        first = asyncio.create_task(asyncio.to_thread(ask, proxy.as_resource(), "first"))
        await until(lambda: len(upstream.requests) == 1)
        assert await proxy.pause() == 1
        second = asyncio.create_task(asyncio.to_thread(ask, proxy.as_resource(), "second"))
        assert await proxy.drain(0.2) == 1
        hold.set()
        assert await proxy.drain() == 0
        assert await first == "You said: first"
        assert len(upstream.requests) == 1
        await proxy.resume()
        assert await second == "You said: second"


async def test_paused_calls_are_refused_where_it_is_said_so(make: Make) -> None:
    async with make(launch_mode="thread", when_paused="refuse") as proxy:
        await proxy.pause()
        with pytest.raises(openai.RateLimitError):
            await asyncio.to_thread(ask, proxy.as_resource())


async def test_a_stop_does_not_wait_for_paused_calls(make: Make, launch_mode: Mode) -> None:
    proxy = make(launch_mode=launch_mode)
    await proxy.start()
    await proxy.pause()
    asking = asyncio.create_task(asyncio.to_thread(ask, proxy.as_resource()))
    health = f"http://127.0.0.1:{proxy.port}/health"
    await until(lambda: json.loads(urllib.request.urlopen(health).read())["waiting"] == 1)
    began = time.monotonic()
    await proxy.stop()
    assert time.monotonic() - began < 4  # the grace alone is 5 seconds
    with pytest.raises(openai.InternalServerError) as refused:
        await asking
    assert (refused.value.status_code, refused.value.response.headers["retry-after"]) == (503, "1")


async def test_other_models_hold_for_the_next_call_and_drop_none(
    make: Make, upstream: ScriptedUpstream, launch_mode: Mode
) -> None:
    with ScriptedUpstream() as second:
        second.default_reply = Reply("from the second")
        async with make(launch_mode=launch_mode) as proxy:
            hold = threading.Event()
            upstream.script(Reply(hold=hold))
            under_way = asyncio.create_task(asyncio.to_thread(ask, proxy.as_resource(), "slowly"))
            await until(lambda: len(upstream.requests) == 1)
            proxy.update_model_list([{"name": "newer", "base_url": second.base_url, "engine": "none"}])
            assert proxy.as_resource().model == "newer"
            assert await asyncio.to_thread(ask, proxy.as_resource()) == "from the second"
            hold.set()
            assert await under_way == "You said: slowly"
            await proxy.restart()
            assert await asyncio.to_thread(ask, proxy.as_resource()) == "from the second"


async def test_a_wrong_model_list_changes_nothing(make: Make) -> None:
    async with make(launch_mode="thread") as proxy:
        with raises(ConfigError, 1):
            proxy.update_model_list([{"base_url": "nonsense"}])
        assert proxy.model_names == ["scripted"]
        assert await asyncio.to_thread(ask, proxy.as_resource()) == "You said: hello"


@pytest.mark.parametrize("models", ["x", None, 3, {"name": "x"}])
def test_what_is_no_model_list_is_refused_under_way_too(make: Make, models: Any) -> None:
    proxy = make()
    with raises(ConfigError, "model_list"):
        proxy.update_model_list(models)
    assert proxy.model_names == ["scripted"]


async def test_a_missing_key_is_told_at_the_start_and_not_asked_for_again(
    make: Make, launch_mode: Mode, upstream: ScriptedUpstream, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where the gateway reads its keys; a process of its own writes to the same place."""
    models = [{"name": "scripted", "base_url": upstream.base_url, "api_key": "env:SHARPEN_TEST_NO_SUCH"}]
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger("sharpen").addHandler(handler)
    try:
        async with make(launch_mode=launch_mode, model_list=models, num_retries=2) as proxy:
            assert "api_key of the model 'scripted' is 'env:SHARPEN_TEST_NO_SUCH', but" in capfd.readouterr().err
            with raises(openai.InternalServerError, "SHARPEN_TEST_NO_SUCH") as caught:
                await asyncio.to_thread(ask, proxy.as_resource())
            proxy.update_model_list(models)
            assert "environment variable SHARPEN_TEST_NO_SUCH is not set" in capfd.readouterr().err
    finally:
        logging.getLogger("sharpen").removeHandler(handler)
    assert (caught.value.status_code, caught.value.response.headers["x-should-retry"]) == (500, "false")


async def test_a_gateway_that_listens_everywhere_says_where_its_urls_work(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    async with make(host="0.0.0.0", token="tok-1234", launch_mode="thread") as proxy:
        assert proxy.as_resource().endpoint == f"http://127.0.0.1:{proxy.port}/v1"
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert f"http://127.0.0.1:{proxy.port or ''}" in warning
    assert "host=" in warning


async def test_totals_are_known_after_the_end(make: Make, launch_mode: Mode) -> None:
    proxy = make(launch_mode=launch_mode)
    assert (await proxy.totals()).calls == 0
    async with proxy:
        await asyncio.to_thread(ask, proxy.as_resource())
    totals = await proxy.totals()
    assert (totals.calls, totals.refused) == (1, 0)
    assert totals.output_tokens > 0


async def test_orders_to_one_that_does_not_run_are_clear_errors(make: Make) -> None:
    proxy = make()
    for order in (proxy.pause, proxy.resume, proxy.drain):
        with raises(RunError, "start()"):
            await order()
    with pytest.raises(RunError):
        proxy.pause_sync()


async def test_a_call_that_outlasts_the_grace_is_cut_and_whoever_drains_goes_on(
    make: Make, upstream: ScriptedUpstream
) -> None:
    proxy = make(launch_mode="thread")
    await proxy.start()
    hold = threading.Event()
    upstream.script(Reply(hold=hold))
    asking = asyncio.create_task(asyncio.to_thread(ask, proxy.as_resource()))
    await until(lambda: len(upstream.requests) == 1)
    draining = asyncio.create_task(proxy.drain())
    await proxy.stop()
    outcome, *_ = await asyncio.gather(draining, return_exceptions=True)
    assert outcome == 0 or isinstance(outcome, RunError)
    with pytest.raises(openai.APIError):
        await asking
    assert (await proxy.totals()).errors == 1
    hold.set()


# -- what agents are given -----------------------------------------------------------------------------


async def test_openai_and_anthropic_clients_take_the_same_base_url(make: Make, launch_mode: Mode) -> None:
    store = InMemoryLightningStore()
    rollout = await begun(store)
    async with make(launch_mode=launch_mode, store=store) as proxy:
        llm = proxy.as_resource()
        assert isinstance(llm, ProxyLLM)
        bound = llm.for_role("writer").with_attempted_rollout(rollout)
        assert await asyncio.to_thread(ask, bound) == "You said: hello"
        claude = anthropic.AsyncAnthropic(base_url=bound.get_base_url(), api_key="sk-any", max_retries=0)
        message = await claude.messages.create(
            model=bound.model, max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        )
        assert message.content[0].text == "You said: hi"  # type: ignore[union-attr]
        await claude.close()
    spans = await store.query_spans(rollout.rollout_id)
    assert [span.attributes["gen_ai.agent.name"] for span in spans] == ["writer", "writer"]


async def test_ids_bind_a_resource_to_its_attempt(make: Make) -> None:
    proxy = make(port=4321)
    bound = proxy.as_resource("ro-1", "at-1", sampling_parameters={"temperature": 0.5})
    assert type(bound) is LLM
    assert bound.endpoint == "http://127.0.0.1:4321/rollout/ro-1/attempt/at-1/v1"
    assert bound.sampling_parameters == {"temperature": 0.5}
    unbound = proxy.as_resource()
    assert unbound.get_base_url("ro-1", "at-1") == bound.endpoint
    for ids in ({"rollout_id": "ro-1"}, {"attempt_id": "at-1"}):
        with raises(ConfigError, "rollout_id", "attempt_id"):
            proxy.as_resource(**ids)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"rollout_id": 1, "attempt_id": 2}, ("rollout_id", 1)),
        ({"rollout_id": "ro-1", "attempt_id": ""}, ("attempt_id",)),
        ({"sampling_parameters": [1]}, ("sampling_parameters", 1)),
    ],
)
def test_what_no_resource_can_hold_is_refused(make: Make, given: dict[str, Any], named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        make(port=4321).as_resource(**given)


async def test_a_literal_token_in_a_store_speaks_of_the_gateway(make: Make, tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "run.db")
    with raises(SecretError, 'LLMProxy(token="env:NAME")') as caught:
        await store.add_resources({"llm": make(port=4321, token="tok-1234").as_resource()})
    assert "tok-1234" not in str(caught.value)
    await store.close()


def test_the_port_must_be_known(make: Make) -> None:
    with raises(ConfigError, "start()"):
        make().as_resource()


def test_the_model_may_be_left_out_where_there_is_one() -> None:
    entry = {"name": "a", "base_url": "http://127.0.0.1:9/v1"}
    assert LLMProxy(port=1, model_list=[entry, entry]).as_resource().model == "a"
    several = LLMProxy(port=1, model_list=[entry, {**entry, "name": "b"}])
    with pytest.raises(ConfigError):
        several.as_resource()
    assert several.as_resource(model="b").model == "b"
    with raises(ConfigError, "c"):
        several.as_resource(model="c")
    with pytest.raises(ConfigError):
        LLMProxy(port=1, model_list=[{**entry, "name": "*"}]).as_resource()
    assert LLMProxy(port=1, model_list=[{**entry, "name": "*"}]).as_resource(model="any").model == "any"
    with pytest.raises(ConfigError):
        LLMProxy(port=1).as_resource()


async def test_a_token_is_asked_for_and_travels_as_a_reference(
    make: Make, launch_mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARPEN_TEST_TOKEN", "tok-1234")
    async with make(launch_mode=launch_mode, token="env:SHARPEN_TEST_TOKEN") as proxy:
        llm = proxy.as_resource()
        assert llm.api_key == "env:SHARPEN_TEST_TOKEN"
        with pytest.raises(openai.AuthenticationError):
            await asyncio.to_thread(ask, llm)
        client = openai.AsyncOpenAI(base_url=llm.get_base_url(), api_key=llm.resolve_api_key())
        await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": "hi"}])
        await client.close()


# -- the store -----------------------------------------------------------------------------------------


async def test_a_store_is_set_before_the_start(make: Make) -> None:
    store = InMemoryLightningStore()
    proxy = make(launch_mode="thread")
    proxy.set_store(store)
    assert proxy.get_store() is store
    async with proxy:
        proxy.set_store(store)  # it is the same
        with pytest.raises(ConfigError):
            proxy.set_store(InMemoryLightningStore())
    assert proxy.get_store() is store


@pytest.mark.parametrize("launch_mode", ["thread", "process"])
async def test_a_store_that_is_not_thread_safe_is_refused(make: Make, launch_mode: Mode) -> None:
    proxy = make(launch_mode=launch_mode, store=InMemoryLightningStore(thread_safe=False))
    with pytest.raises(ConfigError):
        await proxy.start()


async def test_the_store_stays_open_after_the_gateway(make: Make, launch_mode: Mode, tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    async with make(launch_mode=launch_mode, store=store):
        pass
    assert (await begun(store)).status == "preparing"
    await store.close()


# -- redaction -----------------------------------------------------------------------------------------


async def test_a_redaction_works_wherever_the_gateway_does(make: Make, launch_mode: Mode) -> None:
    store = InMemoryLightningStore()
    rollout = await begun(store)
    async with make(launch_mode=launch_mode, store=store, redact=without_messages) as proxy:
        await asyncio.to_thread(ask, proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id))
        assert (await proxy.totals()).calls == 1
    (span,) = await store.query_spans(rollout.rollout_id)
    assert "gen_ai.request.model" in span.attributes
    assert not [name for name in span.attributes if "messages" in name]


async def test_a_redaction_that_no_other_process_knows_is_refused_there(make: Make) -> None:
    proxy = make(launch_mode="process", redact=lambda attributes: attributes)
    with pytest.raises(ConfigError):
        await proxy.start()


# -- travelling ----------------------------------------------------------------------------------------


async def test_it_travels_while_it_does_not_run(make: Make, tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    rollout = await begun(store)
    proxy = make(store=store, launch_mode="thread", limits={"run_calls": 1}, redact=lambda attributes: attributes)
    copy: LLMProxy = pickle.loads(cloudpickle.dumps(proxy))
    async with copy:
        llm = copy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)
        assert await asyncio.to_thread(ask, llm) == "You said: hello"
        with raises(openai.RateLimitError, "run_calls"):
            await asyncio.to_thread(ask, llm)
    spans = await store.query_spans(rollout.rollout_id)
    assert len(spans) == 2
    opened = copy.get_store()
    assert opened is not None
    await opened.close()
    await store.close()


async def test_it_does_not_travel_while_it_runs(make: Make) -> None:
    async with make(launch_mode="thread") as proxy:
        with raises(ConfigError, "stop()"):
            pickle.dumps(proxy)


async def test_a_store_that_could_not_come_along_is_asked_for(make: Make) -> None:
    copy: LLMProxy = pickle.loads(pickle.dumps(make(store=InMemoryLightningStore())))
    copy = pickle.loads(pickle.dumps(copy))
    with raises(ConfigError, "InMemoryLightningStore", "set_store()"):
        await copy.start()
    copy.set_store(InMemoryLightningStore())
    async with copy:
        assert copy.is_running()


# -- over the wire -------------------------------------------------------------------------------------


async def until(is_true: Callable[[], object]) -> None:
    await asyncio.to_thread(eventually, is_true)


def test_health_is_answered_without_an_upstream(make: Make) -> None:
    with make(launch_mode="thread") as proxy:
        url = proxy.as_resource().endpoint.removesuffix("/v1") + "/health"
        with urllib.request.urlopen(url) as answer:
            assert b'"in_flight":0' in answer.read()
        with raises(urllib.error.HTTPError, 403):
            urllib.request.urlopen(urllib.request.Request(url, headers={"host": "evil.example"}))


async def test_an_unpickled_gateway_closes_the_store_that_it_opened(make: Make, tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    await store.start_rollout("task")
    copy = pickle.loads(pickle.dumps(make(store=store, launch_mode="thread")))
    await copy.start()
    opened = copy.get_store()
    await copy.stop()
    with pytest.raises(SharpenError):
        await opened.query_rollouts()
    await copy.restart()
    assert len(await copy.get_store().query_rollouts()) == 1
    await copy.stop()
    assert len(await store.query_rollouts()) == 1
    await store.close()


async def test_two_gateways_of_one_name_keep_their_totals_apart(make: Make) -> None:
    store = InMemoryLightningStore()
    rollout = await begun(store)
    for calls in (2, 1):
        gateway = make(store=store, launch_mode="thread")
        await gateway.start()
        llm = gateway.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)
        for _ in range(calls):
            await asyncio.to_thread(ask, llm)
        assert (await gateway.totals()).calls == calls
