"""A data set in a list, with the interface of a Hugging Face `Dataset` and no dependencies."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, overload

Row = dict[str, Any]


class Dataset(Protocol):
    """The protocol of a data set: rows by number, columns by name. A Hugging Face `Dataset` satisfies it."""

    @property
    def column_names(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, key: Any, /) -> Any: ...


class ListDataset:
    """Rows in memory: `dataset[3]` is a row, `dataset["question"]` a column, `dataset[:3]` the columns of three rows.

    If a row lacks a column, its value there is None.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows: list[Row] = [dict(row) for row in rows]

    @property
    def column_names(self) -> list[str]:
        """The names of the columns, in the order in which they first appear in the rows."""
        return list({name: None for row in self._rows for name in row})

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return (dict(row) for row in self._rows)

    @overload
    def __getitem__(self, key: int) -> Row: ...
    @overload
    def __getitem__(self, key: slice) -> dict[str, list[Any]]: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> Row | dict[str, list[Any]] | list[Any]:
        if isinstance(key, str):
            if key not in self.column_names:
                raise KeyError(f"there is no column {key!r}; the columns are: {', '.join(self.column_names)}")
            return [row.get(key) for row in self._rows]
        if isinstance(key, slice):
            return {name: [row.get(name) for row in self._rows[key]] for name in self.column_names}
        return dict(self._rows[key])

    def __repr__(self) -> str:
        return f"ListDataset({len(self)} rows: {', '.join(self.column_names)})"

    def select(self, indices: Iterable[int]) -> "ListDataset":
        """Return the rows with these indices, in this order."""
        return ListDataset(self._rows[index] for index in indices)

    def map(
        self,
        function: Callable[..., Mapping[str, Any]],
        *,
        with_indices: bool = False,
        remove_columns: Sequence[str] | str | None = None,
    ) -> "ListDataset":
        """Return every row updated with `function(row)`, or with `function(row, index)` if `with_indices` is set."""
        removed = {remove_columns} if isinstance(remove_columns, str) else set(remove_columns or ())
        return ListDataset(
            {name: value for name, value in row.items() if name not in removed}
            | dict(function(dict(row), index) if with_indices else function(dict(row)))
            for index, row in enumerate(self._rows)
        )
