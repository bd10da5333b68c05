"""Values that both SDKs send to each other; both read the same annotations."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID


class Colour(enum.StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass
class Parcel:
    id: UUID
    at: datetime
    weight: float
    tags: list[str]
    note: str | None = None


PARCEL = Parcel(UUID(int=99), datetime(2026, 5, 6, 7, 8, 9, 123456, tzinfo=UTC), 1.5, ["a", "ü"])
