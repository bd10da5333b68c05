"""A run during its execution: its scheduler, its fibers, the facts of the current activation, and the issuing
of commands.

A `LiveRun` only saves time. It may be dropped at any time and rebuilt from the journal. Every function that an
author calls finds its run with `current_run`. This module also defines `Notes`, the data that a run shows to
clients.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import msgspec

from hourglass._evaluator.behaviour import NO_FLAGS, Flag, Recorded, behaviour_of
from hourglass._evaluator.call_sites import Site, call_site
from hourglass._evaluator.commands import (
    Command,
    ScheduleActivity,
    ScheduleLocalActivity,
    ScheduleNexusOperation,
    StartChildWorkflow,
)
from hourglass._evaluator.definition import WorkflowDefinition
from hourglass._evaluator.event_groups import in_groups
from hourglass._evaluator.events import Activation, RunStarted
from hourglass._evaluator.fibers import (
    Dropped,
    FiberTask,
    current_fiber,
    leave_suspended,
    read_only_error,
    readers,
    watched,
    watchers,
)
from hourglass._evaluator.interception import (
    InterceptWorkflow,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)
from hourglass._evaluator.scheduler import Scheduler
from hourglass._evaluator.state import CommandAccumulator, Numbered, State
from hourglass.converter import (
    ActivitySerializationContext,
    Converter,
    NexusSerializationContext,
    Payload,
    WorkflowSerializationContext,
    default_converter,
    in_context,
    wants_context,
)
from hourglass.errors import NotInWorkflowError

if TYPE_CHECKING:
    from hourglass._evaluator.apply import MainTask
    from hourglass._evaluator.event_loop import EventLoop, FailedTask, TaskLine
    from hourglass._evaluator.messages import Handlers
    from hourglass.metrics import Registry


class Notes:
    """Memo, search attributes and current details of a run. Created on first use.

    Values stay encoded, so that each read returns new objects (I6). The entries are sorted by name, because
    Temporal's protocol does not preserve their order. Workflow code that iterates over them must see the same
    order in each replay and on each engine.
    """

    __slots__ = ("details", "memo", "search_attributes")

    def __init__(self, started: RunStarted) -> None:
        self.memo = dict(sorted(started.spec.memo.items()))
        self.search_attributes = dict(sorted(started.spec.search_attributes.items()))
        self.details = ""


def merge(notes: dict[str, Payload], changes: dict[str, Payload]) -> None:
    """Apply changes to a memo or search attributes. A null payload removes an entry."""
    for name, payload in changes.items():
        if payload.encoding == "binary/null":
            notes.pop(name, None)
        else:
            notes[name] = payload


C = TypeVar("C", bound=Command)

_MAX_UNWINDS = 1000
_PRUNE_THRESHOLD = 64


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a worker for its runs."""

    task_queue: str = "default"
    namespace: str = "default"
    converter: Converter = default_converter
    failure_exceptions: tuple[type[BaseException], ...] = ()
    verify: bool = False
    trace: bool = False
    interceptors: tuple[InterceptWorkflow, ...] = ()
    patch_activation: Callable[[Any], bool] | None = None
    """Decides whether a patch is active when a run reaches it for the first time. None means that every patch
    is active.
    """
    metrics: Registry | None = None
    on_activity: Callable[[Any], object] | None = None
    """Called with each decorated activity that a run calls, to register activities that the worker was not
    given.
    """
    steps: dict[str, dict[str, Any]] | None = None
    """The definitions of unfinished steps, by run id and activity id. A step has no registered name by which a
    worker could find its function. The worker uses this table instead, because the code that requests the step
    runs in the same process, and runs again after a restart.
    """
    check_local_activity: Callable[[str], object] | None = None
    """Raises `UsageError` for a local activity that is not registered on this worker, because no other worker
    would ever receive it.
    """
    activity_stacks: Callable[[str], str] | None = None
    """Returns the stacks of a run's attempts on this worker, for the query `ACTIVITY_STACKS`."""
    # For runs that temporalio began: whether they ran on Python 3.12 or later, where a wait with a timeout and
    # a gather of finished tasks take one turn less. Histories do not record the Python version.
    newer_turns: bool = False


class LiveRun:
    """A run during its execution."""

    __slots__ = (
        "_loop",
        "_more",
        "_notes",
        "_only",
        "_random",
        "_seed",
        "accumulator",
        "begun_ns",
        "behaviour",
        "cancel_reason",
        "closing",
        "contextual",
        "converter",
        "dead",
        "definition",
        "error",
        "facts",
        "failed_tasks",
        "fibers_made",
        "flags",
        "grouped",
        "handlers",
        "has_drawn",
        "inbound",
        "latched",
        "let_out",
        "main",
        "many_failed",
        "notices",
        "outbound",
        "patch_memo",
        "patches",
        "pending",
        "quiet",
        "read_only",
        "scheduler",
        "seed_callbacks",
        "settings",
        "sites",
        "started",
        "state",
        "turning_points",
        "unsafe",
    )

    handlers: Handlers

    def __init__(self, definition: WorkflowDefinition, state: State, settings: RunSettings) -> None:
        self.definition = definition
        self.state = state
        self.settings = settings
        self.converter = settings.converter
        self.contextual = False  # whether the converter depends on the owner of a value
        self.scheduler = Scheduler()
        self._loop: EventLoop | None = None
        self.accumulator = CommandAccumulator(state)
        self._only: FiberTask[Any] | None = None
        self._more: dict[FiberTask[Any], None] | None = None
        self.pending: dict[Numbered, Any] = {}  # the operation that waits for the result of each command
        self.facts = Activation(run_id=state.run_id, events=())
        self.started: RunStarted | None = None
        self.main: FiberTask[Any] | MainTask | None = None
        self._random: random.Random | None = None
        self._seed: int | None = None  # the latest seed; None means the run's initial seed
        self.seed_callbacks: list[Callable[[int], object]] | None = None
        self.has_drawn = False  # whether the author's code has used random numbers; default ids do not count
        self._notes: Notes | None = None
        self.patches: frozenset[str] = frozenset()
        self.patch_memo: dict[str, bool] | None = None
        self.cancel_reason: str | None = None
        self.dead = False
        self.read_only = ""
        self.latched = False
        self.error: BaseException | None = None
        self.let_out: BaseException | None = None  # the error that failed the run
        self.flags: frozenset[int] = NO_FLAGS
        self.behaviour = behaviour_of(ours=False, newer_python=settings.newer_turns)
        self.failed_tasks: list[FiberTask[Any] | FailedTask] | None = None
        self.many_failed = 0
        self.fibers_made = 0
        self.turning_points = 0  # the number of starts and ends of fibers
        self.sites: list[Site] | None = [] if settings.trace or settings.verify else None
        self.notices: tuple[str, ...] = ()
        self.unsafe = 0
        # The interceptors between the run and its code; usually None.
        self.inbound: WorkflowInboundInterceptor | None = None
        self.outbound: WorkflowOutboundInterceptor | None = None
        self.begun_ns = 0  # the time of the run's first workflow task
        # The fiber that ends the run calls this function and waits for it before it issues the last command.
        self.closing: Callable[[], None] | None = None
        self.grouped = False  # whether the workflow code has created an event group
        self.quiet = False  # whether this repeats an earlier execution, so that nothing is logged

    def belongs_to(self, started: RunStarted) -> None:
        """Select the converter for the run's own values, after its start."""
        base = self.settings.converter
        if base is not default_converter and wants_context(base):
            self.contextual = True
            self.converter = self.converter_of_workflow(started.workflow_id)

    def converter_of_workflow(self, workflow_id: str) -> Converter:
        """Return the converter for the arguments and results of a workflow."""
        if not self.contextual:
            return self.converter
        context = WorkflowSerializationContext(self.settings.namespace, workflow_id)
        return in_context(self.settings.converter, context)

    def converter_of_activity(
        self, activity_type: str, activity_id: str | None, task_queue: str, *, local: bool
    ) -> Converter:
        """Return the converter for the arguments and the result of an activity. `activity_id` is the id that
        the author chose, if any.

        The caller must check first that the run is `contextual`. This method does not check it, because it is
        called for every activity.
        """
        assert self.started is not None
        context = ActivitySerializationContext(
            namespace=self.settings.namespace,
            activity_id=activity_id or None,
            activity_type=activity_type,
            activity_task_queue=task_queue or self.settings.task_queue,
            workflow_id=self.started.workflow_id,
            workflow_type=self.started.workflow_type,
            is_local=local,
        )
        return in_context(self.settings.converter, context)

    def converter_of(self, command: Command) -> Converter:
        """Return the converter for the result of a command."""
        match command:
            case ScheduleActivity() | ScheduleLocalActivity():
                author_id = None if command.activity_id == str(command.seq) else command.activity_id
                local = isinstance(command, ScheduleLocalActivity)
                queue = command.spec.task_queue
                return self.converter_of_activity(command.activity_type, author_id, queue, local=local)
            case StartChildWorkflow():
                return self.converter_of_workflow(command.workflow_id)
            case ScheduleNexusOperation():
                context = NexusSerializationContext(command.endpoint, command.service, command.operation)
                return in_context(self.settings.converter, context)
            case _:
                return self.converter

    # Most runs have a single fiber most of the time, so the first one is stored outside the dict, which would
    # take 216 bytes.

    def add_fiber(self, fiber: FiberTask[Any]) -> None:
        """Register a new fiber of this run."""
        self.fibers_made += 1
        if self._only is None and not self._more:
            self._only = fiber
        else:
            if self._more is None:
                self._more = {}
            self._more[fiber] = None

    def remove_fiber(self, fiber: FiberTask[Any]) -> None:
        """Remove a fiber that has ended or is dropped."""
        if self._only is fiber:
            self._only = None
        elif self._more is not None:
            self._more.pop(fiber, None)

    def note_failed(self, fiber: FiberTask[Any] | FailedTask) -> None:
        """Register a failed fiber. If the workflow never reads the fiber's result, a notice reports the failure
        when the run closes.
        """
        if fiber.looked_at:
            return
        if self.failed_tasks is None:
            self.failed_tasks = []
        self.failed_tasks.append(fiber)

    def unread_failures(self) -> tuple[str, ...]:
        """Return notices for failed fibers whose result the workflow has never read."""
        return tuple(
            [
                f"task {task.label} failed, and no code has retrieved its exception: {type(task.value).__name__}: "
                f"{task.value}"
                for task in self.failed_tasks or ()
                if not task.looked_at
            ]
        )

    def drop_read_failures(self) -> None:
        """Remove failed fibers whose result has been read. If there are many, skip this in most activations."""
        failed = self.failed_tasks
        if failed and (len(failed) <= _PRUNE_THRESHOLD or len(failed) >= self.many_failed):
            failed[:] = [task for task in failed if not task.looked_at]
            self.many_failed = 2 * len(failed)

    @property
    def fibers(self) -> list[FiberTask[Any]]:
        """All fibers that have not ended, oldest first."""
        first = [self._only] if self._only is not None else []
        return [*first, *self._more] if self._more else first

    @property
    def loop(self) -> EventLoop:
        """The event loop of the run's coroutines. Created on first use, so that asyncio is imported only
        then.
        """
        if self._loop is None:
            from hourglass._evaluator.event_loop import EventLoop

            self._loop = EventLoop.of(self)
        return self._loop

    @property
    def lines(self) -> list[FiberTask[Any] | TaskLine]:
        """All lines of execution that have not ended, for display: fibers and asyncio tasks."""
        return [*self.fibers, *(self._loop.lines() if self._loop is not None else ())]

    def issue(
        self,
        command: C,
        fiber: FiberTask[Any],
        key: Numbered | None = None,
        operation: Any = None,
        at: Site | None = None,
    ) -> C:
        """Issue a command for a fiber. A numbered command is registered together with the operation that waits
        for its result.

        `at` is the call site; the default is the current one. Return the command with the event groups of the
        block that issues it.
        """
        if self.latched:
            self.raise_unavailable(fiber, "a command")
        if self.grouped:
            command = in_groups(command)
        fiber.requests += 1
        command_id = fiber.path, fiber.requests
        if key is not None:
            self.pending[key] = operation
        self.accumulator.add(command_id, command)
        if self.sites is not None:
            self.sites.append(call_site() if at is None else at)
        return command

    def raise_unavailable(self, fiber: FiberTask[Any], what: str) -> NoReturn:
        """Raise the error of a latched run: `Dropped`, or the reason why it is read-only."""
        if self.dead:
            fiber.rejections += 1
            if fiber.rejections > _MAX_UNWINDS:
                leave_suspended()
            raise Dropped
        raise read_only_error(what, self.read_only)

    def holds(self, difference: Recorded) -> bool:
        """Return whether a difference of this run's behaviour applies. If it has a flag and the run is not
        replaying, record the flag.
        """
        if difference is True or difference is False:
            return difference
        if difference in self.facts.flags or difference in self.flags:
            return True
        if self.facts.is_replaying:
            return False
        self.flags |= {int(difference)}
        return True

    def update_behaviour(self) -> None:
        """Update the behaviour after a change of the flags, or when the origin of the run becomes known."""
        flags = self.facts.flags
        self.behaviour = behaviour_of(
            ours=Flag.HOURGLASS in flags or Flag.HOURGLASS in self.flags,
            single_batch=Flag.SINGLE_BATCH in flags,
            newer_python=self.settings.newer_turns,
        )

    @property
    def random(self) -> random.Random:
        """The run's random number generator. Created on first use, because it takes 2.5 KiB and most runs
        never use it.
        """
        if self._random is None:
            self._random = random.Random(self.seed)
        return self._random

    @property
    def seed(self) -> int:
        """The seed of the run's random numbers; a reset changes it."""
        if self._seed is not None:
            return self._seed
        assert self.started is not None
        return self.started.seed

    def reseed(self, seed: int) -> None:
        """Set a new seed for the random numbers. After a reset, this may happen before the run has started."""
        self._seed = seed
        if self._random is not None:
            self._random.seed(seed)
        if self.seed_callbacks:
            with self.read_only_block("a callback of the random seed"):
                for callback in self.seed_callbacks:
                    callback(seed)

    @property
    def notes(self) -> Notes:
        """The data that the run shows to clients."""
        if self._notes is None:
            assert self.started is not None
            self._notes = Notes(self.started)
        return self._notes

    @contextmanager
    def read_only_block(self, where: str) -> Iterator[None]:
        """Make the run read-only while the block runs user code that must not change it. In the block, commands
        raise, and facts can also be read outside of fibers.
        """
        previous, self.read_only = self.read_only, where
        self.latched = True
        reader, readers.run = readers.run, self
        try:
            yield
        finally:
            readers.run = reader
            self.read_only = previous
            self.latched = bool(previous) or self.dead

    def check_conditions(self) -> None:
        """Check the conditions that fibers wait for. The functions of the conditions must only read."""
        if not self.handlers.leaves_trace:
            # rejected updates are not recorded, so a condition that they make true would not hold on replay
            return
        with self.read_only_block("a condition"):
            if watchers:
                watched(Scheduler.check_conditions, self.scheduler)
            else:
                self.scheduler.check_conditions()

    def drop(self, on_step: Callable[[], object] | None = None) -> None:
        """Unwind every fiber on this thread, without issuing commands (I5). Call `on_step` after each fiber,
        because there may be thousands.
        """
        self.dead = self.latched = True
        # The scheduler is opened so that `finally` blocks can settle futures without an exception. The queued
        # turns are never taken.
        self.scheduler.open()
        if self._loop is not None:
            self._loop.drop(on_step)
        for fiber in self.fibers:
            fiber.unwind()
            if on_step is not None:
                on_step()
        self._only = self._more = None
        self.scheduler.close()
        self.scheduler.conditions.clear()
        self.pending.clear()
        self.seed_callbacks = None
        # Remove the references back to the run. Without reference cycles, the run is freed immediately and not
        # by the garbage collector.
        self.main = self.closing = self._loop = None
        self.handlers = cast(Any, None)


def current_run() -> LiveRun | None:
    """Return the run of the current fiber, or the run whose condition or query is being evaluated on this
    thread.
    """
    fiber = current_fiber()
    if fiber is not None:
        return fiber.run
    return readers.run


def require_run(what: str) -> LiveRun:
    """Return the current run, for facts that may be read anywhere in workflow code. Raise `NotInWorkflowError`
    outside of a workflow.
    """
    run = current_run()
    if run is None:
        raise NotInWorkflowError(f"{what} works only inside a running workflow")
    return run
