"""Cost of schedules that match rarely or never, and limits on the size of a schedule."""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

import pytest
from tests.waiting import until

from hourglass import Client, errors, workflow
from hourglass._contract.cron import parse_cron
from hourglass._embedded.schedules.times import MOST_PARTS, NANOS, Timetable
from hourglass.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleCalendarSpec,
    ScheduleIntervalSpec,
    ScheduleSpec,
)

NOW = int(datetime(2026, 11, 18, tzinfo=UTC).timestamp()) * NANOS


def calendar(cron: str) -> ScheduleCalendarSpec:
    parsed = parse_cron(cron).calendar
    assert parsed is not None
    return parsed


def count_calls(spec: ScheduleSpec) -> tuple[int, list[datetime]]:
    """Compile a spec, search ten times twice, and return the number of function calls and the times."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    moments: list[int] = []
    sys.setprofile(count)
    try:
        table = Timetable(spec)
        for _ in range(2):
            moments = []
            for moment in table.moments(NOW):
                moments.append(moment.nominal_ns)
                if len(moments) == 10:
                    break
    finally:
        sys.setprofile(None)
    return calls, [datetime.fromtimestamp(moment // NANOS, UTC) for moment in moments]


NEVER = {
    "30 February": ScheduleSpec(cron_expressions=("0 0 30 2 *",) * 400),
    "30 February in a zone": ScheduleSpec(
        cron_expressions=tuple(f"{n % 60} {n % 24} 30 2 *" for n in range(400)),
        time_zone_name="Europe/Berlin",
    ),
    "31st of short months": ScheduleSpec(
        cron_expressions=tuple(f"{n % 60} {n % 24} 31 4,6,9,11 *" for n in range(400))
    ),
    "29 February of common years": ScheduleSpec(
        cron_expressions=tuple(f"{n % 60} {n % 24} 29 2 * 2027,2099,2100" for n in range(400)),
        time_zone_name="America/New_York",
    ),
    "a weekday that a date does not have": ScheduleSpec(cron_expressions=("0 0 29 2 1 2028",) * 400),
    "past years": ScheduleSpec(
        cron_expressions=tuple(f"{n % 60} {n % 24} {n % 28 + 1} 2 * 2001" for n in range(400)),
        time_zone_name="America/New_York",
    ),
    "everything excluded": ScheduleSpec(
        cron_expressions=("* * * * * * *",), skip=(calendar("* * * * * * *"),), time_zone_name="Europe/Berlin"
    ),
    "the same excluded": ScheduleSpec(
        cron_expressions=tuple(f"{n} 0 * * *" for n in range(60)),
        skip=tuple(calendar(f"{n} 0 * * *") for n in range(60)),
        time_zone_name="Europe/Berlin",
    ),
    "an interval excluded": ScheduleSpec(
        intervals=tuple(ScheduleIntervalSpec(2.0 * n) for n in range(1, 50)),
        skip=(calendar("*/2 * * * * * *"),),
    ),
    "an interval excluded in a zone": ScheduleSpec(
        intervals=(ScheduleIntervalSpec(3600.0),),
        skip=(calendar("0 * * * *"),),
        time_zone_name="Europe/Berlin",
    ),
}


@pytest.mark.parametrize("name", NEVER)
def test_search_for_a_schedule_that_never_matches_is_cheap(name: str) -> None:
    calls, moments = count_calls(NEVER[name])
    assert moments == []
    assert calls < 150_000  # 400 crons needed 5,600,000 before


RARE = {
    "29 February on a Sunday": (
        ScheduleSpec(
            cron_expressions=tuple(f"{n % 60} {n % 24} 29 2 0" for n in range(400)),
            time_zone_name="Asia/Tokyo",
        ),
        datetime(2032, 2, 28, 15, 0, tzinfo=UTC),
    ),
    "the last year": (
        ScheduleSpec(
            cron_expressions=tuple(f"{n % 60} {n % 24} {n % 28 + 1} 2 * 2100" for n in range(400)),
            time_zone_name="America/New_York",
        ),
        datetime(2100, 2, 1, 5, 0, tzinfo=UTC),
    ),
    "excluded but for one year": (
        ScheduleSpec(
            cron_expressions=("0 0 * * *",), skip=(calendar("0 0 * * * 2000-2069"), calendar("0 0 * 1-11 *"))
        ),
        datetime(2070, 12, 1, tzinfo=UTC),
    ),
    "an interval excluded but for one day": (
        ScheduleSpec(intervals=(ScheduleIntervalSpec(2.0),), skip=(calendar("*/2 * * 1-30 * * *"),)),
        datetime(2026, 12, 31, tzinfo=UTC),
    ),
}


@pytest.mark.parametrize("name", RARE)
def test_search_for_a_schedule_that_rarely_matches_is_cheap(name: str) -> None:
    spec, first = RARE[name]
    calls, moments = count_calls(spec)
    assert moments[0] == first
    assert calls < 300_000


def test_end_of_a_schedule_is_cached() -> None:
    table = Timetable(ScheduleSpec(cron_expressions=("0 0 1 1 * 2027",)))
    moment = table.next(NOW)
    assert moment is not None
    assert table.next(moment.nominal_ns) is None
    assert table.next(moment.nominal_ns + 1) is None
    assert table.next(NOW) == moment


def test_search_finds_both_occurrences_of_a_repeated_hour() -> None:
    spec = ScheduleSpec(cron_expressions=("30 2 25 10 * 2026",), time_zone_name="Europe/Berlin")
    table = Timetable(spec)
    moments = [moment.nominal_ns // NANOS for moment in table.moments(0)]
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert moments == [int(first.timestamp()), int((first + timedelta(hours=1)).timestamp())]


def test_many_intervals_with_many_exclusions_are_rejected() -> None:
    """Each interval would step over the same exclusions in every search."""
    spec = ScheduleSpec(
        intervals=tuple(ScheduleIntervalSpec(float(7919 + n)) for n in range(480)),
        skip=tuple(calendar(f"{n} * * * *") for n in range(20)),
    )
    with pytest.raises(errors.UsageError, match="excludes 20 calendars from 480 intervals"):
        Timetable(spec)


@workflow.defn
def nothing() -> None: ...


def schedule(spec: ScheduleSpec) -> Schedule:
    return Schedule(action=ScheduleActionStartWorkflow(nothing, id="w", task_queue="q"), spec=spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ScheduleSpec(cron_expressions=["0 0 * * *"] * (MOST_PARTS + 1)), "at most 500 are allowed"),
        (ScheduleSpec(cron_expressions=["0" + ",0" * 600 + " 0 * * *"]), "longer than 1000 characters"),
    ],
)
def test_schedule_over_the_size_limits_is_rejected(spec: ScheduleSpec, message: str) -> None:
    with Client.connect("local:") as client:
        with pytest.raises(errors.HourglassError, match=message):
            client.create_schedule("large", schedule(spec))
        client.create_schedule("large", schedule(ScheduleSpec(cron_expressions=["0 0 30 2 *"] * 400)))
        assert client.get_schedule_handle("large").describe().info.next_action_times == ()


def test_large_schedule_is_searched_outside_the_control_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread searches at create, update, describe, list, and for each action."""
    threads: list[str] = []

    def note_thread(method: Any) -> Any:
        def noted(*args: Any, **options: Any) -> Any:
            if len(args[0].spec.calendars) > 100:
                threads.append(threading.current_thread().name)
            return method(*args, **options)

        return noted

    monkeypatch.setattr(Timetable, "_search", note_thread(Timetable._search))
    crons = [f"{n % 60} {n % 24} {n % 28 + 1} 2 *" for n in range(400)]
    spec = ScheduleSpec(cron_expressions=crons, intervals=[ScheduleIntervalSpec(timedelta(seconds=1))])
    with Client.connect("local:") as client:
        handle = client.create_schedule("large", schedule(spec))
        created = len(threads)
        until(lambda: handle.describe().info.num_actions, "the schedule has acted")
        until(lambda: len(threads) > created, "the schedule searches for the time of its next action")
        handle.pause()
        acted = len(threads)
        handle.update(lambda _: schedule(ScheduleSpec(cron_expressions=crons[1:])))
        updated = len(threads)
        assert len(handle.describe().info.next_action_times) == 10
        assert [listed.id for listed in client.list_schedules()] == ["large"]
        handle.trigger()
        handle.delete()
    assert 0 < created < acted < updated
    assert not [name for name in threads if not name.startswith("hourglass-schedules")]
