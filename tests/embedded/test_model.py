"""A small model of the engine's transitions, compared with the engine by random programs and crashes.

The model knows the pending, delivered and answered events of each run, and nothing of histories, tables, tasks or
stores. After every step the engine must have delivered exactly the events that the model expects, and clients must see
the model's state. A crash removes the engine's process and its worker's memory; then the events are delivered again
from the beginning, batch by batch.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.effort import cases
from tests.embedded.stores import memory_store, open_sqlite
from tests.specs import made

from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._contract.handle import ActivityCancel, ActivityOk, ActivityTask, AttemptFailed
from hourglass._embedded import VirtualClock
from hourglass._embedded.store.store import NoteChange, Store
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import RetryRule
from hourglass.errors import ServiceError, WorkflowAlreadyStartedError, WorkflowNotFoundError

from .memory_world import World, app_failure, settle, text
from .store.simple_store import Disk, SimpleStore

T = TypeVar("T")

NAMES = ("a", "b", "c")
SECOND = 10**9

News = tuple[Any, ...]
"""An event for a run in the model's form: its kind, and its number or name."""


# --- the model ------------------------------------------------------------------------------------------------


@dataclass
class Activity:
    """A pending activity. `due_ns` is when its next attempt may start; 0 while a worker executes one."""

    most: int
    attempt: int = 1
    due_ns: int = 0
    is_out: bool = False
    was_lost: bool = False


@dataclass
class Batch:
    """Events delivered together, and the commands that answered them."""

    news: list[News]
    commands: tuple[c.Command, ...]


@dataclass
class Run:
    """One run, as its author would describe it."""

    run_id: str
    name: str
    status: wf.WorkflowStatus = wf.WorkflowStatus.RUNNING
    news: list[News] = field(default_factory=lambda: [("started",)])
    """Events that are not delivered yet."""
    in_hand: list[News] | None = None
    """Events delivered and not answered yet."""
    past: list[Batch] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)
    timers: dict[int, int] = field(default_factory=dict)
    activities: dict[int, Activity] = field(default_factory=dict)
    numbers: int = 0

    @property
    def is_open(self) -> bool:
        return self.status is wf.WorkflowStatus.RUNNING

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def close(self, status: wf.WorkflowStatus) -> None:
        self.status, self.in_hand = status, None
        self.news, self.timers, self.activities = [], {}, {}

    def lose_worker(self, now_ns: int) -> None:
        """Apply the death of the process that had its workflow task and its attempts."""
        if self.in_hand is not None:
            self.news, self.in_hand = self.in_hand + self.news, None
        for seq, each in tuple(self.activities.items()):
            if each.is_out:
                self.fail(seq, now_ns, lost=True)

    def fail(self, seq: int, now_ns: int, *, lost: bool = False) -> None:
        """Fail an attempt; the next is due after a pause that doubles, also if the attempt was lost."""
        activity = self.activities[seq]
        if activity.attempt >= activity.most:
            del self.activities[seq]
            self.news.append(("failed", seq))
            return
        activity.is_out, activity.was_lost = False, lost
        activity.due_ns = now_ns + SECOND * 2 ** (activity.attempt - 1)
        activity.attempt += 1

    def time_is(self, now_ns: int) -> None:
        for seq, due_ns in sorted(self.timers.items(), key=lambda each: (each[1], each[0])):
            if due_ns <= now_ns:
                del self.timers[seq]
                self.news.append(("fired", seq))


def news_of(event: e.Event) -> News:
    """Return the model's form of an event."""
    match event:
        case e.RunStarted():
            return ("started",)
        case e.SignalReceived(name=name):
            return ("signal", name)
        case e.TimerFired(seq=seq):
            return ("fired", seq)
        case e.ActivityCompleted(seq=seq):
            return ("completed", seq)
        case e.ActivityFailed(seq=seq):
            return ("failed", seq)
        case e.CancelRequested():
            return ("cancel",)
    raise AssertionError(f"the model knows no {event}")


def activity(seq: int, most: int) -> c.ScheduleActivity:
    """Return a command without an effective timeout, so that only attempts and pauses count."""
    return made(
        c.ScheduleActivity,
        seq=seq,
        activity_id=f"a{seq}",
        activity_type="act",
        start_to_close_timeout=10.0**7,
        retry_policy=RetryRule(initial_interval=1.0, backoff_coefficient=2.0, maximum_attempts=most),
    )


# --- the engine beside it ---------------------------------------------------------------------------------------


class Engines(RuleBasedStateMachine):
    """The engine in memory, and the model."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = VirtualClock()
        self.runs: dict[str, Run] = {}
        self.current: dict[str, Run] = {}
        self.cached: set[str] = set()
        self.replayed: dict[str, int] = {}
        self.attempts: dict[tuple[str, int], ActivityTask] = {}
        self.requests = 0
        self.store = self.open_store()

    def open_store(self) -> Store:
        return memory_store()

    def reopened(self) -> Store:
        """Return the store as the next process finds it."""
        return self.store

    def go(self, body: Coroutine[Any, Any, T]) -> T:
        async def limited() -> T:
            async with asyncio.timeout(60):
                return await body

        return self.loop.run_until_complete(limited())

    @initialize()
    def begin(self) -> None:
        self.world = self.go(World.new(store=self.store, clock=self.clock))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.go(self.world.close())
        self.loop.close()

    @property
    def now(self) -> int:
        return self.clock.now_ns()

    # --- what clients do ----------------------------------------------------------------------------------------

    def request_id(self) -> str:
        self.requests += 1
        return f"r{self.requests}"

    @rule(name=st.sampled_from(NAMES), again=st.booleans())
    def start(self, name: str, again: bool) -> None:
        """A running workflow is not started again, but a repeated request gets the same answer."""
        running, request_id = self.current.get(name), self.request_id()
        if running is not None and running.is_open:
            with pytest.raises(WorkflowAlreadyStartedError) as refused:
                self.go(self.world.start(name, request_id=request_id))
            assert refused.value.run_id == running.run_id
        else:
            for _ in range(1 + again):
                run_id = self.go(self.world.start(name, request_id=request_id)).run_id
                self.current[name] = self.runs.setdefault(run_id, Run(run_id, name))
            assert len([run for run in self.runs.values() if run.name == name and run.is_open]) == 1
        self.check_delivered()

    @rule(name=st.sampled_from(NAMES), times=st.integers(1, 2))
    def signal(self, name: str, times: int) -> None:
        """A repeated signal request is delivered once."""
        run, said = self.current.get(name), f"s{self.requests}"
        request = wf.SignalWorkflow(workflow_id=name, signal_name=said, request_id=self.request_id())
        for place in range(times):
            if self.accept(name, request) and place == 0:
                assert run is not None
                run.news.append(("signal", said))
                run.signals.append(said)
        self.check_delivered()

    @rule(name=st.sampled_from(NAMES))
    def cancel(self, name: str) -> None:
        """Cancellation is delivered once; a request to a closed run succeeds."""
        request = wf.CancelWorkflow(workflow_id=name, request_id=self.request_id())
        if name in self.current and not self.current[name].is_open:
            self.go(self.world.call(request))
        elif self.accept(name, request):
            run = self.current[name]
            events = [news for batch in run.past for news in batch.news]
            if ("cancel",) not in [*run.news, *(run.in_hand or []), *events]:
                run.news.append(("cancel",))
        self.check_delivered()

    @rule(name=st.sampled_from(NAMES))
    def terminate(self, name: str) -> None:
        if self.accept(name, wf.TerminateWorkflow(workflow_id=name, reason="enough")):
            self.current[name].close(wf.WorkflowStatus.TERMINATED)
        self.check_delivered()

    def accept(self, name: str, request: s.Request[Any]) -> bool:
        """Send a request. Return whether it was accepted; it must be rejected if no run is open."""
        run = self.current.get(name)
        if run is not None and run.is_open:
            self.go(self.world.call(request))
            return True
        with pytest.raises((WorkflowNotFoundError, ServiceError)):
            self.go(self.world.call(request))
        return False

    # --- what a worker does ---------------------------------------------------------------------------------------

    def runs_with_task(self) -> list[Run]:
        return [run for run in self.runs.values() if run.in_hand is not None]

    @precondition(lambda self: bool(self.runs_with_task()))
    @rule(data=st.data())
    def issue_commands(self, data: st.DataObject) -> None:
        """Complete a task with timers and activities."""
        run = data.draw(st.sampled_from(self.runs_with_task()))
        kinds = data.draw(st.lists(st.sampled_from(("timer", "activity", "drop")), max_size=3))
        commands: list[c.Command] = []
        for kind in kinds:
            if kind == "drop" and run.timers:
                seq = min(run.timers)
                del run.timers[seq]
                commands.append(c.CancelTimer(seq))
            elif kind == "timer":
                seq, seconds = run.number(), data.draw(st.integers(1, 9))
                run.timers[seq] = self.now + seconds * SECOND
                commands.append(c.StartTimer(seq, seconds * SECOND))
            elif kind == "activity":
                seq, most = run.number(), data.draw(st.integers(1, 3))
                run.activities[seq] = Activity(most, due_ns=self.now)
                commands.append(activity(seq, most))
        self.complete_task(run, *commands)

    @precondition(lambda self: bool(self.runs_with_task()))
    @rule(data=st.data(), how=st.sampled_from(("complete", "fail", "continue")))
    def close_run(self, data: st.DataObject, how: str) -> None:
        """Complete, fail or continue a run; with undelivered events the completion is rejected and they are delivered."""
        run = data.draw(st.sampled_from(self.runs_with_task()))
        if run.news and how == "continue":
            return
        command: c.Command = {
            "complete": c.CompleteRun(text("done")),
            "fail": c.FailRun(app_failure("no")),
            "continue": made(c.ContinueAsNew, workflow_type="W", task_queue="q"),
        }[how]
        if run.news:
            assert run.in_hand is not None
            run.news, run.in_hand = run.in_hand + run.news, None
            self.go(self.world.complete(run.run_id, command))
        else:
            self.complete_task(run, command)
            statuses = {"complete": "COMPLETED", "fail": "FAILED", "continue": "CONTINUED_AS_NEW"}
            run.close(wf.WorkflowStatus[statuses[how]])
            if how == "continue":
                record = self.world.engine.current(run.name)
                assert record is not None
                run_id = record.run.run_id
                assert run_id not in self.runs
                self.current[run.name] = self.runs[run_id] = Run(run_id, run.name)
        self.check_delivered()

    def complete_task(self, run: Run, *commands: c.Command) -> None:
        assert run.in_hand is not None
        run.past.append(Batch(run.in_hand, commands))
        run.in_hand = None
        self.go(self.world.complete(run.run_id, *commands))
        if all(not isinstance(command, (c.CompleteRun, c.FailRun, c.ContinueAsNew)) for command in commands):
            self.check_delivered()

    @precondition(lambda self: bool(self.attempts))
    @rule(data=st.data(), good=st.booleans())
    def end_attempt(self, data: st.DataObject, good: bool) -> None:
        run_id, seq = data.draw(st.sampled_from(sorted(self.attempts)))
        token, run = self.attempts.pop((run_id, seq)).token, self.runs[run_id]
        if good:
            self.go(self.world.handle.complete_activity(ActivityOk(token, text("r"))))
            del run.activities[seq]
            run.news.append(("completed", seq))
        else:
            self.go(self.world.handle.complete_activity(AttemptFailed(token, app_failure("no"))))
            run.fail(seq, self.now)
        self.check_delivered()

    # --- what the world does --------------------------------------------------------------------------------------

    @precondition(lambda self: not self.runs_with_task())
    @rule(seconds=st.integers(1, 5))
    def advance_time(self, seconds: int) -> None:
        """Advance second by second: events due within one second are delivered before the next."""
        for _ in range(seconds):
            self.go(self._advance())
            for run in self.runs.values():
                run.time_is(self.now)
            self.check_delivered()
            if self.runs_with_task():
                break

    async def _advance(self) -> None:
        self.clock.advance(1.0)

    @rule()
    def crash(self) -> None:
        """Replace the process by another one that opens its store."""
        self.go(self._crash())
        self.cached.clear()
        self.replayed.clear()
        self.attempts.clear()
        for run in self.runs.values():
            run.lose_worker(self.now)
        self.check_delivered()

    async def _crash(self) -> None:
        await settle()
        self.world.crash()
        self.store = self.reopened()
        self.world = await World.new(store=self.store, clock=self.clock, opened=True)

    # --- whether they agree ---------------------------------------------------------------------------------------

    def check_delivered(self) -> None:
        """Check that the engine has delivered exactly what the model expects."""
        self.go(self._receive_all())
        for run in self.runs.values():
            assert run.in_hand is not None or not run.news or not run.is_open, f"{run} received no activation"
            for seq, each in run.activities.items():
                assert each.is_out == (each.due_ns <= self.now), f"attempt {seq} of {run}"

    async def settle_store(self) -> None:
        """Wait until everything that needs no time has happened; attempts are delivered when their cause is durable."""
        await settle()
        await self.store.durable(self.store.append(NoteChange(schedule_id="quiet", data=b"")))
        await settle()

    async def _receive_all(self) -> None:
        await self.settle_store()
        while (activation := self.world.handle.stepper.next_activation()) is not None:
            await self._receive_activation(activation)
            await self.settle_store()
        for _ in range(2):  # the first poll starts an attempt, which is delivered when its start is durable
            while (item := self.world.handle.stepper.next_activity()) is not None:
                if not isinstance(item, ActivityCancel):
                    self._receive_attempt(item)
            await self.settle_store()

    async def _receive_activation(self, activation: e.Activation) -> None:
        run = self.runs.get(activation.run_id)
        if isinstance(activation.events[0], e.RunEvicted):
            self.cached.discard(activation.run_id)
            self.replayed.pop(activation.run_id, None)
            await self.world.complete(activation.run_id)
            return
        assert run is not None, "a run that was never started received an activation"
        assert run.is_open, "a closed run received an activation"
        events = [news_of(event) for event in activation.events]
        place = self.replayed.get(run.run_id, 0)
        if run.run_id not in self.cached and place < len(run.past):
            assert Counter(events) == Counter(run.past[place].news), "the replayed events differ"
            self.replayed[run.run_id] = place + 1
            await self.world.complete(run.run_id, *run.past[place].commands)
            return
        self.cached.add(run.run_id)
        assert run.in_hand is None, "a run received a second activation during its task"
        assert Counter(events) == Counter(run.news)
        assert _signals(events) == _signals(run.news), "signals are delivered in another order"
        run.in_hand, run.news = run.news, []

    def _receive_attempt(self, item: ActivityTask) -> None:
        run, seq = self.runs[item.run_id], int(item.activity_id.removeprefix("a"))
        expected = run.activities[seq]
        assert (item.attempt, expected.is_out) == (expected.attempt, False)
        assert expected.due_ns <= self.now
        expected.is_out = True
        self.attempts[item.run_id, seq] = item

    @invariant()
    def clients_see_the_model(self) -> None:
        """Check the status and pending activities of each run, and the counts by status."""
        if not hasattr(self, "world"):
            return
        self.attempts = {key: each for key, each in self.attempts.items() if self.runs[key[0]].is_open}
        for run in self.runs.values():
            seen = self.go(self.world.call(wf.DescribeWorkflow(workflow_id=run.name, run_id=run.run_id)))
            assert seen.summary.status is run.status
            assert len(seen.pending_activities) == len(run.activities)
        for status in (wf.WorkflowStatus.RUNNING, wf.WorkflowStatus.TERMINATED):
            counted = self.go(
                self.world.call(wf.CountWorkflows(query=f"ExecutionStatus = '{status.name.title()}'"))
            )
            assert counted.count == len([run for run in self.runs.values() if run.status is status])


def _signals(news: list[News]) -> list[News]:
    return [message for message in news if message[0] == "signal"]


class EnginesOnFile(Engines):
    """The model over SQLite: a crash keeps what is durable, which is all that was acknowledged."""

    def open_store(self) -> Store:
        self.folder = TemporaryDirectory()
        return self._open()

    def reopened(self) -> Store:
        self.store.close()
        return self._open()

    def _open(self) -> Store:
        store = open_sqlite(Path(self.folder.name) / "model.db")
        store.patience = (
            0.0  # else what nothing waits for would be written later, by a clock that is not virtual
        )
        return store

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


class EnginesOnSimpleStore(Engines):
    """The model over a store that implements only the interface, and loses what is not committed."""

    def open_store(self) -> Store:
        return SimpleStore(Disk())

    def reopened(self) -> Store:
        assert isinstance(self.store, SimpleStore)
        self.store.crash()
        return SimpleStore(self.store.disk)


def _settings(usual: int, thorough: int) -> settings:
    return settings(
        max_examples=cases(usual, thorough),
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        report_multiple_bugs=False,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.filter_too_much,
            HealthCheck.data_too_large,
        ],
    )


TestInMemory = Engines.TestCase
TestInMemory.settings = _settings(12, 1500)
TestOnFile = EnginesOnFile.TestCase
TestOnFile.settings = _settings(5, 300)
TestOnSimpleStore = EnginesOnSimpleStore.TestCase
TestOnSimpleStore.settings = _settings(12, 1500)
