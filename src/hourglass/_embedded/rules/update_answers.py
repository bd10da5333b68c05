"""A worker's answers to updates, as events: part of `task_transitions`. Pure."""

from __future__ import annotations

from hourglass._embedded.rules.draft import Draft
from hourglass._engine import commands as c
from hourglass._history.events import (
    UpdateRequest,
    WorkflowExecutionUpdateAccepted,
    WorkflowExecutionUpdateCompleted,
)


def write_answer(
    draft: Draft,
    command: c.AcceptUpdate | c.RejectUpdate | c.CompleteUpdate,
    request: UpdateRequest | None,
    link: int,
    completed: int,
) -> None:
    """Write that an update was accepted or is done. A refusal of one that was not accepted never comes here.

    `link` is the event of its admission, where there is one, or of its acceptance, if that is not of this task.
    """
    if request is None:
        raise TypeError(f"{type(command).__name__} without the update that it answers")
    if isinstance(command, c.AcceptUpdate):
        draft.write(
            WorkflowExecutionUpdateAccepted(
                update_id=request.update_id,
                # A worker sees what waits in memory right before the start of its task, which its end follows.
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
