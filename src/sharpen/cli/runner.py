"""`sharpen runner CONFIG`: runners as a separate process, with a store that is served elsewhere.

They wait for the store, run its rollouts, and stop on Ctrl-C or one minute after the store disappears.
"""

import argparse
from typing import TYPE_CHECKING

from .addresses import STORE_PORT, served_place
from .parser import examples
from .train import add_config_arguments

if TYPE_CHECKING:
    from ..execution import ClientServerExecutionStrategy
    from .config import TrainConfig

# Only the algorithm needs these; building them here could require keys and packages this machine does not have.
_OF_ALGORITHM = ("algorithm", "callbacks", "loggers", "llm_proxy", "initial_resources", "store", "port")


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "runner",
        help="run only runners, with a store that is served elsewhere",
        description="Run the agent of a configuration on the rollouts of a store that `sharpen algorithm` or "
        "`sharpen store` serves on this or another machine. The token is found automatically on the same machine; "
        "between machines, set SHARPEN_TOKEN on both sides. Stop it with Ctrl-C; it also stops one minute after the "
        "store disappears.",
        epilog=examples(
            "sharpen runner config.yaml --n-runners 4",
            "SHARPEN_TOKEN=... sharpen runner config.yaml --store http://10.0.0.5:4747",
        ),
    )
    add_config_arguments(parser)
    parser.add_argument(
        "--store", metavar="URL", help=f"address of the store (default: port {STORE_PORT} on this machine)"
    )
    parser.add_argument("--n-runners", type=int, metavar="N", help="number of runners (default: from the file, or 1)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run rollouts until the store disappears or a signal stops it."""
    from .config import load_config

    config = load_config(arguments.config, arguments.overrides)
    config.require("agents")
    strategy = _strategy(arguments, config)
    agent = config.agent()
    trainer = config.trainer(strategy=strategy, n_runners=None, dev=False, **dict.fromkeys(_OF_ALGORITHM))
    if agent.is_async() and _wants_many_at_once(config):
        from ..trainer.run import ASYNC_AGENTS

        trainer.runner.concurrency = max(trainer.runner.concurrency, ASYNC_AGENTS)
    with config.hiding():
        trainer.fit(agent)


def _strategy(arguments: argparse.Namespace, config: "TrainConfig") -> "ClientServerExecutionStrategy":
    from ..execution import ClientServerExecutionStrategy

    host, port = served_place(arguments.store, who="runners") if arguments.store else (None, config.values.get("port"))
    count = _count_in_file(config) if arguments.n_runners is None else arguments.n_runners
    return ClientServerExecutionStrategy(role="runner", server_host=host, server_port=port, n_runners=count)


def _count_in_file(config: "TrainConfig") -> int:
    strategy = config.values.get("strategy")
    of_strategy = strategy.get("n_runners") if isinstance(strategy, dict) else None
    return config.values.get("n_runners") or of_strategy or 1


def _wants_many_at_once(config: "TrainConfig") -> bool:
    """Whether the class of the algorithm says that it runs many rollouts at once: then async agents run concurrently,
    unless the file configures the runner."""
    given = config.values.get("algorithm")
    specs = given if isinstance(given, list) else [given]
    kinds = [each.get("type") if isinstance(each, dict) else each for each in specs]
    found = [config.specs.find(kind, ("algorithm",)) for kind in kinds if isinstance(kind, str)]
    return "runner" not in config.values and any(getattr(kind, "runs_side_by_side", False) for kind in found)
