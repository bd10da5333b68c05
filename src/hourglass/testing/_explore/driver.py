"""One order: an environment in which `Choices` decide at each step what happens next, mishaps included.

The engine gives out nothing by itself: its gate opens for what was chosen. So events gather until a workflow gets to
know them, attempts wait as long as they are left waiting, and time can pass while something is ready. Whatever is no
choice happens at once: replays, evictions, queries, cancellations of attempts.

Invariants:

- Nothing but the choices decides what happens: no thread runs while a choice is made.
- The first option is what a healthy world would do: workflows first, then attempts, then what comes from outside,
  then time. An order that always takes it comes to the end if the workflow does.
- A crash takes everything that the worker knows. Before that its runs are executed again and compared (I2).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from hourglass._contract.handle import ActivityItem, ActivityTask
from hourglass._embedded.clock import to_ns
from hourglass._evaluator.commands import Completion
from hourglass._evaluator.events import Activation, QueryReceived, is_eviction
from hourglass._worker.lanes.evaluation import Verdict
from hourglass.errors import WorkflowStuck
from hourglass.testing._activities import Mishap
from hourglass.testing._driver import EnvironmentDriver, ServedQueue, Step, queues_of
from hourglass.testing._explore.choices import Choices, Option, Sort
from hourglass.testing._explore.possible import Arrival, possible
from hourglass.testing._guard import WorkflowHung
from hourglass.testing._trouble import QuietTroubles, explain

# --- a task queue without polls: all that is taken is a choice ------------------------------------


class StillQueue(ServedQueue):
    """What serves one task queue of an exploration."""

    def attend(self) -> None:
        """Nothing is taken but what is chosen."""

    def taken(self, *, asked: bool = False) -> list[Activation | ActivityItem]:
        """What is there without being taken: replays, evictions, cancellations, and queries, if any was `asked`."""
        handle = self.handle
        found: list[Activation | ActivityItem] = []
        while (handle.has_activation or asked) and (activation := self.take_task()) is not None:
            found.append(activation)
        while handle.has_activity and (item := self.take_attempt()) is not None:
            found.append(item)
        return found

    def take_task(self) -> Activation | None:
        """One activation, if the engine may give one out."""
        return self._loop.call(self.handle.next_activation)

    def take_attempt(self) -> ActivityItem | None:
        """One attempt, or the cancellation of one, if the engine may give one out."""
        return self._loop.call(self.handle.next_activity)


# --- the driver of one order ----------------------------------------------------------------------


_MOST_STEPS = 10_000
_UNHEARD = Mishap(result_lost=True)


class Teller(Protocol):
    """Hears what happens, for the story."""

    def chosen(self, option: Option, deviates: bool) -> None:
        """This happens."""
        ...

    def done(self, option: Option) -> None:
        """It has happened."""
        ...

    def evaluated(self, activation: Activation, completion: Completion | None) -> None:
        """A workflow has gone on, or (None) hangs."""
        ...

    def passed(self) -> None:
        """Time has passed."""
        ...


class Exploring(EnvironmentDriver):
    """Drives one order."""

    make_queue = StillQueue
    make_troubles = QuietTroubles
    inline = True
    gates = True
    choices: Choices
    sorts: frozenset[Sort]
    teller: Teller | None = None
    _queues: dict[str, StillQueue]  # type: ignore[assignment]  # made by make_queue

    def explore(
        self, choices: Choices, sorts: frozenset[Sort], arrivals: Sequence[Arrival], teller: Teller | None
    ) -> None:
        """Say how the order is chosen, before anything happens."""
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
        """The workflow is started: from now on what comes from outside may come."""
        self._begin_ns = self.clock.now_ns()
        for each in self.planned:
            self.arrivals.append((each, send(each)))
            for when in (each.after_ns, each.before_ns):
                if when:
                    self.clock.call_at(self._begin_ns + when, _nothing)

    # --- what decides beside the choices: nothing -----------------------------------------------------------

    def may_take(self, run_id: str, scheduled_event_id: int) -> bool:
        """Whether the engine may give this out: what was chosen, and nothing else."""
        return self._permitted == (run_id, scheduled_event_id)

    def new_run_id(self) -> str:
        """Numbers: the same order has the same ids."""
        self._runs += 1
        return f"00000000-0000-4000-8000-{self._runs:012}"

    def due_now(self, due: list[int]) -> list[int]:
        """Of a run's timers and timeouts that are due at the same instant the choices pick one, which comes alone."""
        if len(due) < 2:
            return due
        options = [Option("due", event_id=each) for each in due]
        return [due[self.choices.choose(options)]]

    # --- the loop -------------------------------------------------------------------------------------------

    def _drive(self, done: Callable[[], bool], may_move: Callable[[], bool]) -> None:
        while True:
            self.loop.settle()
            if done():
                return
            self._absorb()
            self._raise_urgent()
            self._raise_parked()
            options = self._possible() if may_move() else []
            if done():  # by what was no choice
                return
            if options:
                self._choose(options)
            elif may_move():
                raise explain(self, "nothing is due, and nothing is under way")
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
            arrivals=[arrival.stands(passed) for arrival, _ in self.arrivals],
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
        """Do all that is no choice."""
        while True:
            self.loop.settle()
            ended = [step for step in self.steps if step.kind == "ended"]
            for step in ended:  # of attempts on the activity loop: when their threads are done is no choice
                self.steps.remove(step)
                step.do()
            asked = self.engine.tasks.has_questions
            found = [(queue, item) for queue in self._queues.values() for item in queue.taken(asked=asked)]
            for queue, item in found:
                self._step(queue, item).do()
            if ended or found:
                continue
            if len(self.stage.running) > len(self.outside):
                self.loop.do(self._bell.wait(None))
            elif not self.loop.settle():
                return

    # --- what happens ---------------------------------------------------------------------------------------

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
        self._absorb()  # what is replayed comes before what is new
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
        """Have the engine give something out."""
        self._permitted = (run_id, event_id)
        found: list[tuple[ServedQueue, Any]] = []
        for queue in self._queues.values():
            item = queue.take_attempt() if event_id else queue.take_task()
            if item is not None:
                found.append((queue, item))
                break
        self._permitted = None
        return found

    def _pass_time(self) -> None:
        """Let time pass until something has happened."""
        before = self._marks()
        while self.loop.call(self._advance):
            self._absorb()
            if self._marks() != before:
                break
        if self.clock.now_ns() > self.horizon_ns:
            raise explain(self, "virtual time has come to the environment's horizon")
        if self.teller is not None:
            self.teller.passed()

    def _advance(self) -> bool:
        return self.clock.advance_one()

    def _marks(self) -> tuple[object, ...]:
        """What changes when something happens."""
        offers, passed = self.engine.queues, self.clock.now_ns() - self._begin_ns
        return (
            sum(record.run.length + len(record.run.held) for record in self.engine.runs.records()),
            len(offers.waiting_tasks()),
            len(offers.waiting_attempts()),
            len(self.steps),
            *[each.stands(passed) for each, _ in self.arrivals],
        )

    # --- workflows ------------------------------------------------------------------------------------------

    def _evaluate(self, queue: ServedQueue, activation: Activation) -> None:
        if is_eviction(activation) or isinstance(activation.events[0], QueryReceived):
            super()._evaluate(queue, activation)
            return
        fate = "" if activation.is_replaying else self._fate
        if not activation.is_replaying:
            self._fate = ""
        try:
            with self.guard:
                verdict = queue.judge(activation)
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
            self._answer_late(queue, activation, verdict)
        else:
            queue.answer(verdict)
        for name in queues_of(verdict.completion):
            self.loop.do(self.serve(name))

    def _note(self, activation: Activation) -> None:
        run_id = activation.run_id
        self._known.add(run_id)
        if not activation.is_replaying:
            events = msgspec.msgpack.encode(activation.events)
            self._state[run_id] = state = zlib.crc32(events, self._state.get(run_id, 0))
            self.states.add(state)

    def _answer_late(self, queue: ServedQueue, activation: Activation, verdict: Verdict) -> None:
        record = self.engine.record(activation.run_id)
        assert record is not None
        self._late.add(activation.run_id)
        step = Step("action", "late", partial(self._give_late_answer, queue, verdict))
        when = self.clock.now_ns() + to_ns(record.run.started.spec.task_timeout) + 1
        self.clock.call_at(when, lambda: self.add(step))

    def _give_late_answer(self, queue: ServedQueue, verdict: Verdict) -> None:
        run_id = verdict.completion.run_id
        if run_id in self._late:  # else the worker has died meanwhile
            self._late.discard(run_id)
            queue.answer(verdict)

    def _lose_all(self) -> None:
        for queue in self._queues.values():
            queue.evaluations.recheck()
        self._known.clear()
        self._late.clear()
        self.crash()


def _nothing() -> None:
    """Time stops here."""
