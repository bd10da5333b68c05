"""The attempts of activities that one handle has taken: kept until they may leave the engine, then its worker's
(`ActivitySlots`); and their heartbeats, thinned out (`Heartbeats`): what a loop reports a thousand times a second is
stored now and then.

Must not know: workflow tasks, polls, local activities, how attempts end. The rules for heartbeats are Core's.

Invariants: an attempt that was taken is out until it is over, given back or given up; what is kept leaves in the
order in which it was taken, and only when the change that it rests on is durable. The first heartbeat of an attempt
passes at once, and then one per interval, the newest; the interval is shorter than the attempt's heartbeat timeout;
what is kept back is not lost when the attempt fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hourglass._contract.handle import ActivityCancel, ActivityItem, ActivityTask, HandleConfig
from hourglass._embedded.clock import Cancel, Clock, to_ns
from hourglass._embedded.engine import Engine
from hourglass._embedded.matching.task_queues import QueuePoller
from hourglass._embedded.runs.run import AttemptToken, LoadedRun, TakenAttempt
from hourglass._embedded.transitions.task_starts import Eager
from hourglass._evaluator.specs import Payloads

# --- heartbeats -----------------------------------------------------------------------------------------------


_PART_OF_TIMEOUT = 0.8


@dataclass(slots=True)
class _Pause:
    end: Cancel
    newest: Payloads | None = None


class Heartbeats:
    """Lets heartbeats pass to `send`, at most one per attempt and interval."""

    def __init__(self, clock: Clock, config: HandleConfig, send: Callable[[bytes, Payloads], None]) -> None:
        self._clock = clock
        self._longest = config.heartbeat_throttle
        self._without_timeout = min(config.default_heartbeat_throttle, self._longest)
        self._send = send
        self.pauses: dict[bytes, _Pause] = {}
        """The attempts whose next heartbeat waits."""

    def beat(self, token: bytes, details: Payloads, timeout: float) -> None:
        """An attempt with this heartbeat timeout (0: none) lives."""
        pause = self.pauses.get(token)
        if pause is not None:
            pause.newest = details
            return
        interval = min(self._longest, timeout * _PART_OF_TIMEOUT) if timeout else self._without_timeout
        if interval > 0:
            end = self._clock.call_after(to_ns(interval), lambda: self._resume(token, timeout))
            self.pauses[token] = _Pause(end)
        self._send(token, details)

    def end(self, token: bytes, *, flush: bool) -> None:
        """An attempt is over; what was kept back is sent before, or dropped."""
        pause = self.pauses.pop(token, None)
        if pause is not None:
            pause.end()
            if flush and pause.newest is not None:
                self._send(token, pause.newest)

    def close(self) -> None:
        """No attempt is ours any more."""
        for token in tuple(self.pauses):
            self.end(token, flush=False)

    def _resume(self, token: bytes, timeout: float) -> None:
        pause = self.pauses.pop(token, None)
        if pause is not None and pause.newest is not None:
            self.beat(token, pause.newest, timeout)


# --- activity slots -------------------------------------------------------------------------------------------


class ActivitySlots:
    """The attempts of a handle: `out` has those that its worker has or will get, by token; `kept` the items that are not
    delivered yet, each with the change that it depends on; `offered` is the queue from which the handle takes. `is_open`:
    whether the worker takes new attempts now.
    """

    def __init__(self, engine: Engine, poller: QueuePoller, config: HandleConfig) -> None:
        self.is_open = False
        self.out: dict[bytes, TakenAttempt] = {}
        self.kept: deque[tuple[ActivityItem, int]] = deque()
        self.offered = engine.queues.all_attempts(config.task_queue)
        self._engine = engine
        self._is_durable = engine.is_durable
        self._poller = poller
        self._config = config
        self._queues = engine.queues
        self._taken = engine.queues.taken(config.task_queue)
        self._most = config.max_concurrent_activities

    @property
    def rests_on(self) -> int:
        """The change that the next item waits for; 0 if there is none."""
        return self.kept[0][1] if self.kept else 0

    def next_item(self) -> ActivityItem | None:
        """What may be given out now, if anything may."""
        if self.offered:
            self.take()
        while self.kept and self._is_durable(self.kept[0][1]):
            item, _ = self.kept.popleft()
            taken = self.out.get(item.token)
            if taken is None:
                continue
            return self._engine.attempts.hand_out(item, taken) if isinstance(item, ActivityTask) else item
        return None

    def take(self) -> None:
        """Take what there is, until something may be given out at once."""
        queues = self._engine.queues
        while self.offered and self._poller.takes_activities and len(self.out) < self._most:
            # Alone it leaves the rest where a more urgent one can overtake it; beside others it takes its share now.
            if self.kept and not queues.shared and self._is_durable(self.kept[-1][1]):
                return
            found = self._engine.attempts.take(self._poller)
            if found is None:
                return
            task, taken, rests_on = found
            self._taken.attempts += 1
            self.out[task.token] = taken
            self.kept.append((task, rests_on))

    def wanted(self) -> Eager | None:
        """Whether those attempts are taken at once that an answer of the same worker asks for, and how many: if a
        poll waits for one, and none waited before.
        """
        room, queues, types = self._most - len(self.out), self._queues, None
        if room <= 0 or not self.is_open or self.offered or not self._poller.takes_activities:
            return None
        if not queues.is_free:
            return None
        if queues.shared:
            room, types = queues.share(self._poller, room), self._config.activity_types
            if room <= 0:
                return None
        return Eager(self._config.identity, self._config.task_queue, self._engine.limits, room, types)

    def took(self, record: LoadedRun, since: int) -> None:
        """Some were taken at once; they were asked for in the run's history from this index on."""
        for task, taken in self._engine.attempts.begun(record, since, self._poller):
            self._taken.attempts += 1
            self.out[task.token] = taken
            self.kept.append((task, record.number))

    def cancel(self, token: bytes, reason: str, rests_on: int) -> None:
        """Have the worker stop an attempt that is out, or forget it if the worker has not got it yet."""
        is_kept = any(isinstance(item, ActivityTask) and item.token == token for item, _ in self.kept)
        if reason != "CANCELLED" and is_kept:
            self.kept = deque(each for each in self.kept if each[0].token != token)
            del self.out[token]
        else:
            self.kept.append((ActivityCancel(token, reason), rests_on))

    def stop_waiting(self, run_id: str) -> None:
        """What this run's attempts rest on will never be durable; what the worker is to hear of them need not wait."""
        self.kept = deque(
            (item, 0 if AttemptToken.decode(item.token).run_id == run_id else rests_on)
            for item, rests_on in self.kept
        )

    def give_back(self) -> None:
        """Attempts that no poll has given out yet are for others."""
        kept, self.kept = self.kept, deque()
        for item, rests_on in kept:
            if isinstance(item, ActivityTask):
                taken = self.out.pop(item.token, None)
                if taken is not None:
                    self._engine.attempts.give_back(taken.token)
            else:
                self.kept.append((item, rests_on))

    def stop(self) -> None:
        """Ask the worker to stop all attempts."""
        self.kept.extend((ActivityCancel(token, "WORKER_SHUTDOWN"), 0) for token in self.out)

    @property
    def has_room(self) -> bool:
        """Whether one more would be taken now."""
        return self.is_open and self._poller.takes_activities and len(self.out) < self._most

    def lose(self) -> None:
        """The worker's process has ended: what it had is lost, what it had not got yet is for others."""
        self.give_back()
        out, self.out = self.out, {}
        self.kept.clear()
        for taken in out.values():
            self._engine.attempts.lose(taken.token)

    def give_up(self) -> None:
        """Let go of all attempts, those that the worker has included."""
        for taken in self.out.values():
            self._engine.attempts.release(taken.token)
        self.out.clear()
        self.kept.clear()
