"""Import paths in a configuration: `module:name`, `file.py:name`, `pkg.module.Class`.

The folder of the configuration is first on `sys.path`, so that the files beside it can be imported here and in runner
processes.
"""

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

from ...checks import did_you_mean
from ...errors import ConfigError, SharpenError, describe


def add_folder(folder: Path) -> None:
    """Put the folder first on `sys.path`."""
    name = str(folder)
    if name in sys.path:
        sys.path.remove(name)
    sys.path.insert(0, name)


def is_import_path(text: object) -> bool:
    """Whether a text is `module:name` or `file.py:name`."""
    module, sign, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    is_module = module.endswith(".py") or all(part.isidentifier() for part in module.split("."))
    return bool(sign) and bool(module) and is_module and all(part.isidentifier() for part in name.split("."))


def load(text: str, folder: Path, place: str) -> Any:
    """Return the object at `module:name` or `file.py:name`; `place` begins the message of an error."""
    if not is_import_path(text):
        raise ConfigError(f"{place} is {text!r}: write 'module:name' or 'file.py:name'")
    module_text, _, name = text.partition(":")
    add_folder(folder)
    module = _of_file(module_text, folder, place) if module_text.endswith(".py") else _of_name(module_text, place)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [each for each in dir(found) if not each.startswith("_")]
            raise ConfigError(f"{place} is {text!r}, but {module_text} has no {part!r}.{did_you_mean(part, known)}")
        found = getattr(found, part)
    return found


def _of_name(name: str, place: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{place}: cannot import {name}: {error}") from error
        raise ConfigError(
            f"{place}: module {name!r} not found in the configuration's folder or on sys.path: check the name"
        ) from error
    except SharpenError:
        raise  # its message is clear by itself
    except (Exception, SystemExit) as error:  # the user's own code, which may fail in any way
        raise ConfigError(f"{place}: {_where(error)}") from error


def _where(error: BaseException) -> str:
    """Return where the import of a module failed and why, as a compiler prints it: `file.py:3: NameError: …`."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_relative(error.filename)}:{error.lineno}: {error.msg}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not _is_machinery(each.filename)]
    own = [each for each in frames if not _is_library(Path(each.filename))] or frames
    at = f"{_relative(own[-1].filename)}:{own[-1].lineno}: " if own else ""
    return f"{at}{describe(error)}"


def _is_machinery(filename: str) -> bool:
    return filename.startswith("<frozen") or filename in (__file__, importlib.__file__)


def _relative(filename: str) -> str:
    """Return the path relative to the working directory if it is inside."""
    path, here = Path(filename), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _of_file(text: str, folder: Path, place: str) -> Any:
    """Return the module of a file, under the name that other processes import it by."""
    path = (folder / text).resolve()
    if not path.is_file():
        near = did_you_mean(path.name, [each.name for each in path.parent.glob("*.py")])
        raise ConfigError(f"{place}: file {str(path)!r} not found.{near}")
    if not path.stem.isidentifier():
        raise ConfigError(f"{place}: cannot import {path.name!r}: its name is not a valid module name; rename it")
    add_folder(path.parent)
    known = sys.modules.get(path.stem)
    if known is not None and not _is_of(known, path):
        if getattr(known, "__file__", None) is None or _is_installed(known):
            raise ConfigError(f"{place}: {path.stem!r} is the name of another module, {known!r}: rename {path.name}")
        del sys.modules[path.stem]  # a file of the same name beside another configuration
    importlib.invalidate_caches()
    module = _of_name(path.stem, place)
    if not _is_of(module, path):
        raise ConfigError(f"{place}: {path.stem!r} is the name of another module, {module!r}: rename {path.name}")
    return module


def _is_of(module: Any, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path


def _is_installed(module: Any) -> bool:
    return _is_library(Path(module.__file__).resolve())


def _is_library(file: Path) -> bool:
    return "site-packages" in file.parts or file.is_relative_to(Path(sys.base_prefix).resolve() / "lib")
