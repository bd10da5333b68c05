"""The limits of `hourglass.limits` that the engine itself enforces: slots and throttle turns, by key. Debounced calls
are in `bursts`.

On a Temporal server a small workflow enforces the limit of each key. Here the engine answers in the workflow's place, by
the same protocol and rules (`hourglass._contract.limits`). A run signals the workflow `hourglass.slots:KEY`, which need
not exist, and receives the same signal that the workflow would send. Histories are therefore equal to those on a server,
so runs can move there, and a limit needs no worker, no run and no history.

An open workflow that enforces a key continues to do so. It may have been started by an older engine, or for runs whose
payloads the engine cannot read because a codec encodes them.

Must not know: requests, handles, the rules' decisions. Invariants: the effects of a message, all answers to it, and the
step of the run that sent it are one change of the store. A closing run releases its claims in the change that closes it.
No cleanup is therefore necessary, and runs and limits agree after a crash.

The claims of each run on the slots of a key are a separate row in the store, so the cost of a run's request does not
depend on the number of waiting runs. An unused key leaves no data behind.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from hourglass._contract import limits
from hourglass._contract.limits import (
    ANSWERS,
    SLOTS,
    TURNS,
    Answer,
    Answers,
    KeptLimit,
    Lease,
    Return,
    SlotBook,
    SlotClaim,
    Slots,
    SlotTable,
    Throttle,
    TurnBook,
    TurnRequest,
    Turns,
    Used,
    is_keeper,
)
from hourglass._embedded.clock import SECOND
from hourglass._embedded.limits.bursts import NOTE, Bursts, keep_note
from hourglass._embedded.runs.due_times import DueTimes
from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.runs.runs import RunTable
from hourglass._embedded.transitions import children
from hourglass._history import events as h
from hourglass.converter import Payload
from hourglass.errors import StorageError

logger = logging.getLogger("hourglass.embedded")

Message: TypeAlias = Lease | Return | TurnRequest | Used

_MESSAGES: dict[tuple[str, str], msgspec.json.Decoder[Any]] = {
    (SLOTS, "lease"): msgspec.json.Decoder(Lease),
    (SLOTS, "take_back"): msgspec.json.Decoder(Return),
    (TURNS, "ask"): msgspec.json.Decoder(TurnRequest),
    (TURNS, "hand_in"): msgspec.json.Decoder(Used),
}


class ClaimRow(msgspec.Struct, frozen=True, array_like=True):
    """The claims of a run on the slots of a key. `number` orders the requests. `limit` and `notice` are those of the
    run's last request, whose number is `last`.
    """

    workflow_id: str
    limit: int
    notice: float
    last: int
    held: tuple[tuple[str, str, int], ...] = ()
    waiting: tuple[tuple[str, str, int], ...] = ()


_claims = msgspec.msgpack.Decoder(ClaimRow)
_throttle = msgspec.msgpack.Decoder(Throttle)


class KeySlots:
    """The slots of a key, and the order of each run's claims."""

    def __init__(self) -> None:
        self.book = SlotBook()
        self.orders: dict[str, dict[str, int]] = {}
        self.last_request: dict[str, int] = {}
        self.checked_ns = 0
        self._count = 0

    def number(self) -> int:
        self._count += 1
        return self._count

    def record_claims(self, claims: Iterable[SlotClaim]) -> None:
        """Record the order of these claims and the last request of their runs."""
        for claim in claims:
            self.orders.setdefault(claim.run_id, {}).setdefault(claim.ticket, self.number())
            self.last_request[claim.run_id] = self.number()

    def row(self, run_id: str) -> bytes:
        """Return the row to store for a run, or b"" if the run has no claims."""
        book, own_order = self.book, self.orders.get(run_id, {})
        own_order = {
            ticket: number
            for ticket, number in own_order.items()
            if ticket in book.held or ticket in book.waiting
        }
        if not own_order:
            self.orders.pop(run_id, None)
            self.last_request.pop(run_id, None)
            return b""
        self.orders[run_id] = own_order
        workflow_id, parts = "", []
        for table in (book.held, book.waiting):
            claims = [(table[ticket], number) for ticket, number in own_order.items() if ticket in table]
            workflow_id = claims[0][0].workflow_id if claims else workflow_id
            parts.append(tuple((claim.ticket, claim.pool, number) for claim, number in claims))
        row = ClaimRow(workflow_id, book.limit, book.notice, self.last_request.get(run_id, 0), *parts)
        return msgspec.msgpack.encode(row)

    def restore(self, rows: Sequence[tuple[str, ClaimRow]]) -> None:
        """Restore the claims from the stored rows, each with its run id."""
        held: list[tuple[int, SlotClaim]] = []
        waiting: list[tuple[int, SlotClaim]] = []
        for run_id, row in rows:
            for claims, stored in ((held, row.held), (waiting, row.waiting)):
                for ticket, pool, number in stored:
                    claims.append((number, SlotClaim(ticket, row.workflow_id, run_id, pool)))
                    self.orders.setdefault(run_id, {})[ticket] = number
                    self._count = max(self._count, number)
            self.last_request[run_id] = row.last
            self._count = max(self._count, row.last)
        latest = max((row for _, row in rows), key=lambda row: row.last)
        in_order = [
            tuple(claim for _, claim in sorted(claims, key=lambda pair: pair[0]))
            for claims in (held, waiting)
        ]
        self.book = SlotBook(Slots(SlotTable(latest.limit, *in_order), latest.notice))


class Keepers:
    """The limits of an engine (see the module). `runs.claims` contains the keys that each run uses. Expired loans are
    ended only after `begin`.
    """

    def __init__(self, runs: RunTable) -> None:
        self._runs = runs
        self._slots: dict[str, KeySlots] = {}
        self._turns: dict[str, TurnBook] = {}
        self._members: dict[str, set[str]] = {}
        self._due = DueTimes(runs.clock, self._elapse)
        self.bursts = Bursts(runs)
        self.load(runs.store.notes(NOTE))

    def load(self, notes: Iterable[tuple[str, bytes]]) -> None:
        """Restore stored limits. Unreadable ones are dropped. Waiting runs then repeat their requests and report the
        slots that they hold.
        """
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
                    self.bursts.load(id, data)
            except (msgspec.MsgspecError, ValueError) as error:
                logger.error(
                    "the stored state of the limit %r cannot be read and is discarded: %s", id, error
                )
        for id, rows in slots.items():
            self._slots[id] = kept_slots = KeySlots()
            kept_slots.restore(rows)
            self._enrol(id, set(kept_slots.orders))

    def begin(self) -> None:
        """Begin to end expired loans and to start due bursts."""
        if self._turns:
            self._rebase()
        self._due.begin()
        self.bursts.begin()

    def stop(self) -> None:
        """Stop ending loans and starting bursts."""
        self._due.stop()
        self.bursts.stop()

    def read_again(self, name: str) -> None:
        """Discard the state of a key that could not be stored, and use the stored state."""
        id = name.removeprefix(NOTE).partition("\n")[0]
        for table in (self._slots, self._turns):
            table.pop(id, None)
        self._enrol(id, set())
        self._due.set(id, 0)
        self.bursts.unload(id)
        self.load((name, data) for name, data in self._runs.store.notes(NOTE + id) if _is_of(name, id))
        self._due.set_alarm()

    def keeps(self, id: str) -> bool:
        """Whether the engine currently enforces this limit. If so, no workflow can become its keeper."""
        return id in self._slots or id in self._turns

    def read(self, signal: h.SignalExternalWorkflowExecutionInitiated) -> Message | None:
        """Decode a run's message to a keeper. Return None if the engine cannot decode the message or does not enforce
        the limit.
        """
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
        return message if isinstance(message, Lease | TurnRequest) or self.keeps(id) else None

    def receive(self, sender: LoadedRun, id: str, message: Message) -> None:
        """Apply a run's message to a keeper. Must be called within the transaction of the run's step."""
        match message:
            case TurnRequest() | Used():
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
                slots = self._slots.setdefault(id, KeySlots())
                changed = {sender.run.run_id}
                match message:
                    case Lease():
                        slots.record_claims((*message.claims(message.holds), *message.claims(message.want)))
                        slots.book.lease(message)
                        changed.add(message.run.run_id)
                    case Return():
                        slots.book.give_back(message.tickets)
                self._serve_slots(id, slots, changed)

    def run_closed(self, run_id: str) -> None:
        """Release the claims and loans of a closed run. Must be called within the transaction of the run's last step."""
        for id in sorted(self._runs.claims.pop(run_id, ())):
            if (slots := self._slots.get(id)) is not None:
                slots.book.give_back(slots.orders.get(run_id, ()))
                self._serve_slots(id, slots, {run_id})
            elif (book := self._turns.get(id)) is not None:
                book.drop_run(run_id, self._now())
                self._serve_turns(id, book)

    def _serve_slots(self, id: str, slots: KeySlots, changed: set[str]) -> None:
        book = slots.book
        while True:
            granted = book.grant()
            changed.update(claim.run_id for claim in granted)
            answers = book.answers(granted)
            lost = [answer.place for answer in answers if not self._send(id, answer)]
            lost = lost or self._dead_holders(slots)
            if not lost:
                break
            changed.update(place.run_id for place in lost)
            book.drop(lost)
        for run_id in changed:
            row = slots.row(run_id)
            self._enrol_run(id, run_id, is_member=bool(row))
            keep_note(self._runs, f"{id}\n{run_id}", row)
        if book.is_idle:
            del self._slots[id]

    def _dead_holders(self, slots: KeySlots) -> list[SlotClaim]:
        """Return the claims of holders that have closed or cannot be read.

        There should be none, but a slot of a closed run would be lost permanently. So this method checks the holders
        from time to time while other runs wait.
        """
        now = self._runs.clock.now_ns()
        if not slots.book.waiting or now < slots.checked_ns + int(slots.book.notice * SECOND):
            return []
        slots.checked_ns = now
        return [claim for claim in slots.book.held.values() if self._open_run(claim) is None]

    def _serve_turns(self, id: str, book: TurnBook) -> None:
        now = self._now()
        while True:
            answers = book.serve(now)
            book.drop([answer.place for answer in answers if not self._send(id, answer)], now)
            if not book.open:
                break
        self._enrol_turns(id)
        keep_note(self._runs, id, msgspec.msgpack.encode(book.throttle))
        self._due.set_alarm()

    def _enrol_turns(self, id: str) -> None:
        book = self._turns[id]
        loan = book.loan
        self._enrol(
            id, {turn.place.run_id for turn in (*book.open, *book.held, *(() if loan is None else (loan,)))}
        )
        self._due.set(id, 0 if loan is None else loan.until * 1000)

    def _now(self) -> int:
        return self._runs.clock.now_ns() // 1000

    def _lead(self, record: LoadedRun) -> int:
        """Return how far a run's time is ahead of the engine's time, in microseconds. The timestamps of a run's events
        never go back, even if the clock is set back.
        """
        return max(0, record.run.latest_ns // 1000 - self._now())

    def forget(self, id: str) -> bool:
        """Forget a key, as if its keeper workflow had been terminated. Return whether the key existed."""
        if not self.keeps(id):
            return self.bursts.forget(id)
        with self._runs.transaction():
            for run_id in self._members.get(id, ()) if id in self._slots else ():
                keep_note(self._runs, f"{id}\n{run_id}", b"")
            if self._turns.pop(id, None) is not None:
                keep_note(self._runs, id, b"")
            self._slots.pop(id, None)
            self._enrol(id, set())
            self._due.set(id, 0)
        self._due.set_alarm()
        return True

    def view(self, id: str = "") -> Iterator[KeptLimit]:
        """Yield the state of a key, or of all used keys."""
        for key, slots in self._slots.items() if not id else ((id, self._slots.get(id)),):
            if slots is not None:
                yield KeptLimit(key, slots=slots.book.table)
        for key, book in self._turns.items() if not id else ((id, self._turns.get(id)),):
            if book is not None:
                yield KeptLimit(key, turns=book.turns)
        yield from self.bursts.view(id)

    def query(self, id: str, query: str) -> Payload | None:
        """Answer a query to the keeper workflow of a key. Return None for an unknown query."""
        limit = next(self.view(id), KeptLimit(id))
        answer: SlotTable | Turns
        match id.partition(":")[0] + ":", query:
            case limits.SLOTS, "slots":
                answer = limit.slots or SlotTable()
            case limits.TURNS, "given":
                answer = limit.turns or Turns()
            case _:
                return None
        return Payload(msgspec.json.encode(answer))

    def realign(self) -> None:
        """Adjust the times after the clock has jumped."""
        self._rebase()
        self._due.realign()
        self.bursts.realign()

    def _rebase(self) -> None:
        """Move the turns that were granted while the clock was ahead to the current time."""
        with self._runs.transaction():
            for id, book in [entry for entry in self._turns.items() if entry[1].is_ahead(self._now())]:
                self._serve_turns(id, book)

    def sweep(self) -> None:
        """Forget keys with expired turns, and finished bursts."""
        now = self._now()
        turns = [id for id, book in self._turns.items() if book.is_forgettable(now)]
        if turns:
            with self._runs.transaction():
                for id in turns:
                    self.forget(id)
        self.bursts.sweep()

    def _elapse(self) -> None:
        """End expired loans. Called by the alarm."""
        now = self._runs.clock.now_ns()
        while (id := self._due.take(now)) is not None:
            book = self._turns[id]
            with self._runs.transaction():
                book.end_expired_loan(now // 1000)
                self._serve_turns(id, book)
        self._runs.queues.dispatch()

    def _send(self, id: str, answer: Answer) -> bool:
        """Send an answer to a run as a signal. Return whether the run is open."""
        record = self._open_run(answer.place)
        if record is None:
            return False
        if not record.has_signals(self._runs.limits.signals):
            answers = answer.answers
            if id in self._turns:
                answers = _by_run_time(answers, self._lead(record))
            arguments = (_payload(answer.name), _payload(answers))
            self._runs.change(
                record, lambda run, now: children.signalled_by_keeper(run, id, ANSWERS, arguments, now)
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
        """Make these runs the only members of a key."""
        for run_id in self._members.get(id, set()) - members:
            self._enrol_run(id, run_id, is_member=False)
        for run_id in members:
            self._enrol_run(id, run_id, is_member=True)

    def _enrol_run(self, id: str, run_id: str, *, is_member: bool) -> None:
        claims, members = self._runs.claims, self._members
        for table, key, member in ((claims, run_id, id), (members, id, run_id)):
            if is_member:
                table.setdefault(key, set()).add(member)
            elif key in table:
                table[key].discard(member)
                if not table[key]:
                    del table[key]


def _by_engine_time(message: TurnRequest | Used, lead: int) -> TurnRequest | Used:
    """Convert a message to the engine's time. The sending run's time is ahead by `lead`. Such a run gets no loan,
    because the loan would last too long.
    """
    if not lead:
        return message
    if isinstance(message, Used):
        return dataclasses.replace(message, moments=tuple(moment - lead for moment in message.moments))
    latest = None if message.latest is None else message.latest - lead
    used = tuple(moment - lead for moment in message.used)
    return dataclasses.replace(message, latest=latest, used=used, loan=0)


def _by_run_time(answers: Answers, lead: int) -> Answers:
    """Convert the times in an answer to the time of a run that is ahead by `lead`."""
    numbers = tuple(None if moment is None else moment + lead for moment in answers.numbers)
    return dataclasses.replace(answers, numbers=numbers)


def _is_of(name: str, id: str) -> bool:
    """Whether a stored name belongs to this key, and not to another key with the same prefix."""
    suffix = name.removeprefix(NOTE + id)
    return not suffix or (suffix.startswith("\n") and "\n" not in suffix[1:])


def _payload(value: object) -> Payload:
    return Payload(msgspec.json.encode(value))
