"""The runs of one lane, by (task queue, run id), least recently used first. Mirrors the engine's sticky cache.

Bounded in three ways, the cheap loss first: live fibers beyond a limit are dropped (the journal brings them
back), states beyond a limit are given back to the engine by asking for their eviction, and so is a run whose
journal has grown too long to be kept. It decides; the lane that owns it drops fibers, on its own thread.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeAlias

from hourglass._engine.evaluator import Run
from hourglass._engine.events import Activation
from hourglass.converter import Payload

Key: TypeAlias = tuple[str, str]
"""Task queue and run id."""

# What an activation costs in a journal beside its payloads.
_ACTIVATION_BYTES = 110


@dataclass(frozen=True)
class CacheLimits:
    """How much a lane keeps. A journal above either of its limits is not kept between activations."""

    live: int = 1000
    states: int = 1100
    journal_entries: int = 25_000
    journal_bytes: int = 32 * 1024 * 1024


@dataclass
class Entry:
    """A run and what the cache knows of it."""

    key: Key
    run: Run
    workflow_id: str = ""
    verified: bool = False
    activations: int = 0
    journal_bytes: int = 0
    eviction_requested: bool = field(default=False, repr=False)


class RunCache:
    """Runs by key. Not for several threads."""

    def __init__(self, limits: CacheLimits) -> None:
        self._limits = limits
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._live: OrderedDict[Key, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def live(self) -> int:
        """How many runs hold live fibers."""
        return len(self._live)

    def get(self, key: Key) -> Entry | None:
        """The run, which becomes the most recently used; None on a miss."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, entry: Entry) -> None:
        """Keep a run. One that is kept under the same key must be removed first."""
        assert entry.key not in self._entries
        self._entries[entry.key] = entry

    def remove(self, key: Key) -> Entry | None:
        """Forget a run; whoever asked drops its fibers."""
        self._live.pop(key, None)
        return self._entries.pop(key, None)

    def grown(self, entry: Entry, activation: Activation) -> None:
        """A run has handled an activation that its journal keeps."""
        entry.activations += 1
        entry.journal_bytes += weight(activation)

    def settle(self, entry: Entry) -> None:
        """Note whether a run holds live fibers now."""
        if entry.run.is_live:
            self._live[entry.key] = entry
            self._live.move_to_end(entry.key)
        else:
            self._live.pop(entry.key, None)

    def pop_excess_live(self) -> list[Entry]:
        """The runs whose fibers must be dropped now, least recently used first."""
        excess = []
        while len(self._live) > self._limits.live:
            excess.append(self._live.popitem(last=False)[1])
        return excess

    def to_evict(self, entry: Entry) -> list[Key]:
        """The runs whose eviction must be asked for now, each named once: too long a journal, or too many
        states.
        """
        limits = self._limits
        keys = []
        if entry.activations > limits.journal_entries or entry.journal_bytes > limits.journal_bytes:
            keys.append(entry)
        excess = len(self._entries) - limits.states
        if excess > 0:
            keys.extend(each for each in list(self._entries.values())[:excess] if each is not entry)
        fresh = [each for each in keys if not each.eviction_requested]
        for each in fresh:
            each.eviction_requested = True
        return [each.key for each in fresh]

    def pop_all(self) -> list[Entry]:
        """Forget everything; whoever asked drops the fibers."""
        entries = list(self._entries.values())
        self._entries.clear()
        self._live.clear()
        return entries


class LostJournals:
    """The journals of runs that were lost a moment ago, for a while and a few MiB: should the engine send one of
    them again, its log messages have been written already.
    """

    def __init__(self, *, most: int = 100, most_bytes: int = 8 * 1024 * 1024) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, tuple[list[Activation], int]] = OrderedDict()

    def keep(self, run_id: str, journal: list[Activation], size: int) -> None:
        """Keep a journal; the oldest ones go."""
        self.take(run_id)
        self._kept[run_id] = (journal, size)
        self._bytes += size
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            self._bytes -= self._kept.popitem(last=False)[1][1]

    def take(self, run_id: str) -> list[Activation]:
        """The journal of a run that comes back, empty if it is not kept."""
        journal, size = self._kept.pop(run_id, ([], 0))
        self._bytes -= size
        return journal


def weight(activation: Activation) -> int:
    """About how many bytes an activation takes in a journal."""
    total = _ACTIVATION_BYTES
    for event in activation.events:
        arguments: tuple[Payload, ...] = getattr(event, "arguments", ())
        result: Payload | None = getattr(event, "result", None)
        total += sum(len(each.data) for each in arguments)
        if result is not None:
            total += len(result.data)
    return total
