"""A run that was broken off, killed or stopped goes on to the same numbers."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from sharpen.callbacks import Callback, Checkpoint
from sharpen.errors import ConfigError, StateFileError
from sharpen.llm import DPOTrainerWrapper, GRPOTrainerWrapper, ModelError, SFTTrainerWrapper
from tests.errors import raises
from tests.llm.internals import checkpoints

from ..tiny_models import write_tiny_model
from .scenes import StopAt, dpo_rows, metric_lines, rl_rows, same, sft_rows, share_of_e, weights_of


def sft(model: Path, out: Path, **options: Any) -> SFTTrainerWrapper:
    """Three epochs of four steps; logs and checkpoints fall on different steps."""
    given = {"num_epochs": 3, "learning_rate": 1e-2, "logging_steps": 3, "save_steps": 2, "loggers": "jsonl"}
    return SFTTrainerWrapper(str(model), sft_rows(14), out, eval_dataset=sft_rows(3), **{**given, **options})


def grpo(model: Path, out: Path, **options: Any) -> GRPOTrainerWrapper:
    """Three epochs of four generations, each of which is trained on in four steps."""
    given: dict[str, Any] = {
        "num_epochs": 3,
        "batch_size": 1,
        "num_generations": 4,
        "max_new_tokens": 5,
        "learning_rate": 1e-2,
        "num_iterations": 2,
        "steps_per_generation": 2,
        "logging_steps": 3,
        "save_steps": 5,
        "loggers": "jsonl",
    }
    return GRPOTrainerWrapper(str(model), rl_rows(8), share_of_e, out, **{**given, **options})


def dpo(model: Path, out: Path, **options: Any) -> DPOTrainerWrapper:
    given = {"num_epochs": 2, "learning_rate": 5e-3, "logging_steps": 3, "save_steps": 2, "loggers": "jsonl"}
    return DPOTrainerWrapper(str(model), dpo_rows(8), out, **{**given, **options})


@pytest.mark.parametrize(
    ("make", "options", "stop"),
    [
        (sft, {"use_lora": True, "gradient_accumulation_steps": 2}, 3),
        pytest.param(sft, {}, 7, marks=pytest.mark.slow),
        pytest.param(sft, {"packing": True, "max_length": 128, "save_steps": 1}, 2, marks=pytest.mark.slow),
        pytest.param(sft, {"train_sampling_strategy": "group_by_length"}, 7, marks=pytest.mark.slow),
        (grpo, {}, 22),
        pytest.param(grpo, {"use_lora": True, "beta": 0.1}, 31, marks=pytest.mark.slow),
        pytest.param(dpo, {}, 5, marks=pytest.mark.slow),
    ],
    ids=["sft-lora", "sft", "sft-packed", "sft-by-length", "grpo", "grpo-lora", "dpo"],
)
def test_a_run_that_was_broken_off_ends_as_one_that_was_not(
    tiny_model: Path, tmp_path: Path, make: Any, options: dict[str, Any], stop: int
) -> None:
    whole = make(tiny_model, tmp_path / "whole", **options).train()
    with pytest.raises(KeyboardInterrupt):
        make(tiny_model, tmp_path / "broken", callbacks=StopAt(stop), **options).train()
    assert len(checkpoints(tmp_path / "broken")) > 0
    result = make(tiny_model, tmp_path / "broken", resume=True, **options).train()
    assert result["resumed_from"] is not None
    assert (result["steps"], result["tokens"]) == (whole["steps"], whole["tokens"])
    assert metric_lines(tmp_path / "broken") == metric_lines(tmp_path / "whole")
    assert same(weights_of(tmp_path / "broken"), weights_of(tmp_path / "whole"))
    without_time = [
        {name: value for name, value in each["best_metrics"].items() if name != "step_time"} for each in (result, whole)
    ]
    assert without_time[0] == without_time[1]


def test_a_generation_that_waits_to_be_trained_on_delays_the_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    steps: list[int] = []

    class Seen(Callback):
        def on_iter_start(self, loop: Any, trained: Any) -> None:
            steps.extend(int(path.name.partition("-")[2]) for path in checkpoints(loop.output_dir))

    grpo(tiny_model, tmp_path / "out", callbacks=Seen(), num_epochs=1).train()
    # Each generation takes four steps: what was due at 5 and 10 is written at 8 and 12.
    assert sorted(set(steps)) == [8, 12]


CHILD = """
    import os, signal, sys
    from pathlib import Path
    import torch
    torch.set_num_threads(1)
    from sharpen.callbacks import Callback
    from tests.llm.training.test_resume import grpo, sft

    class Killed(Callback):
        def on_train_end(self, loop, trained):
            if loop.current_iter + 1 == int(sys.argv[4]):
                os.kill(os.getpid(), signal.SIGKILL)

    make = {"sft": sft, "grpo": grpo}[sys.argv[1]]
    make(Path(sys.argv[2]), Path(sys.argv[3]), callbacks=Killed(), resume=True).train()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("algorithm", "kills"), [("sft", [6]), ("grpo", [14, 29])])
def test_a_killed_run_ends_as_one_that_was_not(
    tiny_model: Path, tmp_path: Path, algorithm: str, kills: list[int]
) -> None:
    make = {"sft": sft, "grpo": grpo}[algorithm]
    make(tiny_model, tmp_path / "whole").train()
    for step in kills:
        arguments = [algorithm, str(tiny_model), str(tmp_path / "killed"), str(step)]
        child = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CHILD), *arguments],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert child.returncode == -signal.SIGKILL, child.stderr
    make(tiny_model, tmp_path / "killed", resume=True).train()
    assert metric_lines(tmp_path / "killed") == metric_lines(tmp_path / "whole")
    assert same(weights_of(tmp_path / "killed"), weights_of(tmp_path / "whole"))
    assert not list((tmp_path / "killed").glob(".*"))


def test_a_checkpoint_is_a_model_that_loads(tiny_model: Path, tmp_path: Path) -> None:
    sft(tiny_model, tmp_path / "out").train()
    newest = checkpoints(tmp_path / "out")[-1]
    assert newest.name == "checkpoint-12"
    assert same(weights_of(newest), weights_of(tmp_path / "out"))
    assert not [path for path in newest.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".pkl")]


@pytest.mark.slow
def test_a_file_of_the_checkpoint_callback_is_enough_to_go_on(tiny_model: Path, tmp_path: Path) -> None:
    sft(tiny_model, tmp_path / "whole").train()
    keeps = Checkpoint(tmp_path / "files", every_n_iters=5)
    sft(tiny_model, tmp_path / "first", callbacks=keeps).train()
    sft(tiny_model, tmp_path / "second", resume=tmp_path / "files" / "005.pth").train()
    assert same(weights_of(tmp_path / "second"), weights_of(tmp_path / "whole"))
    wider = write_tiny_model(tmp_path / "wider", hidden=64)
    with pytest.raises(ModelError):
        sft(wider, tmp_path / "third", resume=tmp_path / "files" / "005.pth").train()


@pytest.mark.slow
def test_a_finished_run_can_be_extended(tiny_model: Path, tmp_path: Path) -> None:
    assert sft(tiny_model, tmp_path / "out", num_epochs=1).train()["steps"] == 4
    again = sft(tiny_model, tmp_path / "out", num_epochs=1, resume=True).train()
    assert again["steps"] == 4
    result = sft(tiny_model, tmp_path / "out", num_epochs=2).train(resume=True)
    assert (result["steps"], Path(result["resumed_from"]).name) == (8, "checkpoint-4")


def test_a_new_run_does_not_go_on_from_the_checkpoints_of_another(tiny_model: Path, tmp_path: Path) -> None:
    sft(tiny_model, tmp_path / "out").train()
    with pytest.raises(KeyboardInterrupt):
        sft(tiny_model, tmp_path / "out", callbacks=StopAt(3)).train()
    assert [path.name for path in checkpoints(tmp_path / "out")] == ["checkpoint-2"]
    assert checkpoints(tmp_path / "out" / "earlier")[-1].name == "checkpoint-12"


def test_going_on_from_an_older_checkpoint_leaves_the_newer_ones_behind(tiny_model: Path, tmp_path: Path) -> None:
    sft(tiny_model, tmp_path / "out", num_epochs=1, save_steps=1, save_total_limit=9).train()
    again = sft(tiny_model, tmp_path / "out", num_epochs=1, save_steps=1, callbacks=StopAt(3))
    with pytest.raises(KeyboardInterrupt):
        again.train(resume=tmp_path / "out" / "checkpoint-1")
    # What was written now is what resume=True goes on from, not the last of the run before.
    assert [path.name for path in checkpoints(tmp_path / "out")] == ["checkpoint-1", "checkpoint-2"]


def test_a_run_that_cannot_begin_leaves_the_run_before_as_it_was(tiny_model: Path, tmp_path: Path) -> None:
    sft(tiny_model, tmp_path / "out", num_epochs=1).train()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    with raises(ConfigError, "fp16"):
        sft(tiny_model, tmp_path / "out", num_epochs=1, precision="fp16").train()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_resuming_without_a_checkpoint_begins_at_the_start(tiny_model: Path, tmp_path: Path) -> None:
    result = sft(tiny_model, tmp_path / "out", num_epochs=1, resume=True).train()
    assert (result["steps"], result["resumed_from"]) == (4, None)


def test_a_checkpoint_of_another_run_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    sft(tiny_model, tmp_path / "out", num_epochs=1).train()
    with pytest.raises(ConfigError):
        dpo(tiny_model, tmp_path / "out", resume=True).train()
    fewer = SFTTrainerWrapper(str(tiny_model), sft_rows(5), tmp_path / "out", resume=True)
    with raises(ConfigError, 14, 5):
        fewer.train()
    with raises(ConfigError, "use_lora"):
        sft(tiny_model, tmp_path / "out", num_epochs=2, use_lora=True, resume=True).train()


def test_weights_of_another_model_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    sft(tiny_model, tmp_path / "out", num_epochs=1).train()
    deeper = write_tiny_model(tmp_path / "deeper", layers=3)
    with raises(ModelError, "checkpoint-4", "layers.2"):
        sft(deeper, tmp_path / "out", num_epochs=2, resume=True).train()
    wider = write_tiny_model(tmp_path / "wider", hidden=64)
    with raises(ModelError, "checkpoint-4"):
        sft(wider, tmp_path / "out", num_epochs=2, resume=True).train()


def test_a_damaged_checkpoint_is_named(tiny_model: Path, tmp_path: Path) -> None:
    sft(tiny_model, tmp_path / "out", num_epochs=1).train()
    state = checkpoints(tmp_path / "out")[-1] / "training_state.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    with raises(StateFileError, "training_state.safetensors"):
        sft(tiny_model, tmp_path / "out", resume=True).train()


def test_other_settings_on_resume_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    sft(tiny_model, tmp_path / "out", num_epochs=1).train()
    for changed in ({"learning_rate": 1e-3}, {"weight_decay": 0.1}, {"seed": 1}):
        with raises(ConfigError, next(iter(changed))):
            sft(tiny_model, tmp_path / "out", resume=True, **changed).train()


def test_an_extended_run_goes_on_at_the_rate_of_its_new_schedule(tiny_model: Path, tmp_path: Path) -> None:
    sft(tiny_model, tmp_path / "out", num_epochs=1, logging_steps=1, warmup=0).train()
    sft(tiny_model, tmp_path / "out", num_epochs=2, logging_steps=1, warmup=0, resume=True).train()
    rates = [line["learning_rate"] for line in metric_lines(tmp_path / "out")]
    assert rates[4:] == pytest.approx([1e-2 * (8 - step) / 8 for step in range(4, 8)])


@pytest.mark.slow
def test_ctrl_c_finishes_the_step_and_writes_a_checkpoint(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Pressed(Callback):
        def on_train_start(self, loop: Any, trained: Any) -> None:
            if loop.current_iter == 4:
                signal.raise_signal(signal.SIGINT)

    sft(tiny_model, tmp_path / "whole").train()
    with pytest.raises(KeyboardInterrupt):
        sft(tiny_model, tmp_path / "out", save_steps=0, callbacks=Pressed()).train()
    assert any("resume=True" in each.getMessage() and each.args == (5,) for each in caplog.records)
    assert checkpoints(tmp_path / "out")[-1].name == "checkpoint-5"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    sft(tiny_model, tmp_path / "out", save_steps=0, resume=True).train()
    assert same(weights_of(tmp_path / "out"), weights_of(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_stopped_trains_on_what_it_has_sampled_first(tiny_model: Path, tmp_path: Path) -> None:
    class Enough(Callback):
        def on_iter_end(self, loop: Any, trained: Any) -> None:
            loop.should_stop = loop.should_stop or loop.current_iter == 6

    whole = grpo(tiny_model, tmp_path / "whole").train()
    stopped = grpo(tiny_model, tmp_path / "out", callbacks=Enough()).train()
    assert (stopped["steps"], stopped["stopped_early"]) == (8, True)
    assert grpo(tiny_model, tmp_path / "out", resume=True).train()["steps"] == whole["steps"]
    assert same(weights_of(tmp_path / "out"), weights_of(tmp_path / "whole"))
