"""The times of a schedule: compared with the server's, with Temporal's rule, and in their order."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import temporalio.api.workflowservice.v1 as ws
import temporalio.client
import temporalio.service
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import cases

from hourglass._contract.cron import parse_cron
from hourglass._contract.schedule_specs import (
    ScheduleCalendarSpec,
    ScheduleIntervalSpec,
    ScheduleRange,
    ScheduleSpec,
)
from hourglass._contract.spec_checks import canonical, is_empty
from hourglass._embedded.schedules.times import NANOS, Timetable
from hourglass._temporal.calls_schedules import put_spec, spec_from
from hourglass.errors import UsageError
from hourglass.testing import DevServer

from .schedule_specs import LOOKS, NIGHTS, UNUSUAL, Look, cron, nanos, time

MOST = 1000  # the number of times that a server lists


def times(look: Look, seed: str = "") -> list[int]:
    """Return the times within the period, in nanoseconds."""
    end = nanos(look.end)
    moments = Timetable(look.spec, seed).moments(nanos(look.begin))
    within = itertools.takewhile(lambda moment: moment.due_ns <= end, moments)
    return [moment.due_ns for moment in itertools.islice(within, MOST)]


def texts(look: Look) -> list[str]:
    """Return the times within the period as strings."""
    return [datetime.fromtimestamp(time / NANOS, UTC).strftime("%dT%H:%M") for time in times(look)]


# --- as the server finds them ---------------------------------------------------------------------------------


async def _times_of_server(target: str) -> list[tuple[list[int], ScheduleSpec]]:
    client = await temporalio.client.Client.connect(target)
    return [await _times_of_server_for_spec(client, f"oracle-{at}", look) for at, look in enumerate(LOOKS)]


async def _times_of_server_for_spec(
    client: temporalio.client.Client, name: str, look: Look
) -> tuple[list[int], ScheduleSpec]:
    service = client.workflow_service
    create = ws.CreateScheduleRequest(namespace="default", schedule_id=name, request_id=name)
    put_spec(create.schedule.spec, look.spec)
    action = create.schedule.action.start_workflow
    action.workflow_id = action.workflow_type.name = action.task_queue.name = name
    create.schedule.state.paused = True
    await service.create_schedule(create)
    matching = ws.ListScheduleMatchingTimesRequest(namespace="default", schedule_id=name)
    matching.start_time.FromNanoseconds(nanos(look.begin))
    matching.end_time.FromNanoseconds(nanos(look.end))
    listed = await service.list_schedule_matching_times(matching)
    described = await service.describe_schedule(
        ws.DescribeScheduleRequest(namespace="default", schedule_id=name)
    )
    await service.delete_schedule(ws.DeleteScheduleRequest(namespace="default", schedule_id=name))
    return [time.ToNanoseconds() for time in listed.start_time], spec_from(described.schedule.spec)


@pytest.fixture(scope="module")
def oracle(quick_server: DevServer) -> list[tuple[list[int], ScheduleSpec]]:
    """For every spec its times and its description from a real server."""
    return asyncio.run(_times_of_server(quick_server.target))


@pytest.mark.server
@pytest.mark.parametrize("at", range(len(LOOKS)), ids=lambda at: str(LOOKS[at]))
def test_schedule_times_match_the_server(at: int, oracle: list[tuple[list[int], ScheduleSpec]]) -> None:
    assert times(LOOKS[at]) == oracle[at][0]


@pytest.mark.server
@pytest.mark.parametrize("at", range(len(LOOKS)), ids=lambda at: str(LOOKS[at]))
def test_canonical_spec_matches_the_server(at: int, oracle: list[tuple[list[int], ScheduleSpec]]) -> None:
    assert canonical(LOOKS[at].spec) == oracle[at][1]


async def _rejected_by_server(target: str) -> set[str]:
    client = await temporalio.client.Client.connect(target)
    rejected = set()
    for at, text in enumerate(UNUSUAL):
        name = f"odd-{at}"
        look = Look(ScheduleSpec(cron_expressions=(text,)), "2026-01-01", "2026-01-02")
        try:
            await _times_of_server_for_spec(client, name, look)
        except temporalio.service.RPCError as error:
            if error.status is not temporalio.service.RPCStatusCode.INVALID_ARGUMENT:
                raise
            rejected.add(text)
    return rejected


@pytest.mark.server
def test_server_and_engine_reject_the_same_cron_strings(quick_server: DevServer) -> None:
    def is_valid(text: str) -> bool:
        try:
            canonical(ScheduleSpec(cron_expressions=(text,)))
        except UsageError:
            return False
        return True

    rejected = asyncio.run(_rejected_by_server(quick_server.target))
    assert {text for text in UNUSUAL if not is_valid(text)} == rejected
    assert 20 < len(rejected) < len(UNUSUAL) - 20


def test_compared_specs_cover_many_cases() -> None:
    assert len(LOOKS) >= 60
    assert sum(bool(times(look)) for look in LOOKS) >= len(LOOKS) - 1


# --- by Temporal's rule -----------------------------------------------------------------------------------------

ZONES = [
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "America/St_Johns",
    "America/Santiago",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Atlantic/Azores",
    "Pacific/Chatham",
]


def _range(low: int, high: int) -> st.SearchStrategy[tuple[ScheduleRange, ...]]:
    part = st.builds(
        lambda start, length, step: ScheduleRange(start, min(start + length, high), step),
        st.integers(low, high),
        st.integers(0, high - low),
        st.integers(1, 7),
    )
    everything = st.just((ScheduleRange(low, high),))
    return st.one_of(everything, st.lists(part, min_size=1, max_size=2).map(tuple))


CALENDARS = st.builds(
    ScheduleCalendarSpec,
    second=st.just((ScheduleRange(0),)),
    minute=st.one_of(
        st.just((ScheduleRange(0, 59, 10),)), st.just((ScheduleRange(0), ScheduleRange(30))), _range(0, 59)
    ),
    hour=_range(0, 23),
    day_of_month=_range(1, 31),
    month=_range(1, 12),
    day_of_week=_range(0, 6),
)
# The beginnings of days on which the clocks of some of the zones are changed, and of others.
DAYS = st.sampled_from(
    [
        "2026-03-08", "2026-03-28", "2026-03-29", "2026-04-04", "2026-04-05", "2026-04-24", "2026-06-15", "2026-09-05",
        "2026-09-06", "2026-10-03", "2026-10-24", "2026-10-25", "2026-10-29", "2026-10-30", "2026-10-31", "2026-11-01",
    ]
)  # fmt: skip


def _matches(calendar: ScheduleCalendarSpec, time: datetime) -> bool:
    """Return whether a time matches a calendar, by the rule itself."""
    parts = {
        "second": time.second,
        "minute": time.minute,
        "hour": time.hour,
        "day_of_month": time.day,
        "month": time.month,
        "day_of_week": time.isoweekday() % 7,
    }
    return all(
        any(number in range(each.start, each.end + 1, each.step) for each in getattr(calendar, name))
        for name, number in parts.items()
    )


@settings(max_examples=cases(60, 600), deadline=None)
@given(calendar=CALENDARS, skip=st.one_of(st.none(), CALENDARS), zone=st.sampled_from(ZONES), day=DAYS)
def test_calendar_times_match_local_time_in_any_zone(
    calendar: ScheduleCalendarSpec, skip: ScheduleCalendarSpec | None, zone: str, day: str
) -> None:
    full = canonical(ScheduleSpec(calendars=(calendar,), skip=(skip,) if skip else ()))
    spec = ScheduleSpec(calendars=full.calendars, skip=full.skip, time_zone_name=zone)
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC)
    minutes = [begin + timedelta(minutes=at) for at in range(1, 36 * 60)]
    walls = [(minute, minute.astimezone(ZoneInfo(zone))) for minute in minutes]
    expected = [
        int(minute.timestamp()) * NANOS
        for minute, wall in walls
        if _matches(full.calendars[0], wall) and not (full.skip and _matches(full.skip[0], wall))
    ]
    look = Look(spec, f"{day}T00:00:00", minutes[-1].strftime("%Y-%m-%dT%H:%M:%S"))
    assert times(look)[: len(expected) + 1] == expected[:MOST]


@settings(max_examples=100, deadline=None)
@given(
    every=st.integers(1, 100_000),
    offset=st.integers(0, 100_000),
    after=st.integers(0, 4_000_000_000),
)
def test_intervals_count_from_the_epoch(every: int, offset: int, after: int) -> None:
    offset %= every
    moment = Timetable(ScheduleSpec(intervals=(ScheduleIntervalSpec(float(every), float(offset)),))).next(
        after * NANOS
    )
    assert moment is not None
    seconds = moment.nominal_ns // NANOS
    assert (seconds - offset) % every == 0
    assert after < seconds <= after + every


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (cron("30 2 * * *", "2026-10-24T12:00:00", "2026-10-25T12:00:00", "Europe/Berlin"), ["25T00:30", "25T01:30"]),
        (
            cron("*/30 * * * *", "2026-10-24T23:40:00", "2026-10-25T02:00:00", "Europe/London"),
            ["25T00:00", "25T00:30", "25T01:00", "25T01:30", "25T02:00"],
        ),
        (cron("30 23 * * *", "2026-10-29T00:00:00", "2026-10-30T12:00:00", "Africa/Cairo"), ["29T20:30", "29T21:30"]),
        (cron("15 2 * * *", "2026-10-03T00:00:00", "2026-10-04T00:00:00", "Australia/Lord_Howe"), []),
        (cron("0 0 * * *", "2011-12-29", "2011-12-31", "Pacific/Apia"), ["29T10:00", "30T10:00"]),
    ],
    ids=["Berlin", "London", "Cairo", "Lord Howe", "Apia"],
)  # fmt: skip
def test_daylight_saving_changes_that_the_server_gets_wrong(look: Look, expected: list[str]) -> None:
    """Repeated hours east of Greenwich occur twice; skipped half hours and days never."""
    assert texts(look) == expected


# --- jitter and ends ----------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(jitter=st.floats(0, 5000), every=st.integers(1, 4000), seed=st.text(max_size=5))
def test_jitter_is_bounded_and_deterministic(jitter: float, every: int, seed: str) -> None:
    spec = ScheduleSpec(intervals=(ScheduleIntervalSpec(float(every)),), jitter=jitter)
    moments = list(itertools.islice(Timetable(spec, seed).moments(0), 20))
    assert moments == list(itertools.islice(Timetable(spec, seed).moments(0), 20))
    assert [moment.nominal_ns for moment in moments] == [at * every * NANOS for at in range(1, 21)]
    for moment in moments:
        assert 0 <= moment.due_ns - moment.nominal_ns <= min(jitter, every) * NANOS
    assert all(earlier.due_ns < later.nominal_ns for earlier, later in itertools.pairwise(moments))


def test_jitter_differs_between_schedules() -> None:
    spec = ScheduleSpec(cron_expressions=("@hourly",), jitter=600.0)
    first, second = Timetable(spec, "a").next(0), Timetable(spec, "b").next(0)
    assert first is not None
    assert second is not None
    assert first.nominal_ns == second.nominal_ns
    assert first.due_ns != second.due_ns


def test_search_ends_if_all_times_are_excluded() -> None:
    always = ScheduleCalendarSpec(
        second=(ScheduleRange(0, 59),), minute=(ScheduleRange(0, 59),), hour=(ScheduleRange(0, 23),)
    )
    assert Timetable(ScheduleSpec(intervals=(ScheduleIntervalSpec(1.0),), skip=(always,))).next(0) is None
    assert Timetable(ScheduleSpec(cron_expressions=("* * * * * * *",), skip=(always,))).next(0) is None


def test_long_exclusions_are_skipped_quickly() -> None:
    spec = ScheduleSpec(
        intervals=(ScheduleIntervalSpec(1.0),), skip=(NIGHTS,), time_zone_name="Europe/Berlin"
    )
    moment = Timetable(spec).next(nanos("2026-01-01T19:00:00"))
    assert moment is not None
    assert moment.nominal_ns == nanos("2026-01-02T06:00:00")


def test_year_far_ahead_is_found_and_past_year_is_not() -> None:
    assert texts(cron("0 0 1 1 * 2099", "2026-01-01", "2100-01-01", "Europe/Berlin")) == ["31T23:00"]
    assert texts(cron("0 0 1 1 * 2025", "2026-01-01", "2100-01-01", "Europe/Berlin")) == []


# --- what makes no sense --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("* * * * * * * *", "8 fields"),
        ("@reboot", "1 fields"),
        ("60 * * * *", "'60' is not a valid value for minutes: expected 0 to 59"),
        ("* 24 * * *", "hours"),
        ("* * 0 * *", "days of the month"),
        ("* * ? * *", "days of the month"),
        ("* * L * *", "days of the month"),
        ("* * * 13 *", "months"),
        ("* * * foo *", "names such as feb"),
        ("* * * * 8", "days of the week"),
        ("* * * * 5-1", "ends before it starts"),
        ("*/0 * * * *", "step"),
        ("*/x * * * *", "step"),
        ("1-2-3 * * * *", "minutes"),
        ("1,,2 * * * *", "minutes"),
        ("0 0 1 1 * 1999", "years"),
        ("@every", "duration"),
        ("@every soon", "duration"),
        ("@every 5", "duration"),
        ("TZ=Europe/Berlin", "0 fields"),
    ],
)
def test_invalid_cron_string_is_rejected(text: str, message: str) -> None:
    with pytest.raises(UsageError, match="is invalid") as caught:
        parse_cron(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            ScheduleSpec(cron_expressions=("@daily",), time_zone_name="Mars/Olympus"),
            "unknown time zone 'Mars/Olympus'",
        ),
        (ScheduleSpec(cron_expressions=("TZ=../../etc/passwd @daily",)), "unknown time zone"),
        (
            ScheduleSpec(cron_expressions=("TZ=Asia/Tokyo @daily",), time_zone_name="UTC"),
            "but the schedule has",
        ),
        (ScheduleSpec(cron_expressions=("TZ=Asia/Tokyo @daily", "@hourly")), "same time zone"),
        (ScheduleSpec(intervals=(ScheduleIntervalSpec(0.5),)), "at least one second"),
        (ScheduleSpec(intervals=(ScheduleIntervalSpec(5.0, 5.0),)), "offset"),
        (
            ScheduleSpec(calendars=(ScheduleCalendarSpec(hour=(ScheduleRange(24),)),)),
            "invalid range of hours",
        ),
        (ScheduleSpec(calendars=(ScheduleCalendarSpec(hour=(ScheduleRange(5, 3),)),)), "5 to 3"),
        (ScheduleSpec(skip=(ScheduleCalendarSpec(day_of_week=(ScheduleRange(7),)),)), "days of the week"),
        (ScheduleSpec(calendars=(ScheduleCalendarSpec(comment="x" * 201),)), "comment"),
        (
            ScheduleSpec(
                intervals=(ScheduleIntervalSpec(5.0),), start_at=time("2026-01-02"), end_at=time("2026-01-01")
            ),
            "before it starts",
        ),
    ],
)
def test_invalid_schedule_spec_is_rejected(spec: ScheduleSpec, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        canonical(spec)
    assert message in str(caught.value)


def test_canonical_spec_is_idempotent() -> None:
    for look in LOOKS:
        once = canonical(look.spec)
        assert canonical(once) == once
        assert not once.cron_expressions


def test_spec_without_times_is_empty() -> None:
    assert is_empty(ScheduleSpec(skip=(ScheduleCalendarSpec(),), time_zone_name="UTC"))
    assert not is_empty(ScheduleSpec(cron_expressions=("@daily",)))
