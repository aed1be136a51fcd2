"""Data sets by name: what is found, what is refused, and what an agent sees of them."""

import json
from pathlib import Path

import pytest

from sharpen.errors import ConfigError
from sharpen.llm import DatasetError
from tests.errors import raises

from .calls import Calls


def test_gsm8k_is_the_default(call: Calls) -> None:
    answer = call("load_dataset")
    assert (answer["dataset"], answer["size"], answer["columns"]) == ("gsm8k", 4, ["question", "answer"])
    assert len(answer["preview"]) == 3
    assert call("load_dataset", dataset="math", split="test")["size"] == 1


@pytest.mark.parametrize(("form", "columns"), [("sft", ["prompt", "completion"]), ("rl", ["prompt", "ground_truth"])])
def test_a_form_shows_what_training_sees(call: Calls, form: str, columns: list[str]) -> None:
    answer = call("load_dataset", dataset="sums.jsonl", format=form, max_samples=2, num_preview=1)
    assert answer["size"] == 2
    assert answer["columns"][:2] == columns
    assert [each["role"] for each in answer["preview"][0]["prompt"]] == ["user"]


def test_a_folder_has_splits_and_a_file_has_none(call: Calls, base: Path) -> None:
    (base / "mine").mkdir()
    (base / "mine" / "val.jsonl").write_text('{"a": 1}\n', encoding="utf-8")
    assert call("load_dataset", dataset="mine", split="val")["preview"] == [{"a": 1}]
    refused = call.refused("load_dataset", dataset="mine")
    assert "'train'" in refused
    assert str(base / "mine") in refused
    assert "split is 'test'" in call.refused("load_dataset", dataset="sums.jsonl", split="test")


def test_registered_data_sets_have_a_name(call: Calls) -> None:
    call.tool.register_dataset("mine", ({"question": f"{each}?", "answer": str(each)} for each in range(3)))
    assert call("load_dataset", dataset="mine")["size"] == 3
    assert call("load_dataset", dataset="mine")["size"] == 3  # a generator is kept
    assert {"name": "mine", "from": "registered"} in call("list", kind="datasets")["datasets"]
    assert "split is 'test'" in call.refused("load_dataset", dataset="mine", split="test")


def test_what_is_no_data_set_cannot_be_registered(call: Calls) -> None:
    with raises(ConfigError, "GSM8K"):
        call.tool.register_dataset("gsm8k", [{"a": 1}])
    with raises(ConfigError, "a/b"):
        call.tool.register_dataset("a/b", [{"a": 1}])
    with pytest.raises(DatasetError):
        call.tool.register_dataset("empty", [])
    with pytest.raises(DatasetError):
        call.tool.register_dataset("number", 3)  # type: ignore[arg-type]


def test_paths_outside_are_refused(call: Calls, base: Path) -> None:
    outside = base.parent / "outside.jsonl"
    outside.write_text('{"secret": 1}\n', encoding="utf-8")
    (base / "link.jsonl").symlink_to(outside)
    for name in ("../outside.jsonl", str(outside), "link.jsonl", "/etc/passwd"):
        message = call.refused("load_dataset", dataset=name)
        assert message.startswith("dataset is ")
        assert repr(str(base)) in message
        assert "secret" not in message


def test_nothing_is_downloaded_unless_it_is_allowed(call: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    message = call.refused("load_dataset", dataset="openai/humaneval")
    assert "'openai/humaneval'" in message
    assert "allow_download=True" in message
    monkeypatch.delenv("SHARPEN_DATA")
    message = call.refused("load_dataset")
    assert "SHARPEN_DATA" in message
    assert "allow_download=True" in message
    assert call("list", kind="datasets")["datasets"] == []


def test_an_unknown_name_gets_its_nearest(call: Calls) -> None:
    call.tool.register_dataset("arithmetic", [{"a": 1}])
    message = call.refused("load_dataset", dataset="aritmetic")
    assert "gsm8k, arithmetic. Did you mean 'arithmetic'?" in message


def test_a_bad_row_is_named(call: Calls, base: Path) -> None:
    rows = [{"question": "1?", "answer": "1"}, {"question": "2?"}]
    (base / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    message = call.refused("train", algorithm="sft", model_name="model", dataset="bad.jsonl")
    assert "row 1" in message
    assert "'answer'" in message
    (base / "torn.jsonl").write_text('{"question": "1?", "answer": "1"}\n{"quest', encoding="utf-8")
    assert "line 2" in call.refused("load_dataset", dataset="torn.jsonl")


def test_dpo_needs_its_columns(call: Calls) -> None:
    asked = {"algorithm": "dpo", "model_name": "model"}
    refused = call.refused("train", **asked)
    assert all(column in refused for column in ("dpo", "prompt", "chosen", "rejected"))
    message = call.refused("train", dataset="sums.jsonl", **asked)
    assert "column 'prompt'" in message


def test_rows_that_no_json_holds_are_refused_and_leave_nothing(call: Calls, base: Path) -> None:
    call.tool.register_dataset("odd", [{"prompt": "p", "completion": "c", "extra": object()}])
    message = call.refused("train", algorithm="sft", model_name="model", dataset="odd", batch_size=1)
    assert "row 0" in message
    assert list((base / ".sharpen" / "jobs").iterdir()) == []


def test_long_texts_are_cut_in_a_preview(call: Calls) -> None:
    call.tool.register_dataset("long", [{"prompt": [{"content": "x" * 10_000}]}])
    shown = call("load_dataset", dataset="long")["preview"][0]["prompt"][0]["content"]
    assert len(shown) == 500
    assert shown.endswith("…")
