"""The models of a search: the one that is asked about prompts, and a local one that agents may talk to.

Every answer that comes back has a text that is not empty. What a model charged is counted also where its answer is of
no use. Keys stay in the client: no message and no log line holds one.
"""

import asyncio
import contextlib
import copy
import importlib
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from ...checks import listed
from ...errors import ConfigError, MissingExtraError, RunError
from ...types import NamedResources
from ..base import Algorithm, Gateway, key_for
from ..serving import PublishedModel, Sampling, model_name
from ..threads import compute
from .candidates import Cost
from .evaluations import Split
from .failure_cause import NoAnswerError, complains_of, failure_of, without_key

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from ...llm.server import EngineServer

log = logging.getLogger(__name__)

CALL_RETRIES = 5  # of the client, over some 15 s: so long it may take until a gateway that has died is back
Options = Mapping[str, float | int | None]
# What a local model that reasons writes before its answer.
_THOUGHTS = re.compile(r"\s*<think>(.*?</think>|.*)\s*", re.DOTALL)
# Nothing is left open when a loop ends: nobody is told of that, and a client that is given is not ours to close.
_ONE_CALL = {"Connection": "close"}
LIST_SECONDS = 20.0


class Answer(msgspec.Struct, frozen=True):
    """What a model said, and what it cost. `is_cut_off`: it ran into its limit of length before it was done. `why_none`
    is why there is nothing in it that can be used, where that is so."""

    text: str
    cost: Cost
    is_cut_off: bool = False
    why_none: str | None = None


class Assistant:
    """Asks models, at most `limit` calls at a time."""

    def __init__(self, client: "AsyncOpenAI", *, limit: int = 16) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ConfigError(f"limit is {limit!r}: use the number of calls allowed at once, 1 or more")
        _finish_importing_httpx()
        self._given, self._limit = client, limit
        self._link: _Link | None = None
        self._refused: set[tuple[str, str]] = set()

    async def ask(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        temperature: float | None,
        seed: int | None = None,
    ) -> Answer:
        """One answer. A NoAnswerError may go better next time; any other RunError will not."""
        async with self._linked().slots:
            found = await self._completion(model, _writable(messages), {"temperature": temperature, "seed": seed})
        if not hasattr(found, "choices"):
            raise RunError(
                f"{model!r} at {self._place} did not return a chat completion but "
                f"{without_key(str(found), self._key)[:80]!r}: check the base_url of the client"
            )
        answer = _answer(found, model)
        log.debug("%s answered: %s", model, answer.cost.text())
        return answer

    async def _completion(self, model: str, messages: list[Any], wanted: Options) -> Any:
        """What the server sent; options that the model does not take are left out from then on."""
        from openai import OpenAIError

        while True:
            refused = self._refused
            options: dict[str, Any] = {
                name: value for name, value in wanted.items() if value is not None and (model, name) not in refused
            }
            try:
                return await self._linked().client.chat.completions.create(
                    model=model, messages=messages, extra_headers=_ONE_CALL, **options
                )
            except (OpenAIError, json.JSONDecodeError, UnicodeDecodeError) as error:
                name = next((name for name in options if complains_of(error, name)), None)
                if name is None:
                    # The error of the client may hold what the server said of the key: it is not passed on.
                    raise failure_of(error, model=model, place=self._place, key=self._key) from None
            log.info("model %r does not accept %s; calling it without", model, name)
            self._refused.add((model, name))

    async def check(self, models: Sequence[str]) -> None:
        """Look at the list of models, which is free: a key that is refused, or a server that is gone, is an error
        before anything is paid for. A server without such a list is as good as any."""
        from openai import AsyncOpenAI, OpenAIError

        if not isinstance(self._given, AsyncOpenAI):
            return  # one that looks like it, which may have nothing but completions
        try:
            names = names_in(await self._get("/models"))
        except (OpenAIError, ValueError) as error:
            failure = failed_list(error, model=models[0], place=self._place, key=self._key)
            if failure is not None:
                raise failure from None
            log.debug("%s does not list its models: %s", self._place, type(error).__name__)
            return
        for model in dict.fromkeys(models):
            if names and not is_listed(model, names) and not await self._is_known(model):
                log.warning("%s", not_listed(model, names, place=self._place))

    async def _is_known(self, model: str) -> bool:
        """Whether the server knows a model that it does not list: some list `models/x` or `x:latest`, and take `x`; a
        gateway cannot list all that a star stands for."""
        from openai import AsyncAzureOpenAI, OpenAIError

        if isinstance(self._given, AsyncAzureOpenAI):  # lists models, and is asked for deployments of them
            return True
        try:
            await self._get(f"/models/{quote(model, safe='')}")
        except (OpenAIError, ValueError):
            return False
        return True

    async def _get(self, path: str) -> Any:
        from openai import Timeout

        client = self._linked().client
        seconds = Timeout(LIST_SECONDS, connect=Timeout(client.timeout).connect)
        return await client.get(path, cast_to=object, options={"headers": _ONE_CALL, "timeout": seconds})

    def _linked(self) -> "_Link":
        """What belongs to the event loop that is running."""
        loop = asyncio.get_running_loop()
        if self._link is None or self._link.loop is not loop:
            self._link = _Link(loop, loop_client(self._given), asyncio.Semaphore(self._limit))
        return self._link

    @property
    def _place(self) -> str:
        url = self._given.base_url
        return url.host if url.port is None else f"{url.host}:{url.port}"

    @property
    def _key(self) -> str:
        key = self._linked().client.api_key
        return key if isinstance(key, str) else ""


@dataclass(frozen=True, slots=True)
class _Link:
    loop: asyncio.AbstractEventLoop
    client: "AsyncOpenAI"
    slots: asyncio.Semaphore


def _finish_importing_httpx() -> None:
    """The client of OpenAI looks into `httpx` wherever that is loaded, also while a runner in another thread is in the
    middle of importing it, and fails. Where that is under way, this waits for its end."""
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("httpx")


def _writable(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Agents may have recorded half a character, which no request can hold."""
    return json.loads(json.dumps(list(messages), ensure_ascii=False).encode("utf-8", "replace"))  # type: ignore[no-any-return]


# -- what a model said -------------------------------------------------------------------------------


def _answer(completion: Any, model: str) -> Answer:
    cost = _cost(completion.usage)
    if not completion.choices or completion.choices[0].message is None:
        raise NoAnswerError(f"{model!r} returned no choices", cost)
    choice = completion.choices[0]
    refusal = getattr(choice.message, "refusal", None)
    if refusal:
        raise NoAnswerError(f"{model!r} refused: {str(refusal)[:300]}", cost)
    if choice.finish_reason == "content_filter":
        raise NoAnswerError(f"a content filter stopped the answer of {model!r}", cost)
    said = choice.message.content
    text = _THOUGHTS.sub("", said, count=1) if isinstance(said, str) and said.lstrip().startswith("<think>") else said
    is_cut_off = choice.finish_reason == "length"
    if not isinstance(text, str) or not text.strip():
        how = "reached its token limit before the answer began" if is_cut_off else "returned an empty answer"
        raise NoAnswerError(f"{model!r} {how}", cost)
    return Answer(text, cost, is_cut_off)


def _cost(usage: Any) -> Cost:
    read, written = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
    return Cost(calls=1, input_tokens=read or 0, output_tokens=written or 0)


# -- which client ------------------------------------------------------------------------------------


def choose_client(
    algorithm: Algorithm[Any], models: Sequence[str], *, feature: str, argument: str = "async_openai_client"
) -> "AsyncOpenAI":
    """The trainer's gateway where it lists all the models, else the client that the environment describes.

    `feature` and `argument` are the words of the errors: who asks, and the name under which a client can be given.
    """
    try:
        from openai import AsyncOpenAI
    except ModuleNotFoundError as error:
        raise MissingExtraError.of("openai", extra="apo", feature=feature) from error
    gateway: Any = algorithm.get_llm_proxy()
    names = list(getattr(gateway, "model_names", ()))
    if models and all(is_listed(model, names) for model in models):
        # Named, since a gateway of several models cannot choose one by itself.
        llm = gateway.as_resource(model=models[0])
        key = key_for(gateway, llm)
        return AsyncOpenAI(base_url=llm.get_base_url(), api_key=key, max_retries=CALL_RETRIES)
    if os.environ.get("OPENAI_API_KEY"):
        return AsyncOpenAI(max_retries=CALL_RETRIES)
    raise ConfigError(_no_client(gateway, names, list(dict.fromkeys(models)), feature, argument))


def _no_client(gateway: Any, names: Sequence[str], models: Sequence[str], feature: str, argument: str) -> str:
    there = f"the gateway lists {listed(names) or 'no models'}" if gateway is not None else "the trainer has no gateway"
    return (
        f"{feature} calls {' and '.join(map(repr, models))}, but {there}, and OPENAI_API_KEY is not set: add them to "
        f"a gateway (Trainer(llm_proxy=LLMProxy(model_list=[...]))), set OPENAI_API_KEY, or pass {argument}="
    )


# -- the list of models ----------------------------------------------------------------------------


# A key that may ask models, and may not list them.
_OF_LISTING = re.compile(r"\bscopes?\b|insufficient permissions", re.I)


def names_in(found: Any) -> list[str]:
    """The names in a list as it was sent; none where it has another form."""
    entries = found.get("data") if isinstance(found, dict) else found
    names = [each.get("id") for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    return [name for name in names if isinstance(name, str) and name]


def is_listed(model: str, names: Sequence[str]) -> bool:
    """A star stands for any end of a name, as the gateway reads it."""
    return any(model.startswith(name.partition("*")[0]) if "*" in name else model == name for name in names)


def not_listed(model: str, names: Sequence[str], *, place: str) -> str:
    """What to say of a model that is missing; names that are like its own come first."""
    near = get_close_matches(model, names, n=3)
    there = listed([*near, *(name for name in names if name not in near)])
    return f"{model!r} is not one of the models that {place} lists ({there}): calls to it may fail; check the name"


def failed_list(error: Exception, *, model: str, place: str, key: str) -> RunError | None:
    """What it means that there is no list: an error where calls would fail as well, None where nothing follows."""
    from openai import APIConnectionError, APITimeoutError

    failure = failure_of(error, model=model, place=place, key=key)
    if getattr(error, "status_code", None) in (401, 403):
        return None if _OF_LISTING.search(str(failure)) else failure
    is_slow = isinstance(error, APITimeoutError) and "Connect" not in type(error.__cause__).__name__
    if isinstance(error, APIConnectionError) and not is_slow:
        return RunError(f"{failure}; check that the server is running, and the base_url of the client")
    return None


# -- a client for each event loop ------------------------------------------------------------------


def loop_client(given: "AsyncOpenAI") -> "AsyncOpenAI":
    """A copy that shares no connection with the given client; the given one where it cannot be copied."""
    http_client = _with_own_connections(getattr(given, "_client", None))
    if http_client is None:
        return given
    try:
        return given.with_options(http_client=http_client)
    except (AttributeError, TypeError) as error:  # of another kind, made in another way
        log.debug("using the client %s as it is: %s", type(given).__name__, error)
        return given


def _with_own_connections(http_client: Any) -> Any:
    """The same proxies, certificates and hooks; None where that cannot be had."""
    from openai import DefaultAsyncHttpxClient

    if type(http_client).__name__ == "AsyncHttpxClientWrapper":  # nobody has given one
        return DefaultAsyncHttpxClient()
    try:
        own = copy.copy(http_client)
        own._transport = _unused(http_client._transport)
        own._mounts = {place: each and _unused(each) for place, each in http_client._mounts.items()}
    except (AttributeError, TypeError) as error:  # a way of sending that only its owner knows
        log.debug("using the HTTP client %s as it is: %s", type(http_client).__name__, error)
        return None
    return own


def _unused(transport: Any) -> Any:
    """The same way to the server, without the connections that are open on it and the calls that wait for one."""
    own, pool = copy.copy(transport), copy.copy(transport._pool)
    if not isinstance(pool._connections, list) or not isinstance(pool._requests, list):
        raise TypeError(f"{type(pool).__name__} has an unknown kind of connections")
    pool._connections, pool._requests = [], []
    own._pool = pool
    return own


# -- a local model for the agents ------------------------------------------------------------------


@contextlib.asynccontextmanager
async def served_model(
    path: str | os.PathLike[str],
    gateway: Gateway | None,
    others: NamedResources | None,
    *,
    training_temperature: float,
    max_response_tokens: int,
    seed: int,
    rollout_prefix: str,
    feature: str,
) -> AsyncIterator[dict[Split, NamedResources]]:
    """The resources of agents, with the model in them, for tasks of each split."""
    name = model_name(str(path))
    published = PublishedModel(
        gateway,
        name=name,
        training=Sampling(training_temperature, 1.0, max_response_tokens),
        validation=Sampling(0.0, 1.0, max_response_tokens),
        feature=feature,
    )
    # A thread that spins while it waits takes the core that another process needs; read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    server = await compute(_load, path, name, seed, rollout_prefix)
    try:
        await compute(server.start)
        with published.listed([{"model": name, "base_url": server.base_url, "engine": "sharpen"}]):
            yield {"train": published.resources(others), "val": published.resources(others, is_validation=True)}
    finally:
        await asyncio.to_thread(server.stop)


def _load(path: str | os.PathLike[str], name: str, seed: int, rollout_prefix: str) -> "EngineServer":
    from ...llm.models.loading import load_model
    from ...llm.server import EngineServer

    loaded = load_model(path)
    from ...llm.engine import Engine

    engine = Engine(loaded.model, loaded.tokenizer)
    return EngineServer(engine, loaded.tokenizer, name=name, seed=seed, rollout_prefix=rollout_prefix)
