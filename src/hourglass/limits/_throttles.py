"""`limits.throttle`, a limit on the number of calls per time span, and `hourglass.throttle`, the workflow that grants turns.

There is one keeper for each key in use. A turn is a time in the future. The keeper grants it immediately, and the run waits
with a timer of its own. A run requests turns for all its tasks together, and has one timer for all of them (`TurnPool`). So
the keeper needs only one timer: it ends the keeper when all turns are in the past and no run requests more.
"""

from __future__ import annotations

from hourglass import workflow
from hourglass._contract.limits import (
    MICROSECONDS,
    Answers,
    GrantedTurn,
    Loan,
    Rate,
    SlotClaim,
    Throttle,
    TurnBook,
    TurnRequest,
    Turns,
    Used,
    next_turn,
)
from hourglass._evaluator.options import Duration, seconds
from hourglass._evaluator.specs import VersioningBehavior
from hourglass.errors import UsageError
from hourglass.limits._keepers import (
    FIRST_REMINDER,
    KeeperLink,
    Replies,
    is_long,
    keeper_id,
    link_of_run,
    replies_of_run,
    serve_until_idle,
    unreachable,
)

_LINGER = 60.0


@workflow.defn(name="hourglass.throttle", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class TurnKeeper:
    """The workflow that grants the turns of one key."""

    @workflow.init
    def __init__(self, throttle: Throttle) -> None:
        self.book = TurnBook(throttle)
        self.messages = 0

    @workflow.signal
    def ask(self, ask: TurnRequest) -> None:
        """Receive a run's request for turns."""
        self.book.open.append(ask)
        self.messages += 1

    @workflow.signal
    def hand_in(self, used: Used) -> None:
        """Receive a returned loan."""
        self.book.hand_in(used)
        self.messages += 1

    @workflow.query
    def given(self) -> Turns:
        """Return the turns that still count."""
        return self.book.turns

    @workflow.run
    def run(self, throttle: Throttle) -> None:
        """Grant turns until no run requests any."""
        serve_until_idle("turns", self._serve)

    def _serve(self) -> bool:
        answers = self.book.serve(microseconds())
        if answers:
            self.book.drop(unreachable(answers), microseconds())
        if is_long(self.messages):
            workflow.continue_as_new(self.book.throttle)
        try:
            workflow.wait_condition(lambda: self.book.open, timeout=self._patience())
        except TimeoutError:
            if self.book.end_expired_loan(microseconds()):
                return True
            return not self.book.is_forgettable(microseconds())
        return True

    def _patience(self) -> float:
        loan = self.book.loan
        if loan is not None:
            return max(0.001, (loan.until - microseconds()) / MICROSECONDS)
        return max(_LINGER, self.book.period / MICROSECONDS)


def microseconds() -> int:
    """Return the run's time in microseconds, the unit of keepers."""
    return workflow.time_ns() // 1000


_MOST_AT_ONCE = 1000
_FIRST_LOAN, _LAST_LOAN = 10 * MICROSECONDS, 60 * MICROSECONDS
_OFTEN = 2
_ROUNDING = 1000


class TurnWaiter:
    """A task that waits for a turn. `at` is the turn's time, or None if the turn would be too late."""

    def __init__(self, rate: Rate, latest: int | None) -> None:
        self.terms = (rate, latest)
        self.at: int | None = None
        self.done = workflow.Event()


class TurnPool(KeeperLink):
    """The tasks of one run that wait for turns of one key. Tasks that arrive at the same moment are requested together, and
    one timer serves all of them.

    A run that requests turns often, while no other run does, is lent the key for a while. The run then grants turns to its
    own tasks by the keeper's rules, and reports them when the loan ends. When another run requests turns, the keeper recalls
    the loan.
    """

    def __init__(self, key: str, name: str, replies: Replies, task_queue: str) -> None:
        super().__init__(keeper_id("throttle", key), task_queue)
        self._key = key
        self._name = name
        self._loan: Loan | None = None
        self._turns = Turns()
        self._used: list[int] = []
        self._asks = self._numbers = 0
        self._lending = _FIRST_LOAN
        self._recalled = False
        self._replies = replies
        self._new: dict[TurnWaiter, None] = {}
        self._requested: dict[str, tuple[TurnRequest, list[TurnWaiter]]] = {}
        self._due: dict[TurnWaiter, None] = {}

    def enter(self, rate: Rate, timeout: int | None) -> bool:
        """Wait for a turn. Return False immediately if the turn would be too late. A task that is cancelled has used its
        turn."""
        waiter = TurnWaiter(rate, None if timeout is None else self._now() + timeout)
        if self._new or not self._has_lent(waiter):
            self._new[waiter] = None
        elif waiter.done.is_set():
            return waiter.at is not None
        self.wake()
        try:
            waiter.done.wait()
        finally:
            self._new.pop(waiter, None)
            if self._due.pop(waiter, self) is None:
                self.wake()
        return waiter.at is not None

    def _has_lent(self, waiter: TurnWaiter) -> bool:
        """Grant a turn to a task from the loan. Return False if the keeper must grant the turn instead."""
        loan, (rate, latest) = self._loan, waiter.terms
        if loan is None or loan.rate != rate or self._requested or self._recalled:
            return False
        self._numbers += 1
        turns, at = next_turn(self._turns, str(self._numbers), rate, self._now(), latest)
        if at is not None:
            if at >= loan.until:
                return False
            self._turns = turns
            self._used = [*self._used, at][-rate.kept :]
        self._give(waiter, at)
        return True

    def _give(self, waiter: TurnWaiter, at: int | None) -> None:
        waiter.at = at
        if at is None or at <= self._now():
            waiter.done.set()
        else:
            self._due[waiter] = None

    def receive(self, name: str, answers: Answers) -> None:
        """Receive granted turns, a loan, or the recall of the loan."""
        if name == self._name:
            self._recalled = self._loan is not None
            self.wake()
            return
        question, waiters = self._requested.pop(name, (None, []))
        self._replies.links.pop(name, None)
        if question is not None and answers.until:
            self._loan = Loan(question.place, question.rate, answers.until)
            self._turns = Turns(tuple(GrantedTurn("", at) for at in answers.given))
        lead = self._lead()
        for waiter, at in zip(waiters, answers.numbers, strict=False):
            self._give(waiter, None if at is None else at + lead)
        for waiter in list(self._new):
            if not self._has_lent(waiter):
                break
            del self._new[waiter]
        self.wake()

    def is_due(self) -> bool:
        """Whether turns must be requested, or the loan returned."""
        return self._may_ask() or self._recalled

    def _may_ask(self) -> bool:
        """Whether turns must be requested now. Not while a loan may be on its way, because a loan serves all waiting tasks.
        Otherwise, if answers take longer than the interval between tasks, each task would send a request and the loan would
        never be used.
        """
        return bool(self._new) and not any(question.loan for question, _ in self._requested.values())

    def act(self) -> None:
        """Request turns, or return the loan."""
        if self._may_ask():
            self._ask()
            return
        self.send_notice(TurnKeeper.hand_in, Used(self._name, self._end_loan()))

    def _end_loan(self) -> tuple[int, ...]:
        """End the loan. Return the turns that tasks received during the loan."""
        if self._loan is None:
            return ()
        lead = self._lead()
        used = tuple(turn - lead for turn in self._used)
        self._loan, self._used, self._recalled = None, [], False
        return used

    def finish(self) -> None:
        """Return the loan before the run closes."""
        if self._loan is not None or self._sending:
            self._recalled = self._loan is not None
            self.wake()
            workflow.wait_condition(lambda: self._loan is None and not self._sending)

    def next_moment(self) -> float | None:
        """Return the time of the next turn, or of the next reminder to the keeper."""
        turns = [waiter.at / MICROSECONDS for waiter in self._due if waiter.at is not None]
        return min([*turns, self._remind_at] if self._requested else turns, default=None)

    def wait_is_for(self) -> str:
        """Return the purpose of the timer."""
        return f"until the turn of {self._key!r}" if self._due else f"waits for a turn of {self._key!r}"

    def _now(self) -> int:
        """Return `time` in microseconds."""
        return microseconds() + self._lead()

    def _lead(self) -> int:
        """Return how far `time` is ahead of the run's own time, the time used in messages."""
        lead = round((self._reached - workflow.time()) * MICROSECONDS)
        return lead if lead > _ROUNDING else 0

    def _ask(self) -> None:
        terms = next(iter(self._new)).terms
        waiters = [waiter for waiter in self._new if waiter.terms == terms][:_MOST_AT_ONCE]
        for waiter in waiters:
            del self._new[waiter]
        info, ticket = workflow.info(), str(workflow.uuid4())
        place = SlotClaim(ticket, info.workflow_id, info.run_id, self._name)
        rate, latest = terms
        self._asks += 1
        lending = 0
        if self._asks > _OFTEN:
            lending, self._lending = self._lending, min(2 * self._lending, _LAST_LOAN)
        if latest is not None:
            latest -= self._lead()
        question = TurnRequest(place, rate, latest, len(waiters), self._end_loan(), lending)
        self._requested[ticket] = question, waiters
        self._replies.links[ticket] = self
        self._reminder = FIRST_REMINDER
        self._send(question)

    def _send(self, question: TurnRequest) -> None:
        first = Throttle(open=(question,), period=question.rate.period)
        self.send_request(TurnKeeper.run, TurnKeeper.ask, question, first)

    def on_time(self) -> None:
        """Release the tasks that have reached their turn, and send a reminder to a silent keeper."""
        now = self._now()
        # A timer may fire a fraction of a microsecond early.
        for waiter in [due for due in self._due if due.at is not None and due.at <= now + 1]:
            del self._due[waiter]
            waiter.done.set()
        if self._requested and self.is_reminder_due():
            for question, _ in list(self._requested.values()):
                self._send(question)


_MOST_IN_A_WINDOW = 1000


def throttle(
    key: str,
    limit: int,
    *,
    per: Duration,
    smooth: bool = False,
    timeout: Duration | None = None,
    task_queue: str = "",
) -> None:
    """Wait for a turn, then continue: `limits.throttle("mail-api", 10, per=timedelta(seconds=1))`. In workflows only.

    In any span of `per`, at most `limit` calls with the same key return, in all workflows of the target together, in the
    order of their requests. All calls of a span may return together, and then none until the span is over; `smooth` spreads
    them evenly. If the turn would come after `timeout`, raise `TimeoutError` immediately without using a turn. A call that
    is cancelled while it waits has used its turn.

    The embedded engine grants the turns itself. On a server, a small workflow grants them. It uses the task queue of the
    first run that uses the key, or `task_queue`, and any worker of that queue serves it.
    """
    keeper = keeper_id("throttle", key)
    rate = _checked(limit, per, smooth)
    replies = replies_of_run("limits.throttle")
    patience = None if timeout is None else _whole(timeout, "timeout")
    pool = link_of_run(lambda name: TurnPool(key, name, replies, task_queue), keeper, replies)
    if not pool.enter(rate, patience):
        raise _too_late(key, limit, per)


def _too_late(key: str, limit: int, per: Duration) -> TimeoutError:
    return TimeoutError(
        f"the next turn of {key!r} would come too late; {limit} in {seconds(per):g} s are allowed"
    )


def _checked(limit: int, per: Duration, smooth: bool) -> Rate:
    if not isinstance(limit, int) or limit < 1:
        raise UsageError(f"the limit of a throttle must be a number of at least 1, not {limit!r:.40}")
    if limit > _MOST_IN_A_WINDOW and not smooth:
        raise UsageError(
            f"the limit of a throttle must be at most {_MOST_IN_A_WINDOW} in a period, not {limit}: use a shorter period, or "
            "smooth=True"
        )
    period = _whole(per, "span")
    if period <= 0:
        raise UsageError("the period of a throttle must be more than 0")
    return Rate(limit, period, bool(smooth))


def _whole(duration: Duration, name: str) -> int:
    return round(seconds(duration, f"the {name} of a throttle") * MICROSECONDS)
