"""A server's checks of a schedule's spec, and its canonical form, as a server returns it. Pure.

The embedded engine's search for times starts from the canonical form.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from io import BytesIO
from zoneinfo import ZoneInfo

from hourglass._contract.cron import FIELDS, Cron, Field, parse_cron
from hourglass._contract.schedule_specs import (
    ScheduleCalendarSpec,
    ScheduleIntervalSpec,
    ScheduleRange,
    ScheduleSpec,
)
from hourglass.errors import UsageError

_LONGEST_COMMENT = 200
_LONGEST_INTERVAL = timedelta(seconds=2**63 / 1e9)  # servers count nanoseconds as 64-bit integers


def canonical(spec: ScheduleSpec) -> ScheduleSpec:
    """Return the spec with cron strings converted and all defaults filled in. Raise `UsageError` for an invalid spec."""
    crons = [parse_cron(text) for text in spec.cron_expressions]
    zone = _zone_of(spec, crons)
    calendars = (*spec.calendars, *(cron.calendar for cron in crons if cron.calendar is not None))
    intervals = (*spec.intervals, *(cron.interval for cron in crons if cron.interval is not None))
    if spec.start_at is not None and spec.end_at is not None and spec.end_at < spec.start_at:
        raise UsageError("the schedule ends before it starts: end_at is before start_at")
    return replace(
        spec,
        calendars=tuple(_calendar(calendar) for calendar in calendars),
        intervals=tuple(_interval(interval) for interval in intervals),
        cron_expressions=(),
        skip=tuple(_calendar(skipped) for skipped in spec.skip),
        time_zone_name=zone or None,
    )


def is_empty(spec: ScheduleSpec) -> bool:
    """Whether the spec contains no calendars, intervals or cron strings."""
    return not (spec.calendars or spec.intervals or spec.cron_expressions)


def load_zone(name: str, definition: bytes = b"") -> ZoneInfo:
    """Return a time zone from its definition or, without a definition, by its name. An empty name means UTC. Raise
    `UsageError` for an unknown time zone.
    """
    try:
        if definition:
            return ZoneInfo.from_file(BytesIO(definition), name or None)
        return ZoneInfo(name or "UTC")
    except Exception:  # zoneinfo raises many kinds of errors
        raise UsageError(
            f"unknown time zone {name!r}: use a name of the IANA database, such as Europe/Berlin or UTC"
        ) from None


def _zone_of(spec: ScheduleSpec, crons: list[Cron]) -> str:
    named = {cron.time_zone for cron in crons}
    if len(named) > 1:
        raise UsageError(
            "all cron strings of a schedule must have the same time zone: remove their time zones and set time_zone_name"
        )
    zone = next(iter(named), "")
    own_zone = spec.time_zone_name or ""
    if zone and (spec._time_zone_data or own_zone not in ("", zone)):
        raise UsageError(
            f"a cron string has the time zone {zone!r}, but the schedule has the time zone {own_zone!r}: set only one "
            "of them"
        )
    zone = zone or own_zone
    load_zone(zone, spec._time_zone_data)
    return zone


def _calendar(calendar: ScheduleCalendarSpec) -> ScheduleCalendarSpec:
    if len(calendar.comment) > _LONGEST_COMMENT:
        raise UsageError(f"the comment of a calendar is longer than {_LONGEST_COMMENT} characters")
    ranges = {
        field.name: tuple(_range(numbers, field) for numbers in getattr(calendar, field.name))
        for field in FIELDS
    }
    return ScheduleCalendarSpec(**ranges, comment=calendar.comment)


def _range(numbers: ScheduleRange, field: Field) -> ScheduleRange:
    start, step = numbers.start, numbers.step or 1
    end = max(numbers.start, numbers.end)
    if not field.low <= start <= field.high or end > field.high or 0 < numbers.end < start or step < 0:
        raise UsageError(
            f"invalid range of {field.what}: {numbers.start} to {numbers.end} in steps of {numbers.step}. The values "
            f"must be from {field.low} to {field.high}, and the step at least 1"
        )
    return numbers if (end, step) == (numbers.end, numbers.step) else ScheduleRange(start, end, step)


def _interval(interval: ScheduleIntervalSpec) -> ScheduleIntervalSpec:
    every, offset = interval.every, interval.offset
    if every < timedelta(seconds=1):
        raise UsageError(f"an interval must be at least one second, not {every.total_seconds():g} s")
    if every >= _LONGEST_INTERVAL:
        raise UsageError("an interval must be shorter than 292 years")
    if offset >= every:
        raise UsageError(
            f"the offset of an interval must be shorter than the interval, but the offset is {offset.total_seconds():g} "
            f"s and the interval {every.total_seconds():g} s"
        )
    return interval
