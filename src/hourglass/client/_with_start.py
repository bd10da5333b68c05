"""Operations that start a workflow, unless it runs, and send it something in one step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hourglass._contract.service import IdConflictPolicy, StartWorkflow, UpdateStage, UpdateStarted
from hourglass.client import _operations, _updates
from hourglass.client._interception import StartUpdateWithStartInput, StartWorkflowInput
from hourglass.client._operations import Reference
from hourglass.client._session import Operation, Session, through
from hourglass.errors import UsageError
from hourglass.workflow._given import given_workflow


class Planned:
    """A start that waits for what is sent with it."""

    def __init__(
        self,
        session: Session,
        workflow: object,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        result_type: Any,
    ) -> None:
        if "start_signal" in options:
            raise UsageError(
                "with_start sends what you call on it: .signal(…) or .execute_update(…), not start_signal"
            )
        if "id" not in options:
            raise UsageError("with_start needs the id of the workflow that is to run")
        self._session = session
        self.workflow = workflow
        self.arguments = arguments
        self.options = options
        self.result_type = result_type
        self._reference: Reference | None = None

    @property
    def reference(self) -> Reference:
        """What was started or used."""
        if self._reference is None:
            raise UsageError(
                "nothing was sent yet: the workflow is not started before .signal(…) or .execute_update(…)"
            )
        return self._reference

    def call(self) -> tuple[StartWorkflowInput, Callable[[StartWorkflowInput], StartWorkflow], Reference]:
        """The start as interceptors see it, how its request is built, and what its handle refers to but for the run."""
        given = given_workflow(self.workflow)
        build = functools.partial(_operations.requested, self._session, given)
        call = _operations.start_call(given, self.arguments, self.options, build)
        return_type = given.return_type if self.result_type is None else self.result_type
        return call, build, Reference(call.id, return_type=return_type)

    def began(self, reference: Reference) -> Reference:
        """Remember what was started or used."""
        self._reference = reference
        return reference


def signal(planned: Planned, message: object, arguments: Sequence[Any]) -> Operation[Reference]:
    """Start and signal."""
    options = {**planned.options, "start_signal": message, "start_signal_args": arguments}
    operation = _operations.start(
        planned._session, planned.workflow, planned.arguments, options, planned.result_type
    )
    return operation.then(planned.began)


def update(
    planned: Planned,
    message: object,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    stage: UpdateStage,
) -> Operation[tuple[UpdateStarted, _updates.UpdateReference]]:
    """Start and update."""
    session = planned._session
    start, build_start, reference = planned.call()
    asked, build_update, return_type = _updates.build(session, reference, message, arguments, options, stage)

    def build(call: StartUpdateWithStartInput) -> Operation[tuple[UpdateStarted, _updates.UpdateReference]]:
        first = build_start(call.start)
        if first.id_conflict_policy is IdConflictPolicy.UNSPECIFIED:
            first = replace_policy(first)
        return _updates.start_with_start(session, first, build_update(call.update), return_type, stage)

    def began(
        answer: tuple[UpdateStarted, _updates.UpdateReference],
    ) -> tuple[UpdateStarted, _updates.UpdateReference]:
        started = answer[0].start
        first = started.run_id if started.started else ""
        planned.began(msgspec.structs.replace(reference, run_id=started.run_id, first_execution_run_id=first))
        return answer

    call = StartUpdateWithStartInput(id=start.id, start=start, update=asked, _proceed=build)
    return through(session, call).then(began)


def replace_policy(start: StartWorkflow) -> StartWorkflow:
    """The start with the policy that the name of `with_start` promises: one that runs is used."""
    return msgspec.structs.replace(start, id_conflict_policy=IdConflictPolicy.USE_EXISTING)
