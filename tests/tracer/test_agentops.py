"""AgentOps' instrumentations record into our traces, and nothing goes to AgentOps.

Each test has a process of its own, since AgentOps can be started once, and ends if it asks for a host elsewhere.
"""

import json
import sys

import pytest

from sharpen.errors import MissingExtraError
from sharpen.tracer import AgentOpsTracer
from tests.errors import raises

from .chat_server import TOOL_CALL, TOOLS
from .scenes import run_script

pytest.importorskip("agentops")

ALONE = """
import os, socket, sys
look_up, connect = socket.getaddrinfo, socket.socket.connect
def only_here(host, *args, **kwargs):
    if host not in ("127.0.0.1", None):
        print("asked for", host, flush=True)
        os._exit(1)
    return look_up(host, *args, **kwargs)
socket.getaddrinfo = only_here
from tests.tracer.chat_server import TOOLS, chat_server, messages
from sharpen.emitter import emit_reward
from sharpen.tracer import AgentOpsTracer, OtelTracer
printing = print

def agent(url):
    import agentops, openai
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    client.chat.completions.create(model="tiny", messages=messages())

    @agentops.operation
    def score(answer):
        emit_reward(1.0)

    score("yes")

def show(tracer):
    for span in tracer.get_last_trace():
        print(span.name, span.parent_id is not None, span.attributes.get("gen_ai.prompt.1.content"))
"""
CALL = "openai.chat.completion False What is the capital of Testland, secretly?"
OPERATION = ["sharpen.reward True None", "score.task False None"]


def test_its_instrumentations_record_into_the_attempt_and_nothing_else_is_started() -> None:
    code = f"""{ALONE}
tracer = AgentOpsTracer()
with chat_server() as url, tracer.lifespan():
    tracer.trace_run(agent, url)
    show(tracer)
assert len({{span.trace_id for span in tracer.get_last_trace()}}) == 1
import builtins, threading
assert print is printing and builtins.__import__.__name__ == "__import__"
assert not [thread for thread in threading.enumerate() if "Otel" in thread.name], threading.enumerate()
assert not os.path.exists("agentops.log")
"""
    assert run_script(code).stdout.splitlines() == [CALL, *OPERATION]


@pytest.mark.slow
def test_a_key_in_the_environment_sends_nothing_either() -> None:
    code = f"""{ALONE}
tracer = AgentOpsTracer()
with chat_server() as url, tracer.lifespan():
    tracer.trace_run(agent, url)
show(tracer)
"""
    done = run_script(code, environment={"AGENTOPS_API_KEY": "11111111-2222-3333-4444-555555555555"})
    assert done.stdout.splitlines() == [CALL, *OPERATION]


@pytest.mark.slow
def test_another_tracer_afterwards_records_each_call_once() -> None:
    code = f"""{ALONE}
with chat_server() as url:
    for tracer in (AgentOpsTracer(), OtelTracer(), AgentOpsTracer()):
        with tracer.lifespan():
            tracer.trace_run(agent, url)
            print([span.name for span in tracer.get_last_trace()][0], len(tracer.get_last_trace()))
"""
    assert run_script(code).stdout.splitlines() == [
        "openai.chat.completion 3",
        "chat tiny 3",
        "openai.chat.completion 3",
    ]


def test_tools_and_tool_calls_are_read_from_what_agentops_records() -> None:
    code = f"""{ALONE}
import json
from sharpen.adapter import TraceToMessages
def use_a_tool(url):
    import openai
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    answer = client.chat.completions.create(model="tiny", messages=messages(), tools=TOOLS)
    call = answer.choices[0].message.tool_calls[0]
    result = {{"role": "tool", "tool_call_id": call.id, "content": "42"}}
    for said in (answer.choices[0].message, answer.choices[0].message.model_dump()):
        client.chat.completions.create(model="tiny", messages=[*messages(), said, result], tools=TOOLS)
tracer = AgentOpsTracer()
with chat_server() as url, tracer.lifespan():
    tracer.trace_run(use_a_tool, url)
print(json.dumps(TraceToMessages().adapt(tracer.get_last_trace())))
"""
    first, *later = json.loads(run_script(code).stdout)
    asking = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
    assert (first["messages"][-1], first["tools"]) == (asking, TOOLS)
    assert len(later) == 2
    for read in later:  # AgentOps records the answer that was given back as a dict, but not the client's own object
        assert read["tools"] == TOOLS
        assert [each["role"] for each in read["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
        assert read["messages"][2] == asking
        assert read["messages"][3] == {"role": "tool", "tool_call_id": TOOL_CALL["id"], "content": "42"}


def test_instrumentations_can_be_left_to_the_user() -> None:
    code = f"""{ALONE}
tracer = AgentOpsTracer(instrument_managed=False)
with chat_server() as url, tracer.lifespan():
    tracer.trace_run(agent, url)
show(tracer)
"""
    assert run_script(code).stdout.splitlines() == OPERATION


@pytest.mark.slow
def test_an_agentops_that_the_user_starts_himself_is_recorded_too() -> None:
    code = f"""{ALONE}
import agentops
def start_and_run(url):
    # What the user's own AgentOps sends is his business: here it goes to a closed port.
    from agentops.sdk import core
    core.tracer.initialize(exporter_endpoint="http://127.0.0.1:1", metrics_endpoint="http://127.0.0.1:1")
    agent(url)

tracer = AgentOpsTracer(agentops_managed=False)
with chat_server() as url, tracer.lifespan():
    assert not agentops.tracer.initialized
    tracer.trace_run(start_and_run, url)
show(tracer)
sys.stdout.flush()
os._exit(0)  # its exporters would try the closed port again at the end
"""
    assert run_script(code).stdout.splitlines() == [CALL, *OPERATION]


def test_without_agentops_the_message_holds_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    for name in [name for name in sys.modules if name.partition(".")[0] == "agentops"]:
        monkeypatch.delitem(sys.modules, name)
    with raises(MissingExtraError, "sharpen[agentops]"):
        AgentOpsTracer()
