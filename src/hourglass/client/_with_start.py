"""Operations that start a workflow, unless it runs, and send it something in one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from hourglass._bridge.service import IdConflictPolicy, StartWorkflow
from hourglass._bridge.service_changes import UpdateStage, UpdateStarted
from hourglass.client import _operations, _updates
from hourglass.client._operations import Reference
from hourglass.client._options import start_request
from hourglass.client._session import Operation, Session
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

    def request(self) -> tuple[StartWorkflow, Reference]:
        """The start, and what its handle refers to but for the run."""
        given = given_workflow(self.workflow)
        session = self._session
        request = start_request(given, self.arguments, self.options, session.converter, session.identity)
        return_type = given.return_type if self.result_type is None else self.result_type
        return request, Reference(request.workflow_id, return_type=return_type)

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
    return Operation(operation.ask, lambda answer: planned.began(operation.parse(answer)))


def update(
    planned: Planned,
    message: object,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    stage: UpdateStage,
) -> Operation[tuple[UpdateStarted, _updates.UpdateReference]]:
    """Start and update."""
    start, reference = planned.request()
    if start.id_conflict_policy is IdConflictPolicy.UNSPECIFIED:
        start = replace_policy(start)
    request, return_type = _updates.build(planned._session, reference, message, arguments, options, stage)
    operation = _updates.start_with_start(planned._session, start, request, return_type, stage)

    def parse(answer: UpdateStarted) -> tuple[UpdateStarted, _updates.UpdateReference]:
        first = answer.start.run_id if answer.start.started else ""
        planned.began(replace(reference, run_id=answer.start.run_id, first_execution_run_id=first))
        return operation.parse(answer)

    return Operation(operation.ask, parse)


def replace_policy(start: StartWorkflow) -> StartWorkflow:
    """The start with the policy that the name of `with_start` promises: one that runs is used."""
    return msgspec.structs.replace(start, id_conflict_policy=IdConflictPolicy.USE_EXISTING)
