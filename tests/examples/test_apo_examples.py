"""Prompts that improve themselves, as the examples show it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from stand_in_model import StandInModel, say_date

from tests.algorithm.prompts.scripted_openai import ScriptedOpenAI, text_of
from tests.errors import raises

from .programs import EXAMPLES, run_program, the_run

BEST = ("Answer with the date only.", "Write dates as YYYY-MM-DD.", "the day comes first", "{text}")


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "SHARPEN_SPOOL": str(folder / "spool"), **more}


def test_the_stand_in_does_no_more_than_its_prompt_says() -> None:
    text = "Text: due on 4/7/2024"
    assert say_date(text) == "Sure! The date is 7 April 2024."
    assert say_date(f"Give only the date. {text}") == "7 April 2024"
    assert say_date(f"Give only the date, YYYY-MM-DD; the day comes first. {text}") == "2024-07-04"
    assert say_date("Text: the 4th of July 2024") == "Sure! The date is 4 July 2024."


def test_the_stand_in_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "stand_in_model.py")]
    with subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        url = serving.stdout.readline().strip()
        body = json.dumps({"model": "nobody", "messages": []}).encode()
        with raises(urllib.error.HTTPError, 404):
            urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", body))
        serving.send_signal(signal.SIGINT)
        assert serving.wait(20) == 0


@pytest.mark.slow
def test_a_prompt_improves_itself_offline(tmp_path: Path) -> None:
    done = run_program("apo_offline", tmp_path)
    assert "mean reward on validation tasks: 0.00 before, 1.00 after" in done.stdout
    best = (the_run(tmp_path) / "prompts" / "best_prompt.txt").read_text("utf-8")
    assert all(words in best for words in BEST)
    assert done.stdout.endswith(f"the best prompt:\n{best}\n")


@pytest.mark.slow
def test_algorithm_and_runner_are_two_commands(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])

    def start(role: str) -> "subprocess.Popen[str]":
        command = [sys.executable, str(EXAMPLES / "apo_custom_algorithm.py"), role, "--port", port]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), text=True, **pipes)

    with start("algorithm") as algorithm, start("runner") as runner:
        try:
            out, errors = algorithm.communicate(timeout=90)
        finally:
            runner.kill()
    rounds = re.findall(r"round (\d): mean reward (\S+)", out)
    assert rounds == [("0", "0.00"), ("1", "0.00"), ("2", "0.50"), ("3", "1.00")], errors


@pytest.mark.slow
def test_the_same_algorithm_runs_through_the_trainer(tmp_path: Path) -> None:
    out = run_program("apo_custom_algorithm_trainer", tmp_path).stdout
    best = out.partition("the best prompt:\n")[2]
    assert all(words in best for words in BEST)
    assert "round 3: mean reward 1.00" in out


def sort_ticket(request: dict[str, Any]) -> str:
    """Stands for three models: a worker that needs to be told the words to use, a critic, an editor."""
    text = text_of(request)
    if request["model"] == "gpt-5-mini":
        return "It does not say which words the fields may hold."
    if request["model"] == "gpt-4.1-mini":
        template = re.search(r"<template>\n(.*?)\n</template>", text, re.DOTALL)
        assert template is not None
        return f"<new_template>\n{template[1]} Teams: billing, technical, sales.\n</new_template>"
    ticket = text.lower()
    team = "billing" if re.search(r"charge|invoice|card|receipt|4,000", ticket) else "technical"
    team = "sales" if re.search(r"seats|discount|plan|sell", ticket) else team
    return json.dumps({"team": team if "Teams:" in text else team.upper(), "urgency": "normal"})


@pytest.mark.slow
def test_the_example_for_real_models_asks_them_through_the_gateway(tmp_path: Path) -> None:
    with ScriptedOpenAI(sort_ticket, models=("gpt-4.1-nano", "gpt-5-mini", "gpt-4.1-mini")) as server:
        access = {"OPENAI_API_KEY": "sk-not-real", "OPENAI_BASE_URL": server.base_url}
        done = run_program("apo_real_api", tmp_path, "--rounds", "1", **access)
        assert server.count(model="gpt-5-mini") == 4
    assert "Teams: billing, technical, sales." in done.stdout
    assert re.search(r"LLM calls: \d+; tokens: .* \$0\.\d+", done.stderr)
    assert "sk-not-real" not in done.stdout + done.stderr


def test_the_example_for_real_models_says_that_it_needs_a_key(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "apo_real_api.py")]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "OPENAI_API_KEY is not set" in done.stderr


def test_the_stand_in_refuses_models_that_it_does_not_play() -> None:
    with StandInModel() as model:
        body = json.dumps({"model": "worker", "messages": [{"role": "user", "content": "Text: 1/2/2003"}]}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{model.base_url}/chat/completions", body)) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"] == "Sure! The date is 2 January 2003."
