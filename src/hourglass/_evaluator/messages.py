"""Signals, updates and queries of a run: the selection of their handlers, and the fibers that run them.

Handlers are methods of the workflow class or are registered by the running body (function style). A signal
without a handler waits in the state, in order of arrival, until its handler is registered. An update without a
handler waits until the body has blocked within the same activation, but only in a run that Hourglass began.

If a worker has interceptors, `run_body` and `handler_call` call the body and the handlers through them.
Otherwise, these functions are not used. They must not know fibers.
"""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeAlias

from hourglass._evaluator import built_in_queries
from hourglass._evaluator.call_sites import Site, raised_at, returned_at
from hourglass._evaluator.commands import (
    AcceptUpdate,
    AnswerQuery,
    CompleteUpdate,
    ContinueAsNew,
    RejectUpdate,
)
from hourglass._evaluator.context import LiveRun
from hourglass._evaluator.definition import HandlerUnfinishedPolicy, MessageDefinition, MessageKind
from hourglass._evaluator.events import QueryReceived, SignalReceived, UpdateReceived
from hourglass._evaluator.fibers import (
    Bridge,
    Dropped,
    FiberTask,
    bridged_wait,
    error_of,
    on_bridge,
    require_fiber,
)
from hourglass._evaluator.interception import (
    ExecuteWorkflowInput,
    HandleQueryInput,
    HandleSignalInput,
    HandleUpdateInput,
    WorkflowInboundInterceptor,
)
from hourglass._evaluator.scheduler import PENDING, RESOLVED, Future
from hourglass._evaluator.state import NOTHING
from hourglass.converter import raw_payloads
from hourglass.errors import (
    Cancelled,
    CancelledError,
    FailureError,
    PayloadError,
    ReadOnlyError,
    TaskCancelledError,
    UsageError,
    WorkflowParked,
)

Message: TypeAlias = SignalReceived | UpdateReceived | QueryReceived


def run_body(live: LiveRun, inbound: WorkflowInboundInterceptor, arguments: list[Any]) -> Any:
    """Run the body through the interceptors. The arguments that interceptors receive do not contain the object
    of a workflow class.
    """
    definition, started = live.definition, live.started
    assert started is not None
    obj = arguments[0] if definition.is_class else None
    call = ExecuteWorkflowInput(
        type=started.workflow_type,
        run_fn=definition.run,
        args=arguments[1:] if definition.is_class else arguments,
        headers=dict(started.headers),
        _proceed=lambda call: _result_of(
            call.run_fn(*call.args) if obj is None else call.run_fn(obj, *call.args)
        ),
    )
    return inbound.execute_workflow(call)


def handler_call(
    inbound: WorkflowInboundInterceptor, event: Message, fn: Callable[..., Any], obj: Any, values: list[Any]
) -> Callable[[], Any]:
    """Return a function that calls a message handler through the interceptors."""
    common: dict[str, Any] = {
        "args": values,
        "headers": dict(event.headers),
        "_proceed": _proceed_with(fn, obj),
    }
    match event:
        case SignalReceived():
            return functools.partial(inbound.handle_signal, HandleSignalInput(signal=event.name, **common))
        case UpdateReceived():
            update = HandleUpdateInput(id=event.id, update=event.name, **common)
            return functools.partial(inbound.handle_update_handler, update)
        case QueryReceived():
            query = HandleQueryInput(id=event.id, query=event.name, **common)
            return functools.partial(inbound.handle_query, query)


def _proceed_with(fn: Callable[..., Any], obj: Any) -> Callable[[Any], Any]:
    return lambda call: _result_of(fn(*call.args) if obj is None else fn(obj, *call.args))


def _result_of(value: Any) -> Any:
    """Return the result of the author's function. If the function is an `async def`, wait for its coroutine
    first.
    """
    if not inspect.iscoroutine(value):
        return value
    return bridged_wait(value) if on_bridge() else _run_to_end(value)


async def await_call(live: LiveRun, call: Callable[[], Any]) -> tuple[Any, Site | None]:
    """Call the author's function, and await it if it is an `async def`. Return the function's result, and the
    line of its `return` if call sites are recorded.
    """
    value = call() if live.inbound is None else await Bridge(live.loop.fiber, call).drive()
    if not inspect.iscoroutine(value):
        return value, None
    frame = value.cr_frame if live.sites is not None else None
    result = await value
    # An ended frame keeps the line where it ended.
    return result, None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


TopLevel = Callable[[LiveRun, Callable[[], None]], None]
AwaitTopLevel = Callable[[LiveRun, Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]


class ContinueAsNewError(BaseException):
    """The exception with which `workflow.continue_as_new` ends the body or handler, and the run. Do not catch
    it.

    It is a `BaseException`, so that `except Exception` does not catch it.
    """

    def __init__(self, command: ContinueAsNew) -> None:
        super().__init__("continue as new")
        self.command = command


current_update: ContextVar[tuple[str, str] | None] = ContextVar("hourglass_update", default=None)
"""The id and name of the update whose handler is, or has started, the current coroutine."""


class UnfinishedSignalHandlersWarning(RuntimeWarning):
    """A warning that a workflow has closed before all its signal handlers finished."""


class UnfinishedUpdateHandlersWarning(RuntimeWarning):
    """A warning that a workflow has closed before all its update handlers finished."""


_UNFINISHED: dict[str, type[Warning]] = {
    "signal": UnfinishedSignalHandlersWarning,
    "update": UnfinishedUpdateHandlersWarning,
}


class Notice(str):
    """A message for a run's author. It is logged, and issued as a warning for each of its categories."""

    categories: tuple[type[Warning], ...] = ()


class Handlers:
    """The handlers of one run, and the messages that wait for them."""

    __slots__ = (
        "await_top",
        "known",
        "late_updates",
        "leaves_trace",
        "obj",
        "receivers",
        "run",
        "running",
        "signal_count",
        "top",
    )

    def __init__(self, run: LiveRun, top: TopLevel, await_top: AwaitTopLevel) -> None:
        self.run = run
        self.top = top
        self.await_top = await_top
        self.obj: Any = None  # the object of a workflow class
        self.known: dict[tuple[MessageKind, str | None], tuple[MessageDefinition, Any]] = NOTHING
        self.receivers: dict[str, OrderedDict[Future, None]] | None = None
        self.signal_count = 0
        self.running: dict[int | str, str] | None = None
        self.late_updates: tuple[UpdateReceived, ...] = ()
        # Whether the activation is recorded. It is not if it contains only updates and all of them are
        # rejected.
        self.leaves_trace = True

    def bind_object(self, obj: Any) -> None:
        """Add the handlers of the class, bound to its object."""
        self.obj = obj
        definition = self.run.definition
        for defined in (definition.signals, definition.queries, definition.updates):
            for name, message in defined.items():
                self._know(message, name, obj)

    def _know(self, message: MessageDefinition, name: str | None, obj: Any) -> None:
        if self.known is NOTHING:
            self.known = {}
        self.known[message.kind, name] = (message, obj)

    def register(self, message: MessageDefinition) -> None:
        """Register a handler for the running body. Signals that are waiting for this handler are handled now,
        in order.
        """
        if self.run.read_only:
            raise ReadOnlyError(
                f"registering a handler is not allowed in {self.run.read_only}, which must be read-only"
            )
        self._know(message, message.name, None)
        if message.kind != "signal":
            return
        waiting = self.run.state.signals
        names = [message.name] if message.name is not None else list(waiting)
        for name in names:
            for event in waiting.pop(name, ()):
                self._spawn_signal(message, None, event)

    def forget(self, kind: MessageKind, name: str | None) -> None:
        """Remove a handler."""
        self.known.pop((kind, name), None)

    def find(self, kind: MessageKind, name: str) -> tuple[MessageDefinition, Any] | None:
        """Return the handler of that name, the dynamic handler if there is none, or None."""
        return self.known.get((kind, name)) or self.known.get((kind, None))

    def names(self, kind: MessageKind) -> str:
        """Return the names of all handlers of a kind, for error messages."""
        return (
            ", ".join(sorted(name for message_kind, name in self.known if message_kind == kind and name))
            or "none"
        )

    @property
    def all_finished(self) -> bool:
        """Whether no signal or update handler is running."""
        return not self.running

    def unfinished_notices(self) -> tuple[Notice, ...]:
        """Return notices about a closed run: unfinished handlers, and signals that neither a handler nor a
        channel has received.
        """
        if not self.running and not self.run.state.signals:
            return ()
        unfinished = [
            described for described in map(self._describe_running, (self.running or {}).items()) if described
        ]
        notices = [
            Notice(
                f"signal {name!r} has unread messages ({count}), because the run closed before a handler or channel "
                "received them"
            )
            for name, count in ((name, len(waiting)) for name, waiting in self.run.state.signals.items())
            if count
        ]
        if unfinished:
            notice = Notice(
                f"the workflow closed before its handlers finished; abandoned handlers: {', '.join(unfinished)}. Wait "
                "for workflow.all_handlers_finished() before the end, or pass unfinished_policy=ABANDON to the handlers"
            )
            kinds = {described.partition(" ")[0] for described in unfinished}
            notice.categories = tuple(_UNFINISHED[kind] for kind in sorted(kinds))
            notices.append(notice)
        return tuple(notices)

    def _describe_running(self, running: tuple[int | str, str]) -> str:
        """Return a description of a running handler. Return "" if the handler may be abandoned without a
        warning.
        """
        key, name = running
        kind: MessageKind = "signal" if isinstance(key, int) else "update"
        handler = self.find(kind, name)
        if handler is not None and handler[0].unfinished_policy is HandlerUnfinishedPolicy.ABANDON:
            return ""
        return f"{kind} {name}" if kind == "signal" else f"{kind} {name} ({key})"

    def receivers_of(self, name: str) -> OrderedDict[Future, None]:
        """Return the futures of the fibers that wait for a message of this name, oldest first."""
        if self.receivers is None:
            self.receivers = {}
        return self.receivers.setdefault(name, OrderedDict())

    def wake_receiver(self, name: str) -> None:
        """Wake the fiber that has waited longest for a message of this name."""
        receivers = self.receivers.get(name) if self.receivers is not None else None
        while receivers:
            receiver, _ = receivers.popitem(last=False)
            if receiver.state == PENDING:
                receiver.resolve()
                break

    def _begun(self, key: int | str, name: str) -> None:
        if self.running is None:
            self.running = {}
        self.running[key] = name

    def _ended(self, key: int | str) -> None:
        if self.running is not None:
            self.running.pop(key, None)

    def call(self, message: MessageDefinition, obj: Any, event: Message) -> Callable[[], Any]:
        """Decode a message's arguments now. Return a function that runs the handler, through the interceptors
        if there are any.
        """
        values = self._arguments(message, event)
        fn = message.fn
        if self.run.inbound is not None:
            return handler_call(self.run.inbound, event, fn, obj, values)
        return (lambda: fn(obj, *values)) if obj is not None else (lambda: fn(*values))

    def _arguments(self, message: MessageDefinition, event: Message) -> list[Any]:
        """Return the decoded arguments for a handler. A dynamic handler receives the message's name and the
        undecoded arguments.
        """
        if message.name is None:
            return [event.name, raw_payloads(event.arguments, self.run.converter)]
        return message.signature.decode(self.run.converter, event.arguments)

    def signal(self, event: SignalReceived) -> None:
        """Pass a signal to its handler. Without a handler, store the signal until a handler or receiver for its
        name exists.
        """
        handler = self.find("signal", event.name)
        if handler is not None:
            self._spawn_signal(*handler, event)
            return
        state = self.run.state
        if state.signals is NOTHING:
            state.signals = {}
        state.signals.setdefault(event.name, deque()).append(event)
        self.wake_receiver(event.name)

    def _spawn_signal(self, message: MessageDefinition, obj: Any, event: SignalReceived) -> None:
        name = event.name
        try:
            call = self.call(message, obj, event)
        except (PayloadError, UsageError) as error:
            self.run.notices += (f"signal {name!r} was dropped: {error}",)
            return
        self.signal_count += 1
        number = self.signal_count
        self._begun(number, name)

        if self._is_async(message):

            async def handle_async() -> None:
                await await_call(self.run, call)

            loop = self.run.loop
            task = loop.create_task(self.await_top(self.run, handle_async()), name=f"signal {name}")
            task.add_done_callback(lambda _: self._ended(number))
            return

        def handle() -> None:
            try:
                self.top(self.run, call)
            finally:
                self._ended(number)

        HandlerFiber(self.run, ("signal", number), f"signal {name}", handle).start_soon()

    def _is_async(self, message: MessageDefinition) -> bool:
        """Return whether a handler runs on the event loop. All `async def` handlers and all handlers of `async
        def` workflows do.
        """
        return message.is_async or self.run.definition.is_async

    def update(self, event: UpdateReceived) -> None:
        """Validate an update, accept or reject it, and handle it in its own fiber."""
        handler = self.find("update", event.name)
        if self.run.definition.is_async if handler is None else self._is_async(handler[0]):
            self.run.loop.create_task(self._await_update(event), name=f"update {event.name}")
        else:
            self._spawn_update(event, is_late=False)

    def _spawn_update(self, event: UpdateReceived, *, is_late: bool) -> None:
        path, label = ("update", event.id), f"update {event.name}"
        HandlerFiber(self.run, path, label, self._handle_update, event, is_late).start_soon()

    def answer_late_updates(self) -> bool:
        """Start handling the updates that had no handler before the body first blocked. Return whether there
        were any.
        """
        late, self.late_updates = self.late_updates, ()
        for event in late:
            self._spawn_update(event, is_late=True)
        return bool(late)

    def _handle_update(self, event: UpdateReceived, is_late: bool) -> None:
        run = self.run
        handler = self.find("update", event.name)
        if handler is None and not is_late and run.behaviour.updates_wait_for_handlers:
            # The body may register the handler before it first blocks, so the update is tried a second time
            # after that. The update cannot wait longer, because it must be accepted or rejected in the
            # activation that delivers it.
            self.late_updates += (event,)
            return
        if handler is not None and self._is_async(handler[0]):  # registered in the meantime
            self.run.loop.create_task(self._await_update(event), name=f"update {event.name}")
            return
        fiber = require_fiber("an update")
        call = self._accept(event, handler, fiber)
        if call is None:
            return
        try:
            result = run.converter.encode(call())
            at = returned_at(fiber, handler[0].fn if handler else None) if run.sites is not None else None
            run.issue(CompleteUpdate(event.protocol_instance_id, result), fiber, at=at)
        except (Exception, Cancelled, ContinueAsNewError) as error:
            self._update_raised(event, fiber, error)
        finally:
            self._ended(event.id)

    async def _await_update(self, event: UpdateReceived) -> None:
        """Handle an update on the event loop."""
        run = self.run
        fiber = run.loop.fiber
        current_update.set((event.id, event.name))
        call = self._accept(event, self.find("update", event.name), fiber)
        if call is None:
            return
        try:
            value, at = await run.loop.await_translated(await_call(run, call))
            result = run.converter.encode(value)
            run.issue(CompleteUpdate(event.protocol_instance_id, result), fiber, at=at)
        except (Exception, Cancelled, ContinueAsNewError) as error:
            self._update_raised(event, fiber, error)
        except (GeneratorExit, Dropped):
            raise
        except BaseException as error:
            run.error = parked(f"update {event.name}", error)
        finally:
            self._ended(event.id)

    def _accept(
        self, event: UpdateReceived, handler: tuple[MessageDefinition, Any] | None, fiber: FiberTask[Any]
    ) -> Callable[[], Any] | None:
        """Validate an update, and accept or reject it. Return the call of its handler, or None if the update
        was rejected.
        """
        run = self.run
        try:
            call = self._validate(event, handler)
        except ReadOnlyError as error:
            run.error = error
            return None
        except (Exception, Cancelled) as error:
            failure = run.converter.to_failure(_plain(error))
            run.issue(RejectUpdate(event.protocol_instance_id, failure), fiber)
            return None
        # This is only set after the validation, because a rejected update is not recorded. A replay never sees
        # an activation that contained only rejected updates, so the journal must not contain it either.
        self.leaves_trace = True
        self._begun(event.id, event.name)
        run.issue(AcceptUpdate(event.protocol_instance_id), fiber)
        return call

    def _update_raised(self, event: UpdateReceived, fiber: FiberTask[Any], error: BaseException) -> None:
        run = self.run
        if isinstance(error, ContinueAsNewError):
            run.error = UsageError(
                "an update handler cannot continue as new; only the run method of the workflow can"
            )
        # In an update, a cancelled task is not a bug, as in Temporal's own SDK.
        elif run.dead:
            return
        elif isinstance(error, (Cancelled, TaskCancelledError)) or is_failure(run, error):
            at = raised_at(error) if run.sites is not None else None
            failure = run.converter.to_failure(_plain(error))
            run.issue(RejectUpdate(event.protocol_instance_id, failure), fiber, at=at)
        else:
            run.error = error

    def _validate(
        self, event: UpdateReceived, handler: tuple[MessageDefinition, Any] | None
    ) -> Callable[[], Any]:
        if handler is None:
            raise UsageError(f"unknown update {event.name!r}; known updates: {self.names('update')}")
        message, obj = handler
        if event.run_validator and message.validator is not None:
            values = self._arguments(message, event)
            with self.run.read_only_block(f"the validator of update {event.name}"):
                if self.run.inbound is not None:
                    self.run.inbound.handle_update_validator(
                        HandleUpdateInput(
                            id=event.id,
                            update=event.name,
                            args=values,
                            headers=dict(event.headers),
                            _proceed=_proceed_with(message.validator, obj),
                        )
                    )
                else:
                    message.validator(obj, *values) if obj is not None else message.validator(*values)
        # The arguments are decoded a second time, because the validator may have changed the first objects.
        return self.call(message, obj, event)

    def query(self, event: QueryReceived) -> AnswerQuery:
        """Answer a query. The handler must only read."""
        run = self.run
        try:
            if (
                built_in_answer := built_in_queries.answer(event.name, run, self.known, self.receivers)
            ) is not None:
                return AnswerQuery(event.id, built_in_answer)
            handler = self.find("query", event.name)
            if handler is None:
                raise UsageError(f"unknown query {event.name!r}; known queries: {self.names('query')}")
            call = self.call(*handler, event)
            if handler[0].is_async:
                call = functools.partial(_run_query, call)
            fiber: FiberTask[Any] = FiberTask(run, ("query", event.id), f"query {event.name}", call)
            with run.read_only_block(f"query {event.name}"):
                fiber.run_at_once()
            if fiber.state != RESOLVED:
                raise error_of(fiber)
            return AnswerQuery(event.id, run.converter.encode(fiber.value))
        except Exception as error:
            return AnswerQuery(event.id, failure=run.converter.to_failure(error))


class HandlerFiber(FiberTask[None]):
    """A top-level fiber: the body, or a handler. An exception that indicates a bug ends the current activation."""

    __slots__ = ()

    def _ended(self, state: int, value: Any) -> None:
        super()._ended(state, value)
        if isinstance(value, BaseException) and self.run.error is None:
            # SystemExit and the like are bugs too, and must not end the thread that runs workflows.
            self.run.error = parked(self.label, value)
        if self.run.error is not None:
            raise self.run.error


def parked(label: str, error: BaseException) -> WorkflowParked:
    """Return the error that parks a run whose code raised a `BaseException` other than `Exception`, e.g.
    `SystemExit`.
    """
    parked_error = WorkflowParked(
        f"{label} raised {type(error).__name__}: {error}. Use `return` to complete a workflow, and `raise "
        "ApplicationError(…)` to fail it"
    )
    parked_error.__cause__ = error
    return parked_error


def _run_query(call: Callable[[], Any]) -> Any:
    value = call()
    return _run_to_end(value) if inspect.iscoroutine(value) else value


def _run_to_end(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end without suspending it. Raise `UsageError` if the coroutine waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise UsageError(
        "an `async def` query handler, or an `async def` interceptor of a plain `def` workflow, must not wait"
    )


_failures: set[type[BaseException]] = set()


def count_as_failures(*exceptions: type[BaseException]) -> None:
    """Make these exceptions fail the runs that raise them, on every worker of this process.

    Bridges to other libraries call this function, so that their users need not pass the library's exceptions to
    each worker.
    """
    _failures.update(exceptions)


def is_failure(run: LiveRun, error: BaseException) -> bool:
    """Return whether an exception that workflow code raised fails the run. Any other exception is a bug."""
    return isinstance(
        error,
        (
            FailureError,
            TimeoutError,
            *run.definition.failure_exceptions,
            *run.settings.failure_exceptions,
            *_failures,
        ),
    )


def _plain(error: BaseException) -> BaseException:
    if isinstance(error, (Cancelled, TaskCancelledError)):
        plain = CancelledError("the handler was cancelled" if isinstance(error, Cancelled) else str(error))
        plain.__cause__ = error.__cause__
        return plain
    return error
