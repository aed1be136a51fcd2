"""The servers of `gateway.py`: a model that answers at once, our gateway, and the peer's. Each prints its URLs.

    python benchmarks/gateway_servers.py model --delay-ms 50
    python benchmarks/gateway_servers.py ours --upstream http://127.0.0.1:8000/v1/chat/completions --store store.db

They end when their input is closed.
"""

import argparse
import asyncio
import importlib
import json
import logging
import os
import secrets
import socket
import sys
import threading
from pathlib import Path
from typing import Any

logging.disable(logging.WARNING)

ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "prompt_token_ids": list(range(128)),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello world " * 8},
                "finish_reason": "stop",
                "token_ids": list(range(64)),
            }
        ],
        "usage": {"prompt_tokens": 128, "completion_tokens": 64, "total_tokens": 192},
    }
).encode()
HEAD = b'"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"fake"'
CHUNK = b'data: {%b,"choices":[{"index":0,"delta":{"content":"hello "},"finish_reason":null}]}\n\n' % HEAD
CHUNKS = [*([CHUNK] * 16), CHUNK.replace(b"null", b'"stop"'), b"data: [DONE]\n\n"]
KEY = "sk-" + secrets.token_hex(16)  # the peer does not start without one


# Whatever else is printed here, by the peer's packages for one, goes to the errors.
OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def say(**figures: Any) -> None:
    print(json.dumps(figures), file=OUT, flush=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


# -- the model ---------------------------------------------------------------------------------------


def model(delay_ms: float) -> None:
    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        await asyncio.sleep(delay_ms / 1000)
        is_stream = b'"stream": true' in body or b'"stream":true' in body
        kind = b"text/event-stream" if is_stream else b"application/json"
        chunks = CHUNKS if is_stream else [ANSWER]
        headers = [(b"content-type", kind)]
        headers += [] if is_stream else [(b"content-length", b"%d" % len(ANSWER))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number, chunk in enumerate(chunks, 1):
            await send({"type": "http.response.body", "body": chunk, "more_body": number < len(chunks)})

    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    say(url=f"http://127.0.0.1:{listening.getsockname()[1]}/v1/chat/completions")
    threading.Thread(target=end_with_the_input, daemon=True).start()
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off")).run(sockets=[listening])


def end_with_the_input() -> None:
    sys.stdin.read()
    os._exit(0)


# -- the gateways ------------------------------------------------------------------------------------


def model_list(upstream: str) -> list[dict[str, Any]]:
    params = {"model": "hosted_vllm/fake", "api_base": upstream.removesuffix("/chat/completions"), "api_key": "sk-x"}
    return [{"model_name": "fake", "litellm_params": params}]


async def places(store: Any, count: int) -> list[str]:
    rollouts = [await store.start_rollout(input={"q": number}) for number in range(count)]
    return [f"rollout/{each.rollout_id}/attempt/{each.attempt.attempt_id}/v1/chat/completions" for each in rollouts]


async def ours(upstream: str, store_path: str, rollouts: int) -> None:
    from sharpen import InMemoryLightningStore, SQLiteStore
    from sharpen.llm_proxy import LLMProxy

    store: Any = InMemoryLightningStore() if store_path == "memory" else SQLiteStore(store_path)
    proxy = LLMProxy(model_list=model_list(upstream), store=store)
    await proxy.start()
    base = proxy.as_resource().endpoint.removesuffix("/v1")
    urls = [f"{base}/{place}" for place in await places(store, rollouts)]
    say(urls=urls, pid=child_of(os.getpid()))
    await asyncio.to_thread(sys.stdin.read)
    await proxy.stop()
    await store.close()


def child_of(pid: int) -> int:
    """The process of the gateway; this one where it is a thread."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    threads = Path(f"/proc/{pid}/task").iterdir()
    found = [child for thread in threads for child in (thread / "children").read_text().split()]
    return int((children or found or [str(pid)])[0])


async def peer(upstream: str) -> None:
    package: Any = importlib.import_module("agentlightning")
    launchers: Any = importlib.import_module("agentlightning.utils.server_launcher")
    inner = package.InMemoryLightningStore(thread_safe=True)
    store = package.LightningStoreServer(inner, host="127.0.0.1", port=free_port())
    await store.start()
    port = free_port()
    launcher = launchers.PythonServerLauncherArgs(
        port=port, host="127.0.0.1", launch_mode="mp", healthcheck_url="/health/liveliness", startup_timeout=120.0
    )
    proxy = package.LLMProxy(
        model_list=model_list(upstream),
        store=store,
        litellm_config={"general_settings": {"master_key": KEY}},
        launcher_args=launcher,
    )
    await proxy.start()
    await store.add_resources({"llm": proxy.as_resource(model="fake")})
    say(urls=[f"http://127.0.0.1:{port}/{place}#{KEY}" for place in await places(store, 1)])
    await asyncio.to_thread(sys.stdin.read)
    await proxy.stop()
    await store.stop()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("name", choices=["model", "ours", "peer"])
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--upstream", default="")
    parser.add_argument("--store", default="memory", help="memory, or the path of a SQLite file")
    parser.add_argument("--rollouts", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.name == "model":
        model(arguments.delay_ms)
    elif arguments.name == "ours":
        asyncio.run(ours(arguments.upstream, arguments.store, arguments.rollouts))
    else:
        asyncio.run(peer(arguments.upstream))


if __name__ == "__main__":
    main()
