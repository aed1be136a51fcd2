"""GSM8K from local files."""

from pathlib import Path

import pytest

from sharpen.errors import ConfigError
from sharpen.llm import DatasetError, GSM8KDataset, create_rl_dataset, create_sft_dataset
from tests.errors import raises
from tests.llm.internals import as_dataset

from .conftest import PROBLEMS


class Tokenizer:
    """Writes chat messages as many models want them."""

    chat_template = "{{ messages }}"

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        text = "".join(f"<{message['role']}>{message['content']}</>" for message in conversation)
        return text + "<assistant>" * add_generation_prompt


class ForgetfulTokenizer(Tokenizer):
    """Drops the question once it is answered."""

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        return super().apply_chat_template(
            conversation[-1:], tokenize=tokenize, add_generation_prompt=add_generation_prompt
        )


@pytest.mark.parametrize("place", ["", "gsm8k", "gsm8k/train.jsonl"])
def test_the_path_may_be_a_folder_or_a_file(data_folder: Path, place: str) -> None:
    assert len(create_sft_dataset(path=data_folder / place)) == len(PROBLEMS)


@pytest.mark.parametrize("place", ["", "gsm8k"])
def test_the_variable_names_the_folder(data_folder: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("SHARPEN_DATA", str(data_folder / place))
    assert len(create_sft_dataset()) == len(create_rl_dataset()) == len(GSM8KDataset()) == len(PROBLEMS)
    assert len(create_sft_dataset(split="test")) == 1


def test_the_path_goes_before_the_variable(data_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHARPEN_DATA", str(tmp_path / "none"))
    assert len(create_sft_dataset(path=data_folder)) == len(PROBLEMS)


def test_a_place_without_the_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(DatasetError, "GSM8K", "train.jsonl", "gsm8k/train.jsonl"):
        create_sft_dataset(path=tmp_path)
    monkeypatch.setenv("SHARPEN_DATA", str(tmp_path / "none"))
    with raises(DatasetError, "SHARPEN_DATA"):
        create_sft_dataset()


def test_a_split_that_is_not_there_is_named(data_folder: Path) -> None:
    with raises(DatasetError, "validation"):
        create_sft_dataset("validation", path=data_folder)
    with raises(DatasetError, "test"):
        create_sft_dataset("test", path=data_folder / "gsm8k" / "train.jsonl")


def test_the_class_gives_rows_in_either_form(data_folder: Path) -> None:
    sft = GSM8KDataset("train", 2, "sft", path=data_folder)
    rl = GSM8KDataset("train", 2, "rl", path=data_folder)
    assert list(sft) == list(create_sft_dataset(max_samples=2, path=data_folder))
    assert list(rl) == list(rl.get_dataset()) == list(create_rl_dataset(max_samples=2, path=data_folder))
    assert (len(rl), rl[1]["ground_truth"], len(rl.column_names)) == (2, "1,200", 4)
    assert list(as_dataset(rl)) == list(rl)


def test_an_unknown_form_is_refused(data_folder: Path) -> None:
    with raises(ConfigError, "format_type", "chat"):
        GSM8KDataset(format_type="chat", path=data_folder)


def test_a_tokenizer_writes_the_messages_as_text(data_folder: Path) -> None:
    sft = GSM8KDataset(max_samples=1, tokenizer=Tokenizer(), path=data_folder)[0]
    rl = GSM8KDataset(max_samples=1, format_type="rl", tokenizer=Tokenizer(), path=data_folder)[0]
    assert sft["prompt"] == rl["prompt"]
    assert sft["prompt"].startswith("<user>Question: Mia bakes")
    assert sft["prompt"].endswith("</><assistant>")
    assert sft["completion"] == "She bakes 3*12 = 36 rolls.\n\nFinal Answer: 36</>"


def test_a_tokenizer_that_cannot_write_messages_is_refused(data_folder: Path) -> None:
    with pytest.raises(ConfigError):
        GSM8KDataset(tokenizer=ForgetfulTokenizer(), path=data_folder)
    with pytest.raises(ConfigError):
        GSM8KDataset(tokenizer=object(), path=data_folder)  # type: ignore[arg-type]
