"""The model list in both forms, and what is said about a wrong one."""

import pickle
from importlib.util import find_spec
from typing import Any

import msgspec
import pytest
from rich.console import Console
from rich.pretty import pretty_repr

from sharpen import ModelEntry
from sharpen.errors import ConfigError, MissingExtraError
from tests.errors import raises
from tests.llm_proxy.internals import Refusal, missing_defaults, parse_model_list, resolve, warn_of_missing_keys

SECRET = "sk-very-secret-1234"
SERVED = {"name": "x", "base_url": "http://127.0.0.1:8000/v1"}


def parsed(entry: dict[str, Any]) -> ModelEntry:
    (found,) = parse_model_list([entry])
    return found


def litellm_form(model: str, **params: Any) -> dict[str, Any]:
    return {"model_name": "gpt", "litellm_params": {"model": model, **params}}


# -- both forms --------------------------------------------------------------------------------------


def test_both_forms_of_the_same_entry_are_equal() -> None:
    theirs = litellm_form("openai/gpt-4o", api_base="http://127.0.0.1:8000/v1/", api_key="os.environ/KEY", rpm=60)
    ours = {"name": "gpt", "model": "gpt-4o", "base_url": "http://127.0.0.1:8000/v1/", "rpm": 60}
    assert parsed(theirs) == parsed(ours | {"api_key": "os.environ/KEY"})


def test_an_entry_that_is_already_parsed_stays() -> None:
    entry = ModelEntry("gpt")
    assert parse_model_list([entry])[0] is entry


@pytest.mark.parametrize(
    ("model", "provider", "known_as", "engine"),
    [
        ("openai/gpt-4o", "openai", "gpt-4o", None),
        ("hosted_vllm/Qwen/Qwen3-4B", "openai", "Qwen/Qwen3-4B", "vllm"),
        ("anthropic/claude-sonnet-4-5", "anthropic", "claude-sonnet-4-5", None),
        ("gpt-4o-mini", "openai", "gpt-4o-mini", None),
        ("claude-haiku-4-5", "anthropic", "claude-haiku-4-5", None),
        ("openai/*", "openai", "*", None),
    ],
)
def test_the_prefix_of_a_litellm_model_says_whom_to_ask(
    model: str, provider: str, known_as: str, engine: str | None
) -> None:
    entry = parsed(litellm_form(model))
    assert (entry.provider, entry.model, entry.engine) == (provider, known_as, engine)


def test_a_litellm_model_without_prefix_is_of_the_server_that_is_given() -> None:
    entry = parsed(litellm_form("my-model", api_base="http://127.0.0.1:1/v1"))
    assert (entry.provider, entry.model) == ("openai", "my-model")


def test_public_apis_need_no_url() -> None:
    assert parsed(litellm_form("openai/gpt-4o")).url == "https://api.openai.com/v1"
    assert parsed(litellm_form("anthropic/claude-x")).url == "https://api.anthropic.com/v1"
    assert parsed({"name": "claude-haiku-4-5"}).url == "https://api.anthropic.com/v1"
    assert parsed({"name": "gpt-4o"}).url == "https://api.openai.com/v1"


def test_a_url_of_anthropic_may_leave_the_version_out() -> None:
    entry = parsed(litellm_form("anthropic/claude-x", api_base="http://127.0.0.1:9"))
    assert entry.url == "http://127.0.0.1:9/v1"


def test_litellms_form_reads_the_key_from_the_usual_variable_only_for_the_public_api() -> None:
    assert parsed(litellm_form("openai/gpt-4o")).api_key == "env:OPENAI_API_KEY"
    assert parsed(litellm_form("anthropic/claude-x")).api_key == "env:ANTHROPIC_API_KEY"
    assert parsed(litellm_form("openai/gpt-4o", api_base="http://127.0.0.1:1/v1")).api_key is None
    assert parsed({"name": "gpt-4o"}).api_key is None


def test_everything_in_litellms_form_has_its_place() -> None:
    entry = parsed(
        {
            "model_name": "gpt",
            "litellm_params": {
                "model": "openai/gpt-4o",
                "temperature": 0.5,
                "max_tokens": 100,
                "extra_body": {"min_p": 0.1},
                "timeout": 30,
                "tpm": 1000,
                "weight": 2,
                "organization": "org-1",
                "extra_headers": {"x-team": "blue"},
                "drop_params": True,
            },
            "model_info": {"input_cost_per_token": 1e-6, "id": "mine", "weights_version": 3},
            "engine": "sharpen",
        }
    )
    assert entry.defaults == {"temperature": 0.5, "max_tokens": 100, "min_p": 0.1}
    assert (entry.timeout, entry.tpm, entry.weight) == (30, 1000, 2)
    assert entry.headers == {"openai-organization": "org-1", "x-team": "blue"}
    assert (entry.input_cost_per_token, entry.weights_version, entry.engine) == (1e-6, 3, "sharpen")


def test_a_url_may_be_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_BASE", "http://127.0.0.1:7/v1")
    assert parsed(litellm_form("openai/x", api_base="os.environ/MY_BASE")).url == "http://127.0.0.1:7/v1"
    monkeypatch.delenv("MY_BASE")
    with raises(ConfigError, "MY_BASE"):
        parsed({"name": "x", "base_url": "env:MY_BASE"})


# -- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_name", "model", "asked", "upstream"),
    [
        ("gpt", None, "gpt", "gpt"),
        ("gpt", "*", "gpt", "gpt"),
        ("gpt", "gpt-4o", "gpt", "gpt-4o"),
        ("*", None, "anything", "anything"),
        ("*", "*", "anything", "anything"),
        ("anthropic/*", "*", "anthropic/claude", "claude"),
        ("small-*", "org/*-4B", "small-Qwen", "org/Qwen-4B"),
    ],
)
def test_the_upstream_is_asked_by_its_own_name(model_name: str, model: str | None, asked: str, upstream: str) -> None:
    entry = ModelEntry(model_name, model)
    assert entry.matches(asked)
    assert entry.upstream_model(asked) == upstream


def test_a_name_without_star_matches_itself_alone() -> None:
    assert not ModelEntry("gpt").matches("gpt-4o")
    assert not ModelEntry("gpt-*").matches("claude")


# -- wrong lists -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"name": "x", "base_ulr": "http://127.0.0.1"}, (2, "base_ulr", "base_url")),
        (SERVED | {"weight": "much"}, (2, "weight")),
        (SERVED | {"weight": -1}, (2, "weight", -1, 0)),
        (SERVED | {"rpm": 0}, ("rpm", 0)),
        (SERVED | {"timeout": float("nan")}, ("timeout", "nan")),
        (SERVED | {"provider": "cohere"}, ("provider", "openai", "anthropic", "litellm")),
        (SERVED | {"engine": "tgi"}, ("engine", "vllm", "sglang")),
        (SERVED | {"name": 5}, ("model_name",)),
        (SERVED | {"api_key": 12345}, ("api_key",)),
        (SERVED | {"defaults": [1]}, ("defaults",)),
        (SERVED | {"defaults": {"api_key": "x"}}, ("defaults", "api_key")),
        (SERVED | {"defaults": {"model": "x"}}, ("defaults", "model")),
        (
            SERVED | {"api_key": "env:"},
            ("api_key", "env:MY_KEY"),
        ),
        (SERVED | {"headers": {"x-a": "env:"}}, ("headers['x-a']",)),
        ({"name": ""}, ("model_name",)),
        ({"model": "gpt-4o"}, ("model_name",)),
        ({"name": "a*b", "provider": "openai"}, ("a*b",)),
        ({"name": "x", "base_url": "127.0.0.1:8000"}, ("base_url", "http://")),
        ({"name": "x", "base_url": "http://127.0.0.1:99999/v1"}, ("base_url", "http://")),
        ({"name": "x", "base_url": "http://127.0.0.1/v1/chat/completions"}, ("/chat/completions",)),
        ({"name": "x", "base_url": "http://127.0.0.1/v1?a=1"}, ("base_url",)),
        (SERVED | {"headers": {"x-a": "1", "bad name": "x"}}, (2,)),
        (SERVED | {"headers": {"x-a": "one\ntwo"}}, ("headers['x-a']",)),
        ({"name": "x", "litellm_params": "openai/x"}, ("litellm_params",)),
        ({"name": "x", "litellm_params": {"api_base": "http://127.0.0.1"}}, ("model", "openai/")),
        ({"name": "x", "litellm_params": {"model": "unheard-of"}}, ("openai/<model>",)),
        ({"name": "x", "litellm_params": {"model": "openai/x", "num_retries": 3}}, ("num_retries", "LLMProxy")),
        ({"name": "x", "litellm_params": {"model": "openai/x", "tmperature": 3}}, ("tmperature", "extra_body")),
        ("gpt-4o", (2, "model_list")),
    ],
)
def test_a_wrong_entry_is_named_with_its_number_its_key_and_what_to_do(entry: Any, named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        parse_model_list([{"name": "gpt-4o"}, entry])


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "qwen"},
        {"model_name": "qwen"},
        {"name": "gpt-4o", "model": "Qwen/Qwen3-8B"},
        {"name": "*"},
        {"name": "qwen", "base_url": None},
    ],
)
def test_prompts_and_keys_go_to_nobody_who_was_not_named(entry: dict[str, Any]) -> None:
    with raises(ConfigError, "base_url"):
        parse_model_list([entry])


@pytest.mark.parametrize("said", [{"provider": "openai"}, {"api_key": "env:OPENAI_API_KEY"}])
def test_any_model_may_be_of_the_public_api_where_it_is_said(said: dict[str, Any]) -> None:
    assert parsed({"name": "mine", **said}).url == "https://api.openai.com/v1"


@pytest.mark.parametrize("entries", [{"name": "x"}, "gpt-4o", 3, None])
def test_a_list_that_is_none_is_refused(entries: Any) -> None:
    with pytest.raises(ConfigError):
        parse_model_list(entries)


@pytest.mark.skipif(find_spec("litellm") is not None, reason="litellm is installed here")
@pytest.mark.parametrize("entry", [litellm_form("bedrock/some"), {"name": "x", "provider": "litellm"}])
def test_another_provider_names_the_extra(entry: dict[str, Any]) -> None:
    with raises(MissingExtraError, 1, "sharpen[litellm]", "openai/"):
        parse_model_list([entry])


# -- secrets -----------------------------------------------------------------------------------------


def test_a_key_is_in_no_representation() -> None:
    entry = parsed({"name": "gpt", "api_key": SECRET, "headers": {"x-auth": SECRET}, "base_url": "http://127.0.0.1/v1"})
    hidden = ModelEntry("x", provider="litellm", litellm_params={"aws_secret_access_key": SECRET})
    console = Console(record=True, width=200)
    console.print(entry, hidden)
    for shown in (repr(entry), str(entry), f"{[entry]}", pretty_repr(entry), console.export_text(), repr(hidden)):
        assert SECRET not in shown
    assert "api_key='***'" in repr(entry)


def test_a_reference_is_shown() -> None:
    assert "env:MY_KEY" in repr(ModelEntry("gpt", api_key="env:MY_KEY"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "x", "api_key": SECRET, "weight": "much"},
        {"name": "x", "api_key": [SECRET]},
        {"name": "x", "apikey": SECRET},
        {"api_key": SECRET},
        {"name": "x", "base_url": f"http://me:{SECRET}@127.0.0.1/v1"},
        {"name": "x", "headers": {"authorization": f"Bearer {SECRET}\n"}},
        {"name": "x", "headers": {"authorization": [f"Bearer {SECRET}"]}},
        {"name": "x", "litellm_params": {"api_key": SECRET}},
        {"name": "x", "litellm_params": {"model": "openai/x", "aws_secret_access_key": SECRET}},
        {"name": "x", "litellm_params": {"model": "openai/x", "mock_response": SECRET}},
        {"name": "x", "litellm_params": {"model": "openai/x"}, "model_info": SECRET},
        {"name": "x", "litellm_params": {"model": SECRET}},
        {"name": "x", "litellm_params": SECRET},
        {"name": "x", "litellm_params": ["api_key", SECRET]},
        {"name": "x", "provider": "openai", "litellm_params": {"model": SECRET}, "base_url": SECRET},
        SERVED | {"key": SECRET},
        SERVED | {"api-key": SECRET},
        SERVED | {"defaults": {"api_key": SECRET}},
        SERVED | {"defaults": f"api_key={SECRET}"},
        SERVED | {"weight": SECRET},
        SERVED | {"provider": SECRET},
        SERVED | {"engine": SECRET},
        SERVED | {"api_key": f"env:{SECRET}"},
        SERVED | {"headers": {f"authorization: Bearer {SECRET}": ""}},
        {"name": "x", "model": SECRET},
        {"name": "x", "base_url": SECRET},
        {"name": "x", "base_url": f"env:{SECRET}"},
        {"name": "x", "base_url": f"https://h/v1?api-key={SECRET}"},
        {"name": "x", "base_url": f"https://h/{SECRET}?x"},
        {"name": "x", "base_url": f"https://h/v1#{SECRET}"},
        {"name": "x", "base_url": f"https://h:{SECRET}/v1"},
        {"name": "x", "base_url": f"https://{SECRET}@h/v1/chat/completions"},
        SECRET,
        [SECRET],
    ],
)
def test_no_error_about_an_entry_shows_its_key(wrong: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_model_list([wrong])
    assert SECRET not in str(caught.value)
    assert SECRET.encode() not in pickle.dumps(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_an_entry_travels_whole_as_json() -> None:
    entry = ModelEntry("gpt", "gpt-4o", "http://127.0.0.1/v1", SECRET, defaults={"temperature": 1})
    assert msgspec.json.decode(msgspec.json.encode(entry), type=ModelEntry) == entry


@pytest.mark.parametrize("reference", ["env:MY_KEY", "os.environ/MY_KEY"])
def test_a_reference_is_read_at_the_moment_of_use(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with raises(Refusal, "MY_KEY") as caught:
        resolve(reference, what="api_key of gpt")
    assert (caught.value.status, caught.value.should_retry) == (500, False)
    monkeypatch.setenv("MY_KEY", f" {SECRET}\n")
    assert resolve(reference, what="api_key of gpt") == SECRET


def test_keys_that_are_missing_are_named_before_the_first_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    monkeypatch.setenv("MY_KEY", SECRET)
    there = parse_model_list([SERVED | {"api_key": "env:MY_KEY"}, SERVED | {"api_key": SECRET}, SERVED])
    warn_of_missing_keys(there)
    assert not caplog.records
    warn_of_missing_keys(parse_model_list([SERVED | {"api_key": "env:NO_KEY", "headers": {"x-a": "env:NO_KEY"}}]))
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("api_key of the model 'x' is 'env:NO_KEY', but the environment variable NO_KEY is not set")
    assert second.startswith("headers['x-a'] of the model 'x'")


def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", f"{SECRET}\nx")
    with raises(Refusal, "MY_KEY") as caught:
        resolve("env:MY_KEY", what="api_key")
    assert SECRET not in str(caught.value)


# -- defaults ----------------------------------------------------------------------------------------


def test_defaults_fill_what_a_request_lacks() -> None:
    defaults = {"temperature": 0.5, "top_p": 0.9}
    assert missing_defaults("chat", {"temperature": 0}, defaults) == {"top_p": 0.9}
    assert missing_defaults("chat", {"temperature": None, "top_p": 1}, defaults) == {"temperature": 0.5}


@pytest.mark.parametrize(
    ("api", "name"),
    [
        ("chat", "max_tokens"),
        ("completions", "max_tokens"),
        ("responses", "max_output_tokens"),
        ("messages", "max_tokens"),
    ],
)
def test_the_longest_answer_is_called_as_the_api_calls_it(api: Any, name: str) -> None:
    assert missing_defaults(api, {}, {"max_tokens": 5}) == {name: 5}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_a_request_that_says_its_longest_answer_in_any_words_keeps_it(name: str) -> None:
    assert missing_defaults("chat", {name: 7}, {"max_completion_tokens": 5}) == {}


def test_a_parameter_of_another_api_is_left_out_and_an_unknown_one_passed_on() -> None:
    defaults = {"n": 2, "temperature": 1, "my_engine_knob": True}
    assert missing_defaults("embeddings", {}, defaults) == {}
    assert missing_defaults("messages", {}, defaults) == {"temperature": 1, "my_engine_knob": True}
    assert missing_defaults("chat", {}, defaults) == defaults
