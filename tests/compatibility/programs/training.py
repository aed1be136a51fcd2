"""The recorded trainings: a model behind an agent, fine-tuning with TRL, a policy in a simulator.

Every function begins a training, or continues one where it is given what another has left.
"""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from sharpen import GRPO, Trainer
from sharpen.callbacks import Callback, Checkpoint
from sharpen.llm import DPOTrainerWrapper, GRPOTrainerWrapper, SFTTrainerWrapper
from sharpen.rl import (
    DQN,
    MLP,
    PPO,
    SAC,
    ActionInterpreter,
    Reward,
    Simulator,
    StateInterpreter,
    Trainer as SimulatorTrainer,
    TrainingVessel,
)

from .recorded_agents import TASKS, pick_even

Row = dict[str, Any]
RETRY = {"unresponsive_seconds": 2, "max_attempts": 9, "retry_condition": ["unresponsive"]}


# -- the model behind an agent -----------------------------------------------------------------------


def grpo(model: Path, run: Path, *, lora_rank: int = 0, steps: int, resume: bool = False, **more: Any) -> GRPO:
    """Train in one process, with the store in the folder of the run."""
    algorithm = GRPO(
        model,
        group_size=4,
        batch_size=2,
        learning_rate=1e-2,
        steps=steps,
        save_every=1,
        max_response_length=8,
        seed=1,
        lora_rank=lora_rank,
        **more,
    )
    trainer = Trainer(algorithm=algorithm, strategy="shm", n_runners=1, run_dir=run, rollout_config=RETRY)
    trainer.fit(pick_even, TASKS, resume=run if resume else None)
    return algorithm


# -- fine-tuning -------------------------------------------------------------------------------------


def fine_tune(kind: str, model: Path, out: Path, **more: Any) -> Row:
    """Train for twelve steps (with sampling more), with checkpoints on the way."""
    common: dict[str, Any] = {"num_epochs": 3, "learning_rate": 1e-2, "logging_steps": 2, "save_steps": 2}
    common |= {"loggers": "jsonl", **more}
    asked = [{"prompt": [{"role": "user", "content": f"What is {number} + 1?"}]} for number in range(14)]
    answers = [[{"role": "assistant", "content": f"#### {number + 1}"}] for number in range(14)]
    if kind.startswith("sft"):
        rows = [{**row, "completion": answer} for row, answer in zip(asked, answers, strict=True)]
        return SFTTrainerWrapper(str(model), rows, out, use_lora=kind == "sft-lora", **common).train()
    if kind == "dpo":
        no = [{"role": "assistant", "content": "I do not know"}]
        rows = [{**row, "chosen": answer, "rejected": no} for row, answer in zip(asked, answers, strict=True)]
        return DPOTrainerWrapper(str(model), rows, out, **common).train()
    sampling = {"batch_size": 4, "num_generations": 4, "max_new_tokens": 5}
    return GRPOTrainerWrapper(str(model), asked, share_of_e, out, **{**common, **sampling}).train()


def share_of_e(completions: Any, **columns: Any) -> list[float]:
    """A reward that any model can learn: the share of the letter e."""
    texts = [each if isinstance(each, str) else each[0]["content"] for each in completions]
    return [text.count("e") / max(len(text), 1) for text in texts]


class KillAt(Callback):
    """Kills the program in the middle of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_end(self, loop: Any, trained: Any) -> None:
        if loop.current_iter + 1 == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


# -- a policy in a simulator -------------------------------------------------------------------------

UNIT, TWO = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(2)


class Walk(Simulator[int, tuple[float, float], float]):
    """A point on a line: the action pushes it, near 0 is good, six steps are all."""

    def __init__(self, initial: int) -> None:
        self.place, self.steps = float(np.random.default_rng(initial).uniform(-1, 1)), 0

    def step(self, action: float) -> None:
        self.place, self.steps = float(np.clip(self.place + 0.3 * action, -2, 2)), self.steps + 1

    def get_state(self) -> tuple[float, float]:
        return self.place, self.steps / 6

    def done(self) -> bool:
        return self.steps >= 6


class See(StateInterpreter[Any, Any]):
    observation_space = spaces.Box(-2.0, 2.0, (2,), np.float32)

    def interpret(self, simulator_state: Any) -> Any:
        return np.array(simulator_state, np.float32)


class Step(ActionInterpreter[Any, Any, float]):
    action_space = TWO

    def interpret(self, simulator_state: Any, action: Any) -> float:
        return 1.0 if action == 1 else -1.0


class Push(ActionInterpreter[Any, Any, float]):
    action_space = UNIT

    def interpret(self, simulator_state: Any, action: Any) -> float:
        return float(action[0])


class Near(Reward[Any]):
    def reward(self, simulator_state: Any) -> float:
        return -abs(float(simulator_state[0]))


def simulate(kind: str, *, iterations: int, folder: Path | None = None, ckpt_path: Path | None = None) -> Row:
    """Train a policy, from a checkpoint where one is given; return the metrics and the sums of the weights."""
    network, policy, action = _policy(kind)
    vessel: Any = TrainingVessel(
        simulator_fn=Walk,
        state_interpreter=See(),
        action_interpreter=action,
        policy=policy,
        reward=Near(),
        train_initial_states=list(range(50)),
        val_initial_states=list(range(50, 70)),
        episode_per_iter=8,
    )
    trainer = SimulatorTrainer(
        max_iters=iterations,
        val_every_n_iters=1,
        finite_env_type="dummy",
        concurrency=3,
        seed=7,
        callbacks=[Checkpoint(folder, every_n_iters=1, keep_last=2)] if folder else [],
    )
    trainer.fit(vessel, ckpt_path)
    weights = sums(dict(network.named_parameters()))
    return {"metrics": dict(trainer.metrics), "iterations": trainer.current_iter, "weights": weights}


def _policy(kind: str) -> tuple[torch.nn.Module, Any, Any]:
    torch.manual_seed(0)
    space = See.observation_space
    network, common = MLP(space, (16,)), {"discount_factor": 0.9, "seed": 0}
    if kind == "ppo":
        return network, PPO(network, space, TWO, 1e-2, gae_lambda=0.9, **common), Step()
    if kind == "dqn":
        settings: Row = {"learning_starts": 48, "exploration_steps": 300, "target_update_freq": 20, "buffer_size": 200}
        return network, DQN(network, space, TWO, 1e-2, **settings, **common), Step()
    small: Row = {"critic_hidden_sizes": (16,), "batch_size": 32, "learning_starts": 48, "buffer_size": 200}
    return network, SAC(network, space, UNIT, 1e-2, **small, **common), Push()


def sums(tensors: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The sum of the absolute numbers of every tensor: what differs in its weights differs in them."""
    return {name: float(tensor.detach().double().abs().sum()) for name, tensor in tensors.items()}


def model_sums(folder: Path) -> dict[str, float]:
    """Those of all weights in a folder of a model or an adapter."""
    from safetensors.torch import load_file

    return {key: total for path in sorted(folder.glob("*.safetensors")) for key, total in sums(load_file(path)).items()}
