"""Market data by stock and day, from plain files: `.npz` (never with pickles) or `.csv`.

A folder of data has `backtest/` (prices and volumes that orders are executed at), `feature/` (what a policy may see)
and `order/`. A file holds one stock: a column `datetime`, and one column for every name.
"""

import csv
import datetime as dt
import functools
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ...errors import InvalidInputError
from ..trees import Array

PRICE_COLUMNS = ("$close0", "$close")
VOLUME_COLUMNS = ("$volume0", "$volume")


@dataclass(frozen=True, eq=False)
class Ticks:
    """Columns of numbers over time, one row per tick."""

    index: Array
    columns: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, name: str) -> Array:
        if name not in self.columns:
            raise InvalidInputError(f"the data has no column {name!r}; it has {', '.join(sorted(self.columns))}")
        return self.columns[name]

    def part(self, where: slice) -> "Ticks":
        return Ticks(self.index[where], {name: column[where] for name, column in self.columns.items()})

    def first_of(self, names: Sequence[str]) -> Array:
        """Return the first of several columns that exists."""
        return self[next((name for name in names if name in self.columns), names[0])]

    def stacked(self, names: Sequence[str]) -> Array:
        """Return some columns side by side, as 32-bit floats."""
        return np.stack([self[name] for name in names], axis=1).astype(np.float32)


class StockFile:
    """All days of one stock."""

    def __init__(self, ticks: Ticks, path: Path) -> None:
        if len(ticks) == 0 or not bool((np.diff(ticks.index) > np.timedelta64(0)).all()):
            raise InvalidInputError(f"{path} has no ticks, or its ticks are not in order of time")
        self._ticks, self._path = ticks, path
        days, starts = np.unique(ticks.index.astype("M8[D]"), return_index=True)
        self._days = [day.item() for day in days]
        self._bounds = [*starts.tolist(), len(ticks)]

    def day(self, date: dt.date) -> Ticks:
        if date not in self._days:
            span = f"it has {len(self._days)} days from {self._days[0]} to {self._days[-1]}"
            raise InvalidInputError(f"{self._path} has no ticks for {date}: {span}")
        return self._part(self._days.index(date))

    def day_before(self, date: dt.date) -> Ticks | None:
        """Return the trading day before a day, if the file has one."""
        number = self._days.index(date)
        return self._part(number - 1) if number > 0 else None

    def _part(self, number: int) -> Ticks:
        return self._ticks.part(slice(self._bounds[number], self._bounds[number + 1]))


def open_stock(folder: Path, stock_id: str) -> StockFile:
    """Return the file of a stock in a folder; it is read again only when it has changed."""
    for suffix in (".npz", ".csv"):
        path = folder / f"{stock_id}{suffix}"
        if path.is_file():
            return _read(path, path.stat().st_mtime_ns)
    raise InvalidInputError(f"{folder} has no file {stock_id}.npz or {stock_id}.csv")


@functools.lru_cache(maxsize=64)
def _read(path: Path, _changed: int) -> StockFile:
    ticks = _read_npz(path) if path.suffix == ".npz" else _read_csv(path)
    return StockFile(ticks, path)


def _read_npz(path: Path) -> Ticks:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            columns = {name: arrays[name] for name in arrays.files}
            return Ticks(columns.pop("datetime").astype("M8[s]"), columns)
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise InvalidInputError(f"{path} cannot be read as market data: {error}") from error


def _read_csv(path: Path) -> Ticks:
    try:
        with path.open(newline="", encoding="utf-8") as opened:
            names, *lines = csv.reader(opened)
        columns: dict[str, Array] = dict(zip(names, np.array(lines, dtype=str).T, strict=True))
        index = columns.pop("datetime").astype("M8[s]")
        return Ticks(index, {name: column.astype(np.float64) for name, column in columns.items()})
    except (ValueError, KeyError) as error:
        raise InvalidInputError(f"{path} cannot be read as market data: {error}") from error


def write_stock(path: Path, ticks: Ticks) -> None:
    """Write one stock, as `.npz` or as `.csv`."""
    if path.suffix == ".npz":
        np.savez_compressed(path, datetime=ticks.index.astype("M8[s]"), **ticks.columns)  # type: ignore[arg-type]
        return
    with path.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(["datetime", *ticks.columns])
        values = [column.tolist() for column in ticks.columns.values()]
        writer.writerows(zip(ticks.index.astype("M8[s]").astype(str).tolist(), *values, strict=True))


class IntradayBacktestData:
    """Prices and volumes of one stock and day."""

    def __init__(self, ticks: Ticks) -> None:
        self.data = ticks

    def __len__(self) -> int:
        return len(self.data)

    def get_deal_price(self) -> Array:
        return self.data.first_of(PRICE_COLUMNS)

    def get_volume(self) -> Array:
        return self.data.first_of(VOLUME_COLUMNS)

    def get_time_index(self) -> Array:
        return self.data.index


@dataclass(frozen=True, eq=False)
class IntradayProcessedData:
    """Features of today and of the day before, one row per tick. The first day has zeros for the day before."""

    today: Array
    yesterday: Array


@runtime_checkable
class ProcessedDataProvider(Protocol):
    """Provides the features of a stock on a day."""

    def get_data(self, stock_id: str, date: dt.date, feature_dim: int, time_index: Array) -> IntradayProcessedData: ...


class FileProcessedDataProvider:
    """Features from the files in `feature/` of a data folder, or with `backtest` from those in `backtest/`."""

    def __init__(
        self,
        data_dir: str | Path,
        feature_columns_today: Sequence[str],
        feature_columns_yesterday: Sequence[str] | None = None,
        backtest: bool = False,
    ) -> None:
        self.folder = Path(data_dir) / ("backtest" if backtest else "feature")
        self.today = list(feature_columns_today)
        self.yesterday = list(feature_columns_yesterday) if feature_columns_yesterday else self.today

    def get_data(self, stock_id: str, date: dt.date, feature_dim: int, time_index: Array) -> IntradayProcessedData:
        if feature_dim != len(self.today):
            raise InvalidInputError(
                f"feature_dim is {feature_dim}, but feature_columns_today has {len(self.today)} columns"
            )
        found = _features(open_stock(self.folder, stock_id), date, tuple(self.today), tuple(self.yesterday))
        if len(found.today) != len(time_index):
            raise InvalidInputError(
                f"{stock_id} on {date} has features for {len(found.today)} ticks, but prices for {len(time_index)}"
            )
        return found


@functools.lru_cache(maxsize=4096)
def _features(
    file: StockFile, date: dt.date, today: tuple[str, ...], yesterday: tuple[str, ...]
) -> IntradayProcessedData:
    now, before = file.day(date), file.day_before(date)
    past: Any = np.zeros((len(now), len(yesterday)), np.float32) if before is None else before.stacked(yesterday)
    return IntradayProcessedData(now.stacked(today), past)
