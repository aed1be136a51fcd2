"""The engine runs where there is torch and transformers and nothing else of ours."""

import ast
import subprocess
import sys
from pathlib import Path

import sharpen.llm.engine

FOLDER = Path(sharpen.llm.engine.__file__).parent
ALLOWED = {"torch", "numpy"} | set(sys.stdlib_module_names)
IN_KERNELS = {"triton"}  # torch brings it where there is a GPU


def test_it_imports_torch_and_nothing_that_torch_does_not_bring() -> None:
    for path in FOLDER.rglob("*.py"):
        is_kernel = path.parent.name == "kernels"
        allowed = ALLOWED | IN_KERNELS if is_kernel and path.name.startswith("triton_") else ALLOWED
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert {each.name.partition(".")[0] for each in node.names} <= allowed, path.name
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert str(node.module).partition(".")[0] in allowed, path.name
            elif isinstance(node, ast.ImportFrom) and node.level > 1 + is_kernel:
                assert node.module in ("checks", "errors"), path.name


def test_the_documented_names_can_be_imported() -> None:
    for name in sharpen.llm.engine.__all__:
        assert getattr(sharpen.llm.engine, name) is not None


def test_without_torch_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import sharpen.llm.engine"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtraError" in done.stderr
    assert "pip install 'sharpen[llm]'" in done.stderr
