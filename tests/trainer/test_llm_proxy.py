"""A gateway as a part of a run: real agents with the real SDK, a real gateway, a scripted model behind it."""

import asyncio
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from sharpen import (
    LLM,
    Algorithm,
    InMemoryLightningStore,
    LlmProxyTraceToTriplet,
    PromptTemplate,
    ProxyLLM,
    SQLiteStore,
    algo,
    llm_rollout,
)
from sharpen.components import build_component
from sharpen.errors import ConfigError, PortTakenError
from sharpen.llm_proxy import LLMProxy
from sharpen.semconv import SHARPEN_LLM_CALL
from sharpen.tracer import DummyTracer, OtelTracer
from sharpen.trainer import Trainer
from tests.errors import raises
from tests.llm_proxy.scripted import Reply, ScriptedUpstream

from .scenes import double, small_trainer, until


@pytest.fixture
def vllm() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream(engine="vllm", default_reply=Reply("four")) as running:
        yield running


def models(upstream: ScriptedUpstream, *names: str) -> list[dict[str, Any]]:
    address = {"base_url": upstream.base_url, "api_key": "sk-upstream"}
    return [{"name": name, "model": "scripted", **address} for name in names or ("main",)]


@llm_rollout
def ask(task: str, llm: LLM) -> float:
    """An agent that knows nothing of the gateway."""
    with OpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as client:
        answer = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])
    return float(answer.choices[0].message.content == "four")


@algo
async def ask_all(store: Any, train_dataset: Any) -> None:
    """Enqueues every task and waits."""
    rollouts = [await store.enqueue_rollout(task, rollout_id=f"ro-{task}") for task in train_dataset]
    await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in rollouts])


def rollouts_of(store: Any) -> dict[str, Any]:
    return {each.rollout_id: each for each in asyncio.run(store.query_rollouts())}


def calls_of(store: Any, rollout_id: str) -> list[Any]:
    return list(asyncio.run(store.query_spans(rollout_id, name=SHARPEN_LLM_CALL)))


LAYOUTS: dict[str, dict[str, Any]] = {
    "shm-memory": {"strategy": "shm", "store": "memory"},
    "shm-sqlite": {"strategy": "shm"},
    "cs": {"strategy": "cs"},
    "cs-memory": {"strategy": "cs", "store": "memory"},
    "cs-runner": {"strategy": {"type": "cs", "main_process": "runner"}},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_of_an_agent_are_recorded_with_their_rollout_under_every_strategy(
    vllm: ScriptedUpstream, layout: str, capfd: pytest.CaptureFixture[str]
) -> None:
    proxy = LLMProxy(model_list=models(vllm))
    trainer = Trainer(algorithm=ask_all, llm_proxy=proxy, **LAYOUTS[layout])
    result = trainer.fit(ask, ["one", "two", "three"])
    assert result.status == "succeeded"
    assert {each.reward for each in rollouts_of(trainer.store).values()} == {1.0}
    for rollout_id in ("ro-one", "ro-two", "ro-three"):
        (span,) = calls_of(trainer.store, rollout_id)
        assert span.attributes["gen_ai.response.id"].startswith("chatcmpl")
    assert result.metrics["llm/calls"] == 3
    assert result.metrics["llm/refused"] == 0
    assert result.metrics["llm/input_tokens"] > 0
    assert result.metrics["llm/output_tokens"] > 0
    assert "LLM calls: 3; tokens: " in capfd.readouterr().err
    assert not proxy.is_running()


def test_a_gateway_that_was_started_apart_is_used_by_its_address(
    vllm: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARPEN_GATEWAY_TOKEN", raising=False)
    store = InMemoryLightningStore(thread_safe=True)
    with LLMProxy(model_list=models(vllm), store=store, launch_mode="thread") as gateway:
        url = f"http://127.0.0.1:{gateway.port}"
        for count in (1, 2):  # the second run does not count the calls of the first
            trainer = Trainer(algorithm=ask_all, llm_proxy=url, store=store, strategy="shm")
            result = trainer.fit(ask, [f"{count}-{number}" for number in range(count)])
            assert result.metrics["llm/calls"] == count
            latest = asyncio.run(store.get_latest_resources())
            assert latest is not None
            assert latest.resources == {"main_llm": ProxyLLM(f"{url}/v1", "main")}
        assert gateway.is_running()
    assert len(calls_of(store, "ro-2-1")) == 1


def test_a_cost_that_nobody_knows_is_not_nothing(vllm: ScriptedUpstream, capfd: pytest.CaptureFixture[str]) -> None:
    result = small_trainer(algorithm=ask_all, llm_proxy={"model_list": models(vllm)}).fit(ask, ["one"])
    assert "llm/cost" not in result.metrics
    assert result.metrics["llm/unpriced"] == 1
    assert ", 1 call of unknown price" in capfd.readouterr().err
    [entry] = models(vllm)
    priced = {**entry, "input_cost_per_token": 0.0, "output_cost_per_token": 0.0}
    free = small_trainer(algorithm=ask_all, llm_proxy={"model_list": [priced]}).fit(ask, ["one"])
    assert free.metrics["llm/cost"] == 0.0
    assert "llm/unpriced" not in free.metrics


def test_what_was_sampled_comes_back_as_triplets_with_token_ids(vllm: ScriptedUpstream) -> None:
    trainer = small_trainer(algorithm=ask_all, llm_proxy={"model_list": models(vllm)}, adapter="LlmProxyTraceToTriplet")
    trainer.fit(ask, ["one"])
    (triplet,) = LlmProxyTraceToTriplet().adapt(list(asyncio.run(trainer.store.query_spans("ro-one"))))
    assert all(isinstance(each, int) for each in triplet.prompt["token_ids"] + triplet.response["token_ids"])
    assert len(triplet.response["token_ids"]) == len(triplet.response["logprobs"]) > 0
    assert triplet.reward == 1.0


def test_an_async_agent_and_the_default_algorithm_work_too(vllm: ScriptedUpstream) -> None:
    from openai import AsyncOpenAI

    @llm_rollout
    async def ask_async(task: str, llm: LLM) -> float:
        async with AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
            said = await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])
        return float(said.choices[0].message.content == "four")

    trainer = small_trainer(llm_proxy={"model_list": models(vllm)})
    result = trainer.dev(ask_async, ["one", "two"])
    assert result.metrics["reward_mean"] == 1.0
    assert result.metrics["llm/calls"] == 2


def test_agents_that_wait_for_their_model_are_said_to(vllm: ScriptedUpstream, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", logger="sharpen")

    def warnings() -> list[str]:
        return [each.getMessage() for each in caplog.records if "nothing has finished" in each.getMessage()]

    @algo
    async def hold(store: Any, llm_proxy: Any) -> None:
        await llm_proxy.pause()
        await store.enqueue_rollout("one", rollout_id="ro-one")
        await asyncio.to_thread(until, lambda: any("1 calls are held" in each for each in warnings()))
        await llm_proxy.resume()
        await store.wait_for_rollouts(rollout_ids=["ro-one"])

    trainer = small_trainer(algorithm=hold, llm_proxy={"model_list": models(vllm)}, stall_seconds=0.2)
    assert trainer.fit(ask).metrics["succeeded"] == 1
    assert not any("preparing" in each for each in warnings())


# -- resources ---------------------------------------------------------------------------------------


def published(trainer: Trainer) -> dict[str, Any]:
    assert trainer.result is not None
    return dict(trainer.result.best_resources or {})


def test_the_gateway_is_added_to_other_resources_as_the_main_llm(vllm: ScriptedUpstream) -> None:
    seen = {}

    @algo
    async def look(initial_resources: Any, llm_proxy: Any) -> None:
        seen.update(initial_resources, is_running=llm_proxy.is_running())

    prompt = PromptTemplate("say {word}")
    trainer = small_trainer(
        algorithm=look, llm_proxy={"model_list": models(vllm)}, initial_resources={"prompt": prompt}
    )
    trainer.fit(ask)
    assert seen["is_running"]
    assert seen["prompt"] == published(trainer)["prompt"] == prompt
    assert isinstance(seen["main_llm"], ProxyLLM)
    assert seen["main_llm"].model == "main"
    assert published(trainer)["main_llm"] == seen["main_llm"]


def test_an_llm_of_the_users_own_stays_the_only_one(vllm: ScriptedUpstream) -> None:
    mine = LLM(vllm.base_url, "scripted")
    trainer = small_trainer(
        algorithm=ask_all, llm_proxy={"model_list": models(vllm)}, initial_resources={"judge": mine}
    )
    result = trainer.fit(ask, ["one"])
    assert published(trainer) == {"judge": mine}
    assert result.metrics["llm/calls"] == 0


def test_another_thing_of_the_name_is_refused(vllm: ScriptedUpstream) -> None:
    resources = {"main_llm": PromptTemplate("no model")}
    trainer = small_trainer(algorithm=ask_all, llm_proxy={"model_list": models(vllm)}, initial_resources=resources)
    with raises(ConfigError, "main_llm"):
        trainer.fit(ask, ["one"])


def test_of_several_models_the_first_is_the_main_one(vllm: ScriptedUpstream) -> None:
    trainer = small_trainer(algorithm=ask_all, llm_proxy={"model_list": models(vllm, "first", "second")})
    trainer.fit(ask, ["one"])
    assert published(trainer)["main_llm"].model == "first"


def test_a_gateway_without_models_waits_for_the_algorithm_to_bring_them(vllm: ScriptedUpstream) -> None:
    @algo
    async def bring(store: Any, llm_proxy: Any, initial_resources: Any) -> None:
        assert initial_resources is None
        llm_proxy.update_model_list(models(vllm))
        await store.add_resources({"policy": llm_proxy.as_resource()})
        rollout = await store.enqueue_rollout("one", rollout_id="ro-one")
        await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])

    trainer = small_trainer(algorithm=bring, llm_proxy="LLMProxy")
    result = trainer.fit(ask)
    assert rollouts_of(trainer.store)["ro-one"].reward == 1.0
    assert result.metrics["llm/calls"] == 1


def test_an_agent_that_asks_for_an_llm_of_a_gateway_without_models_is_told_at_the_start() -> None:
    with raises(ConfigError, "main_llm"):
        small_trainer(llm_proxy="LLMProxy").dev(ask, ["one", "two"])


def test_a_gateway_without_models_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert small_trainer(llm_proxy="LLMProxy").dev(double, [1, 2]).status == "succeeded"
    assert "no main_llm is published" in caplog.text


# -- content -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "tracer", "is_warned"),
    [
        ({"capture_content": False}, None, True),
        ({"redact": str.upper}, None, True),
        ({"capture_content": False}, OtelTracer(capture_content=False), False),
        ({"capture_content": False}, DummyTracer(), False),
        ({}, None, False),
    ],
)
def test_a_tracer_that_writes_what_the_gateway_hides_is_warned_of_once(
    vllm: ScriptedUpstream, options: Any, tracer: Any, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = LLMProxy(model_list=models(vllm), **options)
    small_trainer(llm_proxy=proxy, tracer=tracer).dev(double, [1, 2])
    assert caplog.text.count("tracer=OtelTracer(capture_content=False)") == is_warned


# -- its life ----------------------------------------------------------------------------------------


def test_a_gateway_that_runs_already_is_used_and_goes_on(vllm: ScriptedUpstream) -> None:
    store = InMemoryLightningStore(thread_safe=True)
    with LLMProxy(model_list=models(vllm), store=store, launch_mode="thread") as proxy:
        for round_ in (1, 2):
            trainer = Trainer(algorithm=ask_all, llm_proxy=proxy, strategy="shm", store=store)
            result = trainer.fit(ask, [f"{round_}-one", f"{round_}-two"])
            assert result.metrics["llm/calls"] == 2  # of this run
            assert proxy.is_running()


def test_a_gateway_can_be_used_by_one_run_after_another(vllm: ScriptedUpstream) -> None:
    mine = InMemoryLightningStore(thread_safe=True)
    proxy = LLMProxy(model_list=models(vllm), store=mine)
    for _ in range(2):
        trainer = Trainer(algorithm=ask_all, llm_proxy=proxy, strategy="shm", store="memory")
        assert trainer.fit(ask, ["one"]).metrics["llm/calls"] == 1
        assert len(calls_of(trainer.store, "ro-one")) == 1
        assert proxy.get_store() is mine
        assert proxy.port is None


def test_a_gateway_is_stopped_when_the_algorithm_fails(vllm: ScriptedUpstream) -> None:
    proxy = LLMProxy(model_list=models(vllm))

    @algo
    async def fail() -> None:
        assert proxy.is_running()
        raise LookupError("nothing learnt")

    with raises(LookupError, "nothing learnt"):
        small_trainer(algorithm=fail, llm_proxy=proxy).fit(ask)
    assert not proxy.is_running()


@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_a_taken_port_of_the_gateway_ends_the_run_with_a_clear_error(vllm: ScriptedUpstream, strategy: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        proxy = LLMProxy(port=taken.getsockname()[1], model_list=models(vllm))
        with raises(PortTakenError, taken.getsockname()[1]):
            Trainer(algorithm=ask_all, llm_proxy=proxy, strategy=strategy).fit(ask, ["one"])


def test_a_run_without_an_algorithm_has_its_gateway_too(vllm: ScriptedUpstream) -> None:
    import threading

    trainer = small_trainer(llm_proxy={"model_list": models(vllm)})
    store = trainer.store
    running = threading.Thread(target=lambda: trainer.fit(ask))
    running.start()
    try:
        asyncio.run(_enqueue_once_resources_are_there(store))
    finally:
        trainer.stop()
        running.join()
    assert rollouts_of(store)["ro-one"].reward == 1.0


async def _enqueue_once_resources_are_there(store: Any) -> None:
    while await store.get_latest_resources() is None:
        await asyncio.sleep(0.01)
    await store.enqueue_rollout("one", rollout_id="ro-one")
    await store.wait_for_rollouts(rollout_ids=["ro-one"])


def test_the_gateway_of_an_algorithm_gives_it_a_client(vllm: ScriptedUpstream) -> None:
    from sharpen import Algorithm

    said = []

    class Asks(Algorithm[Any]):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            client = self.get_client()
            answer = await client.chat.completions.create(model="main", messages=[{"role": "user", "content": "2+2"}])
            said.append(answer.choices[0].message.content)
            await client.close()

    result = small_trainer(algorithm=Asks, llm_proxy={"model_list": models(vllm)}).fit(ask)
    assert said == ["four"]
    assert result.metrics["llm/calls"] == 1


def test_a_limit_of_the_run_is_counted_in_its_result(vllm: ScriptedUpstream) -> None:
    spec = {"model_list": models(vllm), "limits": {"run_calls": 1}}
    result = small_trainer(algorithm=ask_all, llm_proxy=spec).fit(ask, ["one", "two", "three"])
    assert result.metrics["llm/calls"] == 1
    assert result.metrics["llm/refused"] == 2


def test_the_folder_of_a_run_may_have_any_name(vllm: ScriptedUpstream, tmp_path: Path) -> None:
    folder = tmp_path / "my run #1 ä?"
    trainer = small_trainer(algorithm=ask_all, llm_proxy={"model_list": models(vllm)}, run_dir=folder)
    assert trainer.fit(ask, ["one"]).metrics["llm/calls"] == 1


def test_limits_of_a_run_are_its_own_in_a_store_that_several_runs_use(vllm: ScriptedUpstream) -> None:
    store = InMemoryLightningStore(thread_safe=True)
    proxy = LLMProxy(model_list=models(vllm), limits={"run_calls": 1})
    for name in ("first", "second"):
        trainer = Trainer(algorithm=ask_all, llm_proxy=proxy, strategy="shm", store=store, name=name)
        result = trainer.fit(ask, [f"{name}-one", f"{name}-two"])
        assert (result.metrics["llm/calls"], result.metrics["llm/refused"]) == (1, 1)
    assert proxy.name == "gateway"


def test_the_name_of_the_gateway_is_known() -> None:
    assert isinstance(build_component("LLMProxy", expected_type=LLMProxy, spec_name="llm_proxy"), LLMProxy)


def test_no_key_is_written_into_the_folder_of_a_run(vllm: ScriptedUpstream) -> None:
    trainer = Trainer(algorithm=ask_all, llm_proxy={"model_list": models(vllm)}, strategy="shm")
    result = trainer.fit(ask, ["one"])
    assert result.run_dir is not None
    files = [path for path in Path(result.run_dir).rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"sk-upstream" in path.read_bytes()]


# -- resume ------------------------------------------------------------------------------------------


@algo
async def leave_early(store: Any) -> None:
    """The first half: one rollout is done, one waits, then it breaks."""
    await store.enqueue_rollout("one", rollout_id="ro-one")
    await store.wait_for_rollouts(rollout_ids=["ro-one"])
    raise ConnectionError("broken")


def _broken_run(vllm: ScriptedUpstream) -> tuple[Path, ProxyLLM]:
    trainer = Trainer(algorithm=leave_early, llm_proxy={"model_list": models(vllm)}, strategy="shm")
    with pytest.raises(ConnectionError):
        trainer.fit(ask)
    assert trainer.result is not None
    assert trainer.result.run_dir is not None
    asyncio.run(trainer.store.enqueue_rollout("two", rollout_id="ro-two"))  # it waits, bound to the old address
    asyncio.run(trainer.store.close())
    return trainer.result.run_dir, published(trainer)["main_llm"]


@algo
async def finish(store: Any) -> None:
    await store.wait_for_rollouts(rollout_ids=["ro-two"])


def _resume(vllm: ScriptedUpstream, folder: Path) -> Trainer:
    trainer = Trainer(algorithm=finish, llm_proxy={"model_list": models(vllm)}, strategy="shm")
    trainer.fit(ask, resume=folder)
    return trainer


def test_a_run_that_goes_on_has_its_gateway_where_it_was_and_counts_on(vllm: ScriptedUpstream) -> None:
    folder, before = _broken_run(vllm)
    trainer = _resume(vllm, folder)
    assert trainer.result is not None
    assert rollouts_of(trainer.store)["ro-two"].reward == 1.0
    assert published(trainer)["main_llm"] == before
    assert trainer.result.metrics["llm/calls"] == 2


def test_a_run_of_an_earlier_version_goes_on_with_its_gateway_where_it_was(vllm: ScriptedUpstream) -> None:
    folder, before = _broken_run(vllm)
    address = before.endpoint.partition("/v1")[0]
    (folder / "checkpoints" / "gateway.json").unlink()
    store = SQLiteStore(folder / "store.db")  # which had the address, as a worker
    asyncio.run(store.update_worker(f"gateway-of-{folder.name}", {"address": address}))
    asyncio.run(store.close())
    trainer = _resume(vllm, folder)
    assert rollouts_of(trainer.store)["ro-two"].reward == 1.0
    assert published(trainer)["main_llm"] == before


@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_runners_find_no_work_before_the_gateway_answers(vllm: ScriptedUpstream, strategy: str, tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    asyncio.run(store.enqueue_rollout("one", rollout_id="ro-one"))
    proxy = LLMProxy(model_list=models(vllm))
    start, claimed = proxy.start, []

    async def start_late() -> None:
        await asyncio.sleep(1)
        claimed.extend(await store.query_rollouts(status_in=["preparing", "running"]))
        await start()

    proxy.start = start_late  # type: ignore[method-assign]

    @algo
    async def wait(store: Any) -> None:
        await store.wait_for_rollouts(rollout_ids=["ro-one"])

    Trainer(algorithm=wait, llm_proxy=proxy, strategy=strategy, store=store).fit(lambda task: 1.0)
    assert not claimed
    assert asyncio.run(store.get_rollout_by_id("ro-one")).reward == 1.0
    assert not asyncio.run(store.query_workers(worker_id_contains="gateway-of")).items
    asyncio.run(store.close())


def test_a_run_that_goes_on_tells_what_waits_when_the_port_of_its_gateway_was_taken(vllm: ScriptedUpstream) -> None:
    folder, before = _broken_run(vllm)
    port = int(before.endpoint.rpartition(":")[2].partition("/")[0])
    with socket.create_server(("127.0.0.1", port)):
        trainer = _resume(vllm, folder)
    assert rollouts_of(trainer.store)["ro-two"].reward == 1.0
    after = published(trainer)["main_llm"]
    assert after.endpoint != before.endpoint
    assert after.model == before.model


RUN = """
import sys
from openai import OpenAI
from sharpen import LLM, Trainer, llm_rollout

@llm_rollout
def agent(task: int, llm: LLM) -> float:
    with OpenAI(base_url=llm.endpoint, api_key="none", max_retries=0) as client:
        client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": str(task)}])
    return 1.0

retried = {"unresponsive_seconds": 1, "max_attempts": 3, "retry_condition": ["unresponsive"]}
models = [{"name": "main", "model": "scripted", "base_url": sys.argv[1]}]
algorithm = {"type": "Baseline", "train_split": 1}
trainer = Trainer(
    strategy="shm", algorithm=algorithm, n_runners=2, rollout_config=retried, llm_proxy={"model_list": models}
)
result = trainer.fit(agent, range(40), resume=sys.argv[2] if len(sys.argv) > 2 else None)
print(result.metrics["rollouts"], result.metrics["reward_mean"], int(result.metrics["llm/calls"]))
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_with_its_gateway_and_no_rollout_fails(vllm: ScriptedUpstream, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(RUN)
    command = [sys.executable, str(script), vllm.base_url]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as first:
        until(lambda: len(vllm.requests) >= 10)
        first.kill()
    done = subprocess.run([*command, "last"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    rollouts, reward, calls = done.stdout.split()
    assert (rollouts, reward) == ("40", "1.0")
    assert 0 < int(calls) <= len(vllm.requests)  # the last second before the kill may be missing


# -- who may call it -----------------------------------------------------------------------------------


def status_of(url: str, key: str | None = "anything") -> int:
    """What the gateway answers to a call, or to a GET of a page."""
    body = (
        b'{"model": "main", "messages": [{"role": "user", "content": "hi"}]}' if url.endswith("completions") else None
    )
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@llm_rollout
def pry(task: str, llm: LLM) -> float:
    """What an agent can call, and what is left of the attempt before it."""
    base, _, _ = llm.endpoint.partition("/rollout/")
    own = [status_of(f"{llm.endpoint}{path}", key) for path in ("/chat/completions", "/models") for key in ("x", None)]
    others = [
        status_of(f"{base}{path}", key)
        for path in ("/v1/chat/completions", "/v1/models", "/totals")
        for key in ("anything", None)
    ]
    attempt = llm.endpoint.removesuffix("/v1")
    guessed = status_of(f"{attempt[:-1]}{'0' if attempt[-1] != '0' else '1'}/v1/chat/completions")
    before = Path(task)
    assert (own, others, guessed, status_of(f"{base}/health")) == ([200] * 4, [401] * 6, 404, 200)
    if before.exists():
        until(lambda: status_of(f"{before.read_text()}/chat/completions") == 409)
    before.write_text(llm.endpoint, "utf-8")
    return 1.0


def test_without_the_token_of_the_run_only_the_url_of_an_open_attempt_can_be_called(
    vllm: ScriptedUpstream, tmp_path: Path
) -> None:
    @algo
    async def two_in_turn(store: Any, llm_proxy: Any) -> None:
        for _ in range(2):
            rollout = await store.enqueue_rollout(str(tmp_path / "before"))
            (done,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
            assert done.reward == 1.0, await store.query_attempts(rollout.rollout_id)
        url = llm_proxy.as_resource().endpoint
        token = llm_proxy.run_token
        for path in ("/v1/models", "/v1/chat/completions", "/totals"):
            assert await asyncio.to_thread(status_of, url.replace("/v1", path), token) == 200

    trainer = small_trainer(algorithm=two_in_turn, llm_proxy=LLMProxy(model_list=models(vllm), strict=False))
    assert trainer.fit(pry).status == "succeeded"


def test_an_algorithm_calls_the_gateway_of_its_run_by_its_client(vllm: ScriptedUpstream) -> None:
    class Asks(Algorithm[Any]):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            async with self.get_client() as client:
                answer = await client.chat.completions.create(
                    model="main", messages=[{"role": "user", "content": "two and two"}]
                )
            assert answer.choices[0].message.content == "four"

    assert small_trainer(algorithm=Asks(), llm_proxy={"model_list": models(vllm)}).fit(double).status == "succeeded"
    assert all("Bearer sk-upstream" in str(each.headers) for each in vllm.requests)


def test_a_gateway_is_as_open_after_a_run_as_before(vllm: ScriptedUpstream) -> None:
    proxy = LLMProxy(model_list=models(vllm))
    small_trainer(algorithm=ask_all, llm_proxy=proxy).fit(ask, ["one"])
    with proxy:
        assert proxy.run_token is None
        assert status_of(f"{proxy.as_resource().endpoint}/chat/completions", None) == 200
