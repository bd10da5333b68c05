"""A server's checks of a schedule's spec, and its canonical form, as a server shows it. Pure.

The embedded engine's search for times starts from the canonical form.
"""

from __future__ import annotations

from io import BytesIO
from zoneinfo import ZoneInfo

import msgspec

from hourglass._contract.cron import FIELDS, Cron, Field, parse_cron
from hourglass._contract.schedules import CalendarSpec, EngineScheduleSpec, IntervalSpec, Range
from hourglass.errors import UsageError

_LONGEST_COMMENT = 200
_LONGEST_INTERVAL = 2**63 / 1e9  # seconds: servers count nanoseconds in 64 bits


def canonical(spec: EngineScheduleSpec) -> EngineScheduleSpec:
    """Return the spec without cron strings and with all defaults filled in. Raises `UsageError` for an invalid spec."""
    crons = [parse_cron(text) for text in spec.cron_expressions]
    zone = _zone_of(spec, crons)
    calendars = (*spec.calendars, *(cron.calendar for cron in crons if cron.calendar is not None))
    intervals = (*spec.intervals, *(cron.interval for cron in crons if cron.interval is not None))
    if spec.start_at_ns and spec.end_at_ns and spec.end_at_ns < spec.start_at_ns:
        raise UsageError("the schedule ends before it starts: end_at lies before start_at")
    return msgspec.structs.replace(
        spec,
        calendars=tuple(_calendar(calendar) for calendar in calendars),
        intervals=tuple(_interval(interval) for interval in intervals),
        cron_expressions=(),
        skip=tuple(_calendar(skipped) for skipped in spec.skip),
        time_zone=zone,
    )


def is_empty(spec: EngineScheduleSpec) -> bool:
    """Whether the spec names no time."""
    return not (spec.calendars or spec.intervals or spec.cron_expressions)


def load_zone(name: str, definition: bytes = b"") -> ZoneInfo:
    """Return a time zone from its definition, if set, else by name; an empty name is UTC. Raises `UsageError`."""
    try:
        if definition:
            return ZoneInfo.from_file(BytesIO(definition), name or None)
        return ZoneInfo(name or "UTC")
    except Exception:  # zoneinfo raises many kinds of errors
        raise UsageError(
            f"there is no time zone {name!r}: give a name of the IANA database, such as Europe/Berlin or UTC"
        ) from None


def _zone_of(spec: EngineScheduleSpec, crons: list[Cron]) -> str:
    named = {cron.time_zone for cron in crons}
    if len(named) > 1:
        raise UsageError(
            "all cron strings of a schedule must name the same time zone, or none: set time_zone_name instead"
        )
    zone = next(iter(named), "")
    if zone and (spec.time_zone_data or spec.time_zone not in ("", zone)):
        raise UsageError(
            f"a cron string names the time zone {zone!r}, and the schedule another one, {spec.time_zone!r}"
        )
    zone = zone or spec.time_zone
    load_zone(zone, spec.time_zone_data)
    return zone


def _calendar(calendar: CalendarSpec) -> CalendarSpec:
    if len(calendar.comment) > _LONGEST_COMMENT:
        raise UsageError(f"the comment of a calendar is longer than {_LONGEST_COMMENT} characters")
    ranges = {
        field.name: tuple(_range(numbers, field) for numbers in getattr(calendar, field.name))
        for field in FIELDS
    }
    return CalendarSpec(**ranges, comment=calendar.comment)


def _range(numbers: Range, field: Field) -> Range:
    start, step = numbers.start, numbers.step or 1
    end = max(numbers.start, numbers.end)
    if not field.low <= start <= field.high or end > field.high or 0 < numbers.end < start or step < 0:
        raise UsageError(
            f"{field.what} go from {field.low} to {field.high}, in steps from 1 on: "
            f"there is no range from {numbers.start} to {numbers.end} in steps of {numbers.step}"
        )
    return Range(start, end, step)


def _interval(interval: IntervalSpec) -> IntervalSpec:
    if interval.every < 1:
        raise UsageError(f"an interval is at least a second, not {interval.every:g} s")
    if interval.every >= _LONGEST_INTERVAL:
        raise UsageError("an interval is shorter than 292 years")
    if not 0 <= interval.offset < interval.every:
        raise UsageError(
            f"the offset of an interval is shorter than the interval: {interval.offset:g} s of {interval.every:g} s"
        )
    return interval
