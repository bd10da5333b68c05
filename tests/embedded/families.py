"""Generated families of workflows: parents, children and unrelated runs that start, signal, cancel and leave each other
at random.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tests.specs import made

from hourglass._contract.workflows import CancelWorkflow, StillOpen, TerminateWorkflow
from hourglass._embedded.transitions.run import Run
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import RetryRule
from hourglass._history import events as h
from hourglass._history import events as o
from hourglass.client import IdReusePolicy
from hourglass.workflow import ChildCancellationType, ParentClosePolicy

from .memory_world import World, app_failure, text

MOST_RUNS = 40
Batch = tuple[tuple[e.Event, ...], int, int]


@dataclass
class Member:
    """A generated run: its commands depend only on its seed and on the events so far."""

    seed: int
    name: str = ""
    activations: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    started: dict[int, str] = field(default_factory=dict)
    signals: list[int] = field(default_factory=list)
    timers: list[int] = field(default_factory=list)
    closed: bool = False

    def answer(self, activation: e.Activation) -> list[c.Command]:
        for event in activation.events:
            self._apply(event)
        rng = Random(f"{self.seed} {self.name} {self.activations}")
        self.activations += 1
        if self.closed:
            return []  # within the task that closes it, a run that has closed is silent
        commands = [command for _ in range(rng.randint(0, 3)) for command in self._draw_commands(rng)]
        self.closed = rng.random() < 0.15 or self.activations > 12
        if self.closed:
            commands.insert(rng.randint(0, len(commands)), _end(rng, self.name))
        return commands

    def _apply(self, event: e.Event) -> None:
        match event:
            case e.RunStarted():
                self.name = event.workflow_id
            case e.ChildStartFailed(seq) | e.ChildStartCancelled(seq):
                self.started.pop(seq, None)
            case e.ChildCompleted(seq) | e.ChildFailed(seq) | e.ChildCancelled(seq):
                self.started.pop(seq, None)
            case e.ExternalSignalResolved(seq):
                self.signals.remove(seq)
            case e.TimerFired(seq):
                self.timers.remove(seq)
            case _:
                pass

    def _next(self, kind: str) -> int:
        self.numbers[kind] = self.numbers.get(kind, 0) + 1
        return self.numbers[kind]

    def _draw_commands(self, rng: Random) -> list[c.Command]:
        match rng.randint(0, 7):
            case 0 | 1 | 2 if self.name.count("/") < 2:
                return [self._child(rng)]
            case 3 if self.started:
                return [c.CancelChildWorkflow(rng.choice(list(self.started)), "no longer")]
            case 4:
                return [self._signal(rng)]
            case 5 if self.signals and rng.random() < 0.5:
                return [c.CancelSignalExternal(rng.choice(self.signals))]
            case 5:
                other = self._any_workflow_id(rng)
                return [c.RequestCancelExternal(seq=self._next("cancel"), workflow_id=other, reason="why")]
            case 6:
                seq = self._next("timer")
                self.timers.append(seq)
                return [c.StartTimer(seq, rng.randint(1, 9) * 10**9)]
            case _:
                return []

    def _child(self, rng: Random) -> c.StartChildWorkflow:
        seq = self._next("child")
        name = f"{self.name}/{rng.randint(0, 2)}"
        self.started[seq] = name
        return made(
            c.StartChildWorkflow,
            seq=seq,
            workflow_id=name,
            workflow_type="M",
            parent_close_policy=rng.choice(list(ParentClosePolicy)[1:]),
            id_reuse_policy=rng.choice(list(IdReusePolicy)),
            cancellation_type=rng.choice(list(ChildCancellationType)),
            run_timeout=rng.choice([None, 5.0]),
            retry_policy=rng.choice([None, RetryRule(initial_interval=1.0, maximum_attempts=2)]),
        )

    def _signal(self, rng: Random) -> c.SignalExternalWorkflow:
        seq = self._next("signal")
        self.signals.append(seq)
        if self.started and rng.random() < 0.6:
            name = rng.choice(list(self.started.values()))
            return c.SignalExternalWorkflow(seq=seq, workflow_id=name, signal_name="s", is_child=True)
        return c.SignalExternalWorkflow(seq=seq, workflow_id=self._any_workflow_id(rng), signal_name="s")

    def _any_workflow_id(self, rng: Random) -> str:
        return rng.choice(["w", "w/0", "w/1", "w/2", "w/0/0", "w/1/1", "unknown"])


def _end(rng: Random, name: str) -> c.Command:
    match rng.randint(0, 4):
        case 0:
            return c.FailRun(app_failure(f"{name} fails"))
        case 1:
            return c.ContinueAsNew()
        case 2:
            return c.CancelRun()
        case _:
            return c.CompleteRun(text(name))


class Family:
    """The runs of a family, their worker, and random events from outside."""

    def __init__(self, world: World, seed: int, known: dict[str, list[Batch]] | None = None) -> None:
        self.world = world
        self.seed = seed
        self.rng = Random(seed)
        self.members: dict[str, Member] = {}
        self.known: dict[str, list[Batch]] = {} if known is None else known
        self.evictions: set[str] = set()

    async def complete_tasks(self, limit: int = 200) -> None:
        """Complete the available workflow tasks; fail some of them at random."""
        for _ in range(limit):
            activation = self.world.handle.stepper.next_activation()
            if activation is None:
                return
            run_id = activation.run_id
            if isinstance(activation.events[0], e.RunEvicted):
                self.evictions.add(activation.events[0].reason)
                await self.world.complete(run_id)
                continue
            if isinstance(activation.events[0], e.RunStarted):
                self.members[run_id] = Member(self.seed)
            await self._answer(activation, self.members[run_id])

    async def _answer(self, activation: e.Activation, member: Member) -> None:
        self._compare(activation, member.activations)
        commands = member.answer(activation)
        if not activation.is_replaying and self.rng.random() < 0.1:
            await self.world.fail(activation.run_id)
        else:
            await self.world.complete(activation.run_id, *commands)

    def _compare(self, activation: e.Activation, place: int) -> None:
        known = self.known.setdefault(activation.run_id, [])
        seen = (activation.events, activation.timestamp_ns, activation.history_length)
        if activation.is_replaying:
            assert known[place] == seen
        else:
            known[place:] = [seen]

    async def apply_random_event(self) -> None:
        match self.rng.randint(0, 5):
            case 0 | 1:
                self.world.clock.advance(self.rng.randint(0, 8))
            case 2:
                runs = [record.run.run_id for record in self.world.engine.runs.records()]
                self.world.handle.request_eviction(self.rng.choice(runs or ["unknown"]))
            case 3:
                await self.world.call(CancelWorkflow(workflow_id="w", request_id=""))
            case 4 if self.rng.random() < 0.2 and isinstance(await self.world.outcome(), StillOpen):
                await self.world.call(TerminateWorkflow(workflow_id="w", reason="enough"))
            case _:
                pass

    async def live(self, steps: int) -> None:
        for _ in range(steps):
            if len(list(self.world.engine.runs.records())) > MOST_RUNS:
                return
            await self.complete_tasks()
            await self.apply_random_event()
        await self.complete_tasks()


def check_agreement(runs: dict[str, tuple[Run, tuple[h.HistoryEvent, ...]]]) -> None:
    """Check that the histories of related runs agree."""
    for run_id, (run, events) in runs.items():
        assert [event.id for event in events] == list(range(1, len(events) + 1))
        _check_children(run, run_id, events, runs)
        for event in events:
            attributes = event.attributes
            if isinstance(attributes, h.WorkflowExecutionSignaled) and attributes.external_run_id:
                sender = runs[attributes.external_run_id][1]
                assert any(
                    isinstance(each.attributes, o.ExternalWorkflowExecutionSignaled) for each in sender
                )
            if isinstance(attributes, h.WorkflowExecutionCancelRequested) and (
                request := attributes.external_initiated_event_id
            ):
                sender = runs[attributes.external_run_id][1]
                assert any(
                    isinstance(each.attributes, o.ExternalWorkflowExecutionCancelRequested)
                    and each.attributes.initiated_event_id == request
                    for each in sender
                )


def _check_children(
    run: Run,
    run_id: str,
    events: tuple[h.HistoryEvent, ...],
    runs: dict[str, tuple[Run, tuple[h.HistoryEvent, ...]]],
) -> None:
    for event in events:
        match event.attributes:
            case o.ChildWorkflowExecutionStarted(run_id=child, initiated_event_id=initiated):
                started = runs[child][0].started
                assert (started.parent_run_id, started.parent_initiated_event_id) == (run_id, initiated)
            case o.ChildEnd(run_id=child):
                assert not runs[child][0].is_open
            case _:
                pass
    for pending in run.children.values():
        assert pending.run_id, "requested and neither started nor rejected"
        chain = [each for each, _ in runs.values() if each.started.first_run_id == pending.run_id]
        assert any(each.is_open for each in chain), "the child is closed and its parent was not notified"
    if not run.is_open:
        assert run.children == {}
        for each, _ in runs.values():
            if each.started.parent_run_id == run_id and each.is_open:
                _check_left(each, events, runs)


def _check_left(
    child: Run,
    parents: tuple[h.HistoryEvent, ...],
    runs: dict[str, tuple[Run, tuple[h.HistoryEvent, ...]]],
) -> None:
    """Check that the open child was abandoned, or that cancellation of its chain was requested."""
    initiated = parents[child.started.parent_initiated_event_id - 1].attributes
    assert isinstance(initiated, o.StartChildWorkflowExecutionInitiated)
    if initiated.child.parent_close_policy is ParentClosePolicy.ABANDON:
        return
    assert initiated.child.parent_close_policy is ParentClosePolicy.REQUEST_CANCEL
    first = child.started.first_run_id
    chain = [each for each, _ in runs.values() if each.started.first_run_id == first]
    assert any(each.cancel_requested for each in chain)
