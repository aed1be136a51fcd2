"""Reading the final answer out of what models write."""

# ruff: noqa: RUF001 - models write full-width signs

import json
import string
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given, strategies as st

from sharpen.llm import create_accuracy_reward
from tests.llm.internals import is_same, read_answer, read_truth

from .conftest import PROBLEMS, REAL_DATA

RIGHT = [
    # The forms with a mark.
    ("Final Answer: 72", "72"),
    ("She sold 48 + 24 clips.\n\nFinal Answer: 72", "72"),
    ("final answer: 72.", "72"),
    ("FINAL ANSWER = 72", "72"),
    ("**Final Answer:** 72", "72"),
    ("**Final Answer**: 72", "72"),
    ("### Final Answer\n\n**72**", "72"),
    ("Final Answer:\n- 72 clips", "72"),
    ("Final Answer - 72", "72"),
    ("Final Answer: `72`", "72"),
    ("Final Answer: Natalia sold 72 clips altogether in April and May.", "72"),
    ("Final Answer: She sold 48 + 24 = 72 clips.", "72"),
    ("48+24 = <<48+24=72>>72\n#### 72", "72"),
    ("计算结果是 #### 42", "42"),
    ("####72", "72"),
    ("The answer is 12", "12"),
    ("So, the answer is: 12.", "12"),
    ("The answer is 12!", "12"),
    ("The correct answer is 12 apples.", "12"),
    ("Therefore the answer to the question is 12", "12"),
    ("the answer should be 12", "12"),
    ("The answer is 12, because 5 + 7 = 12.", "12"),
    ("The answer is 12, as 12 + 5 = 17.", "12"),
    ("The answer is 12 (5 red and 7 green).", "12"),
    ("The answer is 12 out of 20.", "12"),
    ("Answer: 12", "12"),
    ("A long way.\nAnswer = 12", "12"),
    # LaTeX.
    (r"\boxed{12}", "12"),
    (r"The final answer is $\boxed{12}$.", "12"),
    (r"\[ \boxed{\frac{3}{4}} \]", "0.75"),
    (r"\boxed{-\dfrac{1}{2}}", "-1/2"),
    (r"\boxed{\tfrac12}", "0.5"),
    (r"\boxed{1\frac{1}{2}}", "1.5"),
    (r"\boxed{\text{12 apples}}", "12"),
    (r"\boxed{12 \text{ cm}^2}", "12"),
    (r"\boxed{1{,}234}", "1234"),
    (r"The answer is \(1\,234\).", "1234"),
    (r"\boxed{x = 5}", "5"),
    (r"Final Answer: \[" + "\n72\n" + r"\]", "72"),
    (r"The answer is $3 \times 10^4$", "30000"),
    (r"\boxed{45^\circ}", "45"),
    (r"\boxed{2\sqrt{3}}", r"2\sqrt{3}"),
    # Money.
    ("The answer is $10.", "10"),
    ("The answer is $1,234.50", "1234.5"),
    (r"Final Answer: \$18", "18"),
    ("Final Answer: $18$", "18"),
    ("Final Answer: 18 dollars", "18"),
    ("Final Answer: US$18", "18"),
    ("#### €0.75", "0.75"),
    ("The answer is -$5", "-5"),
    ("The answer is Rs. 500.", "500"),
    # Percent.
    ("The answer is 50%.", "50"),
    ("The answer is 50%.", "0.5"),
    (r"\boxed{12.5\%}", "12.5%"),
    ("Final Answer: 50 percent", "50"),
    ("The answer is 0.5", "50%"),
    # Units.
    ("#### 5 km", "5"),
    ("#### 5km", "5"),
    ("The answer is 60 km/h.", "60"),
    ("The answer is 12 m² of cloth.", "12"),
    ("Final Answer: 3 hours per day", "3"),
    ("12 square feet", "12"),
    # Thousands, decimals, signs, large numbers.
    ("#### 1,234,567", "1234567"),
    ("#### 1234567", "1,234,567"),
    ("The answer is 0.3333", "1/3"),
    ("The answer is .5", "0.5"),
    ("The answer is 12.00", "12"),
    ("The answer is −5", "-5"),
    ("The answer is negative 5.", "-5"),
    ("The answer is 3 million.", "3000000"),
    ("The answer is 1\N{NO-BREAK SPACE}234\N{NARROW NO-BREAK SPACE}567", "1234567"),
    ("The answer is 1.2e3", "1200"),
    ("The answer is about 12", "12"),
    # Fractions.
    ("The answer is 3/4", "0.75"),
    ("The answer is 3/4 of the cake.", "75%"),
    ("Final Answer: 1 1/2 cups", "1.5"),
    ("Final Answer: 1½ cups", "1.5"),
    ("Final Answer: 6/3", "2"),
    # Revised answers: the last one counts.
    ("The answer is 10. Wait, that is wrong. The answer is 12.", "12"),
    ("#### 10\nLet me check again.\n#### 12", "12"),
    (r"\boxed{10} No. \boxed{12}", "12"),
    ("Final Answer: 10\n\nActually, final answer: 12", "12"),
    ("Answer: 10. I forgot one.\n答案是12", "12"),
    ("The answer is 12. The answer is not 10.", "12"),
    ("The answer is 12. I hope this answer is helpful!", "12"),
    ("The answer is 12.\n\nFinal Answer:", "12"),
    ("#### Step 1: Add 5 and 7\nThat makes 12.\n#### 12", "12"),
    ("#### 1. Add\n5 and 7\n\nThe answer is 12\n#### 2. Check it", "12"),
    # Equations, also in chains.
    ("5 + 7 = 12", "12"),
    ("The answer is 5 + 7 = 12", "12"),
    ("5 + 7 = 6 + 6 = 12", "12"),
    ("First 3 * 2 = 6. Then 6 * 4 = 24.", "24"),
    ("She pays 12/60 = $0.2 a minute, so 0.2 x 50 = $10.", "10"),
    ("x = 5", "5"),
    ("12 = 5 + 7", "12"),
    ("10 ÷ 4 = 2.5", "2.5"),
    ("Total = 5 × 3 = 15 apples\nI hope this helps!", "15"),
    # Chinese.
    ("答案是12", "12"),
    ("答案：12个苹果。", "12"),
    ("所以，最终答案为 1，234 元。", "1234"),
    ("**答案**：**72**", "72"),
    ("答案是：负5", "-5"),
    ("答案是１２", "12"),
    ("答案是3万", "30000"),
    ("答案是12，因为5+7=12。", "12"),
    # Nothing but the number, and answers in words.
    ("42", "42"),
    (" $42. ", "42"),
    ("**42**", "42"),
    ("Let me think.\n\n42", "42"),
    ("The answer is (B).", "B"),
    (r"\boxed{\text{(B)}}", "B"),
    (r"\boxed{x^2 + 1}", "x^2+1"),
    ("The answer is right.", "right"),
    ("The answer is the cat.", "the cat"),
    ("The answer is Yes, because both are even.", "yes"),
    ("The answer is 12:30.", "12:30"),
    # After thinking.
    ("<think>Maybe the answer is 7.</think>\n\n9", "9"),
    ("<think>Maybe the answer is 7.</think>\n\nShe has **9** apples.", "9"),
    ("<think>\n#### 7\n</think>\n\nThe answer is 9.", "9"),
    ("Maybe the answer is 7.\n</think>\n\n9", "9"),
    ("<think>7</think>8? <think>The answer is 8.</think>\n9", "9"),
    ("9", "<think>Maybe the answer is 7.</think>\n\n9"),
    # In tags.
    ("<answer>42</answer>", "42"),
    ("All done.\n<answer>\n42\n</answer>\nThat was question 7.", "42"),
    ("<reasoning>40 + 1 = 41</reasoning><answer> $1,234.00 </answer>", "1234"),
    ("<answer>The answer is 42.</answer>", "42"),
    (r"<answer>\boxed{42}</answer>", "42"),
    ("<answer>#### 42</answer>", "42"),
    ("<answer>B</answer>", "B"),
    ("The answer is 7. <answer>42</answer>", "42"),
    ("<answer>7</answer> No: the answer is 42", "42"),
    # With the marks that end a turn of a chat.
    ("42<|im_end|>", "42"),
    ("The answer is 42<|im_end|>\n<|endoftext|><|endoftext|>\n", "42"),
    ("The answer is Paris</s>", "Paris"),
    ("#### 42<|eot_id|>", "42"),
    ("The answer is B<｜end▁of▁sentence｜>", "B"),
    ("<answer>42</answer><|im_end|>", "42"),
    # A box without braces, a reply, code, bold.
    (r"\boxed 5", "5"),
    (r"So it is $\boxed 42$.", "42"),
    (r"\boxed\frac{1}{2}", "0.5"),
    ("A: 42", "42"),
    ("Q: How many?\nA: She has 42 apples.\n\nI hope this helps!", "42"),
    ("**A:** 42", "42"),
    ("A: 15 were there. Then 21 - 15 = 6.", "6"),
    ("```\n42\n```", "42"),
    ("```python\n42\n```", "42"),
    ("The answer is:\n```text\n42\n```", "42"),
    ("The result:\n```\n42\n```\nI hope this helps!", "42"),
    ("So she has `42` apples.", "42"),
    ("She had 12 apples.\nShe has **9** left.\n\nI hope this helps!", "9"),
    # Powers.
    ("The answer is 10^3", "1000"),
    ("10^3", "1000"),
    (r"\boxed{2^{10}}", "1024"),
    ("The answer is 10²", "100"),
    ("The answer is 10^-2", "0.01"),
    # Digits of other scripts.
    ("٤٢", "42"),
    ("The answer is ٤٢.", "42"),
    ("#### ١٬٢٣٤٫٥", "1234.5"),
    ("The answer is 42", "४२"),
    # A statement of nothing hides no answer.
    ("The answer is,\n5 + 7 = 12", "12"),
    # Revised without saying "answer" again.
    ("The answer is 5. Actually no, it's 6.", "6"),
    ("The answer is 5. Wait, no, it should be **6**.", "6"),
    ("#### 5\nSorry, it is 6 apples.", "6"),
]

WRONG = [
    ("Final Answer: 71", "72"),
    ("The answer is 7", "72"),
    ("The answer is 72", "7"),
    ("The answer is 720", "72"),
    ("The answer is 1,234", "1"),
    ("The answer is 1.234", "1234"),
    ("The answer is -5", "5"),
    ("The answer is 5", "-5"),
    ("The answer is 12.5", "12"),
    ("The answer is 50%", "5"),
    ("The answer is 3/4", "3"),
    ("The answer is 3/4", "4"),
    ("The answer is 1 1/2", "1"),
    ("The answer is 3 million", "3"),
    (r"\boxed{2\sqrt{3}}", "2"),
    (r"\boxed{2^{10}}", "2"),
    ("The answer is 10²", "10"),
    ("The answer is 10²", "102"),
    ("The answer is 5x", "5"),
    ("The answer is 12:30", "12"),
    ("The answer is 12:30", "30"),
    # None at all.
    ("", "12"),
    ("   \n\n ", "12"),
    ("I do not know.", "12"),
    ("There are 12 apples on the table.", "12"),
    ("Mia has 5 red apples and 12 green ones", "12"),
    ("Final Answer:", "12"),
    (r"The answer is \boxed{12", "12"),
    (r"\boxed{}", "12"),
    ("#### 12. Find the number of apples", "12"),
    ("#### Step 12: add", "12"),
    ("The answer is not 12", "12"),
    ("答案不是12", "12"),
    ("The answer is clear.", "12"),
    # Several at once.
    ("The answer is 12 or 13", "12"),
    ("The answer is 12 or 13", "13"),
    ("The answer is 12, 13", "12"),
    ("The answer is 12 (or 13)", "12"),
    ("Final Answer: 12; 13", "12"),
    ("The answer is between 10 and 12", "12"),
    ("The answer is 10 to 12", "10"),
    ("The answer is 5 hours 30 minutes", "5"),
    ("Final Answer: x = 5 and y = 3", "3"),
    ("The answer is 10. Or rather, the answer is 12 or 13.", "10"),
    # Revised for the worse, and a sum that is left to the reader.
    ("The answer is 12. Wait, the answer is 10.", "12"),
    ("#### 12\n#### 10", "12"),
    ("The answer is 15 - 3", "12"),
    ("The answer is 15 - 3", "15"),
    ("The answer is 4 * 3", "12"),
    ("The answer is x - 3", "-3"),
    ("The answer is x/3", "3"),
    ("5 + 7 = ?", "12"),
    ("5 + 7 = 13", "12"),
    # Words.
    ("The answer is (A).", "B"),
    ("The answer is no", "yes"),
    ("The answer is yes", "12"),
    ("The answer is A, B", "A"),
    ("The answer is A or B", "A"),
    ("The answer is A (or B)", "A"),
    # Numbers that would not fit anywhere.
    ("The answer is 1e999999999", "12"),
    ("The answer is " + "9" * 10_000, "12"),
    ("The answer is 1/0", "12"),
    ("The answer is 9^999", "9"),
    ("The answer is 0^-1", "0"),
    # Thinking alone.
    ("<think>The answer is 9", "9"),
    ("<think>The answer is 9</think>", "9"),
    ("<think>#### 9</think>I do not know.", "9"),
    ("The answer is 9. <think>Or is it", "9"),
    # Tags that say nothing, several things, or something else in the end.
    ("<answer>42", "42"),
    ("<answer></answer>", "42"),
    ("<answer>12 or 13</answer>", "12"),
    ("<answer>42</answer><answer>7</answer>", "42"),
    # Choices are no replies, and bold is not always an answer.
    ("A: 12\nB: 15\nC: 20\nThe answer is B", "12"),
    ("A: 12\nB: 15", "12"),
    ("Take A: 12", "12"),
    ("She had **9** apples. Now she has 12.", "9"),
    ("She has **9** or 10 apples.", "9"),
    ("She has **9** or **10** apples.", "9"),
    ("It is not **9**.", "9"),
    ("**9.** Find the cost", "9"),
    # Powers that are no more than a part.
    ("The answer is 10^3", "10"),
    ("The answer is 10^3", "3"),
    ("The answer is 2^3^4", "8"),
    # Words that look like a revision.
    ("The answer is 5. Actually no, it's 6.", "5"),
    ("Actually, it's 6.", "6"),
    ("The answer is 12. Wait, it is 5 more than I thought it would be.", "5"),
]


@pytest.mark.parametrize(("text", "truth"), RIGHT)
def test_a_right_answer_is_read_right(text: str, truth: str) -> None:
    assert create_accuracy_reward()([text], ground_truth=[truth]) == [1.0]


@pytest.mark.parametrize(("text", "truth"), WRONG)
def test_a_wrong_answer_earns_nothing(text: str, truth: str) -> None:
    assert create_accuracy_reward()([text], ground_truth=[truth]) == [0.0]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem["answer"][-8:])
def test_a_worked_answer_states_its_own_result(problem: dict[str, str]) -> None:
    answer = read_answer(problem["answer"])
    assert answer is not None
    assert is_same(answer, read_truth(problem["answer"].rpartition("####")[2]), tolerance=0)


def test_every_answer_of_the_real_data_states_its_own_result() -> None:
    files = sorted(Path(REAL_DATA).rglob("gsm8k/*.jsonl")) if REAL_DATA else []
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()] or PROBLEMS
    reward = create_accuracy_reward(tolerance=0)
    truths = [row["answer"].rpartition("####")[2].strip() for row in rows]
    assert reward([row["answer"] for row in rows], ground_truth=truths) == [1.0] * len(rows)


# -- properties --------------------------------------------------------------------------------------

WHOLE = st.integers(min_value=-(10**12), max_value=10**12)
STATEMENTS = st.sampled_from(
    [
        "Final Answer: {}",
        "#### {}",
        r"\boxed{{{}}}",
        "The answer is {}.",
        "Answer: {}",
        "答案是{}。",
        "So 1 + 1 = {}",
        "{}",
    ]
)


def as_money(value: int) -> str:
    return f"-${-value:,}" if value < 0 else f"${value:,}"


WAYS_TO_WRITE = st.sampled_from(
    [str, "{:,}".format, as_money, "{} apples".format, "{}.00".format, r"\text{{{}}}".format, "{} dollars".format]
)


@given(value=WHOLE, write=WAYS_TO_WRITE, statement=STATEMENTS)
def test_a_number_is_read_in_every_way_it_is_written(value: int, write: Callable[[int], str], statement: str) -> None:
    answer = read_answer(statement.format(write(value)))
    assert answer is not None
    assert answer.number is not None
    assert answer.number.value == value


@given(value=st.decimals(min_value=-(10**9), max_value=10**9, places=3, allow_nan=False))
def test_a_decimal_is_read_without_loss(value: object) -> None:
    answer = read_answer(f"The answer is {value}")
    assert answer is not None
    assert answer.number is not None
    assert answer.number.value == Fraction(str(value))


@given(top=st.integers(-999, 999), bottom=st.integers(1, 999))
def test_a_fraction_is_exact(top: int, bottom: int) -> None:
    for text in (f"#### {top}/{bottom}", rf"\boxed{{\frac{{{top}}}{{{bottom}}}}}"):
        answer = read_answer(text)
        assert answer is not None
        assert answer.number is not None
        assert answer.number.value == Fraction(top, bottom)


@given(
    first=WHOLE, last=WHOLE, one=STATEMENTS, other=st.sampled_from(["Final Answer: {}", "#### {}", "The answer is {}"])
)
def test_the_last_statement_wins(first: int, last: int, one: str, other: str) -> None:
    answer = read_answer(f"{one.format(first)}\nNo, wait.\n{other.format(last)}")
    assert answer is not None
    assert answer.number is not None
    assert answer.number.value == last


@given(value=WHOLE, other=WHOLE)
def test_two_numbers_at_once_are_no_answer(value: int, other: int) -> None:
    assume(value != other)
    rewards = create_accuracy_reward()([f"The answer is {value} or {other}"] * 2, ground_truth=[value, other])
    assert rewards == [0.0, 0.0]


@given(thought=st.text(max_size=80), value=WHOLE, thinks=st.text(max_size=80), statement=STATEMENTS)
def test_thoughts_neither_earn_nor_cost(thought: str, value: int, thinks: str, statement: str) -> None:
    said = statement.format(value)
    assert read_answer(f"<think>{thought}#### {value + 1}</think>\n{said}") == read_answer(said)
    assert read_answer(f"{said}\n<think>{said}\n{thinks.replace('<', '')}") is None


END_MARKS = st.sampled_from(["<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>", "<|end_of_text|>", "\n", " "])


@given(statement=STATEMENTS, value=WHOLE, marks=st.lists(END_MARKS, max_size=6))
def test_the_marks_that_end_a_turn_are_no_part_of_an_answer(statement: str, value: int, marks: list[str]) -> None:
    said = statement.format(value)
    assert read_answer(said + "".join(marks)) == read_answer(said)


@given(value=st.integers(0, 10**9), zero=st.sampled_from("٠۰०০௦๐０"))
def test_digits_of_any_script_are_digits(value: int, zero: str) -> None:
    written = "".join(chr(ord(zero) + int(digit)) for digit in str(value))
    assert create_accuracy_reward(tolerance=0)([f"#### {written}", written], ground_truth=[value] * 2) == [1.0, 1.0]


@given(base=st.integers(1, 999), power=st.integers(0, 20))
def test_a_power_is_exact(base: int, power: int) -> None:
    for text in (f"#### {base}^{power}", rf"\boxed{{{base}^{{{power}}}}}"):
        assert create_accuracy_reward(tolerance=0)([text], ground_truth=[base**power]) == [1.0]


@given(text=st.text(max_size=300) | st.text(alphabet=string.digits + "=+-*/.,$%\\{}#()^ \naboxednswri", max_size=300))
def test_any_text_can_be_read(text: str) -> None:
    answer = read_answer(text)
    reward = create_accuracy_reward()
    if answer is None:
        assert reward.extract_answer(text) is None
    else:
        assert is_same(answer, answer)
        assert reward.compare_answers(
            reward.extract_answer(text), answer.number.value if answer.number else answer.text
        )


@given(value=WHOLE, gap=st.fractions(min_value=0, max_value=1), tolerance=st.sampled_from([0, 1e-4, 0.01, 0.5]))
def test_numbers_are_the_same_up_to_the_tolerance(value: int, gap: Fraction, tolerance: float) -> None:
    answer, truth = read_truth(value + gap), read_truth(value)
    assert is_same(answer, truth, tolerance=tolerance) == (gap <= Fraction(str(tolerance)))


@pytest.mark.parametrize(
    "text",
    [
        "answer is " * 5000,
        "\\boxed{" * 5000,
        "1 " * 20000 + "=",
        " " * 50000 + "x",
        "final answer" + " \t" * 20000,
        "<think>" * 5000 + "</think>" * 5000,
        "<answer>" * 5000,
        "<|im_end|>" * 5000,
        "#### " + "no, wait " * 5000 + "it's 5",
        "```\n" * 10000,
        "**1 " * 10000,
        "A: " * 10000 + "1",
    ],
)
@pytest.mark.timeout(20)
def test_no_text_takes_long_to_read(text: str) -> None:
    assert create_accuracy_reward()([text], ground_truth=["no"]) == [0.0]
