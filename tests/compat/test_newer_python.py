"""Histories that temporalio recorded on Python 3.13 in another order than on 3.11 replay (invariant I1).

Since 3.12 `asyncio.wait_for` and a gather of completed tasks take one turn less. A history does not name the Python version.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hourglass.errors import NondeterminismError
from hourglass.replay import History, Replayer

from .twins import TWINS

HISTORIES = sorted((Path(__file__).parent / "histories_3_13").glob("*.json"))


@pytest.fixture(scope="module")
def replayer() -> Iterator[Replayer]:
    """A replayer for all twins."""
    with Replayer(workflows=list(TWINS.values())) as replayer:
        yield replayer


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_history_recorded_on_python_3_13_replays(replayer: Replayer, path: Path) -> None:
    assert replayer.replay(History.from_file(path)).ok


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_history_recorded_on_python_3_13_does_not_replay_in_python_3_11_order(
    replayer: Replayer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hourglass.replay._replayer._DIFFERENCES", ())
    with pytest.raises(NondeterminismError):
        replayer.replay(History.from_file(path))


def test_corpus_has_python_3_13_recordings_of_timeouts_and_gathers() -> None:
    assert {"DoneTasks", "WaitForBoth"} < {path.stem for path in HISTORIES}
