"""APO under the trainer: real runners, callbacks, loggers, records, the gateway, and a run that goes on."""

import asyncio
import csv
from pathlib import Path
from typing import Any

import pytest
from openai import DefaultHttpxClient, OpenAI

from sharpen import APO, LLM, InMemoryLightningStore, LitAgent, LLMProxy, PromptTemplate, Trainer, rollout
from sharpen.callbacks import Callback, Checkpoint, EarlyStopping
from sharpen.errors import RunError
from sharpen.store import SQLiteStore
from tests.algorithm.apo.scenes import (
    CRITIC,
    EDITOR,
    SEED,
    TRAIN,
    agent,
    fit,
    good_words,
    make,
    quality,
    shape,
    tasks,
)
from tests.algorithm.internals import read_records
from tests.algorithm.prompts.scripted_openai import Reply, ScriptedOpenAI
from tests.errors import raises


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # runs without a folder of their own make one below


HELLO: list[Any] = [{"role": "user", "content": f"<template>\n{SEED.template}\n</template>"}]
SMALL: dict[str, Any] = {"train": TRAIN, "val": tasks(8)}


def test_a_fit_gives_the_best_prompt_and_leaves_the_records_of_all(tmp_path: Path) -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, val_batch_size=6, promotion="mean")
        trainer = fit(apo, tmp_path / "run", **SMALL, loggers=["csv"], n_runners=2)
    result = trainer.result
    assert result is not None
    assert result.status == "succeeded"
    best = apo.get_best_prompt()
    assert best != SEED
    assert result.best_resources == {"prompt": best}
    folder = tmp_path / "run" / "prompts"
    assert (folder / "best_prompt.txt").read_text() == best.template
    assert f"+{best.template}" in (folder / "best_prompt.diff").read_text()
    assert read_records(tmp_path / "run").as_json() == apo.book.as_json()
    assert "v8" in (folder / "candidates.txt").read_text()
    assert apo.best_diff()
    assert "v8" in apo.tree()
    (table,) = (tmp_path / "run").rglob("*.csv")
    rows = [row for row in csv.DictReader(table.open()) if row.get("train/candidates")]
    assert len(rows) == 2
    assert {"train/reward_mean", "train/rejected", "val/reward_mean", "val/reward_low", "val/rollouts"} <= set(rows[0])
    assert float(rows[-1]["train/rollouts_total"]) == result.metrics["rollouts"] == apo.cost.rollouts


def test_a_client_that_was_used_before_the_run_serves_it(tmp_path: Path) -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_width=1, beam_rounds=1, val_batch_size=6)
        assert apo.async_openai_client is not None
        asyncio.run(apo.async_openai_client.chat.completions.create(model=CRITIC, messages=HELLO, seed=1))
        fit(apo, tmp_path / "run", **SMALL)
    assert [each.status for each in apo.candidates if each.status == "rejected"] == []
    assert apo.round == 1


async def test_a_client_that_was_used_in_a_notebook_serves_a_run_there(tmp_path: Path) -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_width=1, beam_rounds=1, val_batch_size=6)
        assert apo.async_openai_client is not None
        await apo.async_openai_client.chat.completions.create(model=CRITIC, messages=HELLO, seed=1)
        trainer = Trainer(algorithm=apo, strategy="shm", initial_resources={"prompt": SEED}, run_dir=tmp_path / "run")
        await trainer.fit_async(agent, TRAIN, tasks(8))
        await apo.async_openai_client.chat.completions.create(model=CRITIC, messages=HELLO, seed=1)
    assert apo.round == 1


def test_a_client_can_be_shared_by_agent_and_critic(tmp_path: Path) -> None:
    with ScriptedOpenAI(lambda request: "ok" if request["model"] == "agent" else good_words(request)) as server:
        apo = make(server, beam_width=2, beam_rounds=1, val_batch_size=6)
        client = apo.async_openai_client
        assert client is not None

        @rollout
        async def asking(task: dict[str, int], prompt_template: PromptTemplate) -> float:
            prompt = prompt_template.format(question=str(task["number"]))
            await client.chat.completions.create(model="agent", messages=[{"role": "user", "content": prompt}])
            return quality(prompt, task["number"])

        fit(apo, tmp_path / "run", **SMALL, the_agent=asking)
    assert server.count(model="agent") == apo.cost.rollouts
    assert [
        each.status for each in apo.candidates if each.status == "rejected" and "same" not in str(each.reason)
    ] == []


def test_callbacks_see_rounds_as_iterations_and_can_end_the_search(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    class Watching(Callback):
        def on_iter_end(self, loop: Any, trained: Any) -> None:
            seen.append((loop.current_iter, loop.metrics["val/reward_mean"]))

    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=9, val_batch_size=6)
        keeping = Checkpoint(tmp_path / "kept", every_n_iters=1, monitor="val/reward_mean", keep_best=1)
        stopping = EarlyStopping(monitor="val/reward_mean", patience=1, min_delta=2.0)
        trainer = fit(apo, None, **SMALL, callbacks=[Watching(), stopping, keeping])
    assert [number for number, _ in seen] == list(range(1, len(seen) + 1))
    assert apo.round == len(seen) < 9  # no round was better by 2
    assert keeping.last_path is not None
    assert keeping.last_path.exists()
    assert trainer.result is not None
    assert trainer.result.best_resources == {"prompt": apo.get_best_prompt()}


def test_the_best_is_published_last_also_when_the_run_fails(tmp_path: Path) -> None:
    def reply(request: dict[str, Any]) -> str | Reply:
        return good_words(request) if len(server.requests) <= 8 else Reply(status=401)

    store = InMemoryLightningStore(thread_safe=True)
    with ScriptedOpenAI(reply) as server:
        apo = make(server, val_batch_size=6, promotion="mean")
        with raises(RunError, 401):
            fit(apo, tmp_path / "run", **SMALL, store=store)
        found = read_records(tmp_path / "run")
    assert found.best.version != "v0"  # the first round was good

    with ScriptedOpenAI(good_words) as server:
        again, sound = (
            make(server, val_batch_size=6, promotion="mean"),
            make(server, val_batch_size=6, promotion="mean"),
        )
        trainer = fit(again, None, **SMALL, store=store, resume=tmp_path / "run")
        fit(sound, None, **SMALL)
    assert shape(again) == shape(sound)
    assert trainer.result is not None
    assert trainer.result.best_resources == {"prompt": again.get_best_prompt()}
    assert trainer.result.metrics["rollouts"] == again.cost.rollouts == sound.cost.rollouts


def test_a_run_that_is_stopped_leaves_the_best_prompt() -> None:
    class Stopping(Callback):
        def on_iter_end(self, loop: Any, trained: Any) -> None:
            trainer.stop()

    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=9, val_batch_size=6, promotion="mean")
        trainer = Trainer(
            algorithm=apo,
            store=InMemoryLightningStore(thread_safe=True),
            strategy="shm",
            initial_resources={"prompt": SEED},
            callbacks=[Stopping()],
        )
        result = trainer.fit(agent, TRAIN, tasks(8))
    assert apo.round < 9
    assert apo.get_best_prompt() != SEED
    assert result.best_resources == {"prompt": apo.get_best_prompt()}


def test_the_prompt_of_the_agent_is_where_it_begins() -> None:
    class Mine(LitAgent[Any]):
        prompt_template = "Mine: {question}"

        def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
            return quality(resources["prompt_template"].template, task["number"])

    @rollout
    def by_default(task: Any, prompt_template: PromptTemplate = PromptTemplate("Given: {question}")) -> float:  # noqa: B008
        return quality(prompt_template.template, task["number"])

    small = {"beam_width": 1, "branch_factor": 1, "beam_rounds": 1, "val_batch_size": 4}
    with ScriptedOpenAI(good_words) as server:
        for the_agent, begin in ((Mine(), "Mine: {question}"), (by_default, "Given: {question}")):
            apo = make(server, **small)
            fit(apo, None, **SMALL, the_agent=the_agent, initial_resources=None)
            assert apo.candidates[0].prompts == {"prompt_template": PromptTemplate(begin)}


def test_a_second_fit_of_the_same_object_and_client_begins_anew() -> None:
    small = {"beam_width": 1, "branch_factor": 2, "beam_rounds": 1, "val_batch_size": 4}
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, **small)  # each fit has an event loop of its own, the client is the same
        fit(apo, None, **SMALL)
        first, key = shape(apo), apo.key
        fit(apo, None, **SMALL)
        assert len(server.requests) == 2 * 4  # and nothing was asked twice
    assert shape(apo) == first
    assert apo.key != key
    assert all(each.status != "rejected" for each in apo.candidates)


def test_the_critic_reads_what_the_agent_and_its_model_said() -> None:
    @rollout
    def talking(task: Any, prompt_template: PromptTemplate, llm: LLM) -> float:
        with DefaultHttpxClient(verify=False) as link:
            client = OpenAI(base_url=llm.get_base_url(), api_key="none", http_client=link)
            asked = prompt_template.format(question=f"what is {task['number']}")
            said = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": asked}])
        return float(said.choices[0].message.content == "it is a number")

    def reply(request: dict[str, Any]) -> str | Reply:
        return "it is a number" if request["model"] == "agent" else good_words(request)

    with ScriptedOpenAI(reply) as server:
        apo = make(server, beam_width=1, branch_factor=1, beam_rounds=1)
        resources = {"prompt": SEED, "main_llm": LLM(endpoint=server.base_url, model="agent")}
        fit(apo, None, train=tasks(4, first=100), val=tasks(2), the_agent=talking, initial_resources=resources)
        (asked,) = [each for each in server.requests if each.model == CRITIC]
    assert asked.text.count("Answer what is 10") == 3
    assert asked.text.count("it is a number") == 3
    assert apo.cost.calls == 2 + len([each for each in server.requests if each.model == "agent"])


def test_critic_and_editor_are_asked_through_the_gateway_where_it_lists_them() -> None:
    with ScriptedOpenAI(good_words) as server:
        upstream = {"api_base": server.base_url, "api_key": "sk-upstream"}
        models = [
            {"model_name": name, "litellm_params": {"model": f"openai/{name}", **upstream}} for name in (CRITIC, EDITOR)
        ]
        apo = APO(gradient_model=CRITIC, apply_edit_model=EDITOR, beam_width=1, branch_factor=1, beam_rounds=1, seed=7)
        trainer = fit(apo, None, **SMALL, llm_proxy=LLMProxy(model_list=models))
    assert {each.key for each in server.requests} == {"sk-upstream"}
    assert [each.model for each in server.requests] == [CRITIC, EDITOR]
    assert trainer.result is not None
    assert trainer.result.status == "succeeded"


@pytest.mark.slow
def test_it_runs_in_processes_on_a_file_and_goes_on_there(tmp_path: Path) -> None:
    def reply(request: dict[str, Any]) -> str | Reply:
        return good_words(request) if len(server.requests) <= 5 else Reply(status=401)

    options: dict[str, Any] = {**SMALL, "strategy": "cs", "n_runners": 2}
    store = SQLiteStore(tmp_path / "store.db")
    with ScriptedOpenAI(reply) as server, raises(RunError, 401):
        fit(make(server, max_concurrent_calls=1), tmp_path / "run", store=store, **options)
    with ScriptedOpenAI(good_words) as server:
        again, sound = make(server), make(server)
        store = SQLiteStore(tmp_path / "store.db")
        trainer = fit(again, None, store=store, resume=tmp_path / "run", **options)
        fit(sound, None, **SMALL)
    assert trainer.result is not None
    assert trainer.result.status == "succeeded"
    assert trainer.result.metrics["rollouts"] == sound.cost.rollouts
    assert read_records(tmp_path / "run").as_json() == sound.book.as_json()
