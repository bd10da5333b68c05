"""What can be called inside a running activity, the context that a worker sets around one, and interceptors.

The context travels in a context variable: into the activity's thread, its asyncio tasks and
`asyncio.to_thread`. It knows no engine: heartbeats leave through the function it was given.

Interceptors run where the activity runs: in its thread, or on the activity loop. Process activities run in
interpreters of their own, which have no interceptors.

Invariants:

- Cancellation reaches a thread once, as `Cancelled` at the next `heartbeat`; `wait_cancelled` tells it and
  thereby delivers it. Coroutines are cancelled by their loop instead, and `heartbeat` never raises there.
- Details are encoded in the activity's own thread, so that a bad value fails where it was given.
- What an activity reports is measured before it is sent: a server refuses payloads above its limit with an error that
  the workflow never sees, and retries for nothing. So the worker fails the attempt with a text that names size and
  limit.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, overload

from hourglass._engine.interception import Call, Headers
from hourglass._engine.options import RetryPolicy
from hourglass._engine.specs import Payloads
from hourglass.activity._options import LIVENESS_TIMEOUT
from hourglass.converter import Converter, Payload, default_converter
from hourglass.errors import Cancelled, EncodeError, UsageError
from hourglass.metrics import MetricMeter, Registry, default_registry

if TYPE_CHECKING:
    from hourglass.client import Client


# --- interception ---------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ExecuteActivityInput(Call):
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
        return _require("info()").info

    def heartbeat(self, *details: Any) -> None:
        _require("heartbeat()").heartbeat(details)


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
    scheduled_time: datetime | None = None
    current_attempt_scheduled_time: datetime | None = None
    started_time: datetime | None = None
    schedule_to_close_timeout: timedelta | None = None
    start_to_close_timeout: timedelta | None = None
    heartbeat_timeout: timedelta | None = None
    retry_policy: RetryPolicy | None = None
    priority_key: int = 0
    headers: Mapping[str, Payload] = field(default_factory=dict, repr=False)
    encoded_heartbeat_details: Payloads = field(default=(), repr=False)
    converter: Converter = field(default=default_converter, repr=False, compare=False)

    @cached_property
    def heartbeat_details(self) -> Sequence[Any]:
        """The details of the last heartbeat of an earlier attempt, decoded without a type."""
        return tuple(self.converter.decode(each) for each in self.encoded_heartbeat_details)

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
    when the worker has ended; anything else is a resource as it is. Whoever opened something else closes it.
    """

    def __init__(self, given: Sequence[Any] = (), around: Sequence[Callable[[], object]] = ()) -> None:
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise UsageError(f"resources must be a list, not {type(given).__name__}")
        self._given = (*around, *given)  # the blocks of plugins first, so that they end last
        self._stack: ExitStack | None = None
        self._open: tuple[Any, ...] | None = None

    def open(self) -> None:
        """Open all, in order; if one fails, those before it are closed again."""
        if self._open is None:
            with ExitStack() as stack:
                self._open = tuple([_opened(each, stack) for each in self._given])
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
        there = self._open or ()
        found = [each for each in there if isinstance(each, kind)]
        if len(found) == 1:
            return found[0]
        name = getattr(kind, "__qualname__", kind)
        names = ", ".join(sorted(type(each).__qualname__ for each in found or there)) or "none at all"
        if found:
            raise UsageError(
                f"{len(found)} resources of the worker are a {name} ({names}): give each a type of its own"
            )
        raise UsageError(
            f"the worker has no resource of type {name} (it has {names}): Worker(…, resources=[…])"
        )


def _opened(given: Any, stack: ExitStack) -> Any:
    if not (isinstance(given, (type, functools.partial)) or inspect.isroutine(given)):
        return given
    made = given()
    if not isinstance(made, AbstractContextManager):
        name = getattr(given, "__qualname__", repr(given))
        raise UsageError(
            f"resource {name} returns {type(made).__qualname__}, which is no context manager: decorate a generator with "
            "@contextmanager, or give the object itself; async context managers are entered by the program"
        )
    return stack.enter_context(made)


@dataclass(frozen=True, kw_only=True)
class CancellationDetails:
    """Why an attempt was asked to stop."""

    not_found: bool = False
    """The engine does not know it any more: its run has ended, or a later attempt has begun."""
    cancel_requested: bool = False
    """The workflow, or a client, cancelled it."""
    paused: bool = False
    """An operator paused it."""
    timed_out: bool = False
    """It took longer than a timeout of its own allows."""
    worker_shutdown: bool = False
    """The worker shuts down, and the graceful time has passed."""
    reset: bool = False
    """An operator reset it."""

    @staticmethod
    def of(reason: str) -> CancellationDetails:
        """From an engine's word for it, or the worker's own."""
        return CancellationDetails(**{_CANCELLATIONS.get(reason, "not_found"): True})


_CANCELLATIONS = {
    "CANCELLED": "cancel_requested",
    "NOT_FOUND": "not_found",
    "PAUSED": "paused",
    "RESET": "reset",
    "TIMED_OUT": "timed_out",
    "WORKER_SHUTDOWN": "worker_shutdown",
}

_making = threading.Lock()


class DeferredCompletion(BaseException):
    """Raised by `complete_async` to leave the activity; a worker takes it as the end of the attempt here."""


@dataclass(frozen=True, kw_only=True)
class Equipment:
    """What all attempts of a worker are given alike."""

    converter: Converter = default_converter
    client: Callable[[], Any] | None = None
    payload_limit: int | None = None
    inbound: ActivityChain | None = None
    registry: Registry | None = default_registry
    resources: Resources = field(default_factory=Resources)


class ActivityContext:
    """One running attempt, seen from inside. The worker (or test environment) that runs the attempt makes a subclass,
    which says what its info is and where its heartbeats go; its methods may be called in any thread.
    """

    __slots__ = (
        "__weakref__",
        "_delivered",
        "_info",
        "_told",
        "_waiters",
        "cancel_reason",
        "equipment",
        "is_worker_shutdown",
        "last_details",
    )

    def __init__(self, equipment: Equipment, last_details: Payloads) -> None:
        self.equipment = equipment
        self.last_details = last_details
        self.cancel_reason: str | None = None
        self.is_worker_shutdown = False
        self._waiters: list[Callable[[], object]] | None = None  # for the worker's shutdown
        self._info: Info | None = None
        self._told: threading.Event | None = None
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
        if self._told is not None:
            self._told.set()
        if reason == "WORKER_SHUTDOWN":
            self.worker_stops()

    def worker_stops(self) -> None:
        """The worker takes no new work; the attempt goes on for the graceful time."""
        with _making:
            self.is_worker_shutdown = True
            waiters, self._waiters = self._waiters, None
        for wake in waiters or ():
            wake()

    @contextmanager
    def when_worker_stops(self, wake: Callable[[], object]) -> Iterator[None]:
        """Within the block: `wake` is called, in any thread, when the worker begins to shut down, or now if it has."""
        with _making:
            if not (at_once := self.is_worker_shutdown):
                self._waiters = [*(self._waiters or ()), wake]
        if at_once:
            wake()
        try:
            yield
        finally:
            with _making:
                if self._waiters and wake in self._waiters:
                    self._waiters.remove(wake)

    @property
    def cancelled(self) -> bool:
        """Whether it was asked to stop."""
        return self.cancel_reason is not None

    def wait_cancelled(self, timeout: float | None) -> bool:
        """Block until it is asked to stop; True then, False when the time has passed."""
        with _making:  # an event of its own is dear, and few wait
            told = self._told = self._told or threading.Event()
        # Asked after the event is there: `cancel` sets the reason first and the event then, so one is seen.
        if not self.cancelled and not told.wait(timeout):
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
        if self.cancelled and not self._delivered and asyncio._get_running_loop() is None:
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

    __slots__ = ("_given", "_out", "_way")

    def __init__(
        self,
        info: Info | Callable[[], Info],
        send: Callable[[Payloads], object],
        equipment: Equipment,
        last_details: Payloads = (),
        publish: Callable[[str, Payload], object] = lambda name, value: None,
    ) -> None:
        super().__init__(equipment, last_details)
        self._given = info
        self._way = send
        self._out = publish

    def _make_info(self) -> Info:
        return self._given if isinstance(self._given, Info) else self._given()

    def _send(self, details: Payloads) -> None:
        self._way(details)

    def _publish(self, name: str, value: Payload) -> None:
        self._out(name, value)


class Named(Protocol):
    """What has a name, as a `Progress` has."""

    name: str


current: ContextVar[ActivityContext | None] = ContextVar("hourglass_activity", default=None)


def _require(call: str) -> ActivityContext:
    context = current.get()
    if context is None:
        raise UsageError(
            f"activity.{call} works inside a running activity only: not in a workflow, not in a plain call of the function, "
            f"and not in a thread that the activity started by itself (asyncio.to_thread is fine)"
        )
    return context


def in_activity() -> bool:
    """Whether the caller is inside a running activity."""
    return current.get() is not None


def info() -> Info:
    """What is known of this attempt."""
    context = _require("info()")
    chain = context.equipment.inbound
    return context.info if chain is None or chain.outbound is None else chain.outbound.info()


def heartbeat(*details: Any) -> None:
    """Say that the activity makes progress, with details that a later attempt can pick up.

    In a thread this raises `Cancelled`, once, after the activity was cancelled.
    """
    context = _require("heartbeat()")
    chain = context.equipment.inbound
    if chain is None or chain.outbound is None:
        context.heartbeat(details)
    else:
        chain.outbound.heartbeat(*details)


def publish(name: str | Named, value: Any, /) -> None:
    """Tell those who follow the workflow: `activity.publish("tokens", piece)`. `name` is that of a `Progress`, or the
    `Progress` itself, by which they follow it.

    It never waits, and writes nothing into the history. Items of one attempt arrive in order; a later attempt begins
    anew. Not in local activities, of which no engine hears before they end.
    """
    context = _require("publish()")
    text = name if isinstance(name, str) else getattr(name, "name", None)
    if not isinstance(text, str) or not text:
        raise UsageError("activity.publish takes the name of a progress, or a Progress, and the item")
    context.publish(text, value)


@overload
def heartbeat_details(type: type[T], /) -> T | None: ...
@overload
def heartbeat_details(type: Any = Any, /) -> Any: ...
def heartbeat_details(type: Any = Any, /) -> Any:
    """The first detail of the last heartbeat of an earlier attempt, as this type; None if there is none."""
    context = _require("heartbeat_details()")
    details = context.info.encoded_heartbeat_details
    return context.equipment.converter.decode(details[0], type) if details else None


def cancelled() -> bool:
    """Whether this activity was asked to stop. Asking does not take the request: `heartbeat` still raises it."""
    return _require("cancelled()").cancelled


def wait_cancelled(timeout: timedelta | float | None = None) -> bool:
    """Block this thread until the activity is asked to stop: True then, False if the time passes first.

    A True takes the request: you know now, and `heartbeat` will not raise any more. In `async def` activities
    catch `asyncio.CancelledError` instead.
    """
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    context = _require("wait_cancelled()")
    if asyncio._get_running_loop() is not None:
        raise UsageError(
            "activity.wait_cancelled() would block the loop that runs all async activities: an async activity is cancelled "
            "by asyncio.CancelledError at its next await"
        )
    return context.wait_cancelled(limit)


def cancellation_details() -> CancellationDetails | None:
    """Why this activity was asked to stop; None if it was not."""
    reason = _require("cancellation_details()").cancel_reason
    return None if reason is None else CancellationDetails.of(reason)


def is_worker_shutdown() -> bool:
    """Whether the worker has begun to shut down: it takes no new work, and this attempt is asked to stop when the graceful
    time has passed. A process activity hears of it only then.
    """
    return _require("is_worker_shutdown()").is_worker_shutdown


def wait_for_worker_shutdown_sync(timeout: timedelta | float | None = None) -> bool:
    """Block this thread until the worker begins to shut down: True then, False if the time passes first."""
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    context = _require("wait_for_worker_shutdown_sync()")
    if asyncio._get_running_loop() is not None:
        raise UsageError(
            "activity.wait_for_worker_shutdown_sync() would block the loop that runs all async activities: await "
            "activity.wait_for_worker_shutdown()"
        )
    begun = threading.Event()
    with context.when_worker_stops(begun.set):
        return begun.wait(limit)


async def wait_for_worker_shutdown() -> None:
    """In an `async def` activity: wait until the worker begins to shut down."""
    context = _require("wait_for_worker_shutdown()")
    loop, begun = asyncio.get_running_loop(), asyncio.Event()
    with context.when_worker_stops(lambda: loop.call_soon_threadsafe(begun.set)):
        await begun.wait()


def client() -> Client:
    """The client of the worker that runs this activity: to start, signal or look at workflows.

    Its calls block; in an `async def` activity make them in `asyncio.to_thread`. A process activity has none
    and connects for itself.
    """
    context = _require("client()")
    client = context.equipment.client
    if client is None:
        raise UsageError(
            f"activity {context.info.activity_type} was started without a client: connect one of your own there"
        )
    found: Client = client()
    return found


def resource(type: type[T], /) -> T:
    """What the worker was given or opened of this type: `activity.resource(Engine)`, of `Worker(…, resources=[…])`.

    All activities of the worker share it, in all their threads. A process activity has none.
    """
    return _require("resource()").equipment.resources.find(type)


def complete_async() -> NoReturn:
    """Leave the activity without ending it: a client completes it later, by `info().task_token` or by its ids.

    The worker sends no heartbeats for it after that, so it needs `@activity.defn(heartbeat_timeout=None)`, or a
    timeout of your own and heartbeats from the program that completes it.
    """
    context = _require("complete_async()")
    facts = context.info
    if facts.is_local:
        raise UsageError("a local activity cannot be completed from outside: call it without .local")
    if facts.heartbeat_timeout == timedelta(seconds=LIVENESS_TIMEOUT):
        raise UsageError(
            f"activity {facts.activity_type} calls complete_async() but its heartbeats are automatic: they stop when it "
            f"returns, and it would time out {LIVENESS_TIMEOUT:g} s later. Declare it with heartbeat_timeout=None (no "
            f"heartbeats), or with a timeout that whoever completes it keeps alive"
        )
    raise DeferredCompletion


def metric_meter() -> MetricMeter:
    """A meter for this attempt. What it records carries namespace, task queue and activity type.

    A process activity has none: what happens in another process is not in this one's registry.
    """
    context = _require("metric_meter()")
    registry = context.equipment.registry
    if registry is None:
        raise UsageError(
            f"activity {context.info.activity_type} runs in a process of its own, which has no registry of metrics: return "
            "what you want to count, or run it in a thread"
        )
    facts = context.info
    return MetricMeter(
        registry,
        {
            "namespace": facts.namespace,
            "task_queue": facts.task_queue,
            "activity_type": facts.activity_type,
        },
    )


class _ActivityLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the attempt's ids to each record, as attributes and at the end of the message."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        context = current.get()
        if context is None:
            return msg, kwargs
        facts = context.info
        ids = {
            "activity_type": facts.activity_type,
            "activity_id": facts.activity_id,
            "attempt": facts.attempt,
            "workflow_id": facts.workflow_id,
            "workflow_run_id": facts.workflow_run_id,
        }
        more = {
            **ids,
            "namespace": facts.namespace,
            "task_queue": facts.task_queue,
            "workflow_type": facts.workflow_type,
        }
        kwargs["extra"] = {**ids, **(kwargs.get("extra") or {}), "hourglass_activity": more}
        place = f"{facts.activity_type} {facts.activity_id}, attempt {facts.attempt}, workflow {facts.workflow_id}"
        # The message may still be formatted with arguments, or not: a per cent sign would mean something in
        # one case only.
        return f"{msg} ({place.replace('%', '_')})", kwargs


logger = _ActivityLogger(logging.getLogger("hourglass.activity"), {})
"""A logger that says which attempt speaks."""
