"""Schedule specs of all kinds, each with a period of time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hourglass._contract.schedule_specs import (
    Numbers,
    ScheduleCalendarSpec,
    ScheduleIntervalSpec,
    ScheduleRange,
    ScheduleSpec,
)


@dataclass(frozen=True)
class Look:
    """A spec, and the period for which its times are computed."""

    spec: ScheduleSpec
    begin: str
    end: str

    def __str__(self) -> str:
        spec = self.spec
        what = (
            " | ".join(spec.cron_expressions)
            or f"{len(spec.calendars)} calendars {len(spec.intervals)} intervals"
        )
        return f"{what} {spec.time_zone_name or ''} {self.begin}"


def nanos(text: str) -> int:
    return int(time(text).timestamp() * 1e9)


def time(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def cron(text: str, begin: str, end: str, zone: str = "", **fields: Any) -> Look:
    return Look(ScheduleSpec(cron_expressions=(text,), time_zone_name=zone, **fields), begin, end)


def calendar(begin: str, end: str, zone: str = "", **fields: Numbers) -> Look:
    return Look(ScheduleSpec(calendars=(ScheduleCalendarSpec(**fields),), time_zone_name=zone), begin, end)


YEAR = ("2026-01-01", "2027-01-01")
WEEK = ("2026-01-01", "2026-01-08")
HOURS = ("2026-01-01T00:00:00", "2026-01-01T06:00:00")
NIGHTS = ScheduleCalendarSpec(
    second=(ScheduleRange(0, 59),),
    minute=(ScheduleRange(0, 59),),
    hour=(ScheduleRange(0, 6), ScheduleRange(20, 23)),
    comment="nights",
)
WEEKENDS = ScheduleCalendarSpec(
    second=ScheduleRange(0, 59), minute=ScheduleRange(0, 59), hour=ScheduleRange(0, 23), day_of_week=[0, 6]
)

CRONS = [
    cron("0 9 * * MON-FRI", *WEEK),
    cron("0 9 * * MON-FRI", *WEEK, "Europe/Berlin"),
    cron("*/7 3 * * *", *WEEK),
    cron("5/20 */6 * * *", *WEEK),
    cron("0,15,30-40/5 12 1 * *", *YEAR),
    cron("0 0 13 * 5", *YEAR),
    cron("0 0 31 * *", *YEAR),
    cron("0 0 29 2 *", "2026-01-01", "2045-01-01"),
    cron("0 0 30 2 *", *YEAR),
    cron("0 12 * jan,Sept,decem sun", *YEAR),
    cron("0 12 * * sunday,Tues", *WEEK),
    cron("15 10 * * 7", *YEAR),
    cron("15 10 * * 5-7", *WEEK),
    cron("15 10 * * 1-7/2", *WEEK),
    cron("15 10 * * 0-7", *WEEK),
    cron("15 10 * * */3", *WEEK),
    cron("0 0 1 1 * 2030/10", "2026-01-01", "2100-12-31"),
    cron("0 0 1 1 * 2027,2029", "2026-01-01", "2040-01-01"),
    cron("*/15 30 4 * * * *", *WEEK),
    cron("10,50 59 23 31 12 * 2026-2028", "2026-01-01", "2040-01-01"),
    cron("* * * * * * *", "2026-01-01T00:00:00", "2026-01-01T00:01:30"),
    cron("@yearly", "2026-01-01", "2036-01-01"),
    cron("@annually", "2026-01-01", "2036-01-01"),
    cron("@monthly", *YEAR),
    cron("@weekly", *YEAR),
    cron("@daily", *WEEK),
    cron("@midnight", *WEEK, "Asia/Tokyo"),
    cron("@hourly", *HOURS),
    cron("  @hourly  # with a comment", *HOURS),
    cron("30 4 * * * # tea # time", *WEEK),
    cron("@every 90m", *HOURS),
    cron("@every 90m/7m", *HOURS),
    cron("@every 1.5h", *HOURS),
    cron("@every 1h30m", *HOURS),
    cron("@every 2d", *WEEK),
    cron("@every 100s", "2026-01-01T00:00:00", "2026-01-01T00:30:00"),
    cron("CRON_TZ=America/New_York 30 9 * * *", *WEEK),
    cron("TZ=Asia/Kolkata 30 9 * * *", *WEEK),
    cron("CRON_TZ=America/New_York @daily", "2026-10-31", "2026-11-03"),
]

CLOCK_CHANGES = [
    cron("30 2 * * *", "2026-03-27", "2026-03-31", "Europe/Berlin"),
    cron("*/20 * * * *", "2026-03-28T23:00:00", "2026-03-29T04:00:00", "Europe/Berlin"),
    cron("0 0 * * *", "2026-04-22", "2026-04-27", "Africa/Cairo"),
    cron("*/10 * * * *", "2026-10-03T14:00:00", "2026-10-03T17:00:00", "Australia/Lord_Howe"),
    cron("0 0 * * *", "2026-09-04", "2026-09-08", "America/Santiago"),
    cron("30 2 * * *", "2026-03-07", "2026-03-10", "America/New_York"),
    cron("30 1 * * *", "2026-10-31", "2026-11-03", "America/New_York"),
    cron("30 1,2,3 * * *", "2026-10-31", "2026-11-03", "America/New_York"),
    cron("*/20 * * * *", "2026-11-01T04:30:00", "2026-11-01T08:00:00", "America/New_York"),
    cron("0 1-2 * * *", "2026-10-31", "2026-11-03", "America/Los_Angeles"),
    cron("*/30 * * * *", "2026-04-05T01:00:00", "2026-04-05T06:00:00", "America/Santiago"),
    cron("*/15 0-2 * * *", "2026-10-30T12:00:00", "2026-11-01T12:00:00", "America/St_Johns"),
    cron("0 12 * * *", *WEEK, "Asia/Kathmandu"),
]
"""Days on which clocks go forward by an hour, or back west of Greenwich: there the server follows its own rule."""

OTHERS = [
    calendar(*WEEK, hour=(ScheduleRange(9), ScheduleRange(17))),
    calendar(
        *WEEK,
        hour=(ScheduleRange(8, 18, 4),),
        minute=(ScheduleRange(30),),
        day_of_week=(ScheduleRange(1, 5),),
    ),
    calendar(*YEAR, day_of_month=(ScheduleRange(28, 31),), month=(ScheduleRange(2, 12, 3),)),
    calendar(*WEEK, "Australia/Sydney", hour=(ScheduleRange(0),)),
    calendar(
        "2026-01-01",
        "2040-01-01",
        month=(ScheduleRange(6),),
        day_of_month=(ScheduleRange(1),),
        year=(ScheduleRange(2028, 2036, 4),),
    ),
    calendar(
        "2026-01-01T00:00:00",
        "2026-01-01T00:10:00",
        second=(ScheduleRange(0, 59, 17),),
        minute=(ScheduleRange(3, 5),),
        hour=(ScheduleRange(0),),
    ),
    Look(ScheduleSpec(intervals=(ScheduleIntervalSpec(3600.0),)), *HOURS),
    Look(ScheduleSpec(intervals=(ScheduleIntervalSpec(3600.0, 1140.0),)), *HOURS),
    Look(
        ScheduleSpec(intervals=(ScheduleIntervalSpec(7.0), ScheduleIntervalSpec(11.0, 3.0))),
        HOURS[0],
        "2026-01-01T00:02:00",
    ),
    Look(ScheduleSpec(intervals=(ScheduleIntervalSpec(28 * 86400.0, 277380.0),)), *YEAR),
    Look(ScheduleSpec(intervals=(ScheduleIntervalSpec(90.7, 1.9),)), HOURS[0], "2026-01-01T00:10:00"),
    Look(
        ScheduleSpec(
            cron_expressions=("0 12 * * *", "@every 5h"),
            calendars=(ScheduleCalendarSpec(hour=(ScheduleRange(7),), minute=(ScheduleRange(7),)),),
            intervals=(ScheduleIntervalSpec(86400.0, 60.0),),
        ),
        *WEEK,
    ),
    Look(ScheduleSpec(cron_expressions=("0 6 * * *", "0 18 * * *"), time_zone_name="Europe/Paris"), *WEEK),
    Look(ScheduleSpec(cron_expressions=("0 * * * *",), skip=(NIGHTS, WEEKENDS)), *WEEK),
    Look(
        ScheduleSpec(cron_expressions=("0 * * * *",), skip=(NIGHTS, WEEKENDS), time_zone_name="Asia/Tokyo"),
        *WEEK,
    ),
    Look(ScheduleSpec(intervals=(ScheduleIntervalSpec(1200.0),), skip=(NIGHTS,)), *WEEK),
    Look(
        ScheduleSpec(
            intervals=(ScheduleIntervalSpec(600.0),),
            start_at=time("2026-01-01T01:00:00"),
            end_at=time("2026-01-01T02:00:00"),
        ),
        *HOURS,
    ),
    Look(
        ScheduleSpec(cron_expressions=("*/10 * * * *",), start_at=time("2026-01-01T01:00:00.500")),
        HOURS[0],
        "2026-01-01T02:00:00",
    ),
    Look(ScheduleSpec(cron_expressions=("*/10 * * * *",), end_at=time("2026-01-01T01:09:59")), *HOURS),
]

LOOKS = [*CRONS, *CLOCK_CHANGES, *OTHERS]

UNUSUAL = [
    "@every 1d12h", "@every 1.5d", "@every 12h1d", "@every .5h", "@every 1us", "@every 1000000us", "@every 90",
    "@every 0s", "@every 1h/1h", "@every 1h/-5m", "@every -1h", "@every 1h/", "@every", "@every1h", "@every  1h",
    "@every 1h 5m", "@EVERY 1h", "@Daily", "@daily extra", "@every 100ms", "@every 1m1m", "@every 5 m", "@every 2w",
    "@every 1h30", "@every 1e3s", "@every 106752d", "@every 1h # c", "0 0 1 JAN-mar *", "0 0 * * MO-FR", "0 0 * * m",
    "0 0 * * Sunda", "0 0 * * sundays", "0 0 1 ja *", "0 0 * * fri-sun", "0 0 * * FRI-7", "0 0 * * 7-7", "0 0 * * 0/7",
    "0 0 * * 6/1", "0 0 * * ,", "1/2/3 * * * *", "*/5/2 * * * *", "-5 * * * *", "5- * * * *", "1,2, * * * *",
    "00 09 * * *", "0\t9\t*\t*\t*", "*-5 * * * *", "*,5 * * * *", "0 0 1-31/40 * *", "0 0 * * * 2100",
    "0 0 * * * 2101", "0 0 0 * * * *", "TZ= 0 9 * * *", "CRON_TZ=UTC\t0 9 * * *", "tz=UTC 0 9 * * *",
    "TZ=UTC   0 9 * * *", "TZ=utc 0 9 * * *", "TZ=EST 0 9 * * *", "TZ=UTC", "#", "", "0 9 * * *#x", "@reboot", "* * ? * *",
]  # fmt: skip
"""Cron strings that are barely valid or barely invalid."""
