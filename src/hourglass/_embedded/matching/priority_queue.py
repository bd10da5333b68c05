"""What waits on one task queue, in the order in which it is taken (`PriorityQueue`): the most urgent first, and fairly.

Within a priority, fairness keys take turns, each by its weight; work without one is counted by its workflow type and activity
type; and so do what clients ask for now and what was late already (timers, or what waited when the file was opened). So no
flood of one keeps the others waiting.

Must not know: what waits, which handles take it. Invariants: what is put once is there once; to put, take or drop one costs the
same however much waits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush, heapreplace
from itertools import chain, count, islice
from typing import Any, Generic, TypeAlias, TypeVar

K = TypeVar("K", bound=Hashable)

Sharer: TypeAlias = tuple[str, str, str]
"""What work is counted by where it must share a queue: its fairness key; or, where it has none, its workflow type and, if it
is an attempt, the activity type.
"""

NO_SHARER: Sharer = ("", "", "")


class _Share(Generic[K]):
    """What waits at one level of a queue for one sharer: what clients ask for now (`fresh`) and what is `late` already take
    turns, each in order of arrival. `turn` is the sharer's place among the others: how much it has had, counted from when
    it had to share.
    """

    __slots__ = ("cost", "fresh", "late", "late_is_next", "level", "place", "sharer", "turn")

    def __init__(self, level: int, sharer: Sharer, place: int, turn: float) -> None:
        self.level, self.sharer, self.place, self.turn, self.cost = level, sharer, place, turn, 1.0
        self.fresh: dict[K, None] = {}
        self.late: dict[K, None] = {}
        self.late_is_next = False

    def in_order(self) -> Iterator[K]:
        """All of it; the first is the one whose turn it is."""
        if not self.late or not self.fresh:
            return iter(self.fresh or self.late)
        return chain(self.late, self.fresh) if self.late_is_next else chain(self.fresh, self.late)

    def drop(self, key: K) -> None:
        """That was its turn."""
        self.turn += self.cost
        self.late_is_next = key in self.fresh
        del (self.fresh if self.late_is_next else self.late)[key]


class _Level(Generic[K]):
    """What waits at one priority: the sharers take turns, each as often as the others, or by its weight."""

    __slots__ = ("_heap", "_now", "_places", "shares")

    def __init__(self) -> None:
        self.shares: dict[Sharer, _Share[K]] = {}
        self._heap: list[tuple[float, int, _Share[K]]] = []
        self._now = 0.0
        self._places = count()

    def share(self, level: int, sharer: Sharer) -> _Share[K]:
        """Where something waits for this sharer. One that comes now begins where the others are."""
        share = self.shares.get(sharer)
        if share is None:
            place = next(self._places)
            share = self.shares[sharer] = _Share(level, sharer, place, self._now)
            heappush(self._heap, (share.turn, place, share))
        elif not share.fresh and not share.late:
            share.turn = max(share.turn, self._now)
        return share

    def first(self) -> _Share[K] | None:
        """The share whose turn it is. The heap follows late: a share that was served, or is empty, is noticed here."""
        heap = self._heap
        while heap:
            turn, place, share = heap[0]
            if not share.fresh and not share.late:
                heappop(heap)
                del self.shares[share.sharer]
            elif turn < share.turn:
                heapreplace(heap, (share.turn, place, share))
            else:
                self._now = turn
                return share
        return None

    def in_turn(self) -> list[_Share[K]]:
        """All shares, in the order of their turns."""
        found = [share for share in self.shares.values() if share.fresh or share.late]
        return sorted(found, key=_turn) if len(found) > 1 else found


def _turn(share: _Share[Any]) -> tuple[float, int]:
    return share.turn, share.place


class PriorityQueue(dict[K, "_Share[K]"]):
    """What waits on one queue: the most urgent first; of the same priority the sharers take turns.

    A dict, because handles ask with every step whether something waits, and a dict answers that without a call of Python.
    """

    __slots__ = ("_by_level",)

    def __init__(self) -> None:
        super().__init__()
        self._by_level: dict[int, _Level[K]] = {}  # those in use, the most urgent first

    def __iter__(self) -> Iterator[K]:
        for level in self._by_level.values():
            first = level.first() if level.shares else None
            if first is None:
                continue
            yield next(first.in_order())
            # It was not taken. A caller that looks further sees what is next of the others, then all the rest.
            shares = level.in_turn()
            for share in shares[1:]:
                yield next(share.in_order())
            for share in shares:
                yield from islice(share.in_order(), 1, None)

    def urgent(self) -> Iterator[K]:
        """The same without what can wait: what is late already, and what is many."""
        for level in self._by_level.values():
            for share in level.in_turn():
                if len(share.fresh) <= MANY:
                    yield from share.fresh

    def put(
        self, key: K, level: int, sharer: Sharer = NO_SHARER, *, late: bool = False, weight: float = 0.0
    ) -> None:
        """Something waits, at its place if it waited before."""
        share = self.get(key)
        if share is not None:
            if share.level == level and share.sharer == sharer and late is (key in share.late):
                return
            self.drop(key)
        at_level = self._by_level.get(level)
        if at_level is None:
            at_level = _Level()
            self._by_level = dict(sorted({**self._by_level, level: at_level}.items()))
        share = at_level.share(level, sharer)
        if weight:
            share.cost = 1 / weight
        (share.late if late else share.fresh)[key] = None
        self[key] = share

    def heads(self) -> list[K]:
        """What has waited longest of each priority and sharer."""
        return [
            next(iter(each))
            for level in self._by_level.values()
            for share in level.shares.values()
            for each in (share.fresh, share.late)
            if each
        ]

    def drop(self, key: K) -> None:
        """Something waits no more, if it did."""
        share = self.pop(key, None)
        if share is not None:
            share.drop(key)

    def late(self) -> int:
        """How much of it is late already."""
        return sum(len(share.late) for level in self._by_level.values() for share in level.shares.values())


MANY = 64
"""What waits in a line longer than this waits anyway: while the engine has much to do, shorter lines go first."""
