"""Who holds one of a key's slots and who waits for one, as data, and what changes it. Pure.

Must not know: workflows, signals, time. Invariants: no more are held than the limit allows, but for those who held
theirs when the limit was lowered; who asks first gets first; a ticket stands in one place at most, however often it is
told.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Place:
    """One who holds or waits: its ticket, and the run that must be told."""

    ticket: str
    workflow_id: str
    run_id: str


@dataclass(frozen=True)
class Places:
    """The slots of one key: those who hold one, and the queue."""

    limit: int = 1
    held: tuple[Place, ...] = ()
    waiting: tuple[Place, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether nobody holds and nobody waits."""
        return not (self.held or self.waiting)


def asked(places: Places, place: Place, limit: int) -> Places:
    """Somebody asks for a slot. The limit of the latest who asks holds, so that a deploy can change it."""
    known = any(each.ticket == place.ticket for each in (*places.held, *places.waiting))
    waiting = places.waiting if known else (*places.waiting, place)
    return replace(places, limit=limit, waiting=waiting)


def given_back(places: Places, tickets: Collection[str]) -> Places:
    """Slots, or places in the queue, are free again."""
    return replace(
        places,
        held=tuple(each for each in places.held if each.ticket not in tickets),
        waiting=tuple(each for each in places.waiting if each.ticket not in tickets),
    )


def granted(places: Places) -> tuple[Places, tuple[Place, ...]]:
    """Fill what is free from the head of the queue; gives those who have a slot now."""
    free = max(0, places.limit - len(places.held))
    lucky, waiting = places.waiting[:free], places.waiting[free:]
    return replace(places, held=(*places.held, *lucky), waiting=waiting), lucky
