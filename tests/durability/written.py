"""The notes that activities leave outside Hourglass, and the time from the death of a process to the retry of its work."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Written:
    """The notes of the activities. An execution is one attempt of an activity of a run."""

    begun: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    done: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """Which execution a token is of."""
    beats: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    resumed: list[tuple[str, str, int]] = field(default_factory=list)
    at_begin: dict[tuple[str, str], float] = field(default_factory=dict)
    """When the first attempt of an activity of a run began, by the machine's monotonic clock."""
    at_end: dict[tuple[str, str], float] = field(default_factory=dict)
    """When its last one had done its work."""

    first_notes: dict[str, float] = field(default_factory=dict)
    """When an activity of a run made a note for the first time."""

    def first_at(self, run_id: str) -> float:
        """Return when the first activity of the run started, by the machine's monotonic clock; 0 if none did."""
        return self.first_notes.get(run_id, 0.0)

    @staticmethod
    def read(path: Path) -> Written:
        written = Written()
        for line in path.read_text().splitlines():
            note = json.loads(line)
            name = (note["run"], note["activity"], note["attempt"])
            written.first_notes[note["run"]] = min(
                note["at"], written.first_notes.get(note["run"], note["at"])
            )
            match note["what"]:
                case "begun":
                    written.begun[name] += 1
                    written.at_begin.setdefault(name[:2], note["at"])
                    if note.get("come") is not None:
                        written.resumed.append((note["run"], note["activity"], note["come"]))
                case "done":
                    written.done[note["token"]] = name
                    written.at_end[name[:2]] = note["at"]
                case "beat":
                    written.beats[name[:2]].add(note["place"])
        return written


def recoveries(deaths: Mapping[int, float], notes: Path) -> dict[int, float]:
    """Return, for each killed process, the seconds until the next attempt of every activity that its process had in
    progress. If that attempt also died before it recorded its start, the later death counts."""
    begun: dict[tuple[str, str, int], tuple[int, float]] = {}
    ended: set[tuple[str, str, int]] = set()
    for line in notes.read_text().splitlines():
        note = json.loads(line)
        name = (note["run"], note["activity"], note["attempt"])
        if note["what"] == "begun":
            begun[name] = (note["process"], note["at"])
            if note["type"] == "pay" or (note["type"] == "charge" and note["attempt"] == 1):
                ended.add(name)  # it is not tried again, or fails by itself
        elif note["what"] == "done":
            ended.add(name)
    durations: dict[int, float] = {}
    for (run_id, activity_id, attempt), (process, _) in begun.items():
        following = begun.get((run_id, activity_id, attempt + 1))
        if (run_id, activity_id, attempt) not in ended and process in deaths and following is not None:
            durations[process] = max(durations.get(process, 0.0), following[1] - deaths[process])
    return durations
