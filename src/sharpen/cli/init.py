"""`sharpen init [FOLDER]`: a small project that runs as it is."""

import argparse
import shlex
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from .output import Output, add_output_options
from .parser import examples

TEMPLATES = {
    "prompt": "a search for a better prompt, offline and without further packages",
    "calculator": "GRPO trains a small language model; needs sharpen[llm,demo,apo]",
    "simulator": "PPO trains a policy in a simulator; needs sharpen[rl]",
}
_SUFFIX = ".txt"
"""Programs are kept as texts, for they are files of the new project and no modules of this one."""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    listed = "\n".join(f"  {name:<12}{words}" for name, words in TEMPLATES.items())
    parser = commands.add_parser(
        "init",
        help="write a small project that runs: an agent, data, a configuration",
        description=f"Write a small project that runs as it is. Files that are there are never overwritten.\n\n"
        f"templates:\n{listed}",
        epilog=examples("sharpen init my-agent", "sharpen init my-model --template calculator"),
    )
    parser.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="where to (default: here)")
    parser.add_argument("--template", choices=list(TEMPLATES), default="prompt", help="which one (default: prompt)")
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
    """Write the files of a template; none where one of them is there already."""
    from ..errors import ConfigError

    contents = dict(_contents(files(__package__) / "project" / template, Path()))
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{str(folder)!r} is a file: give a new folder")
    there = [str(folder / path) for path in contents if (folder / path).exists()]
    if there:
        verb = "is" if len(there) == 1 else "are"
        raise ConfigError(f"{', '.join(there)} {verb} there already, and {verb} not overwritten: give a new folder")
    try:
        return [_write(folder / path, text) for path, text in contents.items()]
    except OSError as error:
        raise ConfigError(f"the project cannot be written to {str(folder)!r}: {error}") from error


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
