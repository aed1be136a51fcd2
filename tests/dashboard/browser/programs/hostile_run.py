"""A run in which everything that an agent, a user or a model can write is hostile.

`make(FOLDER)` writes it: texts that would run scripts, fetch pictures, restyle or leave the page, hide or turn
themselves around, or fill the screen, in every place that a page shows. A script that ran would set `window.ran`, and
everything that is fetched has `evil` in its path.
"""

import json
from pathlib import Path
from typing import Any

from sharpen.runs import RunFolder
from sharpen.store import SQLiteStore
from sharpen.types import PromptTemplate, RolloutConfig, Span, TraceStatus
from tests.algorithm.internals import FOLDER, Candidate, CandidateBook, write_records

START = 1_794_700_000.0
MARK = "<script>window.ran=1</script>"
EVIL = (
    f"{MARK}<img src=/evil.png onerror=window.ran=2><svg onload=window.ran=3><style>body{{display:none}}</style>"
    "<b style='position:fixed;inset:0;background:url(/evil.css)'>x</b><a href=javascript:window.ran=4>go</a>"
    "\"'><iframe srcdoc='<script>parent.ran=5</script>'></iframe> {{7*7}} ${7*7} </pre></textarea></title>"
    "\x1b[31mred\x1b]8;;javascript:window.ran=6\x07 \u202eright to left\u202c \u2066iso\u2069 \x00\x08 zero\u200bwidth"
)
# Where a name is short, or may not hold a slash.
NAME = "<img src=x onerror=window.ran=7>\u202eevil"
# Ids have no spaces and no slash.
ID = '<script>window.ran=8<"onfocus="window.ran=9"autofocus="\'{{7*7}}'
HUGE = EVIL + "long " * 200_000
PROTOTYPE = {"__proto__": 1.0, "constructor": 2.0, "toString": 3.0}
ROLLOUT = f"ro{ID}"


def make(folder: Path) -> Path:
    """The folder of the run; its store is filled by `fill`."""
    run = RunFolder.create(run_dir=folder / NAME)
    run.write_config(
        {
            "started": EVIL,
            "agent": {"name": EVIL},
            "components": {"algorithm": {"class": f"x.{NAME}", "options": {NAME: EVIL}}, NAME: {"class": EVIL}},
            "settings": {NAME: EVIL},
            "datasets": {NAME: {"size": EVIL}},
        }
    )
    for step in range(1, 4):
        run.append_metrics(
            {"step": step, "time": START + step, "val/reward_mean": 0.1 * step, NAME: 1.0, EVIL: 2.0} | PROTOTYPE
        )
    _write_log(run.log_path)
    _write_episodes(run.path / "episodes.jsonl")
    write_records(run.path / FOLDER, _book())
    run.write_result({"status": "failed", "metrics": {}, "seconds": 9.0, "error": f"Traceback:\n{EVIL}\n{EVIL}"})
    run.release()
    return run.path


def _write_log(path: Path) -> None:
    said = EVIL.replace("\x00", "")
    path.write_text(
        f"2026-11-15 22:00:00.000 INFO    trainer: {said}\n"
        f"2026-11-15 22:00:01.000 WARNING [{NAME.replace(']', '')}] runner: {said}\n"
        f"2026-11-15 22:00:02.000 ERROR   trainer.run: it failed\nTraceback\n{said}\n{said}\n"
    )


def _write_episodes(path: Path) -> None:
    lines = [
        {
            "iteration": number,
            "stage": NAME,
            "episode": EVIL,
            "reward": float(number),
            "length": 3,
            "metrics": {NAME: EVIL},
        }
        for number in range(3)
    ]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines))


def _book() -> CandidateBook:
    book = CandidateBook()
    book.add(Candidate("v0", {NAME: PromptTemplate(EVIL.replace("{", "").replace("}", ""))}))
    text = (EVIL + "\nmore").replace("{", "").replace("}", "")
    book.add(Candidate("v1", {NAME: PromptTemplate(text)}, ["v0"], round=1, critique=EVIL, reason=EVIL))
    return book


async def fill(path: Path) -> None:
    """Rollouts: a finished one with a hostile trace, two of a group, one that waits."""
    store = SQLiteStore(path / "store.db")
    template = EVIL.replace("{", "").replace("}", "")
    await store.add_resources({NAME: PromptTemplate(template)}, f"rs{ID}")
    await store.update_resources(f"rs{ID}", {NAME: PromptTemplate(template + " anew"), EVIL: PromptTemplate("x")})
    for number in range(2):
        await _finish(store, f"{ROLLOUT}-{number}" if number else ROLLOUT)
    await store.enqueue_rollout({NAME: HUGE}, rollout_id=f"waiting{ID}", metadata={"group": EVIL})
    await store.update_worker(ID, {NAME: EVIL, "size": 3})
    await store.close()


async def _finish(store: SQLiteStore, rollout_id: str) -> None:
    started = await store.start_rollout(
        {"question": EVIL, NAME: HUGE},
        mode="train",
        resources_id=f"rs{ID}",
        rollout_id=rollout_id,
        worker_id=ID,
        metadata={"group": EVIL, NAME: EVIL, "retry_of": EVIL},
        config=RolloutConfig(max_attempts=1),
    )
    attempt = started.attempt.attempt_id
    spans = [
        _span(rollout_id, attempt, number, name, attributes, error)
        for number, (name, attributes, error) in enumerate(_trace())
    ]
    await store.complete_attempt(
        rollout_id, attempt, spans=spans, status="failed", reward=0.5, metadata={"error": f"{EVIL}\n{EVIL}"}
    )


def _trace() -> list[tuple[str, dict[str, Any], str | None]]:
    call = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": EVIL,
        "gen_ai.agent.name": EVIL,
        "gen_ai.input.messages": json.dumps([_message(role, EVIL) for role in ("system", "user", NAME)]),
        "gen_ai.output.messages": json.dumps([_message("assistant", HUGE, tool=NAME)]),
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 3,
        "sharpen.llm.response_token_ids": [1, 2, 3],
        "sharpen.llm.response_logprobs": [-0.1, -2.0, -9.0],
        "sharpen.llm.weights_version": NAME,
    }
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": EVIL, "gen_ai.tool.call.result": HUGE}
    reward = {"sharpen.reward.0.name": NAME, "sharpen.reward.0.value": 0.5}
    return [
        ("sharpen.llm_call", call, None),
        (EVIL, {NAME: EVIL, EVIL: HUGE, "list": [EVIL, EVIL]}, None),
        (NAME, tool, EVIL),
        ("sharpen.reward", reward, None),
        ("sharpen.exception", {"exception.type": NAME, "exception.message": EVIL, "exception.stacktrace": HUGE}, EVIL),
    ]


def _message(role: str, text: str, *, tool: str | None = None) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "text", "content": text}]
    if tool:
        parts.append({"type": "tool_call", "id": EVIL, "name": tool, "arguments": {NAME: EVIL}})
    return {"role": role, "parts": parts}


def _span(rollout: str, attempt: str, number: int, name: str, attributes: dict[str, Any], error: str | None) -> Span:
    return Span.from_attributes(
        attributes=attributes,
        rollout_id=rollout,
        attempt_id=attempt,
        sequence_id=number + 1,
        name=name,
        span_id=f"span-{number}",
        parent_id="span-0" if number == 2 else None,
        trace_id="1" * 32,
        start_time=START + number,
        end_time=START + number + 1,
        status=TraceStatus("ERROR", error) if error else None,
    )
