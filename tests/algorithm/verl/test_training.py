"""VERL from end to end: a real gateway, a real engine, real agents, a tiny model."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI

from sharpen import LLM, VERL, PromptTemplate, ProxyLLM, Trainer, emit_reward, llm_rollout, rollout
from sharpen.callbacks import Callback
from sharpen.errors import ConfigError
from sharpen.llm import TrainingError, load_model
from sharpen.llm.engine import Engine
from sharpen.llm.server import EngineServer
from tests.archive.internals import RunEntry, summaries
from tests.errors import raises
from tests.llm.tiny_models import write_tiny_model

from .scenes import TASKS, ask, fit, pick_even, small_grpo


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of the iterations, without what the clock has a say in."""
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    rows = [each for each in found if "train/reward_mean" in each and "step" in each]
    return [{k: v for k, v in row.items() if "second" not in k and k != "time"} for row in rows]


def test_a_run_trains_the_model_and_keeps_it(tiny: Path, tmp_path: Path) -> None:
    algorithm = small_grpo(tiny, lora_rank=4, validate_every=1)
    trainer = fit(algorithm, tmp_path / "run", val_dataset=TASKS[:2])
    assert trainer.result is not None
    assert trainer.result.status == "succeeded"
    rows = lines(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[0]["train/rollouts"] == 32
    assert rows[0]["train/weights_version"] == 1
    assert abs(rows[0]["train/ratio"] - 1) < 1e-3
    assert 0 <= rows[-1]["val/reward_mean"] <= 1
    assert rows[-1]["val/rollouts"] == 2
    adapter = load_model(tmp_path / "run" / "checkpoints" / "step_2" / "model")
    assert hasattr(adapter.model, "peft_config")
    merged = load_model(algorithm.save_model(tmp_path / "merged", merge=True))
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        same = torch.allclose(adapter.model(ids).logits, merged.model(ids).logits, atol=1e-4)
        base = load_model(tiny).model(ids).logits
        is_trained = not torch.allclose(base, merged.model(ids).logits, atol=1e-4)
    assert same
    assert is_trained


def test_a_result_names_the_model_and_holds_no_endpoint_of_the_past(tiny: Path, tmp_path: Path) -> None:
    prompt = PromptTemplate("Say {word}")
    trainer = fit(small_grpo(tiny, steps=1), tmp_path / "run", initial_resources={"prompt": prompt})
    assert trainer.result is not None
    assert trainer.result.best_resources == {"prompt": prompt}
    assert trainer.result.model_dir == tmp_path / "run" / "checkpoints" / "step_1" / "model"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["model_dir"] == str(trainer.result.model_dir)
    assert load_model(trainer.result.model_dir).model.config.hidden_size == 32


def test_the_last_checkpoint_and_the_best_model_are_kept(tiny: Path, tmp_path: Path) -> None:
    num_validations = 0

    @llm_rollout
    async def best_after_two_steps(task: Any, llm: LLM) -> float:
        nonlocal num_validations
        answer = await ask(llm, [{"role": "user", "content": "say a token"}], max_tokens=1)
        if task != "validate":
            return float(answer["choices"][0]["token_ids"][0] % 2 == 0)
        num_validations += 1
        return [0.0, 0.2, 0.9, 0.3, 0.4][num_validations - 1]

    algorithm = small_grpo(tiny, steps=4, group_size=2, validate_every=1, save_every=1)
    fit(algorithm, tmp_path / "run", best_after_two_steps, val_dataset=["validate"])
    kept = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in kept.glob("step_*")) == ["step_2", "step_4"]
    assert {path.name for path in (kept / "step_2").iterdir()} == {"model", "state.json"}
    assert load_model(kept / "step_2" / "model").model.config.hidden_size == 32
    assert "step_2 (model " in (tmp_path / "run" / "run.log").read_text()
    more = small_grpo(tiny, steps=5, group_size=2)  # the last can be resumed from
    fit(more, tmp_path / "run", resume=tmp_path / "run")
    assert [row["step"] for row in lines(tmp_path / "run")] == [1, 2, 3, 4, 5]


def test_a_published_config_runs_without_vllm_and_says_what_is_not_used(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert find_spec("vllm") is None
    config = {
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "data": {"train_batch_size": 4, "max_prompt_length": 64, "max_response_length": 8},
        "actor_rollout_ref": {
            "rollout": {"name": "vllm", "n": 2, "tensor_model_parallel_size": 1, "gpu_memory_utilization": 0.6},
            "actor": {"ppo_mini_batch_size": 4, "optim": {"lr": 1e-3}},
            "model": {"path": str(tiny)},
        },
        "trainer": {"n_gpus_per_node": 1, "nnodes": 1, "project_name": "x", "total_training_steps": 1},
    }
    fit(VERL(config), tmp_path / "run")
    assert [row["step"] for row in lines(tmp_path / "run")] == [1]
    for text in (capfd.readouterr().err, (tmp_path / "run" / "run.log").read_text()):
        assert "gpu_memory_utilization" in text
        assert "trainer.project_name" in text
        assert "vllm, which is not installed" in text


class StopEarly(Callback):
    """Asks for the end after the first iteration, as `EarlyStopping` does."""

    def on_iter_end(self, loop: Any, trained: Any) -> None:
        loop.should_stop = True


def test_a_callback_can_end_the_run_and_the_model_is_kept(tiny: Path, tmp_path: Path) -> None:
    algorithm = small_grpo(tiny, steps=5)
    fit(algorithm, tmp_path / "run", callbacks=[StopEarly()])
    assert [row["step"] for row in lines(tmp_path / "run")] == [1]
    assert load_model(algorithm.save_model(tmp_path / "kept")).model.config.hidden_size == 32


def validations(folder: Path) -> list[int]:
    """The steps after which the validation set was measured."""
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [each["step"] for each in found if "step" in each and "val/reward_mean" in each]


def test_a_validation_set_is_measured_before_and_after_training_by_default(tiny: Path, tmp_path: Path) -> None:
    trainer = fit(small_grpo(tiny), tmp_path / "run", val_dataset=TASKS[:2])
    assert validations(tmp_path / "run") == [0, 2]
    assert trainer.result is not None
    assert trainer.result.metrics["val/reward_mean"] == lines(tmp_path / "run")[-1]["val/reward_mean"]


def test_validation_is_reported_for_each_value_of_a_field_of_the_tasks(tiny: Path, tmp_path: Path) -> None:
    @llm_rollout
    async def by_kind(task: Any, llm: LLM) -> float:
        answer = await ask(llm, [{"role": "user", "content": "say a token"}], max_tokens=1)
        even = float(answer["choices"][0]["token_ids"][0] % 2 == 0)
        return even if isinstance(task, str) else float(task["kind"] == "easy")

    tasks = [{"kind": kind} for kind in ("easy", "hard", "easy")]
    algorithm = small_grpo(tiny, steps=1, validate_by="kind")
    trainer = fit(algorithm, tmp_path / "run", by_kind, val_dataset=tasks)
    assert trainer.result is not None
    metrics = trainer.result.metrics
    assert (metrics["val/easy"], metrics["val/hard"]) == (1.0, 0.0)
    assert metrics["val/reward_mean"] == pytest.approx(2 / 3)
    assert {"val/easy", "val/hard"} <= summaries(RunEntry.of(tmp_path / "run")).keys()


def test_a_run_that_a_callback_ends_is_measured_at_its_end(tiny: Path, tmp_path: Path) -> None:
    fit(small_grpo(tiny, steps=5), tmp_path / "run", callbacks=[StopEarly()], val_dataset=TASKS[:2])
    assert validations(tmp_path / "run") == [0, 1]


@llm_rollout
async def by_the_sdk(task: str, llm: LLM) -> float:
    """As people write it: everything that the resource says is passed on."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
        answer = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": task}], **llm.sampling_parameters
        )
    return float(len(answer.choices[0].message.content or "") % 2)


def test_the_sampling_parameters_are_words_of_the_sdk(tiny: Path, tmp_path: Path) -> None:
    fit(small_grpo(tiny, steps=1, config={"actor_rollout_ref.rollout.top_k": 50}), tmp_path / "run", by_the_sdk)
    (row,) = lines(tmp_path / "run")
    assert row["train/failed"] == 0


@pytest.mark.slow
def test_a_run_that_failed_the_preflight_can_be_mended_and_resumed(tiny: Path, tmp_path: Path) -> None:
    @llm_rollout
    async def silent(task: str, llm: LLM) -> None:
        await ask(llm, [{"role": "user", "content": task}], max_tokens=1)

    with pytest.raises(TrainingError):
        fit(small_grpo(tiny), tmp_path / "run", silent, store="sqlite")
    fit(small_grpo(tiny), tmp_path / "run", resume=tmp_path / "run", store="sqlite")
    assert [row["step"] for row in lines(tmp_path / "run")] == [1, 2]


class BackToTheFirst(Callback):
    """Takes the weights after the first step back at the end, as early stopping does with the best."""

    def on_iter_end(self, loop: Any, trained: Any) -> None:
        if loop.current_iter == 1:
            self.first = trained.state_dict()
        elif loop.current_iter == 3:
            trained.load_state_dict(self.first)
            loop.should_stop = True


@pytest.mark.slow
def test_earlier_weights_can_be_taken_back(tiny: Path, tmp_path: Path) -> None:
    fit(small_grpo(tiny, steps=1), tmp_path / "one")
    algorithm = small_grpo(tiny, steps=5)
    fit(algorithm, tmp_path / "run", callbacks=[BackToTheFirst()])
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        first = load_model(tmp_path / "one" / "checkpoints" / "step_1" / "model").model(ids).logits
        kept = load_model(algorithm.save_model(tmp_path / "kept")).model(ids).logits
    assert torch.allclose(first, kept, atol=1e-5)


def test_settings_that_cannot_work_are_refused_before_anything_runs(tiny: Path, tmp_path: Path) -> None:
    with raises(ConfigError, "train_dataset"):
        Trainer(algorithm=small_grpo(tiny), strategy="shm", store="memory", run_dir=tmp_path / "a").fit(pick_even)
    with pytest.raises(ConfigError):
        small_grpo(tiny).save_model(tmp_path / "b")


def test_an_agent_that_gives_no_reward_ends_the_run_in_the_preflight(tiny: Path, tmp_path: Path) -> None:
    @llm_rollout
    async def silent(task: str, llm: LLM) -> None:
        await ask(llm, [{"role": "user", "content": task}], max_tokens=1)

    with pytest.raises(TrainingError):
        fit(small_grpo(tiny), tmp_path / "run", silent)


def test_a_run_that_changed_no_weight_says_so_at_its_end(tiny: Path, tmp_path: Path) -> None:
    @llm_rollout
    async def never(task: str, llm: LLM) -> float:
        await ask(llm, [{"role": "user", "content": task}], max_tokens=1)
        return 0.0

    trainer = fit(small_grpo(tiny, steps=1), tmp_path / "run", never)
    assert trainer.result is not None
    assert trainer.result.status == "succeeded"
    warnings = [line for line in (tmp_path / "run" / "run.log").read_text().splitlines() if " WARNING " in line]
    assert "no weight" in warnings[-1]
    assert "always 0" in warnings[-1]
    assert [each in warnings[-1] for each in trainer.result.warnings] == [True]


def test_a_learning_rate_of_one_ends_in_a_clear_message(tiny: Path, tmp_path: Path) -> None:
    with raises(TrainingError, "learning_rate="):
        fit(small_grpo(tiny, learning_rate=1.0, steps=10), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus", "gae"])
def test_every_estimator_learns_which_tokens_are_right(estimator: str, tiny: Path, tmp_path: Path) -> None:
    config = {
        "algorithm.adv_estimator": estimator,
        "actor_rollout_ref.rollout.val_kwargs": {"temperature": 1.0, "do_sample": True, "n": 50},
        "critic.optim.lr": 1e-2,
    }
    algorithm = small_grpo(tiny, steps=30, batch_size=4, group_size=16, validate_every=30, config=config)
    fit(algorithm, tmp_path / "run", val_dataset=TASKS)
    last = lines(tmp_path / "run")[-1]
    assert last["val/rollouts"] == 200
    assert last["val/reward_mean"] >= 0.95


class BreakOff(Callback):
    """Ends the process of training as a crash would."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_iter_end(self, loop: Any, trained: Any) -> None:
        if loop.current_iter == self.at:
            raise RuntimeError("broken off")


@pytest.mark.slow
def test_a_run_that_is_resumed_comes_to_the_same_numbers(tiny: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    options: dict[str, Any] = {"store": "sqlite"}
    fit(small_grpo(tiny, steps=6), whole, **options)
    with raises(RuntimeError, "broken off"):
        fit(small_grpo(tiny, steps=6), broken, callbacks=[BreakOff(3)], **options)
    fit(small_grpo(tiny, steps=6), broken, resume=broken, **options)
    assert [row["step"] for row in lines(broken)] == [1, 2, 3, 4, 5, 6]
    for ours, theirs in zip(lines(broken), lines(whole), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_asynchronous_training_is_bounded_in_staleness_and_prefers_no_rollout(tiny: Path, tmp_path: Path) -> None:
    fit(small_grpo(tiny, steps=25, max_staleness=1), tmp_path / "run")
    rows = lines(tmp_path / "run")
    assert all(0 <= row["train/staleness"] <= 1 for row in rows)
    assert any(row["train/staleness"] > 0 for row in rows)
    assert all(row["train/rollouts"] == 32 for row in rows)
    assert sum(row["train/reward_mean"] for row in rows[-5:]) / 5 > 0.8


@llm_rollout
async def two_turns(task: str, llm: LLM) -> float:
    """Two questions in one conversation, each answer with a reward of its own."""
    messages = [{"role": "user", "content": task}]
    total = 0.0
    for _ in range(2):
        answer = await ask(llm, messages, max_tokens=1)
        reward = float(answer["choices"][0]["token_ids"][0] % 2 == 0)
        emit_reward(reward)
        total += reward
        messages += [
            {"role": "assistant", "content": answer["choices"][0]["message"]["content"]},
            {"role": "user", "content": "once more"},
        ]
    return total


@pytest.mark.slow
def test_an_agent_of_two_turns_learns_from_turn_rewards(tiny: Path, tmp_path: Path) -> None:
    fit(small_grpo(tiny, steps=25), tmp_path / "run", two_turns)
    rows = lines(tmp_path / "run")
    assert rows[0]["train/turns_mean"] == 2
    assert rows[0]["train/trained_tokens"] == 64
    assert sum(row["train/reward_mean"] for row in rows[-5:]) / 5 > 1.6


@rollout
async def solver_and_critic(task: str, resources: Any, rollout: Any) -> float:
    """Two roles with one model. The critic says three tokens, which nobody rewards."""
    shared = resources["main_llm"]
    assert isinstance(shared, ProxyLLM)
    messages = [{"role": "user", "content": task}]
    solver, critic = (shared.for_role(name).with_attempted_rollout(rollout) for name in ("solver", "critic"))
    answer = await ask(solver, messages, max_tokens=1)
    await ask(critic, messages, max_tokens=3, ignore_eos=True)
    return float(answer["choices"][0]["token_ids"][0] % 2 == 0)


def test_only_the_calls_of_the_matched_role_are_trained(tiny: Path, tmp_path: Path) -> None:
    fit(small_grpo(tiny, steps=1), tmp_path / "one", solver_and_critic, adapter={"agent_match": "solver"})
    fit(small_grpo(tiny, steps=1), tmp_path / "both", solver_and_critic)
    (one,), (both,) = lines(tmp_path / "one"), lines(tmp_path / "both")
    assert (one["train/turns_mean"], both["train/turns_mean"]) == (1, 2)
    assert one["train/trained_tokens"] == 32 * (1 - one["train/flat_groups"])
    assert both["train/trained_tokens"] == 128 * (1 - both["train/flat_groups"])


@llm_rollout
async def judged(task: str, llm: LLM) -> float:
    """Two calls, each rewarded after a judge's call. In the end every rollout has earned the same."""
    judge = LLM(endpoint=llm.endpoint, model="judge")
    messages = [{"role": "user", "content": task}]
    answer = await ask(llm, messages, max_tokens=1)
    is_even = answer["choices"][0]["token_ids"][0] % 2 == 0
    await ask(judge, messages, max_tokens=1)
    emit_reward(float(is_even))
    await ask(llm, messages, max_tokens=1)
    await ask(judge, messages, max_tokens=1)
    emit_reward(float(not is_even))
    return 1.0


def test_rewards_after_the_calls_of_a_judge_are_for_the_policy(tiny: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny)
    with EngineServer(Engine(loaded.model, loaded.tokenizer), loaded.tokenizer, name="judge") as server:
        gateway = {"type": "LLMProxy", "model_list": [{"model_name": "judge", "base_url": server.base_url}]}
        algorithm = small_grpo(tiny, steps=1, batch_size=1, config={"trainer.preflight": False})
        fit(algorithm, tmp_path / "run", judged, llm_proxy=gateway)
    (row,) = lines(tmp_path / "run")
    assert row["train/turns_mean"] == 2
    assert row["train/reward_std"] == 0
    assert row["train/flat_groups"] == 0  # the second calls have earned what their turn brought


@llm_rollout
async def three_answers(task: str, llm: LLM) -> float:
    answer = await ask(llm, [{"role": "user", "content": task}], max_tokens=2, n=3, ignore_eos=True)
    return float(answer["choices"][0]["token_ids"][0] % 2 == 0)


def test_every_choice_of_a_call_is_trained(tiny: Path, tmp_path: Path) -> None:
    fit(small_grpo(tiny, steps=1, batch_size=1, config={"trainer.preflight": False}), tmp_path / "run", three_answers)
    (row,) = lines(tmp_path / "run")
    assert row["train/flat_groups"] == 0
    assert (row["train/trained_tokens"], row["train/untokenised"]) == (8 * 3 * 2, 0)


def test_a_server_of_somebody_else_can_sample(tiny: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny)
    with EngineServer(Engine(loaded.model, loaded.tokenizer), loaded.tokenizer, name=tiny.name) as server:
        config = {"actor_rollout_ref.rollout": {"name": "openai", "base_url": server.base_url}}
        fit(small_grpo(tiny, config=config), tmp_path / "run")
    rows = lines(tmp_path / "run")
    assert [row["train/weights_version"] for row in rows] == [1, 2]
    assert rows[0]["train/importance_ratio"] == pytest.approx(1, abs=1e-3)
    assert rows[1]["train/staleness"] == 1


def test_a_config_in_the_shape_of_verl_is_taken_as_it_is(tiny: Path) -> None:
    found = VERL({"data": {"train_batch_size": 2}, "actor_rollout_ref": {"model": {"path": str(tiny)}}})
    assert found.config["data"]["train_batch_size"] == 2
    assert found.needs_gateway
