"""Resources: versions that never change, and the latest of them."""

import pytest

from sharpen.errors import InvalidInputError, SecretError
from sharpen.types import LLM, PromptTemplate, ProxyLLM
from tests.errors import raises

A = {"prompt": PromptTemplate("a")}
B = {"prompt": PromptTemplate("b")}
C = {"prompt": PromptTemplate("c")}
SECRET = {"main": LLM("http://localhost:8000/v1", "small", api_key="sk-secret")}
REFERENCE = {"main": LLM("http://localhost:8000/v1", "small", api_key="env:OPENAI_API_KEY")}


async def test_new_resources_are_version_one_and_the_latest(store, clock):
    resources = {
        "main": ProxyLLM("http://gateway/v1", "small", sampling_parameters={"temperature": 0.5}),
        "judge": LLM("http://judge/v1", "big"),
        "prompt": PromptTemplate("Hi {{ name }}", engine="jinja"),
    }
    update = await store.add_resources(resources)
    assert (update.version, update.resources) == (1, resources)
    assert (update.create_time, update.update_time) == (clock.now, clock.now)
    assert type(update.resources["main"]) is ProxyLLM
    assert await store.get_latest_resources() == update
    assert await store.get_resources_by_id(update.resources_id) == update


async def test_an_update_is_the_next_version_and_the_latest(store, clock):
    first = await store.add_resources(A, resources_id="rs-1")
    clock.advance(5)
    second = await store.update_resources("rs-1", B)
    assert (second.resources_id, second.version, second.resources) == ("rs-1", 2, B)
    assert (second.create_time, second.update_time) == (first.create_time, clock.now)
    assert await store.get_latest_resources() == second


async def test_every_version_is_kept_and_none_changes(store):
    first = await store.add_resources(A, resources_id="rs-1")
    assert await store.get_resources_by_id("rs-1") == first
    second = await store.update_resources("rs-1", B)
    assert await store.get_resources_by_id("rs-1") == second
    third = await store.update_resources("rs-1", C)
    assert [await store.get_resources_by_id("rs-1", version=n) for n in (1, 2, 3)] == [first, second, third]
    assert await store.get_resources_by_id("rs-1") == third
    assert await store.get_resources_by_id("rs-1", version=4) is None


async def test_what_was_stored_does_not_change_with_the_callers_dict(store):
    resources = dict(A)
    await store.add_resources(resources, resources_id="rs-1")
    resources["prompt"] = PromptTemplate("changed")
    assert (await store.get_resources_by_id("rs-1", version=1)).resources == A


async def test_adding_the_same_id_twice_is_one_version(store):
    first = await store.add_resources(A, resources_id="rs-1")
    again = await store.add_resources(B, resources_id="rs-1")
    assert again == first
    assert (await store.query_resources()).total == 1


async def test_adding_the_same_id_again_publishes_nothing(store):
    first = await store.add_resources(A, resources_id="rs-1")
    await store.update_resources("rs-1", B)
    latest = await store.add_resources(C, resources_id="rs-2")
    assert await store.add_resources(A, resources_id="rs-1") == first
    assert await store.get_latest_resources() == latest


async def test_an_update_is_repeatable_by_its_request_id(store):
    await store.add_resources(A, resources_id="rs-1")
    second = await store.update_resources("rs-1", B, request_id="req-1")
    again = await store.update_resources("rs-1", B, request_id="req-1")
    third = await store.update_resources("rs-1", B, request_id="req-2")
    assert again == second
    assert (second.version, third.version) == (2, 3)


async def test_two_updates_without_a_request_id_are_two_versions(store):
    await store.add_resources(A, resources_id="rs-1")
    assert (await store.update_resources("rs-1", A)).version == 2
    assert (await store.update_resources("rs-1", A)).version == 3


async def test_the_latest_is_what_was_published_last_also_under_an_older_id(store):
    await store.add_resources(A, resources_id="rs-1")
    await store.add_resources(B, resources_id="rs-2")
    update = await store.update_resources("rs-1", C)
    assert await store.get_latest_resources() == update


async def test_the_latest_does_not_depend_on_the_clock(store, clock):
    await store.add_resources(A, resources_id="rs-1")
    clock.advance(-100)
    update = await store.add_resources(B, resources_id="rs-2")
    assert await store.get_latest_resources() == update


async def test_an_update_of_a_new_id_is_its_first_version(store, clock):
    update = await store.update_resources("rs-new", A, request_id="req-1")
    assert (update.version, update.resources, update.create_time) == (1, A, clock.now)
    assert await store.get_latest_resources() == update
    assert await store.update_resources("rs-new", A, request_id="req-1") == update
    assert (await store.update_resources("rs-new", B)).version == 2
    with raises(InvalidInputError, "bad id"):
        await store.update_resources("bad id", A)


@pytest.fixture
async def published(store):
    """Five versions under three ids."""
    await store.add_resources(A, resources_id="rs-b1")
    await store.add_resources(A, resources_id="rs-a1")
    await store.update_resources("rs-b1", B)
    await store.add_resources(A, resources_id="rs-a2")
    await store.update_resources("rs-a1", B)


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["rs-b1/1", "rs-a1/1", "rs-b1/2", "rs-a2/1", "rs-a1/2"]),
        ({"resources_id": "rs-b1"}, ["rs-b1/1", "rs-b1/2"]),
        ({"resources_id_contains": "-a"}, ["rs-a1/1", "rs-a2/1", "rs-a1/2"]),
        ({"resources_id": "rs-a2", "resources_id_contains": "b"}, []),
        (
            {"resources_id": "rs-a2", "resources_id_contains": "b", "filter_logic": "or"},
            ["rs-b1/1", "rs-b1/2", "rs-a2/1"],
        ),
        ({"sort_order": "desc"}, ["rs-a1/2", "rs-a2/1", "rs-b1/2", "rs-a1/1", "rs-b1/1"]),
        ({"resources_id": "rs-b1", "sort_by": "version", "sort_order": "desc"}, ["rs-b1/2", "rs-b1/1"]),
    ],
    ids=str,
)
async def test_versions_are_filtered_and_sorted_in_the_store(store, query, expected):
    page = await store.query_resources(**query, all_versions=True)
    assert [f"{update.resources_id}/{update.version}" for update in page] == expected
    assert page.total == len(expected)


@pytest.mark.usefixtures("published")
async def test_a_page_of_versions_knows_the_total(store):
    page = await store.query_resources(limit=2, offset=2, all_versions=True)
    assert [f"{update.resources_id}/{update.version}" for update in page] == ["rs-b1/2", "rs-a2/1"]
    assert (page.limit, page.offset, page.total) == (2, 2, 5)


async def test_a_literal_key_is_refused_where_it_would_be_written_down(json_store):
    with pytest.raises(SecretError) as caught:
        await json_store.add_resources(SECRET)
    assert "sk-secret" not in str(caught.value)
    assert await json_store.get_latest_resources() is None
    await json_store.add_resources(REFERENCE, resources_id="rs-1")
    with raises(SecretError, "main"):
        await json_store.update_resources("rs-1", SECRET)
    assert (await json_store.get_resources_by_id("rs-1")).resources == REFERENCE


async def test_a_literal_key_stays_in_a_store_of_this_process(object_store):
    update = await object_store.add_resources(SECRET)
    assert (await object_store.get_resources_by_id(update.resources_id)).resources == SECRET


async def test_a_reference_to_a_key_is_kept_as_a_reference(store, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    update = await store.add_resources(REFERENCE)
    assert (await store.get_resources_by_id(update.resources_id)).resources["main"].api_key == "env:OPENAI_API_KEY"


@pytest.mark.parametrize(
    "wrong", [{"main": "http://localhost"}, {"main": {"endpoint": "x"}}, ["a"], None, "x"], ids=str
)
async def test_what_is_no_resource_is_refused(store, wrong):
    with pytest.raises(InvalidInputError):
        await store.add_resources(wrong)
    assert await store.get_latest_resources() is None


async def test_a_request_id_stands_for_one_thing_only(store):
    first = await store.add_resources({"prompt": PromptTemplate("a")})
    other = await store.add_resources({"prompt": PromptTemplate("b")})
    await store.update_resources(first.resources_id, {"prompt": PromptTemplate("c")}, request_id="rq-1")
    with raises(ValueError, "rq-1"):
        await store.update_resources(other.resources_id, {"prompt": PromptTemplate("c")}, request_id="rq-1")
    with raises(ValueError, "request_id"):
        await store.update_resources(other.resources_id, {"prompt": PromptTemplate("c")}, request_id="")
    assert (await store.get_resources_by_id(other.resources_id)).version == 1


@pytest.mark.usefixtures("published")
async def test_each_id_is_listed_once_with_its_newest_version(store):
    def listed(page):
        return [f"{update.resources_id}/{update.version}" for update in page]

    page = await store.query_resources()
    assert (listed(page), page.total) == (["rs-b1/2", "rs-a2/1", "rs-a1/2"], 3)
    assert listed(await store.query_resources(resources_id="rs-b1")) == ["rs-b1/2"]
    assert listed(await store.query_resources(resources_id_contains="-a", sort_order="desc", limit=1)) == ["rs-a1/2"]
