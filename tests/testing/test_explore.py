"""What `env.explore` finds: bugs that people really write, each as its smallest story; and none where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from effort import cases
from hourglass.errors import ExplorationFailed, NondeterminismError, WorkflowParked
from hourglass.testing import Arrival, Environment, sometime

from . import explored as x


class Bank:
    """Takes a payment once for each key, as banks do."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}

    def pay(self, key: str, cents: int) -> None:
        self.taken[key] = cents


class Case:
    """A workflow that is wrong, the same that is right, and what must hold for both."""

    arguments: tuple[Any, ...] = ("o-1",)
    arrivals: tuple[Arrival, ...] = ()
    wrong: Any
    right: Any

    def prepare(self, env: Environment) -> None:
        raise NotImplementedError

    def check(self, result: Any, env: Environment) -> None:
        raise NotImplementedError


class Saga(Case):
    """A charge without a delivery is given back."""

    wrong, right = x.saga_forgets, x.saga

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

    wrong, right = x.pays_twice, x.pays_once
    arguments = (1200,)

    def prepare(self, env: Environment) -> None:
        self.bank = Bank()
        env.fake(x.pay, self.bank.pay)

    def check(self, result: Any, env: Environment) -> None:
        assert len(self.bank.taken) <= 1, f"paid {len(self.bank.taken)} times"


class Approval(Case):
    """What was cancelled is not shipped."""

    wrong, right = x.ShipsUnapproved, x.ShipsApproved
    arrivals = (sometime().signal("approve"),)

    def prepare(self, env: Environment) -> None:
        env.fake(x.ship)
        env.fake(x.cancel_order)

    def check(self, result: Any, env: Environment) -> None:
        assert not (env.calls(x.cancel_order) and env.calls(x.ship)), "cancelled, and shipped"


class Early(Case):
    """A name that is added is there in the end."""

    wrong, right = x.TooEarly, x.InTime
    arrivals = (sometime().signal(x.InTime.add, "Ann"),)

    def prepare(self, env: Environment) -> None:
        env.fake(x.load, returns=["Bob"])
        env.cannot_fail(x.load)

    def check(self, result: Any, env: Environment) -> None:
        assert result == ["Bob", "Ann"]


class Updates(Case):
    """What is put in is paid for."""

    wrong, right = x.LosesUpdates, x.KeepsUpdates
    arguments = ()
    arrivals = (sometime().signal("add", "lamp"), sometime().signal("add", "chair"))

    def prepare(self, env: Environment) -> None:
        env.fake(x.price, lambda item: len(item))
        env.cannot_fail(x.price)

    def check(self, result: Any, env: Environment) -> None:
        assert result == len("lamp") + len("chair")


class Steps(Case):
    """All steps are taken."""

    wrong, right = x.remembers, x.forgets
    arguments = (20,)

    def prepare(self, env: Environment) -> None:
        x.BUSY.clear()
        env.fake(x.step)
        env.cannot_fail(x.step)

    def check(self, result: Any, env: Environment) -> None:
        assert result == 20


CASES = (Saga(), Payment(), Approval(), Early(), Updates(), Steps())


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


def found(case: Case, **options: Any) -> ExplorationFailed:
    with pytest.raises(ExplorationFailed) as caught:
        explore(case, case.wrong, **options)
    return caught.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__)
def test_correct_workflow_passes_exploration(case: Case) -> None:
    """A workflow that is right holds in hundreds of orders."""
    runs = cases(250, 1000)
    report = explore(case, case.right, runs=runs)
    assert report.orders > runs // 2 or report.is_complete
    assert report.states > 5
    assert report.choice_points > 10


def _lines(error: ExplorationFailed) -> list[str]:
    return [line[4:].strip() for line in str(error).split("\n") if line.startswith(" !")]


def test_saga_without_refund_is_found() -> None:
    """A timeout is not the failure that the author thought of: one deviation, six lines."""
    error = found(Saga())
    assert (error.broken, error.token, len(error.story)) == ("check", "3.3", 6)
    assert error.story == (
        "saga_forgets('o-1') starts",
        "charge('o-1') succeeds",
        "the workflow receives: charge completed: 'charge-o-1'",
        "ship('o-1') never executes, and never has a result",
        "ship timed out (heartbeat) permanently",
        "the workflow receives: ship failed: timed out (heartbeat)",
    )
    assert "charged and not refunded" in str(error).split("\n")[0]


def test_payment_with_a_new_idempotency_key_is_found() -> None:
    """A payment whose answer was lost is made again under another key."""
    error = found(Payment())
    assert len(_lines(error)) == 1
    assert "its result is lost" in _lines(error)[0]
    assert len(error.story) == 6


def test_approval_at_its_deadline_is_found() -> None:
    """The deadline passes, and the approval comes while the order is being cancelled."""
    error = found(Approval())
    assert len(error.story) == 8
    assert [line.split("  ")[-1] for line in _lines(error)] == ["a timer fires", "signal approve() arrives"]


def test_signal_before_the_body_is_ready_is_found() -> None:
    """The signal comes first: two lines, and the line of the code is named."""
    error = found(Early())
    assert error.broken == "parked"
    assert error.story == ("signal add('Ann') arrives", "TooEarly('o-1') starts; signal add('Ann')")
    assert isinstance(error.__cause__, WorkflowParked)
    assert "explored.py" in str(error)


def test_lost_update_is_found() -> None:
    """Two handlers read before either has written."""
    error = found(Updates())
    assert len(_lines(error)) == 1
    assert len(error.story) == 8


def test_state_outside_the_workflow_is_found() -> None:
    """One of twenty places for a crash shows it, and the difference is named with its line."""
    error = found(Steps())
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
def test_every_seed_finds_a_story_of_the_same_size(case: Case, seed: int) -> None:
    """Whatever the seed, the story has the same length and the same number of deviations."""
    first, other = found(case), found(case, seed=seed)
    assert (len(_lines(first)), len(first.story)) == (len(_lines(other)), len(other.story))


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__)
def test_token_repeats_a_story(case: Case) -> None:
    """The token runs exactly the same order, which fails in the same way; on the right workflow it holds."""
    error = found(case)
    again = found(case, story=error.token)
    assert (again.story, again.token) == (error.story, error.token)
    assert explore(case, case.right, story=error.token).orders == 1
