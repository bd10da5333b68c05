"""A schedule's spec as the server reads it: checked, and its cron strings turned into calendars and intervals. Pure.

`canonical` is what a server shows of a spec that it was given; the engine's search for times starts from it.
"""

from __future__ import annotations

from io import BytesIO
from zoneinfo import ZoneInfo

import msgspec

from hourglass._bridge.schedule_cron import FIELDS, Cron, Field, parse_cron
from hourglass._bridge.service_schedules import CalendarSpec, IntervalSpec, Range, ScheduleSpec
from hourglass.errors import UsageError

_LONGEST_COMMENT = 200
_LONGEST_INTERVAL = 2**63 / 1e9  # seconds: servers count nanoseconds in 64 bits


def canonical(spec: ScheduleSpec) -> ScheduleSpec:
    """The spec without cron strings and with every default written out. Raises `UsageError` where it makes no sense."""
    crons = [parse_cron(text) for text in spec.cron_expressions]
    zone = _zone_of(spec, crons)
    calendars = (*spec.calendars, *(cron.calendar for cron in crons if cron.calendar is not None))
    intervals = (*spec.intervals, *(cron.interval for cron in crons if cron.interval is not None))
    if spec.start_at_ns and spec.end_at_ns and spec.end_at_ns < spec.start_at_ns:
        raise UsageError("the schedule ends before it starts: end_at lies before start_at")
    return msgspec.structs.replace(
        spec,
        calendars=tuple(_calendar(each) for each in calendars),
        intervals=tuple(_interval(each) for each in intervals),
        cron_expressions=(),
        skip=tuple(_calendar(each) for each in spec.skip),
        time_zone=zone,
    )


def is_empty(spec: ScheduleSpec) -> bool:
    """Whether it names no time at all."""
    return not (spec.calendars or spec.intervals or spec.cron_expressions)


def load_zone(name: str, definition: bytes = b"") -> ZoneInfo:
    """A time zone by its definition, if there is one, or its name; UTC where it is empty. Raises `UsageError`."""
    try:
        if definition:
            return ZoneInfo.from_file(BytesIO(definition), name or None)
        return ZoneInfo(name or "UTC")
    except Exception:  # as many kinds as there are ways to misname a file
        raise UsageError(
            f"there is no time zone {name!r}: give a name of the IANA database, such as Europe/Berlin or UTC"
        ) from None


def _zone_of(spec: ScheduleSpec, crons: list[Cron]) -> str:
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
        field.name: tuple(_range(each, field) for each in getattr(calendar, field.name)) for field in FIELDS
    }
    return CalendarSpec(**ranges, comment=calendar.comment)


def _range(given: Range, field: Field) -> Range:
    start, step = given.start, given.step or 1
    end = max(given.start, given.end)
    if not field.low <= start <= field.high or end > field.high or 0 < given.end < start or step < 0:
        raise UsageError(
            f"{field.what} go from {field.low} to {field.high}, in steps from 1 on: "
            f"there is no range from {given.start} to {given.end} in steps of {given.step}"
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
