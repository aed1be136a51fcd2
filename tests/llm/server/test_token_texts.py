"""The texts and bytes of single tokens."""

from typing import Any

import msgspec
import pytest

from tests.llm.internals import TokenTexts

TEXT = "Natalia sold clips \u20ac to her friends"


@pytest.fixture(scope="module")
def texts(tokenizer: Any) -> TokenTexts:
    return TokenTexts(tokenizer)


def test_the_bytes_of_all_tokens_are_the_text_although_characters_are_cut(texts: TokenTexts, tokenizer: Any) -> None:
    ids = tokenizer(TEXT)["input_ids"]
    assert any("\ufffd" in texts.text(each) for each in ids)
    assert b"".join(bytes(texts.raw(each) or []) for each in ids).decode() == TEXT


def test_texts_keep_their_spaces_where_decoders_drop_them() -> None:
    texts = TokenTexts(_Words())
    assert [texts.text(each) for each in (1, 2)] == [" sold", "\ufffd"]
    assert [texts.raw(each) for each in (1, 2)] == [list(b" sold"), [0xE2]]


def test_log_probabilities_are_written_as_json_of_the_api(texts: TokenTexts, tokenizer: Any) -> None:
    ids = tokenizer("sold 12")["input_ids"]
    numbers = [-0.5 * place for place in range(len(ids))]
    told = msgspec.json.decode(texts.chat_logprobs(ids, numbers, []))["content"]
    assert [each["logprob"] for each in told] == numbers
    assert "".join(each["token"] for each in told) == "sold 12"
    assert all(each["top_logprobs"] == [] for each in told)
    tops = [((each, -0.1), (0, -2.0)) for each in ids]
    likeliest = msgspec.json.decode(texts.chat_logprobs(ids, numbers, tops))["content"][0]["top_logprobs"]
    assert [(each["token"], each["logprob"]) for each in likeliest] == [
        (texts.text(ids[0]), -0.1),
        ("<|endoftext|>", -2.0),
    ]
    assert msgspec.json.decode(texts.chat_logprobs([], [], []))["content"] == []


def test_tokens_that_are_no_text_are_told_apart_in_completions(texts: TokenTexts, tokenizer: Any) -> None:
    broken = [each for each in tokenizer("\u20ac")["input_ids"] if "\ufffd" in texts.text(each)]
    told = texts.completion_logprobs(broken, [-1.0] * len(broken), [((each, -1.0),) for each in broken])
    assert len({*told["tokens"]}) == len(set(broken))
    assert told["tokens"][0].startswith("bytes:\\x")


class _Words:
    """A tokenizer in the manner of SentencePiece: a space at the beginning of a text is dropped."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [0]}

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(["\u2581a", "\u2581sold", "\ufffd"][each] for each in ids).replace("\u2581", " ").lstrip()

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return ["\u2581a", "\u2581sold", "<0xE2>"][token_id]
