"""Serve a model: `python -m sharpen.llm.server MODEL [--port 8000]`.

MODEL is a folder, the folder of an adapter, a .gguf file, or the name of a model on the hub. It prints one line when
it answers, and ends in order on SIGINT and SIGTERM.
"""

import argparse
import gc
import os
import signal
import sys
import threading
from typing import Any

from sharpen.errors import ConfigError, SharpenError

_VARIABLE = "env:"


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m sharpen.llm.server", description="Serve a model with an OpenAI-compatible API."
    )
    found.add_argument("model", help="a folder, an adapter's folder, a .gguf file, or a name on the hub")
    found.add_argument("--host", default="127.0.0.1", help="where to listen (default: this machine only)")
    found.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: 8000)")
    found.add_argument("--token", help="what clients must show as their API key; env:NAME reads a variable")
    found.add_argument("--name", help="the name that clients ask for (default: MODEL as given)")
    found.add_argument("--dtype", default="auto", help="fp32, bf16, fp16 or auto (default: by the device)")
    found.add_argument("--device", help="cpu, cuda, cuda:1 (default: the best one here)")
    found.add_argument("--max-batch", type=int, help="sequences that are sampled at once")
    found.add_argument("--max-tokens", type=int, help="tokens that the cache holds")
    found.add_argument("--max-response-tokens", type=int, help="bound of every answer")
    found.add_argument("--seed", type=int, help="requests without a seed get one that follows from this")
    found.add_argument("--no-download", action="store_true", help="only models that are here already")
    found.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    return found


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    try:
        serve(options, stopping)
    except SharpenError as error:
        sys.stderr.write(f"sharpen server: {error}\n")
        return 1
    return 0


def serve(options: Any, stopping: threading.Event) -> None:
    """Serve a model until it is asked to stop; the options are those of `parser`."""
    token = _token(options.token)
    _check_port(options.host, options.port)
    # Loaded here: what is wrong with the options is said before torch is there.
    from sharpen.llm.engine import Engine
    from sharpen.llm.models.loading import load_model
    from sharpen.llm.server import EngineServer

    loaded = load_model(
        options.model,
        precision=options.dtype,
        device=options.device,
        allow_download=not options.no_download,
        trust_remote_code=options.trust_remote_code,
    )
    if stopping.is_set():
        return
    engine = Engine(
        loaded.model, loaded.tokenizer, max_batch=options.max_batch, max_tokens=options.max_tokens, seed=options.seed
    )
    server = EngineServer(
        engine,
        loaded.tokenizer,
        name=options.name or options.model,
        host=options.host,
        port=options.port or None,
        token=token,
        seed=options.seed,
        max_response_tokens=options.max_response_tokens,
    )
    with server:
        _tune_collector()
        sys.stdout.write(f"{server.name} is served at {server.base_url} (Ctrl-C ends it)\n")
        sys.stdout.flush()
        stopping.wait()


def _tune_collector() -> None:
    """What is loaded by now stays to the end: looking through it again and again would hold up all requests."""
    gc.collect()
    gc.freeze()


def _token(given: str | None) -> str | None:
    if given is None or not given.startswith(_VARIABLE):
        return given
    found = os.environ.get(given.removeprefix(_VARIABLE))
    if not found:
        raise ConfigError(f"--token is {given!r}, but there is no such variable: set it, or leave the option out")
    return found


def _check_port(host: str, port: int) -> None:
    """A taken port is said before a model is loaded for minutes."""
    from sharpen.web.serving import listen

    if not 0 <= port < 65536:
        raise ConfigError(f"--port is {port}: use a number of 1 to 65535, or 0 for a free one")
    listen(host, port).close()


if __name__ == "__main__":
    sys.exit(main())
