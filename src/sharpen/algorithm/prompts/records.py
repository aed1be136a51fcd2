"""The files of a search in the folder of its run: every candidate, the best prompt, and what people read.

    candidates.json    every candidate; the file that is read again
    candidates.txt     the tree of candidates
    best_prompt.txt    the text of the best prompt (with several: best_prompt.<name>.txt)
    best_prompt.diff   what it changed in the seed

Each is there whole or not at all.
"""

import re
from pathlib import Path

from ...errors import ConfigError
from ...files import read_json, replacing, write_json
from .candidates import Candidate, CandidateBook
from .difference import best_diff
from .tree import draw_tree

FOLDER = "prompts"
_CANDIDATES = "candidates.json"


def write_records(folder: Path, book: CandidateBook) -> None:
    """Write all files; the folder is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _CANDIDATES, book.as_json())
    for name, text in _best_files(book.best).items():
        _write(folder / name, text)
    _write(folder / "best_prompt.diff", best_diff(book))
    _write(folder / "candidates.txt", draw_tree(book) + "\n")


def read_records(folder: Path) -> CandidateBook:
    """The book in a folder that `write_records` wrote, or in the folder of its run."""
    places = [folder / _CANDIDATES, folder / FOLDER / _CANDIDATES]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise ConfigError(f"there are no candidates in {str(folder)!r}: use the folder of a run that optimised prompts")
    try:
        return CandidateBook.of(read_json(path))
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ConfigError(f"{str(path)!r} is damaged: it is nested too deeply") from error
    except ConfigError as error:
        raise ConfigError(f"{str(path)!r}: {error}") from error


def _best_files(best: Candidate) -> dict[str, str]:
    if len(best.prompts) == 1:
        return {"best_prompt.txt": best.template.template}
    names = _file_names(list(best.prompts))
    return {f"best_prompt.{names[name]}.txt": prompt.template for name, prompt in best.prompts.items()}


def _file_names(names: list[str]) -> dict[str, str]:
    """A file name for each prompt. Where two would share one, the later have a number."""
    taken: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^\w-]+", "_", name)[:100] or "_"
        # Compared without case, since some disks do the same.
        tries = [plain, *(f"{plain}-{number}" for number in range(2, len(names) + 2))]
        used = {each.casefold() for each in taken.values()}
        taken[name] = next(each for each in tries if each.casefold() not in used)
    return taken


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))
