"""`sharpen train CONFIG [key=value ...]`: run the training that a configuration describes, and print the result."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .columns import Column
from .exit_codes import OK
from .json_output import only_json
from .output import Output, add_output_options
from .parser import examples
from .result_page import ResultPage

if TYPE_CHECKING:
    from ..trainer import RunResult
    from .config import TrainConfig
    from .config.recording_trainer import RecordingTrainer

_DESCRIPTION = (
    "Train what a configuration describes: an agent's prompts or model, a policy in a simulator (kind: simulator), or "
    "a language model (kind: fine-tuning). Override values with key=value. Progress goes to standard error. Ctrl-C "
    "shuts the run down cleanly, and --resume continues it."
)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="run the training that a configuration file describes",
        description=_DESCRIPTION,
        epilog=examples(
            "sharpen train config.yaml",
            "sharpen train config.yaml algorithm.beam_width=2 n_runners=4",
            "sharpen train config.yaml --dry-run        # what it would do, and the maximum cost",
            "sharpen train config.yaml --resume last",
        ),
    )
    add_config_arguments(parser)
    add_resume_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="show what would run, without starting anything")
    parser.add_argument("--name", help="name of the run, used in the name of its folder")
    parser.add_argument(
        "--dev", action="store_true", help="try the agent: use Baseline if the configuration has no algorithm"
    )
    add_output_options(parser)
    parser.set_defaults(run=run)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for a configuration and its overrides."""
    parser.add_argument("config", metavar="CONFIG", help="YAML file, or a folder that contains config.yaml")
    parser.add_argument(
        "overrides",
        metavar="key=value",
        nargs="*",
        default=[],
        help="override a value of the file, such as n_runners=4",
    )


def add_resume_option(parser: argparse.ArgumentParser) -> None:
    """Add `--resume`."""
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="resume a run: its name, a unique part of it, a path, 'last', or 'unfinished' (this config's latest run "
        "if it did not finish, otherwise a new one)",
    )


def run(arguments: argparse.Namespace) -> int:
    from .config import load_config
    from .config.last_run import resumed_run

    out = Output.of(arguments)
    if arguments.resume is not None and arguments.name is not None:
        raise ConfigError("--name is for a new run, but --resume continues an existing one: use only one of them")
    with only_json(out):
        config = load_config(arguments.config, [*arguments.overrides, *_options(arguments)])
        require_algorithm(config)
    if arguments.dry_run:
        _show_plan(config, out)
        return OK
    page = ResultPage("train", config, Path(arguments.config), out)
    with page.reporting_interrupts(), only_json(out):
        result = _train(config, resumed_run(arguments.resume, config, out.note), page)
    return page.show(result)


def _options(arguments: argparse.Namespace) -> list[str]:
    """Return the options that stand for overrides."""
    import json

    name = [] if arguments.name is None else [f"name={json.dumps(arguments.name)}"]
    return [*name, *(["dev=true"] if arguments.dev else [])]


def require_algorithm(config: "TrainConfig") -> None:
    """Refuse a configuration without an algorithm: nothing would be enqueued. Runners alone need none."""
    values = config.values
    if config.kind != "agents" or values.get("algorithm") or values.get("dev"):
        return
    strategy = values.get("strategy")
    role = strategy.get("role") if isinstance(strategy, dict) else None
    if (role or os.environ.get("SHARPEN_CURRENT_ROLE")) != "runner":
        raise ConfigError(
            f"{config.path.name} has no algorithm, so nothing would run: add `algorithm: Baseline` (or another), or "
            "try the agent with --dev"
        )


def _train(config: "TrainConfig", resume: Path | None, page: ResultPage) -> "RunResult":
    if config.kind == "simulator":
        from .config.simulator_run import train_policy

        return train_policy(config, resume=resume)
    if config.kind == "fine-tuning":
        from .config.fine_tuning import fine_tune

        return fine_tune(config, resume=resume)
    return fit_agent(config, config.trainer(), resume, page)


def fit_agent(config: "TrainConfig", trainer: "RecordingTrainer", resume: Path | None, page: ResultPage) -> "RunResult":
    """Run the algorithm of a configuration; if it fails, print how to resume it."""
    from .config.kept_config import keep_config

    agent, datasets = config.agent(), config.datasets()
    if all(each is None or each == [] for each in datasets):
        _refuse_without_tasks(config, trainer)
    trainer.on_folder = lambda folder: keep_config(config, folder)
    fit = trainer.dev if trainer.is_dev else trainer.fit
    with page.reporting_failure(trainer), config.hiding():
        return fit(agent, *datasets, resume=resume)


def _refuse_without_tasks(config: "TrainConfig", trainer: "RecordingTrainer") -> None:
    """Raise an error before a folder is created. A user's own algorithm may create tasks itself."""
    from ..algorithm import VERL, Baseline
    from ..algorithm.prompts import PromptOptimiser
    from ..algorithm.sequence import stages_of

    stages = stages_of(trainer.algorithm) or ([Baseline()] if trainer.is_dev else [])
    for stage in stages:
        if isinstance(stage, Baseline | PromptOptimiser | VERL):
            raise ConfigError(
                f"{config.path.name} has no tasks for {type(stage).__name__}: set train_dataset, val_dataset, or both"
            )


# -- a dry run ---------------------------------------------------------------------------------------


def _show_plan(config: "TrainConfig", out: Output) -> None:
    from .config.plan import make_plan

    with only_json(out):
        plan = make_plan(config)
    if out.is_json:
        out.value(plan)
        return
    out.line(f"{config.path.name}, kind {plan.kind}: dry run, nothing was started")
    out.line()
    out.table(("component", Column("class", least=20, wraps=True)), list(plan.parts.items()))
    out.line()
    columns = ("setting", Column("value", least=12, wraps=True), "source")
    out.table(columns, [(each.key, _shown(each.value), each.source) for each in plan.values])
    out.line()
    sizes = ", ".join(f"{name} {'unknown' if size is None else size}" for name, size in plan.datasets.items())
    out.line(f"data: {sizes}")
    out.line("upper limits:")
    for name, number in plan.bound.items():
        out.line(f"  {name:<12}{_number(name, number)}")
    out.line("how they were computed:")
    for sentence in plan.because:
        out.line(f"  - {sentence}")


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _number(name: str, number: float | None) -> str:
    if number is None:
        return "unknown"
    return f"${number:,.2f}" if name == "cost" else f"{number:,}"
