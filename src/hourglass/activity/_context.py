"""The context that a worker sets around a running activity, and interceptors. What authors call is in `_current`.

The context travels in a context variable: into the activity's thread, its asyncio tasks and
`asyncio.to_thread`. It knows no engine: heartbeats leave through the function it was given.

Interceptors run where the activity runs: in its thread, or on the activity loop. Process activities run in
interpreters of their own, which have no interceptors.

Invariants:

- Cancellation reaches a thread once, as `Cancelled` at the next `heartbeat`; `wait_cancelled` tells it and
  thereby delivers it. Activities of `hourglass.aio` have an `interruption`, which raises `CancelledError` instead, wherever
  the thread is. Coroutines are cancelled by their loop, and `heartbeat` never raises there.
- Details are encoded in the activity's own thread, so that a bad value fails where it was given.
- What an activity reports is measured before it is sent: a server refuses payloads above its limit with an error that
  the workflow never sees, and retries for nothing. So the worker fails the attempt with a text that names size and
  limit.
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
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hourglass._evaluator.interception import Headers, InterceptedCall
from hourglass._evaluator.options import RetryPolicy
from hourglass._evaluator.specs import Payloads
from hourglass.activity._interruption import ThreadInterruption
from hourglass.converter import Converter, Payload, default_converter, wants_context
from hourglass.errors import Cancelled, EncodeError, UsageError
from hourglass.metrics import Registry, default_registry

if TYPE_CHECKING:
    pass


# --- interception ---------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ExecuteActivityInput(InterceptedCall):
    """An activity is to run. `activity.info()` says more about the attempt."""

    activity: str
    fn: Callable[..., Any] = field(repr=False)


class ActivityOutboundInterceptor:
    """What an activity asks for, on its way out. One object serves all activities of a worker, in all their threads."""

    def __init__(self, next: ActivityOutboundInterceptor) -> None:
        self.next = next

    def info(self) -> Info:
        """What `activity.info()` gives."""
        return self.next.info()

    def heartbeat(self, *details: Any) -> None:
        """What `activity.heartbeat(…)` does; raises `Cancelled` where the activity shall stop."""
        self.next.heartbeat(*details)


class _LastActivityOutbound(ActivityOutboundInterceptor):
    """The end of the chain: the attempt itself."""

    def __init__(self) -> None:
        pass

    def info(self) -> Info:
        return _current().info

    def heartbeat(self, *details: Any) -> None:
        _current().heartbeat(details)


def _current() -> ActivityContext:
    context = current.get()
    assert context is not None, "interceptors are asked by code of an activity alone"
    return context


class ActivityInboundInterceptor:
    """What comes to an activity, on its way in. One object serves all activities of a worker, in all their threads."""

    def __init__(self, next: ActivityInboundInterceptor) -> None:
        self.next = next

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        """The worker is made. To see what goes out, hand on an interceptor of your own that has `outbound` as its next."""
        self.next.init(outbound)

    def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """Run a `def` activity, in its thread; what it returns is its result."""
        return self.next.execute_activity(input)

    async def execute_async_activity(self, input: ExecuteActivityInput) -> Any:
        """Run an `async def` activity, on the activity loop; what it returns is its result."""
        return await self.next.execute_async_activity(input)


class LastActivityInbound(ActivityInboundInterceptor):
    """The end of the chain: the activity itself."""

    def __init__(self) -> None:
        self.outbound: ActivityOutboundInterceptor | None = None

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        """What goes out begins here: None where no interceptor put itself in between, which costs nothing."""
        self.outbound = None if type(outbound) is _LastActivityOutbound else outbound

    def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """Call the function."""
        return input._proceed(input)

    async def execute_async_activity(self, input: ExecuteActivityInput) -> Any:
        """Await the function."""
        return await input._proceed(input)


class ActivityChain(ActivityInboundInterceptor):
    """What stands between a worker and its activities, in both directions."""

    def __init__(self, next: ActivityInboundInterceptor, last: LastActivityInbound) -> None:
        self.next = next
        next.init(_LastActivityOutbound())
        self.outbound = last.outbound


def activity_call(
    activity: str, fn: Callable[..., Any], args: list[Any], headers: Headers
) -> ExecuteActivityInput:
    """The call of an activity, on its way through the chain."""
    return ExecuteActivityInput(
        activity=activity,
        fn=fn,
        args=args,
        headers=dict(headers),
        _proceed=lambda call: call.fn(*call.args),
    )


# --- the size of what is reported -----------------------------------------------------------------


LARGEST_ITEM = 64 * 1024
"""How many bytes an activity may publish at once: the newest items travel together, with a heartbeat."""

PAYLOAD_LIMIT = 2 * 1024 * 1024
"""Temporal's limit for one payload, in bytes."""


def size_of(payloads: Iterable[Payload]) -> int:
    """How many bytes payloads take, their metadata included."""
    total = 0
    for payload in payloads:
        total += len(payload.data) + len(payload.encoding)
        if payload.metadata:
            total += sum(len(key) + len(value) for key, value in payload.metadata.items())
    return total


def check_size(payloads: Iterable[Payload], limit: int | None, what: str) -> None:
    """Raise EncodeError if the payloads are larger than the limit (None: no limit); `what` names them."""
    if limit is None:
        return
    size = size_of(payloads)
    if size > limit:
        raise EncodeError(
            f"{what} takes {size:,} bytes, more than the limit of {limit:,}: keep large data elsewhere and pass "
            f"a reference to it, or raise payload_limit where the server allows more"
        )


# --- context --------------------------------------------------------------------------------------


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Info:
    """What is known of the attempt that runs here. Timeouts that are not set are None."""

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
    """Of an activity that a client started: its own run. It belongs to no workflow, and has no workflow's id or type."""
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
        """The details of the last heartbeat of an earlier attempt, decoded without a type."""
        return tuple(self.converter.decode(payload) for payload in self.encoded_heartbeat_details)

    @property
    def workflow_namespace(self) -> str:
        """The namespace of the workflow: the activity's own."""
        return self.namespace

    @property
    def in_workflow(self) -> bool:
        """Whether a workflow asked for it."""
        return bool(self.workflow_id)


# --- resources ------------------------------------------------------------------------------------


class Resources:
    """What all activities of a worker share: objects, and what functions open when the worker starts. Found by their type.

    A function (or a class) is called without arguments and returns a context manager, which is entered then and left
    when the worker has ended; anything else is a resource as it is, and is closed by the
    author, who opened it.
    """

    def __init__(self, resources: Sequence[Any] = (), around: Sequence[Callable[[], object]] = ()) -> None:
        if type(resources) is not tuple and (
            isinstance(resources, str) or not isinstance(resources, Sequence)
        ):
            raise UsageError(f"resources must be a list, not {type(resources).__name__}")
        self._given = (*around, *resources)  # the blocks of plugins first, so that they end last
        self._stack: ExitStack | None = None
        self._open: tuple[Any, ...] | None = None

    def open(self) -> None:
        """Open all, in order; if one fails, those before it are closed again."""
        if not self._given:
            self._open = ()
        elif self._open is None:
            with ExitStack() as stack:
                self._open = tuple([_enter(resource, stack) for resource in self._given])
                self._stack = stack.pop_all()

    def close(self) -> None:
        """Close what was opened, the last first. What fails is logged: nothing waits for it any more."""
        stack, self._stack, self._open = self._stack, None, None
        if stack is not None:
            try:
                stack.close()
            except Exception:
                logging.getLogger("hourglass.worker").exception(
                    "a resource of the worker could not be closed"
                )

    def find(self, kind: type[T]) -> T:
        """The one of this type."""
        opened = self._open or ()
        matches = [resource for resource in opened if isinstance(resource, kind)]
        if len(matches) == 1:
            return matches[0]
        name = getattr(kind, "__qualname__", kind)
        names = (
            ", ".join(sorted(type(resource).__qualname__ for resource in matches or opened)) or "none at all"
        )
        if matches:
            raise UsageError(
                f"{len(matches)} resources of the worker are a {name} ({names}): give each a type of its own"
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
            f"resource {name} returns {type(manager).__qualname__}, which is no context manager: decorate a generator with "
            "@contextmanager, or give the object itself; async context managers are entered by the program"
        )
    return stack.enter_context(manager)


@dataclass(frozen=True)
class CancellationDetails:
    """Why an attempt was asked to stop."""

    not_found: bool = False
    """The engine does not know it any more: its run has ended, or a later attempt has begun."""
    cancel_requested: bool = False
    """The workflow, or a client, cancelled it."""
    paused: bool = False
    """An operator paused it."""
    reset: bool = False
    """An operator reset it."""
    timed_out: bool = False
    """It took longer than a timeout of its own allows."""
    worker_shutdown: bool = False
    """The worker shuts down, and the graceful time has passed."""

    @staticmethod
    def of(reason: str) -> CancellationDetails:
        """From an engine's word for it, or the worker's own."""
        return CancellationDetails(**{_CANCELLATIONS.get(reason, "not_found"): True})

    @property
    def reason(self) -> str:
        """An engine's word for it. Raises `UsageError` unless there is exactly one reason."""
        words = [word for word, name in _CANCELLATIONS.items() if getattr(self, name)]
        if len(words) != 1:
            raise UsageError(f"an activity is cancelled for one reason, not {len(words)}: {self}")
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
    """Raised by `complete_async` to leave the activity; a worker takes it as the end of the attempt here."""


@dataclass(frozen=True, kw_only=True)
class Equipment:
    """What all attempts of a worker are given alike."""

    converter: Converter = default_converter
    client: Callable[[], Any] | None = None
    payload_limit: int | None = None
    payload_warn: int = 0
    """From so many bytes on a result is warned of; 0: never, or the engine's client does so itself."""
    inbound: ActivityChain | None = None
    registry: Registry | None = default_registry
    resources: Resources = field(default_factory=Resources)
    variables: contextvars.Context | None = None
    """The context variables that each `def` activity begins with; None: none."""

    @cached_property
    def contextual(self) -> bool:
        """Whether the converter wants to know whose values it has."""
        return self.converter is not default_converter and wants_context(self.converter)


class ActivityContext:
    """One running attempt, seen from inside. The worker (or test environment) that runs the attempt makes a subclass,
    which says what its info is and where its heartbeats go; its methods may be called in any thread.
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
        self._waiters: list[Callable[[], object]] | None = None  # for the worker's shutdown
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
        """What is known of the attempt; made when it is first asked for, for most activities never ask."""
        if self._info is None:
            self._info = self._make_info()
        return self._info

    def cancel(self, reason: str) -> None:
        """Ask the attempt to stop; the first reason stays."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
        if self._cancel_event is not None:
            self._cancel_event.set()
        if reason == "WORKER_SHUTDOWN":
            self.worker_stops()
        self.interrupt()

    def interrupt(self) -> bool:
        """Raise the cancellation in the activity's thread, if it takes that. False if that is not safe right now."""
        return self.interruption is None or self.cancel_reason is None or self.interruption.request()

    def run_interruptibly(self, call: Callable[[], T], *, silent: bool) -> T:
        """Call a function in whose thread a cancellation is raised; with `silent` it never is."""
        self.interruption = ThreadInterruption(silent=silent)
        self.interrupt()  # it may have been cancelled before
        return self.interruption.run(call)

    def worker_stops(self) -> None:
        """The worker takes no new work; the attempt goes on for the graceful time."""
        with _lock:
            self.is_worker_shutdown = True
            waiters, self._waiters = self._waiters, None
        for wake in waiters or ():
            wake()

    @contextmanager
    def when_worker_stops(self, wake: Callable[[], object]) -> Iterator[None]:
        """Within the block: `wake` is called, in any thread, when the worker begins to shut down, or now if it has."""
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
        """Whether it was asked to stop."""
        return self.cancel_reason is not None

    def wait_cancelled(self, timeout: float | None) -> bool:
        """Block until it is asked to stop; True then, False when the time has passed."""
        with _lock:  # an event of its own is dear, and few wait
            event = self._cancel_event = self._cancel_event or threading.Event()
        # Asked after the event is there: `cancel` sets the reason first and the event then, so one is seen.
        if not self.cancelled and not event.wait(timeout):
            return False
        self._delivered = True
        return True

    def heartbeat(self, details: Sequence[Any]) -> None:
        """Report progress; raises `Cancelled`, once, if this thread was asked to stop."""
        payloads = self.equipment.converter.encode_all(details)
        check_size(
            payloads, self.equipment.payload_limit, f"a heartbeat of activity {self.info.activity_type}"
        )
        self.last_details = payloads
        self._send(payloads)
        self.check_cancelled()

    def check_cancelled(self) -> None:
        """Raise, once, if this thread was asked to stop: its cancellation arrives here."""
        if self.interruption is not None:
            self.interruption.check()
        elif self.cancelled and not self._delivered and asyncio._get_running_loop() is None:
            self._delivered = True
            raise Cancelled(f"activity {self.info.activity_type} was cancelled ({self.cancel_reason})")

    def publish(self, name: str, value: Any) -> None:
        """Publish an item."""
        facts = self.info
        if facts.is_local:
            raise UsageError(
                f"activity {facts.activity_type} publishes {name!r}, and was called as a local activity, which no "
                "engine hears of before it ends: call it without .local"
            )
        if not facts.in_workflow:
            raise UsageError(
                f"activity {facts.activity_type} publishes {name!r}, and no workflow asked for it"
            )
        payload = self.equipment.converter.encode(value)
        if len(payload.data) > LARGEST_ITEM:
            raise UsageError(
                f"an item of progress {name!r} has {len(payload.data):,} bytes: publish where it can be found, not the "
                f"thing itself; from an activity {LARGEST_ITEM:,} are allowed"
            )
        self._publish(name, payload)


class GivenContext(ActivityContext):
    """A context whose info, or what makes it, and the ways of whose heartbeats and published items are given."""

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
    """What has a name, as a `Progress` has."""

    name: str


current: ContextVar[ActivityContext | None] = ContextVar("hourglass_activity", default=None)
