"""`EngineServer`: an engine behind an OpenAI-compatible API, in a thread of this process, and its routes."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Self

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..._version import __version__
from ...errors import ConfigError, RunError
from ...http.proxies import is_loopback
from ...web.app import JSON, HttpError, StreamResponse, WebApp, read_body
from ...web.serving import ServerThread, address, allowed_hosts, listen
from ..engine import Engine
from .answers import Api
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


# -- the routes ---------------------------------------------------------------------------------------


_encode = msgspec.json.Encoder().encode


class EngineApp(WebApp):
    """Serves one service. Paths may lack `/v1` or end with a slash: SDKs differ in what they add."""

    def __init__(
        self,
        service: Service,
        *,
        token: str | None = None,
        hosts: Collection[str] | None = None,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self._service = service
        routes = [
            Route("/v1/chat/completions", self._complete_chat, methods=["POST"]),
            Route("/v1/completions", self._complete_text, methods=["POST"]),
            Route("/v1/models", self._list_models),
            Route("/v1/models/{name:path}", self._show_model),
            Route("/health", self._show_health),
        ]
        super().__init__(routes, token=token, hosts=hosts, stopping=stopping)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"].rstrip("/")
            scope["path"] = path if path.startswith(("/v1/", "/health")) else f"/v1{path.removeprefix('/v1')}"
        await super().__call__(scope, receive, send)

    async def _complete_chat(self, request: Request) -> Any:
        return await self._complete("chat", request)

    async def _complete_text(self, request: Request) -> Any:
        return await self._complete("completions", request)

    async def _complete(self, api: Api, request: Request) -> ASGIApp:
        asked = self._service.read(api, await read_body(request.scope, request.receive))
        headers = dict(request.scope["headers"])
        if asked.fields.stream:
            return StreamResponse(self._service.stream(asked, headers, request.receive))
        return Response(await self._service.answer(asked, headers, request.receive), media_type=JSON)

    async def _show_health(self, request: Request) -> Response:
        engine = self._service.engine
        health = {
            "status": "ok",
            "version": __version__,
            "model": self._service.name,
            "weights_version": str(engine.weights_version),
            "running": engine.num_running,
            "waiting": engine.num_waiting,
        }
        return Response(_encode(health), media_type=JSON)

    async def _list_models(self, request: Request) -> Response:
        return Response(_encode({"object": "list", "data": [self._model()]}), media_type=JSON)

    async def _show_model(self, request: Request) -> Response:
        wanted, model = request.path_params["name"], self._model()
        if wanted != model["id"]:
            message = f"model {wanted[:200]!r} does not exist: this server has {model['id']!r}"
            raise HttpError(404, message, code="model_not_found")
        return Response(_encode(model), media_type=JSON)

    def _model(self) -> dict[str, Any]:
        service = self._service
        return {
            "id": service.name,
            "object": "model",
            "created": 0,
            "owned_by": "sharpen",
            "max_model_len": service.engine.sizes.max_length,
        }
