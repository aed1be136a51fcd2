"""A real language model learns to use a calculator, through the whole of Sharpen, on two cores and without a network.

    make demo          or:  python examples/demo.py [--steps 12] [--seed 1]

The model is SmolLM2-135M-Instruct, which comes in a package. The agent, in `calculator_agent.py`, asks it with the
`openai` client: "What is 73 times 81?" is to be answered with exactly CALC(73*81), which is worth 1, everything else 0.
Runner processes run the agent, the gateway records each call with its token ids, an SQLite file keeps it all, and GRPO
makes likelier what did better than other answers to the same question. Before and after, the model answers questions
that training never sees, at temperature 1, and word problems, which are no part of training at all: had it learned the
questions by heart, it would fail there. Needs `pip install 'sharpen[llm,demo,plot]' openai`.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from calculator_agent import ANSWER_TOKENS, Task, calculator_agent, plain_tasks, story_tasks
from rich.console import Console
from rich.table import Table

from sharpen import GRPO, LightningStore, Trainer
from sharpen.adapter import TraceToMessages
from sharpen.llm import demo_model
from sharpen.stats import wilson_interval
from sharpen.types import Rollout, RolloutMode

KINDS = {"plain": "held-out questions", "story": "word problems"}
NUM_SHOWN = 3
console = Console(highlight=False)


@dataclass(frozen=True)
class Score:
    """How many answers were right."""

    right: int
    count: int

    @property
    def share(self) -> float:
        return self.right / self.count

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.right, self.count)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.share:.2f} ({low:.2f}-{high:.2f})"


@dataclass(frozen=True)
class Outcome:
    """What became of one rollout: at which step, of which task, worth how much."""

    rollout_id: str
    step: int
    task: Task
    reward: float


# -- training ----------------------------------------------------------------------------------------


def train(settings: argparse.Namespace) -> tuple[LightningStore, Path]:
    """Measure, train, measure again: all of it is one run. Its store tells what happened, in its folder."""
    num_train = settings.steps * settings.tasks_per_step
    tasks = plain_tasks(settings.questions + num_train, seed=settings.seed)
    held_out, shown = tasks[: settings.questions], tasks[settings.questions :]
    algorithm = GRPO(
        demo_model(),
        group_size=settings.group_size,
        batch_size=settings.tasks_per_step,
        learning_rate=settings.learning_rate,
        trainable="top:8",  # of 30 layers
        max_response_length=ANSWER_TOKENS,
        validate_by="kind",  # val/plain and val/story, before the first step and after the last
        seed=settings.seed,
        precision="fp32",
        config={"actor_rollout_ref.rollout.val_kwargs": {"n": 1, "temperature": 1.0, "do_sample": True}},
    )
    trainer = Trainer(
        algorithm=algorithm,
        n_runners=settings.runners,
        runner={"type": "LitAgentRunner", "concurrency": 64},
        name="demo",
        seed=settings.seed,
    )
    result = trainer.fit(calculator_agent, shown, [*held_out, *story_tasks(settings.stories, seed=settings.seed)])
    if result.status != "succeeded" or result.run_dir is None:
        raise SystemExit(f"the run was {result.status}, so there is nothing to compare")
    return trainer.store, result.run_dir


# -- what came of it ---------------------------------------------------------------------------------


async def read_outcomes(store: LightningStore, mode: RolloutMode) -> list[Outcome]:
    return [_outcome(each) for each in await store.query_rollouts(mode=mode)]


def _outcome(rollout: Rollout) -> Outcome:
    """A rollout without a reward counts as a wrong answer."""
    step = int((rollout.metadata or {})["step"])
    return Outcome(rollout.rollout_id, step, rollout.input, rollout.reward or 0.0)


def score(outcomes: Sequence[Outcome], kind: str, *, step: int) -> Score:
    rewards = [each.reward for each in outcomes if each.step == step and each.task["kind"] == kind]
    return Score(sum(reward == 1.0 for reward in rewards), len(rewards))


async def answer_of(store: LightningStore, rollout_id: str) -> str:
    """What the model said last, on one line."""
    conversations = TraceToMessages().adapt(list(await store.query_spans(rollout_id)))
    said = str(conversations[-1]["messages"][-1].get("content") or "") if conversations else "(no call was recorded)"
    return " ".join(said.split())


async def transcripts(store: LightningStore, outcomes: Sequence[Outcome], last: int) -> Table:
    """The first questions of each kind, whatever was answered."""
    table = Table(title="the first questions of each kind, before and after", title_justify="left")
    for column in ("question", "before", "after"):
        table.add_column(column, overflow="fold")
    for kind in KINDS:
        asked = [each for each in outcomes if each.task["kind"] == kind]
        before, after = ([each for each in asked if each.step == step][:NUM_SHOWN] for step in (0, last))
        for then, now in zip(before, after, strict=True):
            cells = [await answer_of(store, each.rollout_id) for each in (then, now)]
            marks = ["right" if each.reward == 1.0 else "wrong" for each in (then, now)]
            texts = [f"{cell}  [{mark}]" for cell, mark in zip(cells, marks, strict=True)]
            table.add_row(then.task["question"], *(text.replace("[", r"\[") for text in texts))
    return table


def scores_table(outcomes: Sequence[Outcome], last: int) -> Table:
    table = Table(title="exact match at temperature 1 (95% intervals)", title_justify="left")
    for column in ("", "count", "before", "after"):
        table.add_column(column, justify="left" if column == "" else "right")
    for kind, title in KINDS.items():
        before, after = score(outcomes, kind, step=0), score(outcomes, kind, step=last)
        if before.count and after.count:
            table.add_row(title, str(after.count), str(before), str(after))
    return table


def draw(path: Path, training: Sequence[Outcome], outcomes: Sequence[Outcome], last: int) -> None:
    """The mean reward of every step, at the number of updates before it, and the exact match before and after."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    steps = sorted({each.step for each in training})
    means = [fmean(each.reward for each in training if each.step == step) for step in steps]
    axes.plot(steps, means, marker="o", label="reward in training, mean of a step")
    for kind, title in KINDS.items():
        found = [(step, score(outcomes, kind, step=step)) for step in (0, last)]
        points = [(step, each.share, *each.interval) for step, each in found if each.count]
        if points:
            xs, ys, lows, highs = zip(*points, strict=True)
            reach = [
                [y - low for y, low in zip(ys, lows, strict=True)],
                [h - y for y, h in zip(ys, highs, strict=True)],
            ]
            axes.errorbar(xs, ys, yerr=reach, fmt="s", capsize=4, label=f"{title}, exact match with 95% interval")
    axes.set(xlabel="updates of the weights", ylabel="share of right answers", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(loc="center right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


async def report(store: LightningStore, run_dir: Path, last: int) -> None:
    outcomes, training = await read_outcomes(store, "val"), await read_outcomes(store, "train")
    console.print(await transcripts(store, outcomes, last))
    console.print(scores_table(outcomes, last))
    draw(run_dir / "reward.png", training, outcomes, last)
    console.print(f"the curve: {run_dir / 'reward.png'}", soft_wrap=True)
    model = run_dir / "checkpoints" / f"step_{last}" / "model"
    console.print(f"ask the model: python examples/calculator_agent.py {model}", soft_wrap=True)
    print(last_line(outcomes, last), flush=True)


def last_line(outcomes: Sequence[Outcome], last: int) -> str:
    before, after = score(outcomes, "plain", step=0), score(outcomes, "plain", step=last)
    low, high = after.interval
    shares = f"before {before.share:.2f} after {after.share:.2f}"
    return f"held-out exact match: {shares} (n={after.count}, 95% interval {low:.2f}-{high:.2f})"


# -- the command -------------------------------------------------------------------------------------


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=12, help="updates of the weights")
    parser.add_argument("--tasks-per-step", type=int, default=6)
    parser.add_argument("--group-size", type=int, default=8, help="answers to each question of a step")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--questions", type=int, default=200, help="held-out questions, asked before and after")
    parser.add_argument("--stories", type=int, default=60, help="word problems, asked before and after")
    parser.add_argument("--runners", type=int, default=2, help="processes that run the agent")
    parser.add_argument("--seed", type=int, default=1)
    settings = parser.parse_args()
    if settings.steps < 1 or settings.questions < 1 or settings.runners < 1:
        parser.error("give at least 1 step, 1 question and 1 runner")
    return settings


def introduce(settings: argparse.Namespace) -> None:
    """What will be on the screen."""
    asked = f"{settings.questions} held-out questions and {settings.stories} word problems"
    console.print(
        "The model behind an agent, SmolLM2-135M-Instruct, learns to write CALC(73*81) when asked 73 times 81."
    )
    console.print(f"1. It answers {asked} as it is (below: validation after step 0, plain and story).")
    console.print(
        f"2. It learns in {settings.steps} steps, each from {settings.group_size} answers to "
        f"{settings.tasks_per_step} other questions; the reward is the share of right answers."
    )
    console.print(f"3. It answers the {asked} again (validation after step {settings.steps}).")
    console.print("The first time, the model's file is converted before that, which is silent and takes a moment.\n")


def main() -> None:
    settings = read_arguments()
    introduce(settings)
    store, run_dir = train(settings)
    asyncio.run(report(store, run_dir, settings.steps))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
