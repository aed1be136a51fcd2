"""Counting steps of reasoning."""

import random

import pytest
from hypothesis import given, strategies as st

from tests.llm.internals import count_steps

TAKEN = [
    ("Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nShe sold 48+24 = <<48+24=72>>72 clips.\n#### 72", 2),
    ("Step 1: 48/2 = 24. Step 2: 48+24 = 72. Final Answer: 72", 2),
    ("1. 48/2 = 24\n2. 48+24 = 72", 2),
    ("第一步: 48/2=24\n第二步: 48+24=72\n答案: 72", 2),
    ("第一步: 计算\n第二步: 验证\n答案: 42", 2),
    ("5 apples + 7 apples = 12 apples", 1),
    (r"$48 \div 2 = 24$", 1),
    ("5 + 7 = 6 + 6 = 12", 1),
    ("10 / 3 = 3.33", 1),
    ("50 * 20% = 10", 1),
    ("9 / 27 = 33.3%", 1),
    ("12.5 + 3 = 15.5", 1),
    ("9000(.30) = 2700", 1),
    ("2x + 3 = 7\n2x = 4\nx = 2", 3),
    ("She needs the price of all rolls first.\nThen the discount must be taken off.", 2),
    ("At 7 years, it bears 50 * 7 = 350 fruits.", 1),
    ("<think>48/2 = 24. 48+24 = 72</think>\n\n#### 72<|im_end|>", 2),
    ("<think>48/2 = 24\n48+24 = 72", 2),
]

NOT_TAKEN = [
    "",
    "\n\n\n\n\n",
    "42",
    "#### 42",
    "Final Answer: 42",
    "The answer is 40 + 2 = 42.",
    "ok\nok\nhm\nyes",
    "Step 1:\nStep 2:\nStep 3:",
    "1.\n2.\n3.",
    "48/2 = 23",
    "step step step step step step",
    "....\n----\n****",
    "5 = 5",
    "<think>\n\n</think>\n\n#### 42<|im_end|>",
    "<think></think>ok, let me <|im_end|><|endoftext|>",
    "<answer>40 + 2 = 42</answer>",
]


@pytest.mark.parametrize(("text", "steps"), TAKEN)
def test_steps_are_counted(text: str, steps: int) -> None:
    assert count_steps(text) == steps


@pytest.mark.parametrize("text", NOT_TAKEN)
def test_what_is_no_reasoning_is_no_step(text: str) -> None:
    assert count_steps(text) == 0


@pytest.mark.parametrize(
    "text",
    [
        "48/2 = 24\n" * 20,
        "48/2 = 24\n48 / 2 = 24\nSo 48 ÷ 2 = 24 clips",
        "2 + 3 = 5\n3 + 2 = 5",
        "".join(f"Step {number}: let me think\n" for number in range(20)),
        "".join(f"Now I look at number {number} again\n" for number in range(20)),
        "We need to add the numbers.\nThe numbers we need to add.\nTo add, we need the numbers.",
    ],
)
def test_a_step_counts_once_however_it_is_repeated(text: str) -> None:
    assert count_steps(text) == 1


LINES = st.sampled_from([text for text, _ in TAKEN] + NOT_TAKEN) | st.text(max_size=80)


@given(lines=st.lists(LINES, max_size=8), blanks=st.lists(st.sampled_from(["", " ", "\t", "  \t "]), max_size=20))
def test_blank_lines_earn_nothing(lines: list[str], blanks: list[str]) -> None:
    padded = [line for pair in zip(lines, blanks, strict=False) for line in pair] + lines[len(blanks) :]
    assert count_steps("\n".join(padded + blanks)) == count_steps("\n".join(lines))


@given(lines=st.lists(LINES, max_size=8), times=st.integers(2, 5), seed=st.integers(0, 99))
def test_repetition_earns_nothing(lines: list[str], times: int, seed: int) -> None:
    again = [line for text in lines for line in text.splitlines()] * times
    random.Random(seed).shuffle(again)
    assert count_steps("\n".join(lines + again)) == count_steps("\n".join(lines))


@pytest.mark.parametrize("text", [" " * 50000 + "x", "1+" * 20000 + "=", "a. " * 10000, "((1" * 9000 + "=2"])
@pytest.mark.timeout(20)
def test_no_text_takes_long_to_count(text: str) -> None:
    assert count_steps(text) <= 1
