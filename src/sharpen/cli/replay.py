"""`sharpen replay ROLLOUT`: run the agent again on a rollout's task, with model responses from the gateway's record.

The new rollout is kept in memory: nothing is written to the original store, and no model is called.
"""

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .exit_codes import FAILED, OK
from .json_output import only_json
from .output import Output, add_output_options
from .parser import examples
from .store_choice import add_store_options, chosen_store

if TYPE_CHECKING:
    from ..archive.catalog import RunEntry
    from .replayed import Original, Replayed

KEPT_CONFIG = "train.yaml"
"""The configuration that `sharpen train` saves in the run folder."""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "replay",
        help="run an agent again on a recorded rollout, without calling a model",
        description="Run the agent again on the task and resources of a rollout. Model responses come from what the "
        "gateway recorded (mode: record). Nothing is written to the store, and no model is called.",
        epilog=examples(
            "sharpen replay last",
            "sharpen replay 3f2a --run grpo --config config.yaml",
            "sharpen replay 3f2a --agent my_agent:solve --attempt 1",
        ),
    )
    parser.add_argument("rollout", metavar="ROLLOUT", help="the rollout: id, unique part of the id, or 'last'")
    parser.add_argument("--attempt", metavar="N|ID", help="attempt whose responses to replay (default: the latest)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--config", metavar="CONFIG", help="configuration that names the agent (default: the one of the run)"
    )
    group.add_argument("--agent", metavar="MODULE:NAME", help="the agent, as module:name or file.py:name")
    add_store_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replay and compare; the exit code is 0 if the agent finished."""
    out = Output.of(arguments)
    with only_json(out):
        original, replayed = asyncio.run(_replay(arguments, out))
    if out.is_json:
        out.value(_as_json(original, replayed))
    else:
        _show(original, replayed, out)
    return OK if replayed.transcript.rollout.status == "succeeded" else FAILED


async def _replay(arguments: argparse.Namespace, out: Output) -> "tuple[Original, Replayed]":
    from .replayed import read_original, replay

    async with chosen_store(arguments) as opened:
        original = await read_original(opened.store, arguments.rollout, arguments.attempt)
    agent = _agent(arguments, opened.run)
    return original, await replay(original, agent, warn=out.note)


def _agent(arguments: argparse.Namespace, run: "RunEntry | None") -> Any:
    """Return the agent that the options name, otherwise that of the run."""
    from ..litagent import as_agent

    if arguments.agent is not None:
        from .config.imports import load

        found = load(arguments.agent, Path.cwd(), "--agent")
        return as_agent(found() if isinstance(found, type) else found)
    from .config import load_config

    return load_config(_config_path(arguments.config, run)).agent()


def _config_path(given: str | None, run: "RunEntry | None") -> Path:
    if given is not None:
        return Path(given)
    kept = None if run is None else run.path / KEPT_CONFIG
    if kept is None or not kept.is_file():
        where = "the store" if run is None else f"the run {run.name!r}"
        raise ConfigError(
            f"cannot tell which agent to run: {where} has no {KEPT_CONFIG} (only `sharpen train` saves one); pass "
            "--config config.yaml or --agent module:name"
        )
    return kept


# -- the result -------------------------------------------------------------------------------------


def _show(original: "Original", replayed: "Replayed", out: Output) -> None:
    from .transcript_text import draw

    out.rich(draw(replayed.transcript))
    now = replayed.transcript.rollout
    out.line()
    out.line(f"before: {_ending(original.attempt.status, original.reward)}")
    out.line(f"now:    {_ending(now.status, now.reward)}{_difference(original.reward, now.reward)}")
    left = replayed.num_recorded - replayed.num_answered
    if left > 0:
        out.line(f"{replayed.num_answered} of {replayed.num_recorded} recorded calls were used")


def _ending(status: str, reward: float | None) -> str:
    return status if reward is None else f"{status}, reward {reward:.6g}"


def _difference(before: float | None, now: float | None) -> str:
    if before is None or now is None:
        return ""
    return " (same reward)" if before == now else f" ({now - before:+.6g})"


def _as_json(original: "Original", replayed: "Replayed") -> dict[str, Any]:
    from .transcript_json import as_json

    now = replayed.transcript.rollout
    return {
        "rollout_id": original.rollout.rollout_id,
        "attempt_id": original.attempt.attempt_id,
        "before": {"status": original.attempt.status, "reward": original.reward},
        "now": {"status": now.status, "reward": now.reward},
        "is_same_reward": original.reward == now.reward,
        "calls": {"recorded": replayed.num_recorded, "answered": replayed.num_answered},
        "transcript": as_json(replayed.transcript, with_spans=False, with_tokens=False),
    }
