"""The program `python -m sharpen.llm.server`."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai import OpenAI

from ..tiny_models import write_tiny_model

PROGRAM = [sys.executable, "-m", "sharpen.llm.server"]


@contextmanager
def program(*arguments: str, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    with subprocess.Popen(
        [*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_model_folder_is_served_until_a_signal_ends_it(tmp_path: Path, sign: signal.Signals) -> None:
    folder = write_tiny_model(tmp_path / "model")
    arguments = [str(folder), "--port", "0", "--name", "tiny", "--token", "env:MY_TOKEN", "--max-response-tokens", "3"]
    with program(*arguments, MY_TOKEN="sk-mine") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("tiny is served at http://127.0.0.1:"), process.communicate()[1]
        with OpenAI(base_url=line.split()[4], api_key="sk-mine", max_retries=0) as client:
            answer = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= 3
        process.send_signal(sign)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, "Traceback" in errors) == (0, False)


def test_what_cannot_be_served_is_said_in_words_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with program("model", "--port", str(port)) as process:
            _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.count("\n")) == (1, 1)
    assert f"port {port} on 127.0.0.1 is taken" in errors
    with program("model", "--token", "env:NO_SUCH_TOKEN", "--port", "0") as process:
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, "there is no such variable" in errors) == (1, True)
