"""Serve a model: `python -m sharpen.llm.server MODEL [--port 8000]`.

MODEL is a folder, the folder of an adapter, a .gguf file, or the name of a model on the hub. It prints one line when
it is ready, and shuts down cleanly on SIGINT and SIGTERM.
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
    found.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    found.add_argument("--port", type=int, default=8000, help="port to listen on, 0 for a free one (default: 8000)")
    found.add_argument("--token", help="API key that clients must send; env:NAME reads it from a variable")
    found.add_argument("--name", help="model name that clients use (default: MODEL as given)")
    found.add_argument("--dtype", default="auto", help="fp32, bf16, fp16 or auto (default: auto, chosen by the device)")
    found.add_argument("--device", help="cpu, cuda, cuda:1 (default: the best one available)")
    found.add_argument("--max-batch", type=int, help="maximum number of sequences to sample at once")
    found.add_argument("--max-tokens", type=int, help="size of the cache in tokens")
    found.add_argument("--max-response-tokens", type=int, help="maximum number of tokens in a response")
    found.add_argument("--seed", type=int, help="seed from which requests without one get theirs")
    found.add_argument("--no-download", action="store_true", help="use only models that are already on this machine")
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
    """Serve a model until `stopping` is set; the options are those of `parser`."""
    token = _token(options.token)
    _check_port(options.host, options.port)
    # Imported here: wrong options are reported before torch is loaded.
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
        sys.stdout.write(f"{server.name} is served at {server.base_url} (press Ctrl-C to stop)\n")
        sys.stdout.flush()
        stopping.wait()


def _tune_collector() -> None:
    """Exclude what is loaded by now from garbage collection, which would delay all requests."""
    gc.collect()
    gc.freeze()


def _token(given: str | None) -> str | None:
    if given is None or not given.startswith(_VARIABLE):
        return given
    found = os.environ.get(given.removeprefix(_VARIABLE))
    if not found:
        raise ConfigError(f"--token is {given!r}, but there is no such variable: set it, or omit the option")
    return found


def _check_port(host: str, port: int) -> None:
    """Report a port in use before spending minutes on loading a model."""
    from sharpen.web.serving import listen

    if not 0 <= port < 65536:
        raise ConfigError(f"--port is {port}: use a number from 1 to 65535, or 0 for a free port")
    listen(host, port).close()


if __name__ == "__main__":
    sys.exit(main())
