"""Rules that hold for every start of a workflow, by a client or by a parent. Pure.

Must not know: requests, commands, the engine.
"""

from __future__ import annotations

from hourglass._contract.service import WorkflowStatus
from hourglass._engine.commands import IdReusePolicy
from hourglass._engine.options import LONGEST_TASK_TIMEOUT

DEFAULT_TASK_TIMEOUT = 10.0
LONGEST = 100 * 365 * 86_400.0
"""As long as an execution, a run or the delay of a start may last, in seconds: a server cuts what is longer."""

_GOOD_ENDS = (WorkflowStatus.COMPLETED, WorkflowStatus.CONTINUED_AS_NEW)


def may_reuse(policy: IdReusePolicy, status: WorkflowStatus) -> bool:
    """Whether the id of a workflow that ended so may be used again."""
    match policy:
        case IdReusePolicy.REJECT_DUPLICATE:
            return False
        case IdReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY:
            return status not in _GOOD_ENDS
        case _:
            return True


def timeouts(execution: float | None, run: float | None, task: float | None) -> tuple[float, float, float]:
    """The limits of an execution, a run and a task as an engine understands what was asked for; 0 is no limit."""
    whole = min(execution or 0.0, LONGEST)
    one = min(run or whole, LONGEST)
    if whole:
        one = min(one, whole)
    each = min(task or DEFAULT_TASK_TIMEOUT, LONGEST_TASK_TIMEOUT)
    return whole, one, min(each, one) if one else each
