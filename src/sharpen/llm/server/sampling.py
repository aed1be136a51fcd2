"""How the tokens of a request are drawn: its fields as the engine's parameters."""

from ...errors import InvalidInputError
from ...web.app import HttpError
from ..engine import SamplingParams
from .fields import Fields, invalid_field

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
