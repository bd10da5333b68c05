"""`env.explore` finds typical bugs, each with its shortest sequence of steps, and finds none in correct workflows."""

from __future__ import annotations

from typing import Any

import pytest

from effort import cases
from hourglass.errors import ExplorationFailed, NondeterminismError, WorkflowParked
from hourglass.testing import Arrival, Environment, sometime

from . import explored as x


class Bank:
    """A bank that takes a payment once per key."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}

    def pay(self, key: str, cents: int) -> None:
        self.taken[key] = cents


class Case:
    """A workflow with a bug, its correct version, and the property of both."""

    arguments: tuple[Any, ...] = ("o-1",)
    arrivals: tuple[Arrival, ...] = ()
    buggy: Any
    correct: Any

    def prepare(self, env: Environment) -> None:
        raise NotImplementedError

    def check(self, result: Any, env: Environment) -> None:
        raise NotImplementedError


class Saga(Case):
    """A charge without a delivery is refunded."""

    buggy, correct = x.saga_without_refund_after_timeout, x.saga

    def prepare(self, env: Environment) -> None:
        env.fake(x.charge, lambda order_id: f"charge-{order_id}")
        env.fake(x.ship)
        env.fake(x.refund)
        env.cannot_fail(x.refund)
        env.cannot_fail(x.charge)

    def check(self, result: Any, env: Environment) -> None:
        charged = any(call.returned for call in env.calls(x.charge))
        if isinstance(result, Exception) and charged:
            assert env.calls(x.refund), "charged and not refunded"


class Payment(Case):
    """The bank takes the money once."""

    buggy, correct = x.pays_with_a_new_key, x.pays_with_the_same_key
    arguments = (1200,)

    def prepare(self, env: Environment) -> None:
        self.bank = Bank()
        env.fake(x.pay, self.bank.pay)

    def check(self, result: Any, env: Environment) -> None:
        assert len(self.bank.taken) <= 1, f"paid {len(self.bank.taken)} times"


class Approval(Case):
    """A cancelled order is not shipped."""

    buggy, correct = x.ShipsUnapproved, x.ShipsApproved
    arrivals = (sometime().signal("approve"),)

    def prepare(self, env: Environment) -> None:
        env.fake(x.ship)
        env.fake(x.cancel_order)

    def check(self, result: Any, env: Environment) -> None:
        assert not (env.calls(x.cancel_order) and env.calls(x.ship)), "cancelled, and shipped"


class EarlySignal(Case):
    """A name that was added is in the result."""

    buggy, correct = x.UsesDataBeforeLoading, x.WaitsForData
    arrivals = (sometime().signal(x.WaitsForData.add, "Ann"),)

    def prepare(self, env: Environment) -> None:
        env.fake(x.load, returns=["Bob"])
        env.cannot_fail(x.load)

    def check(self, result: Any, env: Environment) -> None:
        assert result == ["Bob", "Ann"]


class Updates(Case):
    """All items are in the total."""

    buggy, correct = x.LosesUpdates, x.KeepsUpdates
    arguments = ()
    arrivals = (sometime().signal("add", "lamp"), sometime().signal("add", "chair"))

    def prepare(self, env: Environment) -> None:
        env.fake(x.price, lambda item: len(item))
        env.cannot_fail(x.price)

    def check(self, result: Any, env: Environment) -> None:
        assert result == len("lamp") + len("chair")


class Steps(Case):
    """All steps are executed."""

    buggy, correct = x.depends_on_global_state, x.without_global_state
    arguments = (20,)

    def prepare(self, env: Environment) -> None:
        x.BUSY.clear()
        env.fake(x.step)
        env.cannot_fail(x.step)

    def check(self, result: Any, env: Environment) -> None:
        assert result == 20


CASES = (Saga(), Payment(), Approval(), EarlySignal(), Updates(), Steps())


def explore(case: Case, workflow: Any, **options: Any) -> Any:
    with Environment() as env:
        return env.explore(
            workflow,
            *case.arguments,
            arrivals=case.arrivals,
            prepare=case.prepare,
            check=case.check,
            **options,
        )


def exploration_failure(case: Case, **options: Any) -> ExplorationFailed:
    with pytest.raises(ExplorationFailed) as caught:
        explore(case, case.buggy, **options)
    return caught.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__)
def test_exploration_of_a_correct_workflow_passes_hundreds_of_orders(case: Case) -> None:
    runs = cases(250, 1000)
    report = explore(case, case.correct, runs=runs)
    assert report.orders > runs // 2 or report.is_complete
    assert report.states > 5
    assert report.choice_points > 10


def _lines(error: ExplorationFailed) -> list[str]:
    return [line[4:].strip() for line in str(error).split("\n") if line.startswith(" !")]


def test_exploration_finds_a_saga_without_refund_after_a_timeout() -> None:
    error = exploration_failure(Saga())
    assert (error.broken, error.token, len(error.story)) == ("check", "3.3", 6)
    assert error.story == (
        "saga_without_refund_after_timeout('o-1') starts",
        "charge('o-1') succeeds",
        "the workflow receives: charge completed: 'charge-o-1'",
        "ship('o-1') never executes, and never has a result",
        "ship timed out (heartbeat) permanently",
        "the workflow receives: ship failed: timed out (heartbeat)",
    )
    assert "charged and not refunded" in str(error).split("\n")[0]


def test_exploration_finds_a_payment_retried_with_a_new_idempotency_key() -> None:
    error = exploration_failure(Payment())
    assert len(_lines(error)) == 1
    assert "its result is lost" in _lines(error)[0]
    assert len(error.story) == 6


def test_exploration_finds_an_approval_that_arrives_at_its_deadline() -> None:
    error = exploration_failure(Approval())
    assert len(error.story) == 8
    assert [line.split("  ")[-1] for line in _lines(error)] == ["a timer fires", "signal approve() arrives"]


def test_exploration_finds_a_signal_that_arrives_before_the_body_is_ready() -> None:
    error = exploration_failure(EarlySignal())
    assert error.broken == "parked"
    assert error.story == (
        "signal add('Ann') arrives",
        "UsesDataBeforeLoading('o-1') starts; signal add('Ann')",
    )
    assert isinstance(error.__cause__, WorkflowParked)
    assert "explored.py" in str(error)


def test_exploration_finds_a_lost_update() -> None:
    error = exploration_failure(Updates())
    assert len(_lines(error)) == 1
    assert len(error.story) == 8


def test_exploration_finds_state_outside_the_workflow() -> None:
    error = exploration_failure(Steps())
    assert error.broken == "nondeterministic"
    assert len(_lines(error)) == 1
    assert "the worker" in _lines(error)[0]
    assert len(error.story) == 2 * x.UNLUCKY + 2
    cause = error.__cause__
    assert isinstance(cause, WorkflowParked)
    assert isinstance(cause.__cause__, NondeterminismError)
    assert cause.__cause__.file.endswith("explored.py")


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__)
@pytest.mark.parametrize("seed", [1])
def test_exploration_with_another_seed_finds_a_story_of_the_same_size(case: Case, seed: int) -> None:
    first, other = exploration_failure(case), exploration_failure(case, seed=seed)
    assert (len(_lines(first)), len(first.story)) == (len(_lines(other)), len(other.story))


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__)
def test_exploration_token_repeats_the_failing_order(case: Case) -> None:
    error = exploration_failure(case)
    repeated = exploration_failure(case, story=error.token)
    assert (repeated.story, repeated.token) == (error.story, error.token)
    assert explore(case, case.correct, story=error.token).orders == 1
