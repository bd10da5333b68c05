"""What every store must keep: checks over a place where a store can be opened, and opened again.

`CHECKS` are async functions that take a `Place`. `Place.open` gives a store over what is there; after the store was
closed, the next one finds what was durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

import msgspec
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
from hourglass.errors import ServiceError

NOW = 1_700_000_000 * 10**9
SECOND = 10**9


class Place(Protocol):
    """Where a store is."""

    def open(self) -> Store:
        """A store over what is there. The one before is closed."""
        ...


Check: TypeAlias = Callable[[Place], Awaitable[None]]


class Life:
    """A run and its history, as an engine would lead it."""

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
        """The last step as a change."""
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
        sent = tuple(tasks.Sent(*each) if isinstance(each, tuple) else tasks.Sent(each) for each in commands)
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


async def put(store: Store, *changes: RunChange) -> int:
    number = 0
    for change in changes:
        number = store.append(change)
    await store.durable(number)
    return number


def assert_kept(store: Store, life: Life) -> None:
    stored = store.load(life.run.run_id)
    assert stored is not None
    assert stored.run == life.run
    assert tuple(stored.events) == life.events


async def numbers_follow_each_other(place: Place) -> None:
    """Each change has the next number, and is durable with all before it."""
    store = place.open()
    life = Life("a")
    first = store.append(life.change())
    second = store.append(life.signal())
    assert second == first + 1
    await store.durable(second)
    assert store.is_durable(first)
    assert store.is_durable(second)
    assert not store.is_durable(second + 1)
    await store.durable(first)
    store.close()


async def callers_are_told_of_what_is_durable(place: Place) -> None:
    """Each once, never before the call returns, in the order of the changes; one that raises is no harm to the others."""
    store = place.open()
    life, told, all_told = Life("a"), list[object](), asyncio.Event()

    def broken(error: object) -> None:
        told.append(("broken", error))
        raise RuntimeError("on purpose")

    first = store.append(life.change())
    store.when_durable(first, broken)
    store.when_durable(first, lambda error: told.append(("first", error)))
    second = store.append(life.signal())
    store.when_durable(second, lambda error: (told.append(("second", error)), all_told.set()))
    assert not told
    await asyncio.wait_for(all_told.wait(), 60)
    assert store.is_durable(second)
    again = asyncio.get_running_loop().create_future()
    store.when_durable(first, again.set_result)
    assert not again.done()
    assert await asyncio.wait_for(again, 60) is None
    assert told == [("broken", None), ("first", None), ("second", None)]
    store.close()


async def a_run_comes_back_as_it_was(place: Place) -> None:
    """State, history, activities, timers, what is held, payloads to the byte; also after reopening."""
    life = Life(
        "a",
        memo={"m": Payload(b"memo", "json/plain")},
        search_attributes={"K": Payload(b'"x"', "json/plain", {"type": b"Keyword"})},
        retry_policy=RetryRule(),
        arguments=(Payload(b"", "binary/null"),),
    )
    store = place.open()
    await put(
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
    assert_kept(store, life)
    store.close()
    store = place.open()
    assert_kept(store, life)
    failure = Failure("no", ApplicationFailure(type="T"), cause=Failure("why"))
    await put(
        store,
        life.go(lambda run, now: transitions.fail_activity(run, run.activities[5], failure, "me", now)),
        life.answer((c.CancelTimer(1), 7), activity(3)),
    )
    assert_kept(store, life)
    store.close()


async def what_is_dropped_is_gone(place: Place) -> None:
    """Activities and timers that ended are not there again, one by one or all at the end."""
    life = Life("a")
    store = place.open()
    await put(
        store,
        life.change(),
        life.take_task(),
        life.answer(activity(1), activity(2), c.StartTimer(1, SECOND), c.StartTimer(2, 90 * SECOND)),
    )
    life.now += 10 * SECOND
    await put(
        store,
        life.go(lambda run, now: transitions.elapse(run, [7, 8], "next", now)),
        life.start_attempt(5),
        life.go(
            lambda run, now: transitions.complete_activity(run, run.activities[5], None, "me", None, now)
        ),
    )
    assert set(life.run.activities) == {6}
    assert set(life.run.timers) == {8}
    assert_kept(store, life)
    await put(store, life.terminate())
    assert_kept(store, life)
    assert life.run.final is not None
    store.close()


async def the_latest_run_is_current(place: Place) -> None:
    """By the order of starts, whatever happens to older ones later; unknown ids have none."""
    store = place.open()
    first, second, other = Life("a1", "a"), Life("a2", "a"), Life("b")
    await put(store, first.change(), other.change(), first.terminate(), second.change())
    assert (store.current("a"), store.current("b"), store.current("c")) == ("a2", "b", "")
    assert store.load("c") is None
    store.close()
    store = place.open()
    assert store.current("a") == "a2"
    store.close()


async def requests_are_remembered(place: Place) -> None:
    """Per workflow, with the latest run that carried them out, also those of an earlier change or of an earlier run."""
    store = place.open()
    life, next_run, other = Life("a1", "a"), Life("a2", "a"), Life("b")
    await put(
        store, life.change(request_ids=("r1", "r2")), other.change(), life.signal(request_ids=("r3", "r1"))
    )
    await put(store, life.terminate(), next_run.change(request_ids=("r2", "r4")))
    for _ in range(2):
        found = [store.find_request("a", each) for each in ("r1", "r2", "r3", "r4", "r5")]
        assert found == ["a1", "a2", "a1", "a2", ""]
        assert store.find_request("b", "r1") == ""
        store.close()
        store = place.open()
    store.close()


async def changes_of_several_runs_are_one(place: Place) -> None:
    """A run and its follower have one number and are durable together."""
    store = place.open()
    life, follower = Life("a1", "a"), Life("a2", "a")
    await put(store, life.change(), life.take_task())
    before = store.append(life.signal())
    ended = life.terminate(also=(follower.change(AT_ONCE, request_ids=("r",)),))
    number = store.append(ended)
    assert number == before + 1
    await store.durable(number)
    assert_kept(store, life)
    assert_kept(store, follower)
    assert store.current("a") == "a2"
    assert store.find_request("a", "r") == "a2"
    assert [due.run_id for due in store.due(NOW, 9)] == ["a2"]
    store.close()


async def wake_times_are_found_in_order(place: Place) -> None:
    """Earliest first, within bounds and limit; a wake time that changed counts as it is now."""
    store = place.open()
    lives = {name: Life(name) for name in "abcd"}
    await put(
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
    await put(store, lives["b"].signal(wake_ns=0), lives["c"].signal(wake_ns=NOW + 9))
    assert [due.run_id for due in store.due(NOW + 9, 9)] == ["a", "c"]
    store.close()
    store = place.open()
    assert store.next_due_ns() == NOW + 3
    store.close()


async def lists_and_counts_follow_the_runs(place: Place) -> None:
    """A filter chooses by what is true now; pages do not overlap; what is no filter is an error."""
    store = place.open()
    lives = [Life(f"r{number}") for number in range(5)]
    for life in lives:
        await put(store, life.change())
    await put(store, lives[0].terminate())
    assert (await store.count("")).count == 5
    assert (await store.count("ExecutionStatus = 'Running'")).count == 4
    found = (await store.page("ExecutionStatus = 'Terminated'", b"", 9)).workflows
    assert [(each.run_id, each.status) for each in found] == [("r0", WorkflowStatus.TERMINATED)]
    pages = [await store.page("", b"", 2)]
    await put(store, lives[4].terminate())  # it is on the first page, and moves behind the last
    while pages[-1].next_page_token:
        pages.append(await store.page("", pages[-1].next_page_token, 2))
    seen = [[each.run_id for each in page.workflows] for page in pages]
    assert seen[0] == ["r4", "r3"]
    assert [run_id for page in seen[1:] for run_id in page if run_id != "r4"] == ["r2", "r1", "r0"]
    try:
        await store.count("this is no filter")
    except ServiceError:
        pass
    else:
        raise AssertionError("a filter that makes no sense was understood")
    store.close()


async def attributes_that_are_gone_find_nothing(place: Place) -> None:
    """A run is found by the search attributes that it has now, also where it has none any more."""
    store = place.open()
    life, other = Life("r"), Life("other")  # that has one, so that its name is known in any case
    await put(store, life.change(), other.change(), other.take_task())
    await put(store, other.answer(c.UpsertSearchAttributes({"Mine": Payload(b'"z"', "json/plain")})))
    for value, gone in (('"x"', "y"), ('"y"', "x"), (None, "y")):
        payload = Payload(b"", "binary/null") if value is None else Payload(value.encode(), "json/plain")
        await put(
            store, life.take_task(), life.answer(c.UpsertSearchAttributes({"Mine": payload})), life.signal()
        )
        assert (await store.count(f"Mine = '{gone}'")).count == 0
        assert (await store.count("Mine IS NOT NULL")).count == 1 + (value is not None)
    store.close()


async def closed_runs_can_be_forgotten(place: Place) -> None:
    """Those that closed before, at most so many, with all that belongs to them; others stay."""
    store = place.open()
    old = [Life(f"old{number}") for number in range(3)]
    young, awake = Life("young"), Life("open")
    young.now += 100 * SECOND
    for life in (*old, young, awake):
        await put(store, life.change(request_ids=("r",)))
    for life in (*old, young):
        await put(store, life.terminate())
    before = NOW + 50 * SECOND
    assert store.forget_closed(before, 2) == 2
    assert store.forget_closed(before, 2) == 1
    assert store.forget_closed(before, 2) == 0
    await put(store, awake.signal())
    assert [store.load(life.run.run_id) for life in old] == [None] * 3
    assert [store.current(life.run.run_id) for life in old] == [""] * 3
    assert store.find_request("old0", "r") == ""
    assert store.find_request("young", "r") == "young"
    assert (await store.count("")).count == 2
    assert_kept(store, young)
    assert_kept(store, awake)
    store.close()


async def one_closed_run_can_be_forgotten(place: Place) -> None:
    """With all that belongs to it; the run before it is the latest of its workflow again. An unknown run changes nothing."""
    store = place.open()
    first, second = Life("first", "w"), Life("second", "w")
    for life in (first, second):
        await put(store, life.change(request_ids=(life.run.run_id,)))
        await put(store, life.terminate())
    await store.durable(store.forget("second"))
    await store.durable(store.forget("unknown"))
    assert store.load("second") is None
    assert store.current("w") == "first"
    assert store.find_request("w", "second") == ""
    assert store.find_request("w", "first") == "first"
    assert (await store.count("")).count == 1
    assert_kept(store, first)
    await store.durable(store.forget("first"))
    assert store.current("w") == ""
    await put(store, Life("third", "w").change())
    assert store.current("w") == "third"
    store.close()


async def closing_writes_what_is_queued(place: Place) -> None:
    """And is harmless the second time."""
    store = place.open()
    lives = [Life(f"r{number}") for number in range(20)]
    for life in lives:
        store.append(life.change())
        store.append(life.signal())
    store.close()
    store.close()
    store = place.open()
    for life in lives:
        assert_kept(store, life)
    store.close()


async def waiters_may_go_away(place: Place) -> None:
    """Whoever is cancelled while it waits takes nothing with it."""
    store = place.open()
    life = Life("a")
    number = store.append(life.change())
    waiting = asyncio.ensure_future(store.durable(number))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await store.durable(number)
    assert_kept(store, life)
    store.close()


async def schedules_are_kept_with_their_runs(place: Place) -> None:
    """A schedule and the run that it starts are one change; of many changes the last counts; a deleted one is gone."""
    store = place.open()
    life = Life("a")
    started = life.change()
    for wake_ns in (NOW + SECOND, NOW + 2 * SECOND):
        store.append(schedule_change("s", wake_ns))
    whole = schedule_change("t", 0, running=(("a", "a"),), also=(started,))
    number = store.append(msgspec.structs.replace(whole, also=(*whole.also, schedule_change("u", NOW))))
    await store.durable(number)
    assert_kept(store, life)
    store.close()
    store = place.open()
    assert sorted(store.schedules()) == [("s", NOW + 2 * SECOND, ()), ("t", 0, ("a",)), ("u", NOW, ())]
    assert store.schedule("t") == whole.record
    assert store.schedule("nobody") is None
    await store.durable(store.append(ScheduleChange(schedule_id="s")))
    assert sorted(entry.schedule_id for entry in store.schedules()) == ["t", "u"]
    assert store.schedule("s") is None
    store.close()


async def notes_are_kept_by_name(place: Place) -> None:
    """What an engine keeps for itself is found by its name and by how that begins; the last one counts, one without data is
    gone, and a schedule of the same name is another thing.
    """
    store = place.open()
    for name, data in (("a/1", b"old"), ("a/2", b"two"), ("b/1", b"other"), ("a/1", b"new")):
        store.append(NoteChange(schedule_id=name, data=data))
    also = (schedule_change("a/2", NOW), NoteChange(schedule_id="a/3\n1", data=b"three"))
    await store.durable(store.append(NoteChange(schedule_id="c", data=b"c", also=also)))
    for each in (store, None):
        found = each or place.open()
        assert sorted(found.notes("a/")) == [("a/1", b"new"), ("a/2", b"two"), ("a/3\n1", b"three")]
        assert (found.note("a/2"), found.note("d")) == (b"two", b"")
        assert [entry.schedule_id for entry in found.schedules()] == ["a/2"]
        if each is not None:
            store.close()
    await found.durable(found.append(NoteChange(schedule_id="a/1", data=b"")))
    assert [name for name, _ in sorted(found.notes("a/"))] == ["a/2", "a/3\n1"]
    assert found.note("a/1") == b""
    found.close()


def schedule_change(
    name: str, wake_ns: int, also: tuple[RunChange, ...] = (), **record: Any
) -> ScheduleChange:
    """A step of a schedule."""
    action = made(StartWorkflow, workflow_id=name, workflow_type="W", task_queue="q", request_id="")
    spec = ScheduleSpec(intervals=(ScheduleIntervalSpec(60.0),))
    kept = ScheduleRecord(
        schedule_id=name,
        schedule=schedules.EngineSchedule(action=action, spec=spec),
        seen_ns=NOW,
        create_time_ns=NOW,
        **record,
    )
    return ScheduleChange(schedule_id=name, record=kept, wake_ns=wake_ns, also=also)


CHECKS: tuple[Check, ...] = (
    numbers_follow_each_other,
    callers_are_told_of_what_is_durable,
    a_run_comes_back_as_it_was,
    what_is_dropped_is_gone,
    the_latest_run_is_current,
    requests_are_remembered,
    changes_of_several_runs_are_one,
    wake_times_are_found_in_order,
    lists_and_counts_follow_the_runs,
    attributes_that_are_gone_find_nothing,
    closed_runs_can_be_forgotten,
    one_closed_run_can_be_forgotten,
    closing_writes_what_is_queued,
    waiters_may_go_away,
    schedules_are_kept_with_their_runs,
    notes_are_kept_by_name,
)
