"""Updates: accepted, rejected without a trace, answered in their own activation."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator.commands import AcceptUpdate, CompleteUpdate, FailRun, RejectUpdate, TaskFailed
from hourglass._evaluator.events import UpdateReceived
from hourglass.converter import Payload
from hourglass.errors import ApplicationError, ReadOnlyError

from .acts import charge
from .conftest import Drive
from .driver import as_bytes, brief, decode, signal, update


@workflow.defn
class Account:
    """A balance that is changed by updates."""

    def __init__(self) -> None:
        self.balance = 0
        self.looks = 0

    @workflow.run
    def run(self) -> list[Any]:
        """Wait until rich."""
        workflow.wait_condition(self.rich)
        return [self.balance, workflow.random().random()]

    def rich(self) -> bool:
        """The condition; it counts how often it was looked at, which only tests may do."""
        self.looks += 1
        return self.balance >= 100

    @workflow.update
    def deposit(self, amount: int, tags: list[str] | None = None) -> int:
        """Put something in."""
        self.balance += amount
        return self.balance if tags is None else len(tags)

    @deposit.validator
    def check(self, amount: int, tags: list[str] | None = None) -> None:
        """Refuse what is not positive, and meddle with the arguments."""
        if tags is not None:
            tags.clear()
        if amount == 13:
            charge("not allowed")
        if amount <= 0:
            raise ValueError("must be positive")

    @workflow.update
    def pay(self, what: str) -> str:
        """An update that waits."""
        return charge(what)

    @workflow.update
    def fails(self, how: str) -> None:
        """An update that raises."""
        if how == "application":
            raise ApplicationError("refused after all")
        raise ValueError("a bug")


def test_accepted_update_completes_at_once(drive: Drive) -> None:
    """Accepted, then completed with its result, in the activation in which it came."""
    d = drive(Account)
    d.begin()
    accepted, completed = d.send(update("deposit", 5))
    assert accepted == AcceptUpdate("u")
    assert isinstance(completed, CompleteUpdate)
    assert decode(completed.result) == 5


def test_update_handler_may_wait(drive: Drive) -> None:
    """Accepted now, completed when its handler returns."""
    d = drive(Account)
    d.begin()
    assert brief(d.send(update("pay", "book"))) == ["AcceptUpdate", "charge(book)"]
    (completed,) = d.send(d.done("charge", "paid"))
    assert isinstance(completed, CompleteUpdate)
    assert decode(completed.result) == "paid"


def test_validator_rejects_an_update(drive: Drive) -> None:
    """What it raises is the reason; the handler does not run."""
    d = drive(Account)
    d.begin()
    (rejected,) = d.send(update("deposit", -1))
    assert isinstance(rejected, RejectUpdate)
    assert rejected.failure.message == "must be positive"


def test_validator_cannot_change_the_arguments(drive: Drive) -> None:
    """The handler gets arguments of its own."""
    d = drive(Account)
    d.begin()
    completed = d.send(update("deposit", 1, ["a", "b"]))[-1]
    assert isinstance(completed, CompleteUpdate)
    assert decode(completed.result) == 2


def test_replay_skips_the_validator(drive: Drive) -> None:
    """What was accepted once is not validated again."""
    d = drive(Account)
    d.begin()
    assert brief(d.send(update("deposit", -1, run_validator=False))) == ["AcceptUpdate", "CompleteUpdate"]


def test_rejected_update_changes_nothing(drive: Drive) -> None:
    """No journal entry, no check of a condition, no randomness, no number."""
    rejected, clean = drive(Account), drive(Account)
    for d in (rejected, clean):
        d.begin()
    journal = list(rejected.run.state.journal)
    unfit = UpdateReceived(id="x", protocol_instance_id="x", name="pay")
    for bad in (update("deposit", 0, id="a"), update("nobody", id="b"), unfit):
        assert brief(rejected.send(bad)) == ["RejectUpdate"]
    assert rejected.run.state.journal == journal
    commands = [d.send(update("deposit", 100)) for d in (rejected, clean)]
    assert brief(commands[0]) == ["AcceptUpdate", "CompleteUpdate", "CompleteRun"]
    assert as_bytes(commands[0]) == as_bytes(commands[1])


def test_rejected_update_does_not_check_conditions(drive: Drive) -> None:
    """A condition that has become true by itself is not let through by an update that history will not know."""

    @workflow.defn
    class Patient:
        def __init__(self) -> None:
            self.go = False

        @workflow.run
        def run(self) -> str:
            workflow.wait_condition(lambda: workflow.time_ns() % (10 * 10**9) == 3 * 10**9)
            return "through"

        @workflow.update
        def never(self) -> None: ...

        @never.validator
        def refuse(self) -> None:
            raise ApplicationError("no")

        @workflow.signal
        def look(self) -> None: ...

    d = drive(Patient)
    d.begin()
    d.send(signal("look"))
    d.send(signal("look"))
    assert brief(d.send(update("never"))) == ["RejectUpdate"]
    assert d.terminal is None


def test_invalid_arguments_reject_the_update(drive: Drive) -> None:
    """Arguments that cannot be decoded reject the update, and do not show themselves."""
    d = drive(Account)
    d.begin()
    event = UpdateReceived(id="u", protocol_instance_id="u", name="deposit", arguments=(Payload(b"secret{"),))
    (rejected,) = d.send(event)
    assert isinstance(rejected, RejectUpdate)
    assert "secret" not in repr(rejected)


def test_unknown_update_lists_the_known_ones(drive: Drive) -> None:
    """The reason lists what could be asked for."""
    d = drive(Account)
    d.begin()
    (rejected,) = d.send(update("withdraw"))
    assert isinstance(rejected, RejectUpdate)
    assert "deposit, fails, pay" in rejected.failure.message


def test_durable_call_in_a_validator_fails_the_task(drive: Drive) -> None:
    """It is a bug, not a rejection."""
    d = drive(Account)
    d.begin()
    assert isinstance(d.offer(update("deposit", 13)), TaskFailed)
    assert isinstance(d.run.error, ReadOnlyError)


def test_failure_in_an_update_handler_fails_only_the_update(drive: Drive) -> None:
    """An `ApplicationError` goes to the one who asked; the run goes on."""
    d = drive(Account)
    d.begin()
    accepted, rejected = d.send(update("fails", "application"))
    assert isinstance(accepted, AcceptUpdate)
    assert isinstance(rejected, RejectUpdate)
    assert rejected.failure.message == "refused after all"
    assert not isinstance(d.terminal, FailRun)


def test_bug_in_an_update_handler_parks_the_run(drive: Drive) -> None:
    """Any other exception fails the task, as in the body."""
    d = drive(Account)
    d.begin()
    assert isinstance(d.offer(update("fails", "bug")), TaskFailed)
    assert isinstance(d.run.error, ValueError)


def test_handler_registered_by_the_body_answers_the_first_update(drive: Drive) -> None:
    """Update-with-start: the update waits until the body has blocked, and is answered in the same activation."""

    @workflow.defn
    def account() -> int:
        total = 0

        @workflow.update
        def deposit(amount: int) -> int:
            nonlocal total
            total += amount
            return total

        @deposit.validator
        def check(amount: int) -> None:
            if amount < 0:
                raise ValueError("negative")

        workflow.wait_condition(lambda: total > 10)
        return total

    d = drive(account)
    commands = d.begin(update("deposit", 4, id="a"), update("deposit", -4, id="b"), update("nobody", id="c"))
    assert brief(commands) == ["AcceptUpdate", "CompleteUpdate", "RejectUpdate", "RejectUpdate"]
    d.send(update("deposit", 9, id="d"))
    assert d.result == 13


def test_foreign_history_rejects_an_unhandled_update_at_once(drive: Drive) -> None:
    """In a run that another SDK began, an update without a handler is rejected where that SDK rejected it."""

    @workflow.defn
    def account() -> None:
        workflow.update(name="late")(lambda: None)
        workflow.sleep(1)

    d = drive(account, replaying=True)
    assert brief(d.begin(update("late"))) == ["RejectUpdate", "timer 1"]


@pytest.mark.parametrize("names", [["a", "b"], ["b", "a"]])
def test_updates_are_handled_in_the_order_of_arrival(drive: Drive, names: list[str]) -> None:
    """Several updates of one activation run in their order."""
    d = drive(Account)
    d.begin()
    commands = d.send(*[update("deposit", 1, id=name) for name in names])
    assert [command.protocol_instance_id for command in commands] == [  # type: ignore[attr-defined]
        names[0],
        names[0],
        names[1],
        names[1],
    ]
