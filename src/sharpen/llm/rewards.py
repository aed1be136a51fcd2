"""Rewards for mathematics, and rewards that shape others.

A reward is `f(completions, **columns) -> list[float]`; the columns are those of the data set, one value a completion.
Each has a `__name__`, under which its values are logged. All of them can be pickled.
"""

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from ..errors import ConfigError, InvalidInputError
from .answers import is_same, plain, read_answer, read_truth, states_answer, typed
from .completions import Completion, completion_text, without_end_marks, without_thought_marks
from .errors import RewardError
from .reward_runner import RewardFunction, Rewards, call_reward, missing_column, reward_name, score

_LARGEST_STEP_BONUS = 0.5


class MathRewardFunction:
    """A reward of 1 if the final answer of a completion equals the column `ground_truth`, otherwise 0.

    Numbers are equal if they differ by at most `tolerance`, other answers if their words are the same. If a completion
    reasons in `<think>`, only what follows the last `</think>` counts.
    """

    def __init__(self, tolerance: float = 1e-4) -> None:
        if not (math.isfinite(tolerance) and tolerance >= 0):
            raise ConfigError(f"tolerance is {tolerance}: use 0 or a small positive number, such as 0.0001")
        self.tolerance = tolerance
        self.__name__ = "accuracy"

    def extract_answer(self, text: str) -> str | None:
        """Return the final answer that a text states, or None if there is none."""
        answer = read_answer(text)
        if answer is None:
            return None
        return answer.number.text if answer.number else answer.text

    def compare_answers(self, pred: object, truth: object) -> bool:
        """Return whether two answers are equal."""
        return is_same(read_truth(pred), read_truth(truth), tolerance=self.tolerance)

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float]:
        truths = self._truths(len(completions), columns)
        return [self._reward(row, *pair) for row, pair in enumerate(zip(completions, truths, strict=True))]

    def _truths(self, count: int, columns: dict[str, Any]) -> Sequence[object]:
        truths = columns.get("ground_truth")
        if truths is None:
            raise missing_column(self.__name__, "ground_truth", columns)
        if isinstance(truths, str) or len(truths) != count:
            raise RewardError.of(
                self.__name__, f"needs one ground_truth for each of {count} completions, not {truths!r:.80}"
            )
        return list(truths)

    def _reward(self, row: int, completion: Completion, truth: object) -> float:
        if truth is None or not str(truth).strip() or (isinstance(truth, float) and not math.isfinite(truth)):
            raise RewardError.of(
                self.__name__, f"ground_truth is {truth!r}, so there is nothing to compare with", row=row
            )
        try:
            answer = read_answer(completion_text(completion))
        except TypeError as error:
            raise RewardError.of(self.__name__, str(error), row=row) from error
        return float(answer is not None and is_same(answer, read_truth(truth), tolerance=self.tolerance))


class ShapedReward(ABC):
    """A reward that changes what another one gives. Where that one is async, this one is awaited too."""

    def __init__(self, base_reward_fn: RewardFunction, suffix: str) -> None:
        if not callable(base_reward_fn):
            raise ConfigError(
                f"base_reward_fn is {base_reward_fn!r}: pass a reward function, such as create_accuracy_reward()"
            )
        self.base_reward_fn = base_reward_fn
        self.__name__ = f"{reward_name(base_reward_fn)}_{suffix}"

    @abstractmethod
    def shape(self, reward: float, text: str) -> float:
        """The reward for a completion, from what the base reward gave for it."""

    def shaped(self, rewards: Rewards, completions: Sequence[Completion]) -> list[float | None]:
        """The rewards for completions; None stays None."""
        return [
            None if reward is None else self.shape(reward, completion_text(completion))
            for reward, completion in zip(rewards, completions, strict=True)
        ]

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> Rewards | Awaitable[Rewards]:
        rewards = call_reward(self.base_reward_fn, completions, columns)
        if inspect.isawaitable(rewards):
            return self._shaped_later(rewards, completions)
        return self.shaped(rewards, completions)

    async def _shaped_later(self, rewards: Awaitable[Rewards], completions: Sequence[Completion]) -> Rewards:
        return self.shaped(await rewards, completions)


class LengthPenaltyReward(ShapedReward):
    """Takes `penalty_weight` for every `max_length` characters above the first; takes no more than there is."""

    def __init__(self, base_reward_fn: RewardFunction, max_length: int = 1024, penalty_weight: float = 0.1) -> None:
        super().__init__(base_reward_fn, "length_penalty")
        if max_length < 1:
            raise ConfigError(f"max_length is {max_length}: use 1 or more characters")
        if not (math.isfinite(penalty_weight) and penalty_weight >= 0):
            raise ConfigError(f"penalty_weight is {penalty_weight}: use 0 or a positive number")
        self.max_length = max_length
        self.penalty_weight = penalty_weight

    def shape(self, reward: float, text: str) -> float:
        excess = max(0, len(text) - self.max_length)
        return max(min(reward, 0.0), reward - self.penalty_weight * excess / self.max_length)


class StepReward(ShapedReward):
    """Adds `step_bonus` for every step of reasoning, 0.5 at most. Steps count inside `<think>` too: it is reasoning."""

    def __init__(self, base_reward_fn: RewardFunction, step_bonus: float = 0.1) -> None:
        super().__init__(base_reward_fn, "steps")
        if not (math.isfinite(step_bonus) and step_bonus >= 0):
            raise ConfigError(f"step_bonus is {step_bonus}: use 0 or a positive number")
        self.step_bonus = step_bonus

    def shape(self, reward: float, text: str) -> float:
        return reward + min(self.step_bonus * count_steps(text), _LARGEST_STEP_BONUS)


def create_accuracy_reward(tolerance: float = 1e-4) -> MathRewardFunction:
    """Return a reward of 1 for a correct final answer, and 0 for an incorrect or missing one."""
    return MathRewardFunction(tolerance=tolerance)


def create_length_penalty_reward(
    base_reward_fn: RewardFunction, max_length: int = 1024, penalty_weight: float = 0.1
) -> LengthPenaltyReward:
    """Return the base reward with a penalty for completions longer than `max_length` characters."""
    return LengthPenaltyReward(base_reward_fn, max_length=max_length, penalty_weight=penalty_weight)


def create_step_reward(base_reward_fn: RewardFunction, step_bonus: float = 0.1) -> StepReward:
    """Return the base reward with a bonus for each reasoning step."""
    return StepReward(base_reward_fn, step_bonus=step_bonus)


def evaluate_rewards(
    completions: Sequence[Completion],
    ground_truths: Sequence[object],
    reward_fn: RewardFunction,
    *,
    timeout_seconds: float | None = None,
    **columns: Any,
) -> dict[str, float]:
    """Return the mean, spread and range of a reward over completions, and the fraction that is correct.

    A completion is correct if its reward, before any bonus or penalty, is greater than 0.5.
    """
    if not completions:
        raise InvalidInputError("completions is empty: pass at least one completion to evaluate")
    judge, shapes = unshaped(reward_fn)
    judged = score(judge, completions, {"ground_truth": ground_truths, **columns}, timeout_seconds=timeout_seconds)
    rewards = judged
    for shape in shapes:
        rewards = [
            shape.shape(reward, completion_text(text)) for reward, text in zip(rewards, completions, strict=True)
        ]
    mean = math.fsum(rewards) / len(rewards)
    return {
        "mean_reward": mean,
        "std_reward": math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards)),
        "min_reward": min(rewards),
        "max_reward": max(rewards),
        "accuracy": sum(reward > 0.5 for reward in judged) / len(judged),
        "num_samples": len(rewards),
    }


def unshaped(reward_fn: RewardFunction) -> tuple[RewardFunction, list[ShapedReward]]:
    """The reward that judges, and what shapes it, from the inside out."""
    shapes: list[ShapedReward] = []
    while isinstance(reward_fn, ShapedReward):
        shapes.insert(0, reward_fn)
        reward_fn = reward_fn.base_reward_fn
    return reward_fn, shapes


# -- steps of an answer -------------------------------------------------------------------------------


_STEP_MARK = re.compile(
    r"\s*(?:[-*•]\s+)?(?:(?:step|stage)\s*\d+|\(?\d{1,2}(?=[.):](?!\d))|第\s*[一二三四五六七八九十\d]+\s*步)\s*[.):,]*\s*",
    re.IGNORECASE,
)
_SENTENCES = re.compile(r"(?<=[.!?;])\s+|[。]")
_WORD = re.compile(r"[A-Za-z]{2,}|[\u4e00-\u9fff]")
_NAMES_OF_THINGS = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)+|[A-Za-z]{2,}|[\u4e00-\u9fff°]")
_NUMBER = r"(?>\d[\d,]*(?:\.\d+)?|\.\d+)"
_EXPRESSION = rf"[-(\s]*{_NUMBER}(?:[)\s]*(?:[-+*/x]|(?=\())[-(\s]*{_NUMBER})*[)\s]*"
_LEFT_SIDE = re.compile(rf"(?<![\d.])({_EXPRESSION})$")
_RIGHT_SIDE = re.compile(_EXPRESSION)
_LONGEST_SIDE = 200
_OPERATOR = re.compile(r"[\d)]\s*[-+*/x(]\s*[-(]*\s*[\d.]")
_UNKNOWN = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])[^=]*=|=[^=]*(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_TOKEN = re.compile(rf"\s*(?:({_NUMBER})|([-+*/x()]))")
_DIGIT = re.compile(r"\d")
_NOTHING = "nothing"
_ROUNDING = Fraction(1, 100)
_WORDS_OF_A_SENTENCE = 4
_NEW_WORDS_OF_A_SENTENCE = 2


def count_steps(text: str) -> int:
    """How many steps of reasoning a text takes."""
    counter = _Counter()
    text = typed(without_thought_marks(text))
    for line in re.sub(r"<<[^<>\n]*>>", "", text).splitlines():
        for sentence in _SENTENCES.split(without_end_marks(line)):  # each turn of a chat may end with one
            counter.add(sentence)
    return counter.steps


class _Counter:
    def __init__(self) -> None:
        self.steps = 0
        self._words: set[str] = set()
        self._calculations: set[object] = set()

    def add(self, sentence: str) -> None:
        mark = _STEP_MARK.match(sentence)
        said = sentence[mark.end() :] if mark else sentence
        if not said.strip() or states_answer(said):
            return
        calculations = _calculations(plain(said))
        if None in calculations:  # A wrong result is no step forward.
            return
        words = {word.casefold() for word in _WORD.findall(said)}
        if calculations - self._calculations or (not calculations and self._is_news(words, is_marked=bool(mark))):
            self.steps += 1
            self._words |= words
            self._calculations |= calculations

    def _is_news(self, words: set[str], *, is_marked: bool) -> bool:
        needed, new = (1, 1) if is_marked else (_WORDS_OF_A_SENTENCE, _NEW_WORDS_OF_A_SENTENCE)
        return len(words) >= needed and len(words - self._words) >= new


def _calculations(sentence: str) -> set[object]:
    """What a sentence calculates, each in a form that reordering does not change; None stands for a wrong result."""
    sides = _NAMES_OF_THINGS.sub(" ", sentence).replace("%", "/100").split("=")
    found = {_calculation(left, right) for left, right in pairwise(sides)} - {_NOTHING}
    if not found and len(sides) > 1 and _UNKNOWN.search(sentence) and _DIGIT.search(sentence):
        return {"".join(sentence.split())}
    return found


def _calculation(left: str, right: str) -> object:
    before, after = _LEFT_SIDE.search(left[-_LONGEST_SIDE:]), _RIGHT_SIDE.match(right[:_LONGEST_SIDE])
    if not before or not after or not _OPERATOR.search(before[0]):
        return _NOTHING
    value, stated = _Expression(before[0]).value, _Expression(after[0]).value
    if value is None or stated is None:
        return _NOTHING
    if not _is_result(stated, value):
        return None
    return value, tuple(sorted(_exact(number) for number, _ in _TOKEN.findall(before[0]) if number))


def _is_result(stated: Fraction, value: Fraction) -> bool:
    return abs(stated - value) <= _ROUNDING * max(abs(value), _ROUNDING)


def _exact(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").rstrip("."))


class _Expression:
    """Sums, products and brackets, worked out exactly; `value` is None for what is no expression."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = [number or sign for number, sign in _TOKEN.findall(text)]
        self._place = 0
        try:
            self.value: Fraction | None = self._sum()
        except (ValueError, ZeroDivisionError, RecursionError):
            self.value = None
        if self._place < len(self._tokens):
            self.value = None

    def _next(self, *signs: str) -> str | None:
        token = self._tokens[self._place] if self._place < len(self._tokens) else None
        if token is None or token not in signs:
            return None
        self._place += 1
        return token

    def _sum(self) -> Fraction:
        value = self._product()
        while sign := self._next("+", "-"):
            value += self._product() * (1 if sign == "+" else -1)
        return value

    def _product(self) -> Fraction:
        value = self._factor()
        while (sign := self._next("*", "x", "/")) or self._tokens[self._place : self._place + 1] == ["("]:
            factor = self._factor()
            value = value / factor if sign == "/" else value * factor
        return value

    def _factor(self) -> Fraction:
        if self._next("-"):
            return -self._factor()
        if self._next("("):
            value = self._sum()
            if not self._next(")"):
                raise ValueError("unclosed bracket")
            return value
        if self._place >= len(self._tokens):
            raise ValueError("missing number")
        self._place += 1
        return _exact(self._tokens[self._place - 1])
