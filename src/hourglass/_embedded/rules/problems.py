"""What lists say of a run whose workflow task keeps failing: Temporal's search attribute for it is set, and taken away again
when a task is completed. Pure.

Must not know: how a task fails, how it is tried again (see `tasks`). The rule is a server's: what counts is how often tasks have
failed or timed out since one was last completed, also where the attempts are counted anew because something came meanwhile, or
the run was reset; the values are those of the last failure that the history tells of. Of a run that has closed they stay. Only
the number is ours, and such as a server can be configured for: its own, 5, is reached here after more than a minute, for a task
waits ever longer between its attempts. The second is made at once, so that the second failure in a row shows at once that the
code, or what it finds, must be mended.

Invariant: a run whose tasks never fail has nothing of this, neither in memory nor in its rows.
"""

from __future__ import annotations

import msgspec

from hourglass._contract.workflows import REPORTED_PROBLEMS
from hourglass._embedded.rules.draft import Draft
from hourglass._embedded.rules.run import PendingTask, Run, Trouble
from hourglass.converter import Payload

REPORTED_AFTER = 2
"""So many failures in a row are told. On a server: `system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute`."""


def is_untroubled(run: Run) -> bool:
    """Whether there is nothing that a completed task would take away."""
    return run.trouble is None and REPORTED_PROBLEMS not in run.search_attributes


def note_failure(draft: Draft, task: PendingTask, cause: int | None, *, is_told: bool) -> None:
    """A task has failed, with one of Temporal's causes, or timed out (None); `is_told`: the history says so."""
    run = draft.run
    known = run.trouble
    failures = (0 if known is None else known.failures) + 1
    trouble = Trouble(failures, cause if is_told or known is None else known.cause)
    draft.change(trouble=trouble)
    if failures >= REPORTED_AFTER:
        told = Payload(msgspec.json.encode(values(trouble.cause)), "json/plain", {"type": b"KeywordList"})
        if run.search_attributes.get(REPORTED_PROBLEMS) != told:
            draft.change(search_attributes={**run.search_attributes, REPORTED_PROBLEMS: told})


def forget_failures(draft: Draft) -> None:
    """A task was completed. What a client or a workflow has set under the name goes, too, as on a server."""
    attributes = draft.run.search_attributes
    if draft.run.trouble is not None:
        draft.change(trouble=None)
    if REPORTED_PROBLEMS in attributes:
        others = {name: value for name, value in attributes.items() if name != REPORTED_PROBLEMS}
        draft.change(search_attributes=others)


def values(cause: int | None) -> tuple[str, str]:
    """What the attribute says of a failure with this cause; None: the worker did not answer in time."""
    if cause is None:
        return "category=WorkflowTaskTimedOut", "cause=WorkflowTaskTimedOutCauseStartToClose"
    from hourglass._history.tables import TASK_FAILURE_CAUSES  # large, and most runs never fail

    name = TASK_FAILURE_CAUSES.get(cause, TASK_FAILURE_CAUSES[0])
    words = "".join(word.capitalize() for word in name.split("_"))
    return "category=WorkflowTaskFailed", f"cause=WorkflowTaskFailedCause{words}"
