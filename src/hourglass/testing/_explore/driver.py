"""One order of an exploration: an environment in which `Choices` select every step, including mishaps.

The engine dispatches a task only when it has been chosen. So events accumulate until a workflow receives them, attempts wait
until they are chosen, and time can pass while tasks are ready. Steps that are no choice are done at once: replays, evictions,
queries, cancellations of attempts.

Invariants:

- Only the choices decide what happens: no other thread runs while a choice is made.
- The first option is the usual one: workflow tasks first, then attempts, then arrivals, then time. An order of first options only
  ends if the workflow does.
- A crash drops everything that the worker knows. Before it, all runs are executed again and compared (I2).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from hourglass._contract.handle import ActivityItem, ActivityTask, WorkKind
from hourglass._embedded.activations.stepping import Stepper
from hourglass._embedded.clock import to_ns
from hourglass._evaluator.commands import Completion
from hourglass._evaluator.events import Activation, QueryReceived, is_eviction
from hourglass._worker.lanes.evaluation import Verdict
from hourglass.errors import WorkflowStuck
from hourglass.testing._activities import Mishap
from hourglass.testing._driver import EnvironmentDriver
from hourglass.testing._explore.choices import Choices, Option, Sort
from hourglass.testing._explore.possible import Arrival, possible
from hourglass.testing._guard import WorkflowHung
from hourglass.testing._served_queue import ServedQueue, queues_of
from hourglass.testing._steps import Step
from hourglass.testing._stuck import explain
from hourglass.testing._trouble import QuietTroubles


class GatedQueue(ServedQueue):
    """One task queue of an exploration: items are taken one at a time, by choice."""

    def attend(self) -> None:
        """Grant no slots: only chosen items are taken."""
        self._stepper = Stepper(self.handle)

    def taken(self, *, has_queries: bool = False) -> list[Activation | ActivityItem]:
        """Take the items that are no choice: replays, evictions, cancellations, and queries, if there are any."""
        handle = self.handle
        items: list[Activation | ActivityItem] = []
        while (handle.has_items(WorkKind.WORKFLOWS) or has_queries) and (
            activation := self.take_task()
        ) is not None:
            items.append(activation)
        while handle.has_items(WorkKind.ACTIVITIES) and (item := self.take_attempt()) is not None:
            items.append(item)
        return items

    def take_task(self) -> Activation | None:
        """Take one activation, if the engine may dispatch one."""
        return self._loop.call(self._stepper.next_activation)

    def take_attempt(self) -> ActivityItem | None:
        """Take one attempt, or the cancellation of one, if the engine may dispatch one."""
        return self._loop.call(self._stepper.next_activity)


_MOST_STEPS = 10_000
_UNHEARD = Mishap(result_lost=True)


class Teller(Protocol):
    """Receives everything that happens, for the story."""

    def chosen(self, option: Option, deviates: bool) -> None:
        """An option has been chosen, and is about to be done."""
        ...

    def done(self, option: Option) -> None:
        """An option has been done."""
        ...

    def evaluated(self, activation: Activation, completion: Completion | None) -> None:
        """An activation has been evaluated; None: the workflow hangs."""
        ...

    def passed(self) -> None:
        """Virtual time has passed."""
        ...


class Exploring(EnvironmentDriver):
    """The driver of one order."""

    make_queue = GatedQueue
    make_troubles = QuietTroubles
    inline = True
    gates = True
    choices: Choices
    sorts: frozenset[Sort]
    teller: Teller | None = None
    _queues: dict[str, GatedQueue]  # type: ignore[assignment]  # made by make_queue

    def explore(
        self, choices: Choices, sorts: frozenset[Sort], arrivals: Sequence[Arrival], teller: Teller | None
    ) -> None:
        """Set the choices, the sorts of mishaps and the arrivals of this order, before anything happens."""
        self.choices, self.sorts, self.teller = choices, sorts, teller
        self.arrivals: list[tuple[Arrival, Callable[[], object]]] = []
        self.planned = arrivals
        self.after_each: Callable[[], None] = lambda: None
        self.excused = False
        self.states: set[int] = set()
        self.points: set[int] = set()
        self._state: dict[str, int] = {}
        self._permitted: tuple[str, int] | None = None
        self._fate = ""
        self._known: set[str] = set()
        self._late: set[str] = set()
        self._steps_done = 0
        self._begin_ns = self.clock.now_ns()
        self._runs = 0

    def expect(self, send: Callable[[Arrival], Callable[[], object]]) -> None:
        """Allow arrivals from now on: the workflow has been started."""
        self._begin_ns = self.clock.now_ns()
        for arrival in self.planned:
            self.arrivals.append((arrival, send(arrival)))
            for when in (arrival.after_ns, arrival.before_ns):
                if when:
                    self.clock.call_at(self._begin_ns + when, _nothing)

    def may_take(self, run_id: str, scheduled_event_id: int) -> bool:
        """Return whether the engine may dispatch a task: only the chosen one."""
        return self._permitted == (run_id, scheduled_event_id)

    def new_run_id(self) -> str:
        """Return a consecutive number as an id, so that the same order has the same ids."""
        self._runs += 1
        return f"00000000-0000-4000-8000-{self._runs:012}"

    def due_now(self, due: list[int]) -> list[int]:
        """Return one of a run's timers and timeouts that are due at the same instant: the chosen one."""
        if len(due) < 2:
            return due
        options = [Option("due", event_id=event_id) for event_id in due]
        return [due[self.choices.choose(options)]]

    def _drive(self, done: Callable[[], bool], may_move: Callable[[], bool]) -> None:
        while True:
            self.loop.settle()
            if done():
                return
            self._absorb()
            self._raise_urgent()
            self._raise_parked()
            options = self._possible() if may_move() else []
            if done():  # by steps that were no choice
                return
            if options:
                self._choose(options)
            elif may_move():
                raise explain(self, "nothing is due, and nothing is in progress")
            else:
                self._await_others()

    def _possible(self) -> list[Option]:
        passed = self.clock.now_ns() - self._begin_ns
        return possible(
            self.engine,
            self.registry.mishaps,
            self.sorts,
            idle=self._known - self._late,
            late=self._late,
            steps=len(self.steps),
            arrivals=[arrival.standing(passed) for arrival, _ in self.arrivals],
            may_pass=self.clock.next_due_ns() is not None,
        )

    def _choose(self, options: list[Option]) -> None:
        place = self.choices.choose(options)
        if len(options) > 1:
            self.points.add(hash((len(options), *self._state.values())))
        self._steps_done += 1
        if self._steps_done > _MOST_STEPS:
            raise WorkflowStuck(f"the workflow has not ended after {_MOST_STEPS:,} steps")
        option = options[place]
        if self.teller is not None:
            self.teller.chosen(option, place != 0)
        self._do(option)
        if self.teller is not None:
            self.teller.done(option)
        self.after_each()

    def _absorb(self) -> None:
        """Do all steps that are no choice."""
        while True:
            self.loop.settle()
            ended = [step for step in self.steps if step.kind == "ended"]
            for step in ended:  # of attempts on the activity loop: when their code ends is no choice
                self.steps.remove(step)
                step.do()
            has_queries = bool(self.engine.tasks.queried)
            items = [
                (queue, item)
                for queue in self._queues.values()
                for item in queue.taken(has_queries=has_queries)
            ]
            for queue, item in items:
                self._step(queue, item).do()
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
                self._lose_all()
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
        for queue, item in self._taken(run_id, 0):
            assert isinstance(item, Activation)
            self._evaluate(queue, item)
        self._absorb()  # replays come before new events
        self._fate = ""

    def _attempt(self, option: Option) -> None:
        for queue, task in self._taken(option.run_id, option.event_id):
            assert isinstance(task, ActivityTask)
            if option.kind == "attempt":
                queue.begin(task)
                continue
            self.excused = True
            if option.kind == "fail":
                queue.begin(task, Mishap(option.error))
            elif option.kind == "unheard":
                queue.begin(task, _UNHEARD)

    def _taken(self, run_id: str, event_id: int) -> list[tuple[ServedQueue, Any]]:
        """Let the engine dispatch one task, and take it."""
        self._permitted = (run_id, event_id)
        taken: list[tuple[ServedQueue, Any]] = []
        for queue in self._queues.values():
            item = queue.take_attempt() if event_id else queue.take_task()
            if item is not None:
                taken.append((queue, item))
                break
        self._permitted = None
        return taken

    def _pass_time(self) -> None:
        """Let virtual time pass until something has happened."""
        before = self._marks()
        while self.loop.call(self._advance):
            self._absorb()
            if self._marks() != before:
                break
        if self.clock.now_ns() > self.horizon_ns:
            raise explain(self, "virtual time has reached the environment's horizon")
        if self.teller is not None:
            self.teller.passed()

    def _advance(self) -> bool:
        return self.clock.advance_one()

    def _marks(self) -> tuple[object, ...]:
        """Return values that change whenever something happens."""
        queues, passed = self.engine.queues, self.clock.now_ns() - self._begin_ns
        return (
            sum(record.run.length + len(record.run.held) for record in self.engine.runs.records()),
            len(queues.waiting_tasks()),
            len(queues.waiting_attempts()),
            len(self.steps),
            *[arrival.standing(passed) for arrival, _ in self.arrivals],
        )

    def _evaluate(self, queue: ServedQueue, activation: Activation) -> None:
        if is_eviction(activation) or isinstance(activation.events[0], QueryReceived):
            super()._evaluate(queue, activation)
            return
        fate = "" if activation.is_replaying else self._fate
        if not activation.is_replaying:
            self._fate = ""
        try:
            with self.guard:
                verdict = queue.evaluate(activation)
        except WorkflowHung:
            if self.teller is not None:
                self.teller.evaluated(activation, None)
            raise
        self._note(activation)
        if self.teller is not None:
            self.teller.evaluated(activation, verdict.completion)
        if fate == "die":
            self._lose_all()
        elif fate == "late":
            self._complete_late(queue, activation, verdict)
        else:
            queue.complete(verdict)
        for name in queues_of(verdict.completion):
            self.loop.do(self.serve(name))

    def _note(self, activation: Activation) -> None:
        run_id = activation.run_id
        self._known.add(run_id)
        if not activation.is_replaying:
            events = msgspec.msgpack.encode(activation.events)
            self._state[run_id] = state = zlib.crc32(events, self._state.get(run_id, 0))
            self.states.add(state)

    def _complete_late(self, queue: ServedQueue, activation: Activation, verdict: Verdict) -> None:
        record = self.engine.record(activation.run_id)
        assert record is not None
        self._late.add(activation.run_id)
        step = Step("action", "late", partial(self._complete_now, queue, verdict))
        when = self.clock.now_ns() + to_ns(record.run.started.spec.task_timeout) + 1
        self.clock.call_at(when, lambda: self.add(step))

    def _complete_now(self, queue: ServedQueue, verdict: Verdict) -> None:
        run_id = verdict.completion.run_id
        if run_id in self._late:  # otherwise the worker has died meanwhile
            self._late.discard(run_id)
            queue.complete(verdict)

    def _lose_all(self) -> None:
        for queue in self._queues.values():
            queue.evaluations.recheck()
        self._known.clear()
        self._late.clear()
        self.crash()


def _nothing() -> None:
    """Do nothing: virtual time stops at this callback."""
