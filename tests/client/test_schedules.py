"""Schedules: validation, requests, and behaviour on a real server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import temporalio.client
import temporalio.common

from hourglass import RetryPolicy, workflow
from hourglass._contract import schedules as sc
from hourglass._contract import service as sv
from hourglass._contract.spec_checks import canonical
from hourglass.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleBackfill,
    ScheduleCalendarSpec,
    ScheduleDescription,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    ScheduleState,
)
from hourglass.converter import Payload
from hourglass.errors import (
    ArgumentError,
    ServiceError,
    UsageError,
)
from hourglass.testing import DevServer

Do = Callable[[Any], Any]
DAILY = ScheduleSpec(cron_expressions=["0 9 * * MON-FRI"], time_zone_name="Europe/Berlin")


@workflow.defn
def report(kind: str, pages: int = 1) -> str:
    return f"{kind} {pages}"


def daily(**changes: Any) -> Schedule:
    """Return a valid schedule, with changes."""
    return Schedule(
        ScheduleActionStartWorkflow(report, "daily", id="report"), changes.pop("spec", DAILY), **changes
    )


class FakeScheduleService:
    """A fake service that keeps schedules and records requests. `rival` runs just before each update."""

    target, namespace, identity = "fake:1", "default", "tester"

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.schedules: dict[str, tuple[int, sc.EngineSchedule]] = {}
        self.rival: Callable[[], None] = lambda: None
        self.page: sc.SchedulePage | None = None

    def note(self, schedule_id: str, text: str) -> None:
        """Change a schedule's note, as another client would."""
        token, schedule = self.schedules[schedule_id]
        state = replace(schedule.state, note=text)
        self.schedules[schedule_id] = (token + 1, msgspec.structs.replace(schedule, state=state))

    async def call(self, request: Any) -> Any:
        self.requests.append(request)
        match request:
            case sc.CreateSchedule():
                self.schedules[request.schedule_id] = (1, request.schedule)
            case sc.DescribeSchedule(schedule_id=name):
                token, schedule = self.schedules[name]
                shown = msgspec.structs.replace(schedule, spec=canonical(schedule.spec))
                return sc.ScheduleDetails(
                    schedule_id=name, schedule=shown, conflict_token=str(token).encode()
                )
            case sc.UpdateSchedule(schedule_id=name):
                self.rival()
                token, _ = self.schedules[name]
                if request.conflict_token == str(token).encode():  # else it is dropped, as servers do
                    self.schedules[name] = (token + 1, request.schedule)
            case sc.ListSchedules():
                return self.page or self._page(int(request.next_page_token or b"0"))
        return sv.Nothing()

    def _page(self, at: int) -> sc.SchedulePage:
        name = list(self.schedules)[at]
        more = str(at + 1).encode() if at + 1 < len(self.schedules) else b""
        return sc.SchedulePage((sc.ScheduleSummary(schedule_id=name, workflow_type="report"),), more)

    async def close(self) -> None:
        pass


@pytest.fixture
def connection() -> FakeScheduleService:
    return FakeScheduleService()


# --- refused before anything is sent ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "error", "message"),
    [
        (daily(spec=ScheduleSpec(jitter=5)), UsageError, "has no times"),
        (daily(spec=ScheduleSpec(skip=[ScheduleCalendarSpec()])), UsageError, "has no times"),
        (daily(spec=ScheduleSpec(cron_expressions=["every day"])), UsageError, "'every day' is invalid"),
        (
            daily(spec=replace(DAILY, time_zone_name="Mars/Olympus")),
            UsageError,
            "unknown time zone 'Mars/Olympus'",
        ),
        (daily(spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(0.2)])), UsageError, "at least one second"),
        (daily(spec=ScheduleSpec(calendars=[ScheduleCalendarSpec(hour=25)])), UsageError, "0 to 23"),
        (
            daily(spec=ScheduleSpec(calendars=[ScheduleCalendarSpec(hour=())])),
            UsageError,
            "hour of a calendar",
        ),
        (daily(state=ScheduleState(remaining_actions=3)), UsageError, "limited_actions=True"),
        (daily(state=ScheduleState(limited_actions=True)), UsageError, "remaining_actions"),
        (Schedule(ScheduleActionStartWorkflow(report), DAILY), ArgumentError, "kind"),
        (Schedule(ScheduleActionStartWorkflow(report, "a", 1, 2), DAILY), ArgumentError, "report"),
        (Schedule(ScheduleActionStartWorkflow(report, "a", task_que="q"), DAILY), UsageError, "task_queue"),
        (
            Schedule(ScheduleActionStartWorkflow(report, "a", cron_schedule="x"), DAILY),
            UsageError,
            "unknown option 'cron_schedule'",
        ),
        (Schedule(ScheduleActionStartWorkflow(len, "a"), DAILY), UsageError, "len is not a workflow"),
        (Schedule(report, DAILY), UsageError, "ScheduleActionStartWorkflow"),
        (Schedule(ScheduleActionStartWorkflow(report, "a"), "@daily"), UsageError, "ScheduleSpec"),
        (DAILY, UsageError, "not ScheduleSpec"),
    ],
)
def test_create_schedule_with_invalid_values_raises_before_sending(
    schedule: Any, error: type[Exception], message: str, client: Any, do: Do, connection: FakeScheduleService
) -> None:
    with pytest.raises(error) as caught:
        do(client.create_schedule("s", schedule))
    assert message in str(caught.value)
    assert connection.requests == []


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: ScheduleSpec(cron_expressions="0 9 * * *"), "not a single str"),
        (lambda: ScheduleSpec(calendars=["@daily"]), "calendars must contain only ScheduleCalendarSpec"),  # type: ignore[list-item]
        (lambda: replace(DAILY, start_at=datetime(2026, 1, 1)), "start_at must be a datetime with"),
        (lambda: replace(DAILY, jitter=timedelta(seconds=-1)), "jitter"),
        (lambda: ScheduleCalendarSpec(hour="9"), "not str"),  # type: ignore[arg-type]
        (lambda: ScheduleRange(1.5), "start of a range"),  # type: ignore[arg-type]
        (lambda: ScheduleIntervalSpec(5, -1), "offset"),
        (lambda: SchedulePolicy(catchup_window="1h"), "catchup_window"),  # type: ignore[arg-type]
        (lambda: SchedulePolicy(pause_on_failure=1), "pause_on_failure"),  # type: ignore[arg-type]
        (lambda: ScheduleState(note=5), "note"),  # type: ignore[arg-type]
    ],
)
def test_schedule_parts_reject_invalid_values_when_constructed(
    construct: Callable[[], Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        construct()


def test_schedule_parts_convert_numbers_to_ranges_and_timedeltas_and_lists_to_tuples() -> None:
    calendar = ScheduleCalendarSpec(hour=9, day_of_week=[0, ScheduleRange(5, 6)], comment=None)
    assert calendar.hour == (ScheduleRange(9),)
    assert calendar.day_of_week == (ScheduleRange(0), ScheduleRange(5, 6))
    assert calendar.comment == ""
    spec = ScheduleSpec(calendars=[calendar], intervals=[ScheduleIntervalSpec(60)], jitter=5)
    assert spec.calendars == (calendar,)
    assert (spec.intervals[0].every, spec.jitter) == (timedelta(minutes=1), timedelta(seconds=5))
    assert replace(spec, jitter=None).intervals == spec.intervals
    assert hash(spec) == hash(replace(spec))


def test_empty_schedule_ids_and_invalid_backfills_are_rejected(
    client: Any, do: Do, connection: FakeScheduleService
) -> None:
    with pytest.raises(UsageError, match="id"):
        do(client.create_schedule("", daily()))
    with pytest.raises(UsageError, match="id"):
        client.get_schedule_handle(" ")
    with pytest.raises(UsageError, match="at least one"):
        do(client.get_schedule_handle("s").backfill())
    with pytest.raises(UsageError, match="before it starts"):
        ScheduleBackfill(start_at=datetime(2026, 1, 2, tzinfo=UTC), end_at=datetime(2026, 1, 1, tzinfo=UTC))
    assert connection.requests == []


# --- what is sent --------------------------------------------------------------------------------------------------------


def test_create_schedule_sends_action_spec_policy_memo_and_backfill(
    client: Any, do: Do, connection: FakeScheduleService
) -> None:
    start_at = datetime(2026, 1, 1, tzinfo=UTC)
    handle = do(
        client.create_schedule(
            "nightly",
            Schedule(
                ScheduleActionStartWorkflow(
                    report, "daily", 3, task_queue="q", run_timeout=timedelta(minutes=1)
                ),
                ScheduleSpec(
                    calendars=[
                        ScheduleCalendarSpec(
                            hour=[2, ScheduleRange(4, 8, 2)], day_of_week=ScheduleRange(1, 5)
                        )
                    ],
                    intervals=[ScheduleIntervalSpec(timedelta(hours=1), 60)],
                    start_at=start_at,
                    jitter=5,
                ),
                SchedulePolicy(overlap=ScheduleOverlapPolicy.BUFFER_ONE, catchup_window=60),
            ),
            trigger_immediately=True,
            backfill=[ScheduleBackfill(start_at=start_at, end_at=start_at + timedelta(hours=1))],
            memo={"why": "night"},
        )
    )
    assert handle.id == "nightly"
    (sent,) = connection.requests
    assert (sent.schedule_id, sent.trigger_immediately, sent.identity) == ("nightly", True, "tester")
    assert sent.memo == {"why": Payload(b'"night"')}
    assert sent.backfill == (ScheduleBackfill(start_at=start_at, end_at=start_at + timedelta(hours=1)),)
    action = sent.schedule.action
    assert (action.workflow_id, action.workflow_type, action.spec.task_queue) == ("nightly", "report", "q")
    assert (action.arguments, action.spec.run_timeout) == ((Payload(b'"daily"'), Payload(b"3")), 60.0)
    spec = sent.schedule.spec
    assert spec.calendars[0].hour == (ScheduleRange(2), ScheduleRange(4, 8, 2))
    assert (spec.intervals, spec.jitter) == ((ScheduleIntervalSpec(3600, 60),), timedelta(seconds=5))
    assert spec.start_at == start_at
    assert sent.schedule.policy == SchedulePolicy(
        overlap=ScheduleOverlapPolicy.BUFFER_ONE, catchup_window=60.0
    )


def test_schedule_handle_sends_pause_unpause_trigger_backfill_and_delete(
    client: Any, do: Do, connection: FakeScheduleService
) -> None:
    """An empty note is replaced by a default."""
    handle = client.get_schedule_handle("s")
    start_at = datetime(2026, 1, 1, tzinfo=UTC)
    do(handle.pause("broken"))
    do(handle.pause())
    do(handle.unpause())
    do(handle.trigger())
    do(handle.trigger(overlap=ScheduleOverlapPolicy.ALLOW_ALL))
    do(
        handle.backfill(
            ScheduleBackfill(start_at=start_at, end_at=start_at, overlap=ScheduleOverlapPolicy.SKIP)
        )
    )
    do(handle.delete())
    sent = connection.requests
    assert [request.schedule_id for request in sent] == ["s"] * 7
    assert [request.pause for request in sent[:2]] == ["broken", "Paused by Hourglass"]
    assert sent[2].unpause == "Unpaused by Hourglass"
    assert [request.trigger for request in sent[3:5]] == [
        ScheduleOverlapPolicy.UNSPECIFIED,
        ScheduleOverlapPolicy.ALLOW_ALL,
    ]
    assert sent[5].backfill[0].overlap is ScheduleOverlapPolicy.SKIP
    assert type(sent[6]) is sc.DeleteSchedule


def test_list_schedules_fetches_all_pages(client: Any, face: Any, do: Do) -> None:
    for name in ("a", "b", "c"):
        do(client.create_schedule(name, daily()))
    assert [(each.id, each.workflow_type) for each in face.collect(client.list_schedules())] == [
        ("a", "report"),
        ("b", "report"),
        ("c", "report"),
    ]


# --- updating ------------------------------------------------------------------------------------------------------------


def count_updates(connection: FakeScheduleService) -> int:
    return sum(isinstance(request, sc.UpdateSchedule) for request in connection.requests)


def paused_copy(seen: ScheduleDescription) -> Schedule:
    return replace(seen.schedule, state=replace(seen.schedule.state, paused=True))


def test_schedule_update_without_conflict_is_sent_once_and_keeps_unchanged_fields(
    client: Any, do: Do, connection: FakeScheduleService
) -> None:
    handle = do(client.create_schedule("s", daily()))
    before = connection.schedules["s"][1]
    do(handle.update(paused_copy))
    after = connection.schedules["s"][1]
    assert count_updates(connection) == 1
    assert after.state.paused
    assert after.action == before.action
    assert after.spec == canonical(before.spec)


def test_schedule_update_returning_none_sends_nothing(
    client: Any, do: Do, connection: FakeScheduleService
) -> None:
    handle = do(client.create_schedule("s", daily()))
    do(handle.update(lambda seen: None))
    assert count_updates(connection) == 0


def test_conflicting_schedule_update_is_retried_on_the_new_description(
    client: Any, do: Do, connection: FakeScheduleService
) -> None:
    handle = do(client.create_schedule("s", daily()))
    rivals = iter(["first", "second"])
    connection.rival = lambda: [connection.note("s", text) for text in [next(rivals, "")] if text] and None
    seen: list[str] = []

    def change(description: ScheduleDescription) -> Schedule:
        seen.append(description.schedule.state.note)
        return paused_copy(description)

    do(handle.update(change))
    assert seen == ["", "first", "second"]
    state = connection.schedules["s"][1].state
    assert (state.paused, state.note) == (True, "second")


def test_schedule_update_raises_aborted_after_too_many_conflicts(
    client: Any, do: Do, connection: FakeScheduleService
) -> None:
    handle = do(client.create_schedule("s", daily()))
    connection.rival = lambda: connection.note("s", uuid.uuid4().hex)
    with pytest.raises(ServiceError, match="other clients changed it") as caught:
        do(handle.update(paused_copy))
    assert caught.value.status == "ABORTED"
    assert not connection.schedules["s"][1].state.paused


def test_schedule_update_is_validated(client: Any, do: Do, connection: FakeScheduleService) -> None:
    handle = do(client.create_schedule("s", daily()))
    with pytest.raises(UsageError, match="is invalid"):
        do(handle.update(lambda seen: replace(seen.schedule, spec=ScheduleSpec(cron_expressions=["x"]))))
    assert count_updates(connection) == 0


# --- a codec, and the two faces --------------------------------------------------------------------------------------------


class ReversingCodec:
    """A codec that reverses data and raises for payloads that it has not encoded."""

    def encode(self, payloads: Any) -> list[Payload]:
        return [Payload(payload.data[::-1], "turned") for payload in payloads]

    def decode(self, payloads: Any) -> list[Payload]:
        if any(payload.encoding != "turned" for payload in payloads):
            raise ValueError("not mine")
        return [Payload(payload.data[::-1]) for payload in payloads]


def test_codec_encodes_and_decodes_arguments_and_memos_of_schedules(
    face: Any, connection: FakeScheduleService
) -> None:
    client = face.client(connection, codec=ReversingCodec())
    action = ScheduleActionStartWorkflow(report, "daily", memo={"a": 1}, search_attributes={"K": "v"})
    handle = face.do(client.create_schedule("s", Schedule(action, DAILY), memo={"b": 2}))
    created = connection.requests[0]
    assert created.schedule.action.arguments == (Payload(b'"yliad"', "turned"),)
    assert created.schedule.action.spec.memo == {"a": Payload(b"1", "turned")}
    assert created.memo == {"b": Payload(b"2", "turned")}
    assert created.schedule.action.spec.search_attributes["K"].encoding == "json/plain"
    described = face.do(handle.describe()).schedule.action
    assert list(described.args) == ["daily"]
    assert described.options["memo"] == {"a": 1}
    face.do(handle.update(paused_copy))
    assert connection.schedules["s"][1].action.arguments == created.schedule.action.arguments
    face.do(client.close())


def test_list_schedules_shows_memos_that_the_codec_cannot_decode(
    face: Any, connection: FakeScheduleService
) -> None:
    client = face.client(connection, codec=ReversingCodec())
    connection.page = sc.SchedulePage(
        (
            sc.ScheduleSummary(schedule_id="ours", memo={"a": Payload(b"21", "turned")}),
            sc.ScheduleSummary(schedule_id="theirs", memo={"a": Payload(b"12")}),
        )
    )
    assert {each.id: each.memo for each in face.collect(client.list_schedules())} == {
        "ours": {"a": 12},
        "theirs": {"a": 12},
    }
    face.do(client.close())


def test_schedule_action_repr_hides_arguments() -> None:
    assert "secret" not in repr(daily(spec=DAILY).action)
    shown = repr(Schedule(ScheduleActionStartWorkflow(report, "secret"), DAILY))
    assert "secret" not in shown
    assert "report" in shown


# --- on a real server ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def server_client(face: Any, quick_server: DevServer) -> Iterator[Any]:
    client = face.do(face.kind.connect(quick_server.target))
    yield client
    face.do(client.close())


def unique_id() -> str:
    return f"s-{uuid.uuid4().hex[:12]}"


@pytest.mark.server
def test_describe_schedule_returns_every_field_that_was_created(server_client: Any, do: Do) -> None:
    name = unique_id()
    schedule = Schedule(
        ScheduleActionStartWorkflow(
            report,
            "daily",
            4,
            id="rich",
            task_queue="q",
            execution_timeout=timedelta(hours=2),
            run_timeout=60,
            task_timeout=5.5,
            retry_policy=RetryPolicy(maximum_attempts=3),
            memo={"m": [1]},
            search_attributes={"CustomKeywordField": "k"},
            static_summary="short",
        ),
        ScheduleSpec(
            calendars=[
                ScheduleCalendarSpec(hour=3, minute=(0, 30), year=ScheduleRange(2090, 2092), comment="late")
            ],
            intervals=[ScheduleIntervalSpec(timedelta(days=20_000), 90)],
            cron_expressions=["0 9 * * MON-FRI 2090 # work"],
            skip=[ScheduleCalendarSpec(day_of_month=24, month=12)],
            start_at=datetime(2089, 1, 1, tzinfo=UTC),
            end_at=datetime(2095, 1, 1, tzinfo=UTC),
            jitter=2.5,
            time_zone_name="Europe/Berlin",
        ),
        SchedulePolicy(
            overlap=ScheduleOverlapPolicy.CANCEL_OTHER,
            catchup_window=timedelta(minutes=3),
            pause_on_failure=True,
        ),
        ScheduleState(note="asleep", paused=True, limited_actions=True, remaining_actions=7),
    )
    handle = do(
        server_client.create_schedule(
            name, schedule, memo={"own": "x"}, search_attributes={"CustomIntField": 3}
        )
    )
    seen = do(handle.describe())
    assert (seen.id, seen.memo) == (name, {"own": "x"})
    assert seen.search_attributes["CustomIntField"] == 3
    assert seen.schedule.policy == schedule.policy
    assert seen.schedule.state == schedule.state
    action = seen.schedule.action
    assert (action.workflow, tuple(action.args)) == ("report", ("daily", 4))
    assert {**action.options, "search_attributes": 0} == {
        "id": "rich",
        "task_queue": "q",
        "execution_timeout": timedelta(hours=2),
        "run_timeout": timedelta(minutes=1),
        "task_timeout": timedelta(seconds=5.5),
        "retry_policy": RetryPolicy(maximum_attempts=3),
        "memo": {"m": [1]},
        "search_attributes": 0,
    }
    spec = seen.schedule.spec
    assert (spec.time_zone_name, spec.jitter) == ("Europe/Berlin", timedelta(seconds=2.5))
    assert (spec.start_at, spec.end_at) == (schedule.spec.start_at, schedule.spec.end_at)
    assert [each.comment for each in spec.calendars] == ["late", "work"]
    assert spec.intervals == (ScheduleIntervalSpec(timedelta(days=20_000), timedelta(seconds=90)),)
    assert seen.info.next_action_times
    assert all(when.year >= 2089 for when in seen.info.next_action_times)
    calls: list[int] = []
    do(
        handle.update(
            lambda found: (
                calls.append(1) or replace(found.schedule, state=replace(found.schedule.state, note="n"))
            )
        )
    )  # type: ignore[func-returns-value]
    again = do(handle.describe())
    assert len(calls) == 1  # what the server shows is what was sent: nothing looked like a conflict
    assert again.schedule.state.note == "n"
    assert again.schedule.spec == spec
    assert again.schedule.action._known == action._known
    do(handle.delete())


@pytest.mark.server
def test_concurrent_schedule_updates_are_both_applied_on_a_server(
    server_client: Any, do: Do, quick_server: DevServer
) -> None:
    """The server silently drops the conflicting update, so the client repeats it."""
    handle = do(server_client.create_schedule(unique_id(), daily()))
    calls: list[str] = []
    with Client.connect(quick_server.target) as other:

        def change(seen: ScheduleDescription) -> Schedule:
            calls.append(seen.schedule.state.note)
            if len(calls) == 1:
                other.get_schedule_handle(handle.id).update(
                    lambda found: replace(found.schedule, state=ScheduleState(note="theirs"))
                )
            return paused_copy(seen)

        do(handle.update(change))
    assert calls == ["", "theirs"]
    state = do(handle.describe()).schedule.state
    assert (state.paused, state.note) == (True, "theirs")
    do(handle.delete())


@pytest.mark.server
def test_schedule_update_keeps_fields_set_by_temporalio_only(
    server_client: Any, do: Do, quick_server: DevServer
) -> None:
    name = unique_id()

    async def make() -> None:
        client = await temporalio.client.Client.connect(quick_server.target)
        action = temporalio.client.ScheduleActionStartWorkflow(
            "report",
            "theirs",
            id="theirs",
            task_queue="q",
            priority=temporalio.common.Priority(priority_key=2, fairness_key="fair", fairness_weight=1.5),
        )
        await client.create_schedule(
            name, temporalio.client.Schedule(action=action, spec=temporalio.client.ScheduleSpec())
        )

    async def read() -> temporalio.client.ScheduleDescription:
        client = await temporalio.client.Client.connect(quick_server.target)
        return await client.get_schedule_handle(name).describe()

    asyncio.run(make())
    handle = server_client.get_schedule_handle(name)
    do(handle.update(paused_copy))
    theirs = asyncio.run(read())
    action = theirs.schedule.action
    assert isinstance(action, temporalio.client.ScheduleActionStartWorkflow)
    assert action.priority == temporalio.common.Priority(
        priority_key=2, fairness_key="fair", fairness_weight=1.5
    )
    assert theirs.schedule.state.paused
    new = ScheduleActionStartWorkflow(report, "ours", id="ours", task_queue="q")
    do(handle.update(lambda seen: replace(seen.schedule, action=new, spec=DAILY)))
    action = asyncio.run(read()).schedule.action
    assert isinstance(action, temporalio.client.ScheduleActionStartWorkflow)
    assert (action.workflow, action.id) == ("report", "ours")
    do(handle.delete())
