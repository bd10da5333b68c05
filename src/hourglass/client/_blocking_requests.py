# Made by `make faces` from _contract/workflows.py: edit that one.

"""The methods of workflow handles that only send a request, as the request declares them (`Request.method`)."""

from __future__ import annotations

from typing import Unpack

from hourglass._contract.workflows import (
    DeleteWorkflow,
    PauseWorkflow,
    UnpauseWorkflow,
)
from hourglass.client import _operations
from hourglass.client._operations import Reference
from hourglass.client._options import RpcOptions
from hourglass.client._session import ClientSession


class WorkflowRequests:
    """The methods of `WorkflowHandle` that only send a request."""

    _session: ClientSession
    _reference: Reference

    def pause(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Pause the run: no worker receives its tasks, or new attempts of its activities, until `unpause`.

        A running attempt may finish; signals, timers and results are recorded, and wait. Fails with `FAILED_PRECONDITION` if the
        run is already paused. A server may have this disabled (`frontend.WorkflowPauseEnabled`), and then rejects it.
        """
        self._session.run(_operations.send(self._session, self._reference, PauseWorkflow, reason=reason), rpc)

    def unpause(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Resume the run after a pause. Fails with `FAILED_PRECONDITION` if it is not paused."""
        self._session.run(
            _operations.send(self._session, self._reference, UnpauseWorkflow, reason=reason), rpc
        )

    def delete(self, **rpc: Unpack[RpcOptions]) -> None:
        """Remove the run and its history. An open run is terminated first; a server takes a moment."""
        self._session.run(_operations.send(self._session, self._reference, DeleteWorkflow), rpc)
