"""The limits of `hourglass.limits`, kept by the engine itself: slots, turns and bursts of calls, by their keys.

On a Temporal server a small workflow keeps each key. Here the engine answers in its place, by the same protocol and the same
rules (`hourglass._contract.limits`): a run signals the workflow `hourglass.slots:KEY`, which need not exist, and the answer
comes as the signal that a keeper would send. So histories are those of Temporal, and runs can move there; and no worker, no
run and no history is needed to keep a limit.

A workflow that keeps a key goes on to do so while it is open: of one that was started before the engine could, or for runs whose
payloads the engine cannot read because a codec encodes them, it is the keeper.

Must not know: requests, handles, what the rules decide. Invariants: what a message changes, and all that is said because of
it, are one change of the store, together with the step of the run that sent it; a run that closes gives back all that it has
in the change that closes it; so nothing needs to be looked after, and after a crash runs and limits agree.

The claims of each run on the slots of a key are a row of their own in the store: what one run asks for costs the same
however many wait. A key that no run uses leaves nothing behind.
"""

from __future__ import annotations

import dataclasses
import heapq
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from hourglass._contract import limits
from hourglass._contract.limits import (
    BURSTS,
    SLOTS,
    TURNS,
    Answer,
    Ask,
    Burst,
    DebounceCall,
    KeptLimit,
    Lease,
    Return,
    SlotBook,
    SlotClaim,
    Slots,
    SlotTable,
    Throttle,
    TurnAsk,
    TurnBook,
    Turns,
    Used,
    is_keeper,
    joined,
)
from hourglass._contract.workflows import Started, StartWorkflow
from hourglass._embedded.clock import SECOND, Bell, Cancel, later
from hourglass._embedded.engine.run import LoadedRun
from hourglass._embedded.engine.runs import RunTable
from hourglass._embedded.engine.starting import check_room, start_workflow
from hourglass._embedded.rules import children
from hourglass._embedded.store.store import NoteChange
from hourglass._engine.specs import Payloads, StartSpec
from hourglass._history import events as h
from hourglass._history.encoding import plain
from hourglass.converter import Payload
from hourglass.errors import ServiceError, StorageError

logger = logging.getLogger("hourglass.embedded")

NOTE = "limit/"
"""How the names begin under which the store keeps limits."""

_PAUSE_NS = 5 * SECOND
"""How long to wait before a burst is tried again that could not be started."""
_REMEMBERED_NS = 60 * SECOND
"""How long a key remembers a burst that was run: a call whose answer was lost is made again."""
_MOST_TICKETS = 100
"""So many of the last calls of a burst are known by name, to tell one that is made twice."""

Message: TypeAlias = Ask | Lease | str | Return | TurnAsk | Used

_MESSAGES: dict[tuple[str, str], msgspec.json.Decoder[Any]] = {
    (SLOTS, "ask"): msgspec.json.Decoder(Ask),
    (SLOTS, "lease"): msgspec.json.Decoder(Lease),
    (SLOTS, "give_back"): msgspec.json.Decoder(str),
    (SLOTS, "take_back"): msgspec.json.Decoder(Return),
    (TURNS, "ask"): msgspec.json.Decoder(TurnAsk),
    (TURNS, "hand_in"): msgspec.json.Decoder(Used),
}
_call = msgspec.json.Decoder(DebounceCall)


# --- what is stored ---------------------------------------------------------------------------------------------


class ClaimRow(msgspec.Struct, frozen=True, array_like=True):
    """The claims of one run on the slots of one key. `number` orders what was asked for; `limit` and `notice` are what the run
    has said, at its last request `last`.
    """

    workflow_id: str
    limit: int
    notice: float
    last: int
    held: tuple[tuple[str, str, int], ...] = ()
    waiting: tuple[tuple[str, str, int], ...] = ()


class KeptBurst(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one key: those that will be run, as the workflow `becomes`; or, once that was started, (`fired_ns`) that."""

    burst: Burst
    becomes: str
    calls: int = 1
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    identity: str = ""
    due_ns: int = 0
    fired_ns: int = 0


_claims = msgspec.msgpack.Decoder(ClaimRow)
_throttle = msgspec.msgpack.Decoder(Throttle)
_burst = msgspec.msgpack.Decoder(KeptBurst)


class KeptSlots:
    """The slots of one key, with the order in which each run's claims were made."""

    def __init__(self) -> None:
        self.book = SlotBook()
        self.orders: dict[str, dict[str, int]] = {}
        self.spoke: dict[str, int] = {}
        self.looked_ns = 0
        self._count = 0

    def number(self) -> int:
        """The next number: later ones are of what came later."""
        self._count += 1
        return self._count

    def heard(self, claims: Iterable[SlotClaim]) -> None:
        """A run has made these claims."""
        for claim in claims:
            self.orders.setdefault(claim.run_id, {}).setdefault(claim.ticket, self.number())
            self.spoke[claim.run_id] = self.number()

    def row(self, run_id: str) -> bytes:
        """What is to be stored of a run; empty if it has no claim any more."""
        book, mine = self.book, self.orders.get(run_id, {})
        mine = {
            ticket: number for ticket, number in mine.items() if ticket in book.held or ticket in book.waiting
        }
        if not mine:
            self.orders.pop(run_id, None)
            self.spoke.pop(run_id, None)
            return b""
        self.orders[run_id] = mine
        workflow_id, parts = "", []
        for table in (book.held, book.waiting):
            found = [(table[ticket], number) for ticket, number in mine.items() if ticket in table]
            workflow_id = found[0][0].workflow_id if found else workflow_id
            parts.append(tuple((claim.ticket, claim.pool, number) for claim, number in found))
        row = ClaimRow(workflow_id, book.limit, book.notice, self.spoke.get(run_id, 0), *parts)
        return msgspec.msgpack.encode(row)

    def take_up(self, rows: Sequence[tuple[str, ClaimRow]]) -> None:
        """Begin with what was stored, by run id."""
        held: list[tuple[int, SlotClaim]] = []
        waiting: list[tuple[int, SlotClaim]] = []
        for run_id, row in rows:
            for found, stored in ((held, row.held), (waiting, row.waiting)):
                for ticket, pool, number in stored:
                    found.append((number, SlotClaim(ticket, row.workflow_id, run_id, pool)))
                    self.orders.setdefault(run_id, {})[ticket] = number
                    self._count = max(self._count, number)
            self.spoke[run_id] = row.last
            self._count = max(self._count, row.last)
        latest = max((row for _, row in rows), key=lambda row: row.last)
        in_order = [
            tuple(claim for _, claim in sorted(each, key=lambda pair: pair[0])) for each in (held, waiting)
        ]
        self.book = SlotBook(Slots(SlotTable(latest.limit, *in_order), latest.notice))


# --- keepers ----------------------------------------------------------------------------------------------------


class Keepers:
    """See the module. `runs.claims` says which keys a run has something of. Acts by itself from `begin` on."""

    def __init__(self, runs: RunTable) -> None:
        self._runs = runs
        self._slots: dict[str, KeptSlots] = {}
        self._turns: dict[str, TurnBook] = {}
        self._bursts: dict[str, KeptBurst] = {}
        self._members: dict[str, set[str]] = {}
        self._dues: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._acts = False
        self._alarm: Cancel | None = None
        self._alarm_ns = 0
        self.fired = Bell()
        """Rings when a burst was run or dropped."""
        self.load(runs.store.notes(NOTE))

    def load(self, notes: Iterable[tuple[str, bytes]]) -> None:
        """Take up what is stored. What cannot be read is forgotten: runs that wait ask again, and say what they hold."""
        slots: dict[str, list[tuple[str, ClaimRow]]] = {}
        for name, data in notes:
            id = name.removeprefix(NOTE)
            try:
                if id.startswith(SLOTS):
                    id, _, run_id = id.rpartition("\n")
                    row = _claims.decode(data)
                    slots.setdefault(id, []).append((run_id, row))
                elif id.startswith(TURNS):
                    self._turns[id] = TurnBook(_throttle.decode(data))
                    self._enrol_turns(id)
                else:
                    self._bursts[id] = kept = _burst.decode(data)
                    self._set_due(id, 0 if kept.fired_ns else kept.due_ns)
            except (msgspec.MsgspecError, ValueError) as error:
                logger.error("what is kept of the limit %r cannot be read, and is forgotten: %s", id, error)
        for id, rows in slots.items():
            self._slots[id] = kept_slots = KeptSlots()
            kept_slots.take_up(rows)
            self._enrol(id, set(kept_slots.orders))

    def begin(self) -> None:
        """Act from now on when the time of something has come."""
        self._acts = True
        if self._turns or self._bursts:
            self._set_back()
        self._set_alarm()

    def stop(self) -> None:
        """Act no more."""
        self._acts = False
        self._silence()
        self.fired.ring()

    def read_again(self, name: str) -> None:
        """What is in memory of a key cannot be stored: it is again as the store has it."""
        id = name.removeprefix(NOTE).partition("\n")[0]
        for table in (self._slots, self._turns, self._bursts):
            table.pop(id, None)
        self._enrol(id, set())
        self._set_due(id, 0)
        self.load((name, data) for name, data in self._runs.store.notes(NOTE + id) if _is_of(name, id))
        self._set_alarm()

    # --- runs -----------------------------------------------------------------------------------------------------

    def keeps(self, id: str) -> bool:
        """Whether the engine keeps this limit now: no workflow can become its keeper then."""
        return id in self._slots or id in self._turns

    def read(self, signal: h.SignalExternalWorkflowExecutionInitiated) -> Message | None:
        """What a run says to a keeper; None where the engine cannot read it, or would not know what it is about."""
        id = signal.workflow_id
        if signal.run_id or signal.child_only or len(signal.arguments) != 1 or not is_keeper(id):
            return None
        decoder = _MESSAGES.get((id.partition(":")[0] + ":", signal.signal_name))
        payload = signal.arguments[0]
        if decoder is None or payload.encoding != "json/plain":
            return None
        try:
            message: Message = decoder.decode(payload.data)
        except (msgspec.MsgspecError, ValueError):
            return None
        return message if isinstance(message, Ask | Lease | TurnAsk) or self.keeps(id) else None

    def hear(self, sender: LoadedRun, id: str, message: Message) -> None:
        """A run says something to a keeper. Within the transaction of the run's step."""
        match message:
            case TurnAsk() | Used():
                book = self._turns.setdefault(id, TurnBook())
                if book.is_ahead(self._now()):
                    self._serve_turns(id, book)
                message = _by_engine_time(message, self._lead(sender))
                if isinstance(message, Used):
                    book.hand_in(message)
                else:
                    book.open.append(message)
                self._serve_turns(id, book)
            case _:
                kept = self._slots.setdefault(id, KeptSlots())
                changed = {sender.run.run_id}
                match message:
                    case Ask():
                        kept.heard([message.place])
                        kept.book.ask(message)
                        changed.add(message.place.run_id)
                    case Lease():
                        kept.heard((*message.claims(message.holds), *message.claims(message.want)))
                        kept.book.lease(message)
                        changed.add(message.run.run_id)
                    case Return():
                        kept.book.give_back(message.tickets)
                    case ticket:
                        kept.book.give_back([ticket])
                self._serve_slots(id, kept, changed)

    def run_closed(self, run_id: str) -> None:
        """A run has closed: all that it has is free. Within the transaction of its last step."""
        for id in sorted(self._runs.claims.pop(run_id, ())):
            if (slots := self._slots.get(id)) is not None:
                slots.book.give_back(slots.orders.get(run_id, ()))
                self._serve_slots(id, slots, {run_id})
            elif (book := self._turns.get(id)) is not None:
                book.drop_run(run_id, self._now())
                self._serve_turns(id, book)

    # --- slots ----------------------------------------------------------------------------------------------------

    def _serve_slots(self, id: str, kept: KeptSlots, changed: set[str]) -> None:
        book = kept.book
        while True:
            lucky = book.grant()
            changed.update(claim.run_id for claim in lucky)
            news = book.answers(lucky)
            gone = [each.place for each in news if not self._tell(id, each)] or self._dead_holders(kept)
            if not gone:
                break
            changed.update(place.run_id for place in gone)
            book.drop(gone)
        for run_id in changed:
            row = kept.row(run_id)
            self._enrol_run(id, run_id, is_member=bool(row))
            self._store(f"{id}\n{run_id}", row)
        if book.is_idle:
            del self._slots[id]

    def _dead_holders(self, kept: KeptSlots) -> list[SlotClaim]:
        """Holders that have closed, or cannot be read: looked for, now and then, while others wait. None is to be
        expected; but a slot that is lost would be lost for ever.
        """
        now = self._runs.clock.now_ns()
        if not kept.book.waiting or now < kept.looked_ns + int(kept.book.notice * SECOND):
            return []
        kept.looked_ns = now
        return [claim for claim in kept.book.held.values() if self._open_run(claim) is None]

    # --- turns ----------------------------------------------------------------------------------------------------

    def _serve_turns(self, id: str, book: TurnBook) -> None:
        now = self._now()
        while True:
            answers = book.serve(now)
            book.drop([each.place for each in answers if not self._tell(id, each)], now)
            if not book.open:
                break
        self._enrol_turns(id)
        self._store(id, msgspec.msgpack.encode(book.throttle))
        self._set_alarm()

    def _enrol_turns(self, id: str) -> None:
        book = self._turns[id]
        loan = book.loan
        self._enrol(
            id, {each.place.run_id for each in (*book.open, *book.held, *(() if loan is None else (loan,)))}
        )
        self._set_due(id, 0 if loan is None else loan.until * 1000)

    def _now(self) -> int:
        return self._runs.clock.now_ns() // 1000

    def _lead(self, record: LoadedRun) -> int:
        """By how much a run's time is ahead, in microseconds: that of its events does not go back with the clock."""
        return max(0, record.run.latest_ns // 1000 - self._now())

    # --- bursts ---------------------------------------------------------------------------------------------------

    def debounce(self, request: StartWorkflow) -> Started | None:
        """A client debounces; None where a workflow collects the calls: one that is open, or because they cannot be read."""
        id = request.workflow_id
        if request.signal_name != "call" or not id.startswith(BURSTS) or not request.signal_arguments:
            return None
        first, *arguments = request.signal_arguments
        current = self._runs.current(id)
        if first.encoding != "json/plain" or (current is not None and current.run.is_open):
            return None
        try:
            call = _call.decode(first.data)
        except (msgspec.MsgspecError, ValueError):
            return None
        kept = self._bursts.get(id)
        if kept is not None and call.ticket in kept.burst.tickets:
            return Started("", started=False, becomes=kept.becomes)
        check_room(self._runs)
        if kept is not None and kept.fired_ns:
            kept = None
        now = self._runs.clock.now_ns()
        burst = joined(None if kept is None else kept.burst, call, now / SECOND)
        made = KeptBurst(
            burst=_with_few_tickets(burst),
            becomes=f"{call.prefix}:{self._runs.new_run_id()}" if kept is None else kept.becomes,
            calls=1 if kept is None else kept.calls + 1,
            arguments=tuple(arguments),
            headers=request.headers,
            identity=request.identity,
            due_ns=max(now, int(burst.due * SECOND)),
        )
        with self._runs.transaction():
            self._keep_burst(id, made)
        self._set_alarm()
        return Started("", started=kept is None, becomes=made.becomes)

    def is_waiting(self, becomes: str, id: str) -> bool:
        """Whether the calls that will be this workflow have not been run yet, nor dropped."""
        kept = self._bursts.get(id)
        return kept is not None and kept.becomes == becomes and not kept.fired_ns

    def _keep_burst(self, id: str, kept: KeptBurst) -> None:
        self._bursts[id] = kept
        self._set_due(id, 0 if kept.fired_ns else kept.due_ns)
        self._store(id, msgspec.msgpack.encode(kept))

    def _fire(self, id: str, kept: KeptBurst, now: int) -> None:
        """Run a workflow in the place of all calls of a burst."""
        call = kept.burst.call
        request = StartWorkflow(
            workflow_id=kept.becomes,
            workflow_type=call.workflow,
            request_id=kept.becomes,
            arguments=kept.arguments,
            headers=kept.headers,
            identity=kept.identity,
            spec=StartSpec(
                task_queue=call.task_queue,
                execution_timeout=call.execution_timeout or 0.0,
                run_timeout=call.run_timeout or 0.0,
                task_timeout=call.task_timeout or 0.0,
            ),
        )
        with self._runs.transaction():
            try:
                check_room(self._runs)
                start_workflow(self._runs, request)
            except StorageError as error:
                logger.warning("the debounced workflow %r is started later: %s", kept.becomes, error)
                self._set_due(id, later(now, _PAUSE_NS))
                return
            except ServiceError as error:
                logger.error("the debounced workflow %r cannot be started: %s", kept.becomes, error)
                self._forget_burst(id)
                return
            self._keep_burst(
                id, msgspec.structs.replace(kept, arguments=(), headers={}, due_ns=0, fired_ns=now)
            )

    def _forget_burst(self, id: str) -> None:
        self._bursts.pop(id, None)
        self._set_due(id, 0)
        self._store(id, b"")

    # --- for clients ----------------------------------------------------------------------------------------------

    def forget(self, id: str) -> bool:
        """Forget a key, as if its keeper had been terminated; whether there was something to forget."""
        if not (self.keeps(id) or id in self._bursts):
            return False
        with self._runs.transaction():
            for run_id in self._members.get(id, ()) if id in self._slots else ():
                self._store(f"{id}\n{run_id}", b"")
            if id in self._bursts:
                self._forget_burst(id)
            elif self._turns.pop(id, None) is not None:
                self._store(id, b"")
            self._slots.pop(id, None)
            self._enrol(id, set())
            self._set_due(id, 0)
        self.fired.ring()
        self._set_alarm()
        return True

    def drop_burst(self, id: str) -> bool:
        """Drop the calls of a key that have not been run; whether there were any."""
        kept = self._bursts.get(id)
        return kept is not None and not kept.fired_ns and self.forget(id)

    def view(self, id: str = "") -> Iterator[KeptLimit]:
        """What is kept of a key, or of all that are in use, by their ids."""
        for each, kept in self._slots.items() if not id else ((id, self._slots.get(id)),):
            if kept is not None:
                yield KeptLimit(each, slots=kept.book.table)
        for each, book in self._turns.items() if not id else ((id, self._turns.get(id)),):
            if book is not None:
                yield KeptLimit(each, turns=book.turns)
        for each, burst in self._bursts.items() if not id else ((id, self._bursts.get(id)),):
            if burst is not None and not burst.fired_ns:
                yield KeptLimit(each, calls=burst.calls, becomes=burst.becomes, due_ns=burst.due_ns)

    def told(self, id: str, query: str) -> Payload | None:
        """The answer to a query that a keeper would answer; None if it would not."""
        found = next(self.view(id), KeptLimit(id))
        answer: SlotTable | Turns
        match id.partition(":")[0] + ":", query:
            case limits.SLOTS, "slots":
                answer = found.slots or SlotTable()
            case limits.TURNS, "given":
                answer = found.turns or Turns()
            case _:
                return None
        return Payload(msgspec.json.encode(answer))

    # --- time -----------------------------------------------------------------------------------------------------

    def realign(self) -> None:
        """Time has jumped: set the alarm anew. Calls that came while the clock was ahead came now, and turns go by the time
        that it is now.
        """
        self._silence()
        self._set_back()
        self._set_alarm()

    def _set_back(self) -> None:
        """What was kept while the clock was ahead goes by the time that it is now."""
        now = self._runs.clock.now_ns()
        with self._runs.transaction():
            for id, book in [each for each in self._turns.items() if each[1].is_ahead(now // 1000)]:
                self._serve_turns(id, book)
        ahead = [each for each in self._bursts.items() if each[1].burst.last * SECOND > now + SECOND]
        with self._runs.transaction():
            for id, kept in ahead:
                by = kept.burst.last - now / SECOND
                burst = dataclasses.replace(
                    kept.burst, first=kept.burst.first - by, last=kept.burst.last - by
                )
                due_ns = max(now, int(burst.due * SECOND)) if kept.due_ns else 0
                fired_ns = min(kept.fired_ns, now)
                self._keep_burst(
                    id, msgspec.structs.replace(kept, burst=burst, due_ns=due_ns, fired_ns=fired_ns)
                )

    def sweep(self) -> None:
        """Forget turns that are long past, and bursts that were run a while ago."""
        now = self._runs.clock.now_ns()
        turns = [id for id, book in self._turns.items() if book.is_forgettable(now // 1000)]
        bursts = [
            id for id, kept in self._bursts.items() if kept.fired_ns and kept.fired_ns + _REMEMBERED_NS <= now
        ]
        if turns or bursts:
            with self._runs.transaction():
                for id in (*turns, *bursts):
                    self.forget(id)

    def _set_due(self, id: str, due_ns: int) -> None:
        if not due_ns:
            self._dues.pop(id, None)
        elif self._dues.get(id) != due_ns:
            self._dues[id] = due_ns
            heapq.heappush(self._heap, (due_ns, id))

    def _set_alarm(self) -> None:
        while self._heap and self._dues.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if not self._acts or not self._heap:
            self._silence()
        elif self._alarm is None or self._alarm_ns != self._heap[0][0]:
            self._silence()
            self._alarm_ns = self._heap[0][0]
            self._alarm = self._runs.clock.call_at(self._alarm_ns, self._elapse)

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm()
            self._alarm = None

    def _elapse(self) -> None:
        """The alarm: loans that are over end, and bursts that are calm are run."""
        self._alarm = None
        now = self._runs.clock.now_ns()
        while self._acts and self._heap and self._heap[0][0] <= now:
            due, id = heapq.heappop(self._heap)
            if self._dues.get(id) != due:
                continue
            del self._dues[id]
            if (kept := self._bursts.get(id)) is not None:
                self._fire(id, kept, now)
            elif (book := self._turns.get(id)) is not None:
                with self._runs.transaction():
                    book.let_loan_end(now // 1000)
                    self._serve_turns(id, book)
        self._runs.queues.dispatch()
        self._set_alarm()
        self.fired.ring()

    # --- telling and storing --------------------------------------------------------------------------------------

    def _tell(self, id: str, answer: Answer) -> bool:
        """Tell a run; whether it is there to hear."""
        record = self._open_run(answer.place)
        if record is None:
            return False
        if not record.has_signals(self._runs.limits.signals):
            values = _by_run_time(answer.values, self._lead(record)) if id in self._turns else answer.values
            arguments = tuple(_payload(each) for each in values)
            self._runs.change(
                record, lambda run, now: children.signalled_by_keeper(run, id, answer.signal, arguments, now)
            )
        return record.run.is_open

    def _open_run(self, place: SlotClaim) -> LoadedRun | None:
        try:
            record = self._runs.record(place.run_id)
        except StorageError as error:
            logger.error("a run of workflow %r cannot be read: %s", place.workflow_id, error)
            return None
        is_it = (
            record is not None and record.run.started.workflow_id == place.workflow_id and record.run.is_open
        )
        return record if is_it else None

    def _enrol(self, id: str, members: set[str]) -> None:
        """These runs, and no others, have something of a key."""
        for run_id in self._members.get(id, set()) - members:
            self._enrol_run(id, run_id, is_member=False)
        for run_id in members:
            self._enrol_run(id, run_id, is_member=True)

    def _enrol_run(self, id: str, run_id: str, *, is_member: bool) -> None:
        claims, members = self._runs.claims, self._members
        for table, one, other in ((claims, run_id, id), (members, id, run_id)):
            if is_member:
                table.setdefault(one, set()).add(other)
            elif one in table:
                table[one].discard(other)
                if not table[one]:
                    del table[one]

    def _store(self, name: str, data: bytes) -> None:
        self._runs.keep_schedule(NoteChange(schedule_id=NOTE + plain(name), data=data))


def _by_engine_time(message: TurnAsk | Used, lead: int) -> TurnAsk | Used:
    """What a run says whose time is ahead, as it is by the engine's. Such a run is not lent a key: it would have it too long."""
    if not lead:
        return message
    if isinstance(message, Used):
        return dataclasses.replace(message, moments=tuple(each - lead for each in message.moments))
    latest = None if message.latest is None else message.latest - lead
    used = tuple(each - lead for each in message.used)
    return dataclasses.replace(message, latest=latest, used=used, loan=0)


def _by_run_time(values: tuple[Any, ...], lead: int) -> tuple[Any, ...]:
    """What a run is told whose time is ahead: moments as they are by its own time."""
    ticket, told = values
    if isinstance(told, limits.Answers):
        numbers = tuple(None if each is None else each + lead for each in told.numbers)
        return ticket, dataclasses.replace(told, numbers=numbers)
    return ticket, None if told is None else told + lead


def _is_of(name: str, id: str) -> bool:
    """Whether a note is of this key: others may begin like it."""
    rest = name.removeprefix(NOTE + id)
    return not rest or (rest.startswith("\n") and "\n" not in rest[1:])


def _with_few_tickets(burst: Burst) -> Burst:
    return Burst(burst.call, burst.first, burst.last, burst.tickets[-_MOST_TICKETS:])


def _payload(value: Any) -> Payload:
    return Payload(b"", "binary/null") if value is None else Payload(msgspec.json.encode(value))
