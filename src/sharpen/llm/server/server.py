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
    """Serves one model under `name`. It may be started again after it was stopped.

    `engine` is made with the same `tokenizer`, and is started, and stopped, with the server unless it runs already.
    `port` None takes a free one. `token` is the API key that clients must show; beyond this machine it is needed.
    With `seed` a request without one gets a seed that follows from its rollout, less `rollout_prefix`, and its prompt
    (see `seeds`).
    `max_response_tokens` bounds every answer; `chat_template_kwargs` go to the chat template of every request.
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
        """Where clients find it: the `base_url` of an OpenAI SDK."""
        if self._thread is None:
            raise RunError("the server has no address before it is started: call start(), or use it in a with block")
        return f"{address(self._host, self._port)}/v1"

    @property
    def is_serving(self) -> bool:
        return self._thread is not None and self._thread.is_alive

    def start(self) -> Self:
        """Returns when it answers. A second call changes nothing."""
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
        """Take no more requests; those under way are refused. It may be called twice, and before any start."""
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
        raise ConfigError("name is empty: give the name under which clients ask for the model")
    if token == "":
        raise ConfigError("token is empty, so it would guard nothing: give a text, or None for no token")
    if token is None and not is_loopback(host):
        raise ConfigError(f"host is {host!r}, where others can reach the server: give a token, or listen on 127.0.0.1")
    if max_response_tokens is not None and max_response_tokens < 1:
        raise ConfigError(f"max_response_tokens is {max_response_tokens}: use 1 or more, or None for no bound")
