"""The models behind the searches, in the process of the test: for agents, a critic, an editor, and one that reflects.

What they answer follows from the request alone. The key that a request comes with says which life of a run has made it.
"""

import re
import threading
import zlib
from collections.abc import Callable, Collection
from typing import Any

from tests.algorithm.apo.scenes import WORDS, template_of
from tests.algorithm.prompts.scripted_openai import Asked, Reply, ScriptedOpenAI, text_of

DELAY_SECONDS = 0.02  # so that a kill finds calls under way
HOLD_SECONDS = 60.0
_MARK = re.compile(r"\[made with (\d+)\]")


class Upstream(ScriptedOpenAI):
    def __init__(self) -> None:
        super().__init__(self._say)
        self._is_awaited: Callable[[dict[str, Any]], bool] = lambda request: False
        self.is_holding, self._is_free = threading.Event(), threading.Event()
        self.held: dict[str, Any] = {}

    def hold(self, is_awaited: Callable[[dict[str, Any]], bool]) -> None:
        """Requests of this kind are not answered before `let_go`."""
        self.is_holding.clear()
        self._is_free.clear()
        self._is_awaited = is_awaited

    def let_go(self) -> None:
        self._is_awaited = lambda request: False
        self._is_free.set()

    def of_life(self, life: str) -> list[Asked]:
        return [each for each in list(self.requests) if each.key == life]

    def of_rollouts(self, ids: Collection[str]) -> list[Asked]:
        return [each for each in list(self.requests) if each.body.get("user") in ids]

    def _say(self, request: dict[str, Any]) -> Reply:
        if self._is_awaited(request):
            self.held = request
            self.is_holding.set()
            self._is_free.wait(HOLD_SECONDS)
        return Reply(answer_to(request), delay_seconds=DELAY_SECONDS)


def answer_to(request: dict[str, Any]) -> str:
    text = text_of(request)
    if request["model"] == "main":
        return "right" if is_right(text) else "wrong"
    if request["model"] == "reflector":
        prompt, number = text.split("```")[1].strip(), zlib.crc32(text.encode())
        return f"It lacks a word [made with {number}]\n```\n{prompt} {missing_word(prompt, number)}\n```"
    template = template_of(text)
    if request["model"] == "critic":
        return f"It lacks the word: {missing_word(template, request['seed'])} [made with {request['seed']}]"
    found = re.search(r"It lacks the word: (\w+)", text)
    assert found is not None, text
    return f"<new_template>\n{template} {found[1]}\n</new_template>"


def is_right(prompt: str) -> bool:
    """Each word that helps, and each demonstration, makes a prompt good enough for two tenths more of the tasks."""
    *demonstrations, number = re.findall(r"Answer (\d+)\.", prompt)
    return int(number) % 10 < 2 * sum(word in prompt for word in WORDS) + 2 * len(demonstrations)


def missing_word(prompt: str, number: int) -> str:
    missing = [word for word in WORDS if word not in prompt] or ["nothing"]
    return missing[number % len(missing)]


def mark_in(text: str) -> str:
    """What tells critiques and reflections apart."""
    found = _MARK.search(text)
    assert found is not None, text
    return found[1]


def name_of(asked: Asked) -> tuple[str, str]:
    """What was asked for: the answer to a prompt on an occasion, a critique, the edit by one, or a reflection."""
    if asked.model == "main":
        # Without what the run and the prompt are called, and which try it is.
        occasion = re.sub(r"-again\d+$", "", str(asked.body["user"]).split("-", 3)[3])
        return "main", f"{asked.text} {occasion}"
    return asked.model, mark_in(asked.text if asked.model == "editor" else answer_to(asked.body))
