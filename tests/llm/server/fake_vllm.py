"""A program that speaks as much of vLLM's protocol as `VLLMServer` needs: `python fake_vllm.py MODEL --port …`."""

import argparse
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    models: list[str]
    told: dict[str, Any]

    def do_GET(self) -> None:
        if self.path == "/health":
            return self._answer(200, b"")
        return self._answer(200, json.dumps({"models": self.models, **self.told}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = os.environ.get("VLLM_API_KEY")
        if key is not None and self.headers.get("authorization") != f"Bearer {key}":
            return self._answer(401, b"wrong key")
        if os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") != "True":
            return self._answer(404, b"not found")
        if self.path == "/v1/load_lora_adapter":
            if "broken" in body["lora_path"]:
                return self._answer(400, b"the adapter has the wrong shape")
            self.models.append(body["lora_name"])
            return self._answer(200, b"Success")
        self.models.remove(body["lora_name"])
        return self._answer(200, b"Success")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    for name in ("host", "served-model-name", "generation-config", "logprobs-mode"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("port", "max-lora-rank", "max-loras", "max-model-len"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--enable-lora", action="store_true")
    options = parser.parse_args()
    if options.model.endswith("missing"):
        sys.exit("there is no such model")
    Handler.models, Handler.told = [options.served_model_name], {"pid": os.getpid(), **vars(options)}
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
