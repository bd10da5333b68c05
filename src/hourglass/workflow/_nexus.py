"""Nexus operations, called from a workflow: a client for a service behind an endpoint, and handles of operations.

On a Temporal server only: the embedded engine refuses the command by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Generic, TypeVar, overload

from hourglass._engine.commands import ScheduleNexusOperation
from hourglass._engine.fibers import require_fiber
from hourglass._engine.operations import NexusOperation, start_nexus
from hourglass._engine.options import Duration, check_text, choice, optional_seconds
from hourglass.converter import default_converter
from hourglass.errors import UsageError
from hourglass.nexus import Operation, Service

R = TypeVar("R")


class NexusOperationCancellationType(IntEnum):
    """How long a cancelled operation is waited for."""

    WAIT_COMPLETED = 0
    """Until it has ended, whatever its handler makes of the request."""
    ABANDON = 1
    """Not at all; its handler does not hear of it."""
    TRY_CANCEL = 2
    """Not at all; the request is sent."""
    WAIT_REQUESTED = 3
    """Until its handler has got the request."""


class NexusOperationHandle(Generic[R]):
    """An operation that has started."""

    def __init__(self, operation: NexusOperation[R]) -> None:
        self._operation = operation

    @property
    def operation_token(self) -> str | None:
        """What its service knows it by; None where its result came at once."""
        return self._operation.token or None

    def result(self) -> R:
        """Wait for the result. Raises `NexusOperationError` if there is none."""
        return self._operation.result()

    def cancel(self) -> bool:
        """Ask it to stop. Returns False where it has ended."""
        return self._operation.cancel()

    def __repr__(self) -> str:
        command = self._operation.command
        return f"<Nexus operation {command.service}.{command.operation} at {command.endpoint}>"


class NexusClient:
    """Calls operations of one service behind one endpoint. Made by `workflow.create_nexus_client`."""

    def __init__(self, service: str, endpoint: str) -> None:
        self.service = service
        self.endpoint = endpoint

    @overload
    def start_operation(
        self,
        operation: Operation[..., R],
        /,
        *args: Any,
        schedule_to_close_timeout: Duration | None = None,
        cancellation_type: NexusOperationCancellationType = NexusOperationCancellationType.WAIT_COMPLETED,
        headers: Mapping[str, str] | None = None,
        summary: str = "",
    ) -> NexusOperationHandle[R]: ...
    @overload
    def start_operation(
        self,
        operation: str,
        /,
        *args: Any,
        result_type: Any = None,
        schedule_to_close_timeout: Duration | None = None,
        cancellation_type: NexusOperationCancellationType = NexusOperationCancellationType.WAIT_COMPLETED,
        headers: Mapping[str, str] | None = None,
        summary: str = "",
    ) -> NexusOperationHandle[Any]: ...
    def start_operation(
        self,
        operation: Any,
        /,
        *args: Any,
        result_type: Any = None,
        schedule_to_close_timeout: Duration | None = None,
        cancellation_type: NexusOperationCancellationType = NexusOperationCancellationType.WAIT_COMPLETED,
        headers: Mapping[str, str] | None = None,
        summary: str = "",
    ) -> Any:
        """Call an operation, given as itself or its name, and wait until it has started.

        Raises `NexusOperationError` where it could not be started. `headers` are texts that its service sees; no secrets.
        """
        run = require_fiber("calling Nexus operation", str(operation)).run
        encode, kind = self._known(operation, args, result_type)
        command = ScheduleNexusOperation(
            seq=0,
            endpoint=self.endpoint,
            service=self.service,
            operation=operation if isinstance(operation, str) else operation.name,
            argument=encode(run.converter),
            headers={
                check_text(name, "a header").lower(): check_text(text, name)
                for name, text in (headers or {}).items()
            },
            schedule_to_close_timeout=optional_seconds(
                schedule_to_close_timeout, "schedule_to_close_timeout"
            ),
            cancellation_type=int(
                choice(NexusOperationCancellationType, cancellation_type, "cancellation_type")
            ),
            summary=run.converter.encode(summary) if summary else None,
        )
        return NexusOperationHandle(start_nexus(command, kind))

    @overload
    def execute_operation(
        self,
        operation: Operation[..., R],
        /,
        *args: Any,
        schedule_to_close_timeout: Duration | None = None,
        cancellation_type: NexusOperationCancellationType = NexusOperationCancellationType.WAIT_COMPLETED,
        headers: Mapping[str, str] | None = None,
        summary: str = "",
    ) -> R: ...
    @overload
    def execute_operation(
        self,
        operation: str,
        /,
        *args: Any,
        result_type: Any = None,
        schedule_to_close_timeout: Duration | None = None,
        cancellation_type: NexusOperationCancellationType = NexusOperationCancellationType.WAIT_COMPLETED,
        headers: Mapping[str, str] | None = None,
        summary: str = "",
    ) -> Any: ...
    def execute_operation(self, operation: Any, /, *args: Any, **options: Any) -> Any:
        """Call an operation and wait for its result. Raises `NexusOperationError`."""
        return self.start_operation(operation, *args, **options).result()

    def _known(
        self, operation: Any, args: tuple[Any, ...], result_type: Any
    ) -> tuple[Callable[[Any], Any], Any]:
        """How the argument is encoded, and the type of the result."""
        if isinstance(operation, Operation):
            if operation.service != self.service:
                raise UsageError(f"{operation!r} is none of the service {self.service!r}")
            signature = operation.signature
            signature.encode(default_converter, args)  # so that a wrong argument is told by its name
            value = args[0] if args else None
            return (lambda converter: converter.encode(value)), signature.return_type
        if not isinstance(operation, str) or not operation:
            raise UsageError("a Nexus operation is given as itself, or as its name")
        if len(args) > 1:
            raise UsageError(f"a Nexus operation takes one argument, or none, not {len(args)}")
        value = args[0] if args else None
        return (lambda converter: converter.encode(value)), Any if result_type is None else result_type


def create_nexus_client(service: Service | str, *, endpoint: str) -> NexusClient:
    """A client for a Nexus service, given as itself or its name, behind an endpoint of the server."""
    name = service.name if isinstance(service, Service) else service
    if not isinstance(name, str) or not name or not isinstance(endpoint, str) or not endpoint:
        raise UsageError("a Nexus client has a service, or its name, and the name of an endpoint")
    return NexusClient(name, endpoint)
