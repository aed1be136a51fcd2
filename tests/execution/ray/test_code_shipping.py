"""Modules that travel with an agent: those beside the program, with all they import, and nothing that is installed."""

import io
import sys
import tempfile
import zipfile

import pytest

from sharpen.errors import TransportError
from tests.errors import raises
from tests.execution.internals import transport


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "program.py"), raising=False)
    (tmp_path / "program.py").write_text("import numpy, lone_module as lone\n")
    (tmp_path / "lone_module.py").write_text("def f():\n    from some_package.inner import x\n")
    package = tmp_path / "some_package"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("from . import inner\nimport asyncio, msgspec, sharpen\n")
    (package / "inner.py").write_text("x = 1\n")
    (package / "words.txt").write_text("data of the package")
    (package / "__pycache__" / "inner.pyc").write_bytes(b"old")
    (tmp_path / "never_imported.py").write_text("")
    return tmp_path


def names(data: bytes) -> set[str]:
    return set(zipfile.ZipFile(io.BytesIO(data)).namelist())


WITH_PACKAGE = {"some_package/__init__.py", "some_package/inner.py", "some_package/words.txt"}


def test_what_the_program_imports_travels_also_what_it_imports_later(folder):
    assert names(transport.pack_modules([])) == {"lone_module.py", *WITH_PACKAGE}


def test_what_the_agent_needs_travels(folder):
    (folder / "program.py").write_text("")
    assert names(transport.pack_modules(["some_package.inner", "msgspec", "__main__"])) == WITH_PACKAGE
    assert transport.pack_modules(["msgspec"]) == b""


def test_it_is_unpacked_as_it_was(folder, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    unpacked = transport.unpack_modules(transport.pack_modules([]))
    assert (unpacked / "some_package" / "words.txt").read_text() == "data of the package"


def test_what_a_text_speaks_of_stays_at_home(folder):
    (folder / "data_folder").mkdir()
    (folder / "data_folder" / "large.bin").write_bytes(bytes(100))
    speaking = (folder / "lone_module.py").read_text()
    (folder / "lone_module.py").write_text(f'"""Words.\n\nimport data_folder that was made before.\n"""\n{speaking}')
    assert not [name for name in names(transport.pack_modules(["lone_module"])) if name.startswith("data_folder")]


def test_what_is_too_large_is_refused_by_the_name_of_its_largest_file(folder, monkeypatch):
    monkeypatch.setattr(transport, "MAX_BYTES", 10)
    with raises(TransportError, "some_package/__init__.py", "working_dir"):
        transport.pack_modules([])
