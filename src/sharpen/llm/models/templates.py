"""Checking that a tokenizer has a chat template that training can use."""

import logging
from typing import Any

from ...errors import describe
from ..errors import ModelError

log = logging.getLogger(__name__)

_QUESTION = [{"role": "user", "content": "How much is 2 + 3?"}]
_ANSWER = [{"role": "assistant", "content": "It is 5."}]


def check_chat_template(tokenizer: Any, name: str) -> None:
    """Raise a ModelError if the tokenizer has no working chat template; warn if training could not rely on it.

    A trainer samples after the prompt and learns from prompt and answer, so the second has to begin with the first.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"the model {name!r} has no chat template, so it cannot read chat messages: use an "
            "instruction-tuned model, or put a chat_template.jinja into its folder"
        )
    prompt = _ids(tokenizer, name, _QUESTION, add_generation_prompt=True)
    both = _ids(tokenizer, name, [*_QUESTION, *_ANSWER], add_generation_prompt=False)
    if both[: len(prompt)] != prompt:
        log.warning(
            "the chat template of %s formats a question without its answer as %r, but with its answer as %r: the model "
            "is sampled in another format than it learns from. Put a chat_template.jinja into its folder whose "
            "generation prompt is the beginning of an answer",
            name,
            tokenizer.decode(prompt),
            tokenizer.decode(both),
        )


def _ids(tokenizer: Any, name: str, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> list[int]:
    from jinja2 import TemplateError

    try:
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=add_generation_prompt, return_dict=False)
    except (TemplateError, ValueError, TypeError, LookupError) as error:
        raise ModelError(f"the chat template of {name!r} does not work: {describe(error)}") from error
    return [int(each) for each in ids]
