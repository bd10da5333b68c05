"""Limits as data: the messages between a run and the keeper of a limit, and the rules of slots, turns and bursts.

On a Temporal server a limit is kept by a small workflow (`hourglass.limits`), on the embedded engine by the engine itself
(`hourglass._embedded.limits.keepers`). Both use these messages, so that histories are equal and a run can move from one engine to
the other, and both decide by these rules, which are pure: they must not know workflows, signals, clocks.

Slots (`SlotBook`). Runs hold no more slots than the limit allows, except those that held theirs when the limit was lowered. Slots
are granted in the order of requests; a ticket has one place at most, however often its request is repeated.

Turns (`TurnBook`). Times are whole microseconds since the epoch. Turns are granted in the order of requests and never move back;
no span of the period contains more turns than the limit; a repeated request gets the same turn. If the clock was ahead and is set
back, the turns that it granted move back with it.

Bursts (`Burst`). Calls of one key that will become one run, with the arguments of the last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import msgspec

from hourglass._contract.service import Effect, Request

SLOTS, TURNS, BURSTS = "hourglass.slots:", "hourglass.throttle:", "hourglass.debounce:"
"""The prefixes of the ids of workflows that keep limits; the key follows."""


def is_keeper(workflow_id: str) -> bool:
    """Whether this is the id of a workflow that keeps a limit."""
    return workflow_id.startswith((SLOTS, TURNS, BURSTS))


ANSWERS = "hourglass.limits.answers"
"""The name of the signal that carries a keeper's answer to a run."""


@dataclass(frozen=True)
class SlotClaim:
    """The claim of a run that holds a slot or waits for one: its ticket, and the run that receives the answer."""

    ticket: str
    workflow_id: str
    run_id: str
    pool: str
    """The name of the run's pool, which sends the requests of all its tasks."""


@dataclass(frozen=True)
class Answers:
    """An answer to a run: numbers of slots or times of turns, and whether other runs wait for the key.

    With `until` the run has a loan of the entire key until that time; `given` are the earlier turns that count.
    """

    numbers: tuple[int | None, ...] = ()
    others: bool = False
    until: int = 0
    given: tuple[int, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A message to a run, sent with the signal `ANSWERS`: to its pool, or to one of its requests (`name`)."""

    place: SlotClaim
    name: str
    answers: Answers


@dataclass(frozen=True)
class Lease:
    """A run's request for slots (`want`, by number), with the slots it returns (`back`) and all those it holds.

    `notice` is the time in seconds within which the end of a holder must be noticed.
    """

    run: SlotClaim
    want: tuple[int, ...]
    back: tuple[int, ...]
    holds: tuple[int, ...]
    limit: int
    notice: float

    def claims(self, numbers: tuple[int, ...]) -> tuple[SlotClaim, ...]:
        """Return the claims of these numbers."""
        name = self.run.pool
        return tuple(replace(self.run, ticket=f"{name}#{number}") for number in numbers)


@dataclass(frozen=True)
class Return:
    """A run returns slots, or places in the queue."""

    pool: str
    numbers: tuple[int, ...]

    @property
    def tickets(self) -> set[str]:
        """The tickets of the returned slots and places."""
        return {f"{self.pool}#{number}" for number in self.numbers}


@dataclass(frozen=True)
class SlotTable:
    """The slots of one key: the runs that hold one, and the queue."""

    limit: int = 1
    held: tuple[SlotClaim, ...] = ()
    waiting: tuple[SlotClaim, ...] = ()


@dataclass(frozen=True)
class Slots:
    """The complete state of a key. `told` holds the pools that have been notified that other runs wait."""

    places: SlotTable = field(default_factory=SlotTable)
    notice: float = 10.0
    told: tuple[str, ...] = ()


class SlotBook:
    """The slots of one key and their queue, as mutable state. The cost of a message does not grow with the queue."""

    def __init__(self, slots: Slots | None = None) -> None:
        slots = slots or Slots()
        self.limit = slots.places.limit
        self.notice = slots.notice
        self.held = {claim.ticket: claim for claim in slots.places.held}
        self.waiting = {claim.ticket: claim for claim in slots.places.waiting}
        self.told = set(slots.told)

    @property
    def slots(self) -> Slots:
        """The complete state, as data."""
        return Slots(self.table, self.notice, tuple(sorted(self.told)))

    @property
    def table(self) -> SlotTable:
        """The runs that hold a slot, and the waiting runs."""
        return SlotTable(self.limit, tuple(self.held.values()), tuple(self.waiting.values()))

    @property
    def is_idle(self) -> bool:
        """Whether no run holds a slot or waits for one."""
        return not (self.held or self.waiting)

    def lease(self, lease: Lease) -> None:
        """Apply a run's request: return slots, and queue for others. A new keeper learns from it which slots the run holds."""
        self.give_back(claim.ticket for claim in lease.claims(lease.back))
        for claim in lease.claims(lease.holds):
            self.waiting.pop(claim.ticket, None)
            self.held.setdefault(claim.ticket, claim)
        for claim in lease.claims(lease.want):
            self.want(claim, lease.limit)
        self.limit, self.notice = lease.limit, lease.notice

    def want(self, claim: SlotClaim, limit: int) -> None:
        """Queue a claim. The limit of the latest request applies, so that a deployment can change it."""
        self.limit = limit
        if claim.ticket not in self.held:
            self.waiting.setdefault(claim.ticket, claim)

    def give_back(self, tickets: Iterable[str]) -> None:
        """Free these slots, or places in the queue."""
        for ticket in tickets:
            self.held.pop(ticket, None)
            self.waiting.pop(ticket, None)

    def grant(self) -> tuple[SlotClaim, ...]:
        """Grant free slots to the head of the queue. Return the claims that now have a slot."""
        lucky: list[SlotClaim] = []
        while self.waiting and len(self.held) < self.limit:
            claim = self.waiting.pop(next(iter(self.waiting)))
            self.held[claim.ticket] = claim
            lucky.append(claim)
        return tuple(lucky)

    def answers(self, lucky: Sequence[SlotClaim]) -> list[Answer]:
        """Return the answers to the pools of these newly granted claims, and to the pools that hold slots and do not know yet
        that another run waits.
        """
        answers: list[Answer] = []
        for pool in dict.fromkeys(place.pool for place in lucky):
            mine = [place for place in lucky if place.pool == pool]
            self.told.discard(pool)
            answers.append(self._to_pool(mine[0], [int(claim.ticket.rpartition("#")[2]) for claim in mine]))
        if self.waiting:
            pools = {claim.pool: claim for claim in self.held.values() if claim.pool not in self.told}
            answers += [self._to_pool(place, []) for place in pools.values() if self._others_wait(place)]
        return answers

    def reminders(self) -> list[Answer]:
        """Return messages that remind each holder of its slots: they cannot be delivered to a closed run."""
        pools = {place.pool: place for place in self.held.values()}
        return [self._to_pool(place, []) for place in pools.values()]

    def drop(self, gone: Collection[SlotClaim]) -> None:
        """Remove the claims of runs that have closed."""
        pools = {place.pool for place in gone}
        self.give_back(
            [claim.ticket for claim in (*self.held.values(), *self.waiting.values()) if claim.pool in pools]
        )
        self.told -= pools

    def _to_pool(self, place: SlotClaim, numbers: list[int]) -> Answer:
        others = self._others_wait(place)
        if others:
            self.told.add(place.pool)
        return Answer(place, place.pool, Answers(tuple(numbers), others))

    def _others_wait(self, place: SlotClaim) -> bool:
        return any(claim.run_id != place.run_id for claim in self.waiting.values())


MICROSECONDS = 1_000_000
_LATELY = 2 * MICROSECONDS
_SET_BACK = MICROSECONDS
"""The clock is considered corrected if time has moved back by at least this much."""


@dataclass(frozen=True)
class Rate:
    """At most `limit` turns in any span of `period` microseconds; `smooth` spreads them evenly."""

    limit: int
    period: int
    smooth: bool = False

    @property
    def kept(self) -> int:
        """The number of past turns that affect the next one."""
        return 1 if self.smooth else self.limit

    def all_at(self, moment: int) -> tuple[int, ...]:
        """Return the maximum number of turns that can have been used until a time."""
        return (moment,) * self.kept


@dataclass(frozen=True)
class GivenTurn:
    """A turn: its time, and its ticket."""

    ticket: str
    at: int


@dataclass(frozen=True)
class Turns:
    """The turns that still count, in order."""

    given: tuple[GivenTurn, ...] = ()


def next_turn(
    turns: Turns, ticket: str, rate: Rate, now: int, latest: int | None
) -> tuple[Turns, int | None]:
    """Return the time of the next turn and the new turns; None, and no new turn, if it would be after `latest`."""
    for turn in turns.given:
        if turn.ticket == ticket:
            return turns, turn.at
    at = max(now, _earliest(turns.given, rate))
    if latest is not None and at > latest:
        return turns, None
    return replace(turns, given=(*turns.given, GivenTurn(ticket, at))[-rate.kept :]), at


def _earliest(turns: tuple[GivenTurn, ...], rate: Rate) -> int:
    if not turns:
        return 0
    if rate.smooth:
        return turns[-1].at - (-rate.period // rate.limit)  # rounded up: never too early
    in_order = turns[-1].at
    return max(in_order, turns[-rate.limit].at + rate.period) if len(turns) >= rate.limit else in_order


def is_forgettable(turns: Turns, period: int, now: int) -> bool:
    """Whether no past turn affects the next one."""
    return not turns.given or turns.given[-1].at + period <= now


def taken_into_account(turns: Turns, moments: Sequence[int], rate: Rate) -> Turns:
    """Return the turns that count, including these."""
    all_turns = sorted((*turns.given, *(GivenTurn("", at) for at in moments)), key=lambda turn: turn.at)
    return Turns(tuple(all_turns[-max(rate.kept, len(turns.given)) :]))


@dataclass(frozen=True)
class TurnAsk:
    """A run's request for `count` turns, none after `latest` (in microseconds)."""

    place: SlotClaim
    rate: Rate
    latest: int | None
    count: int
    used: tuple[int, ...] = ()
    """The turns that the run granted its tasks during its loan of the key, as far as they still count."""
    loan: int = 0
    """The requested duration of a loan of the key, in microseconds."""


@dataclass(frozen=True)
class Loan:
    """A loan of the key to a run until a time: the run grants turns to its tasks itself, within the rate."""

    place: SlotClaim
    rate: Rate
    until: int


@dataclass(frozen=True)
class Used:
    """A run returns its loan, with the turns that it granted to its tasks."""

    pool: str
    moments: tuple[int, ...]


@dataclass(frozen=True)
class Throttle:
    """The complete state of a key: granted turns, open requests, the loan."""

    turns: Turns = field(default_factory=Turns)
    open: tuple[TurnAsk, ...] = ()
    period: int = 0
    loan: Loan | None = None
    seen: int = 0
    """The time of the last grant of turns."""


class TurnBook:
    """The turns of one key, its loan, and the waiting requests, as mutable state."""

    def __init__(self, throttle: Throttle | None = None) -> None:
        throttle = throttle or Throttle()
        self.turns = throttle.turns
        self.open = list(throttle.open)
        self.period = throttle.period
        self.loan = throttle.loan
        self.seen = throttle.seen
        self.held: list[TurnAsk] = []
        """Requests that wait until the loan ends."""
        self._recalled = False
        self._users: dict[str, int] = {}

    @property
    def throttle(self) -> Throttle:
        """The complete state, as data."""
        return Throttle(self.turns, (*self.held, *self.open), self.period, self.loan, self.seen)

    def hand_in(self, used: Used) -> None:
        """Apply the return of a loan."""
        if self.loan is not None and self.loan.place.pool == used.pool:
            self._end_loan(used.moments)

    def serve(self, now: int) -> list[Answer]:
        """Answer open requests. Recall the loan of another run, and every loan if the clock was set back."""
        was_ahead = self.is_ahead(now)
        if was_ahead:
            self._set_back(now)
        self.seen = max(self.seen, now)
        questions, self.open = self.open, []
        answers = [self._answer(question, now) for question in questions if self._may_have(question, now)]
        if (self.held or was_ahead) and self.loan is not None and not self._recalled:
            self._recalled = True
            answers.append(Answer(self.loan.place, self.loan.place.pool, Answers(others=True)))
        return answers

    def is_ahead(self, now: int) -> bool:
        """Whether turns were granted by a clock that was ahead and has been set back."""
        return self.seen > now + _SET_BACK

    def _set_back(self, now: int) -> None:
        """Move turns that were granted while the clock was ahead back by the same amount; earlier turns stay."""
        by = self.seen - now
        moved: list[GivenTurn] = []
        for turn in self.turns.given:
            at = turn.at if turn.at <= now else turn.at - by
            moved.append(replace(turn, at=max(at, moved[-1].at) if moved else at))
        self.turns = Turns(tuple(moved))
        self.open, self.held = ([_sooner(ask, by, now) for ask in asks] for asks in (self.open, self.held))
        if self.loan is not None and self.loan.until > now:
            self.loan = replace(self.loan, until=max(now, self.loan.until - by))
        self._users = {run: min(at, now) for run, at in self._users.items()}
        self.seen = now

    def drop(self, gone: Collection[SlotClaim], now: int) -> None:
        """Remove the requests of runs that have closed. How many turns of a loan were used is unknown, but none is after now."""
        if self._recalled and self.loan is not None and self.loan.place in gone:
            self._end_loan(self.loan.rate.all_at(now))

    def drop_run(self, run_id: str, now: int) -> None:
        """Remove the requests and the loan of a run that has closed."""
        self.open = [request for request in self.open if request.place.run_id != run_id]
        self.held = [request for request in self.held if request.place.run_id != run_id]
        if self.loan is not None and self.loan.place.run_id == run_id:
            self._end_loan(self.loan.rate.all_at(now))

    def let_loan_end(self, now: int) -> bool:
        """End an expired loan. Return whether there was one."""
        if self.loan is None or self.loan.until > now:
            return False
        self._end_loan(self.loan.rate.all_at(self.loan.until))
        return True

    def is_forgettable(self, now: int) -> bool:
        """Whether neither past turns nor a loan affect the next turn."""
        waits = self.loan is not None or self.open or self.held
        return not waits and is_forgettable(self.turns, self.period, now)

    def _may_have(self, ask: TurnAsk, now: int) -> bool:
        """Whether the run can be answered now. While another run has a loan its request waits for the return or the end of the
        loan.
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
        """Return the end of a new loan for the run; 0 if another run has requested turns recently."""
        self._users = {run: at for run, at in self._users.items() if at > now - _LATELY}
        if not ask.loan or self.loan is not None or self.held or self._users.keys() != {ask.place.run_id}:
            return 0
        self.loan = Loan(ask.place, ask.rate, now + ask.loan)
        return self.loan.until

    def _answer(self, ask: TurnAsk, now: int) -> Answer:
        ticket = ask.place.ticket
        moments = [self._turn_for(ask, f"{ticket}#{number}", now) for number in range(ask.count)]
        until = self._lend(ask, now)
        earlier = tuple(turn.at for turn in self.turns.given) if until else ()
        return Answer(ask.place, ticket, Answers(tuple(moments), until=until, given=earlier))

    def _turn_for(self, ask: TurnAsk, ticket: str, now: int) -> int | None:
        self.period = max(self.period, ask.rate.period)
        self.turns, at = next_turn(self.turns, ticket, ask.rate, now, ask.latest)
        return at


def _sooner(ask: TurnAsk, by: int, now: int) -> TurnAsk:
    """Return a request that was made while the clock was ahead, with its times moved back."""
    late = ask.latest is not None and ask.latest > now
    return replace(ask, latest=max(now, ask.latest - by)) if late and ask.latest is not None else ask


_MANY_CALLS = 10_000


@dataclass(frozen=True)
class DebounceCall:
    """A debounced call: what to run, and how long to wait for further calls. Durations are seconds."""

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
    """Calls that will become one run: the last one, the times of the first and the last (in seconds), and the tickets of all."""

    call: DebounceCall
    first: float
    last: float
    tickets: tuple[str, ...]

    @property
    def due(self) -> float:
        """The end of the wait."""
        if len(self.tickets) >= _MANY_CALLS:
            return self.last
        calm = self.last + self.call.wait
        return calm if self.call.max_wait is None else min(calm, self.first + self.call.max_wait)


def joined(burst: Burst | None, call: DebounceCall, now: float) -> Burst:
    """Return the burst with one more call."""
    if burst is None:
        return Burst(call, now, now, (call.ticket,))
    return replace(burst, call=call, last=now, tickets=(*burst.tickets, call.ticket))


class KeptLimit(msgspec.Struct, frozen=True):
    """The state that an engine keeps of one key: slots, turns, or calls that will become a run (`becomes`, at `due_ns`). `id` is
    that of the workflow that would keep it on a server.
    """

    id: str
    slots: SlotTable | None = None
    turns: Turns | None = None
    calls: int = 0
    becomes: str = ""
    due_ns: int = 0


class KeptLimits(msgspec.Struct, frozen=True):
    """The limits that an engine keeps itself; None if workflows keep them."""

    found: tuple[KeptLimit, ...] | None = None


class ListLimits(Request[KeptLimits], frozen=True, kw_only=True):
    """Return the limits that the engine keeps: the one with this id, or all."""

    effect: ClassVar[Effect] = Effect.READ
    id: str = ""


class BurstState(msgspec.Struct, frozen=True):
    """The state of debounced calls: waiting (`pending`), started as this run, or dropped (no run)."""

    pending: bool = False
    run_id: str = ""


class AwaitBurst(Request[BurstState], frozen=True, kw_only=True):
    """Wait until the calls of a key have become a workflow with this id."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    waits: ClassVar[bool] = True
    id: str
    workflow_id: str
