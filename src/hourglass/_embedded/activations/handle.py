"""A handle on the engine for one task queue: it takes work for one worker, delivers it, and accepts the completions.

Must not know: how runs change (see `transitions`), how history becomes activations (see `cursor`, `cache`).
Work that was taken is kept until the changes that it depends on are durable. Meanwhile the handle takes more, so that the
changes of many runs become durable together.

Invariants: an item is delivered once, and only when it may leave the engine; each run has one activation out at most; a
handle that shuts down takes nothing new, and ends with `Shutdown` when everything that was delivered is completed; when
the engine's store has failed it ends with `HandleBroken`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from hourglass._contract.handle import (
    ActivityItem,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    CompletionResult,
    HandleBroken,
    HandleConfig,
    OnActivations,
    OnActivities,
    OnEnd,
    Shutdown,
    WorkKind,
)
from hourglass._embedded.activations.activity_slots import ActivitySlots, Heartbeats
from hourglass._embedded.activations.cache import Cache
from hourglass._embedded.clock import Bell, Cancel, to_ns
from hourglass._embedded.engine import Engine
from hourglass._embedded.matching.priority_queue import PriorityQueue
from hourglass._embedded.matching.task_queues import QueuePoller
from hourglass._embedded.runs.run import AttemptToken, LoadedRun
from hourglass._embedded.store.store import Unwritable
from hourglass._embedded.transitions.task_starts import Eager
from hourglass._evaluator.commands import Completion
from hourglass._evaluator.events import Activation
from hourglass._evaluator.specs import Payloads
from hourglass.errors import StorageError

_log = logging.getLogger("hourglass.embedded")


class TaskSlots:
    """The slots of a handle for workflow tasks and queries, of which its cache makes activations.

    `is_open`: whether the worker takes new tasks now. The handle takes from `offered` (the tasks of the queue), `asked`
    (the runs with waiting queries) and `own` (the tasks of runs that the worker has cached).
    """

    def __init__(self, engine: Engine, poller: QueuePoller, config: HandleConfig, cache: Cache) -> None:
        self.is_open = False
        self.offered = engine.queues.all_tasks(config.task_queue)
        self.asked = engine.tasks.all_asked()
        self.own: PriorityQueue[str] = PriorityQueue()
        self.taken = engine.queues.taken(config.task_queue)
        self._engine = engine
        self._poller = poller
        self._cache = cache
        self._queues = engine.queues
        self._most = config.max_concurrent_workflow_tasks
        self._eager = Eager(config.identity, config.task_queue, engine.limits)

    @property
    def has_room(self) -> bool:
        """Whether one more would be taken now."""
        return self.is_open and self._poller.takes_workflows and self._cache.outstanding < self._most

    def next_activation(self) -> Activation | None:
        """Return an activation that may be delivered now, if there is one."""
        self.take()
        ready = self._cache.ready
        return ready.popleft()[0] if ready and self._engine.is_durable(ready[0][1]) else None

    def take(self) -> None:
        """Take waiting tasks and queries, until something may be delivered at once."""
        if not self.offered and not self.asked and not self.own:
            return
        cache, poller, tasks = self._cache, self._poller, self._engine.tasks
        # A single handle leaves the rest in the queue, where a more urgent task can overtake it; one of several takes its
        # share now.
        while poller.takes_workflows and not (
            cache.ready and not self._queues.shared and self._engine.is_durable(cache.ready[-1][1])
        ):
            if cache.outstanding >= self._most:
                return
            task = tasks.take(poller)
            asked = None if task else tasks.take_queries(poller)
            if task is not None:
                self.taken.tasks += 1
                cache.begin_task(task)
            elif asked is not None:
                cache.begin_queries(asked)
            else:
                return

    def wanted(self, record: LoadedRun) -> Eager | None:
        """Return a request to take a run's next task together with the end of one of its attempts, both of this worker; None if
        the worker has no slot for it, or other tasks have waited longer.
        """
        if not self.is_open or self.offered or self.own or not self._poller.takes_workflows:
            return None
        if record.sticky is not self._poller or self._cache.outstanding >= self._most:
            return None
        run, task = record.run, record.run.task
        if not self._queues.is_free or run.started.spec.task_queue != self._poller.task_queue:
            return None
        if task is not None and task.started_event_id:
            return None
        return None if self._cache.is_busy(run.run_id) else self._eager


class DurabilityWait:
    """A wait of a handle for one change at a time to become durable: then `proceed` is called in a turn of its own."""

    __slots__ = ("_engine", "_number", "_proceed")

    def __init__(self, engine: Engine, proceed: Callable[[], object]) -> None:
        self._engine = engine
        self._proceed = proceed
        self._number = 0

    def is_needed(self, number: int) -> bool:
        """Return whether this change is not durable yet; then the wait for it has begun."""
        if self._engine.is_durable(number):
            return False
        if number != self._number:
            self._number = number
            self._engine.when_durable(number, self._stored)
        return True

    def _stored(self, error: StorageError | None) -> None:
        self._number = 0
        if isinstance(error, Unwritable):
            # The engine hears of it, too, and tells the handle which run to forget.
            asyncio.get_running_loop().call_soon(self._proceed)
            return
        if error is not None:
            self._engine.die(error)
        self._proceed()


class EngineHandle:
    """Implements `hourglass._contract.handle.Handle`. `process_id` is the process of its worker if that is not this
    process, and `process_key` identifies it: processes in different containers may have the same id.
    """

    def __init__(
        self,
        engine: Engine,
        config: HandleConfig,
        ended: Callable[[EngineHandle], object] = lambda _: None,
        *,
        process_id: int = 0,
        pid_namespace: int = 0,
        process_key: int = 0,
    ) -> None:
        config.check()
        self.task_queue = config.task_queue
        self.identity = config.identity
        self.version = config.version
        self.takes_workflows = config.workflows
        self.takes_activities = config.activities and config.remote_activities
        self.workflow_types = config.workflow_types
        self.activity_types = config.activity_types
        self._engine = engine
        self._config = config
        self._ended = ended
        self.process_id = process_id or os.getpid()
        self.pid_namespace = pid_namespace
        self.process_key = process_key
        self._is_remote = process_id != 0
        self.forgets_at_once = not self._is_remote
        """Whether a closed run is forgotten with its last completion (`RUN_FORGOTTEN`); otherwise it is evicted."""
        self._activity_slots = ActivitySlots(engine, self, config)
        self._cache = Cache(engine, self, config, self._activity_slots, self._look)
        self._local = self._cache.local
        self.unconfirmed: list[ActivityResult] | None = None
        """The results of attempts, collected for the next engine in case that this one fails; None: they are not collected."""
        self._queues = engine.queues
        self._task_slots = TaskSlots(engine, self, config, self._cache)
        self.own_tasks = self._task_slots.own
        self._on_activations: OnActivations = _ignore
        self._on_activities: OnActivities = _ignore
        self._on_end: OnEnd = _ignore
        self._delivered: list[WorkKind] = []
        """The kinds of work that are delivered: those that have started and not ended."""
        self._bell: Bell | None = None
        self._will_deliver = False
        self._tasks_wait = DurabilityWait(engine, self._deliver)
        self._attempts_wait = DurabilityWait(engine, self._deliver)
        self._closing = False
        self._grace: Cancel | None = None
        self._heartbeats = Heartbeats(engine.clock, config, engine.attempts.record_heartbeat)
        engine.queues.join(self)
        engine.deployments.joined(self)

    @property
    def load(self) -> float:
        """The number of tasks and attempts that its worker has or is about to get, weighed by the handicap of the engine's own
        process. An idle worker in this process comes before all others: nothing has to be sent to it.
        """
        load = self._cache.outstanding + len(self._activity_slots.out)
        return load if self._is_remote else (load * self._queues.handicap or -1.0)

    @property
    def slots_used(self) -> tuple[int, int]:
        """The numbers of slots in use: by workflow tasks, and by attempts."""
        return self._cache.outstanding, len(self._activity_slots.out)

    @property
    def has_task_room(self) -> bool:
        """Whether it would take one more workflow task now."""
        return self._task_slots.has_room

    @property
    def has_attempt_room(self) -> bool:
        """Whether it would take one more attempt of an activity now."""
        return self._activity_slots.has_room

    def is_busy(self, run_id: str) -> bool:
        """Whether an activation of this run is out."""
        return self._cache.is_busy(run_id)

    def start(self, on_activations: OnActivations, on_activities: OnActivities, on_end: OnEnd) -> None:
        """Begin to take work and to deliver it."""
        self._on_activations, self._on_activities, self._on_end = on_activations, on_activities, on_end
        self._delivered = [WorkKind.WORKFLOWS, WorkKind.ACTIVITIES]
        self._task_slots.is_open = self._activity_slots.is_open = True
        self.wake()
        self._look()

    def pause(self, kind: WorkKind) -> None:
        """Take and deliver nothing of this kind until `resume`."""
        if not self._closing:
            self._slots_of(kind).is_open = False

    def resume(self, kind: WorkKind) -> None:
        """Take and deliver work of this kind again."""
        slots = self._slots_of(kind)
        if not slots.is_open:
            slots.is_open = True
            self.wake()
            self._look()

    def _slots_of(self, kind: WorkKind) -> TaskSlots | ActivitySlots:
        return self._task_slots if kind is WorkKind.WORKFLOWS else self._activity_slots

    def wake(self) -> None:
        """Take what waits, if there are slots for it, and deliver it in the next turn. Raises nothing: the caller is in the
        middle of another operation, which must not fail by this.
        """
        tasks, slots, is_over = self._task_slots, self._activity_slots, self._engine.is_over
        try:
            if tasks.is_open and (tasks.offered or tasks.asked or tasks.own):
                tasks.take()
            if slots.is_open and slots.offered:
                slots.take()
        except Exception:
            _log.exception("what waits for a worker of %s could not be taken", self.task_queue)
            asyncio.get_running_loop().call_soon(self._take_again)
        if is_over:
            self._cache.refuse_questions(self._engine.failed or HandleBroken("the engine was closed"))
            self._look()
        elif not self._will_deliver and (
            self._cache.ready
            or (self._local.in_use and self._local.has_items)
            or (slots.kept and not self._attempts_wait.is_needed(slots.kept[0][1]))
        ):
            self._look()

    def _take_again(self) -> None:
        """Taking has failed: if it does so again, nothing can be said of what this handle has."""
        try:
            self._task_slots.take()
            self._activity_slots.take()
        except Exception as error:
            self._end_all(HandleBroken(f"the engine cannot give out work: {type(error).__name__}"))
        else:
            self._look()

    def _look(self) -> None:
        """Deliver what may leave in the next turn of the loop: once for all completions of this turn, which come in bursts."""
        if self._bell is not None:
            self._bell.ring()
        elif not self._will_deliver:
            self._will_deliver = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        """Call the receivers with everything that may leave now, and wait for what must become durable first."""
        self._will_deliver = False
        if not self._delivered:
            if self._bell is not None:
                self._bell.ring()
            return
        if self._engine.is_over:
            self._end_all(self._over())
            return
        tasks, slots, local, ready = self._task_slots, self._activity_slots, self._local, self._cache.ready
        if ready and tasks.is_open:
            activations = self.take_activations()
            if activations:
                self._on_activations(activations)
            if ready and not self._tasks_wait.is_needed(ready[0][1]):
                self._look()  # there is more since
        if slots.is_open and (slots.kept or (local.in_use and local.has_items)):
            items = self.take_activities()
            if items:
                self._on_activities(items)
            depends_on = slots.rests_on or local.rests_on
            if depends_on and not self._attempts_wait.is_needed(depends_on):
                self._look()
        if self._closing:
            for kind in tuple(self._delivered):
                if self.is_finished(kind):
                    self._end(kind, Shutdown("the handle is shut down"))

    def is_finished(self, kind: WorkKind) -> bool:
        """Whether the handle shuts down and everything of this kind has come back."""
        if not self._closing:
            return False
        cache, local, slots = self._cache, self._local, self._activity_slots
        if kind is WorkKind.WORKFLOWS:
            return not cache.outstanding and not cache.any_rests
        # A run whose activation is out may still ask for a local activity, which is made here.
        may_ask = bool(cache.outstanding) and not local.is_stopped
        return not slots.out and not local.has_out and not may_ask

    def _end(self, kind: WorkKind, why: Shutdown | HandleBroken) -> None:
        if kind in self._delivered:
            self._delivered.remove(kind)
            self._on_end(kind, why)

    def _end_all(self, why: HandleBroken) -> None:
        for kind in tuple(self._delivered):
            self._end(kind, why)

    def closed(self, run_id: str) -> None:
        """A run has closed: forget it once its activation, if one is out, is back."""
        self._cache.closed(run_id)
        if self._cache.ready:
            self._look()

    def parked(self, run_id: str) -> None:
        """What a run did last cannot be stored: forget all of it, and wait for nothing that it rests on."""
        self._activity_slots.stop_waiting(run_id)
        self._cache.parked(run_id)
        self._look()

    def moved(self, run_id: str) -> None:
        """A run has gone to a worker of another version: forget it."""
        self.request_eviction(run_id)

    def realign(self) -> None:
        """Time has jumped."""
        self._cache.realign()

    def cancel_attempt(self, token: bytes, reason: str, rests_on: int) -> None:
        """Stop an attempt that this handle's worker holds, or forget it if the worker has not got it yet."""
        if token not in self._activity_slots.out:
            return
        self._activity_slots.cancel(token, reason, rests_on)
        self._look()

    def attend(self, bell: Bell) -> None:
        """Deliver nothing: the owner takes what there is (`take_activations`, `take_activities`), and `bell` rings when there
        may be something. Instead of `start`.
        """
        self._bell = bell
        self._task_slots.is_open = self._activity_slots.is_open = True

    def next_activation(self) -> Activation | None:
        """Take one activation that may leave now, if there is one. Raises `HandleBroken`."""
        if self._engine.is_over:
            raise self._over()
        activation = self._task_slots.next_activation()
        if activation is None and self._cache.ready:
            self._tasks_wait.is_needed(self._cache.ready[0][1])
        return activation

    def next_activity(self) -> ActivityItem | None:
        """Take one activity task or cancellation that may leave now, if there is one. Raises `HandleBroken`."""
        if self._engine.is_over:
            raise self._over()
        item = self._local.next_item() or self._activity_slots.next_item()
        depends_on = self._activity_slots.rests_on or self._local.rests_on
        if item is None and depends_on:
            self._attempts_wait.is_needed(depends_on)
        return item

    def take_activations(self) -> list[Activation]:
        """Take all activations that may leave now."""
        taken: list[Activation] = []
        ready, is_durable, tasks = self._cache.ready, self._engine.is_durable, self._task_slots
        while True:
            if tasks.offered or tasks.asked or tasks.own:
                tasks.take()
            if not ready or not is_durable(ready[0][1]):
                return taken
            taken.append(ready.popleft()[0])

    def complete_workflow_task(self, completion: Completion) -> CompletionResult:
        """Complete an activation. Raises `HandleBroken` if the engine is over."""
        if self._engine.is_over:
            raise self._over()
        cache = self._cache
        if not cache.complete(completion):
            _log.warning("completion for run %s, which has no activation out", completion.run_id)
        is_forgotten = self.forgets_at_once and bool(cache.ready) and cache.forget_closed(completion.run_id)
        self._took_answer()
        return CompletionResult.RUN_FORGOTTEN if is_forgotten else CompletionResult.TAKEN

    def _took_answer(self) -> None:
        """Take and deliver more, as far as the completion has made room or work for that."""
        if self._queues.to_dispatch:
            self._queues.dispatch()
        tasks = self._task_slots
        if (
            not self._will_deliver
            or tasks.offered
            or self._activity_slots.offered
            or tasks.asked
            or tasks.own
        ):
            self.wake()
        if self._closing:
            self._look()

    def request_eviction(self, run_id: str) -> None:
        """Ask that a run be evicted."""
        self._cache.request_eviction(run_id)
        self._look()

    def take_activities(self) -> list[ActivityItem]:
        """Take all activity tasks and cancellations that may leave now."""
        taken: list[ActivityItem] = []
        local = self._local
        while local.in_use and local.has_items and (item := local.next_item()) is not None:
            taken.append(item)
        while (item := self._activity_slots.next_item()) is not None:
            taken.append(item)
        return taken

    @property
    def attempts(self) -> set[bytes]:
        """The tokens of the attempts that the worker has, without local ones."""
        slots = self._activity_slots
        return slots.out.keys() - {item.token for item, _ in slots.kept if isinstance(item, ActivityTask)}

    def complete_activity(self, result: ActivityResult) -> None:
        """Report the end of an attempt. Raises `HandleBroken` if the engine is over."""
        if self._engine.is_over:
            raise self._over()
        taken = self._activity_slots.out.pop(result.token, None)
        if taken is not None and self.unconfirmed is not None:
            self.unconfirmed.append(result)
        if taken is not None and type(result) is ActivityOk:
            if self._heartbeats.pauses:
                self._heartbeats.end(result.token, flush=False)
            record, attempts = taken.record, self._engine.attempts
            if attempts.complete(taken, result, self.identity, self._task_slots.wanted(record)):
                self._task_slots.taken.tasks += 1
                self._cache.begin_task(record)
        elif taken is None and self._local.is_local(result.token):
            self._local.complete(result)
        else:
            self._heartbeats.end(result.token, flush=not isinstance(result, ActivityOk))
            # The attempt may have been given to another worker meanwhile.
            token = AttemptToken.decode(result.token) if taken is None else taken.token
            self._engine.attempts.end(token, result, self.identity)
        self._took_answer()

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt is alive. A local one is alive as long as its process."""
        if self._engine.is_over:
            raise self._over()
        if self._local.is_local(token):
            return
        found = self._engine.attempts.find(AttemptToken.decode(token))
        if found is None:
            self._heartbeats.end(token, flush=False)
            self.cancel_attempt(token, "NOT_FOUND", self._engine.writes.newest)
        else:
            self._heartbeats.beat(token, details, found[1].spec.heartbeat_timeout)

    def initiate_shutdown(self) -> None:
        """Take no new work; after the grace period ask the running activities to stop."""
        if self._closing:
            return
        self._closing = True
        self._task_slots.is_open = self._activity_slots.is_open = True  # what is left is delivered
        self.takes_workflows = self.takes_activities = False
        self._engine.queues.leave(self)
        self._activity_slots.give_back()
        self._local.close()
        self._cache.let_go()
        self._engine.queues.wake(self.task_queue)
        self._grace = self._engine.clock.call_after(
            to_ns(self._config.graceful_shutdown), self._stop_activities
        )
        self._look()

    def _stop_activities(self) -> None:
        self._activity_slots.stop()
        self._local.stop("WORKER_SHUTDOWN")
        self._cache.let_go()  # runs that wait for attempts which do not begin here any more go to another worker
        self._look()

    async def finalize(self) -> None:
        """Free everything. What is still out is given up: tasks fail and are offered again at once."""
        self.initiate_shutdown()
        if self._grace is not None:
            self._grace()
        self._activity_slots.give_up()
        self._heartbeats.close()
        self._cache.abandon()
        self._look()
        self._ended(self)

    def lose(self) -> None:
        """Give the worker's tasks, queries and attempts to others at once, because its process has ended: attempts are retried by
        their policies. The handle must not be used afterwards.
        """
        self._closing = True
        self.takes_workflows = self.takes_activities = False
        self._engine.queues.leave(self)
        if self._grace is not None:
            self._grace()
        self._heartbeats.close()
        if not self._engine.is_over:
            self._activity_slots.lose()
            self._cache.lose()
            self._engine.queues.wake(self.task_queue)
        self._look()
        self._ended(self)

    def _over(self) -> HandleBroken:
        if self._engine.failed is not None:
            return HandleBroken(f"the engine's store has failed: {self._engine.failed}")
        return HandleBroken("the engine was closed")


def _ignore(*_: object) -> None:
    """Receive nothing: the handle has not been started."""
