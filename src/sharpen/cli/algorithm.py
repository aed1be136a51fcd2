"""`sharpen algorithm CONFIG`: the algorithm as a separate process, with runners elsewhere.

Without `--store` it serves the store of its run. With the address of a server, it and the runners are clients of a
store that `sharpen store` serves and that outlives them. A database is served by this process.
"""

import argparse
import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, PortTakenError
from .addresses import STORE_PORT, is_database, split_address
from .json_output import only_json
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
        help="run the algorithm and its store as a separate process",
        description="Run the algorithm of a configuration, and serve the store of its run to runners that "
        "`sharpen runner` starts on this or other machines. With --store, that store is used instead. To connect other "
        "machines, set SHARPEN_TOKEN on both sides.",
        epilog=examples(
            "sharpen algorithm config.yaml                             # in another shell: sharpen runner config.yaml",
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
        help="address of a store server to use, or a database for this process to serve: postgresql://…, redis://… or "
        "env:NAME",
    )
    parser.add_argument("--host", help="address to serve the store on (default: this machine only)")
    parser.add_argument(
        "--port", type=int, help=f"port of the store, 0 for a free one (default: from the file, or {STORE_PORT})"
    )
    add_resume_option(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the algorithm."""
    from .config import load_config
    from .config.last_run import resumed_run

    out = Output.of(arguments)
    with only_json(out):
        config = load_config(arguments.config, arguments.overrides)
        config.require("agents")
        require_algorithm(config)
    page = ResultPage("algorithm", config, Path(arguments.config), out)
    with page.reporting_interrupts(), only_json(out), _pointing_to_store(arguments):
        trainer = config.trainer(n_runners=None, port=None, **_parts(arguments, config))
        result = fit_agent(config, trainer, resumed_run(arguments.resume, config, out.note), page)
    return page.show(result)


def _parts(arguments: argparse.Namespace, config: "TrainConfig") -> dict[str, Any]:
    """Return the store and the strategy that replace those of the file."""
    from ..components.paths import resolve_address
    from ..execution import ClientServerExecutionStrategy
    from ..store.opening import open_url

    url = None if arguments.store is None else resolve_address(arguments.store.strip())
    if url is None or is_database(url):
        port = arguments.port if arguments.port is not None else config.values.get("port")
        strategy = ClientServerExecutionStrategy(role="algorithm", server_host=arguments.host, server_port=port or None)
        if port == 0:
            strategy.server_port = None  # a free one, which is not the default of separate roles
        return {"strategy": strategy} | ({} if url is None else {"store": open_url(url)})
    if arguments.host is not None or arguments.port is not None:
        raise ConfigError(
            "--host and --port are for a store that this process serves, but --store is a server: remove them"
        )
    return {"strategy": ClientServerExecutionStrategy(role="algorithm", managed_store=False), "store": _reached(url)}


def _reached(url: str) -> "LightningStore":
    """Return the store of a server, and wait until it responds and accepts the token."""
    from ..execution.serving import reached
    from ..store.client import LightningStoreClient

    host, port = split_address(url)
    return LightningStoreClient(url) if url.startswith("https://") else asyncio.run(reached(host, port))


@contextlib.contextmanager
def _pointing_to_store(arguments: argparse.Namespace) -> Iterator[None]:
    """Suggest --store when the port is taken, perhaps by a store server that should be used."""
    try:
        yield
    except PortTakenError as error:
        if arguments.store is not None:
            raise
        raise PortTakenError(
            f"{error}. If a store server for this run uses the port, pass its address with --store"
        ) from None
