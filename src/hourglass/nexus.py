"""Nexus: operations that workflows of other namespaces call, implemented as plain functions. On a Temporal
server only.

    payments = nexus.Service("payments")

    @payments.operation
    def charge(order: str) -> str: ...

    @payments.operation
    def deliver(order: str) -> nexus.OperationHandle[str]:
        return nexus.start_workflow(delivery, order, id=f"delivery-{order}")

    Worker(client, "payments", nexus_services=[payments])

and in any workflow:

    client = workflow.create_nexus_client(payments, endpoint="payments")
    client.execute_operation(charge, "o-1")

A caller without access to the code identifies the service and the operation by name. The embedded engine has a single
namespace, and rejects both a worker with services and a call.

An operation's function is called in a thread, or, if it is an `async def`, on a separate event loop. The function should
finish within seconds, and may be called repeatedly. For longer work, start a workflow or a standalone activity with
`start_workflow` or `start_activity`, and return the handle. The started work's result becomes the operation's result, and
cancelling the operation cancels the work. The server retries a function that raises an exception, except for
`OperationError`, which fails the operation, and `HandlerError`, which specifies whether to retry.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import logging
import threading
import typing
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, TypeVarTuple, Unpack, overload

import msgspec

from hourglass._logs import Speaker, SpeakerLogger
from hourglass.converter import Signature
from hourglass.errors import DefinitionError, HourglassError, UsageError
from hourglass.metrics import MetricMeter, Registry

if TYPE_CHECKING:
    from hourglass.client import Client, StartActivityOptions, StartOptions

__all__ = [
    "CallContext",
    "HandlerError",
    "Info",
    "NexusCallback",
    "Operation",
    "OperationError",
    "OperationHandle",
    "Service",
    "client",
    "in_operation",
    "info",
    "is_worker_shutdown",
    "logger",
    "metric_meter",
    "start_activity",
    "start_workflow",
    "wait_for_worker_shutdown",
    "wait_for_worker_shutdown_sync",
]

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
Ts = TypeVarTuple("Ts")


class OperationError(HourglassError):
    """Raise this in an operation to fail the operation permanently. With `canceled`, the operation ends as cancelled."""

    def __init__(self, message: str, *, canceled: bool = False) -> None:
        super().__init__(message)
        self.canceled = canceled


class HandlerError(HourglassError):
    """Raise this in an operation that cannot handle the call.

    `type` is one of Nexus's error types, such as NOT_FOUND. `retryable` decides whether the server retries; by default the
    type decides.
    """

    def __init__(self, message: str, *, type: str = "INTERNAL", retryable: bool | None = None) -> None:
        super().__init__(message)
        self.type = type
        self.retryable = retryable


_WORKFLOW, _ACTIVITY = 1, 2  # Temporal's constants


@dataclass(frozen=True, kw_only=True)
class OperationHandle(Generic[R]):
    """The workflow or standalone activity that an operation has started. Create the handle with `start_workflow` or
    `start_activity` and return it. The result of the started work becomes the operation's result.
    """

    namespace: str
    workflow_id: str = ""
    activity_id: str = ""
    run_id: str = ""

    @property
    def token(self) -> str:
        """The token that identifies the operation for the caller's server, in the format of Temporal's SDKs."""
        fields: dict[str, Any] = {"t": _ACTIVITY if self.activity_id else _WORKFLOW, "ns": self.namespace}
        if self.activity_id:
            fields |= {"aid": self.activity_id, "rid": self.run_id}
        else:
            fields["wid"] = self.workflow_id
        return (
            base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode().rstrip("=")
        )

    @classmethod
    def from_token(cls, token: str) -> OperationHandle[Any]:
        """Return the handle for a token. Raise `UsageError` if the token is malformed."""
        try:
            fields = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
            kind, texts = fields["t"], {name: fields.get(name) or "" for name in ("ns", "wid", "aid", "rid")}
        except (ValueError, TypeError, KeyError, AttributeError):
            raise UsageError("this is not the token of a Nexus operation") from None
        needed = texts.get({_WORKFLOW: "wid", _ACTIVITY: "aid"}.get(kind, ""))
        if not needed or fields.get("v") or not all(isinstance(text, str) for text in texts.values()):
            raise UsageError(
                "this token does not belong to a workflow or an activity that a Nexus operation has started"
            )
        return cls(
            namespace=texts["ns"], workflow_id=texts["wid"], activity_id=texts["aid"], run_id=texts["rid"]
        )


class NexusCallback(msgspec.Struct, frozen=True, kw_only=True):
    """The address at which a server is notified when the work started by an operation is closed. `start_workflow` creates
    it.
    """

    url: str
    headers: dict[str, str] = {}
    links: tuple[bytes, ...] = ()
    """Links to the callers, as Temporal's messages, displayed with the started workflow or activity."""

    def __repr__(self) -> str:  # the headers may contain a secret of the caller's server
        return "<NexusCallback>"


CancelFunction = Callable[[OperationHandle[Any]], Any]


class Operation(Generic[P, R, C]):
    """An operation of a service, typed by its parameters `P` and its result `R`. A call of the object calls the function,
    which returns a `C`: the result itself, or a handle.
    """

    def __init__(self, service: str, name: str, fn: Callable[P, C], signature: Signature) -> None:
        self.service = service
        self.name = name
        self.fn = fn
        self.signature = signature
        self.cancel_fn: CancelFunction | None = None
        self.__doc__ = fn.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function directly."""
        return self.fn(*args, **kwargs)

    @property
    def result_type(self) -> Any:
        """The result type for callers. If the function returns a handle, the type of the handle's result."""
        annotation = self.signature.return_type
        if typing.get_origin(annotation) is OperationHandle:
            return typing.get_args(annotation)[0]
        return Any if annotation is OperationHandle else annotation

    def on_cancel(self, fn: CancelFunction) -> CancelFunction:
        """Set the function to call with the operation's handle when a caller cancels the operation. Use it as a decorator.

        Without a cancel function, the started workflow or activity is cancelled.
        """
        if not callable(fn):
            raise DefinitionError(
                f"the cancel function of {self!r} must be callable, not {type(fn).__name__}"
            )
        self.cancel_fn = fn
        return fn

    def __repr__(self) -> str:
        return f"<Nexus operation {self.service}.{self.name}>"


class Service:
    """A Nexus service: a name and its operations."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name.strip():
            raise UsageError("the name of a Nexus service must be a non-empty str")
        self.name = name
        self.operations: dict[str, Operation[..., Any, Any]] = {}

    @overload
    def operation(
        self, fn: Callable[P, Awaitable[OperationHandle[R]]], /
    ) -> Operation[P, R, Awaitable[OperationHandle[R]]]: ...
    @overload
    def operation(self, fn: Callable[P, OperationHandle[R]], /) -> Operation[P, R, OperationHandle[R]]: ...
    @overload
    def operation(self, fn: Callable[P, Awaitable[R]], /) -> Operation[P, R, Awaitable[R]]: ...
    @overload
    def operation(self, fn: Callable[P, R], /) -> Operation[P, R, R]: ...
    @overload
    def operation(self, /, *, name: str) -> NamedOperation: ...
    def operation(self, fn: Any = None, /, *, name: str = "") -> Any:
        """Add a function as an operation, by default under the function's name. The function takes at most one argument, as
        Nexus requires.

        An operation that returns an `OperationHandle` completes with the result of the started workflow or activity, when
        that is closed.
        """
        return NamedOperation(self, name) if fn is None else self._add(fn, name)

    def _add(self, fn: Callable[..., Any], name: str) -> Operation[..., Any, Any]:
        if not inspect.isroutine(fn):
            raise DefinitionError(f"an operation of {self.name} must be callable, not {type(fn).__name__}")
        title = name or fn.__name__
        if title in self.operations:
            raise DefinitionError(f"the Nexus service {self.name} has two operations {title!r}")
        signature = Signature.of(fn, what=f"operation {self.name}.{title}")
        if signature.required > 1 or not (signature.takes_exactly_one or not signature.parameters):
            raise DefinitionError(
                f"operation {title!r} of the Nexus service {self.name} must take at most one argument: put several into a "
                "dataclass"
            )
        operation = self.operations[title] = Operation(self.name, title, fn, signature)
        return operation

    def __repr__(self) -> str:
        return f"<Nexus service {self.name}: {', '.join(self.operations) or 'no operations'}>"


class NamedOperation:
    """The decorator that `Service.operation(name=…)` returns."""

    def __init__(self, service: Service, name: str) -> None:
        self._service = service
        self._name = name

    @overload
    def __call__(
        self, fn: Callable[P, Awaitable[OperationHandle[R]]], /
    ) -> Operation[P, R, Awaitable[OperationHandle[R]]]: ...
    @overload
    def __call__(self, fn: Callable[P, OperationHandle[R]], /) -> Operation[P, R, OperationHandle[R]]: ...
    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Operation[P, R, Awaitable[R]]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Operation[P, R, R]: ...
    def __call__(self, fn: Any, /) -> Any:
        """Add a function as an operation under this name."""
        return self._service._add(fn, self._name)


@dataclass(frozen=True, kw_only=True)
class Info:
    """The properties of the call that an operation handles."""

    endpoint: str
    namespace: str
    task_queue: str
    service: str
    operation: str
    request_id: str
    """The request id. It is unchanged when the server retries, so that a workflow with an id based on it is started only
    once. Empty in a cancel function.
    """
    headers: dict[str, str] = field(default_factory=dict, repr=False)


class ShutdownNotice:
    """The notification that the worker is shutting down, for waiters in any thread."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self._waiters: set[Callable[[], object]] = set()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Notify all waiters that the shutdown has begun."""
        with self._lock:
            self.begun.set()
            waiters, self._waiters = self._waiters, set()
        for wake in waiters:
            wake()

    async def wait(self) -> None:
        """Wait, on any event loop, until the shutdown has begun."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        with self._lock:
            if self.begun.is_set():
                return
            self._waiters.add(wake)
        try:
            await woken.wait()
        finally:
            with self._lock:
                self._waiters.discard(wake)


@dataclass(frozen=True)
class CallContext:
    """The context of a running operation."""

    info: Info
    client: Callable[[], Any]
    registry: Registry
    shutdown: ShutdownNotice
    callback: NexusCallback | None = None
    """The callback of the caller's server. None if the server does not wait for a result, e.g. in a cancel function."""


current: ContextVar[CallContext | None] = ContextVar("hourglass_nexus", default=None)


def in_operation() -> bool:
    """Return whether the caller runs inside an operation."""
    return current.get() is not None


def info() -> Info:
    """Return the properties of the call that this operation handles."""
    return _required("info").info


def client() -> Client:
    """Return the worker's client. Its calls block; in an `async def`, make them in `asyncio.to_thread`."""
    blocking_client: Client = _required("client").client()
    return blocking_client


@overload
def start_workflow(
    workflow: str, /, *args: Any, result_type: type[R], **options: Unpack[StartOptions]
) -> OperationHandle[R]: ...
@overload
def start_workflow(
    workflow: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartOptions]
) -> OperationHandle[Any]: ...
@overload
def start_workflow(
    workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
) -> OperationHandle[R]: ...
def start_workflow(workflow: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
    """Start a workflow for this operation. Return a handle, which the operation's function must return.

    The arguments are the same as for `Client.start_workflow`; the default task queue is this worker's. The default `id` is
    based on the request id, so that a retried call does not start a second workflow.

    This function blocks. In an `async def`, use `await asyncio.to_thread(nexus.start_workflow, …)`.
    """
    return _start("workflow", workflow, args, options)


@overload
def start_activity(
    activity: str, /, *args: Any, result_type: type[R], **options: Unpack[StartActivityOptions]
) -> OperationHandle[R]: ...
@overload
def start_activity(
    activity: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartActivityOptions]
) -> OperationHandle[Any]: ...
@overload
def start_activity(
    activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartActivityOptions]
) -> OperationHandle[R]: ...
def start_activity(activity: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
    """Start a standalone activity for this operation, with the arguments of `Client.start_activity`. See
    `start_workflow`.
    """
    return _start("activity", activity, args, options)


def _start(
    kind: Literal["workflow", "activity"], target: Any, args: Sequence[Any], options: dict[str, Any]
) -> OperationHandle[Any]:
    context = _required(f"start_{kind}")
    call = context.info
    options.setdefault("task_queue", call.task_queue)
    options.setdefault("id", f"{call.operation}-{call.request_id}")
    handle: OperationHandle[Any] = OperationHandle(namespace=call.namespace, **{f"{kind}_id": options["id"]})
    options["callbacks"] = _callbacks(context, handle)
    start = getattr(context.client(), f"start_{kind}")
    return replace(handle, run_id=start(target, *args, request_id=call.request_id, **options).run_id or "")


def _callbacks(context: CallContext, handle: OperationHandle[Any]) -> list[NexusCallback]:
    callback = context.callback
    if callback is None:
        raise UsageError(
            "this Nexus call does not wait for a result: it is a cancellation, or it was not sent by a server"
        )
    return [
        msgspec.structs.replace(callback, headers={**callback.headers, "nexus-operation-token": handle.token})
    ]


def is_worker_shutdown() -> bool:
    """Return whether the worker has begun to shut down."""
    return _required("is_worker_shutdown").shutdown.begun.is_set()


def wait_for_worker_shutdown_sync(timeout: timedelta | float | None = None) -> bool:
    """Block this thread until the worker begins to shut down and return True, or return False after the
    timeout.
    """
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    return _required("wait_for_worker_shutdown_sync").shutdown.begun.wait(limit)


async def wait_for_worker_shutdown() -> None:
    """Wait, in an `async def` operation, until the worker begins to shut down."""
    await _required("wait_for_worker_shutdown").shutdown.wait()


def metric_meter() -> MetricMeter:
    """Return a meter for this call. Its metrics have the labels namespace, task queue, service and operation."""
    context = _required("metric_meter")
    call = context.info
    return MetricMeter(
        context.registry,
        {
            "namespace": call.namespace,
            "task_queue": call.task_queue,
            "nexus_service": call.service,
            "nexus_operation": call.operation,
        },
    )


def _required(function: str) -> CallContext:
    context = current.get()
    if context is None:
        raise UsageError(f"nexus.{function}() works only inside a running Nexus operation")
    return context


class _OperationLogger(SpeakerLogger):
    def speaker(self) -> Speaker | None:
        context = current.get()
        if context is None:
            return None
        call = context.info
        names = {
            "nexus_service": call.service,
            "nexus_operation": call.operation,
            "nexus_endpoint": call.endpoint,
            "nexus_request_id": call.request_id,
        }
        return Speaker(f"operation {call.service}.{call.operation}", names)


logger = _OperationLogger(logging.getLogger("hourglass.nexus"), {})
"""A logger that adds the names of the current service and operation to each message."""


@dataclass(kw_only=True)
class ExecuteNexusOperationStartInput:
    """The input for the start of an operation. `args` contains the operation's argument, if any; `headers` are the headers
    of the call.
    """

    operation: Operation[..., Any, Any]
    args: list[Any] = field(default_factory=list, repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(kw_only=True)
class ExecuteNexusOperationCancelInput:
    """The input for the cancellation of an operation. `handle` is the value that the operation's function returned."""

    operation: Operation[..., Any, Any]
    handle: OperationHandle[Any]
    headers: dict[str, str] = field(default_factory=dict, repr=False)


class NexusOperationInboundInterceptor:
    """Base class of interceptors for operation calls. Override methods, and call `self.next` to continue.

    An interceptor runs in the thread of the operation's function. For an `async def`, the `async` methods are called on its
    event loop.
    """

    def __init__(self, next: NexusOperationInboundInterceptor) -> None:
        self.next = next

    def execute_nexus_operation_start(self, input: ExecuteNexusOperationStartInput) -> Any:
        """Call an operation and return the value that the operation's function returns."""
        return self.next.execute_nexus_operation_start(input)

    async def execute_async_nexus_operation_start(self, input: ExecuteNexusOperationStartInput) -> Any:
        """Call an operation whose function is an `async def`."""
        return await self.next.execute_async_nexus_operation_start(input)

    def execute_nexus_operation_cancel(self, input: ExecuteNexusOperationCancelInput) -> None:
        """Cancel the work that an operation has started."""
        self.next.execute_nexus_operation_cancel(input)

    async def execute_async_nexus_operation_cancel(self, input: ExecuteNexusOperationCancelInput) -> None:
        """Cancel the work with a cancel function that is an `async def`."""
        await self.next.execute_async_nexus_operation_cancel(input)


class LastNexusInbound(NexusOperationInboundInterceptor):
    """The last interceptor of the chain, which calls the author's functions."""

    def __init__(self) -> None:
        pass

    def execute_nexus_operation_start(self, input: ExecuteNexusOperationStartInput) -> Any:
        """Call the operation's function."""
        return input.operation.fn(*input.args)

    async def execute_async_nexus_operation_start(self, input: ExecuteNexusOperationStartInput) -> Any:
        """Call the operation's `async def` function and await it."""
        return await input.operation.fn(*input.args)

    def execute_nexus_operation_cancel(self, input: ExecuteNexusOperationCancelInput) -> None:
        """Call the author's cancel function, or cancel the started workflow or activity."""
        if input.operation.cancel_fn is not None:
            input.operation.cancel_fn(input.handle)
        else:
            _cancel(input.handle)

    async def execute_async_nexus_operation_cancel(self, input: ExecuteNexusOperationCancelInput) -> None:
        """Call the author's `async def` cancel function and await it."""
        assert input.operation.cancel_fn is not None
        await input.operation.cancel_fn(input.handle)


def _cancel(handle: OperationHandle[Any]) -> None:
    blocking_client = client()
    if handle.activity_id:
        blocking_client.get_activity_execution_handle(
            handle.activity_id, run_id=handle.run_id or None
        ).cancel()
    else:
        blocking_client.get_workflow_handle(handle.workflow_id).cancel()
