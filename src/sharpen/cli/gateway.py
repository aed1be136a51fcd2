"""`sharpen gateway [CONFIG]`: the gateway as a separate process, with a store that is served elsewhere.

It waits for the store, and keeps working while the store is unreachable: what it records in that time is written when
the store is back, or kept in the spool. On a signal, open calls finish and all records are written.
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
LOOK_SECONDS = 0.5  # how often to check that the gateway is alive
SIGNAL_SECONDS = 0.1  # how often to check for a signal while waiting for the store


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "gateway",
        help="run the gateway between agents and models as a separate process",
        description="Serve the gateway: an OpenAI-compatible proxy that records requests and responses in the store "
        "that `sharpen store` serves. Models, limits and recording are configured in a YAML file with the keywords of "
        f"LLMProxy; a single model can be given with options. Agents must send the token in {TOKEN_VARIABLE}; it is "
        "optional if only this machine can connect. To use the gateway in a run, set `llm_proxy: http://HOST:4749` in "
        "its configuration.",
        epilog=examples(
            "sharpen gateway gateway.yaml",
            "sharpen gateway --model qwen --base-url http://127.0.0.1:8000/v1",
            "sharpen gateway --model gpt-4o-mini --api-key env:OPENAI_API_KEY limits.run_cost=5",
            "SHARPEN_TOKEN=... SHARPEN_GATEWAY_TOKEN=... sharpen gateway gateway.yaml --store http://10.0.0.5:4747 "
            "--host 0.0.0.0",
        ),
    )
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="YAML file with the keywords of LLMProxy")
    parser.add_argument(
        "overrides",
        metavar="key=value",
        nargs="*",
        default=[],
        help="override a value of the file, such as num_retries=2",
    )
    parser.add_argument("--model", metavar="NAME", help="name of an additional model that agents can request")
    parser.add_argument("--base-url", metavar="URL", help="base URL of the server of --model, usually ending in /v1")
    parser.add_argument("--api-key", metavar="env:NAME", help="environment variable with the API key of --model")
    parser.add_argument(
        "--store",
        metavar="URL",
        default=f"http://127.0.0.1:{STORE_PORT}",
        help="the store: address of its server, or a database as env:NAME (default: port "
        f"{STORE_PORT} on this machine)",
    )
    parser.add_argument("--host", help="address to listen on (default: from the file, or this machine only)")
    parser.add_argument("--port", type=int, help=f"port, 0 for a free one (default: from the file, or {GATEWAY_PORT})")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal stops it."""
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
                raise RunError("the gateway has stopped unexpectedly; see its log for the reason")
    totals = gateway.totals_sync()
    lost = f", {totals.lost} of them not recorded" if totals.lost else ""
    log.info("gateway stopped after %d calls in total%s", totals.calls, lost)


def _announce(gateway: "LLMProxy", out: Output) -> None:
    from ..web.serving import address

    url, needs_token = address(gateway.host, gateway.port or 0), gateway.needs_token
    if out.is_json:
        out.value({"url": url, "models": gateway.model_names, "needs_token": needs_token})
        return
    out.line(f"gateway    {url}")
    out.line(f"models     {', '.join(gateway.model_names) or 'none yet'}")
    who = f"Clients need the token in {TOKEN_VARIABLE}" if needs_token else "Every program on this machine can use it"
    out.note(f"{who}. To use it in a run, set llm_proxy: {url}")


# -- configuration ----------------------------------------------------------------------------------


def _config(arguments: argparse.Namespace) -> "GatewayConfig":
    """Return the configuration; the file may be left out before overrides."""
    from .config.gateway_config import read_gateway_config

    path, overrides = arguments.config, list(arguments.overrides)
    if path is not None and "=" in path and not os.path.exists(path):
        path, overrides = None, [path, *overrides]
    return read_gateway_config(path, overrides)


def _options(arguments: argparse.Namespace, config: "GatewayConfig") -> dict[str, Any]:
    """Return what options and the environment set, which override the file."""
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
            f"other machines can reach host {host!r} and could use the API keys of the gateway: set {TOKEN_VARIABLE} "
            "to a long random string, here and for the algorithm and the runners"
        )
    if (entry := _entry(arguments)) is not None:
        found["model_list"] = [entry, *(config.values.get("model_list") or ())]
    elif not config.values.get("model_list") and config.values.get("mode") != "replay":
        raise ConfigError("the gateway has no models: set model_list in its file, or use --model with --base-url")
    return found


def _port(given: int | None, of_file: int | None) -> int | None:
    if given is None:
        return GATEWAY_PORT if of_file is None else of_file
    if not 0 <= given <= 65535:
        raise ConfigError(f"--port is {given}: use 1 to 65535, or 0 for a free port")
    return given or None


def _entry(arguments: argparse.Namespace) -> dict[str, Any] | None:
    key = arguments.api_key
    if key is not None and not key.startswith("env:"):
        raise ConfigError(
            "--api-key must be a reference, as other users can see command lines: put the key into an environment "
            "variable and write --api-key env:NAME"
        )
    if arguments.model is None:
        if key is not None or arguments.base_url is not None:
            raise ConfigError("--base-url and --api-key need --model: add --model NAME")
        return None
    given = {"name": arguments.model, "base_url": arguments.base_url, "api_key": key}
    return {name: value for name, value in given.items() if value is not None}


# -- its store ---------------------------------------------------------------------------------------


def _open_store(text: str, stopping: threading.Event) -> "LightningStore | None":
    """Return the store once its server responds; None if a signal came first. A database is opened at once."""
    from ..components.paths import resolve_address
    from ..store.opening import open_url

    if is_database(text):
        return open_url(resolve_address(text.strip()))
    host, port = served_place(text, who="gateways")
    return asyncio.run(_reached(host, port, stopping))


async def _reached(host: str, port: int, stopping: threading.Event) -> "LightningStore | None":
    from ..execution.serving import reached

    waiting = asyncio.create_task(reached(host, port))
    while not stopping.is_set():
        done, _ = await asyncio.wait({waiting}, timeout=SIGNAL_SECONDS)
        if done:
            return await waiting
    waiting.cancel()
    return None
