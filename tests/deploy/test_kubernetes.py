"""The manifests of Kubernetes in `deploy/`: they fit the official schemas, our commands and our servers."""

import ast
import asyncio
import re
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from sharpen import InMemoryLightningStore, LightningStoreServer, LLMProxy
from tests.cli.internals import make_parser

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
VERSION = "1.37.0"
_REFERENCE = re.compile(r"\$\((\w+)\)")


@cache
def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def everything() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in FILES:
        for document in documents(path):
            yield path.name, document


def pods() -> dict[str, dict[str, Any]]:
    """The pods, by the file that they stand in."""
    return {name: each["spec"]["template"]["spec"] for name, each in everything() if "template" in each.get("spec", {})}


def containers() -> dict[str, dict[str, Any]]:
    return {name: pod["containers"][0] for name, pod in pods().items()}


def addresses() -> dict[str, str]:
    return next(each["data"] for _, each in everything() if each["kind"] == "ConfigMap")


def words(container: dict[str, Any]) -> list[str]:
    """The command with what Kubernetes puts in for `$(NAME)`."""
    known = addresses()
    return [_REFERENCE.sub(lambda found: known[found[1]], word) for word in container["args"]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_manifest_fits_the_official_schema(path: Path) -> None:
    for document in documents(path):
        assert VERSION.startswith(kubernetes_validate.validate(document, VERSION, strict=True))


def test_there_is_a_pod_for_every_role() -> None:
    roles = {file: words(container)[0] for file, container in containers().items()}
    assert roles == {
        "algorithm.yaml": "algorithm",
        "gateway.yaml": "gateway",
        "runners.yaml": "runner",
        "store.yaml": "store",
        "store-database.yaml": "store",
    }


@pytest.mark.parametrize("file", containers())
def test_the_command_of_a_container_is_one_of_ours(file: str) -> None:
    container = containers()[file]
    parsed = make_parser().parse_args(words(container))
    if parsed.command in ("store", "gateway"):
        assert parsed.host == "0.0.0.0"
        assert container["ports"] == [{"name": "http", "containerPort": parsed.port}]
    if parsed.command != "store":
        assert parsed.store == addresses()["SHARPEN_STORE_URL"]
    if parsed.command == "algorithm":
        assert parsed.resume == "unfinished"


def test_the_addresses_are_those_of_the_services() -> None:
    services = {each["metadata"]["name"]: each["spec"] for _, each in everything() if each["kind"] == "Service"}
    for name, variable in (("sharpen-store", "SHARPEN_STORE_URL"), ("sharpen-gateway", "SHARPEN_GATEWAY_URL")):
        (port,) = services[name]["ports"]
        assert addresses()[variable] == f"http://{name}:{port['port']}"
        assert port["targetPort"] == "http"
    for _, each in everything():
        if each["kind"] == "Deployment":
            assert each["spec"]["selector"]["matchLabels"] == each["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("file", containers())
def test_a_pod_has_few_rights_and_reads_its_secrets_by_reference(file: str) -> None:
    pod, container = pods()[file], containers()[file]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"requests", "limits"} <= set(container["resources"])
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    secret = [each["name"] for each in container["env"] if "secretKeyRef" in each.get("valueFrom", {})]
    assert "SHARPEN_TOKEN" in secret
    assert ("UPSTREAM_API_KEY" in secret) == (file == "gateway.yaml")
    assert ("SHARPEN_DATABASE_URL" in secret) == (file == "store-database.yaml")
    plain = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    assert set(plain) <= {"XDG_STATE_HOME", "SHARPEN_RUNS"}


def test_the_image_runs_our_program_as_the_user_of_the_pods() -> None:
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    given = dict(line.split(" ", 1) for line in lines if line[:1].isalpha())
    assert ast.literal_eval(given["ENTRYPOINT"]) == ["sharpen"]
    make_parser().parse_args(ast.literal_eval(given["CMD"]))
    users = {(pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) for pod in pods().values()}
    assert users == {tuple(map(int, given["USER"].split(":")))}
    files = given["COPY"].split()[:-1]
    assert all((FOLDER.parent / each).is_file() for each in files)


# -- probes ------------------------------------------------------------------------------------------


def probes(role: str) -> set[str]:
    """The paths that a role is asked for."""
    found = [each for each in containers().values() if each["args"][0] == role]
    names = ("startupProbe", "readinessProbe", "livenessProbe")
    return {each[name]["httpGet"]["path"] for each in found for name in names}


def status(url: str) -> int:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return int(answer.status)


async def test_the_store_answers_its_probes_without_a_token() -> None:
    server = LightningStoreServer(InMemoryLightningStore(), token="a-token")
    await server.start()
    try:
        assert probes("store") == {"/health"}
        for path in probes("store"):
            assert await asyncio.to_thread(status, server.endpoint + path) == 200
    finally:
        await server.stop()


def test_the_gateway_answers_its_probes_without_a_token() -> None:
    models = [{"name": "small", "base_url": "http://127.0.0.1:9/v1"}]
    with LLMProxy(model_list=models, token="a-token", launch_mode="thread") as gateway:
        assert probes("gateway") == {"/health"}
        for path in probes("gateway"):
            assert status(f"http://127.0.0.1:{gateway.port}{path}") == 200
