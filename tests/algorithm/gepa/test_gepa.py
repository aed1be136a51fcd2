"""GEPA through the real trainer: what it finds, what it spends, what it writes down, and that it stops."""

import asyncio
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from sharpen import GEPA, LLM, LLMProxy, PromptTemplate, Trainer, emit_message, llm_rollout, rollout
from sharpen.errors import ConfigError, RunError
from sharpen.store import InMemoryLightningStore
from tests.algorithm.internals import read_records
from tests.algorithm.prompts.scripted_openai import Reply, ScriptedOpenAI, text_of
from tests.errors import raises

from .scenes import SEED, TWO_SEEDS, WORDS, add_what_lacks, agent, fit, make, shown_prompt, take_what_lacks, tasks


def rollouts(trainer: Trainer) -> list[Any]:
    found: list[Any] = list(asyncio.run(trainer.store.query_rollouts()))
    return found


def test_it_improves_the_prompt_by_what_the_traces_say_within_its_budget(tmp_path: Path) -> None:
    with ScriptedOpenAI(add_what_lacks) as server:
        gepa = make(server, max_metric_calls=90, promotion="mean")
        trainer = fit(gepa, tmp_path)
    best = gepa.get_best_prompt()
    assert all(word in best.template for word in WORDS)
    assert gepa.book.best.score is not None
    assert gepa.book.best.score.mean == 1.0
    spent = rollouts(trainer)
    assert len(spent) == gepa.cost.rollouts <= 90
    assert gepa.cost.calls == len(server.requests)
    latest = asyncio.run(trainer.store.get_latest_resources())
    assert latest is not None
    assert latest.resources == {"prompt": best}
    assert (tmp_path / "prompts" / "best_prompt.txt").read_text().strip() == best.template
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    calls = [line["train/metric_calls"] for line in lines if "train/metric_calls" in line]
    assert calls == sorted(calls)
    assert calls[-1] == len(spent)


@rollout
async def points(task: dict[str, Any], prompt_template: PromptTemplate) -> float:
    """5 points for a prompt without any of the words, 10 more for the one that the task needs."""
    if task["word"] in prompt_template.format(question=task["number"]):
        return 15.0
    emit_message(f"prompt lacks: {task['word']}")
    return 5.0


@pytest.mark.parametrize(("perfect_reward", "is_improved"), [(None, True), (15.0, True), (5.0, False)])
def test_only_a_stated_maximum_keeps_a_prompt_from_being_reflected_on(
    tmp_path: Path, perfect_reward: float | None, is_improved: bool
) -> None:
    with ScriptedOpenAI(add_what_lacks) as server:
        gepa = make(server, max_metric_calls=90, promotion="mean", perfect_reward=perfect_reward)
        trainer = fit(gepa, tmp_path, the_agent=points)
    assert (gepa.get_best_prompt() != SEED) == is_improved == bool(server.requests)
    if perfect_reward == 15.0:  # reached before the budget was spent
        assert gepa.book.best.score is not None
        assert gepa.book.best.score.mean == 15.0
        assert len(rollouts(trainer)) <= 90 - 8


@rollout
async def whole_task(task: dict[str, Any], prompt_template: PromptTemplate) -> float:
    """1 where the prompt has the word, however it came there."""
    return float(task["word"] in prompt_template.format(question=task["number"], **task))


def test_a_candidate_cannot_copy_a_part_of_the_task_into_the_prompt(tmp_path: Path) -> None:
    with ScriptedOpenAI(lambda request: f"It lacked it.\n```\n{SEED.template} \\boxed{{word}}\n```") as server:
        gepa = make(server, max_metric_calls=30)
        fit(gepa, tmp_path, the_agent=whole_task)
    assert gepa.candidates[1].template.format(question=1, word="twice") == r"Answer 1. \boxed{word}"
    assert {each.score.mean for each in gepa.candidates if each.score} == {0.0}


def test_every_candidate_is_in_the_book_with_its_parent_its_reason_and_its_price(tmp_path: Path) -> None:
    with ScriptedOpenAI(add_what_lacks) as server:
        gepa = make(server, perfect_score=1.0)
        trainer = fit(gepa, tmp_path)
    seed, first, *rest = gepa.candidates
    assert (seed.version, seed.status, first.version, first.parents) == ("v0", seed.status, "v1", ["v0"])
    assert first.critique is not None
    assert first.critique.startswith("It lacked")
    for candidate in (seed, first, *rest):
        if candidate.status in ("best", "kept"):
            assert candidate.score is not None
            assert candidate.score.count == 8
        else:
            assert candidate.status == "dropped"
            assert candidate.reason
    # The first minibatch with the seed, the same with the candidate, and all validation tasks.
    assert (first.cost.rollouts, first.cost.calls) == (3 + 3 + 8, 1)
    assert len(rollouts(trainer)) == gepa.cost.rollouts <= 60
    recorded = read_records(tmp_path)
    assert (recorded.cost, recorded.other_cost.rollouts > 0) == (gepa.cost, True)
    assert f"cost: {len(rollouts(trainer))} rollouts, " in (tmp_path / "prompts" / "candidates.txt").read_text()


@pytest.mark.parametrize("limit", [25, 33, 47])
def test_not_one_rollout_more_than_the_budget_is_spent(tmp_path: Path, limit: int) -> None:
    with ScriptedOpenAI(add_what_lacks) as server:
        trainer = fit(make(server, max_metric_calls=limit), tmp_path)
    spent = rollouts(trainer)
    assert len(spent) <= limit
    # What is left would not have been enough for another candidate.
    assert limit - len(spent) < 3 + 3 + 8


def test_a_text_that_cannot_be_used_is_asked_for_again_before_any_rollout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sharpen")

    def forgetful(request: dict[str, Any]) -> str:
        if "cannot be used" in text_of(request):
            assert "it lost {question}" in text_of(request)
            return str(add_what_lacks(request))
        return "Shorter is better.\n```\nAnswer it.\n```"

    with ScriptedOpenAI(forgetful) as server:
        gepa = make(server, max_metric_calls=30)
        trainer = fit(gepa, tmp_path)
    assert [each.version for each in gepa.candidates] == ["v0", "v1-unfit", "v1"]
    unfit = gepa.candidates[1]
    assert (unfit.status, unfit.reason, unfit.critique) == ("rejected", "it lost {question}", "Shorter is better.")
    assert (unfit.cost.rollouts, unfit.cost.calls) == (0, 1)
    assert "it lost {question}" in caplog.text
    prompts = {each.resources_id for each in rollouts(trainer)}
    resources = [asyncio.run(trainer.store.get_resources_by_id(each)) for each in prompts]
    assert all("{question}" in each.resources["prompt"].template for each in resources)


def test_a_model_that_never_writes_anything_of_use_ends_the_search(tmp_path: Path) -> None:
    with ScriptedOpenAI("```\nAnswer {question}.\n```") as server:
        gepa = make(server, max_metric_calls=1000)
        trainer = fit(gepa, tmp_path)
    assert gepa.get_best_prompt() == SEED
    assert {each.reason for each in gepa.candidates if each.version != "v0"} == {"it is the same as its parent"}
    assert len(rollouts(trainer)) == 8 + 8  # the seed on every task, once


def test_failures_of_the_model_are_passed_over_and_counted(tmp_path: Path) -> None:
    failures = [Reply(status=500), Reply(refusal="no"), Reply(""), Reply(is_dropped=True)]

    def moody(request: dict[str, Any]) -> str | Reply:
        return failures.pop() if failures else add_what_lacks(request)

    with ScriptedOpenAI(moody) as server:
        gepa = make(server, max_metric_calls=40)
        fit(gepa, tmp_path)
    assert not failures
    assert gepa.book.get("v5").parents == ["v0"]  # each of the four was a round, and made nothing
    assert gepa.cost.calls == len(server.requests)


def test_a_model_that_answers_no_more_ends_the_run_which_goes_on_when_it_does(tmp_path: Path) -> None:
    is_down, store = True, InMemoryLightningStore(thread_safe=True)

    def reply(request: dict[str, Any]) -> str | Reply:
        return Reply(status=503) if is_down else add_what_lacks(request)

    with ScriptedOpenAI(reply) as server:
        with raises(RunError, 5, 503):
            fit(make(server), tmp_path, store=store)
        assert len(server.requests) == 5
        is_down = False
        gepa = make(server)
        fit(gepa, tmp_path, store=store, resume=tmp_path)
    assert gepa.book.best.version != "v0"


def test_a_wrong_key_ends_the_run_at_once_with_words(tmp_path: Path) -> None:
    with ScriptedOpenAI(Reply(status=401, error="bad key")) as server:
        with raises(RunError, 401):
            fit(make(server), tmp_path)
        assert len(server.requests) == 1


def test_two_prompts_are_improved_in_turn_and_merged(tmp_path: Path) -> None:
    data = (tasks(16, first=96, parts=("plan", "reply")), tasks(16, parts=("plan", "reply")))
    with ScriptedOpenAI(take_what_lacks) as server:
        gepa = make(server, use_merge=True, max_metric_calls=150, promotion="mean", seed=2)
        trainer = fit(gepa, tmp_path, initial_resources=dict(TWO_SEEDS), data=data)
    merged = [each for each in gepa.candidates if len(each.parents) == 2]
    assert merged
    assert all(str(each.critique).endswith(" and ".join(each.parents)) for each in merged)
    assert any(each.status in ("kept", "best") for each in merged)
    best = gepa.book.best.prompts
    assert best["plan"] != TWO_SEEDS["plan"]
    assert best["reply"] != TWO_SEEDS["reply"]
    assert len(rollouts(trainer)) == gepa.cost.rollouts <= 150


def test_only_the_named_prompt_is_improved(tmp_path: Path) -> None:
    data = (tasks(8, first=96, parts=("plan", "reply")), tasks(8, parts=("plan", "reply")))
    with ScriptedOpenAI(add_what_lacks) as server:
        gepa = make(server, resource_name="reply", max_metric_calls=30)
        trainer = fit(gepa, tmp_path, initial_resources=dict(TWO_SEEDS), data=data)
    assert all(list(each.prompts) == ["reply"] for each in gepa.candidates)
    latest = asyncio.run(trainer.store.get_latest_resources())
    assert latest is not None
    assert latest.resources["plan"] == TWO_SEEDS["plan"]


def test_stopping_the_run_ends_the_thread_of_gepa(tmp_path: Path) -> None:
    asked, store = threading.Event(), InMemoryLightningStore(thread_safe=True)

    def slow(request: dict[str, Any]) -> Reply:
        asked.set()
        return Reply("```\nAnswer {question}.\n```", delay_seconds=30)

    with ScriptedOpenAI(slow) as server:
        gepa = make(server)
        trainer = Trainer(
            algorithm=gepa, store=store, strategy="shm", initial_resources={"prompt": SEED}, run_dir=tmp_path
        )
        running = threading.Thread(target=trainer.fit, args=(agent, tasks(8), tasks(8)))
        running.start()
        assert asked.wait(30)
        began = time.monotonic()
        trainer.stop()
        running.join(30)
        assert not running.is_alive()
        assert time.monotonic() - began < 20  # the answer would take 30
    assert not [each for each in threading.enumerate() if each.name == "sharpen-gepa"]


def test_a_budget_that_no_candidate_fits_into_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    store = InMemoryLightningStore(thread_safe=True)
    with (
        ScriptedOpenAI() as server,
        raises(ConfigError, "max_metric_calls", 21, 22),
    ):
        fit(make(server, max_metric_calls=21), tmp_path, store=store)
    assert not server.requests
    assert list(asyncio.run(store.query_rollouts())) == []


def test_a_missing_client_is_said_before_anything_is_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    store = InMemoryLightningStore(thread_safe=True)
    with raises(ConfigError, "GEPA", "gpt-5-mini", "reflection_client="):
        fit(GEPA(), tmp_path, store=store)
    assert list(asyncio.run(store.query_rollouts())) == []


def test_a_key_that_is_refused_is_found_before_anything_is_spent(tmp_path: Path) -> None:
    store = InMemoryLightningStore(thread_safe=True)
    with ScriptedOpenAI(add_what_lacks, listing=Reply(status=401, error="bad key")) as server:
        with raises(RunError, "thinker", 401):
            fit(make(server), tmp_path, store=store)
        assert not server.requests
    assert list(asyncio.run(store.query_rollouts())) == []


def test_a_client_that_was_used_before_the_run_serves_it(tmp_path: Path) -> None:
    with ScriptedOpenAI(lambda request: add_what_lacks(request) if len(server.requests) > 1 else "hello") as server:
        gepa = make(server, max_metric_calls=40)
        assert gepa.reflection_client is not None
        asyncio.run(gepa.reflection_client.chat.completions.create(model="thinker", messages=[]))
        fit(gepa, tmp_path)
    assert len(server.requests) > 1


def test_templates_for_prompts_that_there_are_not_are_refused(tmp_path: Path) -> None:
    with ScriptedOpenAI() as server, raises(ConfigError, "prmpt", "prompt"):
        fit(make(server, reflection_prompt_template={"prmpt": "<curr_param> <side_info>"}), tmp_path)


def test_a_template_of_the_user_takes_the_place_of_gepas(tmp_path: Path) -> None:
    with ScriptedOpenAI(lambda request: f"```\n{shown_prompt(request)} briefly\n```") as server:
        fit(
            make(server, reflection_prompt_template="MINE ```<curr_param>``` <side_info>", max_metric_calls=30),
            tmp_path,
        )
    assert server.requests
    assert all(each.text.startswith("MINE") for each in server.requests)
    assert all("{question}" in each.text.splitlines()[-1] for each in server.requests)


def test_the_agents_own_prompt_is_improved_too(tmp_path: Path) -> None:
    @rollout
    async def own(task: dict[str, Any], prompt_template: PromptTemplate = SEED) -> float:
        return float("twice" in prompt_template.template)

    with ScriptedOpenAI("```\nAnswer {question} twice.\n```") as server:
        gepa = make(server, max_metric_calls=30, promotion="mean")
        trainer = Trainer(
            algorithm=gepa, store=InMemoryLightningStore(thread_safe=True), strategy="shm", run_dir=tmp_path
        )
        trainer.fit(own, tasks(8), tasks(8))
    assert gepa.get_best_prompt().template == "Answer {question} twice."


def test_several_proposals_of_an_iteration_are_made_side_by_side(tmp_path: Path) -> None:
    from gepa.strategies.proposal_sampling import IndependentSampling

    with ScriptedOpenAI(lambda request: Reply(str(add_what_lacks(request)), delay_seconds=0.05)) as server:
        gepa = make(server, sampling_strategy=IndependentSampling(2), max_metric_calls=40)
        trainer = fit(gepa, tmp_path)
    assert server.most_at_once == 2
    assert [each.version for each in gepa.candidates[:3]] == ["v0", "v1.1", "v1.2"]
    assert len(rollouts(trainer)) == gepa.cost.rollouts <= 40


def test_all_prompts_can_be_rewritten_in_one_iteration(tmp_path: Path) -> None:
    data = (tasks(8, first=96, parts=("plan", "reply")), tasks(8, parts=("plan", "reply")))
    with ScriptedOpenAI(add_what_lacks) as server:
        gepa = make(server, module_selector="all", max_metric_calls=30)
        fit(gepa, tmp_path, initial_resources=dict(TWO_SEEDS), data=data)
    first = gepa.book.get("v1")
    assert all(first.prompts[name] != TWO_SEEDS[name] for name in TWO_SEEDS)
    assert first.critique is not None
    assert [line.split(":")[0] for line in first.critique.splitlines()] == ["plan", "reply"]
    assert first.cost.calls == len(server.requests) == 2


def test_a_strategy_that_fails_again_and_again_ends_the_run_with_words(tmp_path: Path) -> None:
    class Broken:
        def next_minibatch_ids(self, loader: Any, state: Any) -> list[int]:
            raise LookupError("no minibatch today")

    with (
        ScriptedOpenAI() as server,
        raises(RunError, 3, "no minibatch today"),
    ):
        fit(make(server, batch_sampler=Broken()), tmp_path)


def test_a_stop_callback_of_gepa_ends_the_search(tmp_path: Path) -> None:
    with ScriptedOpenAI(add_what_lacks) as server:
        gepa = make(server, stop_callbacks=lambda state: len(state.program_candidates) > 1)
        fit(gepa, tmp_path)
    assert [each.version for each in gepa.candidates] == ["v0", "v1"]


@llm_rollout
async def talker(task: dict[str, Any], llm: LLM, prompt_template: PromptTemplate) -> float:
    """Its reward follows from what the model says to its prompt."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
        prompt = prompt_template.format(question=task["number"])
        said = await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": prompt}])
    return float(said.choices[0].message.content == "with pleasure")


@pytest.mark.slow
def test_agents_and_reflections_go_through_the_gateway_of_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def upstream(request: dict[str, Any]) -> str:
        if request["model"] == "agent":
            return "with pleasure" if "politely" in text_of(request) else "what now"
        assert "[assistant] what now" in text_of(request)
        return "It grumbles.\n```\nAnswer {question} politely.\n```"

    with ScriptedOpenAI(upstream) as server:
        models = [{"name": name, "base_url": server.base_url, "engine": "none"} for name in ("agent", "thinker")]
        trainer = Trainer(
            algorithm=GEPA(reflection_model="thinker", max_metric_calls=22, promotion="mean", seed=1),
            llm_proxy=LLMProxy(model_list=models, launch_mode="thread"),
            store=InMemoryLightningStore(thread_safe=True),
            strategy="shm",
            initial_resources={"prompt": SEED},
            run_dir=tmp_path,
        )
        trainer.fit(talker, tasks(8), tasks(8))
    gepa = trainer.algorithm
    assert isinstance(gepa, GEPA)
    assert gepa.get_best_prompt().template == "Answer {question} politely."
    assert server.count(model="thinker") == 1
    assert server.count(model="agent") == 22 == gepa.cost.rollouts
