"""A worker handle over Core: `hourglass._contract.handle.Handle`, with Core's traps closed. Activity tasks as data,
and their results and heartbeats as bytes, are the pure first part.

Invariants:

- No raw poll and no raw completion is ever cancelled. Their futures belong to the handle; a caller that waits for
  one may be cancelled. A poll's result is then kept for the next caller; a completion is seen to its end.
- Each activation that Core gives out is completed: one that we cannot read, or whose completion we or Core
  cannot digest, is completed as failed, and Core starts that run afresh from its history.
- `Shutdown` comes only after `initiate_shutdown` or when Core itself gave up; a kind that is switched off
  waits till then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar, assert_never

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
    HandleBroken,
    HandleConfig,
    InProcess,
    Shutdown,
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
from hourglass._temporal.nexus import NexusServer
from hourglass._temporal.protos import (
    NANOS,
    NO_PAYLOADS,
    payload_map_from,
    payloads_from,
    put_failure,
    put_payload,
    put_payloads,
)
from hourglass._temporal.specs import spec_of_task
from hourglass.converter import ApplicationFailure, Failure

# --- activity tasks --------------------------------------------------------------------------------------------------


_REASONS: dict[int, str] = {number: name for name, number in ActivityCancelReason.items()}


def activity_item_from_proto(data: bytes, task_queue: str = "") -> ActivityItem | None:
    """Read what an activity poll gave; None for a kind that we do not know. Core does not name the queue."""
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
    """Write the end of an attempt."""
    message: Any = ActivityTaskCompletion(task_token=result.token)
    out = message.result
    match result:
        case ActivityOk():
            out.completed.SetInParent()
            if result.result is not None:
                put_payload(out.completed.result, result.result)
        case AttemptFailed():
            put_failure(out.failed.failure, result.failure)
        case AttemptCancelled():
            put_failure(out.cancelled.failure, result.failure)
        case ActivityDeferred():
            out.will_complete_async.SetInParent()
        case _:
            assert_never(result)
    data: bytes = message.SerializeToString()
    return data


def heartbeat_to_proto(token: bytes, details: Payloads) -> bytes:
    """Write a heartbeat."""
    message: Any = ActivityHeartbeat(task_token=token)
    put_payloads(message.details, details)
    data: bytes = message.SerializeToString()
    return data


# --- the handle ------------------------------------------------------------------------------------------------------


T = TypeVar("T")
F = TypeVar("F", bound="asyncio.Future[Any]")

_log = logging.getLogger("hourglass.temporal")


class Poll:
    """One kind of poll: at most one raw call at a time, whose result waits until a caller takes it.

    `give` is asked first while a caller waits: if it has taken a result, that caller waits for the next.
    """

    def __init__(
        self, start: Callable[[], asyncio.Future[bytes]], give: Callable[[bytes], bool] = lambda _: False
    ) -> None:
        self._start = start
        self._give = give
        self._call: asyncio.Future[bytes] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._end: type[Shutdown] | type[HandleBroken] | None = None
        self._reason = ""

    async def take(self) -> bytes:
        """The next item. May be cancelled at any time, and asked by several at once."""
        while True:
            if self._end is not None:
                raise self._end(self._reason)
            try:
                if self._call is None:
                    self._call = self._start()
                    self._call.add_done_callback(self._returned)
                call = self._call
                if not call.done():
                    # A future of the caller's own may be cancelled; `asyncio.shield` does the same for twice as much.
                    waiter = call.get_loop().create_future()
                    self._waiters = [*(each for each in self._waiters if not each.done()), waiter]
                    await waiter
                # Of several callers the first that wakes takes the result; the others go round and poll anew.
                if self._call is call:
                    self._call = None
                    return call.result()
            except core.PollShutdown:
                self._end, self._reason = Shutdown, "the worker is shut down"
            except BaseException as error:
                if not (isinstance(error, Exception) or core.is_panic(error)):
                    raise  # our own cancellation: the call lives on
                self._end, self._reason = HandleBroken, f"Core's poll failed: {_text(error)}"

    def _returned(self, call: asyncio.Future[bytes]) -> None:
        # The exception is read even if no caller takes it, or asyncio complains when the call is collected.
        has_item = not call.cancelled() and call.exception() is None
        if self._call is not call:
            return  # a caller has come by in the meantime and taken the result; who waits now waits for another call
        if has_item and self._waiters and not self._waiters[-1].done() and self._give(call.result()):
            self._call = None
            try:
                self._call = call = self._start()
                call.add_done_callback(self._returned)
                return
            except BaseException:
                pass  # the callers that wait begin it themselves, and say what that raises
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class CoreHandle:
    """A handle on one task queue. All methods but `heartbeat` belong to the loop that made it."""

    in_process: InProcess | None = None

    def __init__(self, worker: core.Ref, config: HandleConfig, namespace: str) -> None:
        self.config = config
        self.on_activations: Callable[[Sequence[Activation]], object] | None = None
        self.on_activities: Callable[[Sequence[ActivityItem]], object] | None = None
        self._worker = worker
        self._own = CommandDefaults(config.task_queue, namespace, config.version is not None)
        self._activations = Poll(partial(core.poll_activation, worker), self._give_activation)
        self._activities = Poll(partial(core.poll_activity, worker), self._give_activity)
        self._stopping = asyncio.Event()
        self._calls: set[asyncio.Future[Any]] = set()
        self._nexus: NexusServer | None = None

    def serve_nexus(self) -> None:
        """Answer calls of Nexus operations, if the worker has any; once the server has validated it."""
        if self.config.nexus is not None:
            self._nexus = NexusServer(
                self._worker, self.config.nexus, self._own.namespace, self._own.task_queue
            )

    async def poll_activation(self) -> Activation:
        """Wait for the next activation; raise `Shutdown` at the end."""
        if not self.config.workflows:
            await self._idle()
        while True:
            data = await self._activations.take()
            try:
                return activation_from_proto(data)
            except UnsupportedEvent as error:
                _log.error("%s; its task fails", error)
                refusing = self.complete_activation(_refusal(error.run_id, str(error)))
                self._keep(asyncio.get_running_loop().create_task(refusing))

    async def poll_activity(self) -> ActivityItem:
        """Wait for the next activity task or cancellation; raise `Shutdown` at the end."""
        if not (self.config.activities or self.config.workflows):
            await self._idle()
        while True:
            item = activity_item_from_proto(await self._activities.take(), self._own.task_queue)
            if item is not None:
                return item

    def _give_activation(self, data: bytes) -> bool:
        """Give the receiver an activation, if there is one who takes it; what cannot be read is the poll's to refuse."""
        receiver = self.on_activations
        if receiver is None:
            return False
        try:
            activation = activation_from_proto(data)
        except Exception:
            return False
        receiver((activation,))
        return True

    def _give_activity(self, data: bytes) -> bool:
        """The same of an activity task or a cancellation."""
        receiver = self.on_activities
        if receiver is None:
            return False
        try:
            item = activity_item_from_proto(data, self._own.task_queue)
        except Exception:
            return False
        if item is not None:
            receiver((item,))
        return True

    async def complete_activation(self, completion: Completion) -> None:
        """Answer an activation; one that cannot be sent is answered as a failed task."""
        await self._sent(
            lambda: self.send_activation(completion), lambda error: self.mend_activation(completion, error)
        )

    def send_activation(self, completion: Completion) -> asyncio.Future[None]:
        """Begin to answer an activation."""
        return core.complete_activation(self._worker, completion_to_proto(completion, self._own))

    async def mend_activation(self, completion: Completion, error: BaseException) -> None:
        """A completion was refused. Core keeps its activation open: the run would be stuck, and shutdown would hang."""
        reason = _reason(error)
        _log.error("the completion of run %s could not be sent; its task fails", completion.run_id)
        refusal = _refusal(completion.run_id, f"malformed completion: {reason}")
        await self._guard(lambda: self.send_activation(refusal))

    async def complete_activity(self, result: ActivityResult) -> None:
        """Report the end of an attempt; one that cannot be sent is reported as a failed attempt."""
        await self._sent(lambda: self.send_activity(result), lambda error: self.mend_activity(result, error))

    def send_activity(self, result: ActivityResult) -> asyncio.Future[None]:
        """Begin to report the end of an attempt."""
        return core.complete_activity(self._worker, activity_result_to_proto(result))

    async def mend_activity(self, result: ActivityResult, error: BaseException) -> None:
        """The end of an attempt was refused."""
        reason = _reason(error)
        _log.error("the end of an activity's attempt could not be sent; the attempt fails")
        failed = AttemptFailed(result.token, _failure(f"malformed result: {reason}"))
        await self._guard(lambda: self.send_activity(failed))

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt lives. From any thread."""
        self._tell(lambda: core.heartbeat(self._worker, heartbeat_to_proto(token, details)))

    def request_eviction(self, run_id: str) -> None:
        """Ask for a run to be evicted."""
        self._tell(lambda: core.request_eviction(self._worker, run_id))

    def initiate_shutdown(self) -> None:
        """Take no new work. Can be repeated, also on a handle that is gone."""
        self._stopping.set()
        if self._nexus is not None:
            self._nexus.stopping()
        if not self._worker.gone:
            self._tell(lambda: core.initiate_shutdown(self._worker))

    async def finalize_shutdown(self) -> None:
        """Free everything, once what is in flight has ended. The handle is gone afterwards."""
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

    async def _idle(self) -> NoReturn:
        await self._stopping.wait()
        raise Shutdown("the worker is shut down")

    async def _sent(
        self,
        send: Callable[[], asyncio.Future[None]],
        mend: Callable[[BaseException], Coroutine[Any, Any, None]],
    ) -> None:
        """Make a completion's call; where that is impossible, the one that says so in its place."""
        raw: asyncio.Future[None] | None = None
        try:
            raw = self._keep(send())
            await asyncio.shield(raw)
            return
        except asyncio.CancelledError:
            if raw is not None and not raw.done():  # the caller was cancelled, Core's call goes on
                self._keep(asyncio.get_running_loop().create_task(self._see_to(raw, mend)))
            raise
        except BaseException as error:
            refusal = error
        await mend(refusal)

    async def _see_to(
        self, raw: asyncio.Future[None], mend: Callable[[BaseException], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            await raw
        except BaseException as error:
            refusal = error
        else:
            return
        await mend(refusal)

    async def _guard(self, call: Callable[[], asyncio.Future[T]]) -> T:
        try:
            return await asyncio.shield(self._keep(call()))
        except BaseException as error:
            raise _broken(error) from None

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            raise _broken(error) from None

    def _keep(self, call: F) -> F:
        """Hold a call until it has ended: the worker is not freed before."""
        self._calls.add(call)
        call.add_done_callback(self._ended)
        return call

    def _ended(self, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # read, or asyncio complains where no caller is left to read it


def _reason(error: BaseException) -> str:
    """Why Core did not take something; raises what says that it takes nothing any more."""
    if isinstance(error, HandleBroken) or not isinstance(error, Exception):
        raise _broken(error) from None
    return _text(error)


def _broken(error: BaseException) -> BaseException:
    """What to raise for an error of Core's; cancellation and exits stay what they are."""
    if isinstance(error, HandleBroken) or not (isinstance(error, Exception) or core.is_panic(error)):
        return error
    return HandleBroken(f"Core refused: {_text(error)}")


def _refusal(run_id: str, reason: str) -> TaskFailed:
    return TaskFailed(run_id, _failure(reason))


def _failure(reason: str) -> Failure:
    return Failure(reason, ApplicationFailure("HandleError"), source="Hourglass")


def _text(error: BaseException) -> str:
    # Core quotes whole commands in some messages: the beginning says what is wrong.
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


# --- replay ----------------------------------------------------------------------------------------------------
#
# A handle that replays histories through Core, without a server.
#
# It is polled and completed like any other; Core's verdict on a run is the reason of its eviction (`NONDETERMINISM`,
# …). Core does not answer every malformed history, so that a caller that waits for a verdict sets a limit.


class ReplayHandle(CoreHandle):
    """A handle over Core's replay worker. Push the next history when the last run was evicted."""

    def __init__(self) -> None:
        worker, self._pusher = core.new_replay_worker(replay_settings())
        super().__init__(worker, HandleConfig(task_queue="replay", activities=False), "default")

    async def push(self, workflow_id: str, history: bytes) -> None:
        """Replay an encoded History message, which has been checked."""
        try:
            await asyncio.shield(core.push_history(self._pusher, workflow_id, history))
        except RuntimeError as error:
            raise HandleBroken(f"Core takes no more histories: {error}") from None

    # A session drives this handle alone, from one task that is cancelled only to be left behind. So Core's futures
    # are awaited as they are: the tasks and shields of `CoreHandle` would cost as much as Core itself.

    async def poll_activation(self) -> Activation:
        """Wait for the next activation; raise `Shutdown` at the end."""
        try:
            data = await core.poll_activation(self._worker)
        except core.PollShutdown:
            raise Shutdown("the replay worker is shut down") from None
        return activation_from_proto(data)

    async def complete_activation(self, completion: Completion) -> None:
        """Answer an activation. Core refuses nothing here that our own translation has made."""
        await core.complete_activation(self._worker, completion_to_proto(completion, self._own))

    def initiate_shutdown(self) -> None:
        """Take no more histories."""
        core.close_pusher(self._pusher)
        super().initiate_shutdown()

    async def finalize_shutdown(self) -> None:
        """Free everything. The handle is gone afterwards."""
        try:
            await super().finalize_shutdown()
        finally:
            self._pusher.drop()
