"""`sharpen algorithm CONFIG`: the algorithm alone, with runners elsewhere.

Without `--store` it serves the store of its run; with the address of a server, both sides are clients of a store that
`sharpen store` serves, which outlives them. A database it serves itself.
"""

import argparse
import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, PortTakenError
from .addresses import STORE_PORT, is_database, split_address
from .answer import only_answer
from .output import Output, add_output_options
from .parser import examples
from .result_page import ResultPage
from .train import add_config_arguments, add_resume_option, fit_agent, require_algorithm

if TYPE_CHECKING:
    from ..store import LightningStore
    from .config import TrainConfig


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "algorithm",
        help="only the algorithm (and its store), for runners elsewhere",
        description="Run the algorithm of a configuration, and serve the store of its run to runners that "
        "`sharpen runner` starts, here or on other machines. With --store, that store is used instead. Beyond this "
        "machine set SHARPEN_TOKEN on both sides.",
        epilog=examples(
            "sharpen algorithm config.yaml                             # and elsewhere: sharpen runner config.yaml",
            "SHARPEN_TOKEN=... sharpen algorithm config.yaml --host 0.0.0.0",
            "sharpen algorithm config.yaml --store http://127.0.0.1:4747",
            "sharpen algorithm config.yaml --store http://127.0.0.1:4747 --resume unfinished   # under a supervisor",
            "sharpen algorithm config.yaml --store env:SHARPEN_DATABASE_URL --host 0.0.0.0",
        ),
    )
    add_config_arguments(parser)
    parser.add_argument(
        "--store",
        metavar="URL",
        help="a store that is served by somebody else, or a database that is served here: postgresql://…, redis://… "
        "or env:NAME",
    )
    parser.add_argument("--host", help="where to serve the store from here (default: this machine only)")
    parser.add_argument(
        "--port", type=int, help=f"the port of that; 0 takes a free one (default: as the file says, or {STORE_PORT})"
    )
    add_resume_option(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the algorithm to its end."""
    from .config import load_config
    from .config.last_run import resumed_run

    out = Output.of(arguments)
    with only_answer(out):
        config = load_config(arguments.config, arguments.overrides)
        config.require("agents")
        require_algorithm(config)
    page = ResultPage("algorithm", config, Path(arguments.config), out)
    with page.answering_interrupts(), only_answer(out), _pointing_to_store(arguments):
        trainer = config.trainer(n_runners=None, port=None, **_parts(arguments, config))
        result = fit_agent(config, trainer, resumed_run(arguments.resume, config, out.note), page)
    return page.show(result)


def _parts(arguments: argparse.Namespace, config: "TrainConfig") -> dict[str, Any]:
    """The store and the strategy, in the place of those of the file."""
    from ..components.paths import resolve_address
    from ..execution import ClientServerExecutionStrategy
    from ..store.opening import open_url

    url = None if arguments.store is None else resolve_address(arguments.store.strip())
    if url is None or is_database(url):
        port = arguments.port if arguments.port is not None else config.values.get("port")
        strategy = ClientServerExecutionStrategy(role="algorithm", server_host=arguments.host, server_port=port or None)
        if port == 0:
            strategy.server_port = None  # a free one, which is not the default where the roles are apart
        return {"strategy": strategy} | ({} if url is None else {"store": open_url(url)})
    if arguments.host is not None or arguments.port is not None:
        raise ConfigError(
            "--host and --port are for a store that is served from here, but --store names a server: leave them out"
        )
    return {"strategy": ClientServerExecutionStrategy(role="algorithm", managed_store=False), "store": _reached(url)}


def _reached(url: str) -> "LightningStore":
    """The store behind a server, which is waited for: a run begins when there is one that lets it in."""
    from ..execution.apart import reached
    from ..store.client import LightningStoreClient

    host, port = split_address(url)
    return LightningStoreClient(url) if url.startswith("https://") else asyncio.run(reached(host, port))


@contextlib.contextmanager
def _pointing_to_store(arguments: argparse.Namespace) -> Iterator[None]:
    """Who wants to use a store that is served here already, and does not say so, meets its port."""
    try:
        yield
    except PortTakenError as error:
        if arguments.store is not None:
            raise
        raise PortTakenError(f"{error}. If it is a store for this run, name it with --store") from None
