"""I1 for histories that Temporal's Python SDK recorded on Python 3.13: those of the corpus whose order is not that of 3.11.

From 3.12 on `asyncio.wait_for` and a gather of what is done take a turn less. A history does not say which Python wrote it.
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
    """One replayer for all of them."""
    with Replayer(workflows=list(TWINS.values())) as replayer:
        yield replayer


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_history_of_newer_python_replays(replayer: Replayer, path: Path) -> None:
    """The twin that replays what 3.11 recorded also replays this."""
    assert replayer.replay(History.from_file(path)).ok


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_history_of_newer_python_fails_in_the_older_order(
    replayer: Replayer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the second trial each is refused: they do differ."""
    monkeypatch.setattr("hourglass.replay._replayer._DIFFERENCES", ())
    with pytest.raises(NondeterminismError):
        replayer.replay(History.from_file(path))


def test_recordings_of_newer_python_exist() -> None:
    """Of waits with a limit and of gathers."""
    assert {"DoneTasks", "WaitForBoth"} < {path.stem for path in HISTORIES}
