"""The OpenAPI document of the store, made from the table of its methods."""

from typing import Any

import msgspec

from .._version import __version__
from .base import MAX_ID_LENGTH
from .methods import METHODS, Method
from .queries import ATTEMPT_SORTS, RESOURCES_SORTS, ROLLOUT_SORTS, SPAN_SORTS, WORKER_SORTS

REF = "#/components/schemas/{name}"
SORTS = {
    "query_rollouts": ROLLOUT_SORTS,
    "query_attempts": ATTEMPT_SORTS,
    "query_spans": SPAN_SORTS,
    "query_resources": RESOURCES_SORTS,
    "query_workers": WORKER_SORTS,
}
ID = {"type": "string", "minLength": 1, "maxLength": MAX_ID_LENGTH}


class ErrorDetail(msgspec.Struct):
    """The class of the error and its message."""

    type: str
    message: str


class ErrorBody(msgspec.Struct):
    """The body of every error response."""

    error: ErrorDetail


def document() -> dict[str, Any]:
    """All paths with their parameters, bodies and answers."""
    methods = list(METHODS.values())
    types = [ErrorBody, *(m.request_type for m in methods), *(m.answer_type for m in methods)]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    requests = dict(zip([m.name for m in methods], schemas[1 : 1 + len(methods)], strict=True))
    answers = dict(zip([m.name for m in methods], schemas[1 + len(methods) :], strict=True))
    paths: dict[str, Any] = {}
    for method in methods:
        name = requests[method.name]["$ref"].rsplit("/", 1)[1]
        operation = _operation(method, components[name], requests[method.name], answers[method.name])
        paths.setdefault(f"/v1{method.path}", {})[method.verb.lower()] = operation
        if "requestBody" not in operation:
            del components[name]  # its fields are listed as parameters
    paths["/v1/traces"] = {"post": _traces()}
    paths["/v1/batch"] = {"post": _batch()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sharpen store", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(method: Method, fields: dict[str, Any], request: Any, answer: Any) -> dict[str, Any]:
    if method.verb == "GET":
        answer = _without_null(answer)  # a thing that is not there is answered with 404
    operation: dict[str, Any] = {
        "operationId": method.name,
        "summary": method.summary,
        "parameters": [{"name": name, "in": "path", "required": True, "schema": ID} for name in method.path_parameters],
        "responses": {"200": _json("The result", answer), **_errors(method)},
    }
    if method.verb == "GET":
        required = fields.get("required", [])
        operation["parameters"] += [
            {"name": name, "in": "query", "required": name in required, "schema": _query_schema(method, name, schema)}
            for name, schema in fields["properties"].items()
        ]
    elif fields["properties"]:
        operation["requestBody"] = {
            "required": bool(fields.get("required")),
            "content": {"application/json": {"schema": request}},
        }
    return operation


def _query_schema(method: Method, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"enum": list(SORTS[method.name])} if name == "sort_by" else schema


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The same, where null cannot stand."""
    choices = [choice for choice in schema.get("anyOf", []) if choice != {"type": "null"}]
    return choices[0] if len(choices) == 1 else schema


def _json(description: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _errors(method: Method) -> dict[str, Any]:
    described = {
        "400": "An invalid value",
        "401": "The token is missing or wrong",
        "403": "The host or origin is not allowed",
        "404": "Not found",
        "409": "The rollout has finished and cannot change",
        "413": "The request is too large",
        "421": "The header sharpen-store names a store that this server does not serve",
        "503": "The store is temporarily unavailable; try again",
    }
    if method.verb != "GET":
        described["415"] = "The body is not JSON"
    if method.name == "query_spans":
        described["410"] = "The spans were dropped"
    error = {"$ref": REF.format(name="ErrorBody")}
    return {status: _json(text, error) for status, text in described.items()}


def _batch() -> dict[str, Any]:
    entry = {
        "type": "object",
        "properties": {
            "verb": {"enum": ["POST", "PATCH"]},
            "path": {"type": "string"},
            "body": {"description": "The body of the request; errors in it are reported in its own result"},
        },
        "required": ["verb", "path"],
        "additionalProperties": False,
    }
    answer = {
        "type": "object",
        "properties": {"status": {"type": "integer"}, "body": {}},
        "required": ["status", "body"],
    }
    requests = {"type": "array", "items": entry, "description": "At most 256"}
    schema = {"type": "object", "properties": {"requests": requests}, "required": ["requests"]}
    errors = {status: error for status, error in _errors(METHODS["add_many_spans"]).items() if status != "409"}
    return {
        "operationId": "write_batch",
        "summary": "Send several writes in one request; each succeeds or fails independently",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema | {"additionalProperties": False}}},
        },
        "responses": {"200": _json("One result per request", {"type": "array", "items": answer}), **errors},
    }


def _traces() -> dict[str, Any]:
    # Protobuf has no JSON schema: OTLP's own documents say what is in it.
    content = {"application/json": {"schema": {"type": "object"}}, "application/x-protobuf": {}}
    errors = {status: error for status, error in _errors(METHODS["add_many_spans"]).items() if status != "409"}
    return {
        "operationId": "export_traces",
        "summary": "Store OTLP traces from an OpenTelemetry exporter",
        "requestBody": {"required": True, "content": content},
        "responses": {"200": {"description": "The OTLP response", "content": content}, **errors},
    }
