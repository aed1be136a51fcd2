"""How the tokens of one request are chosen, and when they end."""

from dataclasses import dataclass

from ...checks import check_int, check_number
from ...errors import InvalidInputError

MAX_TOP_LOGPROBS = 64
MAX_SAMPLES = 65_536
MAX_STOPS, MAX_STOP_CHARACTERS = 64, 1_000  # each is looked for after every token, while other requests wait
_WHOLE = (
    ("n", 1, MAX_SAMPLES),
    ("top_k", 0, 2**31 - 1),
    ("logprobs", 0, MAX_TOP_LOGPROBS),
    ("max_new_tokens", 1, None),
    ("seed", -(2**63), 2**64 - 1),
)


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
        for name, at_least, at_most in _WHOLE:
            number = check_int(
                name,
                getattr(self, name),
                at_least=at_least,
                at_most=at_most,
                optional=name in ("max_new_tokens", "seed"),
                error=InvalidInputError,
            )
            object.__setattr__(self, name, number)
        for token_id in self.stop_token_ids:
            check_int("stop_token_ids", token_id, at_least=0, error=InvalidInputError)
        check_number("temperature", self.temperature, at_least=0, error=InvalidInputError)
        check_number("top_p", self.top_p, above=0, at_most=1, error=InvalidInputError)
