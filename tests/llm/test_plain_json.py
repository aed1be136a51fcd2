"""JSON files that every reader takes."""

import json
from pathlib import Path

from tests.llm.internals import write_json


def test_a_number_that_json_lacks_becomes_null(tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", {"loss": float("nan"), "steps": 3, "path": tmp_path}, indent=2)
    text = (tmp_path / "result.json").read_text()
    assert "NaN" not in text
    assert json.loads(text) == {"loss": None, "steps": 3, "path": str(tmp_path)}
