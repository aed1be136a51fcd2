"""Programs in several languages behind a real gateway: they read their task, ask the model, and give their reward."""

import asyncio
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from sharpen import InMemoryLightningStore, LLMProxy, PromptTemplate, Span
from sharpen.litagent import CommandAgent
from sharpen.runner import Runner
from sharpen.semconv import SHARPEN_LLM_CALL
from sharpen.tracer import DummyTracer
from sharpen.types import Rollout

from ..llm_proxy.replies import Reply
from ..llm_proxy.scripted import ScriptedUpstream
from .commands import reward

SH = r"""
body="{\"model\": \"$SHARPEN_MODEL\", \"messages\": [{\"role\": \"user\", \"content\": \"$SHARPEN_PROMPT\"}]}"
answer=$(curl -sf "$OPENAI_BASE_URL/chat/completions" -H "authorization: Bearer $OPENAI_API_KEY" \
    -H "content-type: application/json" -d "$body")
case "$answer" in *Paris*) r=1;; *) r=0;; esac
curl -sf -d "{\"reward\": $r}" "$SHARPEN_REWARD_URL"
"""

PYTHON = r"""
import json, os, urllib.request
env = os.environ
def post(url, body, **headers):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **headers})
    return urllib.request.urlopen(request).read()
talk = {"model": env["SHARPEN_MODEL"], "messages": [{"role": "user", "content": env["SHARPEN_PROMPT"]}]}
answer = post(env["OPENAI_BASE_URL"] + "/chat/completions", talk, authorization="Bearer " + env["OPENAI_API_KEY"])
said = json.loads(answer)["choices"][0]["message"]["content"]
post(env["SHARPEN_REWARD_URL"], {"reward": float("Paris" in said)})
"""

PERL = r"""
use strict; use HTTP::Tiny; use JSON::PP;
my $http = HTTP::Tiny->new(default_headers => {"authorization" => "Bearer $ENV{OPENAI_API_KEY}"});
my $talk = {model => $ENV{SHARPEN_MODEL}, messages => [{role => "user", content => $ENV{SHARPEN_PROMPT}}]};
my $asked = {headers => {"content-type" => "application/json"}, content => encode_json($talk)};
my $said = decode_json($http->post("$ENV{OPENAI_BASE_URL}/chat/completions", $asked)->{content});
my $reward = $said->{choices}[0]{message}{content} =~ /Paris/ ? 1 : 0;
$http->post($ENV{SHARPEN_REWARD_URL}, {content => encode_json({reward => $reward})})->{success} or die;
"""

NODE = r"""
const http = require("http"), env = process.env;
function post(url, body, headers, then) {
  const options = {method: "POST", headers: {"content-type": "application/json", ...headers}};
  const asked = http.request(url, options, (answer) => {
    let text = ""; answer.on("data", (piece) => text += piece); answer.on("end", () => then(text));
  });
  asked.end(JSON.stringify(body));
}
const talk = {model: env.SHARPEN_MODEL, messages: [{role: "user", content: env.SHARPEN_PROMPT}]};
post(env.OPENAI_BASE_URL + "/chat/completions", talk, {authorization: "Bearer " + env.OPENAI_API_KEY}, (text) => {
  const right = JSON.parse(text).choices[0].message.content.includes("Paris");
  post(env.SHARPEN_REWARD_URL, {reward: right ? 1 : 0}, {}, () => {});
});
"""

TCL = r"""
package require http
set question "{\"role\": \"user\", \"content\": \"$env(SHARPEN_PROMPT)\"}"
set talk "{\"model\": \"$env(SHARPEN_MODEL)\", \"messages\": \[$question\]}"
set said [http::data [http::geturl $env(OPENAI_BASE_URL)/chat/completions -type application/json \
    -headers [list authorization "Bearer $env(OPENAI_API_KEY)"] -query $talk]]
set reward [expr {[string first Paris $said] >= 0}]
http::geturl $env(SHARPEN_REWARD_URL) -type application/json -query "{\"reward\": $reward}"
"""

ALL = {
    "sh": ["sh", "-c", SH],
    "python": [sys.executable, "-I", "-c", PYTHON],
    "perl": ["perl", "-e", PERL],
    "node": ["node", "-e", NODE],
    "tclsh": ["sh", "-c", "printf '%s' \"$0\" | tclsh", TCL],
}
"""By the program that they need; those that this machine has are run."""
HERE = [name for name in ALL if name == "python" or shutil.which(name)]


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream(default_reply=Reply("It is Paris.")) as server:
        yield server


async def behind_gateway(
    upstream: ScriptedUpstream, agent: CommandAgent, *, tasks: list[Any], **runner: Any
) -> list[tuple[Rollout, list[Span]]]:
    """The rollouts and the calls that the gateway has recorded for each."""
    store = InMemoryLightningStore()
    entry = {"model_name": "scripted", "model": "scripted", "base_url": upstream.base_url, "api_key": "sk-upstream"}
    proxy = LLMProxy(model_list=[entry], store=store, launch_mode="thread", token="of-the-gateway")
    await proxy.start()
    try:
        prompt = PromptTemplate("What is the capital of France?")
        resources = {"llm": proxy.as_resource(), "prompt": prompt}
        work: Runner[Any] = Runner(tracer=DummyTracer(), **runner)
        with work.run_context(agent=agent, store=store):
            done = await asyncio.gather(*(work.step(task, resources=resources) for task in tasks))
    finally:
        await proxy.stop()
    return [(each, list(await store.query_spans(each.rollout_id, name=SHARPEN_LLM_CALL))) for each in done]


@pytest.mark.slow
@pytest.mark.parametrize("language", HERE)
async def test_a_program_asks_the_model_and_gives_its_reward(language: str, upstream: ScriptedUpstream) -> None:
    ((done, calls),) = await behind_gateway(upstream, CommandAgent(ALL[language], reward="call"), tasks=[1])
    assert done.reward == 1.0
    assert len(calls) == 1
    assert calls[0].rollout_id == done.rollout_id
    assert upstream.requests[-1].json["messages"][0]["content"] == "What is the capital of France?"


async def test_calls_of_programs_side_by_side_go_to_their_own_rollouts(upstream: ScriptedUpstream) -> None:
    found = await behind_gateway(upstream, CommandAgent(["sh", "-c", SH]), tasks=[1, 2, 3])
    assert [(done.reward, len(calls)) for done, calls in found] == [(1.0, 1)] * 3
    assert {calls[0].rollout_id for _, calls in found} == {done.rollout_id for done, _ in found}


def test_awk_gives_a_reward() -> None:
    script = 'BEGIN { if (ENVIRON["SHARPEN_TASK"] + 1 == 8) print "{\\"reward\\": 0.5}" }'
    assert reward(CommandAgent(["awk", script]), 7) == 0.5


OPENAI = """
import os
from openai import OpenAI
talk = [{"role": "user", "content": "where?"}]
said = OpenAI().chat.completions.create(model=os.environ["SHARPEN_MODEL"], messages=talk)
print("reward:", float("Paris" in said.choices[0].message.content))
"""
ANTHROPIC = """
import os
from anthropic import Anthropic
talk = [{"role": "user", "content": "where?"}]
said = Anthropic().messages.create(model=os.environ["SHARPEN_MODEL"], messages=talk, max_tokens=9)
print("reward:", float("Paris" in said.content[0].text))
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
async def test_an_sdk_finds_the_gateway_without_being_told(script: str, upstream: ScriptedUpstream) -> None:
    ((done, calls),) = await behind_gateway(upstream, CommandAgent([sys.executable, "-c", script]), tasks=[1])
    assert (done.reward, len(calls)) == (1.0, 1)
