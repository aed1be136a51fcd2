"""The errors of the training tool.

ParameterError (InvalidInputError)   keys or values of a call that are refused; one `Problem` for each
JobError (InvalidInputError)         a job that is not there, or that cannot be what is asked of it
"""

from dataclasses import dataclass
from typing import Any, Self

from ...errors import InvalidInputError
from ...secrets import shown


@dataclass(frozen=True)
class Problem:
    """One key that is refused: its value, and what would be right."""

    key: str
    message: str
    value: Any = None
    did_you_mean: str | None = None


class ParameterError(InvalidInputError):
    """A call of the tool whose keys or values are refused."""

    problems: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, key: str, value: Any, remedy: str) -> Self:
        """One value that is refused; `remedy` says why, and what to give instead."""
        return cls.of_all([Problem(key, f"{key} is {shown(value)}: {remedy}", value)])

    @classmethod
    def of_all(cls, problems: list[Problem]) -> Self:
        error = cls("; ".join(problem.message for problem in problems))
        error.problems = tuple(problems)
        return error


class JobError(InvalidInputError):
    """A job that cannot be found or read, or is in no state for what is asked."""
