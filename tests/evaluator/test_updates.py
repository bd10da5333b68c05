"""Updates: acceptance, rejection without effect, completion in the same activation."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator.commands import AcceptUpdate, CompleteUpdate, FailRun, RejectUpdate, TaskFailed
from hourglass._evaluator.events import UpdateReceived
from hourglass.converter import Payload
from hourglass.errors import ApplicationError, ReadOnlyError

from .activities import charge
from .conftest import Drive
from .driver import as_bytes, brief, decode, signal, update


@workflow.defn
class Account:
    def __init__(self) -> None:
        self.balance = 0
        self.checks = 0

    @workflow.run
    def run(self) -> list[Any]:
        workflow.wait_condition(self.rich)
        return [self.balance, workflow.random().random()]

    def rich(self) -> bool:
        """Count the checks of the condition, which real workflows must not do."""
        self.checks += 1
        return self.balance >= 100

    @workflow.update
    def deposit(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    @deposit.validator
    def check(self, amount: int) -> None:
        if amount == 13:
            charge("not allowed")
        if amount <= 0:
            raise ValueError("must be positive")

    @workflow.update
    def pay(self, what: str) -> str:
        return charge(what)

    @workflow.update
    def fails(self, how: str) -> None:
        if how == "application":
            raise ApplicationError("refused after all")
        raise ValueError("a bug")


def test_update_is_accepted_and_completed_in_one_activation(begin_run: Drive) -> None:
    d = begin_run(Account)
    accepted, completed = d.send(update("deposit", 5))
    assert accepted == AcceptUpdate("u")
    assert isinstance(completed, CompleteUpdate)
    assert decode(completed.result) == 5


def test_update_completes_after_its_handler_has_waited(begin_run: Drive) -> None:
    d = begin_run(Account)
    assert brief(d.send(update("pay", "book"))) == ["AcceptUpdate", "charge(book)"]
    (completed,) = d.send(d.done("charge", "paid"))
    assert isinstance(completed, CompleteUpdate)
    assert decode(completed.result) == "paid"


def test_exception_in_a_validator_rejects_the_update(begin_run: Drive) -> None:
    d = begin_run(Account)
    (rejected,) = d.send(update("deposit", -1))
    assert isinstance(rejected, RejectUpdate)
    assert rejected.failure.message == "must be positive"


def test_replay_skips_the_update_validator(begin_run: Drive) -> None:
    d = begin_run(Account)
    assert brief(d.send(update("deposit", -1, run_validator=False))) == ["AcceptUpdate", "CompleteUpdate"]


def test_rejected_update_leaves_no_trace_in_the_run(drive: Drive) -> None:
    """It adds no journal entry, checks no condition, and uses neither randomness nor sequence numbers."""
    rejected, clean = drive(Account), drive(Account)
    for d in (rejected, clean):
        d.begin()
    journal = list(rejected.run.state.journal)
    missing_argument = UpdateReceived(id="x", protocol_instance_id="x", name="pay")
    for bad in (update("deposit", 0, id="a"), update("unknown", id="b"), missing_argument):
        assert brief(rejected.send(bad)) == ["RejectUpdate"]
    assert rejected.run.state.journal == journal
    commands = [d.send(update("deposit", 100)) for d in (rejected, clean)]
    assert brief(commands[0]) == ["AcceptUpdate", "CompleteUpdate", "CompleteRun"]
    assert as_bytes(commands[0]) == as_bytes(commands[1])


def test_rejected_update_does_not_wake_a_condition_that_has_become_true(begin_run: Drive) -> None:
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

    d = begin_run(Patient)
    d.send(signal("look"))
    d.send(signal("look"))
    assert brief(d.send(update("never"))) == ["RejectUpdate"]
    assert d.terminal is None


def test_undecodable_arguments_reject_the_update_without_showing_them(begin_run: Drive) -> None:
    d = begin_run(Account)
    event = UpdateReceived(id="u", protocol_instance_id="u", name="deposit", arguments=(Payload(b"secret{"),))
    (rejected,) = d.send(event)
    assert isinstance(rejected, RejectUpdate)
    assert "secret" not in repr(rejected)


def test_rejection_of_an_unknown_update_lists_the_known_updates(begin_run: Drive) -> None:
    d = begin_run(Account)
    (rejected,) = d.send(update("withdraw"))
    assert isinstance(rejected, RejectUpdate)
    assert "deposit, fails, pay" in rejected.failure.message


def test_durable_call_in_an_update_validator_fails_the_task(begin_run: Drive) -> None:
    d = begin_run(Account)
    assert isinstance(d.offer(update("deposit", 13)), TaskFailed)
    assert isinstance(d.run.error, ReadOnlyError)


def test_failure_in_an_update_handler_fails_only_the_update(begin_run: Drive) -> None:
    d = begin_run(Account)
    accepted, rejected = d.send(update("fails", "application"))
    assert isinstance(accepted, AcceptUpdate)
    assert isinstance(rejected, RejectUpdate)
    assert rejected.failure.message == "refused after all"
    assert not isinstance(d.terminal, FailRun)


def test_bug_in_an_update_handler_parks_the_run(begin_run: Drive) -> None:
    d = begin_run(Account)
    assert isinstance(d.offer(update("fails", "bug")), TaskFailed)
    assert isinstance(d.run.error, ValueError)


def test_update_with_start_waits_for_a_handler_registered_by_the_body(drive: Drive) -> None:
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
    commands = d.begin(update("deposit", 4, id="a"), update("deposit", -4, id="b"), update("unknown", id="c"))
    assert brief(commands) == ["AcceptUpdate", "CompleteUpdate", "RejectUpdate", "RejectUpdate"]
    d.send(update("deposit", 9, id="d"))
    assert d.result == 13


def test_replay_of_another_sdk_rejects_an_update_before_its_handler_exists(drive: Drive) -> None:
    @workflow.defn
    def account() -> None:
        workflow.update(name="late")(lambda: None)
        workflow.sleep(1)

    d = drive(account, replaying=True)
    assert brief(d.begin(update("late"))) == ["RejectUpdate", "timer 1"]


@pytest.mark.parametrize("names", [["a", "b"], ["b", "a"]])
def test_updates_are_handled_in_the_order_of_arrival(begin_run: Drive, names: list[str]) -> None:
    d = begin_run(Account)
    commands = d.send(*[update("deposit", 1, id=name) for name in names])
    assert [command.protocol_instance_id for command in commands] == [  # type: ignore[attr-defined]
        names[0],
        names[0],
        names[1],
        names[1],
    ]
