"""Limits as data: what runs say to the keeper of a limit and hear from it, and the rules of slots, turns and bursts.

On a Temporal server a limit is kept by a small workflow (`hourglass.limits`), on the embedded engine by the engine itself
(`hourglass._embedded.limits.keepers`). Both speak this protocol, so that histories are the same and a run can move from
one engine to the other, and both decide by these rules, which are pure: they must not know workflows, signals, clocks.

Slots (`SlotBook`). No more are held than the limit allows, but for runs that held theirs when the limit was lowered. The run
that asks first gets first; a ticket stands in one place at most, however often it is told.

Turns (`TurnBook`). Times are whole microseconds since the epoch. Turns are given in the order of asking and never go back; no
span of the period holds more turns than the limit; a ticket that asks again gets the turn that it has. Where time itself goes
back, because the clock was wrong and was set right, what was given by it goes back with it.

Bursts (`Burst`). Calls of one key that will be one run, with what the last of them said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import msgspec

from hourglass._contract.service import Effect, Request

SLOTS, TURNS, BURSTS = "hourglass.slots:", "hourglass.throttle:", "hourglass.debounce:"
"""How the ids of the workflows begin that keep limits; then comes the key."""


def is_keeper(workflow_id: str) -> bool:
    """Whether an id is that of a workflow which keeps a limit, or would."""
    return workflow_id.startswith((SLOTS, TURNS, BURSTS))


# --- what a run hears -----------------------------------------------------------------------------


ANSWERS = "hourglass.limits.answers"
"""The signal by which a keeper answers a run."""


@dataclass(frozen=True)
class SlotClaim:
    """A run that holds a slot or waits for one: its ticket, and where to send the answer."""

    ticket: str
    workflow_id: str
    run_id: str
    pool: str
    """The name under which the run asks for all its tasks together."""


@dataclass(frozen=True)
class Answers:
    """What a run is told: numbers of slots or moments of turns, and whether other runs want the key.

    With `until` the run has the whole key on loan until that moment; `given` are the turns that count before it.
    """

    numbers: tuple[int | None, ...] = ()
    others: bool = False
    until: int = 0
    given: tuple[int, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A message to a run, sent by the signal `ANSWERS`: to its pool, or to one of its questions (`name`)."""

    place: SlotClaim
    name: str
    answers: Answers


# --- slots ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lease:
    """A run requests slots for its tasks, by number, and returns others; `holds` are all that it has.

    `notice` is the time in seconds within which a holder that is gone must be noticed.
    """

    run: SlotClaim
    want: tuple[int, ...]
    back: tuple[int, ...]
    holds: tuple[int, ...]
    limit: int
    notice: float

    def claims(self, numbers: tuple[int, ...]) -> tuple[SlotClaim, ...]:
        """The claims of these numbers."""
        name = self.run.pool
        return tuple(replace(self.run, ticket=f"{name}#{number}") for number in numbers)


@dataclass(frozen=True)
class Return:
    """A run gives slots, or places in the queue, back."""

    pool: str
    numbers: tuple[int, ...]

    @property
    def tickets(self) -> set[str]:
        """What is given back."""
        return {f"{self.pool}#{number}" for number in self.numbers}


@dataclass(frozen=True)
class SlotTable:
    """The slots of one key: the runs that hold one, and the queue."""

    limit: int = 1
    held: tuple[SlotClaim, ...] = ()
    waiting: tuple[SlotClaim, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether no run holds a slot or waits for one."""
        return not (self.held or self.waiting)


@dataclass(frozen=True)
class Slots:
    """The whole state of a key. `told` are the pools that know that other runs wait."""

    places: SlotTable = field(default_factory=SlotTable)
    notice: float = 10.0
    told: tuple[str, ...] = ()


class SlotBook:
    """The slots of one key and their queue, as they change. What one message costs does not grow with the queue."""

    def __init__(self, slots: Slots | None = None) -> None:
        slots = slots or Slots()
        self.limit = slots.places.limit
        self.notice = slots.notice
        self.held = {each.ticket: each for each in slots.places.held}
        self.waiting = {each.ticket: each for each in slots.places.waiting}
        self.told = set(slots.told)

    @property
    def slots(self) -> Slots:
        """All of it, as data."""
        return Slots(self.table, self.notice, tuple(sorted(self.told)))

    @property
    def table(self) -> SlotTable:
        """Which runs hold a slot, and which wait."""
        return SlotTable(self.limit, tuple(self.held.values()), tuple(self.waiting.values()))

    @property
    def is_idle(self) -> bool:
        """Whether no run holds a slot or waits for one."""
        return not (self.held or self.waiting)

    def lease(self, lease: Lease) -> None:
        """A run wants slots for its tasks, and gives others back. What it holds is news to a keeper that is new."""
        self.give_back(each.ticket for each in lease.claims(lease.back))
        for claim in lease.claims(lease.holds):
            self.waiting.pop(claim.ticket, None)
            self.held.setdefault(claim.ticket, claim)
        for claim in lease.claims(lease.want):
            self.want(claim, lease.limit)
        self.limit, self.notice = lease.limit, lease.notice

    def want(self, claim: SlotClaim, limit: int) -> None:
        """A run wants a slot. The limit that was named last holds, so that a deploy can change it."""
        self.limit = limit
        if claim.ticket not in self.held:
            self.waiting.setdefault(claim.ticket, claim)

    def give_back(self, tickets: Iterable[str]) -> None:
        """Slots, or places in the queue, are free again."""
        for ticket in tickets:
            self.held.pop(ticket, None)
            self.waiting.pop(ticket, None)

    def grant(self) -> tuple[SlotClaim, ...]:
        """Fill what is free from the head of the queue; gives the runs that have a slot now."""
        lucky: list[SlotClaim] = []
        while self.waiting and len(self.held) < self.limit:
            claim = self.waiting.pop(next(iter(self.waiting)))
            self.held[claim.ticket] = claim
            lucky.append(claim)
        return tuple(lucky)

    def answers(self, lucky: Sequence[SlotClaim]) -> list[Answer]:
        """Return the answers to the pools of these claims, which have a slot now, and to the pools that hold slots, hand them
        from task to task, and have not heard yet that another run has begun to wait.
        """
        found: list[Answer] = []
        for pool in dict.fromkeys(place.pool for place in lucky):
            mine = [place for place in lucky if place.pool == pool]
            self.told.discard(pool)
            found.append(self._to_pool(mine[0], [int(each.ticket.rpartition("#")[2]) for each in mine]))
        if self.waiting:
            pools = {each.pool: each for each in self.held.values() if each.pool not in self.told}
            found += [self._to_pool(place, []) for place in pools.values() if self._others_wait(place)]
        return found

    def reminders(self) -> list[Answer]:
        """Return messages that remind each holder of its slots: they do not reach a run that has closed."""
        pools = {place.pool: place for place in self.held.values()}
        return [self._to_pool(place, []) for place in pools.values()]

    def drop(self, gone: Collection[SlotClaim]) -> None:
        """The runs of these places have closed."""
        pools = {place.pool for place in gone}
        self.give_back(
            [each.ticket for each in (*self.held.values(), *self.waiting.values()) if each.pool in pools]
        )
        self.told -= pools

    def _to_pool(self, place: SlotClaim, numbers: list[int]) -> Answer:
        others = self._others_wait(place)
        if others:
            self.told.add(place.pool)
        return Answer(place, place.pool, Answers(tuple(numbers), others))

    def _others_wait(self, place: SlotClaim) -> bool:
        return any(each.run_id != place.run_id for each in self.waiting.values())


# --- turns ----------------------------------------------------------------------------------------


MICROSECONDS = 1_000_000
_LATELY = 2 * MICROSECONDS
_SET_BACK = MICROSECONDS
"""By so much time must have gone back for the clock to have been wrong."""


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


def taken_into_account(turns: Turns, moments: Sequence[int], rate: Rate) -> Turns:
    """The turns that matter, with these."""
    given = sorted((*turns.given, *(GivenTurn("", at) for at in moments)), key=lambda each: each.at)
    return Turns(tuple(given[-max(rate.kept, len(turns.given)) :]))


@dataclass(frozen=True)
class TurnAsk:
    """A run requests turns for `count` of its tasks, none after `latest` (in microseconds)."""

    place: SlotClaim
    rate: Rate
    latest: int | None
    count: int
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
    """The whole state of a key: the turns given, the questions that are open, the loan."""

    turns: Turns = field(default_factory=Turns)
    open: tuple[TurnAsk, ...] = ()
    period: int = 0
    loan: Loan | None = None
    seen: int = 0
    """How late it was when turns were last given out."""


class TurnBook:
    """The turns of one key, its loan, and the questions that wait, as they change."""

    def __init__(self, throttle: Throttle | None = None) -> None:
        throttle = throttle or Throttle()
        self.turns = throttle.turns
        self.open = list(throttle.open)
        self.period = throttle.period
        self.loan = throttle.loan
        self.seen = throttle.seen
        self.held: list[TurnAsk] = []
        """Questions that wait until the loan is over."""
        self._recalled = False
        self._users: dict[str, int] = {}

    @property
    def throttle(self) -> Throttle:
        """All of it, as data."""
        return Throttle(self.turns, (*self.held, *self.open), self.period, self.loan, self.seen)

    def hand_in(self, used: Used) -> None:
        """A run gives the key back that it had on loan."""
        if self.loan is not None and self.loan.place.pool == used.pool:
            self._end_loan(used.moments)

    def serve(self, now: int) -> list[Answer]:
        """Answer what is open; where another run has the key on loan, or time has gone back meanwhile, want it back."""
        was_ahead = self.is_ahead(now)
        if was_ahead:
            self._set_back(now)
        self.seen = max(self.seen, now)
        questions, self.open = self.open, []
        answers = [self._answer(each, now) for each in questions if self._may_have(each, now)]
        if (self.held or was_ahead) and self.loan is not None and not self._recalled:
            self._recalled = True
            answers.append(Answer(self.loan.place, self.loan.place.pool, Answers(others=True)))
        return answers

    def is_ahead(self, now: int) -> bool:
        """Whether turns were given by a clock that was later than now: it was wrong, and was set right."""
        return self.seen > now + _SET_BACK

    def _set_back(self, now: int) -> None:
        """What was given while the clock was ahead is as far from now as it was from then; what was before that stays."""
        by = self.seen - now
        given: list[GivenTurn] = []
        for turn in self.turns.given:
            at = turn.at if turn.at <= now else turn.at - by
            given.append(replace(turn, at=max(at, given[-1].at) if given else at))
        self.turns = Turns(tuple(given))
        self.open, self.held = ([_sooner(each, by, now) for each in asks] for asks in (self.open, self.held))
        if self.loan is not None and self.loan.until > now:
            self.loan = replace(self.loan, until=max(now, self.loan.until - by))
        self._users = {run: min(at, now) for run, at in self._users.items()}
        self.seen = now

    def drop(self, gone: Collection[SlotClaim], now: int) -> None:
        """The runs of these places have closed. How many turns were used of a loan is not known, but none is after now."""
        if self._recalled and self.loan is not None and self.loan.place in gone:
            self._end_loan(self.loan.rate.all_at(now))

    def drop_run(self, run_id: str, now: int) -> None:
        """A run has closed: it asks no more, and its loan is over."""
        self.open = [each for each in self.open if each.place.run_id != run_id]
        self.held = [each for each in self.held if each.place.run_id != run_id]
        if self.loan is not None and self.loan.place.run_id == run_id:
            self._end_loan(self.loan.rate.all_at(now))

    def let_loan_end(self, now: int) -> bool:
        """End a loan whose time is over; whether there was one."""
        if self.loan is None or self.loan.until > now:
            return False
        self._end_loan(self.loan.rate.all_at(self.loan.until))
        return True

    def is_forgettable(self, now: int) -> bool:
        """Whether nothing of it has a bearing on the next turn."""
        waits = self.loan is not None or self.open or self.held
        return not waits and is_forgettable(self.turns, self.period, now)

    def _may_have(self, ask: TurnAsk, now: int) -> bool:
        """Whether the run can be answered now; False while another has the key on loan: it is held until that has given
        it back, or its time is over.
        """
        self._users[ask.place.run_id] = now
        loan = self.loan
        if loan is None:
            return True
        if ask.place.pool == loan.place.pool:
            self._end_loan(ask.used)
            return True
        if self.let_loan_end(now):
            return True
        self.held.append(ask)
        return False

    def _end_loan(self, used: tuple[int, ...]) -> None:
        if self.loan is not None:
            self.turns = taken_into_account(self.turns, used, self.loan.rate)
        self.loan, self._recalled = None, False
        self.open, self.held = [*self.held, *self.open], []

    def _lend(self, ask: TurnAsk, now: int) -> int:
        """Until when the run may have the key to itself; 0 if another has wanted it lately."""
        self._users = {run: at for run, at in self._users.items() if at > now - _LATELY}
        if not ask.loan or self.loan is not None or self.held or self._users.keys() != {ask.place.run_id}:
            return 0
        self.loan = Loan(ask.place, ask.rate, now + ask.loan)
        return self.loan.until

    def _answer(self, ask: TurnAsk, now: int) -> Answer:
        ticket = ask.place.ticket
        moments = [self._turn_for(ask, f"{ticket}#{number}", now) for number in range(ask.count)]
        until = self._lend(ask, now)
        given = tuple(turn.at for turn in self.turns.given) if until else ()
        return Answer(ask.place, ticket, Answers(tuple(moments), until=until, given=given))

    def _turn_for(self, ask: TurnAsk, ticket: str, now: int) -> int | None:
        self.period = max(self.period, ask.rate.period)
        self.turns, at = next_turn(self.turns, ticket, ask.rate, now, ask.latest)
        return at


def _sooner(ask: TurnAsk, by: int, now: int) -> TurnAsk:
    """A question that was put by a clock that was ahead."""
    late = ask.latest is not None and ask.latest > now
    return replace(ask, latest=max(now, ask.latest - by)) if late and ask.latest is not None else ask


# --- bursts ---------------------------------------------------------------------------------------


_MANY_CALLS = 10_000


@dataclass(frozen=True)
class DebounceCall:
    """One call: what to run, and how long to wait for further calls. Durations are seconds."""

    ticket: str
    workflow: str
    wait: float
    max_wait: float | None
    prefix: str
    task_queue: str
    execution_timeout: float | None = None
    run_timeout: float | None = None
    task_timeout: float | None = None


@dataclass(frozen=True)
class Burst:
    """Calls that will be one run: the last of them, when they came (in seconds), and the tickets of all."""

    call: DebounceCall
    first: float
    last: float
    tickets: tuple[str, ...]

    @property
    def due(self) -> float:
        """When to stop waiting."""
        if len(self.tickets) >= _MANY_CALLS:
            return self.last
        calm = self.last + self.call.wait
        return calm if self.call.max_wait is None else min(calm, self.first + self.call.max_wait)


def joined(burst: Burst | None, call: DebounceCall, now: float) -> Burst:
    """The burst with one call more."""
    if burst is None:
        return Burst(call, now, now, (call.ticket,))
    return replace(burst, call=call, last=now, tickets=(*burst.tickets, call.ticket))


# --- what clients ask of an engine that keeps limits itself ---------------------------------------


class KeptLimit(msgspec.Struct, frozen=True):
    """What an engine keeps of one key: slots, turns, or calls that will be run (`becomes`, at `due_ns`). `id` is that of the
    workflow which would keep it on a server.
    """

    id: str
    slots: SlotTable | None = None
    turns: Turns | None = None
    calls: int = 0
    becomes: str = ""
    due_ns: int = 0


class KeptLimits(msgspec.Struct, frozen=True):
    """What an engine keeps itself; None: nothing, limits are kept by workflows."""

    found: tuple[KeptLimit, ...] | None = None


class ListLimits(Request[KeptLimits], frozen=True, kw_only=True):
    """Which limits does the engine keep: of this id, or all?"""

    effect: ClassVar[Effect] = Effect.READ
    id: str = ""


class BurstState(msgspec.Struct, frozen=True):
    """What has become of debounced calls: they wait (`pending`), are this run, or were dropped (no run)."""

    pending: bool = False
    run_id: str = ""


class AwaitBurst(Request[BurstState], frozen=True, kw_only=True):
    """Wait until the calls of a key have become a workflow of this id."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    waits: ClassVar[bool] = True
    id: str
    workflow_id: str
