"""The store over plain HTTP: every route, and what is answered to a request that is wrong."""

from urllib.parse import quote, urlencode

import msgspec
import pytest

from sharpen.semconv import PRIMARY_REWARD_VALUE
from sharpen.store import SQLiteStore
from tests.store.internals import METHODS

from .scenes import claim_new, finish_new, make_span
from .served import JSON, KINDS, Curl, Served, curl_to, lasting, make_store, serve, sizes

PROMPT = {"main": {"resource_type": "prompt_template", "template": "Be brief: {task}"}}

# One example of each method: what goes into its path, and its other arguments. The name of an id stands for one
# that is there.
EXAMPLES = {
    "enqueue_rollout": ({}, {"input": {"question": "6 * 7"}, "mode": "train"}),
    "enqueue_many_rollouts": ({}, {"requests": [{"input": 1}, {"input": 2, "config": {"max_attempts": 2}}]}),
    "start_rollout": ({}, {"input": None, "worker_id": "w-2", "config": {"max_attempts": 2}}),
    "cancel_rollouts": ({}, {"rollout_ids": ["rollout_id"]}),
    "wait_for_rollouts": ({}, {"rollout_ids": ["rollout_id"], "timeout": 0}),
    "finished_rollouts": ({}, {"after": 0, "limit": 5, "wait_seconds": 0}),
    "query_rollouts": ({}, {"status_in": ["running", "queuing"], "limit": 10, "sort_by": "start_time"}),
    "search_rollouts": ({}, {"status_in": ["queuing"], "text": "task", "order": "finished", "limit": 2}),
    "get_rollout_by_id": ({"rollout_id": "rollout_id"}, {}),
    "update_rollout": ({"rollout_id": "rollout_id"}, {"metadata": {"seen": True}}),
    "dequeue_rollout": ({}, {"worker_id": "w-2"}),
    "dequeue_many_rollouts": ({}, {"limit": 2}),
    "start_attempt": ({"rollout_id": "rollout_id"}, {"worker_id": "w-2"}),
    "query_attempts": ({"rollout_id": "rollout_id"}, {"sort_order": "desc"}),
    "get_latest_attempt": ({"rollout_id": "rollout_id"}, {}),
    "update_attempt": ({"rollout_id": "rollout_id", "attempt_id": "latest"}, {"status": "running"}),
    "complete_attempt": ({"rollout_id": "rollout_id", "attempt_id": "latest"}, {"reward": 0.5}),
    "get_next_span_sequence_id": ({"rollout_id": "rollout_id", "attempt_id": "latest"}, {}),
    "get_many_span_sequence_ids": ({}, {"pairs": [["rollout_id", "latest"], ["rollout_id", "latest"]]}),
    "add_span": ({}, {"span": {"span_id": "s-2"}}),
    "add_many_spans": ({}, {"spans": [{"span_id": "s-2"}, {"span_id": "s-3"}]}),
    "query_spans": ({"rollout_id": "rollout_id"}, {"name_contains": "call", "limit": 1}),
    "add_resources": ({}, {"resources": PROMPT}),
    "update_resources": ({"resources_id": "resources_id"}, {"resources": PROMPT}),
    "get_latest_resources": ({}, {}),
    "get_resources_by_id": ({"resources_id": "resources_id"}, {"version": 1}),
    "query_resources": ({}, {"resources_id": "resources_id"}),
    "update_worker": ({"worker_id": "w-1"}, {"heartbeat_stats": {"cpu": 0.5}}),
    "get_worker_by_id": ({"worker_id": "w-1"}, {}),
    "query_workers": ({}, {"status_in": ["busy"]}),
    "statistics": ({}, {}),
    "prune": ({}, {"older_than": 0}),
}


@pytest.fixture(params=KINDS)
async def served(request, tmp_path):
    async with serve(make_store(request.param, tmp_path)) as opened:
        yield opened


@pytest.fixture
def curl(served: Served) -> Curl:
    return served.curl


@pytest.fixture(scope="module", params=KINDS)
def lasting_server(request, tmp_path_factory):
    with lasting(make_store(request.param, tmp_path_factory.mktemp("lasting"))) as server:
        yield server


@pytest.fixture
async def shared(lasting_server):
    async with curl_to(lasting_server.endpoint) as curl:
        yield curl


@pytest.fixture
async def refused(shared):
    """A client whose requests must leave the store as it is."""
    before = await sizes(shared)
    yield shared
    assert await sizes(shared) == before


async def fill(curl: Curl) -> dict[str, str]:
    """A rollout with an attempt and a span, and a set of resources; gives the ids of a span of it."""
    resources = (await curl("POST", "/v1/resources", {"resources": PROMPT})).json
    started = (await curl("POST", "/v1/rollouts:start", {"input": "task", "worker_id": "w-1"})).json
    ids = {"rollout_id": started["rollout_id"], "attempt_id": started["attempt"]["attempt_id"], "trace_id": "t-1"}
    span = {**ids, "span_id": "s-1", "sequence_id": 0, "name": "call"}
    assert (await curl("POST", "/v1/spans", {"span": span})).status == 200
    return ids | {"resources_id": resources["resources_id"]}


def put_in(value, ids: dict[str, str]):
    """The example, with the ids that `fill` gave in the places of their names, and every span made whole."""
    if isinstance(value, list | tuple):
        return [put_in(item, ids) for item in value]
    if isinstance(value, dict) and "span_id" in value:
        return {"sequence_id": 0, **ids, **value}
    if isinstance(value, dict):
        return {key: put_in(item, ids) for key, item in value.items()}
    return ids.get(value, value) if isinstance(value, str) else value


# -- every route -------------------------------------------------------------------------------------


def test_every_method_has_an_example():
    assert EXAMPLES.keys() == METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
async def test_every_method_answers_a_plain_request_with_json(shared, name):
    method = METHODS[name]
    path_ids, arguments = put_in(EXAMPLES[name], await fill(shared))
    path = "/v1" + method.path.format(**path_ids)
    if method.verb == "GET":
        reply = await shared("GET", f"{path}?{urlencode(arguments, doseq=True)}")
    else:
        reply = await shared(method.verb, path, arguments)
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == JSON
    msgspec.json.decode(reply.body, type=method.answer_type)


async def test_a_post_without_arguments_needs_no_body(served):
    rollout = await served.store.enqueue_rollout("task")
    assert (await served.curl("POST", "/v1/queue:claim")).json["rollout_id"] == rollout.rollout_id
    assert (await served.curl("POST", "/v1/queue:claim")).json is None


async def test_answers_name_the_store_behind_the_server(served):
    reply = await served.curl("GET", "/v1/statistics")
    assert reply.headers["sharpen-store"] == served.store.store_id
    assert (await served.curl("GET", "/health")).json["store_id"] == served.store.store_id


async def test_a_task_comes_back_as_it_was_sent(curl):
    task = {"text": "héllo ☃ \x00 😀", "big": 2**70, "list": [None, True, 1.5, [], {}]}
    sent = (await curl("POST", "/v1/rollouts", {"input": task})).json
    claimed = (await curl("POST", "/v1/queue:claim", {})).json
    assert sent["input"] == claimed["input"] == task


@pytest.mark.parametrize("rollout_id", ["plain", "a:b@c!$&'()*+,;=~-._", "ümläut", "日本語😀", "..x", "{}", "null"])
async def test_ids_are_read_percent_encoded(shared, rollout_id):
    await shared("POST", "/v1/rollouts", {"input": 1, "rollout_id": rollout_id})
    found = await shared("GET", f"/v1/rollouts/{quote(rollout_id, safe='')}")
    assert found.json["rollout_id"] == rollout_id
    by_query = await shared("GET", "/v1/rollouts?" + urlencode({"rollout_id_in": rollout_id}))
    assert [each["rollout_id"] for each in by_query.json["items"]] == [rollout_id]


async def test_a_number_beyond_64_bits_in_a_span_breaks_nothing(curl):
    ids = await fill(curl)
    span = put_in({"span_id": "s-2", "attributes": {"big": 2**70}}, ids)
    assert (await curl("POST", "/v1/spans", {"span": span})).status == 200
    for path in ("/v1/statistics", "/metrics"):
        assert (await curl("GET", path)).status == 200
    rollout = f"/v1/rollouts/{ids['rollout_id']}"
    assert (await curl("POST", f"{rollout}/attempts/latest/completion", {})).status == 200
    found = (await curl("GET", f"{rollout}/spans?span_id=s-2")).json
    assert found["items"][0]["attributes"] == {"big": 2**70}


async def test_a_list_in_a_query_is_the_parameter_repeated(served):
    store, curl = served.store, served.curl
    await finish_new(store, "good")
    await finish_new(store, "bad", status="failed")
    await store.enqueue_rollout("later")
    reply = await curl("GET", "/v1/rollouts?status_in=failed&status_in=succeeded")
    assert {rollout["input"] for rollout in reply.json["items"]} == {"good", "bad"}
    reply = await curl("GET", "/v1/rollouts?status_in=failed")
    assert [rollout["input"] for rollout in reply.json["items"]] == ["bad"]


async def test_text_in_a_query_is_taken_as_it_is(served):
    claimed = await claim_new(served.store)
    await served.store.add_many_spans([make_span(claimed, name=name) for name in ("null", "1", "a+b c&d=é")])
    for name in ("null", "1", "a+b c&d=é"):
        query = urlencode({"name": name})
        reply = await served.curl("GET", f"/v1/rollouts/{claimed.rollout_id}/spans?{query}")
        assert [span["name"] for span in reply.json["items"]] == [name]


# -- requests that are wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "truncated"),
        (b'{"input": 1,}', "malformed"),
        (b'{"input": NaN}', "malformed"),
        (b'{"input": 1e999}', "$.input"),
        (b'{"input": ' + b"9" * 5000 + b"}", "$.input"),
        (b'{"input": "\xff"}', "utf-8"),
        (b'{"input": "\\ud800"}', ""),
        (b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
        (b"[]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b"", "`input`"),
        (b"{}", "`input`"),
        (b'{"input": 1, "colour": "red"}', "`colour`"),
        (b'{"input": 1, "mode": "sing"}', "$.mode"),
        (b'{"input": 1, "mode": 5}', "$.mode"),
        (b'{"input": 1, "metadata": []}', "$.metadata"),
        (b'{"input": 1, "config": {"max_attempts": "two"}}', "$.config.max_attempts"),
        (b'{"input": 1, "config": {"max_attempts": 0}}', "max_attempts is 0"),
        (b'{"input": 1, "config": {"timeout_seconds": -1}}', "timeout_seconds is -1"),
        (b'{"input": 1, "config": {"retry_condition": ["sometimes"]}}', "$.config.retry_condition[0]"),
        (b'{"input": 1, "rollout_id": 7}', "$.rollout_id"),
        (b'{"input": 1, "rollout_id": "a b"}', "rollout_id is 'a b'"),
        (b'{"input": 1, "rollout_id": ""}', "rollout_id is ''"),
    ],
    ids=lambda value: str(value[:60]),
)
async def test_a_wrong_body_is_refused_by_the_name_of_the_field(refused, body, words):
    reply = await refused("POST", "/v1/rollouts", data=body)
    kind, message = reply.error
    assert (reply.status, kind) == (400, "InvalidInputError")
    assert words in message


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/rollouts?colour=red", "`colour`"),
        ("/v1/rollouts?limit=many", "$.limit"),
        ("/v1/rollouts?limit=", "$.limit"),
        ("/v1/rollouts?limit=-2", "$.limit"),
        ("/v1/rollouts?limit=9999999999999999999999", "$.limit"),
        ("/v1/rollouts?offset=-1", "$.offset"),
        ("/v1/rollouts?limit=1&limit=2", "'limit' is given twice"),
        ("/v1/rollouts?status_in=lost", "$.status_in[0]"),
        ("/v1/rollouts?mode=Train", "$.mode"),
        ("/v1/rollouts?mode=null", "$.mode"),
        ("/v1/rollouts?reward_min=null", "$.reward_min"),
        ("/v1/rollouts?reward_min=nan", "reward_min is nan"),
        ("/v1/rollouts?reward_max=-inf", "reward_max is -inf"),
        ("/v1/rollouts?sort_by=colour", "sort_by is 'colour'"),
        ("/v1/rollouts?sort_order=up", "$.sort_order"),
        ("/v1/rollouts?filter_logic=xor", "$.filter_logic"),
        ("/v1/rollouts?status_in=failed&status=failed", "status"),
        ("/v1/rollouts:finished?wait_seconds=nan", "wait_seconds"),
        ("/v1/rollouts:finished?limit=0", "$.limit"),
        ("/v1/resources/rs-1?version=0", "$.version"),
        ("/v1/resources/rs-1?version=9999999999999999999999", "$.version"),
    ],
)
async def test_a_wrong_query_is_refused_by_the_name_of_the_parameter(refused, path, words):
    reply = await refused("GET", path)
    kind, message = reply.error
    assert (reply.status, kind) == (400, "InvalidInputError")
    assert words in message


async def test_arguments_of_a_write_are_not_looked_for_in_the_query(served):
    await served.store.enqueue_rollout("task")
    reply = await served.curl("POST", "/v1/queue:claim?worker_id=w-1")
    assert (reply.status, reply.error[0]) == (400, "InvalidInputError")
    assert "body" in reply.error[1]
    assert (await served.store.statistics())["queue_length"] == 1


@pytest.mark.parametrize(
    ("verb", "path", "body"),
    [
        ("PATCH", "/v1/rollouts/nobody", {"mode": "val"}),
        ("POST", "/v1/rollouts/nobody/attempts", {}),
        ("GET", "/v1/rollouts/nobody/attempts", None),
        ("PATCH", "/v1/rollouts/{rollout_id}/attempts/nobody", {"status": "running"}),
        ("POST", "/v1/rollouts/{rollout_id}/attempts/nobody/completion", {}),
        ("POST", "/v1/rollouts/{rollout_id}/attempts/nobody/sequence", {}),
        ("POST", "/v1/rollouts:cancel", {"rollout_ids": ["rollout_id", "nobody"]}),
        ("POST", "/v1/rollouts:wait", {"rollout_ids": ["rollout_id", "nobody"]}),
        ("POST", "/v1/spans:sequence", {"pairs": [["rollout_id", "latest"], ["nobody", "latest"]]}),
        ("POST", "/v1/rollouts", {"input": 1, "resources_id": "nobody"}),
    ],
)
async def test_an_unknown_id_is_404_with_the_id(shared, verb, path, body):
    ids = await fill(shared)
    before = await sizes(shared)
    reply = await shared(verb, path.format(**ids), put_in(body, ids))
    assert (reply.status, reply.error[0]) == (404, "UnknownIdError")
    assert "'nobody'" in reply.error[1]
    assert await sizes(shared) == before


@pytest.mark.parametrize(
    "path",
    ["/v1/rollouts/nobody", "/v1/rollouts/nobody/attempts:latest", "/v1/resources/nobody", "/v1/workers/nobody"],
)
async def test_a_thing_that_is_not_there_is_404(refused, path):
    reply = await refused("GET", path)
    assert (reply.status, reply.error[0]) == (404, "Nothing")


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/", "/v1/nowhere", "/v2/rollouts", "/v1/rollouts/", "/v1//rollouts", "/v1/rollouts/a%2Fb/x"],
)
async def test_a_path_that_leads_nowhere_is_404(refused, path):
    reply = await refused("GET", path)
    assert reply.status == 404
    assert "openapi.json" in reply.error[1]


@pytest.mark.parametrize(
    ("verb", "path", "allowed"),
    [
        ("DELETE", "/v1/rollouts/ro-1", {"GET", "PATCH"}),
        ("PUT", "/v1/rollouts", {"GET", "POST"}),
        ("OPTIONS", "/v1/rollouts", {"GET", "POST"}),
        ("GET", "/v1/queue:claim", {"POST"}),
        ("POST", "/v1/statistics", {"GET"}),
        ("GET", "/v1/traces", {"POST"}),
        ("POST", "/v1/openapi.json", {"GET"}),
        ("POST", "/health", {"GET"}),
        ("DELETE", "/metrics", {"GET"}),
    ],
)
async def test_a_wrong_verb_is_405_and_names_the_right_ones(refused, verb, path, allowed):
    reply = await refused(verb, path)
    assert reply.status == 405
    assert set(reply.headers["allow"].split(", ")) == allowed
    assert reply.error[0] == "InvalidInputError"


@pytest.mark.parametrize("verb", ["HEAD", "TRACE", "PROPFIND"])
async def test_no_path_answers_a_verb_that_it_does_not_know(refused, verb):
    for method in METHODS.values():
        assert (await refused(verb, "/v1" + method.path.format(**EXAMPLES[method.name][0]))).status == 405


async def test_without_resources_there_are_no_latest_ones(curl):
    reply = await curl("GET", "/v1/resources:latest")
    assert (reply.status, reply.error[0]) == (404, "Nothing")


async def test_a_finished_rollout_that_is_changed_is_409(served):
    done = await finish_new(served.store)
    for verb, path, body in (
        ("PATCH", f"/v1/rollouts/{done.rollout_id}", {"status": "running"}),
        ("POST", f"/v1/rollouts/{done.rollout_id}/attempts", {}),
    ):
        reply = await served.curl(verb, path, body)
        assert (reply.status, reply.error[0]) == (409, "FinishedError")
        assert done.rollout_id in reply.error[1]


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""])
async def test_a_body_of_another_type_is_415(refused, content_type):
    reply = await refused("POST", "/v1/rollouts", data=b'{"input": 1}', headers={"content-type": content_type})
    assert (reply.status, reply.error[0]) == (415, "InvalidInputError")
    assert JSON in reply.error[1]


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
async def test_the_type_of_a_body_may_be_spelled_freely(shared, content_type):
    reply = await shared("POST", "/v1/rollouts", data=b'{"input": 1}', headers={"content-type": content_type})
    assert reply.status == 200


async def test_a_literal_key_is_refused_by_a_durable_store(tmp_path):
    llm = {"resource_type": "llm", "endpoint": "http://model", "model": "m", "api_key": "sk-very-secret"}
    async with serve(SQLiteStore(tmp_path / "store.db")) as served:
        reply = await served.curl("POST", "/v1/resources", {"resources": {"main": llm}})
        assert (reply.status, reply.error[0]) == (400, "SecretError")
        assert b"sk-very-secret" not in reply.body


# -- nothing half-written ----------------------------------------------------------------------------


async def test_a_batch_with_one_wrong_rollout_enqueues_none(refused):
    for wrong in ({"input": 1, "rollout_id": "a b"}, {"input": 1, "mode": "sing"}, {"input": 1, "colour": "red"}):
        reply = await refused("POST", "/v1/rollouts:batch", {"requests": [{"input": 0}, wrong]})
        assert reply.status == 400
    reply = await refused(
        "POST", "/v1/rollouts:batch", {"requests": [{"input": 0}, {"input": 1, "resources_id": "no"}]}
    )
    assert reply.status == 404


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"rollout_id": "nobody"}, 404),
        ({"attempt_id": "nobody"}, 404),
        ({"sequence_id": 2**70}, 400),
        ({"sequence_id": 2**63 - 1}, 400),
        ({"status": {"status_code": "FINE"}}, 400),
        ({"start_time": "noon"}, 400),
        ({"attributes": {PRIMARY_REWARD_VALUE: "a lot"}}, 400),
    ],
    ids=str,
)
async def test_a_batch_with_one_wrong_span_stores_none(shared, wrong, status):
    ids = await fill(shared)
    good = put_in({"span_id": "s-2"}, ids)
    reply = await shared("POST", "/v1/spans:batch", {"spans": [good, good | {"span_id": "s-3"} | wrong]})
    assert reply.status == status, reply.body
    found = (await shared("GET", f"/v1/rollouts/{ids['rollout_id']}/spans")).json
    assert [span["span_id"] for span in found["items"]] == ["s-1"]


async def test_a_refused_completion_leaves_the_attempt_running(shared):
    ids = await fill(shared)
    rollout = f"/v1/rollouts/{ids['rollout_id']}"
    foreign = put_in({"span_id": "s-2", "attempt_id": "another"}, ids)
    for body in ({"status": "running"}, {"reward": "high"}, {"spans": [foreign]}, {"metadata": 5}):
        assert (await shared("POST", f"{rollout}/attempts/{ids['attempt_id']}/completion", body)).status == 400
    found = (await shared("GET", rollout)).json
    assert (found["status"], found["reward"], found["attempt"]["status"]) == ("running", None, "running")
    assert (await shared("GET", f"{rollout}/spans")).json["total"] == 1
