"""A codec between a handle and its worker: payloads are decoded before the worker sees them, and encoded before the
engine sees them.

A codec is the user's code and may be slow, so it runs in threads of its own, never on the control loop. An item that
cannot be decoded, or a completion that cannot be encoded, is still answered (I3): the task or the attempt fails, with a
message that reveals nothing about the payloads.

A codec that depends on the context of its payloads (`with_context`) is called separately for each event, command and
task. The context of an event that answers a command follows only from the command, so `ContextBook` stores that context
while the run is cached or the attempt is executing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from hourglass._contract.activities import StartActivity
from hourglass._contract.engine_status import EngineStatus
from hourglass._contract.handle import (
    ActivityItem,
    ActivityResult,
    ActivityTask,
    AttemptFailed,
    CompletionResult,
    Handle,
    HandleBroken,
    HandleConfig,
    OnActivations,
    OnActivities,
    OnEnd,
    WorkKind,
    context_of,
)
from hourglass._contract.progress import without_carrier
from hourglass._contract.service import Connection, Request
from hourglass._contract.workflows import ExecuteWorkflow, UpdateWithStart
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import Payloads
from hourglass._evaluator.state import ACTIVITY, CHILD, NEXUS, SIGNAL, Numbered
from hourglass._worker.daemon_executor import DaemonExecutor
from hourglass._worker.work_log import facts_of, named
from hourglass.converter import (
    ActivitySerializationContext,
    ApplicationFailure,
    Codec,
    Converter,
    Failure,
    NexusSerializationContext,
    SerializationContext,
    WorkflowSerializationContext,
    in_context,
    seal,
    unseal,
    wants_context,
)
from hourglass.errors import DecodeError, PayloadError
from hourglass.metrics import Family

A = TypeVar("A")
T = TypeVar("T")

logger = logging.getLogger("hourglass.worker")

_THREADS = 4


def request_context(request: Request[Any], namespace: str) -> SerializationContext | None:
    """Return the serialization context of a request and its answer; None if the request does not concern a single
    workflow or activity.
    """
    if isinstance(request, StartActivity):
        return ActivitySerializationContext(
            namespace, request.activity_id, request.activity_type, request.spec.task_queue
        )
    named: Any = request.start if isinstance(request, (UpdateWithStart, ExecuteWorkflow)) else request
    named = getattr(getattr(named, "schedule", None), "action", named)
    workflow_id, activity_id = getattr(named, "workflow_id", ""), getattr(named, "activity_id", "")
    if activity_id:
        return ActivitySerializationContext(namespace, activity_id, workflow_id=workflow_id or None)
    return WorkflowSerializationContext(namespace, workflow_id) if workflow_id else None


class ContextBook:
    """The serialization contexts of cached runs and executing attempts of one connection. May be used from any thread."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._runs: dict[str, _RunBook] = {}
        self._attempts: dict[bytes, SerializationContext] = {}

    def of_event(self, run_id: str, event: e.AnyEvent) -> SerializationContext:
        """Return the context of an event of a run.

        Raises `DecodeError` for an unknown run. The task then fails, and the engine sends the run's whole history.
        """
        if isinstance(event, e.RunEvicted):
            book = self._runs.pop(run_id, None)
            return SerializationContext() if book is None else book.own
        if isinstance(event, e.RunStarted):
            own = WorkflowSerializationContext(self._namespace, event.workflow_id)
            self._runs[run_id] = _RunBook(own, event.workflow_type)
        book = self._runs.get(run_id)
        if book is None:
            raise DecodeError("the context of these payloads is unknown")
        answered: Any = event
        kind = _ANSWERS.get(type(event))
        return book.own if kind is None else book.pending_contexts.pop((kind, answered.seq), book.own)

    def of_run(self, run_id: str) -> SerializationContext | None:
        """Return the context of a run's own values, such as its arguments and result; None for an unknown run."""
        book = self._runs.get(run_id)
        return None if book is None else book.own

    def of_command(self, run_id: str, command: c.Command) -> SerializationContext | None:
        """Return the context of a command's payloads, and store the context for the event that answers the command.
        Return None for an unknown run.
        """
        book = self._runs.get(run_id)
        if book is None:
            return None
        context: SerializationContext
        match command:
            case c.ScheduleActivity() | c.ScheduleLocalActivity():
                kind, context = (
                    ACTIVITY,
                    ActivitySerializationContext(
                        namespace=self._namespace,
                        activity_id=None if command.activity_id == str(command.seq) else command.activity_id,
                        activity_type=command.activity_type,
                        activity_task_queue=command.spec.task_queue or None,
                        workflow_id=book.own.workflow_id,
                        workflow_type=book.workflow_type,
                        is_local=isinstance(command, c.ScheduleLocalActivity),
                    ),
                )
            case c.StartChildWorkflow() | c.SignalExternalWorkflow():
                kind = CHILD if isinstance(command, c.StartChildWorkflow) else SIGNAL
                context = WorkflowSerializationContext(self._namespace, command.workflow_id)
            case c.ScheduleNexusOperation():
                kind = NEXUS
                context = NexusSerializationContext(command.endpoint, command.service, command.operation)
            case _:
                return book.own
        book.pending_contexts[kind, command.seq] = context
        return context

    def began(self, task: ActivityTask) -> SerializationContext:
        """Return the context of an attempt that starts, and store the context under the attempt's task token."""
        context = self._attempts[task.token] = context_of(task)
        return context

    def of_attempt(self, token: bytes) -> SerializationContext | None:
        """Return the context of an attempt's results and heartbeats; None for an unknown attempt."""
        return self._attempts.get(token)

    def ended(self, token: bytes) -> None:
        self._attempts.pop(token, None)


@dataclass
class _RunBook:
    own: WorkflowSerializationContext
    workflow_type: str
    pending_contexts: dict[Numbered, SerializationContext] = field(default_factory=dict)


_ANSWERS: dict[type[Any], str] = {
    e.ActivityCompleted: ACTIVITY,
    e.ActivityFailed: ACTIVITY,
    e.ActivityCancelled: ACTIVITY,
    e.ChildCompleted: CHILD,
    e.ChildFailed: CHILD,
    e.ChildCancelled: CHILD,
    e.ChildStartCancelled: CHILD,
    e.ExternalSignalResolved: SIGNAL,
    e.NexusStartFailed: NEXUS,
    e.NexusCompleted: NEXUS,
    e.NexusFailed: NEXUS,
}
"""The events that answer a command, each with the kind of the command."""


class _DecodingQueue(Generic[T]):
    """A queue of items of one kind. The items are decoded one after another and delivered in order. The end of the
    handle is reported after the last item.
    """

    def __init__(self, decode: Callable[[T], Coroutine[Any, Any, T | None]]) -> None:
        self._decode = decode
        self._items: deque[T] = deque()
        self._end: Callable[[], object] | None = None
        self._task: asyncio.Task[None] | None = None
        self.deliver: Callable[[Sequence[T]], object] | None = None

    def add(self, items: Sequence[T]) -> None:
        """Decode and deliver these items after all items that were added earlier."""
        self._items.extend(items)
        self._run_soon()

    def end(self, then: Callable[[], object]) -> None:
        """Call `then` once all items have been delivered."""
        self._end = then
        self._run_soon()

    def _run_soon(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        assert self.deliver is not None
        while self._items:
            decoded = await self._decode(self._items.popleft())
            if decoded is not None:
                self.deliver((decoded,))
        self._task = None
        if self._end is not None:
            end, self._end = self._end, None
            end()


class CodecHandle:
    """A `Handle` whose payloads pass through a codec."""

    def __init__(
        self, inner: Handle, codec: Codec, converter: Converter, book: ContextBook | None = None
    ) -> None:
        self._inner = inner
        self._codec = codec
        self._converter = converter
        self._book = book
        self._threads = DaemonExecutor("hourglass-codec", _THREADS)
        self._activations: _DecodingQueue[e.Activation] = _DecodingQueue(self._decode_activation)
        self._activities: _DecodingQueue[ActivityItem] = _DecodingQueue(self._decode_activity)
        self._is_freed = False
        self._calls: set[asyncio.Task[Any]] = set()
        self._beats: dict[bytes, Payloads | None] = {}
        self._beating: dict[bytes, asyncio.Task[None]] = {}

    def start(self, on_activations: OnActivations, on_activities: OnActivities, on_end: OnEnd) -> None:
        """Start the handle, and deliver its items after decoding."""
        self._activations.deliver, self._activities.deliver = on_activations, on_activities

        def ended(kind: WorkKind, why: Exception) -> None:
            queue = self._activations if kind is WorkKind.WORKFLOWS else self._activities
            queue.end(lambda: on_end(kind, why))

        self._inner.start(self._activations.add, self._activities.add, ended)

    def pause(self, kind: WorkKind) -> None:
        """Stop receiving work of this kind."""
        self._inner.pause(kind)

    def resume(self, kind: WorkKind) -> None:
        """Continue receiving work of this kind."""
        self._inner.resume(kind)

    async def _decode_activation(self, activation: e.Activation) -> e.Activation | None:
        """Decode an activation. If that fails, fail the workflow task and return None."""
        try:
            return await self._open_activation(activation)
        except Exception as problem:
            error = _as_payload_error(problem)
            logger.error("run %s: %s; its workflow task fails", activation.run_id, error)
            failed = c.TaskFailed(activation.run_id, _failure(error))
            self._call(self._complete_workflow_task(failed))
            return None

    async def _decode_activity(self, item: ActivityItem) -> ActivityItem | None:
        """Decode an activity task. If that fails, fail the attempt and return None."""
        if not isinstance(item, ActivityTask):
            return item
        try:
            context = None if self._book is None else self._book.began(item)
            return await self._open(item, context=context)
        except Exception as problem:
            error = _as_payload_error(problem)
            logger.error("%s: %s; the attempt fails", named(item), error, extra=facts_of(item))
            self._call(self._complete_activity(AttemptFailed(item.token, _failure(error))))
            return None

    def complete_workflow_task(self, completion: c.Completion) -> asyncio.Future[CompletionResult]:
        """Complete an activation. If the completion cannot be encoded, fail the task."""
        return self._call(self._encode_and_complete(completion))

    async def _encode_and_complete(self, completion: c.Completion) -> CompletionResult:
        try:
            sealed: c.Completion = await self._seal_completion(completion)
        except PayloadError as error:
            logger.error("run %s: %s; its workflow task fails", completion.run_id, error)
            sealed = c.TaskFailed(completion.run_id, _failure(error))
            await self._complete_workflow_task(sealed)
            return CompletionResult.REJECTED
        return await self._complete_workflow_task(sealed)

    async def _complete_workflow_task(self, completion: c.Completion) -> CompletionResult:
        confirmation = self._inner.complete_workflow_task(completion)
        return confirmation if isinstance(confirmation, CompletionResult) else await confirmation

    def complete_activity(self, result: ActivityResult) -> asyncio.Future[None]:
        """Report the result of an attempt. If the result cannot be encoded, report the attempt as failed."""
        return self._call(self._encode_and_report(result))

    async def _encode_and_report(self, result: ActivityResult) -> None:
        if (beating := self._beating.get(result.token)) is not None:
            # send the last heartbeat first: the next attempt receives its details
            await asyncio.wait({beating})
        book = self._book
        context = None if book is None else book.of_attempt(result.token)
        try:
            sealed: ActivityResult = await self._seal(result, context=context)
        except PayloadError as error:
            logger.error("an activity's result: %s; the attempt fails", error)
            sealed = AttemptFailed(result.token, _failure(error))
        await self._complete_activity(sealed)
        if book is not None:
            book.ended(result.token)

    async def _complete_activity(self, result: ActivityResult) -> None:
        confirmation = self._inner.complete_activity(result)
        if confirmation is not None:
            await confirmation

    def _call(self, call: Coroutine[Any, Any, A]) -> asyncio.Task[A]:
        task = asyncio.get_running_loop().create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._call_ended)
        return task

    def _call_ended(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and isinstance(task.exception(), HandleBroken):
            logger.debug("a completion was not accepted: the handle is broken")

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt is alive. If more heartbeats arrive while a heartbeat is being encoded, only the
        newest is kept.
        """
        if not details:
            self._inner.heartbeat(token, details)
        elif token in self._beats:
            self._beats[token] = details
        else:
            self._beats[token] = None
            self._beating[token] = asyncio.get_running_loop().create_task(self._beat(token, details))

    def request_eviction(self, run_id: str) -> None:
        """Request the eviction of a run."""
        self._inner.request_eviction(run_id)

    def initiate_shutdown(self) -> None:
        """Stop receiving new work."""
        self._inner.initiate_shutdown()

    async def finalize(self) -> None:
        """Finalize the handle, and free its threads once all calls have ended."""
        while self._beating or self._calls:
            await asyncio.wait({*self._beating.values(), *self._calls})
        self._is_freed = True
        self._threads.shutdown(wait=False)
        await self._inner.finalize()

    async def _beat(self, token: bytes, details: Payloads) -> None:
        following: Payloads | None = details
        try:
            while following is not None:
                context = None if self._book is None else self._book.of_attempt(token)
                own = without_carrier(following)  # the items of progress were encoded one by one
                sealed = await self._seal(own, context=context)
                self._inner.heartbeat(token, (*sealed, *following[len(own) :]))
                following, self._beats[token] = self._beats[token], None
        except Exception as error:
            logger.warning("a heartbeat could not be sent: %s", error)
        finally:
            self._beats.pop(token, None)
            self._beating.pop(token, None)

    async def _open(
        self, item: T, in_workflow: bool = False, context: SerializationContext | None = None
    ) -> T:
        codec = self._codec if context is None else in_context(self._codec, context)
        return await self._in_thread(lambda: unseal(item, codec, self._converter, in_workflow=in_workflow))

    async def _seal(
        self, item: T, in_workflow: bool = False, context: SerializationContext | None = None
    ) -> T:
        codec = self._codec if context is None else in_context(self._codec, context)
        return await self._in_thread(lambda: seal(item, codec, self._converter, in_workflow=in_workflow))

    async def _open_activation(self, activation: e.Activation) -> e.Activation:
        book = self._book
        if book is None:
            return await self._open(activation, in_workflow=True)
        events = [
            await self._open(event, True, book.of_event(activation.run_id, event))
            for event in activation.events
        ]
        return msgspec.structs.replace(activation, events=tuple(events))

    async def _seal_completion(self, completion: c.Completion) -> c.Completion:
        book = self._book
        if book is None:
            return await self._seal(completion, in_workflow=True)
        if isinstance(completion, c.TaskFailed):
            return await self._seal(completion, True, book.of_run(completion.run_id))
        commands = [
            await self._seal(command, True, book.of_command(completion.run_id, command))
            for command in completion.commands
        ]
        return msgspec.structs.replace(completion, commands=tuple(commands))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        if self._is_freed:
            raise HandleBroken("the handle has been freed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _as_payload_error(error: Exception) -> PayloadError:
    """Return an error whose message reveals nothing about the payloads."""
    if isinstance(error, PayloadError):
        return error
    return DecodeError(f"the codec failed with {type(error).__name__}")


def _failure(error: PayloadError) -> Failure:
    return Failure(message=str(error), info=ApplicationFailure(type=type(error).__name__))


class ConnectionWrapper:
    """A `Connection` that forwards all calls to the connection `inner`."""

    def __init__(self, inner: Connection) -> None:
        self.inner = inner

    @property
    def target(self) -> str:
        """The target of the connection."""
        return self.inner.target

    @property
    def namespace(self) -> str:
        """The namespace of all requests."""
        return self.inner.namespace

    @property
    def identity(self) -> str:
        """The client identity that is sent to the engine."""
        return self.inner.identity

    async def call(self, request: Request[A]) -> A:
        """Send a request and return its answer."""
        return await self.inner.call(request)

    async def open_handle(self, config: HandleConfig) -> Handle:
        """Open a handle for a task queue."""
        return await self.inner.open_handle(config)

    def status(self) -> EngineStatus:
        """Return the state of the engine, as far as this process knows it."""
        return self.inner.status()

    def metrics(self) -> list[Family]:
        """Return the metrics that the engine records itself."""
        return self.inner.metrics()

    async def close(self) -> None:
        """Close the connection."""
        await self.inner.close()


class CodecConnection(ConnectionWrapper):
    """A `Connection` whose handles and requests pass through a codec."""

    def __init__(self, inner: Connection, codec: Codec, converter: Converter) -> None:
        super().__init__(inner)
        self._codec = codec
        self._converter = converter
        self._book = ContextBook(inner.namespace) if wants_context(codec) else None

    async def call(self, request: Request[A]) -> A:
        """Send a request with encoded payloads, and return its decoded answer."""
        codec = self._codec
        if self._book is not None:
            token: bytes = getattr(request, "token", b"")
            context = self._book.of_attempt(token) or request_context(request, self.namespace)
            codec = codec if context is None else in_context(codec, context)
        sealed = await asyncio.to_thread(seal, request, codec, self._converter)
        answer: A = await self.inner.call(sealed)
        return await asyncio.to_thread(unseal, answer, codec, self._converter)

    async def open_handle(self, config: HandleConfig) -> Handle:
        """Open a handle whose payloads pass through the codec."""
        handle = await self.inner.open_handle(config)
        return CodecHandle(handle, self._codec, self._converter, self._book)
