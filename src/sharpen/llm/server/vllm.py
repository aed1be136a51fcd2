"""`VLLMServer`: vLLM in a separate process, instead of our engine.

It takes new weights as an adapter while it runs, or as a folder, for which it restarts. Every adapter gets a new name,
so prompts that were computed with older weights are not reused, and an unfinished answer keeps its weights.
"""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from ...errors import ConfigError, MissingExtraError, RunError
from ...http.proxies import is_loopback
from ...web.serving import address, listen
from ..errors import ModelError

START_SECONDS = 900.0  # weights are read, and graphs recorded
STOP_SECONDS = 20.0
CALL_SECONDS = 300.0
_LOOK_SECONDS = 0.1
_SHOWN_BYTES = 4000
# Else it samples by settings of the model folder, and its log-probabilities are not of the distribution it drew from.
_OPTIONS: dict[str, Any] = {"generation-config": "vllm", "logprobs-mode": "processed_logprobs"}

Option = str | int | float | bool


class VLLMServer:
    """Serves the model of a folder. `model_entry` is its entry in the gateway's model list, which new weights change.

    With `lora_rank` it takes adapters of up to that rank. `options` are more options of `vllm serve` by their names
    (`{"max-model-len": 4096, "enforce-eager": True}`). `command` runs another program instead of `vllm serve`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        name: str,
        host: str = "127.0.0.1",
        port: int | None = None,
        token: str | None = None,
        lora_rank: int | None = None,
        weights_version: int = 0,
        options: Mapping[str, Option] | None = None,
        command: Sequence[str] | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        if token is None and not is_loopback(host):
            raise ConfigError(
                f"host is {host!r}, where other machines can reach it: pass a token, or use host='127.0.0.1'"
            )
        self.name, self.weights_version = name, weights_version
        self._model, self._host, self._wanted_port, self._token = os.fspath(model), host, port, token
        self._lora_rank, self._options = lora_rank, _OPTIONS | dict(options or {})
        self._command, self._start_seconds = list(command or _vllm_serve()), start_seconds
        self._adapters: list[str] = []
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this object is there

    @property
    def base_url(self) -> str:
        if self._process is None:
            raise RunError("vLLM is not started, so it has no address: call start(), or use it in a with block")
        return f"{address(self._host, self._port)}/v1"

    @property
    def is_serving(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def served_name(self) -> str:
        """The name that vLLM itself has for the current weights."""
        return self._adapters[-1] if self._adapters else self.name

    def model_entry(self) -> dict[str, Any]:
        """An entry of the gateway's model list, for the current weights."""
        found = {"name": self.name, "model": self.served_name, "base_url": self.base_url, "engine": "vllm"}
        key = {} if self._token is None else {"api_key": self._token}
        return found | key | {"weights_version": str(self.weights_version)}

    def start(self) -> Self:
        """Returns when it answers, which takes minutes for large models."""
        if self.is_serving:
            return self
        with listen(self._host, self._wanted_port or 0) as bound:
            self._port = int(bound.getsockname()[1])
        self._output.truncate(0)
        self._process = subprocess.Popen(
            [*self._command, *self._arguments()],
            env=os.environ | self._variables(),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the parent only, which stops it with all its workers
        )
        atexit.register(self.stop)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End it, with all its workers. It may be called twice."""
        process, self._process = self._process, None
        atexit.unregister(self.stop)
        self._adapters = []
        if process is None:
            return
        for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, None)):
            _kill(process.pid, number)
            try:
                process.wait(seconds)
                break
            except subprocess.TimeoutExpired:
                continue
        _kill(process.pid, signal.SIGKILL)  # workers that it has left behind

    def load_adapter(self, folder: str | os.PathLike[str], version: int) -> None:
        """Sample with this adapter from now on. The one before stays until the next, for calls that still name it."""
        if self._lora_rank is None:
            raise ConfigError(
                "vLLM was created without lora_rank, so it cannot load adapters: pass their rank as lora_rank"
            )
        path, name = Path(folder).absolute(), f"{self.name}-v{version}"
        if not (path / "adapter_config.json").is_file():
            raise ModelError(f"{str(path)!r} is not the folder of an adapter: it has no adapter_config.json")
        if name in self._adapters:
            raise ConfigError(f"version {version} is already loaded: new weights need a new version")
        self._post("/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})
        self._adapters.append(name)
        self.weights_version = version
        while len(self._adapters) > 2:
            self._post("/unload_lora_adapter", {"lora_name": self._adapters[0]})
            del self._adapters[0]

    def load_model(self, folder: str | os.PathLike[str], version: int) -> None:
        """Start anew with the weights of another folder; calls under way are lost. The address stays the same."""
        self.stop()
        self._model, self._wanted_port, self.weights_version = os.fspath(folder), self._port or None, version
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- the process ---------------------------------------------------------------------------------

    def _arguments(self) -> list[str]:
        own: dict[str, Option] = {"host": self._host, "port": self._port, "served-model-name": self.name}
        if self._lora_rank is not None:
            own |= {"enable-lora": True, "max-lora-rank": self._lora_rank, "max-loras": 2}
        found = [self._model]
        for name, value in (self._options | own).items():
            if value is not False:
                found += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return found

    def _variables(self) -> dict[str, str]:
        """The token goes this way: everybody on the machine can read a command line."""
        found = {} if self._token is None else {"VLLM_API_KEY": self._token}
        return found if self._lora_rank is None else found | {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}

    def _wait(self) -> None:
        end = time.monotonic() + self._start_seconds
        while not self._answers():
            if not self.is_serving:
                assert self._process is not None
                raise RunError(
                    f"vLLM exited with status {self._process.returncode} while starting:\n{self._last_words()}"
                )
            if time.monotonic() > end:
                raise RunError(f"vLLM did not answer within {self._start_seconds:g} s:\n{self._last_words()}")
            time.sleep(_LOOK_SECONDS)

    def _last_words(self) -> str:
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _SHOWN_BYTES))
        return self._output.read().decode("utf-8", "replace").strip() or "(no output)"

    # -- asking it -----------------------------------------------------------------------------------

    def _answers(self) -> bool:
        try:
            self._open(urllib.request.Request(f"{address(self._host, self._port)}/health"), seconds=5.0)
        except OSError:
            return False
        return True

    def _post(self, path: str, body: dict[str, str]) -> None:
        headers = {"content-type": "application/json"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        asked = urllib.request.Request(self.base_url + path, json.dumps(body).encode(), headers)
        try:
            self._open(asked, seconds=CALL_SECONDS)
        except urllib.error.HTTPError as error:
            told = error.read().decode("utf-8", "replace")[:1000]
            raise RunError(f"vLLM refused {path} for {body['lora_name']!r} with status {error.code}: {told}") from error
        except OSError as error:
            raise RunError(f"vLLM did not answer {path}: {error}\n{self._last_words()}") from error

    def _open(self, asked: urllib.request.Request, *, seconds: float) -> None:
        # It runs on this machine: no proxy stands between.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(asked, timeout=seconds) as answer:
            answer.read()


def _vllm_serve() -> list[str]:
    if find_spec("vllm") is None:
        raise MissingExtraError("sampling with vLLM needs the package 'vllm': pip install vllm")
    beside = Path(sys.executable).with_name("vllm")
    program = str(beside) if beside.exists() else shutil.which("vllm")
    if program is None:
        raise MissingExtraError(
            "the package 'vllm' is installed, but its program is missing: pip install --force-reinstall vllm"
        )
    return [program, "serve"]


def _kill(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return
