"""Chat templates that training can rely on."""

import logging
from typing import Any

import pytest

from sharpen.llm import ModelError
from tests.errors import raises
from tests.llm.internals import check_chat_template

from ..tiny_models import CHAT_TEMPLATE, tiny_tokenizer


@pytest.fixture
def tokenizer() -> Any:
    return tiny_tokenizer()


def test_a_good_template_passes_in_silence(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="sharpen"):
        check_chat_template(tokenizer, "tiny")
    assert not caplog.records


def test_a_tokenizer_without_a_template_says_what_to_do(tokenizer: Any) -> None:
    tokenizer.chat_template = None
    with raises(ModelError, "base-model", "chat_template.jinja"):
        check_chat_template(tokenizer, "base-model")


@pytest.mark.parametrize("template", ["{% for", "{{ raise_exception('no') }}", "{{ messages[7].content }}"])
def test_a_template_that_fails_is_named(tokenizer: Any, template: str) -> None:
    tokenizer.chat_template = template
    with raises(ModelError, "tiny"):
        check_chat_template(tokenizer, "tiny")


def test_a_template_that_asks_in_another_form_than_it_answers_is_a_warning(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer.chat_template = CHAT_TEMPLATE.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")
    with caplog.at_level(logging.WARNING, logger="sharpen"):
        check_chat_template(tokenizer, "thinker")
    assert "thinker" in caplog.text
    assert "chat_template.jinja" in caplog.text
