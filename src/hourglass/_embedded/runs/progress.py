"""What the activities of runs publish, for those who follow them: in the memory of this process, in no history, in no file.

Must not know: requests, handles, stores. Invariants: items of one attempt and name are kept in the order of their numbers,
each once; of one run and name at most `MOST_ITEMS` and `MOST_BYTES` are kept, the newest; of all runs together at most
`MOST_BYTES_IN_ALL`, those that published last. What is gone is seen as gone: the numbers of what is left say so.
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
    """One attempt of an activity."""

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
    """What one run has published: by name, and which number comes next, by name, activity and attempt."""

    kept: dict[str, _Kept] = field(default_factory=dict)
    next: dict[tuple[str, str, int], int] = field(default_factory=dict)
    news: Bell = field(default_factory=Bell)
    size: int = 0


class ProgressMemory:
    """See the module. `name` tells this memory from the one of another process, or of a time before."""

    def __init__(self) -> None:
        self.name = new_id()
        self._runs: OrderedDict[str, _RunProgress] = OrderedDict()
        self._size = 0

    def publish(self, run_id: str, publisher: Publisher, published: Iterable[ProgressItems]) -> None:
        """Keep what is new of these items, and wake those who wait for it."""
        run = self._of_run(run_id)
        self._runs.move_to_end(run_id)
        before = run.size
        for each in published:
            _keep(run, publisher, each)
        self._size += run.size - before
        while self._size > MOST_BYTES_IN_ALL and len(self._runs) > 1:
            self._forget_oldest()
        run.news.ring()

    def read(self, run_id: str, name: str, seen: Mapping[int, tuple[int, int]]) -> tuple[PublishedItem, ...]:
        """What is new to one who has seen, of each activity, all before this attempt's number; as much as an answer may
        hold.
        """
        run = self._runs.get(run_id)
        kept = None if run is None else run.kept.get(name)
        found: list[PublishedItem] = []
        for item in () if kept is None else kept.items:
            if (item.attempt, item.number) >= seen.get(item.scheduled_event_id, (0, 0)):
                found.append(item)
                if len(found) == MOST_IN_AN_ANSWER:
                    break
        return tuple(found)

    def news(self, run_id: str) -> Bell:
        """Rings when something of this run was published."""
        return self._of_run(run_id).news

    def tidy(self, run_id: str) -> None:
        """A wait for news of this run is over: forget it if it never published."""
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
        if run.news.waiters:  # it is followed: only what it has published goes
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
