"""What a crash does to a run: `(run, now) -> Step`. Pure.

Must not know: stores, epochs, how it is found out that a process ended. Invariants: what was in the hands of a
worker of that process is in nobody's hands afterwards; an attempt that was deferred is somebody else's and
goes on; a run that had nothing in flight does not change.
"""

from __future__ import annotations

from hourglass._embedded.rules.activities import lost_failure
from hourglass._embedded.rules.draft import Draft
from hourglass._embedded.rules.run import Activity, Run, Step
from hourglass._embedded.rules.task_transitions import forget_speculative_task, time_out_task
from hourglass._embedded.rules.transitions import lose_attempt, time_out_run


def needs_recovery(run: Run) -> bool:
    """Whether a worker had something of this run in its hands."""
    return run.task_is_started or _is_speculative(run) or any(map(_was_in_hand, run.activities.values()))


def recover(run: Run, new_run_id: str, now_ns: int) -> Step:
    """The process that served the run has ended.

    Attempts are lost as a heartbeat timeout would lose them, and tried again as their policies say; the task
    times out, and is wanted again at once.
    """
    draft = Draft(run, now_ns)
    if run.deadline_ns and now_ns >= run.deadline_ns:
        return time_out_run(draft, new_run_id)
    for activity in run.activities.values():
        if _was_in_hand(activity):
            lose_attempt(draft, activity, lost_failure(activity))
    if _is_speculative(draft.run):
        forget_speculative_task(draft)
    elif draft.run.task_is_started:
        time_out_task(draft, at_once=True)
    return draft.step()


def is_backing_off(run: Run, now_ns: int) -> bool:
    """Whether its task keeps failing and waits before it is tried again."""
    task = run.task
    return task is not None and task.attempt > 1 and not task.started_event_id and task.available_ns > now_ns


def try_now(run: Run, now_ns: int) -> Step:
    """Another process serves the run, with code that may have been mended: its failing task need not wait."""
    draft = Draft(run, now_ns)
    task = run.task
    if task is not None and is_backing_off(run, now_ns):
        draft.change(task=None)
        draft.want_task_again(task.attempt, now_ns, silent=task.silent)
    return draft.step()


def _is_speculative(run: Run) -> bool:
    """Whether the run's task was for updates that waited in memory: they are gone, and asked for again."""
    return run.task is not None and run.task.speculative


def _was_in_hand(activity: Activity) -> bool:
    return activity.started_ns != 0 and not activity.deferred
