"""What a run says of itself to those who look at it: memo, search attributes, current details. Made when first wanted."""

from __future__ import annotations

from hourglass._engine.events import RunStarted
from hourglass.converter import Payload


class Notes:
    """A run's notes as they stand; values stay encoded, so that each reader gets fresh objects (I6)."""

    __slots__ = ("details", "memo", "search_attributes")

    def __init__(self, started: RunStarted) -> None:
        self.memo = dict(started.memo)
        self.search_attributes = dict(started.search_attributes)
        self.details = ""


def merge(notes: dict[str, Payload], changes: dict[str, Payload]) -> None:
    """Enter changes; a null removes."""
    for name, payload in changes.items():
        if payload.encoding == "binary/null":
            notes.pop(name, None)
        else:
            notes[name] = payload
