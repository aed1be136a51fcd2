"""How good a model is: it answers the rows of a data set, and a reward judges.

Rows are those of training: RL rows with a `prompt` and columns for the reward, or SFT rows with `prompt` and
`completion`. Where a row has no `ground_truth`, the text of its `completion` stands in. Everything that can be checked
is checked before the model is loaded. Results are numbers, texts and lists, ready for JSON.
"""

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..checks import is_int, is_number
from ..errors import ConfigError
from ..stats import check_confidence, mean_interval, wilson_interval
from .completions import Completion, completion_text
from .errors import RowError
from .generation import GeneratedCompletion, Prompt, Sampling, complete
from .list_dataset import Row
from .reward_runner import RewardFunction, RewardRunner, reward_runners
from .rewards import MathRewardFunction, create_accuracy_reward, unshaped
from .sources import Source, read_rows, value_of

# What a reward is given under these names is made here, whatever columns the data set has.
_MADE_HERE = ("prompt", "prompts", "completions", "completion_ids")


def evaluate(
    model_path: str | os.PathLike[str],
    dataset: Source,
    reward_fn: RewardFunction | Sequence[RewardFunction] | None = None,
    *,
    max_samples: int | None = None,
    max_new_tokens: int = 512,
    temperature: float = 0.0,
    top_p: float = 1.0,
    batch_size: int = 8,
    correct_above: float = 0.5,
    confidence: float = 0.95,
    num_examples: int = 3,
    seed: int | None = 42,
    precision: str | None = None,
    allow_download: bool = True,
    reward_timeout_seconds: float | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Load a model by name or folder and judge its answers; see `evaluate_model` for the result."""
    exam = _Exam(
        rows=[_question(row, number) for number, row in enumerate(read_rows(dataset, max_samples=max_samples))],
        rewards=_Rewards(reward_fn, reward_timeout_seconds),
        sampling=Sampling(
            max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, batch_size=batch_size, seed=seed
        ),
        correct_above=correct_above,
        confidence=confidence,
        num_examples=num_examples,
        chat_template_kwargs=chat_template_kwargs,
    )
    from .models.loading import load_model

    loaded = load_model(model_path, precision=precision, allow_download=allow_download)
    return exam.take(loaded.model, loaded.tokenizer)


def evaluate_model(
    model: Any,
    tokenizer: Any,
    dataset: Source,
    reward_fn: RewardFunction | Sequence[RewardFunction] | None = None,
    *,
    max_samples: int | None = None,
    max_new_tokens: int = 512,
    temperature: float = 0.0,
    top_p: float = 1.0,
    batch_size: int = 8,
    correct_above: float = 0.5,
    confidence: float = 0.95,
    num_examples: int = 3,
    seed: int | None = 42,
    reward_timeout_seconds: float | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Judge the answers of a model in memory; it stays as it was.

    An answer is right when its reward is more than `correct_above`, before any bonus or penalty is applied; of several
    rewards the first decides, and a row's reward is their sum. Without a reward, an answer is right when it states the
    same final answer as `ground_truth` or is the same text. All rows are judged in one call, for which
    `reward_timeout_seconds` holds.

    The result has `accuracy`, `accuracy_interval`, `mean_reward`, `reward_interval` (None for a single row), `rewards`
    (the mean of each by name), `num_samples`, `tokens` (written by the model), `seconds` (without loading),
    `truncated` (the share that ran into a limit) and `examples`: the first rows answered `right` and `wrong`.
    """
    exam = _Exam(
        rows=[_question(row, number) for number, row in enumerate(read_rows(dataset, max_samples=max_samples))],
        rewards=_Rewards(reward_fn, reward_timeout_seconds),
        sampling=Sampling(
            max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, batch_size=batch_size, seed=seed
        ),
        correct_above=correct_above,
        confidence=confidence,
        num_examples=num_examples,
        chat_template_kwargs=chat_template_kwargs,
    )
    return exam.take(model, tokenizer)


class SameAnswer:
    """1 where a completion states the final answer of `ground_truth`, or is the same text; else 0."""

    def __init__(self) -> None:
        self.accuracy = create_accuracy_reward()
        self.__name__ = self.accuracy.__name__

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float]:
        rewards = self.accuracy(completions, **columns)
        texts = [completion_text(completion).strip() for completion in completions]
        truths = [str(truth).strip() for truth in columns["ground_truth"]]
        return [max(reward, float(text == truth)) for reward, text, truth in zip(rewards, texts, truths, strict=True)]


# -- rewards -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Marks:
    """What the rewards gave: what decides between right and wrong, the sum for each row, the mean of each by name."""

    judged: list[float]
    total: list[float]
    means: dict[str, float | None]


class _Rewards:
    """One or several rewards, of which the first decides what is right."""

    def __init__(
        self, reward_fn: RewardFunction | Sequence[RewardFunction] | None, timeout_seconds: float | None
    ) -> None:
        first, *self.others = reward_runners(
            SameAnswer() if reward_fn is None else reward_fn, timeout_seconds=timeout_seconds
        )
        self.name = first.__name__
        judge, self.shapes = unshaped(first.reward_fn)
        self.judge = RewardRunner(judge, timeout_seconds=timeout_seconds)

    def check(self, rows: Sequence[Row]) -> None:
        """The rewards of this package say beforehand what they need; others fail when they are called."""
        judges = [self.judge.reward_fn, *(unshaped(other.reward_fn)[0] for other in self.others)]
        if any(isinstance(judge, MathRewardFunction | SameAnswer) for judge in judges):
            for number, row in enumerate(rows):
                if not str(value_of(row, number, "ground_truth")).strip():
                    raise RowError.of(number, "ground_truth", "it is empty, so there is nothing to compare with")

    def __call__(self, completions: Sequence[Completion], columns: Mapping[str, Any]) -> _Marks:
        judged = self.judge(completions, **columns)
        values = judged
        for shape in self.shapes:
            values = shape.shaped(values, completions)
        by_name = {self.name: values} | {other.__name__: other(completions, **columns) for other in self.others}
        return _Marks(
            judged=[value for value in judged if value is not None],
            total=[
                math.fsum(value for value in of_row if value is not None)
                for of_row in zip(*by_name.values(), strict=True)
            ],
            means={name: _mean([value for value in values if value is not None]) for name, values in by_name.items()},
        )


# -- the exam ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Exam:
    """Questions and rewards, checked and ready for any model."""

    rows: list[Row]
    rewards: _Rewards
    sampling: Sampling
    correct_above: float
    confidence: float
    num_examples: int
    chat_template_kwargs: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        if not is_number(self.correct_above):
            raise ConfigError(f"correct_above is {self.correct_above!r}: use a reward, such as 0.5")
        if not is_int(self.num_examples) or self.num_examples < 0:
            raise ConfigError(f"num_examples is {self.num_examples!r}: use 0 for none, or a whole number above it")
        self.rewards.check(self.rows)

    def take(self, model: Any, tokenizer: Any) -> dict[str, Any]:
        start = time.perf_counter()
        prompts = [row["prompt"] for row in self.rows]
        written = complete(model, tokenizer, prompts, self.sampling, chat_template_kwargs=self.chat_template_kwargs)
        marks = self.rewards(_as_completions(prompts, written), self._columns(written))
        return self._result(written, marks, seconds=time.perf_counter() - start)

    def _columns(self, written: Sequence[GeneratedCompletion]) -> dict[str, list[Any]]:
        """What a reward is given, under the names that TRL uses in training."""
        names = dict.fromkeys(name for row in self.rows for name in row if name not in _MADE_HERE)
        columns = {name: [row.get(name) for row in self.rows] for name in names}
        return columns | {
            "prompts": [row["prompt"] for row in self.rows],
            "completion_ids": [each.token_ids for each in written],
        }

    def _result(self, written: Sequence[GeneratedCompletion], marks: _Marks, *, seconds: float) -> dict[str, Any]:
        count = len(self.rows)
        is_right = [reward > self.correct_above for reward in marks.judged]
        return {
            "accuracy": sum(is_right) / count,
            "accuracy_interval": list(wilson_interval(sum(is_right), count, self.confidence)),
            "mean_reward": _mean(marks.total),
            "reward_interval": list(mean_interval(marks.total, self.confidence)) if count > 1 else None,
            "rewards": marks.means,
            "num_samples": count,
            "tokens": sum(len(each.token_ids) for each in written),
            "seconds": seconds,
            "truncated": sum(each.is_truncated for each in written) / count,
            "examples": {
                "right": self._examples(written, marks, [row for row in range(count) if is_right[row]]),
                "wrong": self._examples(written, marks, [row for row in range(count) if not is_right[row]]),
            },
        }

    def _examples(
        self, written: Sequence[GeneratedCompletion], marks: _Marks, rows: Sequence[int]
    ) -> list[dict[str, Any]]:
        return [
            {
                "row": row,
                "prompt": _plain(self.rows[row]["prompt"]),
                "completion": written[row].text,
                "reward": marks.total[row],
                "truncated": written[row].is_truncated,
                **(
                    {"ground_truth": _plain(truth)} if (truth := self.rows[row].get("ground_truth")) is not None else {}
                ),
            }
            for row in rows[: self.num_examples]
        ]


def _question(row: Row, number: int) -> Row:
    """A row with its prompt, and a ground truth where it has one or shows the answer."""
    if row.get("prompt") is None:
        has = ", ".join(name for name in row if row[name] is not None) or "none"
        problem = (
            f"it is missing; the columns of this row are: {has}. Rows with 'question' and 'answer' become such rows by "
            "format_math_dataset(dataset, 'rl')"
        )
        raise RowError.of(number, "prompt", problem)
    if row.get("ground_truth") is not None or row.get("completion") is None:
        return row
    try:
        return row | {"ground_truth": completion_text(row["completion"]).strip()}
    except TypeError as error:
        raise RowError.of(number, "completion", str(error)) from error


def _as_completions(prompts: Sequence[Prompt], written: Sequence[GeneratedCompletion]) -> list[Completion]:
    """Completions as training hands them to a reward: messages for messages, a text for a text."""
    return [
        each.text if isinstance(prompt, str) else [{"role": "assistant", "content": each.text}]
        for prompt, each in zip(prompts, written, strict=True)
    ]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)
