"""`EngineServer`: an engine behind an OpenAI-compatible API, in a thread of this process."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import Any, Self

from ...errors import ConfigError, RunError
from ...http.listening import address, allowed_hosts, is_loopback, listen
from ...http.serving import new_loop, serve_here
from ..engine import Engine
from .application import EngineApplication
from .service import Service

START_SECONDS = 30.0
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
        self._serving: _Serving | None = None
        self._starts_engine = False

    @property
    def base_url(self) -> str:
        """Where clients find it: the `base_url` of an OpenAI SDK."""
        if self._serving is None:
            raise RunError("the server has no address before it is started: call start(), or use it in a with block")
        return f"{address(self._host, self._serving.port)}/v1"

    @property
    def is_serving(self) -> bool:
        return self._serving is not None and self._serving.is_alive

    def start(self) -> Self:
        """Returns when it answers. A second call changes nothing."""
        if self.is_serving:
            return self
        bound = listen(self._host, self._wanted_port or 0)
        self._service.resume()
        self._serving = _Serving(self._service, bound, token=self._token, hosts=allowed_hosts(self._host))
        if not self.engine.is_started:
            self.engine.start()
            self._starts_engine = True
        try:
            self._serving.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Take no more requests; those under way are refused. It may be called twice, and before any start."""
        if self._serving is not None:
            self._serving.stop()
            self._serving = None
        if self._starts_engine:
            self.engine.stop()
            self._starts_engine = False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Serving:
    """One time from start to stop: a thread with an event loop of its own."""

    def __init__(
        self, service: Service, bound: socket.socket, *, token: str | None, hosts: frozenset[str] | None
    ) -> None:
        self.port = int(bound.getsockname()[1])
        self._service, self._bound = service, bound
        self._app = EngineApplication(service, token=token, hosts=hosts)
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="sharpen-engine-server", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            self.stop()
            raise RunError(f"the server did not answer within {START_SECONDS:g} s")
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._ready.wait(START_SECONDS)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._end)
        self._thread.join()

    def _end(self) -> None:
        self._service.stop()
        self._stopping.set()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised again by `start`, in the thread of its caller
            self._error = error
        finally:
            self._bound.close()
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        await serve_here(self._app, self._bound, self._ready.set, self._stopping, grace_seconds=GRACE_SECONDS)


def _check(name: str, host: str, token: str | None, max_response_tokens: int | None) -> None:
    if not name:
        raise ConfigError("name is empty: give the name under which clients ask for the model")
    if token == "":
        raise ConfigError("token is empty, so it would guard nothing: give a text, or None for no token")
    if token is None and not is_loopback(host):
        raise ConfigError(f"host is {host!r}, where others can reach the server: give a token, or listen on 127.0.0.1")
    if max_response_tokens is not None and max_response_tokens < 1:
        raise ConfigError(f"max_response_tokens is {max_response_tokens}: use 1 or more, or None for no bound")
