"""`sharpen eval CONFIG`: measure an agent, a policy or a model, with a confidence interval."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .counts import count_from
from .exit_codes import FAILED, INTERRUPTED, OK, is_interrupt
from .json_output import only_json
from .output import Output, add_output_options
from .parser import examples
from .train import add_config_arguments

if TYPE_CHECKING:
    from ..archive.catalog import RunEntry
    from .config import TrainConfig

_DESCRIPTION = (
    "Evaluate on a data set without training: an agent as configured, with the best prompts or the model of a run "
    "(--run), or with a model that is served for it (--model); a policy on initial states, with the checkpoint of a "
    "run; or a fine-tuned model on its rows."
)
_DATASETS = ("val", "train", "test")


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "eval",
        help="evaluate an agent, a policy or a model on a data set",
        description=_DESCRIPTION,
        epilog=examples(
            "sharpen eval config.yaml",
            "sharpen eval config.yaml --run last            # with the best prompts of the last run",
            "sharpen eval config.yaml --model ./my-model --repeat 4",
        ),
    )
    add_config_arguments(parser)
    parser.add_argument("--run", dest="of_run", metavar="RUN", help="use the result of this run: name, path, or 'last'")
    parser.add_argument("--model", metavar="FOLDER", help="model or adapter to serve to the agent through the gateway")
    parser.add_argument("--dataset", choices=_DATASETS, default="val", help="data set to evaluate on (default: val)")
    parser.add_argument("--repeat", type=count_from(1), default=1, metavar="N", help="rollouts per task (default: 1)")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from .config import load_config

    out, config = Output.of(arguments), None
    try:
        with only_json(out):
            config = load_config(arguments.config, arguments.overrides)
            found = _measure(config, arguments)
    except (KeyboardInterrupt, SystemExit) as error:
        if out.is_json and is_interrupt(error):
            folder = None if config is None else config.kept_in
            out.value({"status": "interrupted", "dataset": arguments.dataset, "run_dir": folder})
        raise
    if out.is_json:
        out.value(found)
    else:
        _show(found, out)
    return {"succeeded": OK, "interrupted": INTERRUPTED}.get(found["status"], FAILED)


def _measure(config: "TrainConfig", arguments: argparse.Namespace) -> dict[str, Any]:
    measure = {"agents": _agents, "simulator": _simulator, "fine-tuning": _fine_tuning}[config.kind]
    _check_options(config, arguments)
    return measure(config, arguments)


def _check_options(config: "TrainConfig", arguments: argparse.Namespace) -> None:
    from ..errors import ConfigError

    is_agents = config.kind == "agents"
    if arguments.repeat != 1 and not is_agents:
        raise ConfigError(f"--repeat works only with agents, but {config.path.name} has kind {config.kind!r}")
    if arguments.model is not None and config.kind == "simulator":
        raise ConfigError("--model is for language models, but a simulator trains a policy: use --run RUN instead")
    if arguments.dataset == "test" and config.kind != "simulator":
        raise ConfigError("--dataset test is only for simulators (test_initial_states): use val or train")


def _entry(text: str | None, config: "TrainConfig") -> "RunEntry | None":
    from .config.last_run import find_run

    return None if text is None else find_run(text, config)


# -- agents ------------------------------------------------------------------------------------------


def _agents(config: "TrainConfig", arguments: argparse.Namespace) -> dict[str, Any]:
    from .config.agent_evaluation import evaluate_agent
    from .result_page import run_scores

    measured = evaluate_agent(
        config,
        dataset=arguments.dataset,
        repeat=arguments.repeat,
        entry=_entry(arguments.of_run, config),
        model=arguments.model,
    )
    result = measured.result
    metrics = result.metrics
    scores = [] if result.run_dir is None else run_scores(result.run_dir)
    score = next(iter(scores), None)
    return {
        "status": result.status,
        "dataset": arguments.dataset,
        **measured,
        "reward": score,
        **{name: metrics.get(name) for name in ("rollouts", "failed", "lost", "cancelled")},
        "calls": metrics.get("llm/calls"),
        "cost": metrics.get("llm/cost"),
        "seconds": result.seconds,
        "run_dir": result.run_dir,
    }


# -- simulators --------------------------------------------------------------------------------------


def _simulator(config: "TrainConfig", arguments: argparse.Namespace) -> dict[str, Any]:
    import time

    from .config.simulator_run import LATEST, play_states

    entry = _entry(arguments.of_run, config)
    checkpoint = None if entry is None else _checkpoint(entry.path, LATEST)
    began = time.monotonic()
    found = play_states(config, arguments.dataset, checkpoint)
    return {
        "status": "succeeded",
        "dataset": arguments.dataset,
        "checkpoint": checkpoint,
        "reward": _estimate(found["rewards"]),
        "episodes": len(found["rewards"]),
        "metrics": found["metrics"],
        "seconds": time.monotonic() - began,
    }


def _checkpoint(folder: Path, latest: Path) -> Path:
    from ..errors import ConfigError

    if not (folder / latest).exists():
        raise ConfigError(f"the run in {str(folder)!r} has no policy checkpoint")
    return folder / latest


def _estimate(rewards: list[float]) -> dict[str, Any]:
    import math

    from ..stats import mean_interval

    low, high = mean_interval(rewards)
    is_known = math.isfinite(low)
    return {
        "mean": math.fsum(rewards) / len(rewards),
        "low": low if is_known else None,
        "high": high if is_known else None,
        "tasks": len(rewards),
        "rollouts": len(rewards),
    }


# -- fine-tuning -------------------------------------------------------------------------------------


def _fine_tuning(config: "TrainConfig", arguments: argparse.Namespace) -> dict[str, Any]:
    from .config.fine_tuning import MODEL, evaluate_tuned

    entry = _entry(arguments.of_run, config)
    model = arguments.model if entry is None else str(entry.path / MODEL)
    found = evaluate_tuned(config, f"{arguments.dataset}_dataset", model)
    low, high = found["reward_interval"] or (None, None)
    reward = {"mean": found["mean_reward"], "low": low, "high": high, "tasks": found["num_samples"]}
    return {"status": "succeeded", "dataset": arguments.dataset, "model": model, "reward": reward, **found}


# -- showing -----------------------------------------------------------------------------------------


def _show(found: dict[str, Any], out: Output) -> None:
    from .result_page import draw_failures

    reward = found["reward"]
    draw_failures(out, found.get("run_dir"), found, has_scores=reward is not None)
    if reward is None:
        out.line(f"no rewards on the {found['dataset']} data set: {found['status']}")
    else:
        interval = "" if reward["low"] is None else f" (95 %: {reward['low']:.4g} to {reward['high']:.4g})"
        out.line(
            f"mean reward {reward['mean']:.4g}{interval} on {reward['tasks']} tasks of the {found['dataset']} data set"
        )
    if "accuracy" in found:
        low, high = found["accuracy_interval"]
        out.line(f"accuracy {found['accuracy']:.4g} (95 %: {low:.4g} to {high:.4g})")
    for name in ("prompts_of", "model", "checkpoint", "rollouts", "episodes", "failed", "lost", "calls"):
        if found.get(name) not in (None, 0):
            out.line(f"  {name.replace('_', ' ')}: {found[name]}")
    if "cost" in found:
        out.line(f"  cost: {'unknown' if found['cost'] is None else format(found['cost'], '.4f') + ' US dollars'}")
    if found.get("run_dir") is not None:
        out.line(f"  rollouts are saved in {found['run_dir']}")
