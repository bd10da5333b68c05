"""Nexus operations, called from a workflow: a client for a service behind an endpoint, and handles of operations.

On a Temporal server only: the embedded engine refuses the command by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload

from hourglass._engine.commands import ScheduleNexusOperation
from hourglass._engine.context import LiveRun
from hourglass._engine.event_groups import EventGroup, check_groups
from hourglass._engine.fibers import require_fiber
from hourglass._engine.interception import StartNexusOperationInput
from hourglass._engine.operations import NexusOperation, start_nexus
from hourglass._engine.options import Duration, check_text, choice, optional_seconds
from hourglass.converter import NexusSerializationContext, default_converter, in_context
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


class NexusOptions(TypedDict, total=False):
    """How an operation is called. All are optional. A duration is a `timedelta` or seconds."""

    schedule_to_close_timeout: Duration | None
    """The longest time until it has ended, all attempts to start it included."""
    schedule_to_start_timeout: Duration | None
    """The longest time until its handler has started it."""
    start_to_close_timeout: Duration | None
    """The longest time from there to its end."""
    cancellation_type: NexusOperationCancellationType
    """How long it is waited for when it is cancelled."""
    headers: Mapping[str, str]
    """Texts that its service sees; no secrets."""
    summary: str
    """One line about it, for Temporal's UI."""
    event_groups: Sequence[EventGroup] | None
    """The groups that it belongs to."""


class NexusClient:
    """Calls operations of one service behind one endpoint. Made by `workflow.create_nexus_client`."""

    def __init__(self, service: str, endpoint: str) -> None:
        self.service = service
        self.endpoint = endpoint

    @overload
    def start_operation(
        self, operation: Operation[..., R, Any], /, *args: Any, **options: Unpack[NexusOptions]
    ) -> NexusOperationHandle[R]: ...
    @overload
    def start_operation(
        self, operation: str, /, *args: Any, result_type: Any = None, **options: Unpack[NexusOptions]
    ) -> NexusOperationHandle[Any]: ...
    def start_operation(self, operation: Any, /, *args: Any, result_type: Any = None, **options: Any) -> Any:
        """Call an operation, given as itself or its name, and wait until it has started. The options are those of
        `NexusOptions`. Raises `NexusOperationError` where it could not be started.
        """
        run = require_fiber("calling Nexus operation", str(operation)).run
        name, kind = self._known(operation, args, result_type)
        if unknown := options.keys() - NexusOptions.__annotations__.keys():
            raise UsageError(f"the call of a Nexus operation has no option {min(unknown)!r}")
        headers = {
            check_text(name, "a header").lower(): check_text(text, name)
            for name, text in options.pop("headers", {}).items()
        }

        def send(call: StartNexusOperationInput) -> NexusOperationHandle[Any]:
            return NexusOperationHandle(start_nexus(_command(run, call), kind))

        call = StartNexusOperationInput(
            endpoint=self.endpoint,
            service=self.service,
            operation=name,
            args=list(args),
            nexus_headers=headers,
            options=options,
            _proceed=send,
        )
        return send(call) if run.outbound is None else run.outbound.start_nexus_operation(call)

    @overload
    def execute_operation(
        self, operation: Operation[..., R, Any], /, *args: Any, **options: Unpack[NexusOptions]
    ) -> R: ...
    @overload
    def execute_operation(
        self, operation: str, /, *args: Any, result_type: Any = None, **options: Unpack[NexusOptions]
    ) -> Any: ...
    def execute_operation(self, operation: Any, /, *args: Any, **options: Any) -> Any:
        """Call an operation and wait for its result. Raises `NexusOperationError`."""
        return self.start_operation(operation, *args, **options).result()

    def _known(self, operation: Any, args: tuple[Any, ...], result_type: Any) -> tuple[str, Any]:
        """Its name, and the type of the result."""
        if isinstance(operation, Operation):
            if operation.service != self.service:
                raise UsageError(f"{operation!r} is none of the service {self.service!r}")
            operation.signature.encode(
                default_converter, args
            )  # so that a wrong argument is told by its name
            return operation.name, operation.result_type
        if not isinstance(operation, str) or not operation:
            raise UsageError("a Nexus operation is given as itself, or as its name")
        if len(args) > 1:
            raise UsageError(f"a Nexus operation takes one argument, or none, not {len(args)}")
        return operation, Any if result_type is None else result_type


def _command(run: LiveRun, call: StartNexusOperationInput) -> ScheduleNexusOperation:
    """The command of a call, as its interceptors left it."""
    said, converter = call.options, run.converter
    if run.contextual:
        context = NexusSerializationContext(call.endpoint, call.service, call.operation)
        converter = in_context(run.settings.converter, context)
    cancels = said.get("cancellation_type", NexusOperationCancellationType.WAIT_COMPLETED)
    limits = ("schedule_to_close_timeout", "schedule_to_start_timeout", "start_to_close_timeout")
    return ScheduleNexusOperation(
        seq=0,
        endpoint=call.endpoint,
        service=call.service,
        operation=call.operation,
        argument=converter.encode(call.args[0] if call.args else None),
        headers=call.nexus_headers,
        cancellation_type=int(choice(NexusOperationCancellationType, cancels, "cancellation_type")),
        summary=run.converter.encode(check_text(said["summary"], "summary")) if said.get("summary") else None,
        event_groups=check_groups(said.get("event_groups")),
        **{name: optional_seconds(said.get(name), name) for name in limits},
    )


def create_nexus_client(service: Service | str, *, endpoint: str) -> NexusClient:
    """A client for a Nexus service, given as itself or its name, behind an endpoint of the server."""
    name = service.name if isinstance(service, Service) else service
    if not isinstance(name, str) or not name or not isinstance(endpoint, str) or not endpoint:
        raise UsageError("a Nexus client has a service, or its name, and the name of an endpoint")
    return NexusClient(name, endpoint)
