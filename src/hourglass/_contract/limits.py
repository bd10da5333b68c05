"""Limits as data: the messages between a run and the keeper of a limit, and the rules of slots, turns and bursts.

On a Temporal server a small workflow (`hourglass.limits`) enforces each limit. On the embedded engine, the engine itself
does (`hourglass._embedded.limits.keepers`). Both use these messages, so that histories are equal and a run can move from
one engine to the other. Both also decide by these rules. The rules are pure and must not know workflows, signals,
clocks.

Slots (`SlotBook`). Runs hold no more slots than the limit allows, except for slots that were granted before the limit
was lowered. Slots are granted in the order of requests. A ticket has at most one place, however often its request is
repeated.

Turns (`TurnBook`). Times are whole microseconds since the epoch. Turns are granted in the order of requests, at times
that never decrease. No interval as long as the period contains more turns than the limit. A repeated request gets the
same turn. If the clock was ahead and is set back, the turns that were granted in the meantime are moved back, too.

Bursts (`Burst`). Calls of a key that will become one run, with the arguments of the last call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import msgspec

from hourglass._contract.service import Effect, Request

SLOTS, TURNS, BURSTS = "hourglass.slots:", "hourglass.throttle:", "hourglass.debounce:"
"""The prefixes of the ids of workflows that enforce limits. The key follows the prefix."""


def is_keeper(workflow_id: str) -> bool:
    """Whether this is the id of a workflow that enforces a limit."""
    return workflow_id.startswith((SLOTS, TURNS, BURSTS))


ANSWERS = "hourglass.limits.answers"
"""The name of the signal that carries a keeper's answer to a run."""


@dataclass(frozen=True)
class SlotClaim:
    """A run's claim to a slot that the run holds or waits for: the claim's ticket, and the run that receives the answer."""

    ticket: str
    workflow_id: str
    run_id: str
    pool: str
    """The name of the run's pool, which sends the requests of all tasks of the run."""


@dataclass(frozen=True)
class Answers:
    """An answer to a run: numbers of slots or times of turns, and whether other runs wait for the key.

    If `until` is set, the key is lent to the run until that time. `given` are the earlier turns that still count.
    """

    numbers: tuple[int | None, ...] = ()
    others: bool = False
    until: int = 0
    given: tuple[int, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A message to a run, sent with the signal `ANSWERS`. `name` is the name of the run's pool or of one request."""

    place: SlotClaim
    name: str
    answers: Answers


@dataclass(frozen=True)
class Lease:
    """A run's request for slots (`want`, by number), with the slots that it returns (`back`) and all slots that it
    holds.

    `notice` is the time in seconds within which the keeper must notice that a holder has closed.
    """

    run: SlotClaim
    want: tuple[int, ...]
    back: tuple[int, ...]
    holds: tuple[int, ...]
    limit: int
    notice: float

    def claims(self, numbers: tuple[int, ...]) -> tuple[SlotClaim, ...]:
        """Return the claims with these numbers."""
        name = self.run.pool
        return tuple(replace(self.run, ticket=f"{name}#{number}") for number in numbers)


@dataclass(frozen=True)
class Return:
    """A run's return of slots, or of places in the queue."""

    pool: str
    numbers: tuple[int, ...]

    @property
    def tickets(self) -> set[str]:
        """The tickets of the returned slots and places."""
        return {f"{self.pool}#{number}" for number in self.numbers}


@dataclass(frozen=True)
class SlotTable:
    """The slots of a key: the claims that hold a slot, and the waiting claims."""

    limit: int = 1
    held: tuple[SlotClaim, ...] = ()
    waiting: tuple[SlotClaim, ...] = ()


@dataclass(frozen=True)
class Slots:
    """The complete state of a key. `told` contains the pools that have been notified that other runs wait."""

    places: SlotTable = field(default_factory=SlotTable)
    notice: float = 10.0
    told: tuple[str, ...] = ()


class SlotBook:
    """The slots of a key and the queue for them, as mutable state. The cost of a message does not grow with the queue."""

    def __init__(self, slots: Slots | None = None) -> None:
        slots = slots or Slots()
        self.limit = slots.places.limit
        self.notice = slots.notice
        self.held = {claim.ticket: claim for claim in slots.places.held}
        self.waiting = {claim.ticket: claim for claim in slots.places.waiting}
        self.told = set(slots.told)

    @property
    def slots(self) -> Slots:
        """The complete state, as immutable data."""
        return Slots(self.table, self.notice, tuple(sorted(self.told)))

    @property
    def table(self) -> SlotTable:
        """The claims that hold a slot, and the waiting claims."""
        return SlotTable(self.limit, tuple(self.held.values()), tuple(self.waiting.values()))

    @property
    def is_idle(self) -> bool:
        """Whether no run holds a slot or waits for one."""
        return not (self.held or self.waiting)

    def lease(self, lease: Lease) -> None:
        """Apply a run's request: return slots and queue the new claims. The request also informs a new keeper of the
        slots that the run holds.
        """
        self.give_back(claim.ticket for claim in lease.claims(lease.back))
        for claim in lease.claims(lease.holds):
            self.waiting.pop(claim.ticket, None)
            self.held.setdefault(claim.ticket, claim)
        for claim in lease.claims(lease.want):
            self.want(claim, lease.limit)
        self.limit, self.notice = lease.limit, lease.notice

    def want(self, claim: SlotClaim, limit: int) -> None:
        """Queue a claim. The limit of the latest request applies, so that a deployment can change the limit."""
        self.limit = limit
        if claim.ticket not in self.held:
            self.waiting.setdefault(claim.ticket, claim)

    def give_back(self, tickets: Iterable[str]) -> None:
        """Release these slots, or these places in the queue."""
        for ticket in tickets:
            self.held.pop(ticket, None)
            self.waiting.pop(ticket, None)

    def grant(self) -> tuple[SlotClaim, ...]:
        """Grant free slots to the first claims in the queue. Return the claims that were granted a slot."""
        granted: list[SlotClaim] = []
        while self.waiting and len(self.held) < self.limit:
            claim = self.waiting.pop(next(iter(self.waiting)))
            self.held[claim.ticket] = claim
            granted.append(claim)
        return tuple(granted)

    def answers(self, granted: Sequence[SlotClaim]) -> list[Answer]:
        """Return the answers to the pools of these newly granted claims. Also return messages for pools that hold slots
        and have not been notified yet that other runs wait.
        """
        answers: list[Answer] = []
        for pool in dict.fromkeys(place.pool for place in granted):
            mine = [place for place in granted if place.pool == pool]
            self.told.discard(pool)
            answers.append(self._to_pool(mine[0], [int(claim.ticket.rpartition("#")[2]) for claim in mine]))
        if self.waiting:
            pools = {claim.pool: claim for claim in self.held.values() if claim.pool not in self.told}
            answers += [self._to_pool(place, []) for place in pools.values() if self._others_wait(place)]
        return answers

    def reminders(self) -> list[Answer]:
        """Return a reminder for each pool that holds slots. If a reminder cannot be delivered, the run has closed and
        its slots are free.
        """
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
        is_contended = self._others_wait(place)
        if is_contended:
            self.told.add(place.pool)
        return Answer(place, place.pool, Answers(tuple(numbers), is_contended))

    def _others_wait(self, place: SlotClaim) -> bool:
        return any(claim.run_id != place.run_id for claim in self.waiting.values())


MICROSECONDS = 1_000_000
_LATELY = 2 * MICROSECONDS
_SET_BACK = MICROSECONDS
"""The clock counts as corrected if the time has moved back by at least this much."""


@dataclass(frozen=True)
class Rate:
    """At most `limit` turns in any interval of `period` microseconds. `smooth` spreads the turns evenly."""

    limit: int
    period: int
    smooth: bool = False

    @property
    def kept(self) -> int:
        """The number of past turns that affect the next turn."""
        return 1 if self.smooth else self.limit

    def all_at(self, moment: int) -> tuple[int, ...]:
        """Return as many turns as can still count, all at this time. Used if the actual times of used turns are unknown."""
        return (moment,) * self.kept


@dataclass(frozen=True)
class GrantedTurn:
    """A granted turn: its ticket and its time."""

    ticket: str
    at: int


@dataclass(frozen=True)
class Turns:
    """The granted turns that still count, in order."""

    given: tuple[GrantedTurn, ...] = ()


def next_turn(
    turns: Turns, ticket: str, rate: Rate, now: int, latest: int | None
) -> tuple[Turns, int | None]:
    """Return the new turns and the time of the turn for a ticket. If that time would be after `latest`, return None and
    grant no turn.
    """
    for turn in turns.given:
        if turn.ticket == ticket:
            return turns, turn.at
    at = max(now, _earliest(turns.given, rate))
    if latest is not None and at > latest:
        return turns, None
    return replace(turns, given=(*turns.given, GrantedTurn(ticket, at))[-rate.kept :]), at


def _earliest(turns: tuple[GrantedTurn, ...], rate: Rate) -> int:
    if not turns:
        return 0
    if rate.smooth:
        return turns[-1].at - (-rate.period // rate.limit)  # rounded up: never too early
    in_order = turns[-1].at
    return max(in_order, turns[-rate.limit].at + rate.period) if len(turns) >= rate.limit else in_order


def is_forgettable(turns: Turns, period: int, now: int) -> bool:
    """Whether no past turn affects the next turn."""
    return not turns.given or turns.given[-1].at + period <= now


def with_added_turns(turns: Turns, moments: Sequence[int], rate: Rate) -> Turns:
    """Return the turns that count, after adding turns at these times."""
    all_turns = sorted((*turns.given, *(GrantedTurn("", at) for at in moments)), key=lambda turn: turn.at)
    return Turns(tuple(all_turns[-max(rate.kept, len(turns.given)) :]))


@dataclass(frozen=True)
class TurnRequest:
    """A run's request for `count` turns, none of them after `latest` (in microseconds)."""

    place: SlotClaim
    rate: Rate
    latest: int | None
    count: int
    used: tuple[int, ...] = ()
    """The turns that the run has granted to its tasks during its loan of the key, if they still count."""
    loan: int = 0
    """The requested duration of a loan of the key, in microseconds."""


@dataclass(frozen=True)
class Loan:
    """A loan of a key to a run until a time. During the loan the run itself grants turns to its tasks, within the rate."""

    place: SlotClaim
    rate: Rate
    until: int


@dataclass(frozen=True)
class Used:
    """A run's return of a loan, with the times of the turns that the run has granted to its tasks."""

    pool: str
    moments: tuple[int, ...]


@dataclass(frozen=True)
class Throttle:
    """The complete state of a key: the granted turns, the open requests, and the loan."""

    turns: Turns = field(default_factory=Turns)
    open: tuple[TurnRequest, ...] = ()
    period: int = 0
    loan: Loan | None = None
    seen: int = 0
    """The time at which turns were last granted."""


class TurnBook:
    """The turns of a key, its loan, and the waiting requests, as mutable state."""

    def __init__(self, throttle: Throttle | None = None) -> None:
        throttle = throttle or Throttle()
        self.turns = throttle.turns
        self.open = list(throttle.open)
        self.period = throttle.period
        self.loan = throttle.loan
        self.seen = throttle.seen
        self.held: list[TurnRequest] = []
        """Requests that wait for the end of the loan."""
        self._recalled = False
        self._users: dict[str, int] = {}

    @property
    def throttle(self) -> Throttle:
        """The complete state, as immutable data."""
        return Throttle(self.turns, (*self.held, *self.open), self.period, self.loan, self.seen)

    def hand_in(self, used: Used) -> None:
        """Apply the return of a loan."""
        if self.loan is not None and self.loan.place.pool == used.pool:
            self._end_loan(used.moments)

    def serve(self, now: int) -> list[Answer]:
        """Answer the open requests. Recall the loan if other runs wait, or if the clock was set back."""
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
        """Whether turns were granted while the clock was ahead, and the clock has been set back since."""
        return self.seen > now + _SET_BACK

    def _set_back(self, now: int) -> None:
        """Move turns that were granted while the clock was ahead back by the amount of the correction. Earlier turns
        keep their times.
        """
        by = self.seen - now
        moved: list[GrantedTurn] = []
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
        """End the recalled loan of a run that has closed. The number of turns that the run used is unknown, but none of
        them was later than now.
        """
        if self._recalled and self.loan is not None and self.loan.place in gone:
            self._end_loan(self.loan.rate.all_at(now))

    def drop_run(self, run_id: str, now: int) -> None:
        """Remove the requests and the loan of a run that has closed."""
        self.open = [request for request in self.open if request.place.run_id != run_id]
        self.held = [request for request in self.held if request.place.run_id != run_id]
        if self.loan is not None and self.loan.place.run_id == run_id:
            self._end_loan(self.loan.rate.all_at(now))

    def end_expired_loan(self, now: int) -> bool:
        """End the loan if it has expired. Return whether it had."""
        if self.loan is None or self.loan.until > now:
            return False
        self._end_loan(self.loan.rate.all_at(self.loan.until))
        return True

    def is_forgettable(self, now: int) -> bool:
        """Whether neither past turns nor a loan nor requests affect the next turn."""
        waits = self.loan is not None or self.open or self.held
        return not waits and is_forgettable(self.turns, self.period, now)

    def _may_have(self, ask: TurnRequest, now: int) -> bool:
        """Whether the request can be answered now. While another run has a loan, the request must wait until the loan is
        returned or expires.
        """
        self._users[ask.place.run_id] = now
        loan = self.loan
        if loan is None:
            return True
        if ask.place.pool == loan.place.pool:
            self._end_loan(ask.used)
            return True
        if self.end_expired_loan(now):
            return True
        self.held.append(ask)
        return False

    def _end_loan(self, used: tuple[int, ...]) -> None:
        if self.loan is not None:
            self.turns = with_added_turns(self.turns, used, self.loan.rate)
        self.loan, self._recalled = None, False
        self.open, self.held = [*self.held, *self.open], []

    def _lend(self, ask: TurnRequest, now: int) -> int:
        """Lend the key to the run and return the end of the loan. Return 0 if the run requested no loan or other runs
        have recently requested turns.
        """
        self._users = {run: at for run, at in self._users.items() if at > now - _LATELY}
        if not ask.loan or self.loan is not None or self.held or self._users.keys() != {ask.place.run_id}:
            return 0
        self.loan = Loan(ask.place, ask.rate, now + ask.loan)
        return self.loan.until

    def _answer(self, ask: TurnRequest, now: int) -> Answer:
        ticket = ask.place.ticket
        moments = [self._turn_for(ask, f"{ticket}#{number}", now) for number in range(ask.count)]
        until = self._lend(ask, now)
        earlier = tuple(turn.at for turn in self.turns.given) if until else ()
        return Answer(ask.place, ticket, Answers(tuple(moments), until=until, given=earlier))

    def _turn_for(self, ask: TurnRequest, ticket: str, now: int) -> int | None:
        self.period = max(self.period, ask.rate.period)
        self.turns, at = next_turn(self.turns, ticket, ask.rate, now, ask.latest)
        return at


def _sooner(ask: TurnRequest, by: int, now: int) -> TurnRequest:
    """Return a request with its deadline moved back, because the request was made while the clock was ahead."""
    late = ask.latest is not None and ask.latest > now
    return replace(ask, latest=max(now, ask.latest - by)) if late and ask.latest is not None else ask


_MANY_CALLS = 10_000


@dataclass(frozen=True)
class DebounceCall:
    """A debounced call: the workflow to start, and how long to wait for further calls. Durations are in seconds."""

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
    """Calls that will become one run: the last call, the times of the first and the last call (in seconds), and the
    tickets of all calls.
    """

    call: DebounceCall
    first: float
    last: float
    tickets: tuple[str, ...]

    @property
    def due(self) -> float:
        """The time at which the run is started, unless another call arrives."""
        if len(self.tickets) >= _MANY_CALLS:
            return self.last
        calm = self.last + self.call.wait
        return calm if self.call.max_wait is None else min(calm, self.first + self.call.max_wait)


def joined(burst: Burst | None, call: DebounceCall, now: float) -> Burst:
    """Return the burst with this call added."""
    if burst is None:
        return Burst(call, now, now, (call.ticket,))
    return replace(burst, call=call, last=now, tickets=(*burst.tickets, call.ticket))


class KeptLimit(msgspec.Struct, frozen=True):
    """The state that an engine stores for a key: slots, turns, or calls that will become a workflow (`becomes`, at
    `due_ns`). `id` is the id of the workflow that would enforce the limit on a server.
    """

    id: str
    slots: SlotTable | None = None
    turns: Turns | None = None
    calls: int = 0
    becomes: str = ""
    due_ns: int = 0


class KeptLimits(msgspec.Struct, frozen=True):
    """The limits that an engine enforces itself, or None if workflows enforce them."""

    found: tuple[KeptLimit, ...] | None = None


class ListLimits(Request[KeptLimits], frozen=True, kw_only=True):
    """Return the limits that the engine enforces: the limit with this id, or all."""

    effect: ClassVar[Effect] = Effect.READ
    id: str = ""


class BurstState(msgspec.Struct, frozen=True):
    """The state of debounced calls: waiting (`pending`), started as this run, or dropped (`run_id` is empty)."""

    pending: bool = False
    run_id: str = ""


class AwaitBurst(Request[BurstState], frozen=True, kw_only=True):
    """Wait until the calls of a key have become a workflow with the id `workflow_id`."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    waits: ClassVar[bool] = True
    id: str
    workflow_id: str
