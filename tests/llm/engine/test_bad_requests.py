"""A request that breaks a step fails alone: the others that are in flight get their answers."""

from typing import Any

import pytest

from sharpen.llm.engine import Engine, EngineError, Request, SamplingParams, Token
from tests.errors import raises

from .tiny import Letters, greedy_of, shared

GOOD = [[5, 6, 7, 8, 9, 10, 11], [3, 4], list(range(10, 60))]
GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
BAD_PROMPT = [5, 6, 7, 1]


def unchecked(**values: Any) -> SamplingParams:
    """Parameters as if nothing had checked them."""
    params = SamplingParams(max_new_tokens=12)
    for name, value in values.items():
        object.__setattr__(params, name, value)
    return params


def engine_of(tokenizer: Any = None, **options: Any) -> Engine:
    return Engine(shared(), tokenizer or Letters(), **{"max_batch": 8, "max_tokens": 1_024, "block_size": 4, **options})


def assert_answered(requests: list[Request], *, wanted: list[list[int]] | None = None) -> None:
    wanted = wanted or [greedy_of(shared(), prompt, 12) for prompt in GOOD]
    assert [each.result(60).samples[0].token_ids for each in requests] == wanted


@pytest.mark.parametrize("is_started", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "values",
    [{"top_k": 2**63}, {"temperature": 10**400}, {"top_p": "all", "top_k": 1}, {"top_k": None}],
    ids=["top_k", "temperature", "top_p", "no top_k"],
)
def test_a_request_that_breaks_the_step_fails_alone(values: dict[str, Any], overlap: bool, is_started: bool) -> None:
    engine = engine_of(overlap=overlap)
    if is_started:
        engine.start()
    before = [engine.submit(prompt, GREEDY) for prompt in GOOD]
    if not is_started:
        engine.step()
        engine.step()
    bad = engine.submit(BAD_PROMPT, unchecked(**values))
    after = [engine.submit(prompt, GREEDY) for prompt in GOOD]

    assert_answered(before)
    assert_answered(after)
    with pytest.raises(EngineError):
        bad.result(60)
    assert_answered([engine.submit(prompt, GREEDY) for prompt in GOOD])
    engine.stop()
    assert (engine.num_running, engine.num_waiting, engine.num_held_tokens) == (0, 0, 0)


def test_samples_in_company_of_a_bad_request_are_those_of_its_absence() -> None:
    params = SamplingParams(max_new_tokens=20, n=3, seed=4, ignore_eos=True)
    wanted = engine_of().sample([GOOD[0]], params)[0]
    engine = engine_of()
    good = engine.submit(GOOD[0], params)
    for _ in range(5):
        engine.step()
    tokens: list[Token] = []
    engine.listen(good, tokens.extend)
    bad = engine.submit(BAD_PROMPT, unchecked(top_k=2**63))

    found = good.result()

    assert [each.token_ids for each in found.samples] == [each.token_ids for each in wanted.samples]
    for sample in found.samples:
        assert [each.id for each in tokens if each.sample == sample.index] == sample.token_ids
    assert isinstance(bad.future.exception(), EngineError)


class Picky(Letters):
    """Cannot decode one token."""

    def __init__(self, refused: int) -> None:
        self._refused = refused

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        if self._refused in token_ids:
            raise LookupError(f"no text for token {self._refused}")
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


def test_a_request_whose_text_cannot_be_read_fails_alone() -> None:
    texts = [greedy_of(shared(), prompt, 12) for prompt in GOOD]
    refused = next(token for token in texts[0] if token not in texts[1] + texts[2])
    params = SamplingParams(max_new_tokens=12, temperature=0.0, stop=("no such text",))
    engine = engine_of(Picky(refused))

    bad, *good = [engine.submit(prompt, params) for prompt in GOOD]

    assert_answered(good, wanted=texts[1:])
    with raises(EngineError, refused):
        bad.result()
    assert (engine.num_running, engine.num_held_tokens) == (0, 0)


def test_a_listener_that_raises_ends_its_own_request_alone() -> None:
    engine = engine_of()
    bad, *good = [engine.submit(prompt, GREEDY) for prompt in GOOD]

    def broken(tokens: list[Token]) -> None:
        raise LookupError("nobody is left to hear it")

    engine.listen(bad, broken)

    assert_answered(good, wanted=[greedy_of(shared(), prompt, 12) for prompt in GOOD[1:]])
    with raises(EngineError, "nobody is left"):
        bad.result()


def test_requests_that_fail_only_together_all_end_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of()
    decode = engine._runner.decode

    def broken(sequences: list[Any], tables: Any) -> Any:
        if len(sequences) > 1:
            raise RuntimeError("out of memory")
        return decode(sequences, tables)

    monkeypatch.setattr(engine._runner, "decode", broken)
    endless = SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True)
    requests = [engine.submit(prompt, endless) for prompt in GOOD]
    for request in requests:
        with raises(EngineError, "out of memory"):
            request.result()
    assert_answered([engine.submit(GOOD[0], GREEDY)], wanted=[greedy_of(shared(), GOOD[0], 12)])
    assert (engine.num_running, engine.num_held_tokens) == (0, 0)
