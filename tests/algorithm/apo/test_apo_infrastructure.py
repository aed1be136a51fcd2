"""A model that is out for a while, and a budget that is spent: neither is a prompt's fault."""

from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from sharpen import LLM, PromptTemplate, Trainer, rollout
from sharpen.errors import RunError
from tests.algorithm.prompts.scripted_openai import Reply, ScriptedOpenAI, text_of
from tests.errors import raises

from .scenes import SEED, good_words, make, quality, tasks

MODEL = "worker"


@rollout
async def asking_agent(task: dict[str, int], prompt_template: PromptTemplate, llm: LLM) -> float:
    """Asks its model, and is worth what its prompt is worth."""
    prompt = prompt_template.format(question=str(task["number"]))
    async with AsyncOpenAI(base_url=llm.get_base_url(), api_key="none", max_retries=0) as client:
        await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": prompt}])
    return quality(prompt, task["number"])


class Upstream:
    """Answers as worker, critic and editor; some calls of the worker fail."""

    def __init__(self, *, broken: range = range(0)) -> None:
        self.broken, self.num_calls = broken, 0
        self.answered: list[str] = []

    def __call__(self, request: dict[str, Any]) -> str | Reply:
        if request["model"] != MODEL:
            return good_words(request)
        self.num_calls += 1
        if self.num_calls in self.broken:
            return Reply(status=503)
        self.answered.append(text_of(request))
        return "ok"


def trainer_of(server: ScriptedOpenAI, **limits: int) -> Trainer:
    gateway = {"model_list": [{"name": MODEL, "base_url": server.base_url}], "limits": limits}
    apo = make(server, beam_rounds=1)
    return Trainer(algorithm=apo, strategy="shm", initial_resources={"prompt": SEED}, llm_proxy=gateway)


def fit(trainer: Trainer, **resume: Any) -> dict[str, tuple[str, float]]:
    """The candidates that were scored: their texts and means."""
    trainer.fit(asking_agent, tasks(6, first=100), tasks(10), **resume)
    assert trainer.algorithm is not None
    candidates = trainer.algorithm.candidates  # type: ignore[attr-defined]
    return {each.version: (each.template.template, each.score.mean) for each in candidates if each.score}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path))


@pytest.mark.slow
def test_a_model_that_is_out_for_a_while_lowers_no_score(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedOpenAI(Upstream()) as server:
        undisturbed = fit(trainer_of(server))
    with ScriptedOpenAI(Upstream(broken=range(5, 9))) as server:
        assert fit(trainer_of(server)) == undisturbed
    assert sum("was lost (InternalServerError" in message for message in caplog.messages) == 4


@pytest.mark.slow
def test_a_run_that_has_spent_its_budget_ends_and_goes_on_with_a_larger_one() -> None:
    with ScriptedOpenAI(Upstream()) as server:
        undisturbed = fit(trainer_of(server))
    upstream = Upstream()
    with ScriptedOpenAI(upstream) as server:
        first = trainer_of(server, run_calls=20)
        with raises(RunError, "run_calls"):
            fit(first)
        assert upstream.num_calls == 20
        assert first.result is not None
        assert fit(trainer_of(server), resume=first.result.run_dir) == undisturbed
    # Training tasks are rolled out afresh in every branch; each validation task is asked for once with each prompt.
    validated = [text for text in upstream.answered if int(text.split()[1].strip(".")) < 100]
    assert len(validated) == len(set(validated))
