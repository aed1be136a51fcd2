"""The errors of fine-tuning.

ModelError (InvalidInputError)      a model that cannot be found, read or used
TrainingError (SharpenError, RuntimeError)  training that cannot go on
DatasetError (InvalidInputError)    a data set that cannot be found, read or used
└── RowError                        one row of it, by number and column
RewardError (SharpenError, ValueError)      a reward that gave no usable number; names the reward and the row
└── RewardTimeoutError (TimeoutError)       a reward that ran past its time
"""

from typing import Self

from ..errors import InvalidInputError, SharpenError


class ModelError(InvalidInputError):
    """A model that cannot be found, read or used."""


class TrainingError(SharpenError, RuntimeError):
    """Training that cannot go on."""


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
    """A reward function failed or returned something that is no reward. `row` is None where no one row is at fault."""

    reward: str
    row: int | None

    @classmethod
    def of(cls, reward: str, problem: str, *, row: int | None = None) -> Self:
        place = "" if row is None else f", row {row} (the first is row 0)"
        error = cls(f"reward {reward!r}{place}: {problem}")
        error.reward, error.row = reward, row
        return error


class RewardTimeoutError(RewardError, TimeoutError):
    """A reward function ran past the time of one call."""
