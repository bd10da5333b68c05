"""A short selection of every fault. Those that mostly wait for limits of the server run concurrently.

Larger and longer: `make chaos`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from . import testbed
from .faults import FAULTS
from .outcome import SHORT, Outcome

# For the full run: each death of a process under load costs the task timeout, and what is done to the server's tasks by
# kills under load, or by a link that is silent for a while, is a matter of the server's own limits. The short versions of the
# last four are in tests/durability.
_LONG = {
    "processes-killed-under-load",
    "kills-on-server",
    "traffic-dropped",
    "campaign-on-file",
    "campaign-on-server",
    "durability",
    "web-processes",
}

# These count what the process holds, or judge how others get on, and want it for themselves.
_ALONE = ["kills-in-memory", "status-while-dying", "workflow-code-hangs"]

_TOGETHER = [name for name in FAULTS if name not in _LONG and name not in _ALONE]

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", autouse=True)
def _server() -> Iterator[None]:
    yield
    testbed.close()


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Future[Outcome]]]:
    testbed.server()
    with ThreadPoolExecutor(len(_TOGETHER)) as pool:
        yield {name: pool.submit(FAULTS[name], 1, SHORT) for name in _TOGETHER}


@pytest.mark.parametrize("name", _ALONE)
def test_worker_recovers_from_fault(name: str) -> None:
    outcome = FAULTS[name](1, SHORT)
    assert outcome.good, "\n".join(outcome.troubles)


@pytest.mark.parametrize("name", _TOGETHER)
def test_worker_recovers_from_fault_among_concurrent_faults(
    name: str, outcomes: dict[str, Future[Outcome]]
) -> None:
    outcome = outcomes[name].result()
    assert outcome.good, "\n".join(outcome.troubles)
