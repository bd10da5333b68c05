"""The restart decision: restart kind, exit reason, strategy and intensity."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourglass._supervision.exits import KILLED, NORMAL, SHUTDOWN, Exit, crash
from hourglass._supervision.policy import (
    Decision,
    Intensity,
    NoRestart,
    RestartChildren,
    decide,
    delay_before,
)
from hourglass._supervision.spec import RestartKind, Strategy

CRASH = crash(ValueError())
EXITS = {"normal": NORMAL, "shutdown": SHUTDOWN, "crash": CRASH, "killed": KILLED}
RESTARTED = {
    ("permanent", "normal"): True,
    ("permanent", "shutdown"): True,
    ("permanent", "crash"): True,
    ("permanent", "killed"): True,
    ("transient", "normal"): False,
    ("transient", "shutdown"): False,
    ("transient", "crash"): True,
    ("transient", "killed"): True,
    ("temporary", "normal"): False,
    ("temporary", "shutdown"): False,
    ("temporary", "crash"): False,
    ("temporary", "killed"): False,
}
# By strategy, the children to stop and to start after the second of four permanent children has ended.
CASCADE: dict[Strategy, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "one_for_one": ((), (1,)),
    "one_for_all": ((3, 2, 0), (0, 1, 2, 3)),
    "rest_for_one": ((3, 2), (1, 2, 3)),
}


def decision(
    kinds: list[RestartKind],
    failed: int,
    reason: Exit,
    strategy: Strategy = "one_for_one",
    history: tuple[float, ...] = (),
    now: float = 100.0,
    limit: Intensity = Intensity(),
    counted: bool = True,
) -> Decision:
    return decide(strategy, kinds, failed, reason, history, now, intensity=limit, counted=counted)


def test_restart_matrix_covers_every_restart_kind_and_exit_reason() -> None:
    assert set(RESTARTED) == set(product(("permanent", "transient", "temporary"), EXITS))


@pytest.mark.parametrize("strategy", CASCADE)
@pytest.mark.parametrize(("kind", "reason"), RESTARTED)
def test_restart_decision_follows_restart_kind_exit_and_strategy(
    kind: RestartKind, reason: str, strategy: Strategy
) -> None:
    """Children are stopped in reverse order and started in order."""
    kinds: list[RestartKind] = ["permanent", kind, "permanent", "permanent"]
    result = decision(kinds, 1, EXITS[reason], strategy)
    stop, start = CASCADE[strategy]
    assert result == (RestartChildren(stop, start, (100.0,)) if RESTARTED[kind, reason] else NoRestart())


def test_restart_backoff_doubles_up_to_its_maximum() -> None:
    assert [delay_before((0.2, 10.0), n) for n in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert delay_before((0.2, 10.0), 10**9) == 10.0
    assert delay_before(None, 5) == 0.0


KINDS = st.sampled_from(["permanent", "transient", "temporary"])


@given(
    strategy=st.sampled_from(list(CASCADE)),
    kinds=st.lists(KINDS, min_size=1, max_size=8),
    data=st.data(),
)
def test_restart_decisions_stop_in_reverse_order_and_start_in_order(
    strategy: Strategy, kinds: list[RestartKind], data: st.DataObject
) -> None:
    """The failed child is started and not stopped, and no temporary child is started."""
    failed = data.draw(st.integers(0, len(kinds) - 1))
    result = decision(kinds, failed, data.draw(st.sampled_from(list(EXITS.values()))), strategy)
    if isinstance(result, RestartChildren):
        assert list(result.stop) == sorted(result.stop, reverse=True)
        assert list(result.start) == sorted(result.start)
        assert failed in result.start
        assert failed not in result.stop
        assert set(result.start) - {failed} == {place for place in result.stop if kinds[place] != "temporary"}
