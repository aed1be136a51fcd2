"""The texts of single tokens, and the JSON of log-probabilities made from them.

What is the same about a token every time it is sampled is encoded once and kept: of a token of an answer only its
number is written anew.
"""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import msgspec

from ..engine.request import TopLogprobs

_encode = msgspec.json.Encoder().encode
_BROKEN = "\ufffd"
_NOTHING = msgspec.Raw(b'{"content":[],"refusal":null}')


class TokenTexts:
    """Of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        anchor = tokenizer("a", add_special_tokens=False)["input_ids"]
        self._anchor: list[int] = list(anchor)
        self._anchor_text = self._decoded(self._anchor)
        self._texts: dict[int, str] = {}
        self._heads = _Heads(self)

    def text(self, token_id: int) -> str:
        """What the token adds to a text; a part of a character is a mark of replacement."""
        found = self._texts.get(token_id)
        if found is None:
            # After another token, since decoders drop a space at the beginning.
            whole, start = self._decoded([*self._anchor, token_id]), self._anchor_text
            found = whole[len(start) :] if whole.startswith(start) else self._decoded([token_id])
            self._texts[token_id] = found
        return found

    def raw(self, token_id: int) -> list[int] | None:
        """The bytes of the token, None where they are not known."""
        text = self.text(token_id)
        if _BROKEN not in text:
            return list(text.encode())
        written = self._tokenizer.convert_ids_to_tokens(token_id)
        if written.startswith("<0x") and written.endswith(">"):
            return [int(written[3:-1], 16)]
        known = _byte_of_letter()
        return [known[each] for each in written] if all(each in known for each in written) else None

    def chat_logprobs(self, ids: Sequence[int], logprobs: Sequence[float], tops: Sequence[TopLogprobs]) -> msgspec.Raw:
        """`logprobs` of a choice of chat."""
        heads = map(self.head, ids, tops) if tops else map(self._heads.__getitem__, ids)
        if not logprobs:
            return _NOTHING
        tokens = map(operator.add, heads, _encode(logprobs)[1:-1].split(b","))
        return msgspec.Raw(b'{"content":[%s}],"refusal":null}' % b"},".join(tokens))

    def completion_logprobs(
        self, ids: Sequence[int], logprobs: Sequence[float], tops: Sequence[TopLogprobs], *, offset: int = 0
    ) -> dict[str, Any]:
        """`logprobs` of a choice of completions; `offset` is where its text begins."""
        texts = [self.text(each) for each in ids]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        likeliest = [{self._name(token): number for token, number in top} for top in tops] or None
        names = [self._name(each) for each in ids]
        return {"tokens": names, "token_logprobs": logprobs, "top_logprobs": likeliest, "text_offset": offsets}

    def head(self, token_id: int, top: TopLogprobs = ()) -> bytes:
        """The JSON of a token up to its number."""
        likeliest = [{**self._told(each), "logprob": number} for each, number in top]
        return _encode({**self._told(token_id), "top_logprobs": likeliest})[:-1] + b',"logprob":'

    def _name(self, token_id: int) -> str:
        """Its text; of a part of a character its bytes, as this API spells them."""
        text, raw = self.text(token_id), self.raw(token_id)
        return text if _BROKEN not in text or raw is None else "bytes:" + "".join(f"\\x{each:02x}" for each in raw)

    def _told(self, token_id: int) -> dict[str, Any]:
        return {"token": self.text(token_id), "bytes": self.raw(token_id)}

    def _decoded(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


class _Heads(dict[int, bytes]):
    """Made when they are first needed."""

    def __init__(self, texts: TokenTexts) -> None:
        super().__init__()
        self._texts = texts

    def __missing__(self, token_id: int) -> bytes:
        head = self[token_id] = self._texts.head(token_id)
        return head


@functools.cache
def _byte_of_letter() -> dict[str, int]:
    """The letters by which byte-level vocabularies write bytes: printable ones as they are, the others from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), 256)]
    others = [each for each in range(256) if each not in set(plain)]
    return {chr(each): each for each in plain} | {chr(256 + place): each for place, each in enumerate(others)}
