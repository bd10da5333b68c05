"""The transitions of a workflow task: start, completion, failure, timeout. Pure: `(run, answer, now) -> Change`.

Must not know: activations, caches, handles. A command comes with the id of the event that it refers to (`Sent.link`),
because only the worker knows Core's sequence numbers. Each command is checked against the run as the previous commands
have left it (`command_checks`).

Invariants: commands are applied in order, with a terminal command last. A terminal command is rejected while events are
held back (UnhandledCommand). A continue-as-new command is not rejected twice in a row because of signals: the second
time, the next run receives the signals. A command that exceeds a limit is also rejected, and the whole completion then
has no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from hourglass._contract.workflows import REPORTED_PROBLEMS, WorkflowStatus
from hourglass._embedded.clock import SECOND, later, to_ns
from hourglass._embedded.transitions import activities, children, problems
from hourglass._embedded.transitions.change_builder import ChangeBuilder
from hourglass._embedded.transitions.children import continue_follower, cron_follower, next_attempt_or_run
from hourglass._embedded.transitions.command_checks import CHECKS, CompletionRejected, check_size
from hourglass._embedded.transitions.run import (
    RUNNING,
    Change,
    OpenActivity,
    PendingTask,
    PendingTimer,
    RequestCancelChild,
    Run,
)
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._embedded.transitions.task_starts import (
    Eager,
    begin_task,
    take_attempts,
    task_of,
    write_unwritten,
)
from hourglass._embedded.transitions.task_starts import unwritten as unwritten
from hourglass._embedded.transitions.versioning import after_task
from hourglass._evaluator import commands as c
from hourglass._evaluator.specs import VersioningBehavior, WorkerDeploymentVersion
from hourglass._history import events as h
from hourglass._history.events import (
    RecordLocalActivity,
    UpdateRequest,
    WorkflowExecutionUpdateAccepted,
    WorkflowExecutionUpdateCompleted,
)
from hourglass.converter import Failure, Payload


def write_answer(builder: ChangeBuilder, sent: Sent, completed: int) -> None:
    """Write the acceptance or the completion of an update. Never called for updates that were rejected before their
    acceptance.

    `sent.link` is the id of the admission event, if there is one. For a completion, it is the id of the acceptance event
    if an earlier task accepted the update.
    """
    command, request, link = sent.command, sent.update, sent.link
    if request is None:
        raise TypeError(f"{type(command).__name__} refers to an unknown update")
    if isinstance(command, c.AcceptUpdate):
        builder.write(
            WorkflowExecutionUpdateAccepted(
                update_id=request.update_id,
                # A worker sees waiting updates right before the started event of its task, which is followed by the
                # completed event.
                sequencing_event_id=link or completed - 2,
                request=None if link else request,
            )
        )
        return
    builder.write(
        WorkflowExecutionUpdateCompleted(
            update_id=request.update_id,
            accepted_event_id=link or _accepted_just_now(builder, request.update_id),
            identity=request.identity,
            result=command.result if isinstance(command, c.CompleteUpdate) else None,
            failure=command.failure if isinstance(command, c.RejectUpdate) else None,
        )
    )


def _accepted_just_now(builder: ChangeBuilder, update_id: str) -> int:
    for event in reversed(builder.written):
        accepted = event.attributes
        if isinstance(accepted, WorkflowExecutionUpdateAccepted) and accepted.update_id == update_id:
            return event.id
    raise TypeError(f"update {update_id!r} was not accepted")


_MANY = 20
"""If a completion leads to more events than this, its size is checked after each command, so that excessive requests are
rejected before all of them are encoded.
"""

LONGEST_WAIT = 600.0
"""The longest delay before the next attempt of a failing workflow task, in seconds."""


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A command as the engine receives it, with the id of the event that it refers to, and the update that it answers."""

    command: c.Command
    link: int = 0
    update: UpdateRequest | None = None


class TaskCompletion(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A worker's completion of a workflow task."""

    commands: tuple[Sent, ...] = ()
    flags: tuple[int, ...] = ()
    identity: str = ""
    rejected_updates: tuple[tuple[str, Failure], ...] = ()
    version: WorkerDeploymentVersion | None = None
    behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    again: bool = False
    """Whether the worker waits for local activities and immediately requests the next task."""


def may_be_followed(answer: TaskCompletion) -> bool:
    """Whether a completion may open another run, which then needs a run id."""
    return (
        bool(answer.commands) and type(answer.commands[-1].command) in c.TERMINAL_KINDS
    )  # a terminal command comes last


def leaves_no_trace(task: PendingTask, answer: TaskCompletion) -> bool:
    """Whether a speculative task leaves no event because all its updates were rejected."""
    return task.speculative and not answer.commands and not answer.again


def start_task(
    run: Run, identity: str, limits: Limits, target: WorkerDeploymentVersion | None, now_ns: int
) -> Change:
    """Record that a worker has received the run's task. `target` is the version that a pinned run would otherwise move
    to.
    """
    builder = ChangeBuilder(run, now_ns)
    begin_task(builder, task_of(run), identity, limits, run.history_size, target)
    return builder.build()


def complete_task(
    run: Run, answer: TaskCompletion, new_run_id: str, limits: Limits, eager: Eager | None, now_ns: int
) -> Change:
    """Apply the completion of a run's task. With `eager`, the worker immediately receives attempts that the completion
    schedules.

    Raise `CompletionRejected` if the completion is rejected.
    """
    signals = _signals_for_next(run, answer) if run.held else ()
    if run.held and not signals and may_be_followed(answer):
        raise CompletionRejected(h.UNHANDLED_COMMAND, "UNHANDLED_COMMAND", "UnhandledCommand")
    task = run.task
    if task is None:
        raise RuntimeError(f"run {run.run_id} has no workflow task")
    builder = ChangeBuilder(run, now_ns)
    if task.transient:
        if leaves_no_trace(task, answer):
            forget_speculative_task(builder)
            return builder.build()
        write_unwritten(builder)
    completed = builder.write(
        h.WorkflowTaskCompleted(
            scheduled_event_id=task.scheduled_event_id,
            started_event_id=task.started_event_id,
            identity=answer.identity,
            flags=answer.flags,
            version=answer.version,
            behavior=answer.behavior,
        )
    )
    if answer.version is not None or run.version is not None:
        builder.update(**after_task(run, answer.version, answer.behavior))
    if run.trouble is not None or REPORTED_PROBLEMS in run.search_attributes:
        problems.forget_failures(builder)
    follower = None
    for sent in answer.commands:
        command = sent.command
        kind, written = type(command), len(builder.written)
        check = CHECKS.get(kind)
        if check is not None:
            check(builder, command, limits)
        if (apply := _APPLY.get(kind)) is not None:
            apply(builder, command, completed)
        elif (apply_to := _APPLY_TO.get(kind)) is not None:
            apply_to(builder, sent, completed)
        else:
            follower = _close(builder, command, completed, new_run_id) or follower
        if command.event_groups:
            builder.group(written, command.event_groups)
        if len(builder.written) > _MANY:
            limits.check_step(builder.measure() - run.history_size)
    # A command's values can be too large only if its events are. The size of the events is known in any case, so the
    # payloads of most commands need not be checked.
    size = builder.measure() - run.history_size
    if size > limits.blob_bytes or size > limits.payloads_warn > 0:
        for sent in answer.commands:
            check_size(sent.command, limits)
        limits.check_step(size)
    if builder.run.status is RUNNING:
        builder.set_task(None)
        if builder.flush() or answer.again:
            builder.want_task()
        if eager is not None and builder.touched:
            take_attempts(builder, eager, run.history_size + size)
    return builder.build(follower, signals)


def _signals_for_next(run: Run, answer: TaskCompletion) -> tuple[h.WorkflowExecutionSignaled, ...]:
    """Return the signals that arrived during the task, if the run continues as new and has no other held events.

    The next run receives these signals, as if each had arrived a moment later. A Temporal server rejects such a
    completion every time. A run that receives signals continuously would then never continue as new, until it is
    terminated because of its history's size. Here only the first completion is rejected.
    """
    is_continued = bool(answer.commands) and type(answer.commands[-1].command) is c.ContinueAsNew
    if not is_continued or not task_of(run).after_refusal:
        return ()
    signals = tuple(event for event in run.held if isinstance(event, h.WorkflowExecutionSignaled))
    return signals if len(signals) == len(run.held) else ()


def fail_task(run: Run, cause: int, failure: Failure | None, identity: str, now_ns: int) -> Change:
    """Fail the run's task because the worker could not process it or its completion was rejected. Schedule the next
    attempt.
    """
    task = task_of(run)
    builder = ChangeBuilder(run, now_ns)
    if _is_recorded(task):
        write_unwritten(builder)
        builder.write(
            h.WorkflowTaskFailed(
                scheduled_event_id=task.scheduled_event_id,
                started_event_id=task.started_event_id,
                cause=cause,
                failure=failure,
                identity=identity,
            )
        )
    problems.note_failure(builder, task, cause, is_told=_is_recorded(task))
    _want_again(builder, task)
    if cause == h.UNHANDLED_COMMAND and builder.run.task is not None:
        builder.set_task(msgspec.structs.replace(builder.run.task, after_refusal=True))
    return builder.build()


def time_out_task(builder: ChangeBuilder, *, at_once: bool = False) -> None:
    """Time out the run's task and schedule the next attempt. With `at_once`, after the worker's process has ended, there
    is no delay.
    """
    task = task_of(builder.run)
    if _is_recorded(task):
        write_unwritten(builder)
        builder.write(
            h.WorkflowTaskTimedOut(
                scheduled_event_id=task.scheduled_event_id, started_event_id=task.started_event_id
            )
        )
    problems.note_failure(builder, task, None, is_told=_is_recorded(task))
    _want_again(builder, task, at_once=at_once)


def _is_recorded(task: PendingTask) -> bool:
    """Whether a failure of this task is recorded in the history."""
    return not task.transient or (task.speculative and not task.silent)


def forget_speculative_task(builder: ChangeBuilder) -> None:
    """Remove a speculative task that had no effect, as if it had never been scheduled."""
    builder.update(task=None)
    if builder.flush():
        builder.want_task()


def _want_again(builder: ChangeBuilder, task: PendingTask, *, at_once: bool = False) -> None:
    builder.update(task=None)
    if builder.flush() or (task.speculative and not task.silent):
        builder.want_task()
        return
    wait = 0.0 if at_once else wait_before(builder.run, task.attempt + 1)
    builder.want_task_again(task.attempt + 1, later(builder.now_ns, to_ns(wait)), silent=task.silent)


def wait_before(run: Run, attempt: int) -> float:
    """Return the delay before this attempt of a workflow task, in seconds. There is no delay after the first failure.
    Later the delay doubles each time, up to a limit.
    """
    first = run.started.spec.task_timeout
    return 0.0 if attempt <= 2 else min(first * 2.0 ** min(attempt - 3, 20), LONGEST_WAIT)


def _record_local(builder: ChangeBuilder, command: RecordLocalActivity, completed: int) -> None:
    builder.write(msgspec.structs.replace(command.marker, task_completed_event_id=completed))


def _set_patch_marker(builder: ChangeBuilder, command: c.SetPatchMarker, completed: int) -> None:
    patch_id, deprecated = command.patch_id, command.deprecated
    builder.write(
        h.MarkerRecorded(patch_id=patch_id, deprecated=deprecated, task_completed_event_id=completed)
    )
    _index_patch(builder, patch_id, completed)


def _upsert_search_attributes(
    builder: ChangeBuilder, command: c.UpsertSearchAttributes, completed: int
) -> None:
    changes = command.search_attributes
    builder.write(
        h.UpsertWorkflowSearchAttributes(search_attributes=changes, task_completed_event_id=completed)
    )
    builder.update(search_attributes=_merged(builder.run.search_attributes, changes))


def _upsert_memo(builder: ChangeBuilder, command: c.UpsertMemo, completed: int) -> None:
    builder.write(h.WorkflowPropertiesModified(memo=command.memo, task_completed_event_id=completed))
    builder.update(memo=_merged(builder.run.memo, command.memo))


def _index_patch(builder: ChangeBuilder, patch_id: str, completed: int) -> None:
    """Add a patch to the run's search attribute for patches. On a server Core does this, and Core expects the event in
    the history.
    """
    attribute = builder.run.search_attributes.get(h.PATCHES)
    patches = sorted({*(msgspec.json.decode(attribute.data) if attribute is not None else ()), patch_id})
    changes = {h.PATCHES: Payload(msgspec.json.encode(patches), "json/plain", {"type": b"KeywordList"})}
    builder.write(
        h.UpsertWorkflowSearchAttributes(search_attributes=changes, task_completed_event_id=completed)
    )
    builder.update(search_attributes=_merged(builder.run.search_attributes, changes))


def _without_own_patches(run: Run) -> Run:
    """Return the run without the patches that it has used itself, for its next run. Core does the same."""
    if run.search_attributes.get(h.PATCHES) == run.started.spec.search_attributes.get(h.PATCHES):
        return run
    began = {name: value for name, value in run.started.spec.search_attributes.items() if name == h.PATCHES}
    others = {name: value for name, value in run.search_attributes.items() if name != h.PATCHES}
    return msgspec.structs.replace(run, search_attributes=others | began)


def _close(
    builder: ChangeBuilder, command: c.Command, completed: int, new_run_id: str
) -> h.WorkflowExecutionStarted | None:
    match command:
        case c.CompleteRun(result):
            following = None
            if builder.run.started.spec.cron_schedule:
                following = cron_follower(builder.run, (result,), None, new_run_id, builder.now_ns)
            final = h.WorkflowExecutionCompleted(
                result=result,
                task_completed_event_id=completed,
                new_run_id="" if following is None else new_run_id,
            )
            builder.close(final, WorkflowStatus.COMPLETED)
            return following
        case c.CancelRun():
            builder.close(
                h.WorkflowExecutionCanceled(task_completed_event_id=completed), WorkflowStatus.CANCELED
            )
        case c.FailRun(failure):
            return _fail_run(builder, failure, completed, new_run_id)
        case c.ContinueAsNew():
            follower = continue_follower(_without_own_patches(builder.run), command, new_run_id)
            builder.close(
                h.WorkflowExecutionContinuedAsNew(
                    new_run_id=new_run_id,
                    workflow_type=follower.workflow_type,
                    task_completed_event_id=completed,
                    arguments=follower.arguments,
                    headers=follower.headers,
                    spec=follower.spec,
                    versioning=command.versioning,
                    backoff_start_interval=command.backoff,
                ),
                WorkflowStatus.CONTINUED_AS_NEW,
            )
            return follower
        case _:
            raise TypeError(f"the embedded engine cannot execute {type(command).__name__}")
    return None


def _fail_run(
    builder: ChangeBuilder, failure: Failure, completed: int, new_run_id: str
) -> h.WorkflowExecutionStarted | None:
    state, follower = next_attempt_or_run(builder.run, failure, new_run_id, builder.now_ns)
    final = h.WorkflowExecutionFailed(
        failure=failure,
        retry_state=state,
        task_completed_event_id=completed,
        new_run_id="" if follower is None else new_run_id,
    )
    builder.close(final, WorkflowStatus.FAILED)
    return follower


def _start_timer(builder: ChangeBuilder, command: c.StartTimer, completed: int) -> None:
    timer_id = str(command.seq)
    started = builder.write(
        h.TimerStarted(
            timer_id=timer_id,
            duration_ns=command.duration_ns,
            task_completed_event_id=completed,
            summary=command.summary,
        )
    )
    now = builder.now_ns
    builder.put_timer(PendingTimer(timer_id, started, later(now, command.duration_ns), now))


def _cancel_timer(builder: ChangeBuilder, sent: Sent, completed: int) -> None:
    assert isinstance(sent.command, c.CancelTimer)
    timer_id, started = str(sent.command.seq), sent.link
    # The timer may have fired while the worker had the task. The worker did not see that, so its cancellation takes
    # precedence.
    held = tuple(
        event
        for event in builder.run.held
        if not (isinstance(event, h.TimerFired) and event.started_event_id == started)
    )
    builder.update(held=held)
    builder.drop_timer(started)
    builder.write(
        h.TimerCanceled(timer_id=timer_id, started_event_id=started, task_completed_event_id=completed)
    )


def _schedule_activity(builder: ChangeBuilder, command: c.ScheduleActivity, completed: int) -> None:
    run, now = builder.run, builder.now_ns
    started, left = run.started, 0.0
    if started.spec.run_timeout or started.expiration_ns:
        left = (run.deadline_ns - now) / SECOND
    scheduled = activities.plan(command, started.spec.task_queue, left, completed)
    number = builder.write(scheduled)
    builder.put_activity(
        OpenActivity(
            scheduled_event_id=number,
            scheduled=scheduled,
            spec=scheduled.spec,
            scheduled_ns=now,
            available_ns=now,
            after_ns=builder.time_ns if builder.time_ns > now else 0,
        )
    )


def _cancel_activity(builder: ChangeBuilder, sent: Sent, completed: int) -> None:
    scheduled = sent.link
    requested = builder.write(
        h.ActivityTaskCancelRequested(scheduled_event_id=scheduled, task_completed_event_id=completed)
    )
    activity = builder.run.activities.get(scheduled)
    if activity is None:  # the activity's end is among the held events
        return
    activity = msgspec.structs.replace(activity, cancel_requested_event_id=requested)
    if activity.started_ns:
        builder.put_activity(activity)
        return
    builder.drop_activity(scheduled)
    builder.update(held=builder.run.held + activities.canceled(activity, (), activity.identity))


_APPLY: dict[type[c.Command], Callable[[ChangeBuilder, Any, int], None]] = {
    c.ScheduleActivity: _schedule_activity,
    c.StartTimer: _start_timer,
    c.StartChildWorkflow: children.initiate_child,
    c.SignalExternalWorkflow: children.initiate_signal,
    c.RequestCancelExternal: children.initiate_cancel,
    RequestCancelChild: children.initiate_cancel,
    RecordLocalActivity: _record_local,
    c.SetPatchMarker: _set_patch_marker,
    c.UpsertSearchAttributes: _upsert_search_attributes,
    c.UpsertMemo: _upsert_memo,
}
"""The handlers of commands that neither close the run nor refer to an earlier event. The last argument is the id of the
task's completed event.
"""

_APPLY_TO: dict[type[c.Command], Callable[[ChangeBuilder, Sent, int], None]] = {
    c.CancelTimer: _cancel_timer,
    c.RequestCancelActivity: _cancel_activity,
    c.AcceptUpdate: write_answer,
    c.RejectUpdate: write_answer,
    c.CompleteUpdate: write_answer,
}
"""The handlers of commands that refer to an earlier event or to an update."""


def _merged(old: dict[str, Payload], changes: dict[str, Payload]) -> dict[str, Payload]:
    merged = old | changes
    return {key: value for key, value in merged.items() if value.encoding != "binary/null"}
