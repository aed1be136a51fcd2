"""Programs as agents: what they are given, what comes of what they say, and what is refused."""

import asyncio
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from sharpen import LLM, InMemoryLightningStore, PromptTemplate, ProxyLLM
from sharpen.errors import (
    AgentError,
    AgentExitError,
    AgentResultError,
    ConfigError,
    InvalidInputError,
    TaskError,
)
from sharpen.litagent import CommandAgent, CommandResult, LitAgent
from sharpen.runner import Runner
from sharpen.tracer import DummyTracer, OtelTracer
from sharpen.types import Rollout
from tests.errors import raises

from ..runner.scenes import run_tasks
from .commands import outputs, printed, python, reward, run, run_async, sh

# -- rewards -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo '{\"reward\": 0.5}'", 0.5),
        ("echo reward: 0.25", 0.25),
        ("echo 'Reward = -1e-1'", -0.1),
        ("echo reward: 1; echo reward: 0.75; echo bye", 0.75),
        ("echo reward: 1; printf '{\"reward\": 0}'", 0.0),
        ("echo 'the reward: is high'; echo '{\"reward\" oh}'; echo '[\"reward\"]'", None),
        ("true", None),
        ("echo '{\"reward\": null}'", None),
    ],
)
def test_the_reward_is_in_the_last_line_that_has_one(script: str, expected: float | None) -> None:
    assert reward(sh(script)) == expected


def test_a_reward_may_have_several_dimensions() -> None:
    said = json.dumps({"reward": {"short": 0.2, "right": 1}, "primary_key": "right"})
    done, spans = run(sh(f"echo '{said}'"))
    assert done.reward == 1.0
    assert spans[-1].attributes["sharpen.reward.1.name"] == "short"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("reward: high", ("high",)),
        ("reward: 1 point", ("1 point",)),
        ("reward: nan", ()),
        ('{"reward": "0.5"}', (0.5,)),
        ('{"reward": true}', ()),
        ('{"reward": {"a": 1, "b": 2}}', ("primary_key",)),
    ],
)
def test_a_reward_that_is_none_fails_the_attempt_with_words(line: str, named: tuple[object, ...]) -> None:
    with raises(AgentResultError, *named):
        run(sh(f"echo '{line}'"))


def test_the_exit_code_may_be_the_reward() -> None:
    assert reward(sh("exit 0", reward="exit-code")) == 1.0
    assert reward(sh("exit 3", reward="exit-code")) == 0.0
    with raises(AgentExitError, 127):
        run(sh("no-such-thing-at-all", reward="exit-code"))
    with raises(AgentExitError, 6):
        run(sh("kill -ABRT $$", reward="exit-code"))


def right(result: CommandResult) -> float:
    return float(result.stdout.strip() == result.task["answer"])


async def as_said(result: CommandResult) -> float:
    return result.exit_code / 10


def test_a_function_may_give_the_reward() -> None:
    assert reward(sh("echo 7", reward=right), {"answer": "7"}) == 1.0
    assert reward(sh("exit 3", reward=as_said, exit_codes=[0, 3])) == 0.3
    with raises(AgentResultError, "much"):
        run(sh("true", reward=lambda result: "much"))


def test_with_calls_the_output_is_not_looked_at() -> None:
    assert reward(sh("echo reward: 1", reward="call")) is None


# -- ends --------------------------------------------------------------------------------------------


def test_an_exit_code_fails_the_attempt_with_the_last_words_of_the_program() -> None:
    with pytest.raises(AgentExitError) as error:
        run(sh("for n in $(seq 100); do echo line $n >&2; done; echo reward: 1; exit 3"))
    assert str(error.value).startswith("the program ended with exit code 3: line 100\n")
    assert "line 100" in str(error.value)
    assert "line 50\n" not in str(error.value)
    with raises(AgentExitError, 9):
        run(sh("kill -9 $$"))


def test_a_program_that_cannot_be_run_is_refused_before_a_rollout_is_spent(tmp_path: Path) -> None:
    plain = tmp_path / "agent.sh"
    plain.write_text("true")
    wrong = [
        (CommandAgent(["no-such-thing"]), "no-such-thing"),
        (CommandAgent(["./nothing.sh"], cwd=tmp_path), "nothing.sh"),
        (CommandAgent(["./agent.sh"], cwd=tmp_path), "agent.sh"),
        (CommandAgent(["sh"], cwd=tmp_path / "gone"), "cwd"),
    ]
    for agent, named in wrong:
        with raises(ConfigError, named):
            Runner[Any](tracer=DummyTracer()).run_context(agent=agent, store=InMemoryLightningStore()).__enter__()
    plain.chmod(0o755)
    plain.write_bytes(b"\x7fELF but not really")
    with pytest.raises(AgentError):
        run(CommandAgent(["./agent.sh"], cwd=tmp_path))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"command": "python agent.py"}, ("command",)),
        ({"command": []}, ("command",)),
        ({"command": ["python", 3]}, ("command[1]", 3)),
        ({"command": ["a\0b"]}, ("command",)),
        ({"reward": "stdout"}, ("output", "call", "exit-code")),
        ({"stdin": "yes"}, ("task",)),
        ({"env": {"SHARPEN_TASK": "mine"}}, ("env",)),
        ({"env": {"LEVEL": 3}}, ("LEVEL",)),
        ({"env": {"A=B": "c"}}, ("=",)),
        ({"env": ["A=B"]}, ("env",)),
        ({"inherit_env": "PATH"}, ("inherit_env",)),
        ({"inherit_env": 5}, ("inherit_env",)),
        ({"timeout_seconds": -1}, ("timeout_seconds", -1)),
        ({"timeout_seconds": 0}, ("timeout_seconds", 0)),
        ({"grace_seconds": float("nan")}, ("grace_seconds", "nan")),
        ({"exit_codes": []}, ("exit_codes",)),
        ({"exit_codes": [300]}, (0, 255)),
        ({"max_output_bytes": 10}, (1024,)),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        CommandAgent(**{"command": ["true"], **options})


# -- what it is given --------------------------------------------------------------------------------


def test_a_program_finds_its_rollout_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARPEN_TOKEN", "of-the-store")
    monkeypatch.setenv("COLOUR", "blue")
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    prompts = {"first-one": PromptTemplate("Say {word}.\n"), "second": PromptTemplate("ü" * 60_000)}
    done, spans = run(python(script, env={"SIZE": "large"}), {"word": "grüß"}, prompts)
    found = json.loads(outputs(spans)[0].attributes["sharpen.message.body"])
    assert json.loads(found["SHARPEN_TASK"]) == {"word": "grüß"}
    assert found["SHARPEN_ROLLOUT_ID"] == done.rollout_id
    assert found["SHARPEN_ATTEMPT_ID"] == spans[0].attempt_id
    assert found["SHARPEN_MODE"] == "train"
    assert found["SHARPEN_PROMPT"] == found["SHARPEN_PROMPT_FIRST_ONE"] == "Say {word}.\n"
    assert "SHARPEN_PROMPT_SECOND" not in found  # too long
    assert (found["COLOUR"], found["SIZE"]) == ("blue", "large")
    assert "SHARPEN_TOKEN" not in found
    assert not Path(found["SHARPEN_TASK_FILE"]).parent.exists()
    assert found["TRACEPARENT"] == f"00-{spans[0].trace_id}-{spans[0].parent_id}-01"


def test_the_environment_may_be_a_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLOUR", "blue")
    monkeypatch.setenv("SHAPE", "round")
    script = "echo $COLOUR/$SHAPE/${PATH:+path}"
    assert printed(sh(script)) == "blue/round/path\n"
    assert printed(sh(script, inherit_env=False)) == "//path\n"
    assert printed(sh(script, inherit_env=["SHAPE"])) == "/round/path\n"


def test_a_large_task_is_in_a_file_and_on_standard_input() -> None:
    task = "ä" * 500_000
    script = (
        "import json, os, sys; t = json.load(open(os.environ['SHARPEN_TASK_FILE'], encoding='utf-8'));"
        "print('SHARPEN_TASK' in os.environ, len(t), json.loads(sys.stdin.buffer.read()) == t)"
    )
    assert printed(python(script, stdin="task"), task) == "False 500000 True\n"
    assert printed(sh("wc -c"), task).strip() == "0"


def test_a_task_that_is_no_json_is_refused_with_words() -> None:
    with pytest.raises(TaskError):
        run_directly(sh("true"), object())


def test_an_environment_that_is_too_large_for_the_system_is_told() -> None:
    with raises(AgentError, "inherit_env=False"):
        run(sh("true", env={"LONG": "x" * 3_000_000}))


def run_directly(agent: CommandAgent, task: Any, resources: Any = None) -> Any:
    return asyncio.run(agent.rollout_async(task, resources or {}, Rollout("ro-1", task, 0.0)))


def test_two_prompts_of_one_name_in_the_environment_are_refused() -> None:
    with raises(InvalidInputError, "a-b", "a_b", "SHARPEN_PROMPT_A_B"):
        run_directly(sh("true"), 1, {"a-b": PromptTemplate("x"), "a_b": PromptTemplate("y")})


def test_the_model_is_where_sdks_look_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "mine-too")
    monkeypatch.setenv("http_proxy", "http://10.0.0.1:3128")
    names = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
    script = f"import os; print(*(os.environ.get(name) for name in {(*names, 'SHARPEN_MODEL', 'no_proxy')!r}))"

    def seen(**llm: Any) -> list[str]:
        kind = llm.pop("kind")
        return printed(python(script), 1, {"llm": kind("http://127.0.0.1:1/v1", "small", **llm)}).split()

    gateway, key, anthropic, *others = seen(kind=ProxyLLM)
    assert gateway.startswith("http://127.0.0.1:1/rollout/ro-")
    assert anthropic == gateway.removesuffix("/v1")
    assert [key, *others] == ["none", "none", "None", "small", "127.0.0.1,localhost"]
    assert seen(kind=LLM)[:3] == ["http://127.0.0.1:1/v1", "sk-mine", "None"]
    assert seen(kind=LLM, api_key="env:OPENAI_API_KEY")[1] == "sk-mine"


# -- outputs -----------------------------------------------------------------------------------------


def test_outputs_are_kept_in_the_trace_whatever_their_bytes_are() -> None:
    done, spans = run(sh(r"printf 'a\377\000b\n'; echo oh >&2"))
    assert outputs(spans)[0].attributes["sharpen.message.body"] == "a\ufffd\0b\n"
    assert outputs(spans, "stderr")[0].attributes["sharpen.message.body"] == "oh\n"
    (operation,) = [span for span in spans if span.name == "sharpen.operation"]
    assert operation.attributes["process.exit.code"] == 0
    assert {span.parent_id for span in outputs(spans)} == {operation.span_id}
    assert done.status == "succeeded"


def test_of_a_long_output_the_beginning_and_the_end_are_kept() -> None:
    done, spans = run(sh("seq 20000; echo reward: 1", max_output_bytes=2048))
    (span,) = outputs(spans)
    body, cut = span.attributes["sharpen.message.body"], span.attributes["sharpen.command.cut_bytes"]
    assert body.startswith("1\n2\n3\n")
    assert body.endswith("19999\n20000\nreward: 1\n")
    assert span.attributes["sharpen.command.size_bytes"] == cut + 2048
    assert f"\n[{cut} bytes left out]\n" in body
    assert done.reward == 1.0
    with pytest.raises(AgentResultError):
        run(sh("seq 20000; echo reward: 1; seq 20000", max_output_bytes=2048))


async def test_a_tracer_that_captures_no_content_keeps_only_the_sizes() -> None:
    tracer = OtelTracer(capture_content=False)
    _, spans = await run_async(sh("echo secret words"), tracer=tracer)
    assert outputs(spans)[0].attributes["sharpen.command.size_bytes"] == 13
    assert "secret" not in repr(spans[:1])


# -- the rest ----------------------------------------------------------------------------------------


def test_an_agent_travels_and_tells_nothing_of_its_environment() -> None:
    agent = sh("echo $KEY", env={"KEY": "s3cret"}, reward=right, timeout_seconds=3)
    there: CommandAgent = pickle.loads(pickle.dumps(agent))
    assert printed(there, {"answer": ""}) == "s3cret\n"
    assert (there.command, there.timeout_seconds) == (agent.command, 3.0)
    assert "s3cret" not in repr(agent)
    assert isinstance(agent, LitAgent)


def test_python_is_the_one_of_the_virtual_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    is_virtual = sys.prefix != sys.base_prefix
    assert printed(sh("command -v python")).strip() == (f"{sys.prefix}/bin/python" if is_virtual else "/usr/bin/python")
    assert os.environ["PATH"] == "/usr/bin:/bin"


async def test_programs_run_side_by_side() -> None:
    runner = Runner[Any](tracer=DummyTracer(), concurrency=16)
    done = await run_tasks(sh("echo reward: $SHARPEN_TASK"), list(range(24)), runner=runner)
    assert [rollout.reward for rollout in done] == [float(n) for n in range(24)]
