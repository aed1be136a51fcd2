"""Makes the runs that the pages are looked at with, each by a real program of its kind.

    python -m tests.dashboard.browser.programs.all_runs FOLDER

A help desk through the gateway (twice, to compare), GRPO on a tiny model (twice), a search over prompts, a policy in a
simulator, and a store of 50,000 rollouts.
"""

import contextlib
import os
import shutil
import sys
from pathlib import Path

from openai import AsyncOpenAI

from sharpen import APO, LLM, NamedResources, Trainer
from tests.algorithm.verl.scenes import pick_even, small_grpo
from tests.llm.tiny_models import write_tiny_model

from . import support_desk

REPOSITORY = Path(__file__).parents[4]
MANY = 50_000
TOKENS = [f"Say a number, place {number}." for number in range(4)]


def search_prompts(folder: Path) -> None:
    """APO with a stand-in for the models, as in the examples."""
    sys.path.insert(0, str(REPOSITORY / "examples"))
    from apo_offline import SEED, date_reader, make_tasks  # type: ignore[import-not-found]
    from stand_in_model import StandInModel  # type: ignore[import-not-found]

    with StandInModel() as model:
        client = AsyncOpenAI(base_url=model.base_url, api_key="none")
        apo = APO(client, gradient_model="critic", apply_edit_model="editor", beam_width=2, branch_factor=2, seed=1)
        resources: NamedResources = {"prompt": SEED, "worker": LLM(model.base_url, "worker")}
        trainer = Trainer(algorithm=apo, initial_resources=resources, strategy="shm", run_dir=folder / "dates")
        trainer.fit(date_reader, make_tasks(24, seed=1), make_tasks(24, seed=2))


def train_tokens(folder: Path) -> None:
    """GRPO on a tiny model: groups of eight, with token ids and log-probabilities."""
    model = write_tiny_model(folder.parent / "tiny-model")
    for name, rate in (("tokens-slow", 1e-3), ("tokens", 1e-2)):
        algorithm = small_grpo(model, learning_rate=rate, steps=4)
        trainer = Trainer(algorithm=algorithm, strategy="shm", n_runners=1, run_dir=folder / name)
        trainer.fit(pick_even, TOKENS)


def train_room(folder: Path) -> None:
    """The project of a simulator as `sharpen init` writes it."""
    from sharpen.cli import main

    place = folder.parent / "room"
    os.environ["SHARPEN_RUNS"] = str(folder.parent / "room-runs")
    assert not main(["init", str(place), "--template", "simulator"])
    assert not main(["train", str(place / "config.yaml"), "max_iters=6", "val_every_n_iters=3"])
    (made,) = (folder.parent / "room-runs").iterdir()
    shutil.move(made, folder / "room")


def fill_store(folder: Path) -> None:
    """As a long run leaves it."""
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    from dashboard_store import generate  # type: ignore[import-not-found]

    (folder / "many").mkdir()
    generate(folder / "many" / "store.db", rollouts=MANY, spans=MANY)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder.parent):
        support_desk.main(folder)
        search_prompts(folder)
        train_tokens(folder)
        train_room(folder)
        fill_store(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
