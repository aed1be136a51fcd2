"""`LLMProxyClient`: a gateway that somebody else has started (`sharpen gateway`), as a run uses it.

Agents are sent to its address; it goes on when the run has ended. What it records lies in the store that it was given,
which must be that of the run.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..errors import ConfigError, RunError, describe
from ..http.client import HttpClient
from ..secrets import hidden_password
from ..types import LLM, ProxyLLM
from .budgets.totals import Totals
from .models.model_choice import choose_model
from .models.model_entry import ModelEntry
from .tokens import resolve_token

TOKEN_VARIABLE = "SHARPEN_GATEWAY_TOKEN"
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
ASK_SECONDS = 10.0
log = logging.getLogger(__name__)


def given_token() -> str | None:
    """A reference to the token of a gateway apart, where its variable is set."""
    return f"env:{TOKEN_VARIABLE}" if os.environ.get(TOKEN_VARIABLE, "").strip() else None


class LLMProxyClient:
    """A client of a gateway that was started elsewhere.

    Args:
        url: The address of the gateway, such as `http://10.0.0.7:4749`.
        token: The token of the gateway, preferably as a reference, `"env:NAME"`: runners, which send it with the calls
            of their agents, then read it from their own environment. Default: `"env:SHARPEN_GATEWAY_TOKEN"` if that
            variable is set.
        wait_seconds: How long to wait for a gateway that does not respond yet.
    """

    def __init__(self, url: str, token: str | None = None, *, wait_seconds: float = 60.0) -> None:
        self.url = _address(url)
        self._token = given_token() if token is None else token
        self.wait_seconds = wait_seconds
        self._names: list[str] | None = None

    @property
    def model_names(self) -> list[str]:
        """The models that the gateway lists; empty before `start`."""
        return list(self._names or ())

    def is_running(self) -> bool:
        """Return True if the gateway has responded."""
        return self._names is not None

    async def start(self) -> None:
        """Wait until the gateway responds, and read its list of models."""
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE_SECONDS
        end = loop.time() + self.wait_seconds
        while True:
            try:
                models = msgspec.json.decode(await self._get("/v1/models"), type=_Models)
                self._names = [each.id for each in models.data]
                return
            except msgspec.MsgspecError:
                raise self._is_something_else("its list of models is unreadable") from None
            except (OSError, TimeoutError) as error:
                if loop.time() + pause > end:
                    raise RunError(
                        f"no gateway responds at {self.url} ({describe(error)}): start one there with `sharpen "
                        "gateway`, or check the address"
                    ) from None
                if pause == FIRST_PAUSE_SECONDS:
                    log.warning("waiting for a gateway at %s", self.url)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def stop(self) -> None:
        """Disconnect; the gateway itself keeps running."""
        self._names = None

    def as_resource(self, *, model: str | None = None, sampling_parameters: Mapping[str, Any] | None = None) -> LLM:
        """Return the endpoint for agents, which each rollout binds to its attempt."""
        entries = [ModelEntry(name) for name in self.model_names]
        chosen = choose_model(model, entries)
        return ProxyLLM(f"{self.url}/v1", chosen, self._token, dict(sampling_parameters or {}))

    async def totals(self) -> Totals:
        """Return what was called, refused and spent at the gateway, by all callers."""
        try:
            return msgspec.json.decode(await self._get("/totals"), type=Totals)
        except (OSError, TimeoutError, msgspec.MsgspecError) as error:
            raise RunError(f"the gateway at {self.url} did not return its totals: {describe(error)}") from error

    async def _get(self, path: str) -> bytes:
        token = resolve_token(self._token)
        headers = [] if token is None else [("authorization", f"Bearer {token}")]
        client = HttpClient(self.url, headers=headers)
        try:
            answer = await client.exchange("GET", path, seconds=ASK_SECONDS)
            return self._checked(answer.status, await answer.read())
        finally:
            client.close()

    def _checked(self, status: int, body: bytes) -> bytes:
        if status == 401:
            raise RunError(
                f"the gateway at {self.url} refused the token: set {TOKEN_VARIABLE} to the token of the gateway, here "
                "and where the runners are"
            )
        if status >= 500:
            raise ConnectionError(f"it responded with status {status}")
        if status != 200:
            raise self._is_something_else(f"status {status}")
        return body

    def _is_something_else(self, what: str) -> ConfigError:
        return ConfigError(f"{self.url} is not a gateway ({what}): check the address")

    def __repr__(self) -> str:
        return f"<LLMProxyClient {self.url}, models {self.model_names}>"


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _address(url: object) -> str:
    """The address without a slash at its end; agents' clients add the version."""
    if not isinstance(url, str):
        raise ConfigError(f"url is of type {type(url).__name__}: use an address such as http://127.0.0.1:4749")
    text = url.strip().rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number
        is_address = False
    if not is_address or "@" in parts.netloc or parts.query:
        raise ConfigError(f"url is {hidden_password(url)!r}: use an address such as http://127.0.0.1:4749")
    return text
