"""`train.yaml`: it reads as the same configuration again, and holds no secret."""

from pathlib import Path
from typing import Any

import pytest

from sharpen.errors import ConfigError
from tests.cli.internals import TrainConfig, keep_config, load_config, make_plan
from tests.cli.projects import write

SECRETS = """
    agent: agent.py:plain
    train_dataset: [{n: 1, token: word}]
    initial_resources:
      llm: {type: LLM, endpoint: "http://me:literal-hush@localhost/v1", model: small, api_key: literal-hush}
    llm_proxy:
      model_list:
        - {model_name: m, api_key: literal-hush, base_url: "http://localhost/v1"}
        - {model_name: n, api_key: EMPTY, base_url: "http://localhost/v1"}
"""


def kept_of(config: TrainConfig, folder: Path) -> Path:
    folder.mkdir()
    return keep_config(config, folder)


def test_a_secret_of_the_file_is_kept_as_a_reference_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(write(tmp_path / "project", SECRETS))
    kept = kept_of(config, tmp_path / "run")
    text = kept.read_text()
    assert "hush" not in text
    assert "hush" not in str(make_plan(config).values)
    (told,) = [line for line in text.splitlines() if line.startswith("# ") and "SECRET_" in line]
    assert "SECRET_LLM_PROXY_MODEL_LIST_0_API_KEY" in told
    assert kept.stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError):
        load_config(kept)
    monkeypatch.setenv("SECRET_INITIAL_RESOURCES_LLM_API_KEY", "literal-hush")
    monkeypatch.setenv("SECRET_LLM_PROXY_MODEL_LIST_0_API_KEY", "literal-hush")
    monkeypatch.setenv("SECRET_INITIAL_RESOURCES_LLM_ENDPOINT", "http://me:literal-hush@localhost/v1")
    assert load_config(kept).values == {**config.values, "folder": str(config.folder)}


def test_a_secret_of_the_file_is_used_as_it_is_and_hidden_in_what_is_told(tmp_path: Path) -> None:
    config = load_config(write(tmp_path / "project", SECRETS))
    assert config.resources()["llm"].api_key == "literal-hush"
    assert "hush" not in config.hide("it was literal-hush")


def test_a_secret_in_an_override_is_not_shown(tmp_path: Path) -> None:
    config = load_config(write(tmp_path / "project", SECRETS), ["llm_proxy.model_list.0.api_key=other-hush"])
    assert "hush" not in str(make_plan(config).values)


TEXTS: list[Any] = [
    "cost is ${PRICE}",
    "$${X} and ${a.b}",
    "1e4",
    "0o7",
    "on",
    "null",
    "~",
    "",
    "2024-01-01",
    "ä\n b: c",
]


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_survives_being_kept(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRICE", "9")
    monkeypatch.setenv("GIVEN", text)
    given = 'initial_resources: {p: {type: PromptTemplate, template: "see ${GIVEN}"}}\n'
    config = load_config(write(tmp_path / "project", given))
    config.values["name"] = text
    again = load_config(kept_of(config, tmp_path / "run"))
    assert again.values == {**config.values, "folder": str(config.folder)}
    assert again.values["initial_resources"]["p"]["template"] == f"see {text}"


def test_an_escape_stays_an_escape(tmp_path: Path) -> None:
    given = 'initial_resources: {p: {type: PromptTemplate, template: "cost is $${PRICE}"}}\n'
    config = load_config(write(tmp_path / "project", given))
    again = load_config(kept_of(config, tmp_path / "run"))
    assert again.values["initial_resources"]["p"]["template"] == "cost is ${PRICE}"


# -- numbers of the environment ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "value", "found"),
    [
        ("max_tokens: ${GIVEN}", "55", 55),
        ("token_len: ${GIVEN}", "0.5", 0.5),
        ("api_key: ${GIVEN}", "00123456", "00123456"),
        ("auth: ${GIVEN}", "true", True),
    ],
)
def test_numbers_are_numbers_and_secrets_stay_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, value: str, found: object
) -> None:
    monkeypatch.setenv("GIVEN", value)
    config = load_config(
        write(tmp_path, f"llm_proxy:\n  model_list:\n  - model_name: m\n    defaults:\n      {given}\n")
    )
    (left,) = config.values["llm_proxy"]["model_list"][0]["defaults"].values()
    assert left == found
    assert type(left) is type(found)


def test_what_counts_tokens_is_shown(tmp_path: Path) -> None:
    path = write(tmp_path, "agent: agent.py:plain\nalgorithm: {type: APO, max_response_tokens: 77}\n")
    shown = {each.key: each.value for each in make_plan(load_config(path)).values}
    assert shown["algorithm.max_response_tokens"] == 77
