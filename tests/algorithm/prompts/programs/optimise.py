"""Searches for a prompt with the default strategy: `python optimise.py OPTIONS`, in JSON.

`folder` is a path; a run that is in it is gone on with. `upstream` is the address of all models and `key` what they are
asked with. `algorithm` names one, `settings` and `trainer` are arguments of it and of the trainer. `die_at` is a
pattern of an event and its arguments, such as `os.rename .*algorithm.json`, and how many of these it takes until all
processes are killed.
"""

import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sharpen import APO, GEPA, FewShot, PromptTemplate, Trainer
from sharpen.algorithm import Algorithm
from sharpen.llm_proxy import LLMProxy
from tests.algorithm.prompts.programs import agents

MODELS = ("main", "critic", "editor", "reflector")
TRAIN = [{"number": number} for number in range(100, 112)]
VAL = [{"number": number} for number in range(20)]
# A run that goes on waits so long for the runners of the life before, which may be elsewhere and alive.
RULE = {"unresponsive_seconds": 2, "max_attempts": 9, "retry_condition": ["unresponsive"]}
WORK = {"n_runners": 2, "runner": {"type": "Runner", "concurrency": 3}, "rollout_config": RULE}


def apo(**settings: Any) -> APO:
    given = {"beam_width": 2, "branch_factor": 2, "beam_rounds": 2, "gradient_batch_size": 3, "seed": 7}
    return APO(gradient_model="critic", apply_edit_model="editor", **{**given, **settings})


def gepa(**settings: Any) -> GEPA:
    return GEPA(reflection_model="reflector", **{"max_metric_calls": 110, "seed": 7, **settings})


def few_shot(**settings: Any) -> FewShot:
    return FewShot(**{"candidates": 6, "max_demos": 3, "seed": 7, **settings})


# With what a prompt begins: demonstrations need some successes.
ALGORITHMS: dict[str, tuple[Callable[..., Algorithm[Any]], str]] = {
    "APO": (apo, "Answer {question}."),
    "GEPA": (gepa, "Answer {question}."),
    "FewShot": (few_shot, "Answer {question}. briefly"),
}


def die_at(pattern: str, count: int) -> None:
    wanted, seen = re.compile(pattern), itertools.count(1)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        is_wanted = event in ("open", "os.rename") and wanted.match(f"{event} {' '.join(map(str, arguments))}")
        if is_wanted and next(seen) == count:
            os.killpg(0, signal.SIGKILL)

    sys.addaudithook(hook)


def main(options: dict[str, Any]) -> None:
    if "die_at" in options:
        die_at(*options["die_at"])
    folder = Path(options["folder"])
    make, seed = ALGORITHMS[options.get("algorithm", "APO")]
    upstream = {"base_url": options["upstream"], "api_key": options["key"], "engine": "none"}
    trainer = Trainer(
        algorithm=make(**options.get("settings", {})),
        initial_resources={"prompt": PromptTemplate(seed)},
        llm_proxy=LLMProxy(model_list=[{"name": name, "model": name, **upstream} for name in MODELS]),
        run_dir=folder,
        **{**WORK, **options.get("trainer", {})},
    )
    trainer.fit(agents.answer, TRAIN, VAL, resume=folder if folder.exists() else None)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
