"""Calendars as sets: the days that a calendar matches, and the seconds of those days.

Must not know: time zones, intervals, specs. Pure.

A set of days, or of seconds of a day, is one large int whose bit n represents the number n. Union, difference and the
search for the next number are then single operations, and their cost does not depend on how rarely a calendar matches. A
calendar that never matches is the empty set, detected when it is compiled. The alternative, a day-by-day scan up to the
last year, took milliseconds for each rare calendar, at every step of its schedule.

`WallTimes` is a union of products (days, seconds of the day). Exclusions are subtracted from it once.
"""

from __future__ import annotations

from calendar import isleap
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

from hourglass._contract.cron import LAST_YEAR
from hourglass._contract.schedule_specs import ScheduleCalendarSpec, ScheduleRange

DAY = 86400
_FIRST_YEAR = 1970
_MONTH_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAYS = (date(LAST_YEAR + 1, 1, 1) - date(_FIRST_YEAR, 1, 1)).days
_ALL_DAYS = (1 << _DAYS) - 1
_ALL_SECONDS = (1 << DAY) - 1

Numbers = frozenset[int]


class NumberSet:
    """A non-empty set of non-negative integers, stored as a bit mask that starts at the smallest member."""

    __slots__ = ("_bits", "first", "last")

    def __init__(self, mask: int) -> None:
        self.first = (mask & -mask).bit_length() - 1
        self.last = mask.bit_length() - 1
        self._bits = mask >> self.first

    def next_from(self, number: int) -> int | None:
        """Return the first member >= `number`, or None if there is none."""
        if number <= self.first:
            return self.first
        bits = self._bits >> (number - self.first)
        return number + (bits & -bits).bit_length() - 1 if bits else None


@dataclass(frozen=True)
class Product:
    """The times that a calendar matches: every second in `seconds` on every day in `days`. Days are counted from
    1970-01-01.
    """

    days: NumberSet
    seconds: NumberSet

    def from_wall(self, wall: int) -> int | None:
        """Return the first time >= `wall`, or None if there is none."""
        day, second = divmod(max(wall, 0), DAY)
        matching_day = self.days.next_from(day)
        if matching_day == day:
            matching_second = self.seconds.next_from(second)
            if matching_second is not None:
                return day * DAY + matching_second
            matching_day = self.days.next_from(day + 1)
        return None if matching_day is None else matching_day * DAY + self.seconds.first


class WallTimes:
    """The times at which any of several calendars matches, in seconds of local wall-clock time since 1970."""

    def __init__(self, products: dict[int, int]) -> None:
        self._masks = products
        self.products = [Product(NumberSet(days), NumberSet(seconds)) for seconds, days in products.items()]
        self.last = max((p.days.last * DAY + p.seconds.last for p in self.products), default=-1)

    def from_wall(self, wall: int) -> int | None:
        """Return the first time >= `wall`, or None if there is none."""
        if wall > self.last:
            return None
        candidates = (product.from_wall(wall) for product in self.products)
        return min((time for time in candidates if time is not None), default=None)

    def without(self, calendars: Iterable[ScheduleCalendarSpec]) -> WallTimes:
        """Return these times, excluding all times that any of the given calendars matches."""
        remaining = self._masks
        for seconds, days in _products(calendars).items():
            reduced: dict[int, int] = {}
            for own_seconds, own_days in remaining.items():
                _add(reduced, own_seconds, own_days & ~days)
                _add(reduced, own_seconds & ~seconds, own_days & days)
            remaining = reduced
        return WallTimes(remaining)

    def every(self, step: int, remainder: int) -> WallTimes:
        """Return the times whose second of the day has this remainder modulo `step`. `step` must divide a day."""
        pattern = _repeat(1 << remainder, step, DAY // step)
        selected: dict[int, int] = {}
        for seconds, days in self._masks.items():
            _add(selected, seconds & pattern, days)
        return WallTimes(selected)


ALL_TIMES = WallTimes({_ALL_SECONDS: _ALL_DAYS})


def wall_times(calendars: Iterable[ScheduleCalendarSpec]) -> WallTimes:
    """Return the times at which at least one of these canonical calendars matches."""
    return WallTimes(_products(calendars))


def _products(calendars: Iterable[ScheduleCalendarSpec]) -> dict[int, int]:
    """Return the matching days by seconds of the day. Calendars with equal days or equal seconds are merged."""
    by_days: dict[int, int] = {}
    for calendar in calendars:
        days = _days(
            _numbers(calendar.day_of_month),
            _numbers(calendar.month),
            _numbers(calendar.day_of_week),
            _numbers(calendar.year),
        )
        seconds = _seconds(_numbers(calendar.second), _numbers(calendar.minute), _numbers(calendar.hour))
        _add(by_days, days, seconds)
    by_seconds: dict[int, int] = {}
    for days, seconds in by_days.items():
        _add(by_seconds, seconds, days)
    return by_seconds


def _add(products: dict[int, int], key: int, mask: int) -> None:
    if key and mask:
        products[key] = products.get(key, 0) | mask


def _numbers(ranges: tuple[ScheduleRange, ...]) -> Numbers:
    return frozenset(number for part in ranges for number in range(part.start, part.end + 1, part.step))


@lru_cache(maxsize=256)
def _seconds(second: Numbers, minute: Numbers, hour: Numbers) -> int:
    """Return the matching seconds of a day as a bit mask."""
    within_minute = sum(1 << number for number in second)
    within_hour = sum(within_minute << 60 * number for number in minute)
    return sum(within_hour << 3600 * number for number in hour)


@lru_cache(maxsize=256)
def _days(day_of_month: Numbers, month: Numbers, day_of_week: Numbers, year: Numbers) -> int:
    """Return the matching days as a bit mask. An empty `year` matches every year."""
    by_kind: dict[tuple[int, bool], str] = {}
    digits: list[str] = []
    for number in range(
        LAST_YEAR, _FIRST_YEAR - 1, -1
    ):  # the last digit is the lowest bit, so the latest year comes first
        if year and number not in year:
            digits.append("0" * (366 if isleap(number) else 365))
            continue
        kind = (date(number, 1, 1).isoweekday() % 7, isleap(number))
        if kind not in by_kind:
            by_kind[kind] = _days_of_year(day_of_month, month, day_of_week, *kind)
        digits.append(by_kind[kind])
    return int("".join(digits), 2)


def _days_of_year(
    day_of_month: Numbers, month: Numbers, day_of_week: Numbers, first_weekday: int, leap: bool
) -> str:
    """Return the matching days of a year as binary digits, with the last day first."""
    digits: list[str] = []
    for number, usual_length in enumerate(_MONTH_LENGTHS, 1):
        length = usual_length + (leap and number == 2)
        if number not in month:
            digits.append("0" * length)
            continue
        weekday = first_weekday + sum(map(len, digits)) - 1
        digits.append(
            "".join(
                "1" if day in day_of_month and (weekday + day) % 7 in day_of_week else "0"
                for day in range(1, length + 1)
            )
        )
    return "".join(digits)[::-1]


def _repeat(bits: int, width: int, count: int) -> int:
    """Return the bits repeated `count` times."""
    result, filled = 0, 0
    block, block_count = bits, 1
    while count:  # doubling makes the number of operations logarithmic
        if count & 1:
            result |= block << (filled * width)
            filled += block_count
        block |= block << (block_count * width)
        block_count *= 2
        count >>= 1
    return result
