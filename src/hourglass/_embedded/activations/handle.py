"""A handle on the engine for one task queue: both of a worker's polls, and the ends of what it was given.

Must not know: how runs change (see `rules`), how history becomes activations (see `cursor`, `cache`).
What a poll takes is kept until the changes that it rests on are durable. While it waits for that it takes
more, so that what many runs do becomes durable together.

Invariants: an item is given out only by a poll that returns it, so that a poll that is cancelled loses
nothing, and only when it may leave the engine; each run has one activation out at most; a shutting-down handle
takes nothing new and raises `Shutdown` when all that is out has come back; when the engine's store has failed
every poll raises `HandleBroken`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from asyncio import sleep
from collections.abc import Callable, Sequence
from typing import NoReturn

from hourglass._contract.handle import (
    ActivityItem,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    HandleBroken,
    HandleConfig,
    InProcess,
    Shutdown,
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


# --- task slots -----------------------------------------------------------------------------------------------


class TaskSlots:
    """What a handle takes of workflow tasks and queries, for its cache to make activations of: as `ActivitySlots` of attempts.
    `polls` counts the polls that wait for an activation. `offered`, `asked` and `own` are what there is to take: the
    tasks of the queue, the runs that have queries, and the tasks of runs that the worker knows.
    """

    def __init__(self, engine: Engine, poller: QueuePoller, config: HandleConfig, cache: Cache) -> None:
        self.polls = 0
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
        return self.polls > 0 and self._poller.takes_workflows and self._cache.outstanding < self._most

    def next_activation(self) -> Activation | None:
        """What may be given out now, if anything may."""
        self.take()
        ready = self._cache.ready
        return ready.popleft()[0] if ready and self._engine.is_durable(ready[0][1]) else None

    def take(self) -> None:
        """Take what there is, until something may be given out at once."""
        if not self.offered and not self.asked and not self.own:
            return
        cache, poller, tasks = self._cache, self._poller, self._engine.tasks
        # Alone it leaves the rest where a more urgent one can overtake it; beside others it takes its share now.
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
        """Whether that task of a run is taken at once which the end of an attempt of the same worker leads to: if a poll
        waits for it, and no task waited before.
        """
        if not self.polls or self.offered or self.own or not self._poller.takes_workflows:
            return None
        if record.sticky is not self._poller or self._cache.outstanding >= self._most:
            return None
        run, task = record.run, record.run.task
        if not self._queues.is_free or run.started.spec.task_queue != self._poller.task_queue:
            return None
        if task is not None and task.started_event_id:
            return None
        return None if self._cache.is_busy(run.run_id) else self._eager


# --- the handle -----------------------------------------------------------------------------------------------


class EngineHandle:
    """Implements `hourglass._contract.handle.Handle`. `process_id` is that of its worker, where it is
    another's than ours, and `process_key` tells it from others: containers may have the same.
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
        self.in_process: InProcess = self
        self.on_activations: Callable[[Sequence[Activation]], object] | None = None
        self.on_activities: Callable[[Sequence[ActivityItem]], object] | None = None
        self._engine = engine
        self._config = config
        self._ended = ended
        self.process_id = process_id or os.getpid()
        self.pid_namespace = pid_namespace
        self.process_key = process_key
        self._is_remote = process_id != 0
        self._activity_slots = ActivitySlots(engine, self, config)
        self._cache = Cache(engine, self, config, self._activity_slots, self._ring)
        self._local = self._cache.local
        self.unconfirmed: list[ActivityResult] | None = None
        """A list that the results of attempts are added to, for the next engine if this one fails; None: they are not kept."""
        self._queues = engine.queues
        self._task_slots = TaskSlots(engine, self, config, self._cache)
        self.own_tasks = self._task_slots.own
        self._task_bell = Bell()
        self._activity_bell = Bell()
        self._is_attended = False
        self._will_give = False
        self._awaited = 0  # the change that `_stored` is to hear of
        self._closing = False
        self._grace: Cancel | None = None
        self._heartbeats = Heartbeats(engine.clock, config, engine.attempts.record_heartbeat)
        engine.queues.join(self)
        engine.deployments.joined(self)

    # --- what the engine asks (QueuePoller) -----------------------------------------------------------------------

    @property
    def load(self) -> float:
        """How much its worker has in hand, or will have in a moment; a worker in this process has the engine beside it. One
        that has nothing to do, or for which nothing weighs, comes before all others: to it nothing has to be sent.
        """
        load = self._cache.outstanding + len(self._activity_slots.out)
        return load if self._is_remote else (load * self._queues.handicap or -1.0)

    @property
    def slots_used(self) -> tuple[int, int]:
        """How many slots of its worker are used: by workflow tasks, and by attempts."""
        return self._cache.outstanding, len(self._activity_slots.out)

    @property
    def has_task_room(self) -> bool:
        """Whether it would take one more workflow task now."""
        return self._task_slots.has_room

    @property
    def has_attempt_room(self) -> bool:
        """Whether it would take one more attempt of an activity now."""
        return self._activity_slots.has_room

    @property
    def has_activation(self) -> bool:
        """Whether a poll would bring an activation without taking anything new from the engine."""
        return bool(self._cache.ready)

    @property
    def has_activity(self) -> bool:
        """The same for what concerns an attempt of an activity."""
        return bool(self._activity_slots.kept or self._local.has_items)

    def is_busy(self, run_id: str) -> bool:
        """Whether an activation of this run is out."""
        return self._cache.is_busy(run_id)

    def wake(self) -> None:
        """Something may be there to take: a poll that waits takes it now. Raises nothing: the caller is in the middle
        of another operation, which must not fail by this.
        """
        tasks, slots, is_over = self._task_slots, self._activity_slots, self._engine.is_over
        try:
            if tasks.polls and (tasks.offered or tasks.asked or tasks.own):
                tasks.take()
            if slots.polls and slots.offered:
                slots.take()
        except Exception:
            _log.exception("what waits for a worker of %s could not be taken", self.task_queue)
            self._ring()  # a poll that waits looks for itself, and says so if it cannot either
        if is_over:
            self._cache.refuse_questions(self._engine.failed or HandleBroken("the engine was closed"))
            self._ring()
        elif not self._will_give and (
            self._cache.ready
            or (self._local.in_use and self._local.has_items)
            or (slots.kept and not self._is_told_of(slots.kept[0][1]))
        ):
            if self._is_attended:
                self._task_bell.ring()
                return
            # Once for all that this turn of the loop brings: answers come in bursts.
            self._will_give = True
            asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        """Give the receivers what may leave now; a poll is woken for the rest, and waits until that is durable."""
        self._will_give = False
        on_activations, on_activities = self.on_activations, self.on_activities
        if self._cache.ready:
            if on_activations is not None and self._task_slots.polls:
                on_activations(self.take_activations())
            if self._cache.ready:
                self._task_bell.ring()
        slots, local = self._activity_slots, self._local
        if on_activities is not None and slots.polls and (slots.kept or (local.in_use and local.has_items)):
            on_activities(self.take_activities())
        if (slots.kept or (local.in_use and local.has_items)) and not self._is_told_of(
            slots.rests_on or local.rests_on
        ):
            self._activity_bell.ring()

    def _is_told_of(self, rests_on: int) -> bool:
        """Whether the store will say when this change is durable, which attempts rest on: if it is not, and there is a receiver
        for them.
        """
        if self.on_activities is None or self._engine.is_durable(rests_on):
            return False
        if rests_on != self._awaited:
            self._awaited = rests_on
            self._engine.when_durable(rests_on, self._stored)
        return True

    def _stored(self, error: StorageError | None) -> None:
        """What attempts rest on is durable, or never will be: then a poll finds out what that means."""
        self._awaited = 0
        if error is None:
            self._give()
        else:
            self._activity_bell.ring()

    def closed(self, run_id: str) -> None:
        """A run has closed: forget it once its activation, if one is out, is back."""
        self._cache.closed(run_id)
        if self._cache.ready:
            self._task_bell.ring()

    def parked(self, run_id: str) -> None:
        """What a run did last cannot be stored: forget all of it, and wait for nothing that it rests on."""
        self._activity_slots.stop_waiting(run_id)
        self._cache.parked(run_id)
        self._ring()

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
        self._activity_bell.ring()

    def _ring(self) -> None:
        self._task_bell.ring()
        self._activity_bell.ring()

    def attend(self, bell: Bell) -> None:
        """From now on its worker waits in no poll: it takes what there is whenever it likes, for which it is as if both polls
        waited, and the bell rings when there is something, or may be.
        """
        self._is_attended = True
        self._task_bell = self._activity_bell = bell
        self._task_slots.polls = self._activity_slots.polls = 1

    @property
    def may_have_items(self) -> bool:
        """Whether it is worth a look what there is to take."""
        tasks = self._task_slots
        return bool(
            self._cache.ready
            or self._activity_slots.kept
            or tasks.offered
            or self._activity_slots.offered
            or tasks.asked
            or tasks.own
            or self._local.has_items
        )

    # --- workflow tasks -------------------------------------------------------------------------------------

    async def poll_activation(self) -> Activation:
        """Wait for the next activation; raise `Shutdown` at the end."""
        self._task_slots.polls += 1
        try:
            while True:
                if self._engine.is_over:
                    self._say_it_is_over()
                activation = self._task_slots.next_activation()
                if activation is not None:
                    return activation
                if self._cache.ready:
                    await self._until_durable(self._cache.ready[0][1])
                elif self._closing and not self._cache.outstanding and not self._cache.any_rests:
                    raise Shutdown("the handle is shut down")
                else:
                    await self._task_bell.wait()
        finally:
            self._task_slots.polls -= 1

    def take_activations(self) -> list[Activation]:
        """Those that a poll would bring at once."""
        taken: list[Activation] = []
        ready, is_durable, tasks = self._cache.ready, self._engine.is_durable, self._task_slots
        while True:
            if tasks.offered or tasks.asked or tasks.own:
                tasks.take()
            if not ready or not is_durable(ready[0][1]):
                return taken
            taken.append(ready.popleft()[0])

    async def complete_activation(self, completion: Completion) -> None:
        """Answer an activation."""
        self.take_answer(completion)

    def take_answer(self, completion: Completion) -> None:
        """The same at once, of a worker that hears of the end of a run by its eviction."""
        self._take_completion(completion)
        self._took_answer()

    def answer_activation(self, completion: Completion) -> bool:
        """The same at once; whether the run is forgotten with it."""
        if self._engine.is_over or not self._cache.complete(completion):
            self._take_completion(completion)
        forgotten = bool(self._cache.ready) and self._cache.forget_closed(completion.run_id)
        self._took_answer()
        return forgotten

    def _take_completion(self, completion: Completion) -> None:
        if self._engine.is_over:
            self._say_it_is_over()
        if not self._cache.complete(completion):
            _log.warning("completion for run %s, which has no activation out", completion.run_id)

    def _took_answer(self) -> None:
        """There may be room to take more, or something more to give."""
        if self._queues.to_dispatch:
            self._queues.dispatch()
        tasks = self._task_slots
        if not self._will_give or tasks.offered or self._activity_slots.offered or tasks.asked or tasks.own:
            self.wake()
        if self._closing:
            self._ring()

    def request_eviction(self, run_id: str) -> None:
        """Ask that a run be evicted."""
        self._cache.request_eviction(run_id)
        self._ring()

    # --- activities -----------------------------------------------------------------------------------------

    async def poll_activity(self) -> ActivityItem:
        """Wait for the next activity task or cancellation; raise `Shutdown` at the end."""
        self._activity_slots.polls += 1
        try:
            while True:
                if self._engine.is_over:
                    self._say_it_is_over()
                item = self._local.next_item() or self._activity_slots.next_item()
                if item is not None:
                    if self.on_activities is None:
                        return item
                    # There is a receiver: this poll has only waited until they may leave, and goes on waiting.
                    self.on_activities([item, *self.take_activities()])
                    continue
                rests_on = self._activity_slots.rests_on or self._local.rests_on
                if rests_on:
                    await self._until_durable(rests_on)
                elif (
                    self._closing
                    and not self._activity_slots.out
                    and not self._local.has_out
                    and not self._may_ask
                ):
                    raise Shutdown("the handle is shut down")
                else:
                    await self._activity_bell.wait()
        finally:
            self._activity_slots.polls -= 1

    @property
    def _may_ask(self) -> bool:
        """Whether a run whose activation is out may still ask for a local activity that is made here."""
        return bool(self._cache.outstanding) and not self._local.is_stopped

    def take_activities(self) -> list[ActivityItem]:
        """Those that a poll would bring at once."""
        taken: list[ActivityItem] = []
        local = self._local
        while local.in_use and local.has_items and (item := local.next_item()) is not None:
            taken.append(item)
        while (item := self._activity_slots.next_item()) is not None:
            taken.append(item)
        return taken

    @property
    def attempts(self) -> set[bytes]:
        """The attempts that the worker has, but for local ones, by their tokens."""
        slots = self._activity_slots
        return slots.out.keys() - {item.token for item, _ in slots.kept if isinstance(item, ActivityTask)}

    async def complete_activity(self, result: ActivityResult) -> None:
        """Report the end of an attempt."""
        self.answer_activity(result)

    def answer_activity(self, result: ActivityResult) -> None:
        """The same at once."""
        if self._engine.is_over:
            self._say_it_is_over()
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
            # It may have been taken from us meanwhile.
            token = AttemptToken.decode(result.token) if taken is None else taken.token
            self._engine.attempts.end(token, result, self.identity)
        self._took_answer()

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt lives. A local one is known to live as long as this process does."""
        if self._engine.is_over:
            self._say_it_is_over()
        if self._local.is_local(token):
            return
        found = self._engine.attempts.find(AttemptToken.decode(token))
        if found is None:
            self._heartbeats.end(token, flush=False)
            self.cancel_attempt(token, "NOT_FOUND", self._engine.writes.newest)
        else:
            self._heartbeats.beat(token, details, found[1].spec.heartbeat_timeout)

    # --- the end --------------------------------------------------------------------------------------------

    def initiate_shutdown(self) -> None:
        """Take no new work; after the grace period ask the running activities to stop."""
        if self._closing:
            return
        self._closing = True
        self.takes_workflows = self.takes_activities = False
        self._engine.queues.leave(self)
        self._activity_slots.give_back()
        self._local.close()
        self._cache.let_go()
        self._engine.queues.wake(self.task_queue)
        self._grace = self._engine.clock.call_after(
            to_ns(self._config.graceful_shutdown), self._stop_activities
        )
        self._ring()

    def _stop_activities(self) -> None:
        self._activity_slots.stop()
        self._local.stop("WORKER_SHUTDOWN")
        self._cache.let_go()  # what waits for attempts that do not begin here any more is another worker's
        self._activity_bell.ring()

    async def finalize_shutdown(self) -> None:
        """Free everything. What is still out is given up: tasks fail and are offered again at once."""
        self.initiate_shutdown()
        if self._grace is not None:
            self._grace()
        self._activity_slots.give_up()
        self._heartbeats.close()
        self._cache.abandon()
        self._ring()
        self._ended(self)

    def lose(self) -> None:
        """The process of its worker has ended. What the worker had is given to others at once: tasks and queries are
        wanted again, attempts are tried again as their policies say. Nothing may be asked of the handle any more.
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
        self._ring()
        self._ended(self)

    # --- what is durable ------------------------------------------------------------------------------------

    async def _until_durable(self, number: int) -> None:
        try:
            await self._engine.durable(number)
        except Unwritable:
            await sleep(0)  # the engine hears of it, too, and tells us what to forget
        except StorageError as error:
            raise HandleBroken(f"the engine's store has failed: {error}") from error

    def _say_it_is_over(self) -> NoReturn:
        if self._engine.failed is not None:
            raise HandleBroken(f"the engine's store has failed: {self._engine.failed}")
        raise HandleBroken("the engine was closed")
