"""Items that the activities of runs publish for their followers. Items are kept in the memory of this process only,
in no history and no file.

Must not know: requests, handles, stores. Invariants:

- The items of one attempt and name are kept in the order of their numbers, without duplicates.
- For each run and name, at most the newest `MOST_ITEMS` items and `MOST_BYTES` bytes are kept.
- For all runs together, at most `MOST_BYTES_IN_ALL` bytes are kept, those of the runs that published last.
- Followers can tell from the numbers of the remaining items which items were dropped.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hourglass._contract.ids import new_id
from hourglass._contract.progress import ProgressItems, PublishedItem
from hourglass._embedded.clock import Bell

MOST_ITEMS = 1000
MOST_BYTES = 512 * 1024
MOST_BYTES_IN_ALL = 64 * 1024 * 1024
MOST_IN_AN_ANSWER = 100


@dataclass(eq=False, slots=True)
class Publisher:
    """An activity attempt that publishes items."""

    activity_id: str
    activity_type: str
    attempt: int
    scheduled_event_id: int


@dataclass(eq=False, slots=True)
class _Kept:
    items: deque[PublishedItem] = field(default_factory=deque)
    size: int = 0


@dataclass(eq=False, slots=True)
class _RunProgress:
    """The items of one run by name, and the next item number by name, activity and attempt."""

    kept: dict[str, _Kept] = field(default_factory=dict)
    next: dict[tuple[str, str, int], int] = field(default_factory=dict)
    news: Bell = field(default_factory=Bell)
    size: int = 0


class ProgressMemory:
    """The published items of all runs. `name` is unique to this object, so that followers notice another process or a
    restart.
    """

    def __init__(self) -> None:
        self.name = new_id()
        self._runs: OrderedDict[str, _RunProgress] = OrderedDict()
        self._size = 0

    def publish(self, run_id: str, publisher: Publisher, published: Iterable[ProgressItems]) -> None:
        """Store the published items that are new, and wake the run's followers."""
        run = self._of_run(run_id)
        self._runs.move_to_end(run_id)
        before = run.size
        for items in published:
            _keep(run, publisher, items)
        self._size += run.size - before
        while self._size > MOST_BYTES_IN_ALL and len(self._runs) > 1:
            self._forget_oldest()
        run.news.ring()

    def read(self, run_id: str, name: str, seen: Mapping[int, tuple[int, int]]) -> tuple[PublishedItem, ...]:
        """Return the items that are new to a follower, at most as many as fit into an answer.

        `seen` maps each activity to an attempt and an item number. The follower has seen all items before that
        number.
        """
        run = self._runs.get(run_id)
        kept = None if run is None else run.kept.get(name)
        new_items: list[PublishedItem] = []
        for item in () if kept is None else kept.items:
            if (item.attempt, item.number) >= seen.get(item.scheduled_event_id, (0, 0)):
                new_items.append(item)
                if len(new_items) == MOST_IN_AN_ANSWER:
                    break
        return tuple(new_items)

    def news(self, run_id: str) -> Bell:
        """Return the bell that rings when an activity of this run publishes an item."""
        return self._of_run(run_id).news

    def tidy(self, run_id: str) -> None:
        """Remove the entry of a run that has never published, unless somebody is waiting for its items."""
        run = self._runs.get(run_id)
        if run is not None and not run.kept and not run.news.waiters:
            del self._runs[run_id]

    def _of_run(self, run_id: str) -> _RunProgress:
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = _RunProgress()
        return run

    def _forget_oldest(self) -> None:
        run_id, run = next(iter(self._runs.items()))
        self._size -= run.size
        if run.news.waiters:  # keep the followers, and remove only the published items
            run.kept.clear()
            run.size = 0
            self._runs.move_to_end(run_id)
        else:
            del self._runs[run_id]


def _keep(run: _RunProgress, publisher: Publisher, published: ProgressItems) -> None:
    key = (published.name, publisher.activity_id, publisher.attempt)
    expected = run.next.get(key, 0)
    kept = run.kept.setdefault(published.name, _Kept())
    before = kept.size
    for number, value in enumerate(published.items, published.first):
        if number < expected:
            continue
        item = PublishedItem(
            activity_id=publisher.activity_id,
            activity_type=publisher.activity_type,
            attempt=publisher.attempt,
            number=number,
            value=value,
            scheduled_event_id=publisher.scheduled_event_id,
        )
        kept.items.append(item)
        kept.size += len(value.data)
        expected = number + 1
    run.next[key] = expected
    while len(kept.items) > MOST_ITEMS or (kept.size > MOST_BYTES and len(kept.items) > 1):
        kept.size -= len(kept.items.popleft().value.data)
    run.size += kept.size - before
