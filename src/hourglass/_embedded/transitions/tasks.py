"""What a worker's handling of a workflow task does to a run: start, answer, failure, timeout. Pure: `(run, answer,
now) -> Step`.

Must not know: activations, caches, handles. A command comes with the event it refers to (`Sent.link`), because Core's
sequence numbers are the worker's affair. Each command is checked against the run as the commands before it left it
(`command_checks`).

Invariants: commands are applied in order, a terminal one last; a terminal command is refused while something is held
(UnhandledCommand), but not twice in a row because of signals if it continues as new: they go on to the next run; a
command that passes a limit is refused too, and of an answer that is refused nothing counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from hourglass._contract.workflows import REPORTED_PROBLEMS, WorkflowStatus
from hourglass._embedded.clock import SECOND, later, to_ns
from hourglass._embedded.transitions import activities, children, problems
from hourglass._embedded.transitions.children import continue_follower, cron_follower, next_attempt_or_run
from hourglass._embedded.transitions.command_checks import CHECKS, AnswerRefused, check_size
from hourglass._embedded.transitions.draft import Draft
from hourglass._embedded.transitions.run import (
    RUNNING,
    OpenActivity,
    PendingTask,
    PendingTimer,
    RequestCancelChild,
    Run,
    Transition,
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

# --- answers to updates -------------------------------------------------------------------------------------


def write_answer(draft: Draft, sent: Sent, completed: int) -> None:
    """Write the acceptance or the end of an update. A rejection of an update that was not accepted never comes here.

    `sent.link` is the event of its admission, if there is one, or of its acceptance, if that is not of this task.
    """
    command, request, link = sent.command, sent.update, sent.link
    if request is None:
        raise TypeError(f"{type(command).__name__} without the update that it answers")
    if isinstance(command, c.AcceptUpdate):
        draft.write(
            WorkflowExecutionUpdateAccepted(
                update_id=request.update_id,
                # A worker sees the updates that wait in memory right before the start of its task, which its end follows.
                sequencing_event_id=link or completed - 2,
                request=None if link else request,
            )
        )
        return
    draft.write(
        WorkflowExecutionUpdateCompleted(
            update_id=request.update_id,
            accepted_event_id=link or _accepted_just_now(draft, request.update_id),
            identity=request.identity,
            result=command.result if isinstance(command, c.CompleteUpdate) else None,
            failure=command.failure if isinstance(command, c.RejectUpdate) else None,
        )
    )


def _accepted_just_now(draft: Draft, update_id: str) -> int:
    for event in reversed(draft.written):
        accepted = event.attributes
        if isinstance(accepted, WorkflowExecutionUpdateAccepted) and accepted.update_id == update_id:
            return event.id
    raise TypeError(f"update {update_id!r} was not accepted")


# --- transitions of a task ----------------------------------------------------------------------------------

_MANY = 20
"""An answer that writes more events than these is measured command by command, so that one that asks for far too much
is refused before all of it is encoded.
"""

LONGEST_WAIT = 600.0
"""Seconds that a task which keeps failing waits at most before its next attempt."""


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A command as it reaches the engine: with the id of the event that it refers to, and with the update that
    it answers, if any.
    """

    command: c.Command
    link: int = 0
    update: UpdateRequest | None = None


class TaskAnswer(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A worker's answer to a task."""

    commands: tuple[Sent, ...] = ()
    flags: tuple[int, ...] = ()
    identity: str = ""
    refused_updates: tuple[tuple[str, Failure], ...] = ()
    version: WorkerDeploymentVersion | None = None
    behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    again: bool = False
    """Whether the worker, which waits for local activities, wants another task at once."""


def may_be_followed(answer: TaskAnswer) -> bool:
    """Whether an answer may begin another run, which then needs an id."""
    return bool(answer.commands) and type(answer.commands[-1].command) in c.TERMINAL_KINDS  # it comes last


def leaves_no_trace(task: PendingTask, answer: TaskAnswer) -> bool:
    """Whether a task that was for updates alone led to nothing: all were refused."""
    return task.speculative and not answer.commands and not answer.again


def start_task(
    run: Run, identity: str, limits: Limits, target: WorkerDeploymentVersion | None, now_ns: int
) -> Transition:
    """Record that a worker has received the run's task. `target` is the version that a pinned run would move to otherwise."""
    draft = Draft(run, now_ns)
    begin_task(draft, task_of(run), identity, limits, run.history_size, target)
    return draft.step()


def complete_task(
    run: Run, answer: TaskAnswer, new_run_id: str, limits: Limits, eager: Eager | None, now_ns: int
) -> Transition:
    """A worker answers. Raises `AnswerRefused` where the answer must be."""
    signals = _signals_for_next(run, answer) if run.held else ()
    if run.held and not signals and may_be_followed(answer):
        raise AnswerRefused(h.UNHANDLED_COMMAND, "UNHANDLED_COMMAND", "UnhandledCommand")
    task = run.task
    if task is None:
        raise RuntimeError(f"run {run.run_id} has no task")
    draft = Draft(run, now_ns)
    if task.transient:
        if leaves_no_trace(task, answer):
            forget_speculative_task(draft)
            return draft.step()
        write_unwritten(draft)
    completed = draft.write(
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
        draft.change(**after_task(run, answer.version, answer.behavior))
    if run.trouble is not None or REPORTED_PROBLEMS in run.search_attributes:
        problems.forget_failures(draft)
    follower = None
    for sent in answer.commands:
        command = sent.command
        kind, written = type(command), len(draft.written)
        check = CHECKS.get(kind)
        if check is not None:
            check(draft, command, limits)
        if (apply := _APPLY.get(kind)) is not None:
            apply(draft, command, completed)
        elif (apply_to := _APPLY_TO.get(kind)) is not None:
            apply_to(draft, sent, completed)
        else:
            follower = _close(draft, command, completed, new_run_id) or follower
        if command.event_groups:
            draft.group(written, command.event_groups)
        if len(draft.written) > _MANY:
            limits.check_step(draft.measure() - run.history_size)
    # A command's values can only be too large if its events are. The events are measured in any case, so that almost no
    # command's payloads need a look.
    size = draft.measure() - run.history_size
    if size > limits.blob_bytes or size > limits.payloads_warn > 0:
        for sent in answer.commands:
            check_size(sent.command, limits)
        limits.check_step(size)
    if draft.run.status is RUNNING:
        draft.set_task(None)
        if draft.flush() or answer.again:
            draft.want_task()
        if eager is not None and draft.touched:
            take_attempts(draft, eager)
    return draft.step(follower, signals)


def _signals_for_next(run: Run, answer: TaskAnswer) -> tuple[h.WorkflowExecutionSignaled, ...]:
    """What came during the task, if that is signals alone and the run continues as new: they are the next run's, as
    if each had come a moment later. A Temporal server refuses the answer, each time anew; a run that gets signals all
    the time would then never come to continue, and be ended by the limit on its history. So only the first is
    refused.
    """
    is_continued = bool(answer.commands) and type(answer.commands[-1].command) is c.ContinueAsNew
    if not is_continued or not task_of(run).after_refusal:
        return ()
    signals = tuple(each for each in run.held if isinstance(each, h.WorkflowExecutionSignaled))
    return signals if len(signals) == len(run.held) else ()


def fail_task(run: Run, cause: int, failure: Failure | None, identity: str, now_ns: int) -> Transition:
    """A worker could not handle the task, or its answer was refused: the task is wanted again."""
    task = task_of(run)
    draft = Draft(run, now_ns)
    if _is_told(task):
        write_unwritten(draft)
        draft.write(
            h.WorkflowTaskFailed(
                scheduled_event_id=task.scheduled_event_id,
                started_event_id=task.started_event_id,
                cause=cause,
                failure=failure,
                identity=identity,
            )
        )
    problems.note_failure(draft, task, cause, is_told=_is_told(task))
    _want_again(draft, task)
    if cause == h.UNHANDLED_COMMAND and draft.run.task is not None:
        draft.set_task(msgspec.structs.replace(draft.run.task, after_refusal=True))
    return draft.step()


def time_out_task(draft: Draft, *, at_once: bool = False) -> None:
    """The worker did not answer in time, or its process ended: then the task is wanted again at once."""
    task = task_of(draft.run)
    if _is_told(task):
        write_unwritten(draft)
        draft.write(
            h.WorkflowTaskTimedOut(
                scheduled_event_id=task.scheduled_event_id, started_event_id=task.started_event_id
            )
        )
    problems.note_failure(draft, task, None, is_told=_is_told(task))
    _want_again(draft, task, at_once=at_once)


def _is_told(task: PendingTask) -> bool:
    """Whether the history tells of this task if it does not succeed."""
    return not task.transient or (task.speculative and not task.silent)


def forget_speculative_task(draft: Draft) -> None:
    """A task that was for updates alone led to nothing: it never was."""
    draft.change(task=None)
    if draft.flush():
        draft.want_task()


def _want_again(draft: Draft, task: PendingTask, *, at_once: bool = False) -> None:
    draft.change(task=None)
    if draft.flush() or (task.speculative and not task.silent):
        draft.want_task()
        return
    wait = 0.0 if at_once else wait_before(draft.run, task.attempt + 1)
    draft.want_task_again(task.attempt + 1, later(draft.now_ns, to_ns(wait)), silent=task.silent)


def wait_before(run: Run, attempt: int) -> float:
    """For how many seconds this attempt of a task waits after the failure of the one before, at most: the first failure is
    tried again at once, and a task that keeps failing waits longer and longer.
    """
    first = run.started.spec.task_timeout
    return 0.0 if attempt <= 2 else min(first * 2.0 ** min(attempt - 3, 20), LONGEST_WAIT)


def _record_local(draft: Draft, command: RecordLocalActivity, completed: int) -> None:
    draft.write(msgspec.structs.replace(command.marker, task_completed_event_id=completed))


def _set_patch_marker(draft: Draft, command: c.SetPatchMarker, completed: int) -> None:
    patch_id, deprecated = command.patch_id, command.deprecated
    draft.write(h.MarkerRecorded(patch_id=patch_id, deprecated=deprecated, task_completed_event_id=completed))
    _index_patch(draft, patch_id, completed)


def _upsert_search_attributes(draft: Draft, command: c.UpsertSearchAttributes, completed: int) -> None:
    changes = command.search_attributes
    draft.write(
        h.UpsertWorkflowSearchAttributes(search_attributes=changes, task_completed_event_id=completed)
    )
    draft.change(search_attributes=_merged(draft.run.search_attributes, changes))


def _upsert_memo(draft: Draft, command: c.UpsertMemo, completed: int) -> None:
    draft.write(h.WorkflowPropertiesModified(memo=command.memo, task_completed_event_id=completed))
    draft.change(memo=_merged(draft.run.memo, command.memo))


def _index_patch(draft: Draft, patch_id: str, completed: int) -> None:
    """Runs can be found by their patches: Core sees to it on a server, and expects to find it in a history."""
    known = draft.run.search_attributes.get(h.PATCHES)
    patches = sorted({*(msgspec.json.decode(known.data) if known is not None else ()), patch_id})
    changes = {h.PATCHES: Payload(msgspec.json.encode(patches), "json/plain", {"type": b"KeywordList"})}
    draft.write(
        h.UpsertWorkflowSearchAttributes(search_attributes=changes, task_completed_event_id=completed)
    )
    draft.change(search_attributes=_merged(draft.run.search_attributes, changes))


def _without_own_patches(run: Run) -> Run:
    """A run as the next one sees it: the patches that it has taken itself are not passed on, as with Core."""
    if run.search_attributes.get(h.PATCHES) == run.started.spec.search_attributes.get(h.PATCHES):
        return run
    began = {name: value for name, value in run.started.spec.search_attributes.items() if name == h.PATCHES}
    others = {name: value for name, value in run.search_attributes.items() if name != h.PATCHES}
    return msgspec.structs.replace(run, search_attributes=others | began)


def _close(
    draft: Draft, command: c.Command, completed: int, new_run_id: str
) -> h.WorkflowExecutionStarted | None:
    match command:
        case c.CompleteRun(result):
            following = None
            if draft.run.started.spec.cron_schedule:
                following = cron_follower(draft.run, (result,), None, new_run_id, draft.now_ns)
            final = h.WorkflowExecutionCompleted(
                result=result,
                task_completed_event_id=completed,
                new_run_id="" if following is None else new_run_id,
            )
            draft.close(final, WorkflowStatus.COMPLETED)
            return following
        case c.CancelRun():
            draft.close(
                h.WorkflowExecutionCanceled(task_completed_event_id=completed), WorkflowStatus.CANCELED
            )
        case c.FailRun(failure):
            return _fail_run(draft, failure, completed, new_run_id)
        case c.ContinueAsNew():
            follower = continue_follower(_without_own_patches(draft.run), command, new_run_id)
            draft.close(
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
            raise TypeError(f"{type(command).__name__} must not reach the engine")
    return None


def _fail_run(
    draft: Draft, failure: Failure, completed: int, new_run_id: str
) -> h.WorkflowExecutionStarted | None:
    state, follower = next_attempt_or_run(draft.run, failure, new_run_id, draft.now_ns)
    final = h.WorkflowExecutionFailed(
        failure=failure,
        retry_state=state,
        task_completed_event_id=completed,
        new_run_id="" if follower is None else new_run_id,
    )
    draft.close(final, WorkflowStatus.FAILED)
    return follower


def _start_timer(draft: Draft, command: c.StartTimer, completed: int) -> None:
    timer_id = str(command.seq)
    started = draft.write(
        h.TimerStarted(
            timer_id=timer_id,
            duration_ns=command.duration_ns,
            task_completed_event_id=completed,
            summary=command.summary,
        )
    )
    now = draft.now_ns
    draft.put_timer(PendingTimer(timer_id, started, later(now, command.duration_ns), now))


def _cancel_timer(draft: Draft, sent: Sent, completed: int) -> None:
    assert isinstance(sent.command, c.CancelTimer)
    timer_id, started = str(sent.command.seq), sent.link
    # The timer may have fired while the worker had the task: the worker has not seen that, so it never happened.
    held = tuple(
        event
        for event in draft.run.held
        if not (isinstance(event, h.TimerFired) and event.started_event_id == started)
    )
    draft.change(held=held)
    draft.drop_timer(started)
    draft.write(
        h.TimerCanceled(timer_id=timer_id, started_event_id=started, task_completed_event_id=completed)
    )


def _schedule_activity(draft: Draft, command: c.ScheduleActivity, completed: int) -> None:
    run, now = draft.run, draft.now_ns
    started, left = run.started, 0.0
    if started.spec.run_timeout or started.expiration_ns:
        left = (run.deadline_ns - now) / SECOND
    scheduled = activities.plan(command, started.spec.task_queue, left, completed)
    number = draft.write(scheduled)
    draft.put_activity(
        OpenActivity(
            scheduled_event_id=number,
            scheduled=scheduled,
            spec=scheduled.spec,
            scheduled_ns=now,
            available_ns=now,
            after_ns=draft.time_ns if draft.time_ns > now else 0,
        )
    )


def _cancel_activity(draft: Draft, sent: Sent, completed: int) -> None:
    scheduled = sent.link
    requested = draft.write(
        h.ActivityTaskCancelRequested(scheduled_event_id=scheduled, task_completed_event_id=completed)
    )
    activity = draft.run.activities.get(scheduled)
    if activity is None:  # its end is among the held events
        return
    activity = msgspec.structs.replace(activity, cancel_requested_event_id=requested)
    if activity.started_ns:
        draft.put_activity(activity)
        return
    draft.drop_activity(scheduled)
    draft.change(held=draft.run.held + activities.canceled(activity, (), activity.identity))


_APPLY: dict[type[c.Command], Callable[[Draft, Any, int], None]] = {
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
"""How each kind of command is written that neither ends the run nor refers to an earlier event. The number is the id of the
task's completion event.
"""

_APPLY_TO: dict[type[c.Command], Callable[[Draft, Sent, int], None]] = {
    c.CancelTimer: _cancel_timer,
    c.RequestCancelActivity: _cancel_activity,
    c.AcceptUpdate: write_answer,
    c.RejectUpdate: write_answer,
    c.CompleteUpdate: write_answer,
}
"""The same for commands that refer to an earlier event or to an update."""


def _merged(old: dict[str, Payload], changes: dict[str, Payload]) -> dict[str, Payload]:
    merged = old | changes
    return {key: value for key, value in merged.items() if value.encoding != "binary/null"}
