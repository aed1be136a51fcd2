"""A gateway that has another address than before: what waits in the store is told, and nothing else changes."""

from sharpen import LLM, InMemoryLightningStore, PromptTemplate, ProxyLLM
from tests.trainer.internals import move_endpoint

OLD, NEW = "http://127.0.0.1:4000", "http://127.0.0.1:5000"


def llm_at(address: str) -> ProxyLLM:
    return ProxyLLM(f"{address}/role/solver/v1", "main")


async def resources_of(store, rollout_id):
    rollout = await store.get_rollout_by_id(rollout_id)
    return (await store.get_resources_by_id(rollout.resources_id, rollout.resources_version)).resources


async def test_every_rollout_keeps_its_own_resources_with_the_new_address():
    store = InMemoryLightningStore()
    first = await store.add_resources({"llm": llm_at(OLD), "prompt": PromptTemplate("first")}, "rs-1")
    await store.enqueue_rollout("a", rollout_id="ro-first")
    await store.update_resources(first.resources_id, {"llm": llm_at(OLD), "prompt": PromptTemplate("second")})
    await store.enqueue_rollout("b", rollout_id="ro-second")
    await move_endpoint(store, OLD, NEW)
    for name in ("first", "second"):
        found = await resources_of(store, f"ro-{name}")
        assert found == {"llm": llm_at(NEW), "prompt": PromptTemplate(name)}
    assert (await store.get_rollout_by_id("ro-second")).resources_id == "rs-1"
    latest = await store.get_latest_resources()
    assert (latest.resources_id, latest.resources["prompt"]) == ("rs-1", PromptTemplate("second"))


async def test_a_rollout_that_was_handed_back_is_told_and_a_finished_one_is_not():
    store = InMemoryLightningStore()
    await store.add_resources({"llm": llm_at(OLD)})
    for name in ("ro-done", "ro-again"):
        await store.enqueue_rollout(name, rollout_id=name)
    done, again = await store.dequeue_rollout(), await store.dequeue_rollout()
    await store.complete_attempt(done.rollout_id, done.attempt.attempt_id)
    await store.update_rollout(again.rollout_id, status="requeuing")
    await move_endpoint(store, OLD, NEW)
    assert (await resources_of(store, "ro-again"))["llm"] == llm_at(NEW)
    assert (await resources_of(store, "ro-done"))["llm"] == llm_at(OLD)


async def test_what_is_elsewhere_stays_there():
    store = InMemoryLightningStore()
    others = {"near": ProxyLLM("http://127.0.0.1:40001/v1", "m"), "plain": LLM(f"{OLD}/v1", "m")}
    before = await store.add_resources(others)
    await store.enqueue_rollout("a", rollout_id="ro-a")
    await move_endpoint(store, OLD, NEW)
    assert await store.get_latest_resources() == before
    assert await resources_of(store, "ro-a") == others


async def test_the_latest_resources_stay_the_latest_also_where_they_name_no_gateway():
    store = InMemoryLightningStore()
    await store.add_resources({"llm": llm_at(OLD)}, "rs-1")
    await store.enqueue_rollout("a", rollout_id="ro-a")
    latest = await store.add_resources({"prompt": PromptTemplate("newer")}, "rs-2")
    await move_endpoint(store, OLD, NEW)
    assert (await resources_of(store, "ro-a"))["llm"] == llm_at(NEW)
    found = await store.get_latest_resources()
    assert (found.resources_id, found.resources) == (latest.resources_id, latest.resources)
