"""A stand-in for language models, for trying things out without one: it speaks OpenAI's protocol and is no model.

    python examples/stand_in_model.py        # serves until Ctrl-C, and prints its address

Asked as the model "worker" it reads dates, and does no more than its prompt says: it adds chatter unless told not to,
writes dates in words unless a format is asked for, and takes 4/7 for the seventh of April unless told otherwise. As
"critic" it names the first thing that went wrong in the rollouts that it is shown; as "editor" it adds a sentence
against that. `apo_offline.py` and `apo_custom_algorithm.py` talk to it.
"""

import json
import re
import signal
import threading
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")  # fmt: skip
CURES = {
    "chatter": "Answer with the date only.",
    "format": "Write dates as YYYY-MM-DD.",
    "order": "In dates such as 4/7/2024 the day comes first.",
}


def say_date(prompt: str) -> str:
    """The worker: what the prompt asks for, to the letter."""
    found = read_date(prompt)
    if found is None:
        return "I see no date."
    said = found.isoformat() if "YYYY-MM-DD" in prompt else f"{found.day} {MONTHS[found.month - 1]} {found.year}"
    return said if "only" in prompt else f"Sure! The date is {said}."


def read_date(prompt: str) -> date | None:
    text = prompt.rpartition("Text:")[2]
    if numbers := re.search(r"\b(\d{1,2})/(\d{1,2})/(\d{4})\b", text):
        first, second, year = map(int, numbers.groups())
        return date(year, second, first) if "day comes first" in prompt else date(year, first, second)
    words = re.search(r"\b(\d{1,2})\w* (?:of )?([A-Z][a-z]+) (\d{4})\b", text)
    return date(int(words[3]), MONTHS.index(words[2]) + 1, int(words[1])) if words else None


def criticise(shown: str) -> str:
    """The critic: the first fault that it sees in the answers."""
    template, _, rollouts = shown.rpartition("</template>")
    if "Sure!" in rollouts and CURES["chatter"] not in template:
        return f'The answers hold more than a date. Add: "{CURES["chatter"]}"'
    if re.search(r"\d [A-Z][a-z]+ \d{4}\b", rollouts) and CURES["format"] not in template:
        return f'The format of dates is open. Add: "{CURES["format"]}"'
    return f'Whether day or month comes first is open. Add: "{CURES["order"]}"'


def edit(shown: str) -> str:
    """The editor: the template with the sentence of the review before it."""
    template = re.search(r"<template>\n(.*?)\n</template>", shown, re.DOTALL)
    cure = re.search(r'Add: "(.*?)"', shown)
    assert template is not None
    return f"<new_template>\n{cure[1] if cure else ''} {template[1]}\n</new_template>"


ROLES = {"worker": say_date, "critic": criticise, "editor": edit}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in ROLES]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if asked["model"] not in ROLES:
            self._answer(404, {"error": {"message": f"no model {asked['model']!r} here", "code": "model_not_found"}})
            return
        prompt = "\n".join(message["content"] for message in asked["messages"])
        said = ROLES[asked["model"]](prompt)
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage: dict[str, Any] = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(said.split())}
        usage["total_tokens"] = sum(usage.values())
        answer = {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": asked["model"]}
        self._answer(200, {**answer, "choices": [choice], "usage": usage})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """A line for every request would hide what the program says."""


class StandInModel:
    """The server, in a thread: `with StandInModel() as model: ... model.base_url`."""

    def __init__(self, port: int = 0) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        self._server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> "StandInModel":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def main() -> None:
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # until somebody waits for them
    with StandInModel() as model:
        print(model.base_url, flush=True)
        signal.sigwait(ends)


if __name__ == "__main__":
    main()
