"""The context that a worker sets for a running activity, and interceptors. See `_current` for the functions
that authors call.

The context is stored in a context variable, so that it reaches the activity's thread, its asyncio tasks and
`asyncio.to_thread`. This module does not know the engine: the worker passes the function that sends heartbeats.

Interceptors run in the activity's thread, or on the activity loop for an `async def` activity. Process activities run in
separate interpreters, which have no interceptors.

Invariants:

- Cancellation reaches a thread once, as `Cancelled` at the next `heartbeat`; if `wait_cancelled` returns True, it has been
  delivered and is not raised any more. Activities of `hourglass.aio` have an `interruption`, which raises `CancelledError`
  at the thread's current position instead. Coroutines are cancelled by their loop, and `heartbeat` never raises there.
- Details are encoded in the activity's own thread, so that an invalid value raises at the call that passes it.
- The size of results and details is checked before they are sent: a server would reject larger payloads with an error
  that the workflow never sees, and retry in vain. So the worker fails the attempt with a message that names size and limit.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Protocol, TypeVar

from hourglass._evaluator.interception import Headers, InterceptedCall
from hourglass._evaluator.options import RetryPolicy
from hourglass._evaluator.specs import Payloads
from hourglass.activity._interruption import ThreadInterruption
from hourglass.converter import Converter, Payload, default_converter, wants_context
from hourglass.errors import Cancelled, EncodeError, UsageError
from hourglass.metrics import Registry, default_registry


@dataclass(kw_only=True)
class ExecuteActivityInput(InterceptedCall):
    """The input of an activity call. See `activity.info()` for the attempt."""

    activity: str
    fn: Callable[..., Any] = field(repr=False)


class ActivityOutboundInterceptor:
    """Base class of interceptors for the calls that an activity makes. All activities of a worker share one object, in all
    their threads.
    """

    def __init__(self, next: ActivityOutboundInterceptor) -> None:
        self.next = next

    def info(self) -> Info:
        """Return the result of `activity.info()`, possibly changed."""
        return self.next.info()

    def heartbeat(self, *details: Any) -> None:
        """Send the heartbeat of `activity.heartbeat(…)`. Raise `Cancelled` if the activity must stop."""
        self.next.heartbeat(*details)


class _LastActivityOutbound(ActivityOutboundInterceptor):
    """The last interceptor of the outbound chain, which calls the running attempt."""

    def __init__(self) -> None:
        pass

    def info(self) -> Info:
        return _current().info

    def heartbeat(self, *details: Any) -> None:
        _current().heartbeat(details)


def _current() -> ActivityContext:
    context = current.get()
    assert context is not None, "only activities call interceptors"
    return context


class ActivityInboundInterceptor:
    """Base class of interceptors for the execution of activities. All activities of a worker share one object, in all their
    threads.
    """

    def __init__(self, next: ActivityInboundInterceptor) -> None:
        self.next = next

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        """Initialise the interceptor when the worker is created. To intercept outbound calls, call `super().init` with an
        interceptor that wraps `outbound`.
        """
        self.next.init(outbound)

    def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """Run a `def` activity in its thread, and return the activity's result."""
        return self.next.execute_activity(input)

    async def execute_async_activity(self, input: ExecuteActivityInput) -> Any:
        """Run an `async def` activity on the activity loop, and return the activity's result."""
        return await self.next.execute_async_activity(input)


class LastActivityInbound(ActivityInboundInterceptor):
    """The last interceptor of the inbound chain, which calls the activity's function."""

    def __init__(self) -> None:
        self.outbound: ActivityOutboundInterceptor | None = None

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        """Store the first outbound interceptor. Store None if there is none, so that calls from activities bypass the
        chain."""
        self.outbound = None if type(outbound) is _LastActivityOutbound else outbound

    def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """Call the activity's function."""
        return input._proceed(input)

    async def execute_async_activity(self, input: ExecuteActivityInput) -> Any:
        """Call the activity's `async def` function and await it."""
        return await input._proceed(input)


class ActivityChain(ActivityInboundInterceptor):
    """The interceptors between a worker and its activities, in both directions."""

    def __init__(self, next: ActivityInboundInterceptor, last: LastActivityInbound) -> None:
        self.next = next
        next.init(_LastActivityOutbound())
        self.outbound = last.outbound


def activity_call(
    activity: str, fn: Callable[..., Any], args: list[Any], headers: Headers
) -> ExecuteActivityInput:
    """Return the input for the first interceptor of an activity call."""
    return ExecuteActivityInput(
        activity=activity,
        fn=fn,
        args=args,
        headers=dict(headers),
        _proceed=lambda call: call.fn(*call.args),
    )


LARGEST_ITEM = 64 * 1024
"""The maximum size of a published item, in bytes. It is low because one heartbeat carries several items."""

PAYLOAD_LIMIT = 2 * 1024 * 1024
"""Temporal's size limit for a single payload, in bytes."""


def size_of(payloads: Iterable[Payload]) -> int:
    """Return the size of payloads in bytes, including their metadata."""
    total = 0
    for payload in payloads:
        total += len(payload.data) + len(payload.encoding)
        if payload.metadata:
            total += sum(len(key) + len(value) for key, value in payload.metadata.items())
    return total


def check_size(payloads: Iterable[Payload], limit: int | None, what: str) -> None:
    """Raise `EncodeError` if the payloads exceed the limit (None: no limit). `what` describes the payloads in the
    message."""
    if limit is None:
        return
    size = size_of(payloads)
    if size > limit:
        raise EncodeError(
            f"{what} has {size:,} bytes, more than the limit of {limit:,}: store large data elsewhere and pass a reference "
            "to it, or raise payload_limit where the server allows more"
        )


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Info:
    """The properties of the current attempt. Timeouts that are not set are None."""

    activity_id: str
    activity_type: str
    attempt: int
    task_token: bytes = field(default=b"", repr=False)
    is_local: bool = False
    namespace: str = ""
    task_queue: str = ""
    workflow_id: str = ""
    workflow_run_id: str = ""
    workflow_type: str = ""
    activity_run_id: str | None = None
    """The run id of an activity that a client started. Such an activity belongs to no workflow, and has no
    workflow id or type.
    """
    scheduled_time: datetime | None = None
    current_attempt_scheduled_time: datetime | None = None
    started_time: datetime | None = None
    schedule_to_close_timeout: timedelta | None = None
    start_to_close_timeout: timedelta | None = None
    heartbeat_timeout: timedelta | None = None
    retry_policy: RetryPolicy | None = None
    priority_key: int = 0
    fairness_key: str = ""
    fairness_weight: float = 0.0
    headers: Mapping[str, Payload] = field(default_factory=dict, repr=False)
    encoded_heartbeat_details: Payloads = field(default=(), repr=False)
    converter: Converter = field(default=default_converter, repr=False, compare=False)

    @cached_property
    def heartbeat_details(self) -> Sequence[Any]:
        """The details of the last heartbeat of an earlier attempt, decoded without types."""
        return tuple(self.converter.decode(payload) for payload in self.encoded_heartbeat_details)

    @property
    def workflow_namespace(self) -> str:
        """The namespace of the workflow, always equal to the activity's namespace."""
        return self.namespace

    @property
    def in_workflow(self) -> bool:
        """Whether the activity belongs to a workflow."""
        return bool(self.workflow_id)


class Resources:
    """The resources that all activities of a worker share: plain objects, and context managers that are entered when the
    worker starts. Activities find a resource by its type.

    A function or class is called without arguments and must return a context manager, which is entered when the worker
    starts and exited after it has stopped. Any other object is used unchanged, and its author must close it.
    """

    def __init__(self, resources: Sequence[Any] = (), around: Sequence[Callable[[], object]] = ()) -> None:
        if type(resources) is not tuple and (
            isinstance(resources, str) or not isinstance(resources, Sequence)
        ):
            raise UsageError(f"resources must be a list, not {type(resources).__name__}")
        self._given = (*around, *resources)  # the blocks of plugins first, so that they are exited last
        self._stack: ExitStack | None = None
        self._open: tuple[Any, ...] | None = None

    def open(self) -> None:
        """Open all resources in order. If one fails to open, close the resources opened before it."""
        if not self._given:
            self._open = ()
        elif self._open is None:
            with ExitStack() as stack:
                self._open = tuple([_enter(resource, stack) for resource in self._given])
                self._stack = stack.pop_all()

    def close(self) -> None:
        """Close the opened resources in reverse order. Log errors, because no caller waits for the result."""
        stack, self._stack, self._open = self._stack, None, None
        if stack is not None:
            try:
                stack.close()
            except Exception:
                logging.getLogger("hourglass.worker").exception(
                    "a resource of the worker could not be closed"
                )

    def find(self, kind: type[T]) -> T:
        """Return the resource of this type. Raise `UsageError` unless there is exactly one."""
        opened = self._open or ()
        matches = [resource for resource in opened if isinstance(resource, kind)]
        if len(matches) == 1:
            return matches[0]
        name = getattr(kind, "__qualname__", kind)
        names = ", ".join(sorted(type(resource).__qualname__ for resource in matches or opened)) or "none"
        if matches:
            raise UsageError(
                f"{len(matches)} resources of the worker have the type {name} ({names}): use a different type for each"
            )
        raise UsageError(
            f"the worker has no resource of type {name} (it has {names}): Worker(…, resources=[…])"
        )


def _enter(resource: Any, stack: ExitStack) -> Any:
    if not (isinstance(resource, (type, functools.partial)) or inspect.isroutine(resource)):
        return resource
    manager = resource()
    if not isinstance(manager, AbstractContextManager):
        name = getattr(resource, "__qualname__", repr(resource))
        raise UsageError(
            f"resource {name} returns {type(manager).__qualname__}, which is not a context manager: decorate a generator with "
            "@contextmanager, or pass the object itself; enter async context managers in your program"
        )
    return stack.enter_context(manager)


@dataclass(frozen=True)
class CancellationDetails:
    """The reasons for the cancellation of an attempt."""

    not_found: bool = False
    """The engine no longer knows the attempt: the run is closed, or a later attempt has begun."""
    cancel_requested: bool = False
    """The workflow or a client cancelled the activity."""
    paused: bool = False
    """An operator paused the activity."""
    reset: bool = False
    """An operator reset the activity."""
    timed_out: bool = False
    """The attempt exceeded one of its timeouts."""
    worker_shutdown: bool = False
    """The worker is shutting down, and its graceful shutdown time has passed."""

    @staticmethod
    def of(reason: str) -> CancellationDetails:
        """Return the details for a reason code of the engine or the worker."""
        return CancellationDetails(**{_CANCELLATIONS.get(reason, "not_found"): True})

    @property
    def reason(self) -> str:
        """The engine's reason code. Raise `UsageError` unless exactly one reason is set."""
        words = [word for word, name in _CANCELLATIONS.items() if getattr(self, name)]
        if len(words) != 1:
            raise UsageError(
                f"an activity can have only one reason for its cancellation, not {len(words)}: {self}"
            )
        return words[0]


_CANCELLATIONS = {
    "CANCELLED": "cancel_requested",
    "NOT_FOUND": "not_found",
    "PAUSED": "paused",
    "RESET": "reset",
    "TIMED_OUT": "timed_out",
    "WORKER_SHUTDOWN": "worker_shutdown",
}

_lock = threading.Lock()


class DeferredCompletion(BaseException):
    """The exception with which `complete_async` leaves the activity. The worker then ends the attempt without a
    completion."""


@dataclass(frozen=True, kw_only=True)
class Equipment:
    """The objects and settings that all attempts of a worker share."""

    converter: Converter = default_converter
    client: Callable[[], Any] | None = None
    payload_limit: int | None = None
    payload_warn: int = 0
    """The size in bytes above which the worker logs a warning about a result; 0 disables the warning."""
    inbound: ActivityChain | None = None
    registry: Registry | None = default_registry
    resources: Resources = field(default_factory=Resources)
    variables: contextvars.Context | None = None
    """The context variables with which each `def` activity starts; None for an empty context."""

    @cached_property
    def contextual(self) -> bool:
        """Whether the converter encodes values differently depending on their workflow or activity."""
        return self.converter is not default_converter and wants_context(self.converter)


class ActivityContext:
    """The activity's view of its running attempt.

    A worker or test environment uses a subclass that provides the info and sends the heartbeats. All methods may be called
    from any thread.
    """

    __slots__ = (
        "__weakref__",
        "_cancel_event",
        "_delivered",
        "_info",
        "_waiters",
        "cancel_reason",
        "equipment",
        "interruption",
        "is_worker_shutdown",
        "last_details",
    )

    def __init__(self, equipment: Equipment, last_details: Payloads) -> None:
        self.equipment = equipment
        self.last_details = last_details
        self.cancel_reason: str | None = None
        self.interruption: ThreadInterruption | None = None
        self.is_worker_shutdown = False
        self._waiters: list[Callable[[], object]] | None = None  # called at the worker's shutdown
        self._info: Info | None = None
        self._cancel_event: threading.Event | None = None
        self._delivered = False

    def _make_info(self) -> Info:
        raise NotImplementedError

    def _send(self, details: Payloads) -> None:
        raise NotImplementedError

    def _publish(self, name: str, value: Payload) -> None:
        raise NotImplementedError

    @property
    def info(self) -> Info:
        """The properties of the attempt. Created on first use, because most activities never use them."""
        if self._info is None:
            self._info = self._make_info()
        return self._info

    def cancel(self, reason: str) -> None:
        """Cancel the attempt. Only the reason of the first call is kept."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
        if self._cancel_event is not None:
            self._cancel_event.set()
        if reason == "WORKER_SHUTDOWN":
            self.worker_stops()
        self.interrupt()

    def interrupt(self) -> bool:
        """Raise a requested cancellation in the activity's thread, if this kind of activity supports interruption. Return
        False if that is not safe right now.
        """
        return self.interruption is None or self.cancel_reason is None or self.interruption.request()

    def run_interruptibly(self, call: Callable[[], T], *, silent: bool) -> T:
        """Call a function, and raise a cancellation in its thread while it runs. With `silent`, never raise one."""
        self.interruption = ThreadInterruption(silent=silent)
        self.interrupt()  # the attempt may have been cancelled already
        return self.interruption.run(call)

    def worker_stops(self) -> None:
        """Notify the attempt that the worker receives no new tasks. The attempt may run on for the graceful shutdown
        time."""
        with _lock:
            self.is_worker_shutdown = True
            waiters, self._waiters = self._waiters, None
        for wake in waiters or ():
            wake()

    @contextmanager
    def when_worker_stops(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` when the worker begins to shut down during the block, or immediately if the worker is already shutting
        down. `wake` may be called in any thread.
        """
        with _lock:
            if not (at_once := self.is_worker_shutdown):
                self._waiters = [*(self._waiters or ()), wake]
        if at_once:
            wake()
        try:
            yield
        finally:
            with _lock:
                if self._waiters and wake in self._waiters:
                    self._waiters.remove(wake)

    @property
    def cancelled(self) -> bool:
        """Whether cancellation was requested."""
        return self.cancel_reason is not None

    def wait_cancelled(self, timeout: float | None) -> bool:
        """Block until cancellation is requested and return True, or return False after the timeout."""
        with _lock:  # created on demand: an event for every attempt would be expensive, and few attempts wait
            event = self._cancel_event = self._cancel_event or threading.Event()
        # Check after creating the event: `cancel` sets the reason first and the event second, so this method notices one of
        # the two.
        if not self.cancelled and not event.wait(timeout):
            return False
        self._delivered = True
        return True

    def heartbeat(self, details: Sequence[Any]) -> None:
        """Send a heartbeat with these details. Raise `Cancelled`, once, if the attempt was cancelled and runs in a
        thread."""
        payloads = self.equipment.converter.encode_all(details)
        check_size(
            payloads, self.equipment.payload_limit, f"a heartbeat of activity {self.info.activity_type}"
        )
        self.last_details = payloads
        self._send(payloads)
        self.check_cancelled()

    def check_cancelled(self) -> None:
        """Raise the cancellation, once, if the attempt was cancelled and runs in a thread."""
        if self.interruption is not None:
            self.interruption.check()
        elif self.cancelled and not self._delivered and asyncio._get_running_loop() is None:
            self._delivered = True
            raise Cancelled(f"activity {self.info.activity_type} was cancelled ({self.cancel_reason})")

    def publish(self, name: str, value: Any) -> None:
        """Publish an item under a name. Raise `UsageError` in a local activity, or in an activity without a workflow."""
        facts = self.info
        if facts.is_local:
            raise UsageError(
                f"activity {facts.activity_type} publishes {name!r} but was called as a local activity, which cannot "
                "publish: call it without .local"
            )
        if not facts.in_workflow:
            raise UsageError(
                f"activity {facts.activity_type} publishes {name!r} but does not belong to a workflow"
            )
        payload = self.equipment.converter.encode(value)
        if len(payload.data) > LARGEST_ITEM:
            raise UsageError(
                f"an item of progress {name!r} has {len(payload.data):,} bytes, but an activity can publish at most "
                f"{LARGEST_ITEM:,}: publish a reference to large data instead"
            )
        self._publish(name, payload)


class GivenContext(ActivityContext):
    """A context that receives its info, and the functions that send heartbeats and publish items, as arguments."""

    __slots__ = ("_info_source", "_publish_item", "_send_details")

    def __init__(
        self,
        info: Info | Callable[[], Info],
        send: Callable[[Payloads], object],
        equipment: Equipment,
        last_details: Payloads = (),
        publish: Callable[[str, Payload], object] = lambda name, value: None,
    ) -> None:
        super().__init__(equipment, last_details)
        self._info_source = info
        self._send_details = send
        self._publish_item = publish

    def _make_info(self) -> Info:
        return self._info_source if isinstance(self._info_source, Info) else self._info_source()

    def _send(self, details: Payloads) -> None:
        self._send_details(details)

    def _publish(self, name: str, value: Payload) -> None:
        self._publish_item(name, value)


class Named(Protocol):
    """The type of objects that have a name, such as `Progress`."""

    name: str


current: ContextVar[ActivityContext | None] = ContextVar("hourglass_activity", default=None)
