"""Calls with several choices: those after the first, which a triplet tells in its metadata."""

from typing import Any

from ..semconv import LightningLLMAttributes
from .calls import IS_COMPLETE, OPERATION_NAME, RESPONSE_LOGPROBS, RESPONSE_TOKEN_IDS, LLMCall

_COUNT = "gen_ai.request.choice.count"
_FINISH_REASONS = "gen_ai.response.finish_reasons"
_VERSIONS = LightningLLMAttributes.WEIGHTS_VERSIONS.value


def further_choices(call: LLMCall) -> dict[str, Any]:
    """`further_choices` of the same prompt; of several prompts only `num_untrained_choices`, how many they are.

    A trace has the tokens of the first prompt alone, so what came of the others has nothing to stand behind.
    """
    ids = call.choices(*RESPONSE_TOKEN_IDS)
    if len(ids) < 2:
        return {}
    if not _has_one_prompt(call, len(ids)):
        return {"num_untrained_choices": len(ids) - 1}
    logprobs, versions = (_of_all(call.choices(*keys), len(ids)) for keys in (RESPONSE_LOGPROBS, (_VERSIONS,)))
    reasons = _of_all(call.read(_FINISH_REASONS), len(ids))
    found = []
    for place in range(1, len(ids)):
        choice: dict[str, Any] = {"token_ids": ids[place], "logprobs": logprobs[place] or []}
        if versions[place]:
            choice["weights_versions"] = versions[place]
        if reasons[place]:
            choice["finish_reason"] = reasons[place]
        found.append(choice)
    return {"further_choices": found}


def _has_one_prompt(call: LLMCall, num_choices: int) -> bool:
    """A chat has one. Completions of several prompts have more choices than were asked for of each, once all came."""
    operations = {span.attributes[OPERATION_NAME] for span in call.spans if OPERATION_NAME in span.attributes}
    if operations == {"chat"}:
        return True
    return call.written(IS_COMPLETE) is not False and call.written(_COUNT) == num_choices


def _of_all(values: Any, count: int) -> list[Any]:
    """One for each choice; where their number is another, nobody knows whose is whose."""
    return list(values) if isinstance(values, list | tuple) and len(values) == count else [None] * count
