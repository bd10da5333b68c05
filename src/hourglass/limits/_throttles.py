"""`limits.throttle`, at most so many in a span of time, and `hourglass.throttle`, the workflow that gives out turns.

There is one keeper for each key in use. A turn is a moment in the future, given out at once: the run that gets one
waits for it with a timer of its own. A run asks for all its tasks together, and has one timer for all (`TurnPool`). So the
keeper has no timers but the one that ends it when its turns are all in the past and no run asks.

`Turns` and `next_turn`, how the next turn is found, are pure and must not know workflows, signals, clocks. Times are
whole microseconds since the epoch. Invariants: turns are given in the order of asking and never go back; no span of
the period holds more turns than the limit; a ticket that asks again gets the turn that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hourglass import workflow
from hourglass._engine.options import Duration, seconds
from hourglass._engine.versions import VersioningBehavior
from hourglass.errors import Cancelled, UsageError
from hourglass.limits._keepers import (
    ANSWERS,
    FIRST_REMINDER,
    LAST_REMINDER,
    Answer,
    Answers,
    Hand,
    Replies,
    SlotClaim,
    answer,
    ask,
    hand_of_run,
    in_one_hand,
    is_long,
    keeper_id,
    replies_of_run,
    tell,
    unreachable,
    wait_for_answer,
)

# --- turns, as data -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rate:
    """At most `limit` in any span of `period` microseconds; `smooth` spreads them evenly."""

    limit: int
    period: int
    smooth: bool = False

    @property
    def kept(self) -> int:
        """How many of the last turns have a bearing on the next."""
        return 1 if self.smooth else self.limit

    def all_at(self, moment: int) -> tuple[int, ...]:
        """The most that can have been used up to a moment."""
        return (moment,) * self.kept


@dataclass(frozen=True)
class GivenTurn:
    """A moment, and the ticket that has it."""

    ticket: str
    at: int


@dataclass(frozen=True)
class Turns:
    """The turns that still matter, in order."""

    given: tuple[GivenTurn, ...] = ()


def next_turn(
    turns: Turns, ticket: str, rate: Rate, now: int, latest: int | None
) -> tuple[Turns, int | None]:
    """The moment of the next turn; None, and nothing is given out, where it would be after `latest`."""
    for turn in turns.given:
        if turn.ticket == ticket:
            return turns, turn.at
    at = max(now, _earliest(turns.given, rate))
    if latest is not None and at > latest:
        return turns, None
    return replace(turns, given=(*turns.given, GivenTurn(ticket, at))[-rate.kept :]), at


def _earliest(given: tuple[GivenTurn, ...], rate: Rate) -> int:
    if not given:
        return 0
    if rate.smooth:
        return given[-1].at - (-rate.period // rate.limit)  # rounded up: never too soon
    in_order = given[-1].at
    return max(in_order, given[-rate.limit].at + rate.period) if len(given) >= rate.limit else in_order


def is_forgettable(turns: Turns, period: int, now: int) -> bool:
    """Whether no turn that was given has a bearing on the next one."""
    return not turns.given or turns.given[-1].at + period <= now


# --- the keeper -----------------------------------------------------------------------------------


_LINGER = 60.0
MICROSECONDS = 1_000_000
_LATELY = 2 * MICROSECONDS


@dataclass(frozen=True)
class TurnAsk:
    """A run wants turns for so many of its tasks, none after `latest` (in microseconds); 0 is a task that asks for itself."""

    place: SlotClaim
    rate: Rate
    latest: int | None
    count: int = 0
    used: tuple[int, ...] = ()
    """The turns that the run has given its tasks while it had the key on loan, as far as they still count."""
    loan: int = 0
    """For how long the run would have the key on loan, in microseconds."""


@dataclass(frozen=True)
class Loan:
    """A run that has the key to itself until a moment: it gives its tasks turns without asking, within the rate."""

    place: SlotClaim
    rate: Rate
    until: int


@dataclass(frozen=True)
class Used:
    """A run gives the key back: the turns that it has given its tasks."""

    pool: str
    moments: tuple[int, ...]


@dataclass(frozen=True)
class Throttle:
    """What a run of the keeper begins with: the turns given, the questions that are open, the loan."""

    turns: Turns = field(default_factory=Turns)
    open: tuple[TurnAsk, ...] = ()
    period: int = 0
    loan: Loan | None = None


def taken_into_account(turns: Turns, moments: Sequence[int], rate: Rate) -> Turns:
    """The turns that matter, with these."""
    given = sorted((*turns.given, *(GivenTurn("", at) for at in moments)), key=lambda each: each.at)
    return Turns(tuple(given[-max(rate.kept, len(turns.given)) :]))


@workflow.defn(name="hourglass.throttle", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class TurnKeeper:
    """Gives out the turns of one key."""

    @workflow.init
    def __init__(self, throttle: Throttle) -> None:
        self.turns = throttle.turns
        self.open = list(throttle.open)
        self.period = throttle.period
        self.loan = throttle.loan
        self.held: list[TurnAsk] = []
        self.recalled = False
        self.users: dict[str, int] = {}
        self.messages = 0

    @workflow.signal
    def ask(self, ask: TurnAsk) -> None:
        """A run wants a turn."""
        self.open.append(ask)
        self.messages += 1

    @workflow.signal
    def hand_in(self, used: Used) -> None:
        """A run gives the key back that it had on loan."""
        if self.loan is not None and self.loan.place.pool == used.pool:
            self._end_loan(used.moments)
        self.messages += 1

    @workflow.query
    def given(self) -> Turns:
        """The turns that still matter."""
        return self.turns

    @workflow.run
    def run(self, throttle: Throttle) -> None:
        """Give out turns until no run wants one."""
        while True:
            try:
                if not self._serve():
                    return
            except Cancelled:
                # The runs that ask would never hear of it. To be rid of a keeper, terminate it.
                workflow.logger.warning("a keeper of turns does not cancel: others wait for it")

    def _serve(self) -> bool:
        questions, self.open = self.open, []
        answers = [self._answer(each) for each in questions if self._may_have(each)]
        if self.held and self.loan is not None and not self.recalled:
            self.recalled = True
            answers.append(Answer(self.loan.place, ANSWERS, (self.loan.place.pool, Answers(others=True))))
        if answers:
            gone = unreachable(answers)
            if self.recalled and self.loan is not None and self.loan.place in gone:
                # It has closed. How many turns it has used is not known, but none is after now.
                self._end_loan(self.loan.rate.all_at(microseconds()))
        if is_long(self.messages):
            workflow.continue_as_new(Throttle(self.turns, (*self.held, *self.open), self.period, self.loan))
        try:
            workflow.wait_condition(lambda: self.open, timeout=self._patience())
        except TimeoutError:
            if self.loan is not None and self.loan.until <= microseconds():
                self._end_loan(self.loan.rate.all_at(self.loan.until))
                return True
            return not is_forgettable(self.turns, self.period, microseconds())
        return True

    def _patience(self) -> float:
        if self.loan is not None:
            return max(0.001, (self.loan.until - microseconds()) / MICROSECONDS)
        return max(_LINGER, self.period / MICROSECONDS)

    def _may_have(self, ask: TurnAsk) -> bool:
        """Whether the run can be answered now; False while another has the key on loan: it is held until that has given
        it back, or its time is over.
        """
        now = microseconds()
        self.users[ask.place.run_id] = now
        loan = self.loan
        if loan is None:
            return True
        if ask.place.pool == loan.place.pool:
            self._end_loan(ask.used)
            return True
        if loan.until <= now:
            self._end_loan(loan.rate.all_at(loan.until))
            return True
        self.held.append(ask)
        return False

    def _end_loan(self, used: tuple[int, ...]) -> None:
        assert self.loan is not None
        self.turns = taken_into_account(self.turns, used, self.loan.rate)
        self.loan, self.recalled = None, False
        self.open, self.held = [*self.held, *self.open], []

    def _lend(self, ask: TurnAsk) -> int:
        """Until when the run may have the key to itself; 0 if another has wanted it lately."""
        now = microseconds()
        self.users = {run: at for run, at in self.users.items() if at > now - _LATELY}
        if not ask.loan or self.loan is not None or self.held or self.users.keys() != {ask.place.run_id}:
            return 0
        self.loan = Loan(ask.place, ask.rate, now + ask.loan)
        return self.loan.until

    def _answer(self, ask: TurnAsk) -> Answer:
        ticket = ask.place.ticket
        if not ask.count:
            return answer(ask.place, self._turn_for(ask, ticket))
        moments = [self._turn_for(ask, f"{ticket}#{number}") for number in range(ask.count)]
        until = self._lend(ask)
        given = tuple(turn.at for turn in self.turns.given) if until else ()
        return Answer(ask.place, ANSWERS, (ticket, Answers(tuple(moments), until=until, given=given)))

    def _turn_for(self, ask: TurnAsk, ticket: str) -> int | None:
        self.period = max(self.period, ask.rate.period)
        self.turns, at = next_turn(self.turns, ticket, ask.rate, microseconds(), ask.latest)
        return at


def microseconds() -> int:
    """The time, as keepers reckon it."""
    return workflow.time_ns() // 1000


# --- the turns of one run -------------------------------------------------------------------------


_MOST_AT_ONCE = 1000
_FIRST_LOAN, _LAST_LOAN = 10 * MICROSECONDS, 60 * MICROSECONDS
_OFTEN = 2


class TurnWaiter:
    """A task that waits for a turn: `at` is its moment, None where that would be too late."""

    def __init__(self, rate: Rate, latest: int | None) -> None:
        self.terms = (rate, latest)
        self.at: int | None = None
        self.done = workflow.Event()


class TurnPool(Hand):
    """The tasks of one run that wait for turns of one key. Those that ask in the same moment ask together, and one timer
    at a time serves all that wait.

    A run that asks again and again, while no other does, is lent the key for a while: it gives its tasks turns by the same
    reckoning as the keeper, and says at the end which. When another run asks, the keeper wants the key back at once.
    """

    def __init__(self, key: str, name: str, replies: Replies, task_queue: str) -> None:
        super().__init__()
        self._key = key
        self._name = name
        self._loan: Loan | None = None
        self._turns = Turns()
        self._used: list[int] = []
        self._asks = self._numbers = 0
        self._lending = _FIRST_LOAN
        self._recalled = self._sending = False
        self._keeper = keeper_id("throttle", key)
        self._task_queue = task_queue
        self._replies = replies
        self._new: dict[TurnWaiter, None] = {}
        self._asked: dict[str, tuple[TurnAsk, list[TurnWaiter]]] = {}
        self._due: dict[TurnWaiter, None] = {}
        self._remind_at, self._reminder = 0.0, FIRST_REMINDER

    def enter(self, rate: Rate, latest: int | None) -> bool:
        """Wait for a turn; False, at once, if it would come too late. A task that is cancelled has used its turn up."""
        waiter = TurnWaiter(rate, latest)
        if self._is_lent(rate):
            self._numbers += 1
            turns, at = next_turn(self._turns, str(self._numbers), rate, microseconds(), latest)
            if at is None:
                return False
            if self._loan is not None and at < self._loan.until:
                self._turns = turns
                self._used = [*self._used, at][-rate.kept :]
                if at <= microseconds():
                    return True
                waiter.at = at
                self._due[waiter] = None
        if waiter.at is None:
            self._new[waiter] = None
        self.poke()
        try:
            waiter.done.wait()
        finally:
            self._new.pop(waiter, None)
            if self._due.pop(waiter, self) is None:
                self.poke()
        return waiter.at is not None

    def _is_lent(self, rate: Rate) -> bool:
        loan = self._loan
        return loan is not None and loan.rate == rate and not (self._new or self._asked or self._recalled)

    def hear(self, name: str, answers: Answers) -> None:
        """Turns were given out, the key was lent, or is wanted back."""
        if name == self._name:
            self._recalled = self._loan is not None
            self.poke()
            return
        question, waiters = self._asked.pop(name, (None, []))
        self._replies.hands.pop(name, None)
        if question is not None and answers.until:
            self._loan = Loan(question.place, question.rate, answers.until)
            self._turns = Turns(tuple(GivenTurn("", at) for at in answers.given))
        for waiter, at in zip(waiters, answers.numbers, strict=False):
            waiter.at = at
            if at is None or at <= microseconds():
                waiter.done.set()
            else:
                self._due[waiter] = None
        self.poke()

    def is_due(self) -> bool:
        """Whether turns are to be asked for."""
        return bool(self._new) or self._recalled

    def act(self) -> None:
        """Ask for turns, or give the key back."""
        if self._new:
            self._ask()
            return
        used = Used(self._name, self._end_loan())
        self._sending = True
        tell(self._keeper, TurnKeeper.hand_in, used)
        self._sending = False

    def _end_loan(self) -> tuple[int, ...]:
        """The turns that were given to tasks during the loan, as far as they still count."""
        if self._loan is None:
            return ()
        used = tuple(self._used)
        self._loan, self._used, self._recalled = None, [], False
        return used

    def farewell(self) -> None:
        """The run closes: a key that it has on loan goes back first."""
        if self._loan is not None or self._sending:
            self._recalled = self._loan is not None
            self.poke()
            workflow.wait_condition(lambda: self._loan is None and not self._sending)

    def next_moment(self) -> float | None:
        """When the next turn comes, or the keeper is to be reminded."""
        turns = [each.at / MICROSECONDS for each in self._due if each.at is not None]
        return min([*turns, self._remind_at] if self._asked else turns, default=None)

    def wait_is_for(self) -> str:
        """What the timer is for."""
        return f"until the turn of {self._key!r}" if self._due else f"waits for a turn of {self._key!r}"

    def _ask(self) -> None:
        terms = next(iter(self._new)).terms
        waiters = [each for each in self._new if each.terms == terms][:_MOST_AT_ONCE]
        for each in waiters:
            del self._new[each]
        info, ticket = workflow.info(), str(workflow.uuid4())
        place = SlotClaim(ticket, info.workflow_id, info.run_id, self._name)
        rate, latest = terms
        self._asks += 1
        lending = 0
        if self._asks > _OFTEN:
            lending, self._lending = self._lending, min(2 * self._lending, _LAST_LOAN)
        question = TurnAsk(place, rate, latest, len(waiters), self._end_loan(), lending)
        self._asked[ticket] = question, waiters
        self._replies.hands[ticket] = self
        self._reminder = FIRST_REMINDER
        self._send(question)

    def _send(self, question: TurnAsk) -> None:
        first = Throttle(open=(question,), period=question.rate.period)
        ask(self._keeper, TurnKeeper.run, TurnKeeper.ask, question, first, self._task_queue)
        self._remind_at = workflow.time() + self._reminder

    def time_passes(self) -> None:
        """Those go on whose turn it is; a keeper that is silent is reminded."""
        now = microseconds()
        # A timer may fire the last fraction of a microsecond early.
        for waiter in [each for each in self._due if each.at is not None and each.at <= now + 1]:
            del self._due[waiter]
            waiter.done.set()
        if self._asked and self._remind_at <= workflow.time():
            # A keeper that was terminated has forgotten who asked.
            self._reminder = min(2 * self._reminder, LAST_REMINDER)
            for question, _ in list(self._asked.values()):
                self._send(question)


# --- throttle -------------------------------------------------------------------------------------


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
    """Wait for a turn: `limits.throttle("mail-api", 10, per=timedelta(seconds=1))`, then go on. In workflows only.

    In any span of `per` at most `limit` calls of the same key go on, in all workflows of the target together, first come
    first served. They may go on all at once, and then none until the span is over; `smooth` spreads them evenly. Where the
    turn would come later than `timeout`, `TimeoutError` is raised at once and no turn is used up. A call that is
    cancelled while it waits has used up its turn.

    The turns are given out by a small workflow of their own, on the task queue of the first who asks or on `task_queue`;
    any worker there serves it.
    """
    keeper = keeper_id("throttle", key)
    rate = _checked(limit, per, smooth)
    replies = replies_of_run("limits.throttle")
    latest = None if timeout is None else microseconds() + _whole(timeout, "timeout")
    if in_one_hand("limits.throttle"):
        pool = hand_of_run(lambda name: TurnPool(key, name, replies, task_queue), keeper, replies)
        if not pool.enter(rate, latest):
            raise _too_late(key, limit, per)
        return
    info, ticket = workflow.info(), replies.draw()
    question = TurnAsk(SlotClaim(ticket, info.workflow_id, info.run_id), rate, latest)

    def ask_for_it() -> None:
        first = Throttle(open=(question,), period=rate.period)
        ask(keeper, TurnKeeper.run, TurnKeeper.ask, question, first, task_queue)

    try:
        ask_for_it()
        wait_for_answer(replies, ticket, None, ask_for_it, f"a turn of {key!r}")
        at = replies.answers[ticket]
    finally:
        replies.forget(ticket)
    if at is None:
        raise _too_late(key, limit, per)
    left = at - microseconds()
    if left > 0:
        workflow.sleep(left / MICROSECONDS, summary=f"until the turn of {key!r}")


def _too_late(key: str, limit: int, per: Duration) -> TimeoutError:
    return TimeoutError(f"the next turn of {key!r} comes too late; {limit} in {seconds(per):g} s are allowed")


def _checked(limit: int, per: Duration, smooth: bool) -> Rate:
    if not isinstance(limit, int) or limit < 1:
        raise UsageError(f"the limit of a throttle must be a number of at least 1, not {limit!r:.40}")
    if limit > _MOST_IN_A_WINDOW and not smooth:
        raise UsageError(
            f"a throttle counts at most {_MOST_IN_A_WINDOW} in a span, not {limit}: give a shorter span, or smooth=True"
        )
    period = _whole(per, "span")
    if period <= 0:
        raise UsageError("the span of a throttle must be longer than nothing")
    return Rate(limit, period, bool(smooth))


def _whole(duration: Duration, name: str) -> int:
    return round(seconds(duration, f"the {name} of a throttle") * MICROSECONDS)
