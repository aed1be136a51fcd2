"""How the tokens of one request are chosen, and when they end."""

import sys
from dataclasses import dataclass

from ...errors import InvalidInputError

MAX_TOP_LOGPROBS = 64
MAX_SAMPLES = 65_536
MAX_STOPS, MAX_STOP_CHARACTERS = 64, 1_000  # each is looked for after every token, while other requests wait
_MAX_TOP_K = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Settings of one request.

    Temperature, then `top_k`, then `top_p` shape the distribution. Temperature 0 takes the likeliest token. Without
    `max_new_tokens` a request may fill the model's window or the cache. `stop` ends at a string, which the text leaves
    out and the token ids keep; `stop_token_ids` count beside the model's own end-of-text ids, unless `ignore_eos`
    switches the latter off. Equal seeds give equal samples, whatever else the engine does; the `n` samples of a
    request differ. `logprobs` asks for that many likeliest tokens at each place.
    """

    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int = 0
    n: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        self._check_numbers()
        self._check_stops()

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def is_filtered(self) -> bool:
        """Whether some tokens are left out before the draw."""
        return not self.is_greedy and (self.top_p < 1.0 or self.top_k > 0)

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOPS:
            raise InvalidInputError(f"stop holds {len(self.stop)} strings: use at most {MAX_STOPS}")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidInputError(f"stop holds {text!r}: use strings of at least one character")
            if len(text) > MAX_STOP_CHARACTERS:
                raise InvalidInputError(
                    f"stop holds a string of {len(text)} characters: use at most {MAX_STOP_CHARACTERS}"
                )

    def _check_numbers(self) -> None:
        _check_whole("n", self.n, least=1, most=MAX_SAMPLES)
        _check_whole("top_k", self.top_k, least=0, most=_MAX_TOP_K)
        _check_whole("logprobs", self.logprobs, least=0, most=MAX_TOP_LOGPROBS)
        if self.max_new_tokens is not None:
            _check_whole("max_new_tokens", self.max_new_tokens, least=1)
        if self.seed is not None:
            _check_whole("seed", self.seed, least=-(2**63), most=2**64 - 1)
        for token_id in self.stop_token_ids:
            _check_whole("stop_token_ids", token_id, least=0)
        if not _is_number(self.temperature) or not 0.0 <= self.temperature <= sys.float_info.max:
            raise InvalidInputError(f"temperature is {self.temperature!r}: use a number of 0 (greedy) or more")
        if not _is_number(self.top_p) or not 0.0 < self.top_p <= 1.0:
            raise InvalidInputError(f"top_p is {self.top_p!r}: use a share above 0 and up to 1 (1 keeps all tokens)")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_whole(name: str, value: object, *, least: int, most: int | None = None) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and least <= value and (most is None or value <= most):  # type: ignore[operator]
        return
    upper = "or more" if most is None else f"to {most}"
    raise InvalidInputError(f"{name} is {value!r:.80}: use a whole number of {least} {upper}")
