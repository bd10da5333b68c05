"""The table of a worker's lanes: the place of each lane, and the place of each run (`Places`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hourglass._worker.lanes.lane import Lane

RunKey = tuple[int, str]
"""The generation of a run's handle, and its run id."""


@dataclass(eq=False)
class LanePlace:
    """The place of one lane. The place keeps its name when the lane is replaced.

    A spare place exists only while the regular places have too much work. `used` is the time at which the place last
    had work. A place that is `leaving` has no runs, and its lane is about to end.
    """

    lane: Lane
    runs: int = 0
    replaced: int = 0
    spare: bool = False
    used: float = 0.0
    leaving: bool = False

    @property
    def name(self) -> str:
        return self.lane.name

    @property
    def has_work(self) -> bool:
        return self.lane.busy is not None or bool(self.lane.queued)


class Places:
    """The places of all lanes by name, and the places of all cached runs, including runs without work in progress.

    Invariant: `runs` of a place is the number of runs at this place.
    """

    def __init__(self, lanes: list[Lane]) -> None:
        self._places = {lane.name: LanePlace(lane) for lane in lanes}
        self.first = next(iter(self._places.values()))
        self.open = list(self._places.values())
        """The places for new runs."""
        self.of_run: dict[RunKey, LanePlace] = {}
        """The place of each run."""

    def __iter__(self) -> Iterator[LanePlace]:
        return iter(list(self._places.values()))

    def __getitem__(self, name: str) -> LanePlace:
        return self._places[name]

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def lanes(self) -> list[Lane]:
        return [place.lane for place in self._places.values()]

    def usual(self) -> list[LanePlace]:
        return [place for place in self if not place.spare]

    def staying(self) -> list[LanePlace]:
        return [place for place in self if not place.leaving]

    def has_work(self) -> bool:
        """Whether any lane has work in progress or in its queue."""
        return any(place.has_work for place in self._places.values())

    def add(self, place: LanePlace) -> LanePlace:
        self._places[place.name] = place
        return place

    def remove(self, place: LanePlace) -> None:
        """Remove a spare place whose lane has ended."""
        del self._places[place.name]

    def least_busy(self) -> LanePlace:
        """Return the place for a new run: the open place with the fewest runs."""
        least = self.open[0]
        for place in self.open:
            if place.runs < least.runs:
                least = place
        return least

    def settle(self, run: RunKey, place: LanePlace) -> None:
        """Record the place of a new run."""
        self.of_run[run] = place
        place.runs += 1

    def forget(self, run: RunKey) -> LanePlace | None:
        """Forget a run. Return its place; None if the run had none."""
        place = self.of_run.pop(run, None)
        if place is not None:
            place.runs -= 1
        return place

    def forget_older(self, generation: int) -> None:
        """Forget the runs of all handles older than this generation."""
        for run in [run for run in self.of_run if run[0] < generation]:
            self.forget(run)

    def move(self, run: RunKey, source: LanePlace, target: LanePlace) -> None:
        """Record that a run has moved from `source` to `target`. Does nothing if the run is at another place."""
        if self.of_run.get(run) is source:
            self.of_run[run] = target
            source.runs, target.runs = source.runs - 1, target.runs + 1

    def move_all(self, source: LanePlace, target: LanePlace) -> None:
        """Record that all runs at `source` have moved to `target`."""
        for run in [run for run, place in self.of_run.items() if place is source]:
            self.move(run, source, target)
