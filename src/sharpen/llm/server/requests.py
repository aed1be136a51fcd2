"""The fields of a request: which there are, of which type, and which are refused because they cannot be honoured.

A field that would change what is sampled and is not supported is an error. An unknown field is ignored, as other
servers do, and logged once: it may be misspelt. How tokens are drawn follows from the fields; a request without a seed
gets one that follows from who asks what, so a run that is repeated samples the same again.
"""

import logging
from collections import OrderedDict
from hashlib import blake2b
from typing import Any

import msgspec

from ...errors import InvalidInputError
from ...web.app import HttpError, parse_json
from ..engine import SamplingParams

log = logging.getLogger(__name__)


class StreamOptions(msgspec.Struct):
    """How a stream ends."""

    include_usage: bool | None = None


class Fields(msgspec.Struct, kw_only=True):
    """What chat and completions share. None stands for a field that is not given."""

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with what was used."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def limit(self) -> int | None:
        return self.max_tokens

    @property
    def limit_name(self) -> str:
        return "max_tokens"

    @property
    def num_top(self) -> int | None:
        """How many likeliest tokens are told beside each sampled one; None where no log-probability is."""
        raise NotImplementedError

    @property
    def num_top_name(self) -> str:
        """The field that says so."""
        raise NotImplementedError


class ChatFields(Fields, kw_only=True):
    """A request for chat. Messages and tools stay JSON until it is known that they are new."""

    messages: msgspec.Raw
    tools: msgspec.Raw = msgspec.Raw(b"null")
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def limit_name(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def num_top(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def num_top_name(self) -> str:
        return "top_logprobs"


class CompletionFields(Fields, kw_only=True):
    """A request for completions: of one prompt or several, as text or as token ids."""

    prompt: str | list[Any]
    logprobs: int | None = None
    add_special_tokens: bool | None = None

    @property
    def num_top(self) -> int | None:
        return self.logprobs

    @property
    def num_top_name(self) -> str:
        return "logprobs"


# Fields that change what is sampled and are not done here, each with the values that ask for nothing.
_NOT_DONE: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (None, False),  # of chat, whose template writes them
    "allowed_token_ids": (None,),
    "audio": (None,),
    "bad_words": (None, []),
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None,),
    "functions": (None,),
    "guided_choice": (None,),
    "guided_decoding": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "include_stop_str_in_output": (None, False),
    "length_penalty": (None, 1),
    "logit_bias": (None, {}),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "prompt_logprobs": (None,),
    "repetition_penalty": (None, 1),
    "response_format": (None, {"type": "text"}),
    "skip_special_tokens": (None, True),
    "structured_outputs": (None,),
    "suffix": (None, ""),
    "truncate_prompt_tokens": (None,),
    "typical_p": (None, 1),
    "use_beam_search": (None, False),
    "web_search_options": (None,),
}
# Fields that may be there and change nothing here.
_WITHOUT_EFFECT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
     "reasoning_effort", "verbosity", "request_id", "priority", "cache_salt", "spaces_between_special_tokens",
     "include_reasoning"}
)  # fmt: skip
_MOST_TOLD = 100

_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_chat = msgspec.json.Decoder(ChatFields).decode
_completion = msgspec.json.Decoder(CompletionFields).decode


class FieldReader:
    """Reads the bodies of requests."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def chat(self, body: bytes) -> ChatFields:
        self._check_names(body, ChatFields)
        fields = parse_json(body, _chat)
        if fields.top_logprobs and not fields.logprobs:
            raise invalid_field(
                "top_logprobs", f"top_logprobs is {fields.top_logprobs}, but logprobs is not true: set both"
            )
        return fields

    def completion(self, body: bytes) -> CompletionFields:
        self._check_names(body, CompletionFields)
        return parse_json(body, _completion)

    def _check_names(self, body: bytes, kind: type[Fields]) -> None:
        """No field that cannot be honoured."""
        given = parse_json(body, _split)
        for name in given.keys() - kind.__struct_fields__ - _WITHOUT_EFFECT:
            if name not in _NOT_DONE:
                self._tell(name)
            elif (value := parse_json(bytes(given[name]), msgspec.json.decode)) not in _NOT_DONE[name]:
                raise invalid_field(
                    name,
                    f"{name} is {value!r:.80}, which this server does not support: leave it out",
                    code="unsupported_value",
                )

    def _tell(self, name: str) -> None:
        if name not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(name)
            log.warning("ignoring the unknown field %r of a request (logged once)", name[:80])


def invalid_field(param: str, message: str, *, code: str = "invalid_value") -> HttpError:
    """The error for a field with a value that cannot be used."""
    return HttpError(400, message, code=code, param=param)


# -- how tokens are drawn -----------------------------------------------------------------------------


MAX_TOP_LOGPROBS = 20
MAX_SAMPLES = 1024
MAX_TEMPERATURE = 100.0


def check_sampling(fields: Fields) -> None:
    """What the engine does not check, or would say in words that are not the request's."""
    if fields.n is not None and not 1 <= fields.n <= MAX_SAMPLES:
        raise invalid_field("n", f"n is {fields.n}: use a whole number from 1 to {MAX_SAMPLES}")
    if fields.limit is not None and fields.limit < 1:
        raise invalid_field(
            fields.limit_name, f"{fields.limit_name} is {fields.limit}: use a whole number of 1 or more"
        )
    if fields.num_top is not None and not 0 <= fields.num_top <= MAX_TOP_LOGPROBS:
        name = fields.num_top_name
        raise invalid_field(name, f"{name} is {fields.num_top}: use a whole number from 0 to {MAX_TOP_LOGPROBS}")
    if fields.temperature is not None and fields.temperature > MAX_TEMPERATURE:
        raise invalid_field(
            "temperature", f"temperature is {fields.temperature}: use a number from 0 to {MAX_TEMPERATURE:g}"
        )


def sampling_params(fields: Fields, *, limit: int, seed: int | None, end_id: int | None) -> SamplingParams:
    """The engine's parameters. `end_id` ends a sample as well, unless the request ignores such tokens."""
    stops = fields.stop_token_ids or []
    try:
        return SamplingParams(
            max_new_tokens=limit,
            temperature=1.0 if fields.temperature is None else fields.temperature,
            top_p=1.0 if fields.top_p is None else fields.top_p,
            top_k=0 if fields.top_k in (None, -1) else fields.top_k,  # -1 is vLLM's word for all tokens
            stop=(fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ()),
            stop_token_ids=tuple(stops if end_id is None or fields.ignore_eos else [*stops, end_id]),
            ignore_eos=bool(fields.ignore_eos),
            seed=seed,
            logprobs=fields.num_top or 0,
            n=fields.n or 1,
        )
    except InvalidInputError as error:
        # Its text begins with the name of the field.
        raise HttpError(400, str(error), code="invalid_value", param=str(error).partition(" ")[0]) from None


# -- seeds that follow from who asks what -------------------------------------------------------------


MAX_COUNTS = 200_000


class CallSeeds:
    """Counts calls, of the attempts and prompts that asked last.

    What the rollout ids of a run begin with, `rollout_prefix`, has no say: it differs where two runs are the same.
    """

    def __init__(self, seed: int, rollout_prefix: str = "") -> None:
        self._seed, self._prefix = b"%d" % seed, rollout_prefix
        self._counts: OrderedDict[tuple[str, bytes], int] = OrderedDict()

    def next(self, *, rollout_id: str, attempt_id: str, prompt_digest: bytes) -> int:
        """The seed of the next call with this prompt."""
        key = (attempt_id, prompt_digest)
        count = self._counts.pop(key, 0)
        self._counts[key] = count + 1
        if len(self._counts) > MAX_COUNTS:
            self._counts.popitem(last=False)
        place = rollout_id.removeprefix(self._prefix).encode()
        text = b"\0".join((self._seed, place, b"%d" % count, prompt_digest))
        return int.from_bytes(blake2b(text, digest_size=8).digest())
