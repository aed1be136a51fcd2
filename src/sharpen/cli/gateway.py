"""`sharpen gateway [CONFIG]`: the gateway alone, between agents and models, before a store that is served elsewhere.

It waits for the store, and goes on while that is away: what it has recorded meanwhile is written when the store is
back, or lies in the spool. A signal lets calls under way end, and writes what is left.
"""

import argparse
import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, RunError
from .addresses import GATEWAY_PORT, STORE_PORT, is_database, served_place
from .collector import tune_collector
from .output import Output, add_output_options
from .parser import examples
from .signals import ended_by_signals

if TYPE_CHECKING:
    from ..llm_proxy import LLMProxy
    from ..store import LightningStore
    from .config.gateway_config import GatewayConfig

log = logging.getLogger(__name__)
TOKEN_VARIABLE = "SHARPEN_GATEWAY_TOKEN"
LOOK_SECONDS = 0.5  # whether the gateway is still alive
SIGNAL_SECONDS = 0.1  # whether a signal came while the store is waited for


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "gateway",
        help="only the gateway between agents and models, for a store that is served elsewhere",
        description="Serve the gateway: an OpenAI-compatible proxy that records what agents ask and models answer, in "
        "the store that `sharpen store` serves. Its models, limits and records stand in a YAML file with the keywords "
        "of LLMProxy; one model can be given by options. The token that agents must show is that of "
        f"{TOKEN_VARIABLE}; on this machine alone it works without. A run uses it by its address: "
        "`llm_proxy: http://HOST:4749` in its configuration.",
        epilog=examples(
            "sharpen gateway gateway.yaml",
            "sharpen gateway --model qwen --base-url http://127.0.0.1:8000/v1",
            "sharpen gateway --model gpt-4o-mini --api-key env:OPENAI_API_KEY limits.run_cost=5",
            "SHARPEN_TOKEN=... SHARPEN_GATEWAY_TOKEN=... sharpen gateway gateway.yaml --store http://10.0.0.5:4747 "
            "--host 0.0.0.0",
        ),
    )
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="a YAML file with the keywords of LLMProxy")
    parser.add_argument(
        "overrides", metavar="key=value", nargs="*", default=[], help="over the file, such as num_retries=2"
    )
    parser.add_argument("--model", metavar="NAME", help="a model that agents may ask for, beside those of the file")
    parser.add_argument("--base-url", metavar="URL", help="the server of --model, with /v1 where it has it")
    parser.add_argument("--api-key", metavar="env:NAME", help="the variable with the key of --model")
    parser.add_argument(
        "--store",
        metavar="URL",
        default=f"http://127.0.0.1:{STORE_PORT}",
        help="the store of the runs: its server, or a database as env:NAME (default: port "
        f"{STORE_PORT} on this machine)",
    )
    parser.add_argument("--host", help="where to listen (default: as the file says, or this machine only)")
    parser.add_argument("--port", type=int, help=f"0 takes a free one (default: as the file says, or {GATEWAY_PORT})")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    from ..logging import is_set_up, setup_logging

    if not is_set_up():
        setup_logging()
    config, stopping = _config(arguments), threading.Event()
    options = _options(arguments, config)
    gateway = config.gateway(**options)
    with ended_by_signals(stopping.set) as ended:
        store = _open_store(arguments.store, stopping)
        if store is not None:
            try:
                gateway.set_store(store)
                _serve(gateway, stopping, Output.of(arguments))
            finally:
                asyncio.run(store.close())
    return ended.code


def _serve(gateway: "LLMProxy", stopping: threading.Event, out: Output) -> None:
    with gateway:
        tune_collector()
        _announce(gateway, out)
        while not stopping.wait(LOOK_SECONDS):
            if gateway.has_died():
                raise RunError("the gateway has failed; its log says why")
    totals = gateway.totals_sync()
    lost = f", {totals.lost} of them not recorded" if totals.lost else ""
    log.info("the gateway has ended; it has passed %d calls since the first of its name%s", totals.calls, lost)


def _announce(gateway: "LLMProxy", out: Output) -> None:
    from ..web.serving import address

    url, needs_token = address(gateway.host, gateway.port or 0), gateway.needs_token
    if out.is_json:
        out.value({"url": url, "models": gateway.model_names, "needs_token": needs_token})
        return
    out.line(f"gateway    {url}")
    out.line(f"models     {', '.join(gateway.model_names) or 'none yet'}")
    who = f"the token is that of {TOKEN_VARIABLE}" if needs_token else "every program on this machine may call it"
    out.note(f"{who}; a run uses it by its address: llm_proxy: {url}")


# -- what it is made of ------------------------------------------------------------------------------


def _config(arguments: argparse.Namespace) -> "GatewayConfig":
    """The file may be left out before overrides."""
    from .config.gateway_config import read_gateway_config

    path, overrides = arguments.config, list(arguments.overrides)
    if path is not None and "=" in path and not os.path.exists(path):
        path, overrides = None, [path, *overrides]
    return read_gateway_config(path, overrides)


def _options(arguments: argparse.Namespace, config: "GatewayConfig") -> dict[str, Any]:
    """What options and the environment say, over the file."""
    from ..http.proxies import is_loopback
    from ..llm_proxy.client import given_token

    found: dict[str, Any] = {"port": _port(arguments.port, config.values.get("port"))}
    if arguments.host is not None:
        found["host"] = arguments.host
    if config.values.get("token") is None and (token := given_token()) is not None:
        found["token"] = token
    host = arguments.host or config.values.get("host") or "127.0.0.1"
    if not {**config.values, **found}.get("token") and not is_loopback(str(host)):
        raise ConfigError(
            f"others can reach host {host!r} and could spend the keys of the gateway: set {TOKEN_VARIABLE} to a long "
            "random text, here and where the algorithm and the runners are"
        )
    if (entry := _entry(arguments)) is not None:
        found["model_list"] = [entry, *(config.values.get("model_list") or ())]
    elif not config.values.get("model_list") and config.values.get("mode") != "replay":
        raise ConfigError("the gateway has no models: give model_list in its file, or --model with --base-url")
    return found


def _port(given: int | None, of_file: int | None) -> int | None:
    if given is None:
        return GATEWAY_PORT if of_file is None else of_file
    if not 0 <= given <= 65535:
        raise ConfigError(f"--port is {given}: use 1 to 65535, or 0 for a free one")
    return given or None


def _entry(arguments: argparse.Namespace) -> dict[str, Any] | None:
    key = arguments.api_key
    if key is not None and not key.startswith("env:"):
        raise ConfigError(
            "--api-key is no reference, and others see a command line: put the key into an environment variable and "
            "write --api-key env:NAME"
        )
    if arguments.model is None:
        if key is not None or arguments.base_url is not None:
            raise ConfigError("--base-url and --api-key are for the model of --model: give it, too")
        return None
    given = {"name": arguments.model, "base_url": arguments.base_url, "api_key": key}
    return {name: value for name, value in given.items() if value is not None}


# -- its store ---------------------------------------------------------------------------------------


def _open_store(text: str, stopping: threading.Event) -> "LightningStore | None":
    """The store, once its server answers; None when a signal came first. A database is opened at once."""
    from ..components.paths import resolve_address
    from ..store.opening import open_url

    if is_database(text):
        return open_url(resolve_address(text.strip()))
    host, port = served_place(text, who="gateways")
    return asyncio.run(_reached(host, port, stopping))


async def _reached(host: str, port: int, stopping: threading.Event) -> "LightningStore | None":
    from ..execution.apart import reached

    waiting = asyncio.create_task(reached(host, port))
    while not stopping.is_set():
        done, _ = await asyncio.wait({waiting}, timeout=SIGNAL_SECONDS)
        if done:
            return await waiting
    waiting.cancel()
    return None
