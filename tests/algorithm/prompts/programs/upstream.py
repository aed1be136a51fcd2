"""The models behind the searches: one that agents ask, a critic and an editor, in the process of the test.

What they answer follows from the request alone. The key that a request comes with says which life of a run has made it.
"""

import re
import threading
from collections.abc import Callable
from typing import Any

from tests.algorithm.apo.scenes import WORDS, quality, template_of
from tests.algorithm.prompts.scripted_openai import Asked, Reply, ScriptedOpenAI, text_of

DELAY_SECONDS = 0.02  # so that a kill finds calls under way
HOLD_SECONDS = 60.0
_MARK = re.compile(r"\[made with (\d+)\]")


class Upstream(ScriptedOpenAI):
    def __init__(self) -> None:
        super().__init__(self._say)
        self._is_awaited: Callable[[dict[str, Any]], bool] = lambda request: False
        self.is_holding, self._is_free = threading.Event(), threading.Event()

    def hold(self, is_awaited: Callable[[dict[str, Any]], bool]) -> None:
        """The next request of this kind is not answered before `let_go`."""
        self.is_holding.clear()
        self._is_free.clear()
        self._is_awaited = is_awaited

    def let_go(self) -> None:
        self._is_awaited = lambda request: False
        self._is_free.set()

    def of_life(self, life: str) -> list[Asked]:
        return [each for each in list(self.requests) if each.key == life]

    def _say(self, request: dict[str, Any]) -> Reply:
        if self._is_awaited(request):
            self.is_holding.set()
            self._is_free.wait(HOLD_SECONDS)
        return Reply(answer_to(request), delay_seconds=DELAY_SECONDS)


def answer_to(request: dict[str, Any]) -> str:
    text = text_of(request)
    if request["model"] == "main":
        number = int(text.split()[1].rstrip("."))
        return "right" if quality(text, number) else "wrong"
    template = template_of(text)
    if request["model"] == "critic":
        missing = [word for word in WORDS if word not in template] or ["nothing"]
        return f"It lacks the word: {missing[request['seed'] % len(missing)]} [made with {request['seed']}]"
    found = re.search(r"It lacks the word: (\w+)", text)
    assert found is not None, text
    return f"<new_template>\n{template} {found[1]}\n</new_template>"


def mark_in(text: str) -> str:
    """What tells critiques apart: the seed that the critic was asked with."""
    found = _MARK.search(text)
    assert found is not None, text
    return found[1]


def name_of(asked: Asked) -> tuple[str, str]:
    """What was asked for: the answer for a rollout, a critique, or the edit by a critique."""
    if asked.model == "main":
        return "main", str(asked.body["user"])
    return asked.model, str(asked.body["seed"]) if asked.model == "critic" else mark_in(asked.text)
