"""The restart decision, as a matrix: restart kind × exit reason × strategy, and the intensity."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourglass._supervision.exits import KILLED, NORMAL, SHUTDOWN, Exit, crash
from hourglass._supervision.policy import (
    Decision,
    Escalate,
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
# The second of four permanent children has ended.
CASCADE: dict[Strategy, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "one_for_one": ((), (1,)),
    "one_for_all": ((3, 2, 0), (0, 1, 2, 3)),
    "rest_for_one": ((3, 2), (1, 2, 3)),
}


def verdict(
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


def test_restart_matrix_is_complete() -> None:
    """Every kind meets every exit."""
    assert set(RESTARTED) == set(product(("permanent", "transient", "temporary"), EXITS))


@pytest.mark.parametrize("strategy", CASCADE)
@pytest.mark.parametrize(("kind", "reason"), RESTARTED)
def test_restart_matrix(kind: RestartKind, reason: str, strategy: Strategy) -> None:
    """Restart kind × exit reason says whether, the strategy says who: stopped in reverse, started in order."""
    kinds: list[RestartKind] = ["permanent", kind, "permanent", "permanent"]
    found = verdict(kinds, 1, EXITS[reason], strategy)
    stop, start = CASCADE[strategy]
    assert found == (RestartChildren(stop, start, (100.0,)) if RESTARTED[kind, reason] else NoRestart())


def test_temporary_siblings_are_not_restarted() -> None:
    """A cascade stops a temporary sibling and does not start it again."""
    kinds: list[RestartKind] = ["temporary", "permanent", "temporary", "transient"]
    assert verdict(kinds, 1, CRASH, "one_for_all") == RestartChildren((3, 2, 0), (1, 3), (100.0,))
    assert verdict(kinds, 1, CRASH, "rest_for_one") == RestartChildren((3, 2), (1, 3), (100.0,))


def test_intensity_allows_exactly_its_number_of_restarts() -> None:
    """With three restarts in five seconds allowed, the fourth escalates."""
    limit = Intensity(3, 5.0)
    assert verdict(["permanent"], 0, CRASH, history=(99.0, 99.5), limit=limit) == RestartChildren(
        (), (0,), (99.0, 99.5, 100.0)
    )
    assert verdict(["permanent"], 0, CRASH, history=(99.0, 99.5, 99.9), limit=limit) == Escalate()


def test_restarts_outside_the_window_are_forgotten() -> None:
    """What lies further back than the window neither counts nor is kept; its edge still counts."""
    limit = Intensity(2, 5.0)
    assert verdict(["permanent"], 0, CRASH, history=(1.0, 94.9, 95.0), limit=limit) == RestartChildren(
        (), (0,), (95.0, 100.0)
    )


def test_no_restarts_allowed_means_every_restart_escalates() -> None:
    """With `max_restarts=0` the first restart escalates, and an exit that needs none does not."""
    limit = Intensity(0, 5.0)
    assert verdict(["permanent"], 0, NORMAL, limit=limit) == Escalate()
    assert verdict(["transient"], 0, NORMAL, limit=limit) == NoRestart()


def test_backoff_restarts_do_not_count() -> None:
    """A restart that back-off slows down neither adds to the history nor escalates."""
    found = verdict(["permanent"], 0, CRASH, history=(99.0,), limit=Intensity(0, 5.0), counted=False)
    assert found == RestartChildren((), (0,), (99.0,))


def test_backoff_doubles_up_to_its_maximum() -> None:
    """The pause doubles with each failure, ends at the maximum, and no number of failures overflows it."""
    assert [delay_before((0.2, 10.0), n) for n in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert delay_before((0.2, 10.0), 10**9) == 10.0
    assert delay_before(None, 5) == 0.0


KINDS = st.sampled_from(["permanent", "transient", "temporary"])


@given(
    strategy=st.sampled_from(list(CASCADE)),
    kinds=st.lists(KINDS, min_size=1, max_size=8),
    data=st.data(),
)
def test_stops_and_starts_are_ordered(
    strategy: Strategy, kinds: list[RestartKind], data: st.DataObject
) -> None:
    """Stops are in reverse order of starts, the failed child is started and not stopped, no temporary is started."""
    failed = data.draw(st.integers(0, len(kinds) - 1))
    found = verdict(kinds, failed, data.draw(st.sampled_from(list(EXITS.values()))), strategy)
    if isinstance(found, RestartChildren):
        assert list(found.stop) == sorted(found.stop, reverse=True)
        assert list(found.start) == sorted(found.start)
        assert failed in found.start
        assert failed not in found.stop
        assert set(found.start) - {failed} == {each for each in found.stop if kinds[each] != "temporary"}
