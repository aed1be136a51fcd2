"""`VERL`: reinforcement learning of the model behind an agent, from the agent's own rollouts.

The loop itself is in `loop`. Nothing heavy is imported or downloaded before `run`.
"""

import logging
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from ...errors import ConfigError
from ...llm.models.loading import check_packages
from ...types import Dataset, TaskT
from ..base import Algorithm, State
from ..bounds import UpperBound, counted, product, sum_of
from ..gateway_hold import HeldCalls
from .checkpoints import StepFolders
from .config import VERLConfig, read_config

if TYPE_CHECKING:
    from .loop import TrainingRun

log = logging.getLogger(__name__)


class VERL(Algorithm[TaskT]):
    """Trains the weights, or a LoRA adapter, of the model behind an agent, configured like verl.

    Run it with `Trainer(algorithm=VERL(config)).fit(agent, train_tasks, val_tasks)`. `GRPO` is the same training with
    named options.

    Args:
        config: Settings with verl's keys: a mapping, nested or with dotted keys, or the path of a YAML file. The keys
            are listed in `docs/reference/verl-keys.md`.

    Raises:
        ConfigError: A key is unknown, or has a value that is not allowed.
    """

    enqueues_tasks = True
    holds_calls = True
    needs_gateway = True
    runs_side_by_side = True

    def __init__(self, config: Mapping[str, Any] | str | os.PathLike[str] | None = None, **unknown: Never) -> None:
        if unknown:
            raise ConfigError(
                f"VERL does not accept {', '.join(unknown)}: put the keys of verl into one config, such as "
                "VERL({'actor_rollout_ref.model.path': model}), or use GRPO(model), which has named options"
            )
        self.settings: VERLConfig = read_config(config)
        self._loaded: State | None = None
        self._run: TrainingRun | None = None
        self._folders: StepFolders | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The whole config with its defaults, nested like verl's."""
        return self.settings.as_dict()

    def spelled(self, key: str) -> str:
        """Return a key as the user writes it, for messages that say what to change."""
        return key

    @property
    def default_loggers(self) -> tuple[str, ...]:
        """The loggers of a trainer that was given none. The console gets one line per step in any case."""
        return tuple(name for name in self.settings.trainer.logger if name != "console")

    async def run(self, train_dataset: Dataset[TaskT] | None = None, val_dataset: Dataset[TaskT] | None = None) -> None:
        calls = HeldCalls(self.get_llm_proxy(), is_ours=self.own_gateway_address is not None)
        await calls.hold()  # first of all: runners are at work already
        # A thread that spins while it waits takes the core that another process needs; read when torch is imported.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        check_packages()
        from .loop import TrainingRun

        self.final_warnings = ()
        for doubt in self.settings.doubts:
            log.warning("%s", doubt)
        if self.settings.ignored is not None:
            log.info("%s", self.settings.ignored)
        self._folders = self.step_folders()
        self._run = TrainingRun(self, train_dataset, val_dataset, self._loaded, calls)
        self._loaded = None  # a second run is a new one
        try:
            await self._run.run()
        finally:
            self._run = None

    def upper_bound(self, train_size: int | None, val_size: int | None) -> UpperBound:
        trainer, sampled = self.settings.trainer, self.settings.rollout
        name = type(self).__name__
        steps, tasks = (0, 0) if trainer.val_only else self._extent(train_size)
        validations = int(trainer.val_only or trainer.val_before_train)
        if not trainer.val_only:
            validations += math.ceil(steps / trainer.test_freq) if steps and trainer.test_freq > 0 else 1
        is_open = steps is None and trainer.test_freq > 0 and val_size != 0
        validated = None if is_open else product(validations, val_size, sampled.val_kwargs.n)
        told = (
            f"{name}: {counted(steps, 'step')} over {counted(tasks, 'task')} in total, {sampled.n} rollouts of each "
            "(group_size)",
            f"{name}: {counted(None if is_open else validations, 'validation')} on {counted(val_size, 'task')}, "
            f"{counted(sampled.val_kwargs.n, 'rollout')} of each",
        )
        return UpperBound(sum_of((product(tasks, sampled.n), validated)), because=told)

    def _extent(self, train_size: int | None) -> tuple[int | None, int | None]:
        """How many steps there are, and how many tasks they work on, each counted as often as it comes."""
        trainer, batch_size = self.settings.trainer, self.settings.data.train_batch_size
        steps = trainer.total_training_steps
        if train_size is None:
            return steps, product(steps, batch_size)
        steps_per_epoch = math.ceil(train_size / batch_size)
        if steps is None:
            steps = trainer.total_epochs * steps_per_epoch
        epochs, rest = divmod(steps, max(steps_per_epoch, 1))
        return steps, epochs * train_size + min(rest * batch_size, train_size)

    def step_folders(self) -> StepFolders:
        """Return where its checkpoints are: in the run folder, unless the config sets another folder."""
        trainer = self.settings.trainer
        is_given = self.settings.origin("trainer.default_local_dir") == "given"
        folder = Path(trainer.default_local_dir).expanduser().absolute()
        if not is_given and self.run_dir is not None:
            folder = Path(self.run_dir) / "checkpoints"
        return StepFolders(folder, keep=trainer.max_actor_ckpt_to_keep)

    def model_folder(self) -> Path | None:
        """Return the folder of the newest saved model, or None if there is none."""
        is_given = self.settings.origin("trainer.default_local_dir") == "given"
        if self._folders is None and self.run_dir is None and not is_given:
            return None  # it has not run
        return (self._folders or self.step_folders()).latest_model()

    def save_model(self, path: str | os.PathLike[str], *, merge: bool = False) -> Path:
        """Write the newest saved model as a Hugging Face folder.

        Args:
            path: A new or empty folder.
            merge: Whether to merge an adapter into its base model.

        Returns:
            The absolute path of the folder.

        Raises:
            ConfigError: There is no trained model yet, or `path` is a file or a folder with files in it.
        """
        latest = self.model_folder()
        if latest is None:
            raise ConfigError(
                "there is no trained model yet: the first one is saved at trainer.save_freq, or at the end"
            )
        target = Path(path).expanduser().absolute()
        if merge and (latest / "adapter_config.json").exists():
            from ...llm.models.lora import merge_adapter

            return merge_adapter(latest, target)
        if target.is_file():
            raise ConfigError(f"{str(target)!r} is a file: use the path of a new folder")
        if target.exists() and any(target.iterdir()):
            raise ConfigError(f"{str(target)!r} already contains files: use the path of a new folder")
        shutil.copytree(latest, target, dirs_exist_ok=True)
        return target

    # -- checkpoints ---------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Return the state of the run. What is too large for JSON is written to a separate folder, if needed."""
        if self._run is not None:
            return self._run.keep_state()
        return self._loaded or {}

    def load_state_dict(self, state: State) -> None:
        """Set the state that the next run resumes from; during a run, restore those weights."""
        if self._run is not None:
            self._run.go_back_to(state)
        else:
            self._loaded = state or None

    def checkpoint(self) -> None:
        if self._save is not None and self._run is not None:
            self._save(self._run.state())

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_run": None}
