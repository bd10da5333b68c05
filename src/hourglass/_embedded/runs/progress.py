"""Items that the activities of runs publish, for their followers: in the memory of this process, in no history and no
file.

Must not know: requests, handles, stores. Invariants: items of one attempt and name are kept in the order of their
numbers, each once; of one run and name at most the newest `MOST_ITEMS` and `MOST_BYTES` are kept; of all runs together
at most `MOST_BYTES_IN_ALL`, those of the latest publishers. The numbers of the remaining items show which ones were
dropped.
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
    """The items of one run, by name, and the next number, by name, activity and attempt."""

    kept: dict[str, _Kept] = field(default_factory=dict)
    next: dict[tuple[str, str, int], int] = field(default_factory=dict)
    news: Bell = field(default_factory=Bell)
    size: int = 0


class ProgressMemory:
    """The published items of all runs. `name` distinguishes this memory from another process's or an earlier one."""

    def __init__(self) -> None:
        self.name = new_id()
        self._runs: OrderedDict[str, _RunProgress] = OrderedDict()
        self._size = 0

    def publish(self, run_id: str, publisher: Publisher, published: Iterable[ProgressItems]) -> None:
        """Store the items that are new, and wake their followers."""
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
        """Return the items that are new to a follower, as many as fit into an answer.

        The follower has seen, of each activity, all items before this attempt's number.
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
        """Return the bell that rings when an item of this run was published."""
        return self._of_run(run_id).news

    def tidy(self, run_id: str) -> None:
        """Forget a run that has never published, once nobody waits for its items."""
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
        if run.news.waiters:  # it has followers: only its published items are removed
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
