"""What of several samples stands where in an answer."""

from typing import Any

import msgspec

from sharpen.llm.engine import Generation, Sample
from tests.llm.internals import AnswerWriter, Asked, CompletionFields, Prompt, TokenTexts


def sample(index: int, versions: list[int]) -> Sample:
    size = len(versions)
    return Sample(index, [5] * size, [-0.5] * size, [-0.5] * size, versions, [], "text", "length", None)


def test_a_choice_of_other_weights_than_the_first_tells_those_of_its_tokens(tokenizer: Any) -> None:
    prompts = [Prompt([1, 2]), Prompt([3])]
    asked = Asked("completions", CompletionFields(prompt=[[1, 2], [3]], n=2), prompts, "m", id="cmpl-1", created=0)
    generations = [
        Generation([1, 2], [sample(0, [7, 7]), sample(1, [7, 8])], 2),
        Generation([3], [sample(0, [8, 8]), sample(1, [7])], 0),
    ]
    body = msgspec.json.decode(AnswerWriter(TokenTexts(tokenizer)).write(asked, generations))
    assert body["weights_version"] == "7"
    assert [each.get("weights_versions") for each in body["choices"]] == [None, ["7", "8"], ["8", "8"], None]
    assert [each["index"] for each in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["completion_tokens"] == 7
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
