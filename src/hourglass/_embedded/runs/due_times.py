"""Due times of many keys, with a single alarm for all of them (`DueTimes`). Used for schedules and limits."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from hourglass._embedded.clock import Cancel, Clock


class DueTimes:
    """The due times of many keys, with a single alarm at the earliest due time. The alarm calls `elapse`. It is armed
    only between `begin` and `stop`.
    """

    def __init__(self, clock: Clock, elapse: Callable[[], None]) -> None:
        self._clock = clock
        self._elapse = elapse
        self._times: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []  # may contain outdated entries until they reach the front
        self._acts = False
        self._alarm: Cancel | None = None
        self._alarm_ns = 0

    def begin(self) -> None:
        """Activate the alarm, which is then armed at the earliest due time until `stop` is called."""
        self._acts = True
        if self._heap:
            self.set_alarm()

    def stop(self) -> None:
        """Disarm the alarm permanently."""
        self._acts = False
        self._silence()

    def set(self, key: str, due_ns: int) -> None:
        """Set the due time of a key; 0 removes it. Call `set_alarm` afterwards."""
        if not due_ns:
            self._times.pop(key, None)
        elif self._times.get(key) != due_ns:
            self._times[key] = due_ns
            heapq.heappush(self._heap, (due_ns, key))

    def take(self, now_ns: int) -> str | None:
        """Remove and return the next key whose due time has come. Return None if no key is due, or after `stop`."""
        while self._acts and self._heap and self._heap[0][0] <= now_ns:
            due = heapq.heappop(self._heap)
            if self._counts(due):
                del self._times[due[1]]
                return due[1]
        return None

    def set_alarm(self) -> None:
        """Arm the alarm at the earliest due time."""
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        if not self._acts or not self._heap:
            self._silence()
        elif self._alarm is None or self._alarm_ns != self._heap[0][0]:
            self._silence()
            self._alarm_ns = self._heap[0][0]
            self._alarm = self._clock.call_at(self._alarm_ns, self._ring)

    def realign(self) -> None:
        """Rearm the alarm after the clock has jumped."""
        self._silence()
        self.set_alarm()

    def _counts(self, due: tuple[int, str]) -> bool:
        return self._times.get(due[1]) == due[0]

    def _ring(self) -> None:
        self._alarm = None
        self._elapse()
        self.set_alarm()

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm()
            self._alarm = None
