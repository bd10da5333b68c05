"""The backlog of one task queue (`PriorityQueue`): the most urgent task first, and fair within a priority.

Within a priority, fairness keys take turns, in proportion to their weights. Tasks without a key are grouped by workflow
type and activity type. Fresh tasks, just requested by clients, alternate with late tasks. Late tasks come from timers or
were waiting when the file was opened. So a flood of one kind cannot delay the others.

Must not know: tasks, workers. Invariants: a key is in the queue at most once. Adding, receiving and dropping a key takes
constant time, however many are waiting.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush, heapreplace
from itertools import chain, count, islice
from typing import Any, Generic, TypeAlias, TypeVar

K = TypeVar("K", bound=Hashable)

Sharer: TypeAlias = tuple[str, str, str]
"""The unit of fairness: a fairness key, or without a key the workflow type, and for attempts also the activity type."""

NO_SHARER: Sharer = ("", "", "")


class _Share(Generic[K]):
    """The tasks of one sharer at one priority. Fresh and late tasks alternate, each in order of arrival.

    `turn` is the sharer's position among the others: the total cost of the tasks that the sharer has received.
    """

    __slots__ = ("cost", "fresh", "late", "late_is_next", "level", "place", "sharer", "turn")

    def __init__(self, level: int, sharer: Sharer, place: int, turn: float) -> None:
        self.level, self.sharer, self.place, self.turn, self.cost = level, sharer, place, turn, 1.0
        self.fresh: dict[K, None] = {}
        self.late: dict[K, None] = {}
        self.late_is_next = False

    def in_order(self) -> Iterator[K]:
        """Return an iterator over all tasks, starting with the next one."""
        if not self.late or not self.fresh:
            return iter(self.fresh or self.late)
        return chain(self.late, self.fresh) if self.late_is_next else chain(self.fresh, self.late)

    def drop(self, key: K) -> None:
        """Remove a task and count it as received."""
        self.turn += self.cost
        self.late_is_next = key in self.fresh
        del (self.fresh if self.late_is_next else self.late)[key]


class _Level(Generic[K]):
    """The tasks of one priority. Sharers take turns, equally often or in proportion to their weights."""

    __slots__ = ("_heap", "_now", "_places", "shares")

    def __init__(self) -> None:
        self.shares: dict[Sharer, _Share[K]] = {}
        self._heap: list[tuple[float, int, _Share[K]]] = []
        self._now = 0.0
        self._places = count()

    def share(self, level: int, sharer: Sharer) -> _Share[K]:
        """Return the share of a sharer. A new share gets the current turn, so that it has no advantage over the others."""
        share = self.shares.get(sharer)
        if share is None:
            place = next(self._places)
            share = self.shares[sharer] = _Share(level, sharer, place, self._now)
            heappush(self._heap, (share.turn, place, share))
        elif not share.fresh and not share.late:
            share.turn = max(share.turn, self._now)
        return share

    def first(self) -> _Share[K] | None:
        """Return the share whose turn it is. Only this method updates the heap for shares that have been served or are
        empty.
        """
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
        """Return all non-empty shares in the order of their turns."""
        shares = [share for share in self.shares.values() if share.fresh or share.late]
        return sorted(shares, key=_turn) if len(shares) > 1 else shares


def _turn(share: _Share[Any]) -> tuple[float, int]:
    return share.turn, share.place


class PriorityQueue(dict[K, "_Share[K]"]):
    """The backlog of one queue: the most urgent task first. Within a priority the sharers take turns.

    The class is a dict, because each step checks whether a task is waiting, and a dict answers that without a Python
    call.
    """

    __slots__ = ("_by_level",)

    def __init__(self) -> None:
        super().__init__()
        self._by_level: dict[int, _Level[K]] = {}  # levels with tasks, the most urgent first

    def __iter__(self) -> Iterator[K]:
        for level in self._by_level.values():
            first = level.first() if level.shares else None
            if first is None:
                continue
            yield next(first.in_order())
            # The caller did not receive this task. If it continues, it sees the next task of each other sharer, then
            # all remaining tasks.
            shares = level.in_turn()
            for share in shares[1:]:
                yield next(share.in_order())
            for share in shares:
                yield from islice(share.in_order(), 1, None)

    def urgent(self) -> Iterator[K]:
        """Iterate over the tasks that must not wait: fresh tasks of sharers with few waiting tasks."""
        for level in self._by_level.values():
            for share in level.in_turn():
                if len(share.fresh) <= MAX_FRESH:
                    yield from share.fresh

    def put(
        self, key: K, level: int, sharer: Sharer = NO_SHARER, *, late: bool = False, weight: float = 0.0
    ) -> None:
        """Add a task. A waiting task keeps its position unless its priority, sharer or lateness has changed."""
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
        """Return the oldest fresh and the oldest late task of each sharer at each priority."""
        return [
            next(iter(tasks))
            for level in self._by_level.values()
            for share in level.shares.values()
            for tasks in (share.fresh, share.late)
            if tasks
        ]

    def drop(self, key: K) -> None:
        """Remove a task if it is waiting."""
        share = self.pop(key, None)
        if share is not None:
            share.drop(key)

    def late(self) -> int:
        """Return the number of late tasks."""
        return sum(len(share.late) for level in self._by_level.values() for share in level.shares.values())


MAX_FRESH = 64
"""While the engine is behind, the tasks of a sharer with more fresh tasks than this may wait. The tasks of other sharers
go first.
"""
