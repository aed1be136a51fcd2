"""`sharpen init [FOLDER]`: write a small example project that is ready to run."""

import argparse
import shlex
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from .output import Output, add_output_options
from .parser import examples

TEMPLATES = {
    "prompt": "search for a better prompt; works offline, no extra packages",
    "calculator": "train a small language model with GRPO; needs sharpen[llm,demo,apo]",
    "simulator": "train a policy in a simulator with PPO; needs sharpen[rl]",
}
_SUFFIX = ".txt"
"""Python files have this suffix here, as they belong to the new project and are not modules of this package."""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    listed = "\n".join(f"  {name:<12}{words}" for name, words in TEMPLATES.items())
    parser = commands.add_parser(
        "init",
        help="create a small example project: agent, data and configuration",
        description=f"Create a small example project that is ready to run. Existing files are never overwritten.\n\n"
        f"templates:\n{listed}",
        epilog=examples("sharpen init my-agent", "sharpen init my-model --template calculator"),
    )
    parser.add_argument(
        "folder",
        nargs="?",
        default=".",
        metavar="FOLDER",
        help="folder to create the project in (default: the current one)",
    )
    parser.add_argument(
        "--template", choices=list(TEMPLATES), default="prompt", help="template to use (default: prompt)"
    )
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    out = Output.of(arguments)
    folder = Path(arguments.folder)
    written = write_project(folder, arguments.template)
    config = shlex.quote(str(folder / "config.yaml"))
    if out.is_json:
        out.value({"folder": folder.absolute(), "template": arguments.template, "files": written})
        return
    out.line(f"{arguments.template}: {TEMPLATES[arguments.template]}")
    for path in written:
        out.line(f"  {path}")
    out.line("Next:")
    if arguments.template != "prompt":
        extras = TEMPLATES[arguments.template].rpartition("needs ")[2]
        out.line(f"  pip install '{extras}'")
    out.line(f"  sharpen train {config} --dry-run")
    out.line(f"  sharpen train {config}")


def write_project(folder: Path, template: str) -> list[Path]:
    """Write the files of a template and return their paths; if one of them exists, write none."""
    from ..errors import ConfigError

    contents = dict(_contents(files(__package__) / "project" / template, Path()))
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{str(folder)!r} is a file: choose another folder")
    there = [str(folder / path) for path in contents if (folder / path).exists()]
    if there:
        verb = "exists" if len(there) == 1 else "exist"
        raise ConfigError(f"{', '.join(there)} already {verb}, and files are not overwritten: choose another folder")
    try:
        return [_write(folder / path, text) for path, text in contents.items()]
    except OSError as error:
        raise ConfigError(f"cannot write the project to {str(folder)!r}: {error}") from error


def _contents(place: Traversable, path: Path) -> Iterator[tuple[Path, str]]:
    for each in sorted(place.iterdir(), key=lambda found: (found.is_dir(), found.name)):
        if each.is_dir():
            yield from _contents(each, path / each.name)
        else:
            yield path / each.name.removesuffix(_SUFFIX), each.read_text("utf-8")


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
    return path
