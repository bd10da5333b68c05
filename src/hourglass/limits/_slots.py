"""`limits.slot`, a limit on the concurrent users of a key, and `hourglass.slots`, the workflow that keeps the slots.

There is one keeper for each key in use. It grants slots in the order of requests, by a signal. A run requests slots for all
its tasks together (`SlotPool`), and passes a slot from one task to the next: five hundred tasks of a run that enter in turn
cost a dozen events. A holder that ends normally returns its slot, but a terminated or timed-out run cannot. So while a run
waits for a slot, the keeper checks the holders, with increasing pauses. It sends each holder its grant a second time, and
this signal fails if the run is closed. The keeper ends when no run has used the key for a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hourglass import workflow
from hourglass._contract.limits import Answers, Lease, Return, SlotBook, SlotClaim, Slots, SlotTable
from hourglass._evaluator.fibers import require_fiber
from hourglass._evaluator.options import Duration, seconds
from hourglass._evaluator.specs import VersioningBehavior
from hourglass.errors import Cancelled, UsageError
from hourglass.limits._keepers import (
    FIRST_REMINDER,
    KeeperLink,
    is_long,
    keeper_id,
    link_of_run,
    replies_of_run,
    serve_until_idle,
    unreachable,
)

_LINGER = 60.0
_LONGEST_PAUSE = 120.0
_HOUSEKEEPING = 86_400.0


@workflow.defn(name="hourglass.slots", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class SlotKeeper:
    """The workflow that keeps the slots of one key."""

    @workflow.init
    def __init__(self, slots: Slots) -> None:
        self.book = SlotBook(slots)
        self.pause = slots.notice
        self.look_at = workflow.time() + slots.notice
        self.messages = 0
        self.changed = False

    @workflow.signal
    def lease(self, lease: Lease) -> None:
        """Receive a run's request for slots."""
        self.book.lease(lease)
        self._heard()

    @workflow.signal
    def take_back(self, back: Return) -> None:
        """Receive slots, or places in the queue, that a run gives back."""
        self.book.give_back(back.tickets)
        self._heard()

    @workflow.query
    def slots(self) -> SlotTable:
        """Return the runs that hold a slot, and the waiting runs."""
        return self.book.table

    @workflow.run
    def run(self, slots: Slots) -> None:
        """Keep the slots until no run uses them."""
        serve_until_idle("slots", self._serve)

    def _heard(self) -> None:
        self.messages += 1
        self.changed = True

    def _serve(self) -> bool:
        """Serve one round: grant free slots, then wait for messages. Return False if the key is idle."""
        self.changed = False
        granted = self.book.grant()
        if granted:
            self._look_within(self.book.notice)
        news = self.book.answers(granted)
        if news:
            self._drop(unreachable(news))
        if is_long(self.messages):
            workflow.continue_as_new(self.book.slots)
        if self.changed:
            return True
        try:
            workflow.wait_condition(lambda: self.changed, timeout=self._patience())
        except TimeoutError:
            if self.book.is_idle:
                return False
            self._look_after()
        return True

    def _patience(self) -> float:
        if self.book.waiting:
            return max(0.0, self.look_at - workflow.time())
        return _LINGER if self.book.is_idle else _HOUSEKEEPING

    def _look_within(self, pause: float) -> None:
        # Store a time instead of a pause, because later requests must not delay the check.
        self.pause = pause
        self.look_at = min(self.look_at, workflow.time() + pause)

    def _look_after(self) -> None:
        """Find holders with closed runs. Increase the pause until the next check."""
        self.pause = min(2 * self.pause, max(_LONGEST_PAUSE, self.book.notice))
        self.look_at = workflow.time() + self.pause
        self._drop(unreachable(self.book.reminders()))

    def _drop(self, gone: list[SlotClaim]) -> None:
        if gone:
            self.book.drop(gone)
            self.changed = True


_FIRST_LINGER, _LAST_LINGER = 5.0, 60.0


class SlotWaiter:
    """A task that waits for a slot. `number` is its slot, or None if the wait has timed out."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.number: int | None = None
        self.done = workflow.Event()


class SlotPool(KeeperLink):
    """The slots of one key that a run holds, and the run's tasks that wait for a slot.

    A slot that a task frees passes to the next task of the run without an event, until the keeper reports that another run
    waits. Then the tasks that are already waiting are served first, and every slot that becomes free after that is returned.
    `idle` contains slots that no task uses. They are returned immediately if the run has used the key only once, otherwise
    after a while without use, and before the run closes. `asked` contains places in the keeper's queue, at most as many as
    the limit.
    """

    def __init__(self, key: str, name: str, task_queue: str) -> None:
        super().__init__(keeper_id("slots", key), task_queue)
        self.key = key
        self.limit = 1
        self.notice = 10.0
        info = workflow.info()
        self._run = SlotClaim("", info.workflow_id, info.run_id, name)
        self._waiting: dict[SlotWaiter, None] = {}
        self._used: set[int] = set()
        self._idle: list[int] = []
        self._requested: list[int] = []
        self._stale: frozenset[int] = frozenset()
        self._ahead: int | None = None
        self._numbers = 0
        self._uses = 0
        self._told_limit = 0
        self._limited = False
        self._closing = False
        self._linger, self._linger_until, self._reused = _FIRST_LINGER, 0.0, False

    def enter(self, limit: int, notice: float, timeout: float | None) -> int:
        """Wait for a slot and return its number. Raise `TimeoutError` after the timeout."""
        self.limit, self.notice = limit, notice
        self._uses += 1
        if self._idle and not self._waiting and self._ahead is None and self._told_limit == limit:
            self._reused = True
            return self._use(self._idle.pop(0))
        waiter = SlotWaiter(None if timeout is None else self.time() + timeout)
        self._limited |= timeout is not None
        self._waiting[waiter] = None
        self.wake()
        try:
            waiter.done.wait()
        except Cancelled:
            self._drop(waiter)
            if waiter.number is not None:
                self.leave(waiter.number)
            self.wake()
            raise
        if waiter.number is None:
            raise TimeoutError(
                f"no slot of {self.key!r} became free in time; at most {limit} are held at a time"
            )
        return waiter.number

    def _drop(self, waiter: SlotWaiter) -> None:
        """Remove a task that no longer waits."""
        if waiter in self._waiting:
            del self._waiting[waiter]
            if self._ahead:
                self._ahead -= 1
            if not self._waiting:
                self._begin_to_linger()

    def leave(self, number: int) -> None:
        """Free the slot of a task that has left its block."""
        self._used.discard(number)
        if self._waiting and self._ahead != 0:
            if self._ahead is not None:
                self._ahead -= 1
            self._hand_over(number)
        else:
            self._keep(number)
        self.wake()

    def _keep(self, number: int) -> None:
        self._idle.append(number)
        self._begin_to_linger()

    def _begin_to_linger(self) -> None:
        """Begin to keep unused slots for a while, unless the period is already running."""
        now = self.time()
        if self._linger_until <= now:
            self._linger_until, self._reused = now + self._linger, False

    def _use(self, number: int) -> int:
        self._used.add(number)
        return number

    def _hand_over(self, number: int) -> None:
        waiter = next(iter(self._waiting))
        del self._waiting[waiter]
        waiter.number = self._use(number)
        waiter.done.set()
        if self._requested and not self._waiting:
            self._begin_to_linger()

    def receive(self, name: str, answers: Answers) -> None:
        """Receive granted slots, or the notification that another run waits."""
        for number in answers.numbers:
            if number is not None and number in self._requested:
                self._requested.remove(number)
                self._ahead = None
                if self._waiting:
                    self._hand_over(number)
                else:
                    self._keep(number)
        if answers.others and self._ahead is None:
            self._ahead, self._stale = len(self._waiting), frozenset(self._requested)
        self.wake()

    def finish(self) -> None:
        """Return unused slots before the run closes."""
        if self._idle or self._requested or self._sending:
            self._closing = True
            self.wake()
            workflow.wait_condition(lambda: not (self._idle or self._requested or self._sending))

    def is_due(self) -> bool:
        """Whether slots must be requested or returned."""
        return self._missing_slots() > 0 or self._limit_is_new or bool(self._surplus())

    def act(self) -> None:
        """Send the due requests for slots, and return surplus slots."""
        back = self._surplus()
        self._idle = [number for number in self._idle if number not in back]
        self._requested = [number for number in self._requested if number not in back]
        if back:
            self._linger_until = 0.0
        missing = self._missing_slots()
        if missing > 0 or self._limit_is_new:
            self._ask(missing, back)
        else:
            self.send_notice(SlotKeeper.take_back, Return(self._run.pool, back))

    def next_moment(self) -> float | None:
        """Return the time of the next deadline: a reminder to the keeper, the timeout of a wait, or the return of unused
        slots."""
        if self._waiting:
            deadlines = (waiter.deadline for waiter in self._waiting if waiter.deadline is not None)
            return min((self._remind_at, *deadlines) if self._limited else (self._remind_at,))
        return self._linger_until if self._idle or self._requested else None

    def wait_is_for(self) -> str:
        """Return the purpose of the timer."""
        what = "waits for a slot of" if self._waiting else "keeps, for a moment, slots of"
        return f"{what} {self.key!r}"

    def _missing_slots(self) -> int:
        return 0 if self._closing else max(0, min(len(self._waiting), self.limit) - len(self._requested))

    @property
    def _limit_is_new(self) -> bool:
        return bool(self._waiting) and not self._closing and self._told_limit != self.limit

    def _ask(self, count: int, back: tuple[int, ...]) -> None:
        want = tuple(range(self._numbers + 1, self._numbers + 1 + count))
        self._numbers += count
        self._requested += want
        self._reminder = FIRST_REMINDER
        self._send(want, back)

    def _send(self, want: tuple[int, ...], back: tuple[int, ...]) -> None:
        holds = tuple(sorted((*self._used, *self._idle)))
        lease = Lease(self._run, want, back, holds, self.limit, self.notice)
        self._told_limit = self.limit
        first = SlotBook(Slots(notice=self.notice))
        first.lease(lease)
        self._sending = True
        self.send_request(SlotKeeper.run, SlotKeeper.lease, lease, first.slots)
        self._sending = False

    def _surplus(self) -> tuple[int, ...]:
        """Return the unused slots, and the unneeded places in the queue, that must be given back now."""
        if self._closing:
            return (*self._idle, *self._requested)
        unneeded = () if self._waiting else tuple(self._requested)
        if self._ahead is None:
            is_kept = self._uses > 1 and not 0.0 < self._linger_until <= self.time()
            return () if is_kept or self._waiting else (*self._idle, *unneeded)
        if not self._ahead and self._waiting:
            unneeded = tuple(number for number in self._requested if number in self._stale)
        return (*self._idle, *unneeded)

    def on_time(self) -> None:
        """End expired waits, send a reminder to a silent keeper, and return unused slots."""
        now = self.time()
        for waiter in [
            expired for expired in self._waiting if expired.deadline is not None and expired.deadline <= now
        ]:
            self._drop(waiter)
            waiter.done.set()
        if self._waiting and self.is_reminder_due():
            self._send(tuple(self._requested), ())
        if self._linger_until <= now and self._reused:
            self._linger = min(2 * self._linger, _LAST_LINGER)
            self._linger_until, self._reused = now + self._linger, False


@contextmanager
def slot(
    key: str,
    limit: int = 1,
    *,
    timeout: Duration | None = None,
    notice: Duration = 10.0,
    task_queue: str = "",
) -> Iterator[None]:
    """Hold a slot of a key for a block: `with limits.slot("customer-42", limit=2): charge(…)`. In workflows only.

    At most `limit` blocks with the same key run at a time, in all workflows of the target together. Others wait in the order
    of their requests. A block that waits longer than `timeout` raises `TimeoutError`; a cancelled block leaves the queue. A
    run that is terminated or times out loses its slot. The embedded engine frees the slot immediately. A server frees it
    within `notice` after another run begins to wait, or later if the holders have already been checked for a while.

    On a server, a small workflow keeps the slots. It uses the task queue of the first run that uses the key, or
    `task_queue`, and any worker of that queue serves it.
    """
    keeper_id("slots", key)  # raises for an invalid key
    if not isinstance(limit, int) or limit < 1:
        raise UsageError(f"the limit of a slot must be a number of at least 1, not {limit!r:.40}")
    replies, fiber = replies_of_run("limits.slot"), require_fiber("limits.slot")
    holder = (fiber.path, key)
    if holder in replies.inside:
        raise UsageError(
            f"a slot of {key!r} is requested inside a block that already holds one: with limit={limit} it could wait for "
            "itself forever"
        )
    limited = None if timeout is None else _positive(timeout, "timeout")
    patience = _positive(notice, "notice")
    replies.inside.add(holder)
    keeper = keeper_id("slots", key)
    pool = link_of_run(lambda name: SlotPool(key, name, task_queue), keeper, replies)
    try:
        number = pool.enter(limit, patience, limited)
        try:
            yield
        finally:
            pool.leave(number)
    finally:
        replies.inside.discard(holder)


def _positive(duration: Duration, name: str) -> float:
    value = seconds(duration, f"the {name} of a slot")
    if value <= 0:
        raise UsageError(f"the {name} of a slot must be more than 0")
    return value
