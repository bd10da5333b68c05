"""A codec around a handle: what arrives is opened before the worker sees it, what leaves is sealed before the engine does.

A codec is the user's code and may be slow, so it runs in threads of its own, never on the control loop. What
it cannot open or seal still gets its answer (I3): the task or the attempt fails, with a text that says
nothing of the contents.

A codec that wants to know whose payloads it has (`with_context`) is asked for each event, command and task by itself. What an
answer belongs to only the request says: `ContextBook` keeps that, for as long as a run is cached and an attempt runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from hourglass._contract.activities import StartActivity
from hourglass._contract.handle import (
    ActivityItem,
    ActivityResult,
    ActivityTask,
    AttemptFailed,
    Handle,
    HandleConfig,
    InProcess,
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

A = TypeVar("A")
T = TypeVar("T")

logger = logging.getLogger("hourglass.worker")

_THREADS = 4


def request_context(request: Request[Any], namespace: str) -> SerializationContext | None:
    """Whose payloads a request of a client has, and its answer; None: of no one workflow or activity."""
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
    """Whose payloads runs and attempts have; for one connection, from any thread."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._runs: dict[str, _RunBook] = {}
        self._attempts: dict[bytes, SerializationContext] = {}

    def of_event(self, run_id: str, event: e.AnyEvent) -> SerializationContext:
        """Of something that a run is told. Raises `DecodeError` for a run that is not known: the whole history comes then."""
        if isinstance(event, e.RunEvicted):
            book = self._runs.pop(run_id, None)
            return SerializationContext() if book is None else book.own
        if isinstance(event, e.RunStarted):
            own = WorkflowSerializationContext(self._namespace, event.workflow_id)
            self._runs[run_id] = _RunBook(own, event.workflow_type)
        book = self._runs.get(run_id)
        if book is None:
            raise DecodeError("the codec does not know whose payloads these are")
        answered: Any = event
        kind = _ANSWERS.get(type(event))
        return book.own if kind is None else book.asked.pop((kind, answered.seq), book.own)

    def of_run(self, run_id: str) -> SerializationContext | None:
        """Of what a run says of itself; None: it is not known."""
        book = self._runs.get(run_id)
        return None if book is None else book.own

    def of_command(self, run_id: str, command: c.Command) -> SerializationContext | None:
        """Of something that a run asks for; None: of a run that is not known."""
        book = self._runs.get(run_id)
        if book is None:
            return None
        match command:
            case c.ScheduleActivity() | c.ScheduleLocalActivity():
                context: SerializationContext = ActivitySerializationContext(
                    namespace=self._namespace,
                    activity_id=None if command.activity_id == str(command.seq) else command.activity_id,
                    activity_type=command.activity_type,
                    activity_task_queue=command.spec.task_queue or None,
                    workflow_id=book.own.workflow_id,
                    workflow_type=book.workflow_type,
                    is_local=isinstance(command, c.ScheduleLocalActivity),
                )
                book.asked[ACTIVITY, command.seq] = context
            case c.StartChildWorkflow():
                context = WorkflowSerializationContext(self._namespace, command.workflow_id)
                book.asked[CHILD, command.seq] = context
            case c.SignalExternalWorkflow():
                context = WorkflowSerializationContext(self._namespace, command.workflow_id)
                book.asked[SIGNAL, command.seq] = context
            case c.ScheduleNexusOperation():
                context = NexusSerializationContext(command.endpoint, command.service, command.operation)
                book.asked[NEXUS, command.seq] = context
            case _:
                context = book.own
        return context

    def began(self, task: ActivityTask) -> SerializationContext:
        """An attempt begins."""
        found = self._attempts[task.token] = context_of(task)
        return found

    def of_attempt(self, token: bytes) -> SerializationContext | None:
        """Of what an attempt tells."""
        return self._attempts.get(token)

    def ended(self, token: bytes) -> None:
        """An attempt has ended here."""
        self._attempts.pop(token, None)


@dataclass
class _RunBook:
    own: WorkflowSerializationContext
    workflow_type: str
    asked: dict[Numbered, SerializationContext] = field(default_factory=dict)


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
"""Events that answer what a run asked for, and the kind of that."""


class CodecHandle:
    """A `Handle` whose payloads pass a codec."""

    in_process: InProcess | None = None
    """None, whatever the engine offers: a codec is the user's code and runs in threads, so every call has to wait."""

    def __init__(
        self, inner: Handle, codec: Codec, converter: Converter, book: ContextBook | None = None
    ) -> None:
        self._inner = inner
        self._codec = codec
        self._converter = converter
        self._book = book
        self._threads = DaemonExecutor("hourglass-codec", _THREADS)
        self._beats: dict[bytes, Payloads | None] = {}
        self._beating: dict[bytes, asyncio.Task[None]] = {}

    async def poll_activation(self) -> e.Activation:
        """Wait for the next activation that the codec can open."""
        while True:
            activation = await self._inner.poll_activation()
            try:
                return await self._open_activation(activation)
            except PayloadError as error:
                logger.error("run %s: %s; its task fails", activation.run_id, error)
                await self._inner.complete_activation(c.TaskFailed(activation.run_id, _failure(error)))

    async def poll_activity(self) -> ActivityItem:
        """Wait for the next activity task that the codec can open, or a cancellation."""
        while True:
            item = await self._inner.poll_activity()
            if not isinstance(item, ActivityTask):
                return item
            try:
                context = None if self._book is None else self._book.began(item)
                return await self._open(item, context=context)
            except PayloadError as error:
                logger.error("%s: %s; the attempt fails", named(item), error, extra=facts_of(item))
                await self._inner.complete_activity(AttemptFailed(item.token, _failure(error)))

    async def complete_activation(self, completion: c.Completion) -> None:
        """Answer an activation; what cannot be sealed is a failed task."""
        try:
            sealed: c.Completion = await self._seal_completion(completion)
        except PayloadError as error:
            logger.error("run %s: %s; its task fails", completion.run_id, error)
            sealed = c.TaskFailed(completion.run_id, _failure(error))
        await self._inner.complete_activation(sealed)

    async def complete_activity(self, result: ActivityResult) -> None:
        """Report the end of an attempt; what cannot be sealed is a failed attempt."""
        if (beating := self._beating.get(result.token)) is not None:
            await asyncio.wait({beating})  # its last words may hold the cursor for the next attempt
        book = self._book
        context = None if book is None else book.of_attempt(result.token)
        try:
            sealed: ActivityResult = await self._seal(result, context=context)
        except PayloadError as error:
            logger.error("an activity's result: %s; the attempt fails", error)
            sealed = AttemptFailed(result.token, _failure(error))
        await self._inner.complete_activity(sealed)
        if book is not None:
            book.ended(result.token)

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt lives. While one report is being sealed only the newest waits."""
        if not details:
            self._inner.heartbeat(token, details)
        elif token in self._beats:
            self._beats[token] = details
        else:
            self._beats[token] = None
            self._beating[token] = asyncio.get_running_loop().create_task(self._beat(token, details))

    def request_eviction(self, run_id: str) -> None:
        """Ask for a run to be evicted."""
        self._inner.request_eviction(run_id)

    def initiate_shutdown(self) -> None:
        """Take no new work."""
        self._inner.initiate_shutdown()

    async def finalize_shutdown(self) -> None:
        """Free everything."""
        while self._beating:
            await asyncio.wait(self._beating.values())
        self._threads.shutdown(wait=False)
        await self._inner.finalize_shutdown()

    async def _beat(self, token: bytes, details: Payloads) -> None:
        following: Payloads | None = details
        try:
            while following is not None:
                context = None if self._book is None else self._book.of_attempt(token)
                own = without_carrier(following)  # the items of progress were sealed one by one
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
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _failure(error: PayloadError) -> Failure:
    return Failure(message=str(error), info=ApplicationFailure(type=type(error).__name__))


class CodecConnection:
    """A `Connection` whose handles and requests pass a codec."""

    def __init__(self, inner: Connection, codec: Codec, converter: Converter) -> None:
        self._inner = inner
        self._codec = codec
        self._converter = converter
        self._book = ContextBook(inner.namespace) if wants_context(codec) else None

    @property
    def target(self) -> str:
        """What it is connected to."""
        return self._inner.target

    @property
    def namespace(self) -> str:
        """The namespace it works in."""
        return self._inner.namespace

    @property
    def identity(self) -> str:
        """The identity that the engine is told."""
        return self._inner.identity

    async def call(self, request: Request[A]) -> A:
        """Ask, with sealed payloads; the answer is opened."""
        codec = self._codec
        if self._book is not None:
            token: bytes = getattr(request, "token", b"")
            context = self._book.of_attempt(token) or request_context(request, self.namespace)
            codec = codec if context is None else in_context(codec, context)
        sealed = await asyncio.to_thread(seal, request, codec, self._converter)
        answer: A = await self._inner.call(sealed)
        return await asyncio.to_thread(unseal, answer, codec, self._converter)

    async def open_handle(self, config: HandleConfig) -> Handle:
        """A handle whose payloads pass the codec."""
        handle = await self._inner.open_handle(config)
        return CodecHandle(handle, self._codec, self._converter, self._book)

    async def close(self) -> None:
        """Let go of everything."""
        await self._inner.close()
