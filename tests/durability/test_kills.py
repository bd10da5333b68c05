"""Workers killed at random instants under load: what was acknowledged holds, and nothing that was recorded is done again."""

from __future__ import annotations

from pathlib import Path

from tests.effort import cases

from .audit import complaints
from .storm import Size, Storm


def test_killed_again_and_again(tmp_path: Path) -> None:
    """No start, signal or result is lost or doubled, every order ends right, the file is sound, every history replays."""
    storm = Storm(tmp_path, Size(workflows=60, kills=12), seed=1)
    told = storm.rage()
    found = complaints(told, storm.path, storm.notes)
    assert not found, "\n".join([*found[:20], storm.log.read_text()[-4000:]])
    assert told.kills == 12
    assert len(told.receipts) >= 60


def test_any_of_several_that_work_is_killed_again_and_again(tmp_path: Path) -> None:
    """Three processes work on a file, and any of them is killed at any time, the owner or another: the same holds."""
    kills = cases(25, 250)
    size = Size(workflows=60, kills=kills, processes=3, life=0.2, limit=kills * 2.0 + 100)
    storm = Storm(tmp_path, size, seed=2)
    told = storm.rage()
    found = complaints(told, storm.path, storm.notes)
    assert not found, "\n".join([*found[:20], storm.log.read_text()[-4000:]])
    assert told.kills == kills
    assert 0 < told.owners < kills
    assert len(told.receipts) >= 60
