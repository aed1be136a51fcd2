"""`EngineServer`: an engine behind an OpenAI-compatible API, in a thread of this process."""

from collections.abc import Mapping
from typing import Any, Self

from ...errors import ConfigError, RunError
from ...http.proxies import is_loopback
from ...web.serving import ServerThread, address, allowed_hosts, listen
from ..engine import Engine
from .app import EngineApp
from .service import Service

GRACE_SECONDS = 2


class EngineServer:
    """Serves one model under `name`. It can be started again after it was stopped.

    Args:
        engine: Created with the same `tokenizer`. Started and stopped with the server, unless it is running already.
        tokenizer: The tokenizer of the model.
        name: The model name that clients use.
        host: The address to listen on.
        port: None takes a free one.
        token: The API key that clients must send; required unless `host` is this machine only.
        seed: With a seed, a request without one gets a seed derived from its rollout and its prompt.
        rollout_prefix: The part of the rollout ids that the derived seeds ignore.
        max_response_tokens: The limit of every response.
        chat_template_kwargs: Passed to the chat template of every request.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        *,
        name: str,
        host: str = "127.0.0.1",
        port: int | None = None,
        token: str | None = None,
        seed: int | None = None,
        rollout_prefix: str = "",
        max_response_tokens: int | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        _check(name, host, token, max_response_tokens)
        self.engine, self.name, self._host, self._wanted_port, self._token = engine, name, host, port, token
        self._service = Service(
            engine,
            tokenizer,
            name=name,
            seed=seed,
            rollout_prefix=rollout_prefix,
            max_response_tokens=max_response_tokens,
            chat_template_kwargs=chat_template_kwargs,
        )
        self._thread: ServerThread | None = None
        self._port = 0
        self._starts_engine = False

    @property
    def base_url(self) -> str:
        """The `base_url` for an OpenAI SDK."""
        if self._thread is None:
            raise RunError("the server is not started, so it has no address: call start(), or use it in a with block")
        return f"{address(self._host, self._port)}/v1"

    @property
    def is_serving(self) -> bool:
        return self._thread is not None and self._thread.is_alive

    def start(self) -> Self:
        """Start the server and return when it is ready. A second call changes nothing."""
        if self.is_serving:
            return self
        bound = listen(self._host, self._wanted_port or 0)
        self._service.resume()
        self._port = bound.getsockname()[1]
        self._thread = ServerThread(
            lambda stopping: EngineApp(
                self._service, token=self._token, hosts=allowed_hosts(self._host), stopping=stopping
            ),
            bound,
            name="sharpen-engine-server",
            grace_seconds=GRACE_SECONDS,
            on_stop=self._service.stop,
        )
        if not self.engine.is_started:
            self.engine.start()
            self._starts_engine = True
        try:
            self._thread.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop accepting requests; unfinished ones fail. Calling it twice or before `start` is allowed."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None
        if self._starts_engine:
            self.engine.stop()
            self._starts_engine = False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _check(name: str, host: str, token: str | None, max_response_tokens: int | None) -> None:
    if not name:
        raise ConfigError("name is empty: pass the model name that clients use")
    if token == "":
        raise ConfigError(
            "token is empty and would not protect the server: pass a non-empty token, or None for no token"
        )
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"host is {host!r}, where other machines can reach the server: pass a token, or use host='127.0.0.1'"
        )
    if max_response_tokens is not None and max_response_tokens < 1:
        raise ConfigError(f"max_response_tokens is {max_response_tokens}: use 1 or more, or None for no limit")
