"""The errors of fine-tuning.

ModelError (InvalidInputError)      a model that cannot be found, read or used
TrainingError (SharpenError, RuntimeError)  training that cannot continue
DatasetError (InvalidInputError)    a data set that cannot be found, read or used
└── RowError                        one row of it, by number and column
RewardError (SharpenError, ValueError)      a reward that returned no usable number; names the reward and the row
└── RewardTimeoutError (TimeoutError)       a reward that exceeded its timeout
"""

from typing import Self

from ..errors import InvalidInputError, SharpenError


class ModelError(InvalidInputError):
    """A model that cannot be found, read or used."""


class TrainingError(SharpenError, RuntimeError):
    """Training that cannot continue."""


class DatasetError(InvalidInputError):
    """A data set that cannot be found, read or used."""


class RowError(DatasetError):
    """A row that lacks a column or holds a value that cannot be used."""

    row: int
    column: str

    @classmethod
    def of(cls, row: int, column: str, problem: str, *, source: str = "the data set") -> Self:
        error = cls(f"row {row} of {source} (the first is row 0), column {column!r}: {problem}")
        error.row, error.column = row, column
        return error


class RewardError(SharpenError, ValueError):
    """A reward function failed or returned something that is not a reward. `row` is None if no single row is at fault.

    `unit` says what `row` counts: the rows of a data set, or in training the completions of a batch.
    """

    reward: str = "reward"
    row: int | None = None
    unit: str = "row"
    problem: str | None = None
    excerpt: str = ""

    @classmethod
    def of(cls, reward: str, problem: str, *, row: int | None = None, unit: str = "row", excerpt: str = "") -> Self:
        error = cls()
        error.reward, error.row, error.problem = reward, row, problem
        return error.placed(unit, excerpt)

    def placed(self, unit: str, excerpt: str) -> Self:
        """Reword this error to count in `unit` and to quote the completion and prompt of `excerpt`; return it."""
        if self.problem is None:  # raised by a user's function, in words of its own
            return self
        self.unit, self.excerpt = unit, self.excerpt or excerpt
        noun, _, of_what = unit.partition(" ")
        counted = f", {noun} {self.row} {of_what}".rstrip() + f" (the first is {noun} 0)"
        self.args = (f"reward {self.reward!r}{'' if self.row is None else counted}: {self.problem}{self.excerpt}",)
        return self


class RewardTimeoutError(RewardError, TimeoutError):
    """A call to a reward function exceeded its timeout."""
