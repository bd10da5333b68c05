"""The search attribute that marks runs whose workflow task or activity keeps failing. It is removed when a task is
completed or the activity ends. Pure.

Must not know: how a task fails, how it is retried (see `tasks`). The rule for tasks is a server's. It counts the
failures and timeouts of tasks since the last completed task, even if attempts are counted from 1 again because an event
has arrived or the run was reset. The values are those of the last failure in the history, and they remain when the run
closes. Only the threshold differs, and a server can be configured to use the same one. Its default, 5, would be reached
here only after more than a minute, because a task waits longer before each attempt. The second attempt is made
immediately, so the second consecutive failure quickly shows that the code, or its input, needs a fix. A server does not
report activities. Here an activity is reported after the same number of consecutive failures, until it ends or its run
closes.

Invariant: a run whose tasks and activities never fail has no such data, neither in memory nor in its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from hourglass._contract.workflows import ACTIVITY_FAILS, REPORTED_PROBLEMS, TASK_FAILS, TASK_TIMES_OUT
from hourglass._embedded.transitions.run import OpenActivity, PendingTask, Run, Trouble
from hourglass.converter import Payload

if TYPE_CHECKING:
    from hourglass._embedded.transitions.change_builder import ChangeBuilder

REPORTED_AFTER = 2
"""The number of consecutive failures after which a problem is reported. The corresponding setting of a server is
`system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute`.
"""


def is_failing(activity: OpenActivity) -> bool:
    """Whether the number of consecutive failures of an activity requires a report."""
    return activity.last_failure is not None and activity.tries > REPORTED_AFTER


def note_failure(builder: ChangeBuilder, task: PendingTask, cause: int | None, *, is_told: bool) -> None:
    """Count a failure of a workflow task. `cause` is Temporal's number, or None for a timeout. `is_told` is whether the
    history has an event for the failure.
    """
    run = builder.run
    earlier = run.trouble
    failures = (0 if earlier is None else earlier.failures) + 1
    trouble = Trouble(failures, cause if is_told or earlier is None else earlier.cause)
    builder.update(trouble=trouble)
    if failures >= REPORTED_AFTER:
        _report(builder)


def forget_failures(builder: ChangeBuilder) -> None:
    """Clear the failures of workflow tasks after a task was completed. As on a server, a value that a client or a
    workflow has set is removed, too.
    """
    if builder.run.trouble is not None:
        builder.update(trouble=None)
    _report(builder)


def note_activities(builder: ChangeBuilder, touched: Iterable[int]) -> None:
    """Report activity failures if one of these activities keeps failing. Remove the report if no activity of the run
    keeps failing.
    """
    run = builder.run
    if run.is_standalone_activity:
        return
    if not _reports_activities(run):
        pending = (run.activities.get(event_id) for event_id in touched)
        if any(activity is not None and is_failing(activity) for activity in pending):
            _report(builder)
    elif not any(map(is_failing, run.activities.values())):
        _report(builder)


def _reports_activities(run: Run) -> bool:
    payload = run.search_attributes.get(REPORTED_PROBLEMS)
    return payload is not None and ACTIVITY_FAILS.encode() in payload.data


def _report(builder: ChangeBuilder) -> None:
    """Set the search attribute to the current problems, or remove it if there are none."""
    run, reported = builder.run, list[str]()
    if run.trouble is not None and run.trouble.failures >= REPORTED_AFTER:
        reported += values(run.trouble.cause)
    if any(map(is_failing, run.activities.values())):
        reported.append(ACTIVITY_FAILS)
    if reported:
        payload = Payload(msgspec.json.encode(reported), "json/plain", {"type": b"KeywordList"})
        if run.search_attributes.get(REPORTED_PROBLEMS) != payload:
            builder.update(search_attributes={**run.search_attributes, REPORTED_PROBLEMS: payload})
    elif REPORTED_PROBLEMS in run.search_attributes:
        builder.update(search_attributes=without_problems(run.search_attributes))


def without_problems(attributes: dict[str, Payload]) -> dict[str, Payload]:
    """Return the search attributes without the one that reports problems."""
    if REPORTED_PROBLEMS not in attributes:
        return attributes
    return {name: value for name, value in attributes.items() if name != REPORTED_PROBLEMS}


def values(cause: int | None) -> tuple[str, str]:
    """Return the attribute's values for a failure with this cause. The cause None means that the worker did not answer
    in time.
    """
    if cause is None:
        return TASK_TIMES_OUT, "cause=WorkflowTaskTimedOutCauseStartToClose"
    from hourglass._history.tables import TASK_FAILURE_CAUSES  # a large module, and most runs never fail

    name = TASK_FAILURE_CAUSES.get(cause, TASK_FAILURE_CAUSES[0])
    words = "".join(word.capitalize() for word in name.split("_"))
    return TASK_FAILS, f"cause=WorkflowTaskFailedCause{words}"
