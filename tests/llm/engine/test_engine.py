"""What a request gets: the right tokens with the right log-probabilities, whatever runs beside it."""

import pytest
import torch

from sharpen.errors import ConfigError, InvalidInputError
from sharpen.llm.engine import Engine, EngineError, Generation, SamplingParams
from tests.errors import raises

from .tiny import EOS, VOCAB, Letters, build, greedy_of, logprobs_of, shared

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [3, 4], [5, 6, 7, 8, 9, 1, 1, 1, 1], list(range(10, 60))]


def engine_of(family: str = "Llama", **options: object) -> Engine:
    given = {"max_batch": 8, "max_tokens": 1_024, "block_size": 4, **options}
    return Engine(shared(family), Letters(), **given)  # type: ignore[arg-type]


def check_logprobs(family: str, results: list[Generation]) -> None:
    for result in results:
        for sample in result.samples:
            expected = logprobs_of(shared(family), result.prompt_ids, sample.token_ids)
            assert sample.model_logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_greedy_tokens_are_those_of_transformers(family: str, overlap: bool) -> None:
    results = engine_of(family, overlap=overlap).sample(PROMPTS, SamplingParams(max_new_tokens=16, temperature=0.0))
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert result.samples[0].token_ids == greedy_of(shared(family), prompt, 16)
        assert set(result.samples[0].logprobs) == {0.0}
    check_logprobs(family, results)


def test_waiting_ends_with_its_time() -> None:
    engine = engine_of()
    request = engine.submit(PROMPTS[0], SamplingParams(max_new_tokens=30, ignore_eos=True))
    with pytest.raises(TimeoutError):
        request.result(0.0)
    assert len(request.result(60).samples[0].token_ids) == 30


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_log_probabilities_are_those_of_a_plain_forward_pass(family: str) -> None:
    params = SamplingParams(max_new_tokens=30, temperature=1.0, n=3, seed=1)
    engine = engine_of(family, prefill_tokens=13)
    results = engine.sample(PROMPTS, params)
    check_logprobs(family, results)
    for result in results:
        for sample in result.samples:
            assert sample.logprobs == pytest.approx(sample.model_logprobs, abs=1e-5)
    again = engine.sample(PROMPTS, params)  # now from the cache
    assert again[3].cached_tokens == 48
    assert [each.samples[0].token_ids for each in again] == [each.samples[0].token_ids for each in results]
    check_logprobs(family, again)


def test_log_probabilities_follow_temperature_and_filters() -> None:
    params = SamplingParams(max_new_tokens=10, temperature=0.7, top_k=5, seed=3)
    result = engine_of().sample([PROMPTS[0]], params)[0]
    sample = result.samples[0]
    with torch.no_grad():
        logits = shared()(torch.tensor([result.prompt_ids + sample.token_ids])).logits[0]
    for place, (token, logprob) in enumerate(zip(sample.token_ids, sample.logprobs, strict=True)):
        values, ids = (logits[len(result.prompt_ids) - 1 + place] / 0.7).topk(5)
        assert logprob == pytest.approx(values.log_softmax(-1)[ids.tolist().index(token)].item(), abs=1e-4)


def test_a_seed_gives_the_same_samples_alone_and_in_company() -> None:
    params = SamplingParams(max_new_tokens=20, n=2, seed=7)
    alone = engine_of().sample([PROMPTS[1]], params)[0]
    engine = engine_of()
    for prompt in PROMPTS:
        engine.submit(prompt, SamplingParams(max_new_tokens=40, temperature=0.9, top_p=0.8))
    engine.step()
    crowded = engine.submit(PROMPTS[1], params).result()
    assert [each.token_ids for each in crowded.samples] == [each.token_ids for each in alone.samples]
    assert alone.samples[0].token_ids != alone.samples[1].token_ids


def test_without_a_seed_requests_differ_and_the_engines_seed_makes_them_repeatable() -> None:
    params = SamplingParams(max_new_tokens=20)
    first, second = (engine_of(seed=4).sample([PROMPTS[0]] * 2, params) for _ in range(2))
    assert first[0].samples[0].token_ids != first[1].samples[0].token_ids
    assert [each.samples for each in first] == [each.samples for each in second]


def test_new_requests_join_while_others_run() -> None:
    engine = engine_of()
    long = engine.submit(PROMPTS[0], SamplingParams(max_new_tokens=60, ignore_eos=True))
    engine.step()
    short = engine.submit(PROMPTS[1], SamplingParams(max_new_tokens=3, ignore_eos=True))
    short.result()
    assert not long.done()
    assert engine.num_running == 1
    assert len(long.result().samples[0].token_ids) == 60


@pytest.mark.parametrize("block_size", [1, 4, 7])
def test_a_groups_prompt_is_computed_once(block_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(block_size=block_size)
    computed: list[int] = []
    prefill = engine._runner.prefill
    monkeypatch.setattr(
        engine._runner,
        "prefill",
        lambda chunks, tables: (
            computed.append(sum(each.end - each.start for each in chunks)) or prefill(chunks, tables)
        ),
    )
    result = engine.sample([PROMPTS[3]], SamplingParams(max_new_tokens=12, n=8, seed=0))[0]
    assert sum(computed) == 50
    check_logprobs("Llama", [result])
    computed.clear()
    twins = [engine.submit([9, 8, 7, 6, 5], SamplingParams(max_new_tokens=4, seed=seed)) for seed in range(6)]
    check_logprobs("Llama", [each.result() for each in twins])
    assert sum(computed) == 5


def test_prompts_with_one_beginning_compute_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of()
    computed: list[int] = []
    prefill = engine._runner.prefill
    monkeypatch.setattr(
        engine._runner,
        "prefill",
        lambda chunks, tables: (
            computed.append(sum(each.end - each.start for each in chunks)) or prefill(chunks, tables)
        ),
    )
    system = list(range(20, 60))
    results = engine.sample([[*system, last, 3] for last in range(4, 9)], SamplingParams(max_new_tokens=6, seed=1))
    assert computed == [42, 8]
    check_logprobs("Llama", results)


def test_a_conversations_history_is_found_again() -> None:
    engine = engine_of()
    params = SamplingParams(max_new_tokens=9, ignore_eos=True, seed=1)
    history = list(PROMPTS[0])
    for _ in range(4):
        result = engine.sample([history], params)[0]
        assert result.cached_tokens >= (len(history) - 4 - 3) // 4 * 4 or len(history) == 7
        check_logprobs("Llama", [result])
        history += [*result.samples[0].token_ids, 8, 8, 8]


def test_stop_token_ids_and_the_models_own_end_a_sample() -> None:
    model = build()
    greedy = greedy_of(model, PROMPTS[0], 10)
    stop = greedy[4]
    first = greedy.index(stop)
    sample = (
        engine_of()
        .sample([PROMPTS[0]], SamplingParams(max_new_tokens=10, temperature=0.0, stop_token_ids=(stop,)))[0]
        .samples[0]
    )
    assert (sample.token_ids, sample.finish_reason, sample.stop) == (greedy[: first + 1], "stop", stop)
    model.generation_config.eos_token_id = [stop, EOS]
    engine = Engine(model, Letters(), max_tokens=256)
    sample = engine.sample([PROMPTS[0]], SamplingParams(max_new_tokens=10, temperature=0.0))[0].samples[0]
    assert sample.token_ids == greedy[: first + 1]
    assert sample.text == Letters().decode(greedy[:first])
    ignoring = SamplingParams(max_new_tokens=10, temperature=0.0, ignore_eos=True)
    assert engine.sample([PROMPTS[0]], ignoring)[0].samples[0].finish_reason == "length"


def test_a_stop_string_ends_the_text_before_it_and_keeps_all_tokens() -> None:
    engine = engine_of()
    plain = engine.sample([PROMPTS[0]], SamplingParams(max_new_tokens=20, temperature=0.0))[0].samples[0]
    assert plain.text is not None
    stop = plain.text[5:7]
    place = plain.text.find(stop)
    params = SamplingParams(max_new_tokens=20, temperature=0.0, stop=(stop, "no such text"))
    sample = engine.sample([PROMPTS[0]], params)[0].samples[0]
    assert (sample.text, sample.finish_reason, sample.stop) == (plain.text[:place], "stop", stop)
    assert sample.token_ids == plain.token_ids[: place + 2]


def test_top_log_probabilities_come_in_the_number_that_was_asked_for() -> None:
    engine = engine_of()
    two = engine.submit(PROMPTS[0], SamplingParams(max_new_tokens=4, logprobs=2, seed=0))
    five = engine.submit(PROMPTS[0], SamplingParams(max_new_tokens=4, logprobs=5, temperature=0.0))
    none = engine.submit(PROMPTS[0], SamplingParams(max_new_tokens=4))
    assert [len(top) for top in two.result().samples[0].top_logprobs] == [2] * 4
    sample = five.result().samples[0]
    assert [top[0] for top in sample.top_logprobs] == list(zip(sample.token_ids, sample.model_logprobs, strict=True))
    assert none.result().samples[0].top_logprobs == []


@pytest.mark.parametrize(
    ("prompt", "params", "named"),
    [
        ([], SamplingParams(), ()),
        ([1, VOCAB], SamplingParams(), (VOCAB, 0, VOCAB - 1)),
        ([1] * 250, SamplingParams(max_new_tokens=20), (250, 20, 256)),
        ([1] * 256, SamplingParams(), (256, 1)),
    ],
)
def test_what_can_never_run_is_refused_at_once(
    prompt: list[int], params: SamplingParams, named: tuple[object, ...]
) -> None:
    engine = engine_of()
    with raises(InvalidInputError, *named):
        engine.submit(prompt, params)
    assert not engine.step()


def test_settings_of_the_engine_that_cannot_work_are_refused() -> None:
    with raises(ConfigError, "max_batch", 0):
        engine_of(max_batch=0)
    with raises(ConfigError, "max_tokens", 3):
        engine_of(max_tokens=3)
    with raises(InvalidInputError, "logprobs", 30, 20):
        Engine(build(vocab=20), max_tokens=256).submit([1], SamplingParams(logprobs=30))
    with pytest.raises(InvalidInputError):
        Engine(shared(), max_tokens=256).submit([1], SamplingParams(stop=("a",)))


def test_without_a_limit_a_sample_ends_with_the_window() -> None:
    sample = engine_of(max_tokens=64).sample([[1, 3]], SamplingParams(ignore_eos=True, seed=1))[0].samples[0]
    assert (len(sample.token_ids), sample.finish_reason, sample.text is None) == (62, "length", False)


def test_the_models_mode_and_gradients_stay_as_they_are() -> None:
    model = build()
    model.train()
    result = Engine(model, max_tokens=256).sample([[1, 2, 3]], SamplingParams(max_new_tokens=3))[0]
    assert model.training
    assert all(each.requires_grad and each.grad is None for each in model.parameters())
    loss = model(torch.tensor([result.prompt_ids]), labels=torch.tensor([result.prompt_ids])).loss
    loss.backward()  # nothing of the engine's work is in the way


def test_a_step_that_fails_ends_its_requests_with_the_reason_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of(max_batch=2)
    running = engine.submit(PROMPTS[0], SamplingParams(max_new_tokens=20, n=2, ignore_eos=True))
    engine.step()
    waiting = engine.submit(PROMPTS[1], SamplingParams(max_new_tokens=5, temperature=0.0))

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "decode", broken)
        engine.step()
    with raises(EngineError, "out of memory"):
        running.result()
    assert waiting.result().samples[0].token_ids == greedy_of(shared(), PROMPTS[1], 5)
    assert (engine.num_running, engine.num_held_tokens) == (0, 0)
