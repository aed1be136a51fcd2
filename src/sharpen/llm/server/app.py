"""`EngineApp`: the service over HTTP, with the routes of an OpenAI-compatible API."""

import asyncio
from collections.abc import Collection
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..._version import __version__
from ...web.app import JSON, HttpError, StreamResponse, WebApp, read_body
from .answers import Api
from .service import Service

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
