"""The driver of an explored order: an environment in which `Choices` select every step, including faults.

The engine dispatches a task only when the task has been chosen. Therefore events accumulate until a workflow receives them,
attempts wait until they are chosen, and time can pass while tasks are ready. Steps that offer no choice are done
immediately: replays, evictions, queries, cancellations of attempts.

Invariants:

- Only the choices decide: no other thread runs while a choice is made.
- The first option is the default: workflow tasks first, then attempts, then arrivals, then time. An order that consists only of
  first options ends if the workflow does.
- A crash drops the worker's state. Before a crash, all runs are executed again and compared (I2).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from hourglass._contract.handle import ActivityItem, ActivityTask
from hourglass._embedded.clock import to_ns
from hourglass._evaluator.events import Activation, QueryReceived, is_eviction
from hourglass._worker.lanes.evaluation import Verdict
from hourglass.errors import WorkflowStuck
from hourglass.testing._activities import PlannedFault
from hourglass.testing._driver import EnvironmentDriver
from hourglass.testing._errors import explain
from hourglass.testing._explore.arrivals import Arrival
from hourglass.testing._explore.choices import Choices, Option, Sort
from hourglass.testing._fakes import AllowedFaults
from hourglass.testing._served_queue import ServedQueue
from hourglass.testing._steps import Step

if TYPE_CHECKING:
    from hourglass.testing._explore.story import StoryWriter

_MOST_STEPS = 10_000
_USUAL = AllowedFaults()
_RESULT_LOST = PlannedFault(result_lost=True)


class OrderDriver(EnvironmentDriver):
    """The driver of an explored order."""

    explores = True
    choices: Choices
    sorts: frozenset[Sort]
    writer: StoryWriter | None = None

    def explore(
        self,
        choices: Choices,
        sorts: frozenset[Sort],
        arrivals: Sequence[Arrival],
        writer: StoryWriter | None,
    ) -> None:
        """Set the choices, the sorts of faults and the arrivals of this order. Must be called before the first step."""
        self.choices, self.sorts, self.writer = choices, sorts, writer
        self.arrivals: list[tuple[Arrival, Callable[[], object]]] = []
        self.planned = arrivals
        self.after_each: Callable[[], None] = lambda: None
        self.excused = False
        self.states: set[int] = set()
        self.points: set[int] = set()
        self._state: dict[str, int] = {}
        self._permitted: tuple[str, int] | None = None
        self._arrived: list[tuple[ServedQueue, Activation | ActivityItem]] = []
        self._fate = ""
        self._known: set[str] = set()
        self._late: dict[str, Callable[[], object]] = {}
        self._steps_done = 0
        self._begin_ns = self.clock.now_ns()
        self._runs = 0

    def expect(self, send: Callable[[Arrival], Callable[[], object]]) -> None:
        """Allow arrivals from now on, because the workflow has been started."""
        self._begin_ns = self.clock.now_ns()
        for arrival in self.planned:
            self.arrivals.append((arrival, send(arrival)))
            for when in (arrival.after_ns, arrival.before_ns):
                if when:
                    self.clock.call_at(self._begin_ns + when, lambda: None)  # time stops at this point

    def may_take(self, run_id: str, scheduled_event_id: int) -> bool:
        """Return whether the engine may dispatch a task. Only the chosen task is allowed."""
        return self._permitted == (run_id, scheduled_event_id)

    def new_run_id(self) -> str:
        """Return a consecutive number as an id, so that repeated orders have the same ids."""
        self._runs += 1
        return f"00000000-0000-4000-8000-{self._runs:012}"

    def due_now(self, due: list[int]) -> list[int]:
        """Return the chosen one of a run's timers and timeouts that are due at the same instant."""
        if len(due) < 2:
            return due
        options = [Option("due", event_id=event_id) for event_id in due]
        return [due[self.choices.choose(options)]]

    def arrived(self, queue: ServedQueue, item: Activation | ActivityItem) -> None:
        """Keep an item that a handle delivers until a step uses it. Must be called on the event loop."""
        self._arrived.append((queue, item))
        self.ring()

    def _drive(self, done: Callable[[], bool], may_move: Callable[[], bool]) -> None:
        while True:
            self.loop.settle()
            if done():
                return
            self._absorb()
            self._raise_urgent()
            self._raise_parked()
            options = self._possible() if may_move() else []
            if done():  # done by steps that offer no choice
                return
            if options:
                self._choose(options)
            elif may_move():
                raise explain(self, "no timer is pending, and no task is in progress")
            else:
                self._await_others()

    def _possible(self) -> list[Option]:
        """Return the options of the next choice, without changing the engine. The default option is first."""
        elapsed = self.clock.now_ns() - self._begin_ns
        arrivals = [arrival.state(elapsed) for arrival, _ in self.arrivals]
        queues = self.engine.queues
        tasks = [run_id for run_id in queues.waiting_tasks() if run_id not in self._late]
        attempts = queues.waiting_attempts()
        options = [Option("task", run_id) for run_id in tasks]
        options += [Option("attempt", run_id, event_id) for run_id, event_id in attempts]
        options += [Option("step", place=place) for place in range(len(self.steps))]
        options += [
            Option("arrival", place=place) for place, state in enumerate(arrivals) if state != "early"
        ]
        if self.clock.next_due_ns() is not None and "due" not in arrivals:
            options.append(Option("time"))
        for run_id in tasks:
            options += self._task_faults(run_id)
        for run_id, event_id in attempts:
            options += self._attempt_faults(run_id, event_id)
        return options

    def _task_faults(self, run_id: str) -> list[Option]:
        options: list[Option] = []
        if "crashes" in self.sorts:
            # Otherwise the worker has no state of the run to lose.
            if run_id in self._known:
                options.append(Option("crash", run_id))
            options.append(Option("die", run_id))
        if "redeliveries" in self.sorts:
            options.append(Option("late", run_id))
        return options

    def _attempt_faults(self, run_id: str, event_id: int) -> list[Option]:
        record = self.engine.record(run_id)
        assert record is not None
        activity = record.run.activities[event_id]
        allowed = self.registry.allowed_faults.get(activity.scheduled.activity_type, _USUAL)
        options: list[Option] = []
        if "failures" in self.sorts:
            options += [
                Option("fail", run_id, event_id, error=error) for error in allowed.errors_of(activity)
            ]
        if allowed.may_be_lost(activity):
            if "timeouts" in self.sorts:
                options.append(Option("silent", run_id, event_id))
            if "redeliveries" in self.sorts:
                options.append(Option("unheard", run_id, event_id))
        return options

    def _choose(self, options: list[Option]) -> None:
        place = self.choices.choose(options)
        if len(options) > 1:
            self.points.add(hash((len(options), *self._state.values())))
        self._steps_done += 1
        if self._steps_done > _MOST_STEPS:
            raise WorkflowStuck(f"the workflow has not ended after {_MOST_STEPS:,} steps")
        option = options[place]
        if self.writer is not None:
            self.writer.chosen(option, place != 0)
        self._do(option)
        if self.writer is not None:
            self.writer.done(option)
        self.after_each()

    def _absorb(self) -> None:
        """Do all steps that offer no choice."""
        while True:
            self.loop.settle()
            ended = [step for step in self.steps if step.kind == "ended"]
            for step in ended:  # of attempts on the activity loop; the moment of a result is no choice
                self.steps.remove(step)
                step.do()
            items, self._arrived = self._arrived, []
            for queue, item in items:
                queue.begin(item)
                self._raise_urgent()
            if ended or items:
                continue
            if len(self.stage.running) > len(self.outside):
                self.loop.do(self._bell.wait(None))
            elif not self.loop.settle():
                return

    def _do(self, option: Option) -> None:
        match option.kind:
            case "task":
                self._deliver(option.run_id, "")
            case "crash":
                self._crash_worker()
                self._deliver(option.run_id, "")
            case "die" | "late":
                self._deliver(option.run_id, option.kind)
            case "attempt" | "fail" | "silent" | "unheard":
                self._attempt(option)
            case "step":
                self.steps.pop(option.place).do()
            case "arrival":
                _, send = self.arrivals.pop(option.place)
                self.excused = True
                send()
            case _:
                self._pass_time()

    def _deliver(self, run_id: str, fate: str) -> None:
        self._fate = fate
        self._permit(run_id, 0)
        self._absorb()  # do the task, and first the replay of its older events
        self._fate = ""

    def _attempt(self, option: Option) -> None:
        self._permit(option.run_id, option.event_id)
        items, self._arrived = self._arrived, []
        for queue, item in items:
            if not isinstance(item, ActivityTask) or option.kind == "attempt":
                queue.begin(item)
                continue
            self.excused = True
            if option.kind == "fail":
                queue.begin(item, PlannedFault(option.error))
            elif option.kind == "unheard":
                queue.begin(item, _RESULT_LOST)

    def _permit(self, run_id: str, event_id: int) -> None:
        """Let the engine deliver this task."""
        self._permitted = (run_id, event_id)
        self.loop.call(self._assign)
        self.loop.settle()
        self._permitted = None

    def _assign(self) -> None:
        self.engine.queues.wake_all()
        self.engine.queues.dispatch()

    def _pass_time(self) -> None:
        """Advance virtual time until the state of the engine or of an arrival has changed."""
        before = self._progress()
        while self.loop.call(self.clock.advance_one):
            self._absorb()
            if self._progress() != before:
                break
        if self.clock.now_ns() > self.horizon_ns:
            raise explain(self, "virtual time has reached the environment's horizon")
        if self.writer is not None:
            self.writer.passed()

    def _progress(self) -> tuple[object, ...]:
        """Return values that change with the state of the engine and of the arrivals."""
        queues, elapsed = self.engine.queues, self.clock.now_ns() - self._begin_ns
        return (
            sum(record.run.length + len(record.run.held) for record in self.engine.runs.records()),
            len(queues.waiting_tasks()),
            len(queues.waiting_attempts()),
            len(self.steps),
            *[arrival.state(elapsed) for arrival, _ in self.arrivals],
        )

    def evaluate(
        self,
        queue: ServedQueue,
        activation: Activation,
        reply: Callable[[Verdict], object],
        generation: int,
    ) -> None:
        """Evaluate an activation. A choice decides whether its completion is lost or late."""
        if is_eviction(activation) or isinstance(activation.events[0], QueryReceived):
            super().evaluate(queue, activation, reply, generation)
            return
        fate = "" if activation.is_replaying else self._fate
        if not activation.is_replaying:
            self._fate = ""
        verdict = self._guarded(queue, activation, generation)
        if verdict is None:
            if self.writer is not None:
                self.writer.evaluated(activation, None)
            return
        self._record_state(activation)
        if self.writer is not None:
            self.writer.evaluated(activation, verdict.completion)
        if fate == "die":
            self._crash_worker()
        elif fate == "late":
            self._complete_late(activation.run_id, partial(reply, verdict))
        else:
            reply(verdict)
        self._serve_named(verdict)

    def _record_state(self, activation: Activation) -> None:
        run_id = activation.run_id
        self._known.add(run_id)
        if not activation.is_replaying:
            events = msgspec.msgpack.encode(activation.events)
            self._state[run_id] = state = zlib.crc32(events, self._state.get(run_id, 0))
            self.states.add(state)

    def _complete_late(self, run_id: str, reply: Callable[[], object]) -> None:
        record = self.engine.record(run_id)
        assert record is not None
        self._late[run_id] = reply
        step = Step("action", "late", partial(self._complete_now, run_id, reply))
        when = self.clock.now_ns() + to_ns(record.run.started.spec.task_timeout) + 1
        self.clock.call_at(when, lambda: self._add_late(step, run_id, reply))

    def _add_late(self, step: Step, run_id: str, reply: Callable[[], object]) -> None:
        if self._late.get(run_id) is reply:  # otherwise the worker has crashed in the meantime
            self.add(step)

    def _complete_now(self, run_id: str, reply: Callable[[], object]) -> None:
        if self._late.get(run_id) is reply:
            del self._late[run_id]
            reply()

    def _crash_worker(self) -> None:
        for queue in self._queues.values():
            queue.evaluations.recheck()
        self._known.clear()
        self._late.clear()
        self.crash()
