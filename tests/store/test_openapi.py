"""The OpenAPI document: valid, complete, and true to what the server does."""

import json

import jsonschema_rs
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31

from tests.store.internals import MAX_WAIT_SECONDS, METHODS, openapi

from .served import serve

VERBS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}


@pytest.fixture(scope="module")
def document():
    # As it travels: what JSON changes is changed here, too.
    return json.loads(json.dumps(openapi.document()))


def operations(document):
    for path, item in document["paths"].items():
        for verb in item.keys() & VERBS:
            yield verb.upper(), path, item[verb]


def references(value):
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


async def test_the_document_is_served(document):
    async with serve() as served:
        reply = await served.curl("GET", "/v1/openapi.json")
        assert reply.status == 200
        assert reply.json == document


def test_the_document_is_valid_openapi(document):
    assert document["openapi"].startswith("3.1.")
    errors = [str(error) for error in jsonschema_rs.Draft202012Validator(OPENAPI_31).iter_errors(document)]
    assert errors == []


def test_every_schema_is_valid(document):
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def test_every_reference_leads_to_a_schema_and_every_schema_is_used(document):
    found = set(references(document))
    assert found == {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def test_the_document_lists_exactly_the_methods_of_the_store_and_traces(document):
    listed = {(verb, path, operation["operationId"]) for verb, path, operation in operations(document)}
    methods = {(method.verb, f"/v1{method.path}", name) for name, method in METHODS.items()}
    assert listed == methods | {("POST", "/v1/traces", "export_traces"), ("POST", "/v1/batch", "write_batch")}


def test_every_argument_of_every_method_is_listed_once(document):
    for _, _, operation in operations(document):
        method = METHODS.get(operation["operationId"])
        if method is None:
            continue
        parameters = [parameter["name"] for parameter in operation["parameters"]]
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        schema = document["components"]["schemas"].get(body.get("$ref", "").rsplit("/", 1)[-1], {})
        assert sorted([*parameters, *schema.get("properties", {})]) == sorted(method.parameters)
        required = {p["name"] for p in operation["parameters"] if p["required"]} | set(schema.get("required", []))
        assert required == set(method.required)


def test_every_path_parameter_is_declared(document):
    for _, path, operation in operations(document):
        declared = [p["name"] for p in operation.get("parameters", []) if p["in"] == "path"]
        assert declared == [part[1:-1] for part in path.split("/") if part.startswith("{")]


def test_names_in_the_document_are_words_not_modules(document):
    for name in document["components"]["schemas"]:
        assert "sharpen" not in name


def test_every_error_has_the_same_form(document):
    for _, _, operation in operations(document):
        assert {"200", "400", "401", "403", "404", "413", "503"} <= operation["responses"].keys()
        for status, response in operation["responses"].items():
            if status != "200":
                assert response["content"] == {
                    "application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}
                }


def test_traces_are_taken_in_both_forms(document):
    operation = document["paths"]["/v1/traces"]["post"]
    assert operation["requestBody"]["content"].keys() == {"application/json", "application/x-protobuf"}


def test_a_token_may_be_needed(document):
    assert document["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    assert {"token": []} in document["security"]


def test_a_wait_is_shorter_than_the_patience_of_common_proxies():
    assert MAX_WAIT_SECONDS < 60
