"""The implementation of `hourglass._contract.handle.Handle` with Core, and the replay handle. The first part is
pure: it decodes activity tasks, and encodes their results and heartbeats.

Invariants:

- No raw poll and no raw completion is ever cancelled: their futures belong to the handle alone.
- At most one raw poll of each kind is out, and its result is delivered in the turn in which it arrives. A kind that is
  paused makes no new raw poll; after `initiate_shutdown` it polls until Core says that nothing is left.
- Each activation that Core hands out is completed: one that we cannot read, or whose completion Core rejects, is completed as
  failed, and Core starts that run again from its history.
- `Shutdown` comes only after `initiate_shutdown` or when Core itself gave up; a kind that is switched off ends with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, assert_never

import msgspec
from temporalio.bridge.proto import ActivityHeartbeat, ActivityTaskCompletion
from temporalio.bridge.proto.activity_task import ActivityCancelReason
from temporalio.bridge.proto.activity_task import ActivityTask as TaskMessage

from hourglass._contract.handle import (
    ActivityCancel,
    ActivityDeferred,
    ActivityItem,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
    CompletionResult,
    HandleBroken,
    HandleConfig,
    OnActivations,
    OnActivities,
    OnEnd,
    Shutdown,
    WorkKind,
)
from hourglass._contract.progress import without_carrier
from hourglass._evaluator.commands import Completion, TaskFailed
from hourglass._evaluator.events import Activation
from hourglass._evaluator.specs import Payloads
from hourglass._temporal import core
from hourglass._temporal.activations import (
    CommandDefaults,
    UnsupportedEvent,
    activation_from_proto,
    completion_to_proto,
)
from hourglass._temporal.configs import replay_settings
from hourglass._temporal.failures import put_failure
from hourglass._temporal.nexus import NexusServer
from hourglass._temporal.protos import (
    NANOS,
    NO_PAYLOADS,
    payload_map_from,
    payloads_from,
    put_payload,
    put_payloads,
)
from hourglass._temporal.specs import spec_of_task
from hourglass.converter import ApplicationFailure, Failure

_REASONS: dict[int, str] = {number: name for name, number in ActivityCancelReason.items()}


def activity_item_from_proto(data: bytes, task_queue: str = "") -> ActivityItem | None:
    """Decode the result of an activity poll. Return None for an unknown kind. `task_queue` is a parameter
    because Core's message does not contain it.
    """
    message: Any = TaskMessage.FromString(data)
    match message.WhichOneof("variant"):
        case "start":
            return _task(message.task_token, message.start, task_queue)
        case "cancel":
            number = message.cancel.reason
            return ActivityCancel(message.task_token, _REASONS.get(number, str(number)))
        case _:
            return None


def _task(token: bytes, start: Any, task_queue: str) -> ActivityTask:
    execution = start.workflow_execution
    scheduled, since, started = start.scheduled_time, start.current_attempt_scheduled_time, start.started_time
    return ActivityTask(
        token=token,
        activity_id=start.activity_id,
        activity_type=start.activity_type,
        spec=spec_of_task(start, task_queue),
        arguments=payloads_from(start.input),
        attempt=start.attempt,
        is_local=start.is_local,
        namespace=start.workflow_namespace,
        workflow_id=execution.workflow_id,
        run_id=execution.run_id,
        workflow_type=start.workflow_type,
        activity_run_id=start.run_id,
        headers=payload_map_from(start.header_fields) if start.header_fields else NO_PAYLOADS,
        heartbeat_details=without_carrier(payloads_from(start.heartbeat_details))
        if start.heartbeat_details
        else (),
        scheduled_time_ns=scheduled.seconds * NANOS + scheduled.nanos,
        current_attempt_scheduled_time_ns=since.seconds * NANOS + since.nanos,
        started_time_ns=started.seconds * NANOS + started.nanos,
    )


def activity_result_to_proto(result: ActivityResult) -> bytes:
    """Encode the result of an attempt."""
    message: Any = ActivityTaskCompletion(task_token=result.token)
    status = message.result
    match result:
        case ActivityOk():
            status.completed.SetInParent()
            if result.result is not None:
                put_payload(status.completed.result, result.result)
        case AttemptFailed():
            put_failure(
                status.failed.failure, _final(result.failure) if result.is_last_here else result.failure
            )
        case AttemptCancelled():
            put_failure(status.cancelled.failure, result.failure)
        case ActivityDeferred():
            status.will_complete_async.SetInParent()
        case _:
            assert_never(result)
    data: bytes = message.SerializeToString()
    return data


def _final(failure: Failure) -> Failure:
    """Mark a failure as non-retryable. Otherwise, Core would retry a local activity on the same handle forever."""
    if not isinstance(failure.info, ApplicationFailure):
        return failure
    info = msgspec.structs.replace(failure.info, non_retryable=True)
    return msgspec.structs.replace(failure, info=info)


def heartbeat_to_proto(token: bytes, details: Payloads) -> bytes:
    """Encode a heartbeat."""
    message: Any = ActivityHeartbeat(task_token=token)
    put_payloads(message.details, details)
    data: bytes = message.SerializeToString()
    return data


T = TypeVar("T")

_log = logging.getLogger("hourglass.temporal")


class RawPoll:
    """One kind of raw poll, repeated until the polls end. Each result is decoded, and passed to `deliver` in the loop
    iteration in which it arrives, unless it is decoded as None.
    """

    def __init__(
        self,
        start: Callable[[], asyncio.Future[bytes]],
        decode: Callable[[bytes], Any],
        deliver: Callable[[Any], object],
        ended: Callable[[Shutdown | HandleBroken], object],
    ) -> None:
        self._start = start
        self._decode = decode
        self._deliver = deliver
        self._ended = ended
        self._is_open = False
        self._has_ended = False
        self._call: asyncio.Future[bytes] | None = None

    def open(self) -> None:
        """Start to poll, and repeat the poll after each result."""
        self._is_open = True
        self._poll()

    def pause(self) -> None:
        """Stop starting new raw polls. The result of the current poll is still delivered."""
        self._is_open = False

    def _poll(self) -> None:
        if self._call is not None or self._has_ended:
            return
        try:
            self._call = self._start()
        except BaseException as error:
            if not (isinstance(error, Exception) or core.is_panic(error)):
                raise
            # Receivers must never be called within `start` or `resume`.
            asyncio.get_running_loop().call_soon(self._end, _end_of_polls(error))
            return
        self._call.add_done_callback(self._returned)

    def _returned(self, call: asyncio.Future[bytes]) -> None:
        self._call = None
        if call.cancelled():
            if self._is_open and not self._has_ended:
                self._poll()
            return
        error = call.exception()
        if error is not None:
            self._end(_end_of_polls(error))
            return
        try:
            item = self._decode(call.result())
        except Exception as broken:
            self._end(HandleBroken(f"a task from Core cannot be decoded: {_text(broken)}"))
            return
        if item is not None:
            self._deliver((item,))
        if self._is_open:
            self._poll()

    def _end(self, why: Shutdown | HandleBroken) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._ended(why)


class CoreHandle:
    """A handle for one task queue. All methods except `heartbeat` must be called on the event loop that created
    the handle.
    """

    def __init__(self, worker: core.Ref, config: HandleConfig, namespace: str) -> None:
        self.config = config
        self._worker = worker
        self._own = CommandDefaults(config.task_queue, namespace, config.version is not None)
        self._polls: dict[WorkKind, RawPoll] = {}
        self._unused_kinds: list[WorkKind] = []
        self._on_end: OnEnd | None = None
        self._is_closing = False
        self._calls: set[asyncio.Future[Any]] = set()
        self._nexus: NexusServer | None = None

    def serve_nexus(self) -> None:
        """Start to answer calls of Nexus operations, if the worker has any. Must be called after the server has
        validated the worker.
        """
        if self.config.nexus is not None:
            self._nexus = NexusServer(
                self._worker, self.config.nexus, self._own.namespace, self._own.task_queue
            )

    def start(self, on_activations: OnActivations, on_activities: OnActivities, on_end: OnEnd) -> None:
        """Set the receivers and start to poll."""
        config, self._on_end = self.config, on_end
        if config.workflows:
            self._polls[WorkKind.WORKFLOWS] = RawPoll(
                partial(core.poll_activation, self._worker),
                self._decode_activation,
                on_activations,
                partial(on_end, WorkKind.WORKFLOWS),
            )
        if config.activities or config.workflows:
            self._polls[WorkKind.ACTIVITIES] = RawPoll(
                partial(core.poll_activity, self._worker),
                partial(activity_item_from_proto, task_queue=config.task_queue),
                on_activities,
                partial(on_end, WorkKind.ACTIVITIES),
            )
        self._unused_kinds = [kind for kind in WorkKind if kind not in self._polls]
        for poll in self._polls.values():
            poll.open()
        if self._is_closing:
            self._end_unused_kinds(on_end)

    def pause(self, kind: WorkKind) -> None:
        """Stop polling for this kind of work."""
        if not self._is_closing and kind in self._polls:
            self._polls[kind].pause()

    def resume(self, kind: WorkKind) -> None:
        """Resume polling for this kind of work."""
        if kind in self._polls:
            self._polls[kind].open()

    def _decode_activation(self, data: bytes) -> Activation | None:
        try:
            return activation_from_proto(data)
        except UnsupportedEvent as error:
            _log.error("%s; the workflow task fails", error)
            self.complete_workflow_task(_task_failure(error.run_id, str(error))).add_done_callback(
                _read_error
            )
            return None

    def complete_workflow_task(self, completion: Completion) -> asyncio.Future[CompletionResult]:
        """Complete an activation. If Core rejects the completion, fail the workflow task instead."""
        completed: asyncio.Future[CompletionResult] = asyncio.get_running_loop().create_future()

        def send() -> asyncio.Future[None]:
            return core.complete_activation(self._worker, completion_to_proto(completion, self._own))

        def fail(error: BaseException) -> None:
            reason = _reason(error)
            _log.error(
                "the completion of run %s could not be sent; the workflow task fails", completion.run_id
            )
            # Core still waits for a completion. Without one, the run would be stuck, and the shutdown would
            # hang.
            failed = completion_to_proto(
                _task_failure(completion.run_id, f"malformed completion: {reason}"), self._own
            )
            self._send(
                lambda: core.complete_activation(self._worker, failed), completed, CompletionResult.REJECTED
            )

        self._send(send, completed, CompletionResult.RECEIVED, fail)
        return completed

    def complete_activity(self, result: ActivityResult) -> asyncio.Future[None]:
        """Report the result of an attempt. If Core rejects the result, report a failure of the attempt instead."""
        completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def send() -> asyncio.Future[None]:
            return core.complete_activity(self._worker, activity_result_to_proto(result))

        def fail(error: BaseException) -> None:
            reason = _reason(error)
            _log.error("the result of an activity attempt could not be sent; the attempt fails")
            failed = activity_result_to_proto(
                AttemptFailed(result.token, _failure(f"malformed result: {reason}"))
            )
            self._send(lambda: core.complete_activity(self._worker, failed), completed, None)

        self._send(send, completed, None, fail)
        return completed

    def _send(
        self,
        send: Callable[[], asyncio.Future[None]],
        completed: asyncio.Future[T],
        value: T,
        fail: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Make a completion's raw call. When the call has succeeded, set the result of `completed` to `value`. On
        an error, call `fail` to make another raw call. Without `fail`, or if that raises too, fail `completed` with
        `HandleBroken`.
        """

        def failed(error: BaseException) -> None:
            if fail is not None:
                try:
                    fail(error)
                    return
                except BaseException as broken:
                    error = broken
            if not completed.done():
                completed.set_exception(_broken(error))

        def ended(call: asyncio.Future[None]) -> None:
            self._calls.discard(call)
            if call.cancelled():
                failed(HandleBroken("Core's call was cancelled"))
            elif (error := call.exception()) is not None:
                failed(error)
            elif not completed.done():
                completed.set_result(value)

        try:
            call = send()
        except BaseException as error:
            if not (isinstance(error, Exception) or core.is_panic(error)):
                raise
            failed(error)
        else:
            self._calls.add(call)
            call.add_done_callback(ended)

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt is alive. May be called on any thread."""
        self._notify(lambda: core.heartbeat(self._worker, heartbeat_to_proto(token, details)))

    def request_eviction(self, run_id: str) -> None:
        """Request the eviction of a run."""
        self._notify(lambda: core.request_eviction(self._worker, run_id))

    def initiate_shutdown(self) -> None:
        """Stop accepting new work. May be called repeatedly, even after the handle is released."""
        self._is_closing = True
        if self._nexus is not None:
            self._nexus.stopping()
        try:
            if not self._worker.gone:
                self._notify(lambda: core.initiate_shutdown(self._worker))
        finally:
            if self._on_end is not None:
                for poll in self._polls.values():
                    poll.open()
                self._end_unused_kinds(self._on_end)

    def _end_unused_kinds(self, on_end: OnEnd) -> None:
        """Report the end of the kinds of work that are switched off, in the next iteration of the event loop."""
        while self._unused_kinds:
            asyncio.get_running_loop().call_soon(on_end, self._unused_kinds.pop(0), _shut_down())

    async def finalize(self) -> None:
        """Wait until the calls in progress have ended, and release all resources. The handle is unusable
        afterwards.
        """
        while self._calls:
            await asyncio.wait(self._calls)
        if self._nexus is not None:
            await self._nexus.ended()
        if self._worker.gone:
            return
        try:
            await asyncio.shield(core.finalize_shutdown(self._worker))
        except ValueError as error:
            raise HandleBroken(f"the worker was freed while it was in use: {_text(error)}") from None
        except BaseException as error:
            raise _broken(error) from None
        finally:
            self._worker.drop()

    def _notify(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            raise _broken(error) from None


def _read_error(call: asyncio.Future[Any]) -> None:
    """Retrieve an exception that no code waits for, so that asyncio does not log it."""
    if not call.cancelled():
        call.exception()


def _shut_down() -> Shutdown:
    return Shutdown("the worker is shut down")


def _end_of_polls(error: BaseException) -> Shutdown | HandleBroken:
    if isinstance(error, core.PollShutdown):
        return _shut_down()
    return HandleBroken(f"Core's poll failed: {_text(error)}")


def _reason(error: BaseException) -> str:
    """Return the error message of a rejected call. Raise `HandleBroken` if the Core worker is gone."""
    if isinstance(error, HandleBroken) or not isinstance(error, Exception):
        raise _broken(error) from None
    return _text(error)


def _broken(error: BaseException) -> BaseException:
    """Return the exception to raise for an error of Core. Cancellations and exits are returned unchanged."""
    if isinstance(error, HandleBroken) or not (isinstance(error, Exception) or core.is_panic(error)):
        return error
    return HandleBroken(f"Core failed: {_text(error)}")


def _task_failure(run_id: str, reason: str) -> TaskFailed:
    return TaskFailed(run_id, _failure(reason))


def _failure(reason: str) -> Failure:
    return Failure(reason, ApplicationFailure("HandleError"), source="Hourglass")


def _text(error: BaseException) -> str:
    # Some of Core's messages quote whole commands. The beginning names the problem.
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


class ReplayHandle:
    """A handle for Core's replay worker, which replays histories without a server. It does not implement
    `Handle`.

    One session drives it from one task, which is cancelled only to abandon the handle: so it awaits Core's
    futures directly, without shields. Core's verdict on a run is the reason of its eviction (`NONDETERMINISM`,
    …). Core does not answer every malformed history: a caller that waits for a verdict must set a limit.
    """

    def __init__(self) -> None:
        self._worker, self._pusher = core.new_replay_worker(replay_settings())
        self._own = CommandDefaults("replay", "default", False)

    async def push(self, workflow_id: str, history: bytes) -> None:
        """Replay an encoded History message that has been checked. Must only be called after the previous run
        was evicted.
        """
        try:
            await asyncio.shield(core.push_history(self._pusher, workflow_id, history))
        except RuntimeError as error:
            raise HandleBroken(f"Core does not accept further histories: {error}") from None

    async def next_activation(self) -> Activation:
        """Wait for the next activation. Raise `Shutdown` at the end."""
        try:
            data = await core.poll_activation(self._worker)
        except core.PollShutdown:
            raise Shutdown("the replay worker is shut down") from None
        return activation_from_proto(data)

    async def complete(self, completion: Completion) -> None:
        """Complete an activation. No error handling is needed, because Core rejects no completion that
        `completion_to_proto` creates.
        """
        await core.complete_activation(self._worker, completion_to_proto(completion, self._own))

    def initiate_shutdown(self) -> None:
        """Stop accepting histories."""
        core.close_pusher(self._pusher)
        if not self._worker.gone:
            core.initiate_shutdown(self._worker)

    async def finalize(self) -> None:
        """Release all resources. The handle is unusable afterwards."""
        try:
            if not self._worker.gone:
                await asyncio.shield(core.finalize_shutdown(self._worker))
        except BaseException as error:
            raise _broken(error) from None
        finally:
            self._worker.drop()
            self._pusher.drop()
