"""A reset: a run begins anew from one of the workflow tasks of another. Pure.

Must not know: how runs are found, what becomes of the run that it takes the place of. As on a Temporal server the
new run has the history of the old one up to that task, which fails there; what came from outside after that is
sent to the new run again, in its order: signals, updates (as admitted), and what became of children that were
started before. Invariant: the old run's history is never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hourglass._contract.service import ResetWorkflow, WorkflowStatus
from hourglass._embedded.rules.draft import Draft
from hourglass._embedded.rules.rebuilding import rebuild
from hourglass._embedded.rules.relations import Ask, LeaveChild, StartChild, TellParent
from hourglass._embedded.rules.run import Run, Step
from hourglass._history import events as h
from hourglass._history import events as o
from hourglass._history import events as u
from hourglass._history.encoding import encode
from hourglass.converter import Failure, ResetFailure
from hourglass.errors import ServiceError

ENGINE = "history-service"
RESETTER = "history-resetter"
"""Who it is that ends a run because it is reset, in Temporal's words."""


def reset(
    base: Run,
    history: Sequence[h.HistoryEvent],
    request: ResetWorkflow,
    later: Iterable[h.Attributes],
    new_run_id: str,
    now_ns: int,
) -> Step:
    """The new run. `later` is what happened to the runs that follow the base. Raises `ServiceError` for a point
    that no run can begin from.
    """
    point = request.event_id
    if not 1 < point <= len(history):
        raise _refused("Workflow task finish ID must be > 1 && <= workflow last event ID.")
    kept = tuple(history[: point - 1])
    run, asks = rebuild(new_run_id, kept, now_ns)
    if run.task is None:
        raise _refused(
            "Can only reset workflow to event ID in range [WorkflowTaskScheduled +1, WorkflowTaskStarted + 1]: "
            f"{point}"
        )
    draft = Draft(run, now_ns)
    _fail_task(draft, base.run_id, request.reason)
    dropped = [event.attributes for event in history[point - 1 :]]
    for attributes in again((*dropped, *base.held, *later), request):
        draft.happen_again(attributes)
    draft.want_task()
    step = draft.step()
    return msgspec.structs.replace(
        step,
        events=(*kept, *step.events),
        encoded=(*map(encode, kept), *step.encoded),
        touched=frozenset((*step.run.activities, *step.run.timers, *step.run.children)),
        asks=(*asks, *_missing_children(step.run)),
    )


def again(events: Iterable[h.Attributes], request: ResetWorkflow) -> Iterator[h.Attributes]:
    """What of this is sent to the new run."""
    for attributes in events:
        match attributes:
            case h.WorkflowExecutionSignaled() if request.reapply_signals:
                yield attributes
            case u.WorkflowExecutionUpdateAdmitted() if request.reapply_updates:
                yield attributes
            case u.WorkflowExecutionUpdateAccepted(request=u.UpdateRequest() as asked) if (
                request.reapply_updates
            ):
                yield u.WorkflowExecutionUpdateAdmitted(request=asked)
            case o.ChildWorkflowExecutionStarted() | o.StartChildWorkflowExecutionFailed() | o.ChildEnd():
                yield attributes
            case _:
                pass


def give_way(run: Run, reason: str, new_run_id: str, now_ns: int) -> Step:
    """A run that is open ends, because another takes its place.

    Children that the other knows too are now the other's; so is the word to the parent. Those that it does not know go on
    all the same, whatever their policies say: a server's rule.
    """
    draft = Draft(run, now_ns)
    draft.close(h.WorkflowExecutionTerminated(reason=reason, identity=RESETTER), WorkflowStatus.TERMINATED)
    draft.change(reset_run_id=new_run_id)
    step = draft.step()
    return msgspec.structs.replace(
        step, asks=tuple(ask for ask in step.asks if not isinstance(ask, (LeaveChild, TellParent)))
    )


def note_reset(run: Run, new_run_id: str, now_ns: int) -> Step:
    """A run that has closed was reset: who looks for it finds the other."""
    draft = Draft(run, now_ns)
    draft.change(reset_run_id=new_run_id)
    return draft.step()


def _fail_task(draft: Draft, base_run_id: str, reason: str) -> None:
    task = draft.run.task
    assert task is not None
    started = task.started_event_id or draft.write(
        h.WorkflowTaskStarted(
            scheduled_event_id=task.scheduled_event_id,
            identity=ENGINE,
            history_size=draft.run.history_size,
        )
    )
    draft.write(
        h.WorkflowTaskFailed(
            scheduled_event_id=task.scheduled_event_id,
            started_event_id=started,
            cause=h.RESET_WORKFLOW,
            failure=Failure(reason, ResetFailure()),
            identity=ENGINE,
            base_run_id=base_run_id,
            new_run_id=draft.run.run_id,
        )
    )
    draft.change(task=None)


def _missing_children(run: Run) -> tuple[Ask, ...]:
    """Children that were asked for and of which nothing has been heard."""
    return tuple(StartChild(child) for child in run.children.values() if not child.run_id)


def _refused(message: str) -> ServiceError:
    return ServiceError(message, status="INVALID_ARGUMENT")
