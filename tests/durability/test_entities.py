"""An entity that continues as new after each message, while its owner is killed repeatedly: each message is processed once."""

from __future__ import annotations

from pathlib import Path

from .entities import Messages


def test_messages_to_an_entity_are_executed_once_across_owner_kills(tmp_path: Path) -> None:
    messages = Messages(tmp_path, kills=6, seed=1)
    report = messages.run(limit=60)
    assert not report.errors, "\n".join([*report.errors[:20], messages.log.read_text()[-4000:]])
    assert report.kills == 6
    assert report.updates >= 30
    assert report.signals >= 30
