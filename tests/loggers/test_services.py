"""Loggers for TensorBoard, W&B and MLflow, each with the real package, and no connection to anywhere."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from sharpen.loggers import MlflowLogger, TensorBoardLogger, WandbLogger

from .wandb_files import records

LOG = """
logger.log_config({"lr": 0.5, "net": {"width": 8, "layers": [1, 2]}})
logger.log_metrics({"reward": 1.0, "val/reward": 0.25}, 1)
logger.log_text("prompt", "Solve it", 1)
logger.log_metrics({"reward": 2.0}, 2)
"""


class Proxy:
    """Where every request over HTTP would go; it counts who knocks."""

    def __init__(self) -> None:
        self.knocks = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.knocks += 1
            connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@contextmanager
def proxied() -> Iterator[tuple[Proxy, dict[str, str]]]:
    proxy = Proxy()
    # Without the variables by which packages see that they are tested, and behave.
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_CURRENT_TEST")}
    kept = {name: value for name, value in kept.items() if not name.startswith(("WANDB_", "MLFLOW_", "GITHUB_"))}
    addresses = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), proxy.url)
    try:
        yield proxy, {**kept, **addresses, "NO_PROXY": "", "no_proxy": ""}
    finally:
        proxy.close()


def run_quietly(code: str, folder: Path) -> str:
    """Run a program that must not talk to anybody, and return what it printed last."""
    with proxied() as (proxy, variables):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert proxy.knocks == 0
    return done.stdout.splitlines()[-1] if done.stdout else ""


def test_the_check_for_connections_sees_one(tmp_path: Path) -> None:
    code = "import urllib.request as u\ntry: u.urlopen('https://example.invalid', timeout=5)\nexcept OSError: pass"
    with proxied() as (proxy, variables):
        subprocess.run([sys.executable, "-c", code], env=variables, check=True)
        assert proxy.knocks > 0


@pytest.mark.parametrize("maker", [TensorBoardLogger, WandbLogger, MlflowLogger])
def test_making_a_logger_touches_nothing_and_it_travels(tmp_path: Path, maker: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    logger = maker("name", loglevel=10)
    assert cloudpickle.loads(cloudpickle.dumps(logger)).loglevel == 10
    logger.finish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("TensorBoardLogger", "tensorboard", "tensorboard"),
        ("WandbLogger", "wandb", "wandb"),
        ("MlflowLogger", "mlflow", "mlflow"),
    ],
)
def test_a_missing_package_answers_with_the_command(tmp_path: Path, name: str, package: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from sharpen.loggers import {name}\n"
        f"from sharpen.errors import MissingExtraError\n"
        f"try: {name}('x').log_metrics({{}}, 1)\n"
        "except MissingExtraError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"pip install 'sharpen[{extra}]'" in done.stdout


# -- TensorBoard -------------------------------------------------------------------------------------


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_reads_scalars_texts_and_settings(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path)
    exec(LOG, {"logger": logger})
    assert scalars(tmp_path, "reward") == [(1, 1.0), (2, 2.0)]  # before the end: it is written at once
    logger.finish()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"reward", "val/reward"}
    assert events.Tensors("prompt")[0].tensor_proto.string_val[0] == b"Solve it"
    settings = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"net.width" in settings


def test_tensorboard_hides_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, clock=lambda: 100.0)
    logger.log_metrics({"reward": 1.0}, 1)
    state = logger.state_dict()
    logger.log_metrics({"reward": 99.0}, 2)
    logger.log_metrics({"reward": 98.0}, 3)
    logger.finish("interrupted")
    resumed = TensorBoardLogger(tmp_path, clock=lambda: 200.0)
    resumed.load_state_dict(state)
    resumed.log_metrics({"reward": 2.0}, 2)
    resumed.finish()
    assert scalars(tmp_path, "reward") == [(1, 1.0), (2, 2.0)]


def test_tensorboard_needs_neither_tensorflow_nor_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from sharpen.loggers import TensorBoardLogger\n"
        f"logger = TensorBoardLogger({str(tmp_path)!r})\n{LOG}\nlogger.finish()\n"
        "print({'tensorflow', 'torch'} & set(sys.modules))"
    )
    assert run_quietly(code, tmp_path) == "set()"


# -- W&B ---------------------------------------------------------------------------------------------


def wandb_rows(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                rows.append({name: value for name, value in items.items() if not name.startswith("_")})
    return rows


def test_wandb_keeps_an_offline_run_and_talks_to_nobody(tmp_path: Path) -> None:
    code = (
        "from sharpen.loggers import WandbLogger\n"
        f"logger = WandbLogger('project', 'a run', {str(tmp_path)!r}, mode='offline')\n{LOG}\n"
        "print(logger.state_dict()['id'])\nlogger.finish()"
    )
    run_id = run_quietly(code, tmp_path)
    assert wandb_rows(tmp_path) == [{"reward": 1, "val/reward": 0.25, "prompt": "Solve it"}, {"reward": 2}]
    folders = list(tmp_path.glob("wandb/offline-run-*"))
    assert [folder.name.rpartition("-")[2] for folder in folders] == [run_id]


def test_wandb_goes_on_under_the_same_id(tmp_path: Path) -> None:
    code = (
        "import wandb\nfrom sharpen.loggers import WandbLogger\n"
        f"logger = WandbLogger('project', dirpath={str(tmp_path)!r}, mode='offline')\n"
        "logger.log_metrics({'reward': 1.0}, 1)\nstate = logger.state_dict()\nlogger.finish('interrupted')\n"
        f"again = WandbLogger('project', dirpath={str(tmp_path)!r}, mode='offline')\n"
        "again.load_state_dict(state)\nagain.log_metrics({'reward': 2.0}, 2)\nagain.finish()\n"
        "print(again.state_dict() == state)"
    )
    assert run_quietly(code, tmp_path) == "True"
    assert wandb_rows(tmp_path) == [{"reward": 1}, {"reward": 2}]


STATUSES = ("succeeded", "failed", "interrupted")


def test_wandb_knows_how_each_run_ended(tmp_path: Path) -> None:
    code = "from sharpen.loggers import WandbLogger\n" + "".join(
        f"logger = WandbLogger('project', dirpath={str(tmp_path / status)!r}, mode='offline')\n"
        f"logger.log_metrics({{'reward': 1.0}}, 1)\nlogger.finish({status!r})\n"
        for status in STATUSES
    )
    run_quietly(code, tmp_path)
    for status, expected in zip(STATUSES, (0, 1, 255), strict=True):
        (path,) = tmp_path.glob(f"{status}/wandb/offline-run-*/run-*.wandb")
        assert [each.exit.exit_code for each in records(path) if each.WhichOneof("record_type") == "exit"] == [expected]


# -- MLflow ------------------------------------------------------------------------------------------


def mlflow_values(folder: Path, name: str) -> list[tuple[float, int]]:
    (path,) = folder.glob(f"*/*/metrics/{name}")
    return [(float(line.split()[1]), int(line.split()[2])) for line in path.read_text().splitlines()]


def test_mlflow_keeps_a_run_in_a_folder_and_talks_to_nobody(tmp_path: Path) -> None:
    code = (
        "from sharpen.loggers import MlflowLogger\n"
        f"logger = MlflowLogger('tests', 'a run', tracking_uri='mlruns')\n{LOG}\n"
        "logger.log_metrics({'odd (name)': 1.0}, 2)\nstate = logger.state_dict()\nlogger.finish('interrupted')\n"
        "again = MlflowLogger('tests', tracking_uri='mlruns')\nagain.load_state_dict(state)\n"
        "again.log_config({'lr': 0.25, 'new': True})\nagain.log_metrics({'reward': 3.0}, 3)\nagain.finish()"
    )
    run_quietly(code, tmp_path)
    folder = tmp_path / "mlruns"
    assert mlflow_values(folder, "reward") == [(1.0, 1), (2.0, 2), (3.0, 3)]
    assert mlflow_values(folder, "val/reward") == [(0.25, 1)]
    assert mlflow_values(folder, "odd _name_") == [(1.0, 2)]
    (run,) = {path.parent.parent for path in folder.glob("*/*/params/lr")}
    assert (run / "params" / "net.width").read_text() == "8"
    assert (run / "params" / "new").read_text() == "True"
    assert ((run / "params" / "lr").read_text(), (run / "tags" / "lr").read_text()) == ("0.5", "0.25")
    assert (run / "artifacts" / "prompt" / "1.txt").read_text() == "Solve it"
    assert "status: 3" in (run / "meta.yaml").read_text()  # finished


def test_mlflow_knows_how_each_run_ended(tmp_path: Path) -> None:
    code = "from sharpen.loggers import MlflowLogger\n" + "".join(
        f"logger = MlflowLogger({status!r}, tracking_uri='mlruns')\n"
        f"logger.log_metrics({{'reward': 1.0}}, 1)\nlogger.finish({status!r})\n"
        for status in STATUSES
    )
    run_quietly(code, tmp_path)
    found = {}
    for experiment in tmp_path.glob("mlruns/*/meta.yaml"):
        name = re.search(r"^name: (\w+)$", experiment.read_text(), re.MULTILINE)
        for run in experiment.parent.glob("*/meta.yaml"):
            found[name[1] if name else ""] = re.search(r"^status: (\d)$", run.read_text(), re.MULTILINE)[1]  # type: ignore[index]
    assert found == {"succeeded": "3", "failed": "4", "interrupted": "5"}  # FINISHED, FAILED, KILLED


def test_in_a_folder_a_metric_may_begin_with_the_name_of_another(tmp_path: Path) -> None:
    code = (
        "from sharpen.loggers import MlflowLogger\n"
        "logger = MlflowLogger(dirpath='.')\n"
        "logger.log_metrics({'val/loss/clip': 1.0, 'val/loss': 2.0, 'early/part': 3.0}, 1)\n"
        "state = logger.state_dict()\n"
        "again = MlflowLogger(dirpath='.')\nagain.load_state_dict(state)\n"
        "again.log_metrics({'val/loss/clip': 4.0, 'early': 5.0}, 2)\nagain.finish()"
    )
    run_quietly(code, tmp_path)
    (metrics,) = (tmp_path / "mlruns").glob("*/*/metrics")
    found = {str(path.relative_to(metrics)): path.read_text().split()[1::3] for path in metrics.rglob("*.*")}
    assert found == {"val/loss.clip": ["1.0", "4.0"], "early.value": ["5.0"]}
    assert {path.name for path in metrics.rglob("*") if path.is_file()} == {"loss", "loss.clip", "part", "early.value"}


WITHOUT_DATABASE = "import sys\nsys.modules['sqlalchemy'] = None\n"  # mlflow-skinny, the extra, brings none

AGENTS = """
from sharpen import Trainer, algo, rollout

@rollout
def agent(task):
    return 1.0

@algo
def reports(*, train_dataset=None, val_dataset=None):
    reports.report_iteration({"loss": 0.5})

Trainer(algorithm=reports, strategy="shm", store="memory", loggers=["mlflow"], run_dir="out").fit(agent)
"""
SIMULATOR = """
from sharpen.cli import main
assert main(["init", "project", "--template", "simulator"]) == 0
settings = ["max_iters=1", "run_dir=out", "loggers=[mlflow, {type: MlflowWriter}]"]
assert main(["train", "project", *settings]) == 0
"""
OBJECT = """
from sharpen.loggers import MlflowLogger
logger = MlflowLogger(dirpath="out")
logger.log_metrics({"loss": 0.5}, 1)
logger.finish()
"""


@pytest.mark.parametrize("program", [AGENTS, SIMULATOR, OBJECT], ids=["agents", "simulator", "object"])
def test_mlflow_by_its_name_needs_no_setting_and_no_database(tmp_path: Path, program: str) -> None:
    run_quietly(f"{WITHOUT_DATABASE}{program}", tmp_path)
    assert list((tmp_path / "out" / "mlruns").glob("*/*/metrics/**/loss"))
    assert not (tmp_path / "mlflow.db").exists()


@pytest.mark.parametrize(
    "first",
    ["import mlflow\nmlflow.set_tracking_uri('chosen')", "import os\nos.environ['MLFLOW_TRACKING_URI'] = 'chosen'"],
    ids=["program", "environment"],
)
def test_mlflow_goes_where_the_program_or_its_environment_says(tmp_path: Path, first: str) -> None:
    run_quietly(f"{WITHOUT_DATABASE}{first}\n{OBJECT}", tmp_path)
    assert list((tmp_path / "chosen").glob("*/*/metrics/loss"))
    assert not (tmp_path / "out").exists()
