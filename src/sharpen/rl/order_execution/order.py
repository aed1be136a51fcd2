"""Orders: an amount of one stock, to be bought or sold within a window of one day."""

import csv
import dataclasses
import datetime as dt
import enum
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from ...errors import InvalidInputError

COLUMNS = ["instrument", "datetime", "amount", "order_type"]


class OrderDir(enum.IntEnum):
    """The direction of an order."""

    SELL = 0
    BUY = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """An order, the initial state of an episode of order execution. A tick at `end_time` is no longer traded."""

    stock_id: str
    amount: float
    direction: OrderDir | int
    start_time: dt.datetime
    end_time: dt.datetime

    SELL: ClassVar[OrderDir] = OrderDir.SELL
    BUY: ClassVar[OrderDir] = OrderDir.BUY

    def __post_init__(self) -> None:
        if not self.amount > 0:
            raise InvalidInputError(f"the amount of an order for {self.stock_id} is {self.amount}: it must be above 0")
        if self.direction not in (0, 1):
            raise InvalidInputError(f"the direction of an order is {self.direction!r}: use 0 to sell or 1 to buy")
        if self.start_time >= self.end_time or self.start_time.date() != self.end_time.date():
            raise InvalidInputError(
                f"an order must start and end on one day, but it runs from {self.start_time} to {self.end_time}"
            )

    @property
    def date(self) -> dt.date:
        return self.start_time.date()


def load_orders(
    order_path: str | Path,
    start_time: dt.time | dt.datetime | None = None,
    end_time: dt.time | dt.datetime | None = None,
) -> list[Order]:
    """Return the orders of a CSV file, or of all CSV files in a folder; each runs from `start_time` to `end_time`.

    Of a `datetime` or a pandas `Timestamp` only the time of day counts. The columns are instrument, datetime, amount
    and order_type (0: sell, 1: buy). Orders of amount 0 are skipped.
    """
    path = Path(order_path)
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise InvalidInputError(f"{path} has no orders: pass a CSV file, or a folder of CSV files")
    opening, closing = _time_of_day(start_time, dt.time(0, 0)), _time_of_day(end_time, dt.time(23, 59, 59))
    return [order for file in files for order in _orders_in(file, opening, closing)]


def _time_of_day(given: dt.time | dt.datetime | None, usual: dt.time) -> dt.time:
    if given is None:
        return usual
    return given.time() if isinstance(given, dt.datetime) else given


def _orders_in(file: Path, opening: dt.time, closing: dt.time) -> Iterable[Order]:
    with file.open(newline="", encoding="utf-8") as opened:
        reader = csv.DictReader(opened)
        missing = set(COLUMNS) - set(reader.fieldnames or [])
        if missing:
            raise InvalidInputError(f"{file} has no column {sorted(missing)[0]!r}: it needs {', '.join(COLUMNS)}")
        for line, row in enumerate(reader, start=2):
            try:
                day = dt.datetime.fromisoformat(row["datetime"]).date()
                amount, direction = float(row["amount"]), OrderDir(int(row["order_type"]))
            except ValueError as error:
                raise InvalidInputError(f"line {line} of {file} cannot be read: {error}") from error
            if amount > 0:
                start, end = dt.datetime.combine(day, opening), dt.datetime.combine(day, closing)
                yield Order(row["instrument"], amount, direction, start, end)


def save_orders(path: Path, orders: Iterable[Order]) -> None:
    """Write orders for `load_orders`; the window within the day is not saved."""
    with path.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(COLUMNS)
        for order in orders:
            writer.writerow([order.stock_id, order.date.isoformat(), repr(order.amount), int(order.direction)])
