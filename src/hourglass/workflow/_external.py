"""Other workflows, seen from inside a workflow: signal them, ask them to cancel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple, overload

from hourglass._engine.commands import SignalExternalWorkflow
from hourglass._engine.fibers import require_fiber
from hourglass._engine.interception import SignalExternalWorkflowInput
from hourglass._engine.operations import cancel_external, signal_external
from hourglass._engine.options import check_text
from hourglass.errors import UsageError
from hourglass.workflow._channels import Channel
from hourglass.workflow._given import given_message

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ExternalWorkflowHandle:
    """A workflow that is not a child of this one. Made by `get_external_workflow_handle`."""

    def __init__(self, id: str, run_id: str | None) -> None:
        self.id = id
        self.run_id = run_id

    @overload
    def signal(self, signal: str, /, *args: Any) -> None: ...
    @overload
    def signal(self, signal: Channel[T], value: T, /) -> None: ...
    @overload
    def signal(self, signal: Callable[[*Ts], None], /, *args: *Ts) -> None: ...
    def signal(self, signal: Any, /, *args: Any) -> None:  # type: ignore[misc]
        """Send a signal and wait until it is delivered. Raises `ApplicationError` where there is no such workflow."""
        run = require_fiber("signalling another workflow").run
        given = given_message("signal", signal)

        def send(call: SignalExternalWorkflowInput) -> None:
            signal_external(
                SignalExternalWorkflow(
                    seq=0,
                    workflow_id=call.workflow_id,
                    run_id=call.workflow_run_id or "",
                    signal_name=call.signal,
                    arguments=given.encode(run.converter, call.args),
                    headers=call.headers,
                )
            )

        call = SignalExternalWorkflowInput(
            signal=given.name,
            workflow_id=self.id,
            workflow_run_id=self.run_id,
            args=list(args),
            _proceed=send,
        )
        send(call) if run.outbound is None else run.outbound.signal_external_workflow(call)

    def cancel(self, reason: str = "") -> None:
        """Ask the workflow to cancel and wait until the request is delivered, not until it has cancelled."""
        cancel_external(self.id, self.run_id or "", check_text(reason, "reason"))

    def __repr__(self) -> str:
        return f"<external workflow {self.id}>"


def get_external_workflow_handle(id: str, *, run_id: str | None = None) -> ExternalWorkflowHandle:
    """A handle to another workflow, or with `run_id` to that run alone. Asks nobody whether it exists."""
    require_fiber("workflow.get_external_workflow_handle")
    if not isinstance(id, str) or not id:
        raise UsageError("the id of a workflow must be a text that is not empty")
    check_text(id, "the id of a workflow")
    check_text(run_id or "", "run_id")
    return ExternalWorkflowHandle(id, run_id)
