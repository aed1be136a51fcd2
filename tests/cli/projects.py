"""Small projects on disk: an agent, tasks and a configuration, for commands that read them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

AGENT = """
from sharpen import PromptTemplate, rollout


@rollout
def plain(task):
    return float(task["n"] % 2)


@rollout
def prompted(task, prompt_template: PromptTemplate):
    return float("please" in prompt_template.format(n=task["n"]))


@rollout
def failing(task):
    raise RuntimeError("it was not to be")


def tasks():
    return [{"n": number} for number in range(10)]
"""
CONFIG = """
    agent: agent.py:plain
    train_dataset: [{n: 1}, {n: 2}]
    val_dataset: [{n: 3}, {n: 4}, {n: 5}]
    strategy: {type: shm, n_runners: 1}
    algorithm: {type: Baseline, span_verbosity: none}
"""


def write(folder: Path, config: str = CONFIG, **files: str) -> Path:
    """A configuration with an agent beside it; the path of the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.py").write_text(AGENT)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(dedent(text))
    path = folder / "config.yaml"
    path.write_text(dedent(config).lstrip("\n"))
    return path


@contextmanager
def own_imports() -> Iterator[None]:
    """Modules of a project, and the folders that led to them, are forgotten afterwards."""
    path, modules = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if "." not in name and not _is_installed(name):
                del sys.modules[name]


def _is_installed(name: str) -> bool:
    return "site-packages" in str(getattr(sys.modules[name], "__file__", None) or "site-packages")
