"""The conformance suite of stores: checks with a place where a store can be opened repeatedly.

`CHECKS` are async functions that take a `Place`. After a store was closed, `Place.open` returns one with everything
that was durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

import msgspec
import pytest
from tests.specs import made

from hourglass._contract import schedules
from hourglass._contract.schedule_specs import ScheduleIntervalSpec, ScheduleSpec
from hourglass._contract.workflows import SignalWorkflow, StartWorkflow, TerminateWorkflow, WorkflowStatus
from hourglass._embedded.schedules.transitions import ScheduleRecord
from hourglass._embedded.store.store import AT_ONCE, NoteChange, RunChange, ScheduleChange, Store
from hourglass._embedded.transitions import tasks, transitions
from hourglass._embedded.transitions.run import Change, Run
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._evaluator import commands as c
from hourglass._evaluator.specs import RetryRule
from hourglass._history import events as h
from hourglass.converter import ApplicationFailure, Failure, Payload
from hourglass.errors import ServiceError, StorageError

NOW = 1_700_000_000 * 10**9
SECOND = 10**9


class Place(Protocol):
    """Opens stores on the same data."""

    def open(self) -> Store:
        """Open a store; the previous one is closed."""
        ...


Check: TypeAlias = Callable[[Place], Awaitable[None]]


class Life:
    """A run and its history, changed by the engine's transitions."""

    def __init__(self, name: str, workflow_id: str = "", **started: Any) -> None:
        self.first = made(
            h.WorkflowExecutionStarted,
            workflow_id=workflow_id or name,
            workflow_type="W",
            task_queue="q",
            original_run_id=name,
            first_run_id=name,
            **started,
        )
        self.events: tuple[h.HistoryEvent, ...] = ()
        self.now = NOW
        self.step = transitions.open_run(name, self.first, NOW)

    @property
    def run(self) -> Run:
        return self.step.run

    def change(self, wake_ns: int = 0, **more: Any) -> RunChange:
        """Return the last step as a change."""
        self.events += self.step.events
        step = self.step
        return RunChange(run=step.run, events=step.events, touched=step.touched, wake_ns=wake_ns, **more)

    def go(self, transition: Callable[[Run, int], Change], wake_ns: int = 0, **more: Any) -> RunChange:
        self.now += SECOND
        self.step = transition(self.run, self.now)
        return self.change(wake_ns, **more)

    def take_task(self, **more: Any) -> RunChange:
        return self.go(lambda run, now: tasks.start_task(run, "me", Limits(), None, now), **more)

    def answer(self, *commands: tuple[c.Command, int] | c.Command, **more: Any) -> RunChange:
        sent = tuple(
            tasks.Sent(*command) if isinstance(command, tuple) else tasks.Sent(command)
            for command in commands
        )
        reply = tasks.TaskCompletion(commands=sent, flags=(1001,), identity="me")
        return self.go(lambda run, now: tasks.complete_task(run, reply, "next", Limits(), None, now), **more)

    def signal(self, name: str = "s", **more: Any) -> RunChange:
        request = SignalWorkflow(
            workflow_id="",
            signal_name=name,
            request_id="r",
            arguments=(Payload(b"\x00\xff", "binary/plain"),),
        )
        return self.go(lambda run, now: transitions.signal(run, request, now), **more)

    def terminate(self, **more: Any) -> RunChange:
        request = TerminateWorkflow(workflow_id="", reason="enough")
        return self.go(lambda run, now: transitions.terminate(run, request, now), **more)

    def start_attempt(self, event_id: int, **more: Any) -> RunChange:
        return self.go(
            lambda run, now: transitions.start_attempt(run, run.activities[event_id], "me", now), **more
        )


def activity(seq: int, **more: Any) -> c.ScheduleActivity:
    return made(
        c.ScheduleActivity,
        seq=seq,
        activity_id=f"a{seq}",
        activity_type="charge",
        arguments=(Payload(b"1", "json/plain", {"k": b"v"}),),
        start_to_close_timeout=5.0,
        retry_policy=RetryRule(maximum_attempts=3, non_retryable_error_types=("Bad",)),
        **more,
    )


async def append_durably(store: Store, *changes: RunChange) -> int:
    number = 0
    for change in changes:
        number = store.append(change)
    await store.durable(number)
    return number


def assert_stored(store: Store, life: Life) -> None:
    stored = store.load(life.run.run_id)
    assert stored is not None
    assert stored.run == life.run
    assert tuple(stored.events) == life.events


async def change_numbers_are_consecutive(place: Place) -> None:
    store = place.open()
    life = Life("a")
    first = store.append(life.change())
    second = store.append(life.signal())
    assert (first, second) == (1, 2)
    await store.durable(second)
    assert store.is_durable(first)
    assert store.is_durable(second)
    assert not store.is_durable(second + 1)
    await store.durable(first)
    store.close()


async def durability_is_reported_once_in_order(place: Place) -> None:
    """Never before the call returns; a callback that raises does not affect the others."""
    store = place.open()
    life, reports, all_reported = Life("a"), list[object](), asyncio.Event()

    def broken(error: object) -> None:
        reports.append(("broken", error))
        raise RuntimeError("on purpose")

    first = store.append(life.change())
    store.when_durable(first, broken)
    store.when_durable(first, lambda error: reports.append(("first", error)))
    second = store.append(life.signal())
    store.when_durable(second, lambda error: (reports.append(("second", error)), all_reported.set()))
    assert not reports
    await asyncio.wait_for(all_reported.wait(), 60)
    assert store.is_durable(second)
    again = asyncio.get_running_loop().create_future()
    store.when_durable(first, again.set_result)
    assert not again.done()
    assert await asyncio.wait_for(again, 60) is None
    assert reports == [("broken", None), ("first", None), ("second", None)]
    store.close()


async def run_round_trips(place: Place) -> None:
    """State, history, activities, timers, held events and payloads, also after reopening."""
    life = Life(
        "a",
        memo={"m": Payload(b"memo", "json/plain")},
        search_attributes={"K": Payload(b'"x"', "json/plain", {"type": b"Keyword"})},
        retry_policy=RetryRule(),
        arguments=(Payload(b"", "binary/null"),),
    )
    store = place.open()
    await append_durably(
        store,
        life.change(),
        life.take_task(),
        life.answer(activity(1), activity(2), c.StartTimer(1, 10 * SECOND), c.StartTimer(2, 20 * SECOND)),
        life.start_attempt(5),
        life.signal(),
        life.take_task(),
        life.signal("held"),
    )
    assert life.run.held
    assert_stored(store, life)
    store.close()
    store = place.open()
    assert_stored(store, life)
    failure = Failure("no", ApplicationFailure(type="T"), cause=Failure("why"))
    await append_durably(
        store,
        life.go(lambda run, now: transitions.fail_activity(run, run.activities[5], failure, "me", now)),
        life.answer((c.CancelTimer(1), 7), activity(3)),
    )
    assert_stored(store, life)
    store.close()


async def ended_activities_and_timers_are_deleted(place: Place) -> None:
    life = Life("a")
    store = place.open()
    await append_durably(
        store,
        life.change(),
        life.take_task(),
        life.answer(activity(1), activity(2), c.StartTimer(1, SECOND), c.StartTimer(2, 90 * SECOND)),
    )
    life.now += 10 * SECOND
    await append_durably(
        store,
        life.go(lambda run, now: transitions.elapse(run, [7, 8], "next", now)),
        life.start_attempt(5),
        life.go(
            lambda run, now: transitions.complete_activity(run, run.activities[5], None, "me", None, now)
        ),
    )
    assert set(life.run.activities) == {6}
    assert set(life.run.timers) == {8}
    assert_stored(store, life)
    await append_durably(store, life.terminate())
    assert_stored(store, life)
    assert life.run.final is not None
    store.close()


async def latest_started_run_is_current(place: Place) -> None:
    store = place.open()
    first, second, unrelated = Life("a1", "a"), Life("a2", "a"), Life("b")
    await append_durably(store, first.change(), unrelated.change(), second.change(), first.terminate())
    assert (store.current("a"), store.current("b"), store.current("c")) == ("a2", "b", "")
    await append_durably(store, second.terminate())
    assert store.load("c") is None
    store.close()
    store = place.open()
    assert store.current("a") == "a2"
    store.close()


async def requests_are_found_by_workflow_and_id(place: Place) -> None:
    store = place.open()
    life, next_run, unrelated = Life("a1", "a"), Life("a2", "a"), Life("b")
    await append_durably(
        store,
        life.change(request_ids=("r1", "r2")),
        unrelated.change(),
        life.signal(request_ids=("r3", "r1")),
    )
    await append_durably(store, life.terminate(), next_run.change(request_ids=("r2", "r4")))
    for _ in range(2):
        found = [store.find_request("a", each) for each in ("r1", "r2", "r3", "r4", "r5")]
        assert found == ["a1", "a2", "a1", "a2", ""]
        assert store.find_request("b", "r1") == ""
        store.close()
        store = place.open()
    store.close()


async def change_of_several_runs_is_atomic(place: Place) -> None:
    store = place.open()
    life, follower = Life("a1", "a"), Life("a2", "a")
    await append_durably(store, life.change(), life.take_task())
    before = store.append(life.signal())
    ended = life.terminate(also=(follower.change(AT_ONCE, request_ids=("r",)),))
    number = store.append(ended)
    assert number == before + 1
    await store.durable(number)
    assert_stored(store, life)
    assert_stored(store, follower)
    assert store.current("a") == "a2"
    assert store.find_request("a", "r") == "a2"
    assert [due.run_id for due in store.due(NOW, 9)] == ["a2"]
    store.close()


async def due_runs_are_listed_in_order(place: Place) -> None:
    store = place.open()
    assert list(store.due(NOW, 9)) == []
    lives = {name: Life(name) for name in "abcd"}
    await append_durably(
        store,
        lives["a"].change(NOW + 3),
        lives["b"].change(AT_ONCE),
        lives["c"].change(NOW + 1),
        lives["d"].change(0),
    )
    assert store.next_due_ns() == AT_ONCE
    assert store.next_due_ns(AT_ONCE) == NOW + 1
    assert store.next_due_ns(NOW + 1) == NOW + 3
    assert store.next_due_ns(NOW + 3) == 0
    assert [due.run_id for due in store.due(NOW + 3, 9)] == ["b", "c", "a"]
    assert [due.run_id for due in store.due(NOW + 3, 2)] == ["b", "c"]
    assert [due.run_id for due in store.due(NOW + 2, 9, AT_ONCE)] == ["c"]
    await append_durably(store, lives["b"].signal(wake_ns=0), lives["c"].signal(wake_ns=NOW + 9))
    assert [due.run_id for due in store.due(NOW + 9, 9)] == ["a", "c"]
    store.close()
    store = place.open()
    assert store.next_due_ns() == NOW + 3
    store.close()


async def lists_and_counts_follow_the_runs(place: Place) -> None:
    store = place.open()
    lives = [Life(f"r{number}") for number in range(5)]
    for life in lives:
        await append_durably(store, life.change())
    await append_durably(store, lives[0].terminate())
    assert (await store.count("")).count == 5
    assert (await store.count("ExecutionStatus = 'Running'")).count == 4
    listed = (await store.page("ExecutionStatus = 'Terminated'", b"", 9)).workflows
    assert [(run.run_id, run.status) for run in listed] == [("r0", WorkflowStatus.TERMINATED)]
    pages = [await store.page("", b"", 2)]
    await append_durably(store, lives[4].terminate())  # it is on the first page, and moves behind the last
    while pages[-1].next_page_token:
        pages.append(await store.page("", pages[-1].next_page_token, 2))
    pages_of_ids = [[summary.run_id for summary in page.workflows] for page in pages]
    assert pages_of_ids[0] == ["r4", "r3"]
    assert [run_id for page in pages_of_ids[1:] for run_id in page if run_id != "r4"] == ["r2", "r1", "r0"]
    with pytest.raises(ServiceError) as caught:
        await store.count("this is no filter")
    assert not isinstance(caught.value, StorageError)
    store.close()


async def removed_search_attributes_match_no_filter(place: Place) -> None:
    store = place.open()
    life, unrelated = Life("r"), Life("other")  # that has one, so that its name is known in any case
    await append_durably(store, life.change(), unrelated.change(), unrelated.take_task())
    await append_durably(
        store, unrelated.answer(c.UpsertSearchAttributes({"Mine": Payload(b'"z"', "json/plain")}))
    )
    for value, gone in (('"x"', "y"), ('"y"', "x"), (None, "y")):
        payload = Payload(b"", "binary/null") if value is None else Payload(value.encode(), "json/plain")
        await append_durably(
            store, life.take_task(), life.answer(c.UpsertSearchAttributes({"Mine": payload})), life.signal()
        )
        assert (await store.count(f"Mine = '{gone}'")).count == 0
        assert (await store.count("Mine IS NOT NULL")).count == 1 + (value is not None)
    store.close()


async def closed_runs_are_forgotten_up_to_a_limit(place: Place) -> None:
    store = place.open()
    old = [Life(f"old{number}") for number in range(3)]
    young, awake = Life("young"), Life("open")
    young.now += 100 * SECOND
    for life in (*old, young, awake):
        await append_durably(store, life.change(request_ids=("r",)))
    for life in (*old, young):
        await append_durably(store, life.terminate())
    before = NOW + 50 * SECOND
    assert store.forget_closed(before, 2) == 2
    assert store.forget_closed(before, 2) == 1
    assert store.forget_closed(before, 2) == 0
    await append_durably(store, awake.signal())
    assert [store.load(life.run.run_id) for life in old] == [None] * 3
    assert [store.current(life.run.run_id) for life in old] == [""] * 3
    assert store.find_request("old0", "r") == ""
    assert store.find_request("young", "r") == "young"
    assert (await store.count("")).count == 2
    assert_stored(store, young)
    assert_stored(store, awake)
    store.close()


async def one_closed_run_can_be_forgotten(place: Place) -> None:
    """The run before it is the workflow's latest again."""
    store = place.open()
    first, second = Life("first", "w"), Life("second", "w")
    for life in (first, second):
        await append_durably(store, life.change(request_ids=(life.run.run_id,)))
        await append_durably(store, life.terminate())
    await store.durable(store.forget("second"))
    await store.durable(store.forget("unknown"))
    assert store.load("second") is None
    assert store.current("w") == "first"
    assert store.find_request("w", "second") == ""
    assert store.find_request("w", "first") == "first"
    assert (await store.count("")).count == 1
    assert_stored(store, first)
    await store.durable(store.forget("first"))
    assert store.current("w") == ""
    await append_durably(store, Life("third", "w").change())
    assert store.current("w") == "third"
    store.close()


async def closing_writes_queued_changes(place: Place) -> None:
    store = place.open()
    lives = [Life(f"r{number}") for number in range(20)]
    for life in lives:
        store.append(life.change())
        store.append(life.signal())
    store.close()
    store.close()
    store = place.open()
    for life in lives:
        assert_stored(store, life)
    store.close()


async def cancelled_waiter_affects_no_change(place: Place) -> None:
    store = place.open()
    life = Life("a")
    number = store.append(life.change())
    waiting = asyncio.ensure_future(store.durable(number))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await store.durable(number)
    assert_stored(store, life)
    store.close()


async def schedule_and_its_run_are_one_change(place: Place) -> None:
    store = place.open()
    life = Life("a")
    started = life.change()
    for wake_ns in (NOW + SECOND, NOW + 2 * SECOND):
        store.append(schedule_change("s", wake_ns))
    complete = schedule_change("t", 0, running=(("a", "a"),), also=(started,))
    number = store.append(msgspec.structs.replace(complete, also=(*complete.also, schedule_change("u", NOW))))
    await store.durable(number)
    assert_stored(store, life)
    store.close()
    store = place.open()
    assert sorted(store.schedules()) == [("s", NOW + 2 * SECOND, ()), ("t", 0, ("a",)), ("u", NOW, ())]
    assert store.schedule("t") == complete.record
    assert store.schedule("unknown") is None
    await store.durable(store.append(ScheduleChange(schedule_id="s")))
    assert sorted(entry.schedule_id for entry in store.schedules()) == ["t", "u"]
    assert store.schedule("s") is None
    store.close()


async def notes_are_found_by_name_and_prefix(place: Place) -> None:
    """The last one counts, an empty one deletes, and schedules have separate names."""
    store = place.open()
    for name, data in (("a/1", b"old"), ("a/2", b"two"), ("b/1", b"other"), ("a/1", b"new")):
        store.append(NoteChange(schedule_id=name, data=data))
    also = (schedule_change("a/2", NOW), NoteChange(schedule_id="a/3\n1", data=b"three"))
    await store.durable(store.append(NoteChange(schedule_id="c", data=b"c", also=also)))
    for each in (store, None):
        opened = each or place.open()
        assert sorted(opened.notes("a/")) == [("a/1", b"new"), ("a/2", b"two"), ("a/3\n1", b"three")]
        assert (opened.note("a/2"), opened.note("d")) == (b"two", b"")
        assert [entry.schedule_id for entry in opened.schedules()] == ["a/2"]
        if each is not None:
            store.close()
    await opened.durable(opened.append(NoteChange(schedule_id="a/1", data=b"")))
    assert [name for name, _ in sorted(opened.notes("a/"))] == ["a/2", "a/3\n1"]
    assert opened.note("a/1") == b""
    opened.close()


def schedule_change(
    name: str, wake_ns: int, also: tuple[RunChange, ...] = (), **record: Any
) -> ScheduleChange:
    action = made(StartWorkflow, workflow_id=name, workflow_type="W", task_queue="q", request_id="")
    spec = ScheduleSpec(intervals=(ScheduleIntervalSpec(60.0),))
    stored = ScheduleRecord(
        schedule_id=name,
        schedule=schedules.EngineSchedule(action=action, spec=spec),
        seen_ns=NOW,
        create_time_ns=NOW,
        **record,
    )
    return ScheduleChange(schedule_id=name, record=stored, wake_ns=wake_ns, also=also)


CHECKS: tuple[Check, ...] = (
    change_numbers_are_consecutive,
    durability_is_reported_once_in_order,
    run_round_trips,
    ended_activities_and_timers_are_deleted,
    latest_started_run_is_current,
    requests_are_found_by_workflow_and_id,
    change_of_several_runs_is_atomic,
    due_runs_are_listed_in_order,
    lists_and_counts_follow_the_runs,
    removed_search_attributes_match_no_filter,
    closed_runs_are_forgotten_up_to_a_limit,
    one_closed_run_can_be_forgotten,
    closing_writes_queued_changes,
    cancelled_waiter_affects_no_change,
    schedule_and_its_run_are_one_change,
    notes_are_found_by_name_and_prefix,
)
