"""Write the fixtures of the installed version, to be read by later ones. In the root of the repository, with that
version in the environment of the interpreter (and PostgreSQL and Redis on the machine):

    OMP_NUM_THREADS=1 python -m tests.compatibility.write_fixtures [NAME ...]

They lie in `fixtures/VERSION/`: each as a packed folder or dump, with what this version reads from it or comes to when
it continues from a copy. Without names all are written.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sharpen
from sharpen import LightningStore, LightningStoreClient, LightningStoreServer, LLMProxy, SQLiteStore, Trainer
from tests.llm.tiny_models import write_tiny_model
from tests.store.servers import postgres_server, redis_server

from . import databases, reading, store_content
from .model_server import model_server
from .packed import Packed
from .programs import recorded_agents as agents

PROGRAMS = Path(__file__).parent / "programs"
REPOSITORY = Path(__file__).parents[2]
FINE_TUNINGS, SIMULATIONS = ("sft", "sft-lora", "grpo-trl", "dpo"), ("ppo", "dqn", "sac")
RECORDED_QUESTIONS = ("hello", "größe")
packed = Packed(".".join(sharpen.__version__.split(".")[:2]))


# -- stores ------------------------------------------------------------------------------------------


def write_sqlite(folder: Path) -> None:
    folder.mkdir()
    packed.record("sqlite", asyncio.run(_filled(SQLiteStore(folder / "store.db"))))
    packed.pack("sqlite", folder)


def write_postgres(folder: Path) -> None:
    with postgres_server() as server:
        server.execute(f"CREATE SCHEMA {databases.SCHEMA}")
        packed.record("postgres", asyncio.run(_filled(sharpen.PostgresStore(databases.postgres_url(server)))))
        packed.write_text("postgres.sql", databases.dump_postgres(server))


def write_redis(folder: Path) -> None:
    with redis_server() as server:
        store = sharpen.RedisLightningStore(server.url(), prefix=databases.PREFIX)
        packed.record("redis", asyncio.run(_filled(store)))
        packed.record("redis-dump", databases.dump_redis(server))


async def _filled(store: LightningStore) -> store_content.Content:
    await store_content.fill(store)
    content = await store_content.read(store)
    await store.close()
    return content


def write_spool(folder: Path) -> None:
    """A store, and the finished work of a client that could not reach its server."""
    folder.mkdir()
    os.environ["SHARPEN_SPOOL"] = str(folder / "spool")
    packed.record("spool", asyncio.run(_spooled(folder / "store.db")))
    packed.pack("spool", folder)


async def _spooled(path: Path) -> dict[str, Any]:
    store = SQLiteStore(path)
    server = LightningStoreServer(store, port=0)
    await server.start()
    client = LightningStoreClient(server.endpoint, retry_seconds=0.5, spool_after_seconds=0.1)
    await client.enqueue_rollout({"question": "paid for"}, rollout_id="ro-spooled")
    claimed = await client.dequeue_rollout("w-cut-off")
    assert claimed is not None
    await server.stop()
    ids = (claimed.rollout_id, claimed.attempt.attempt_id)
    for number in range(3):
        attributes = {"number": number, "text": "größe"}
        span = sharpen.Span.from_attributes(
            attributes=attributes, name=f"span-{number}", rollout_id=ids[0], attempt_id=ids[1]
        )
        await client.add_span(span)
    await client.complete_attempt(*ids, reward=0.5, metadata={"seconds": 1.5})
    found = {"spooled": client.spooled, "rollout_id": ids[0], "attempt_id": ids[1]}
    await client.close()
    await store.close()
    return found


# -- runs --------------------------------------------------------------------------------------------


def write_run_finished(folder: Path) -> None:
    """Agents that talk to a model through a recording gateway; one of them fails."""
    with model_server() as url:
        gateway = LLMProxy(model_list=[{"name": "small", "base_url": url}], mode="record")
        trainer = Trainer(
            algorithm="Baseline", strategy="shm", n_runners=1, llm_proxy=gateway, run_dir=folder, loggers=["jsonl"]
        )
        trainer.fit(agents.converse, agents.doubling_tasks(5), agents.doubling_tasks(2, first=10))
    packed.pack("run-finished", folder)
    packed.record("run-finished", {"shown": _shown(folder)})


def write_search(folder: Path) -> None:
    """A search of the command line: killed on the way, and then brought to its end."""
    command = [sys.executable, "-m", "sharpen.cli", "train", str(PROGRAMS / "few_shot.yaml")]
    folder.mkdir()
    _kill(command, folder, kill_after=30, SHARPEN_RUNS=str(folder / "runs"))
    (run,) = (folder / "runs").iterdir()
    packed.pack("search-killed", run)
    packed.record("search-killed", {"shown": _shown(run), "finished": reading.finished(run)})
    subprocess.run([*command, "--resume", str(run)], check=True)
    packed.pack("search", run)
    packed.record("search", {"shown": _shown(run), "search": reading.search_of(run)})


def write_run_simulator(folder: Path) -> None:
    _write_run(folder, "run-simulator", "simulator.yaml", longer="max_iters=5")


def write_run_fine_tuning(folder: Path) -> None:
    model = packed.unpack("model", folder)
    _write_run(folder, "run-fine-tuning", "fine_tuning.yaml", f"model_name={model}", longer="num_epochs=3")


def _write_run(folder: Path, name: str, config: str, *overrides: str, longer: str) -> None:
    """A run of the command line that came to its end, and what it comes to when it is made longer."""
    command = [sys.executable, "-m", "sharpen.cli", "train", str(PROGRAMS / config), *overrides]
    environment = {**os.environ, "SHARPEN_RUNS": str(folder / "runs")}
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True)
    (run,) = (folder / "runs").iterdir()
    packed.pack(name, run)
    shown = _command("runs", "show", str(run))
    subprocess.run([*command, longer, "--resume", str(run)], cwd=REPOSITORY, env=environment, check=True)
    packed.record(name, {"shown": {"run": shown}, "rows": reading.metric_rows(run)})


def _write_grpo(folder: Path, name: str, lora_rank: int) -> None:
    folder.mkdir()
    model, run = packed.unpack("model", folder), folder / "run"
    call = f"grpo(Path({str(model)!r}), Path({str(run)!r}), steps=4, lora_rank={lora_rank}"
    _kill(_python(f"{call})"), folder, kill_after=20)
    packed.pack(name, run)
    record = {"shown": _shown(run), "finished": reading.finished(run)}
    subprocess.run(_python(f"{call}, resume=True)"), cwd=REPOSITORY, check=True)
    packed.record(name, {**record, "training": reading.training_of(run)})


def write_grpo(folder: Path) -> None:
    _write_grpo(folder, "grpo", lora_rank=0)


def write_grpo_lora(folder: Path) -> None:
    _write_grpo(folder, "grpo-lora", lora_rank=2)


def _kill(command: list[str], folder: Path, *, kill_after: int, **environment: str) -> None:
    """Run a program until its agent kills it, and wait until nothing of it is left."""
    notes = folder / "notes"
    marks = {agents.NOTES: str(notes), agents.KILL_AFTER: str(kill_after)}
    ended = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, **marks, **environment}, start_new_session=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.returncode
    while any(str(notes).encode() in _environment(path) for path in Path("/proc").glob("[0-9]*")):
        time.sleep(0.1)


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:  # it has ended
        return b""


def _python(call: str) -> list[str]:
    lines = ["from pathlib import Path", "from tests.compatibility.programs.training import *", call]
    return [sys.executable, "-c", "\n".join(lines)]


def _shown(run: Path) -> dict[str, Any]:
    return reading.shown(run, _command)


def _command(*words: str) -> Any:
    """What a command prints as JSON."""
    program = [sys.executable, "-m", "sharpen.cli", *words, "--json"]
    return json.loads(subprocess.run(program, stdout=subprocess.PIPE, cwd=REPOSITORY, check=True).stdout)


def write_recording(folder: Path) -> None:
    """Two calls of a model as a gateway records them in a file."""
    folder.mkdir()
    with model_server() as url:
        record = {"mode": "record", "record": folder / "calls.jsonl"}
        with LLMProxy(model_list=[{"name": "small", "base_url": url}], **record) as gateway:
            answers = [agents.answer_to(gateway.as_resource(), question) for question in RECORDED_QUESTIONS]
    packed.pack("recording", folder)
    packed.record("recording", dict(zip(RECORDED_QUESTIONS, answers, strict=True)))


# -- checkpoints -------------------------------------------------------------------------------------


def write_model(folder: Path) -> None:
    packed.pack("model", write_tiny_model(folder, hidden=16, layers=1, vocab=300))


def write_fine_tuning(kind: str) -> Callable[[Path], None]:
    """A fine-tuning that was killed after its seventh step."""

    def write(folder: Path) -> None:
        folder.mkdir()
        model, out = packed.unpack("model", folder), folder / "out"
        call = f"fine_tune({kind!r}, Path({str(model)!r}), Path({str(out)!r})"
        killed = subprocess.run(_python(f"{call}, callbacks=KillAt(7))"), cwd=REPOSITORY, check=False)
        assert killed.returncode == -signal.SIGKILL
        packed.pack(kind, out)
        subprocess.run(_python(f"{call}, resume=True)"), cwd=REPOSITORY, check=True)
        packed.record(kind, reading.fine_tuning_of(out))

    return write


def write_simulation(kind: str) -> Callable[[Path], None]:
    """Four iterations of a policy, and what six of them come to."""

    def write(folder: Path) -> None:
        from .programs.training import simulate

        simulate(kind, iterations=4, folder=folder)
        packed.pack(kind, folder)
        packed.record(kind, simulate(kind, iterations=6, ckpt_path=folder / "latest.pth"))

    return write


# ----------------------------------------------------------------------------------------------------

WRITERS: dict[str, Callable[[Path], None]] = {
    "sqlite": write_sqlite,
    "postgres": write_postgres,
    "redis": write_redis,
    "spool": write_spool,
    "model": write_model,
    "run-finished": write_run_finished,
    "recording": write_recording,
    "search": write_search,
    "run-simulator": write_run_simulator,
    "run-fine-tuning": write_run_fine_tuning,
    "grpo": write_grpo,
    "grpo-lora": write_grpo_lora,
    **{kind: write_fine_tuning(kind) for kind in FINE_TUNINGS},
    **{kind: write_simulation(kind) for kind in SIMULATIONS},
}


def main(names: list[str]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="sharpen-fixtures-"))
    os.environ["SHARPEN_SPOOL"] = str(folder / "unused-spool")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    try:
        for name in names or WRITERS:
            WRITERS[name](folder / name)
            print(name)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
