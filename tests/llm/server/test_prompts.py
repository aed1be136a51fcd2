"""Prompts: what the chat template writes, and what is kept of it."""

from typing import Any

import msgspec
import pytest

from tests.errors import raises
from tests.llm.internals import ChatFields, CompletionFields, Prompt, PromptWriter, server_prompts as prompts
from tests.web.internals import HttpError

from ..tiny_models import tiny_tokenizer
from .models import TOOLS

USER = {"role": "user", "content": "hi"}


def fields(messages: Any, **more: Any) -> ChatFields:
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in (("messages", messages),)}
    if "tools" in more:
        raw["tools"] = msgspec.Raw(msgspec.json.encode(more.pop("tools")))
    return ChatFields(**raw, **more)


@pytest.fixture
def writer(tokenizer: Any) -> PromptWriter:
    return PromptWriter(tokenizer, vocab_size=len(tokenizer))


def text_of(tokenizer: Any, prompt: Prompt) -> str:
    return str(tokenizer.decode(prompt.ids))


def test_the_prompt_ends_where_the_assistant_begins(writer: PromptWriter, tokenizer: Any) -> None:
    text = text_of(tokenizer, writer.of_chat(fields([USER])))
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_parts_of_text_are_joined_and_developers_are_the_system(writer: PromptWriter, tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "one"}, "two", {"type": "input_text", "text": "three"}]
    messages = [{"role": "developer", "content": parts}, {"role": "assistant", "content": None}, USER]
    text = text_of(tokenizer, writer.of_chat(fields(messages)))
    assert text.startswith("<|im_start|>system\none\ntwo\nthree<|im_end|>\n<|im_start|>assistant\n<|im_end|>")


def test_a_last_message_can_be_gone_on_from(writer: PromptWriter, tokenizer: Any) -> None:
    begun = [USER, {"role": "assistant", "content": "Well,"}]
    text = text_of(tokenizer, writer.of_chat(fields(begun, continue_final_message=True)))
    assert text.endswith("<|im_start|>assistant\nWell,")
    plain = text_of(tokenizer, writer.of_chat(fields(begun, add_generation_prompt=False)))
    assert plain.endswith("Well,<|im_end|>\n")


def test_settings_of_the_template_come_from_the_server_and_the_request(tokenizer: Any) -> None:
    writer = PromptWriter(tokenizer, vocab_size=len(tokenizer), template_kwargs={"enable_thinking": False})
    assert "thinking False" in text_of(tokenizer, writer.of_chat(fields([USER])))
    asked = fields([USER], chat_template_kwargs={"enable_thinking": True})
    assert "thinking True" in text_of(tokenizer, writer.of_chat(asked))


def test_the_same_request_is_written_once_and_another_anew(writer: PromptWriter) -> None:
    prompt = writer.of_chat(fields([USER]))
    assert writer.of_chat(fields([USER])) is prompt
    others = [fields([USER], tools=TOOLS), fields([USER], chat_template_kwargs={"x": 1}), fields([USER, USER])]
    assert all(writer.of_chat(each) is not prompt for each in others)
    assert writer.of_chat(fields([USER], tools=TOOLS, tool_choice="none")).ids == prompt.ids


def test_what_is_kept_is_bounded(writer: PromptWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MAX_KEPT_TOKENS", 60)
    first = writer.of_chat(fields([USER]))
    for text in ("one", "two", "three", "four"):
        writer.of_chat(fields([{"role": "user", "content": text}]))
    again = writer.of_chat(fields([USER]))
    assert again is not first
    assert again.digest == first.digest


def test_what_the_template_refuses_is_a_refusal_in_its_words(tokenizer: Any) -> None:
    strict = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<|im_end|>")
    strict.chat_template = "{{ raise_exception('only one message please') }}"
    with raises(HttpError, "only one message please") as caught:
        PromptWriter(strict, vocab_size=len(strict)).of_chat(fields([USER]))
    assert (caught.value.status, caught.value.param) == (400, "messages")
    strict.chat_template = None
    with pytest.raises(HttpError):
        PromptWriter(strict, vocab_size=len(strict)).of_chat(fields([USER]))


def test_tools_that_the_template_leaves_out_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    plain = tiny_tokenizer()
    writer = PromptWriter(plain, vocab_size=len(plain))
    for text in ("one", "two"):
        writer.of_chat(fields([{"role": "user", "content": text}], tools=TOOLS))
    assert caplog.text.count("the model never sees them") == 1


def test_calls_in_the_history_must_be_calls(writer: PromptWriter) -> None:
    for calls in ("add", [5], [{"function": {"arguments": "{}"}}]):
        with raises(HttpError, "messages[0].tool_calls"):
            writer.of_chat(fields([{"role": "assistant", "content": None, "tool_calls": calls}]))
    odd = [{"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "{not json"}}]}, USER]
    assert writer.of_chat(fields(odd)).ids


def test_a_digest_tells_prompts_apart(writer: PromptWriter) -> None:
    digests = {prompt.digest for prompt in writer.of_completion(CompletionFields(prompt=[[1, 2], [12], [1], [2, 1]]))}
    assert len(digests) == 4
