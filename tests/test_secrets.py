"""What looks like a secret: one rule, which knows tokens that open doors from tokens that are counted."""

import json
import threading

import pytest

from sharpen.secrets import hide_known, hiding, known_secrets, looks_secret, without_secrets

SECRETS = """
    api_key OPENAI_KEY apiKey X-Auth basic_auth token HF_TOKEN accessToken tokens Cookie db_password client_secret
    headers Authorization aws_secret_access_key session-token
"""
OTHERS = """
    max_tokens max_response_tokens ppo_max_token_len_per_gpu eos_token pad_token_id maxTokens MAX_TOKENS
    tokens_per_second sort_key author tokenizer n_runners input_tokens
"""


@pytest.mark.parametrize("name", SECRETS.split())
def test_names_of_secrets(name: str) -> None:
    assert looks_secret(name, "hush")


@pytest.mark.parametrize("name", OTHERS.split())
def test_names_that_only_look_alike(name: str) -> None:
    assert not looks_secret(name, "55")


def test_truths_are_no_secrets_and_numbers_only_where_something_really_opens() -> None:
    assert not looks_secret("use_auth", True)
    assert not looks_secret("tokens", 7)
    assert looks_secret("password", 1234)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("https://me:hush@host/x?api_key=hush&a=1", "https://***@host/x?api_key=***&a=1"),
        ("https://host/?key=hush&sig=hush#part", "https://host/?key=***&sig=***#part"),
        ("Authorization: Bearer hush, then", "Authorization: ***, then"),
        ("say bearer hush", "say bearer ***"),
        ("the key sk-hush1hush2hush3hush4 is", "the key sk-*** is"),
        ("C(max_tokens=5, tokens=7, token='hush')", "C(max_tokens=5, tokens=7, token=***)"),
        ("a prompt: speak of tokens", "a prompt: speak of tokens"),
    ],
)
def test_secrets_are_hidden_inside_of_texts(text: str, seen: str) -> None:
    assert without_secrets(text) == seen


def test_a_long_text_without_secrets_is_read_in_one_go() -> None:
    assert without_secrets("a" * 1_000_000) == "a" * 1_000_000


def test_overlapping_runs_hide_their_own_secrets_as_long_as_each_needs_them() -> None:
    first, second = hiding({"hush-1": "A", "shared": "S"}), hiding({"hush-2": "B", "shared": "S"})
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert hide_known("hush-1 hush-2 shared") == "hush-1 B S"
    assert known_secrets() == {"hush-2": "B", "shared": "S"}
    second.__exit__(None, None, None)
    assert hide_known("hush-1 hush-2 shared") == "hush-1 hush-2 shared"


def test_hiding_may_begin_and_end_while_other_threads_hide() -> None:
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            with hiding({f"hush-{number}": "X" for number in range(200)}):
                pass

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        with hiding({"mine": "M"}):
            assert {hide_known("mine") for _ in range(2000)} == {"M"}
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("secret", ["a\x1bb", "a\r\nb", "a\"b'c", "größe"])
def test_a_secret_is_hidden_in_the_forms_in_which_it_is_written(secret: str) -> None:
    with hiding({secret: "X"}):
        for text in (secret, f"{[secret]}", json.dumps([secret]), json.dumps([secret], ensure_ascii=False)):
            assert secret[-1] not in hide_known(text)
