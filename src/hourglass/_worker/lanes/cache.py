"""The state of runs between activations: a cache of states for all lanes, and a list of the live fibers of each lane.

`StateCache` maps (task queue, run id, generation of the handle) to the state of a run. The cache outlives lanes and
handles, and mirrors the engine's sticky cache. Its size is limited: the engine is asked to evict the least recently
used runs, and any run whose journal is too long. Each state has one owner, the `Evaluations` of a lane, and only the
owner uses the state. When a lane is replaced, its states move to the replacement lane without their fibers. Runs that
wait behind slow code move to another lane in the same way. The former owner no longer finds a run that has moved.

`LiveRuns` lists the runs of one lane that have live fibers. Beyond the limit, the fibers of the least recently used
runs are dropped, because the journal can restore them. Neither class drops fibers itself. The lane does so on its own
thread, because a greenlet cannot leave the thread that made it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import msgspec

from hourglass._evaluator.evaluator import Evaluator
from hourglass._evaluator.events import Activation, ActivityCompleted, ChildCompleted

_ACTIVATION_BYTES = 110  # the size of an activation in a journal, without its payloads
_LARGE = 1000  # events, commands and fibers of a run
_GRAINS = 2**17  # a journal's growth is counted in steps of 1/_GRAINS of the limit for all journals: 4 KiB

FEWEST_CACHED = 1000
"""The minimum of the default number of cached runs, regardless of memory."""

_MOST_CACHED = 100_000
_BYTES_PER_RUN = 32 * 1024  # memory of a small run, in the engine and in this cache
_PART_OF_MEMORY = 8


def most_cached() -> int:
    """Return the default for the maximum number of cached runs if all are busy: as many as fit into an eighth of the
    memory that this process may use.
    """
    return max(FEWEST_CACHED, min(_MOST_CACHED, memory_limit() // _PART_OF_MEMORY // _BYTES_PER_RUN))


def memory_limit() -> int:
    """Return the memory that this process may use, in bytes: the machine's memory, or the limit of the process's cgroup
    if that is lower.
    """
    try:
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (ValueError, OSError, AttributeError):  # the system does not report it
        limits = [1 << 31]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no cgroup, or a cgroup without a limit ("max")
            limits.append(int(Path(path).read_text(encoding="ascii")))
    return min(limit for limit in limits if limit > 0)


class Key(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """The identity of a run on one handle. A new handle of the same queue has another generation, and starts without
    runs."""

    task_queue: str
    run_id: str
    generation: int = 0


@dataclass(frozen=True)
class CacheLimits:
    """The limits of the cache: live fibers per lane, states per task queue, and the size of their journals.

    A run whose journal exceeds `journal_entries` or `journal_bytes` is evicted after each task, so every task begins
    with the whole history, and the total cost grows with the square of the run's length. No history that Temporal
    allows (51,200 events, 50 MB) is that long. `all_journals_bytes` limits all journals together.
    """

    live: int = 1000
    states: int = 1100
    journal_entries: int = 60_000
    journal_bytes: int = 64 * 1024 * 1024
    all_journals_bytes: int = 512 * 1024 * 1024


@dataclass(eq=False, slots=True)
class Entry:
    """A cached run."""

    key: Key
    run: Evaluator
    workflow_id: str = ""
    verified: bool = False
    activations: int = 0
    journal_bytes: int = 0
    eviction_requested: bool = field(default=False, repr=False)
    checked_work: int = 0
    checked: int = 0  # the number of activations at the last verification
    counted_bytes: int = 0  # the part of `journal_bytes` that the cache's total includes
    noted: bytes = b""  # the note that a lane writes while it executes the run (see `lane_notes`)

    def grown(self, activation: Activation) -> None:
        """Count an activation that was added to the journal, with its approximate size."""
        self.activations += 1
        size = _ACTIVATION_BYTES
        for event in activation.events:
            if isinstance(event, (ActivityCompleted, ChildCompleted)):
                size += len(event.result.data) if event.result is not None else 0
            else:
                for argument in getattr(event, "arguments", ()):
                    size += len(argument.data)
        self.journal_bytes += size

    def is_to_be_checked(self, first: int = 1) -> bool:
        """Whether to verify the run now: at activations 1, 2, 4, 8 … from `first` on.

        A large run is verified only when it has grown by half since its last verification, so that the total cost stays
        a small multiple of executing the run once.
        """
        if self.activations < first:
            return False
        live = self.run.live
        work = self.run.work + (live.fibers_made if live is not None else 0)
        large = work > _LARGE and work < 1.5 * self.checked_work
        if self.activations & (self.activations - 1) or large:
            return False
        self.checked_work = work
        return True

    def without_fibers(self) -> Entry:
        """Return a copy without fibers for another lane, because fibers cannot leave their thread."""
        old = self.run
        state = msgspec.structs.replace(old.state, journal=list(old.state.journal))
        run = Evaluator(old.definition, state.run_id, old.settings, state)
        run.last, run.seen, run.work = old.last, old.seen, old.work
        run.record = None if old.record is None else list(old.record)
        return Entry(
            self.key,
            run,
            self.workflow_id,
            self.verified,
            self.activations,
            self.journal_bytes,
            self.eviction_requested,
            self.checked_work,
            self.checked,
            self.counted_bytes,
            self.noted,
        )


_Queue: TypeAlias = tuple[str, int]


class StateCache:
    """The states of runs by key, each with its owner. Thread-safe. No workflow code runs under the lock."""

    def __init__(self, limits: CacheLimits | None = None) -> None:
        self.limits = limits or CacheLimits()
        self._grain = self.limits.all_journals_bytes // _GRAINS
        self._lock = threading.Lock()
        self._queues: dict[_Queue, dict[Key, Entry]] = {}
        self._owned: dict[object, dict[Key, Entry]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return sum(len(queue) for queue in list(self._queues.values()))

    def admit(self, owner: object) -> None:
        """Allow `owner` to store states. Before this call, and after `release` or `hand_over`, `put` rejects the
        owner's states.
        """
        with self._lock:
            self._owned.setdefault(owner, {})

    def count(self, owner: object) -> int:
        return len(self._owned.get(owner, ()))

    def owned(self, owner: object) -> list[Entry]:
        with self._lock:
            return list(self._owned.get(owner, _NOTHING).values())

    def get(self, key: Key, owner: object) -> Entry | None:
        """Return a run of the owner, and mark the run as the most recently used. Return None on a cache miss."""
        with self._lock:
            entry = self._owned.get(owner, _NOTHING).get(key)
            if entry is not None:
                queue = self._queues[key.task_queue, key.generation]
                # Move the run to the end. A plain dict keeps this order, too, in half the memory of an OrderedDict.
                del queue[key]
                queue[entry.key] = entry
            return entry

    def put(self, entry: Entry, owner: object) -> bool:
        """Store a run. Replace an earlier run with the same key, whoever owns it. Return False if the owner is no
        longer admitted.
        """
        key = entry.key
        with self._lock:
            owned = self._owned.get(owner)
            if owned is None:
                return False
            for states in self._owned.values():
                states.pop(key, None)
            owned[key] = entry
            name = key.task_queue, key.generation
            if key in self._queues.get(name, _NOTHING):
                self._unlist(key)
            self._queues.setdefault(name, {})[key] = entry
            return True

    def remove(self, key: Key, owner: object) -> Entry | None:
        """Remove and return a run of the owner. The caller must drop the run's fibers."""
        with self._lock:
            entry = self._owned.get(owner, _NOTHING).pop(key, None)
            if entry is not None:
                self._unlist(key)
            return entry

    def discard(self, key: Key) -> Entry | None:
        """Remove a run, whoever owns it. None of the run's activations may be in progress.

        Return the run if it has live fibers, which its lane must drop; otherwise None.
        """
        removed: Entry | None = None
        with self._lock:
            for owned in self._owned.values():
                removed = owned.pop(key, removed)
            self._unlist(key)
        return removed if removed is not None and removed.run.live is not None else None

    def hand_over(self, owner: object, successor: object, without: Key | None = None) -> Entry | None:
        """Move all states of an owner, without fibers, to its successor, and release the owner.

        The state with the key `without` is not moved, but removed and returned.
        """
        with self._lock:
            owned = self._owned.pop(owner, {})
            left = owned.pop(without, None) if without is not None else None
            if left is not None:
                self._unlist(left.key)
            states = self._owned.setdefault(successor, {})
            for key, entry in owned.items():
                copy = states[key] = entry.without_fibers()
                self._queues[key.task_queue, key.generation][key] = copy
            return left

    def move(self, key: Key, owner: object, target: object) -> Entry | None:
        """Move one run to another owner, without fibers. Return the original, whose fibers the former owner must drop;
        None if the run was not moved.
        """
        with self._lock:
            states = self._owned.get(target)
            entry = self._owned.get(owner, _NOTHING).pop(key, None) if states is not None else None
            if entry is None or states is None:
                return None
            copy = states[key] = entry.without_fibers()
            self._queues[key.task_queue, key.generation][key] = copy
            return entry

    def find(self, key: Key) -> Entry | None:
        """Return a run, whoever owns it, without marking the run as recently used."""
        return self._queues.get((key.task_queue, key.generation), _NOTHING).get(key)

    def release(self, owner: object) -> None:
        """Remove an owner with all its states."""
        with self._lock:
            for key in self._owned.pop(owner, {}):
                self._unlist(key)

    def pop_older(self, task_queue: str, generation: int, owner: object) -> list[Entry]:
        """Remove and return the owner's runs of a queue's handles before this generation. The caller must drop the
        runs' fibers.
        """
        with self._lock:
            owned = self._owned.get(owner, _NOTHING)
            old = [key for key in owned if key.task_queue == task_queue and key.generation < generation]
            for key in old:
                self._unlist(key)
            return [owned.pop(key) for key in old]

    def to_evict(self, entry: Entry) -> list[Key]:
        """Return the keys of the runs whose eviction must be requested now, of the same handle as `entry`. Each key is
        returned only once.

        A run is evicted because its journal is too long, because there are too many states, or because all journals
        together are too large.
        """
        key, limits = entry.key, self.limits
        is_long = entry.activations > limits.journal_entries or entry.journal_bytes > limits.journal_bytes
        if not is_long and entry.counted_bytes and entry.journal_bytes - entry.counted_bytes < self._grain:
            return []  # no new state, and the journal has hardly grown
        with self._lock:
            queue = self._queues.get((key.task_queue, key.generation), _NOTHING)
            if queue.get(key) is entry:
                self._bytes += entry.journal_bytes - entry.counted_bytes
                entry.counted_bytes = entry.journal_bytes
            excess_bytes = self._bytes - limits.all_journals_bytes
            excess = len(queue) - limits.states
            if not is_long and excess_bytes <= 0 and excess <= 0:
                return []
            chosen = [entry] if is_long else []
            chosen.extend(_oldest(queue, entry, excess_bytes))
            chosen.extend(oldest for oldest in list(queue.values())[: max(0, excess)] if oldest is not entry)
            evicted = [run for run in dict.fromkeys(chosen) if not run.eviction_requested]
            for run in evicted:
                run.eviction_requested = True
        return [run.key for run in evicted]

    def _unlist(self, key: Key) -> None:
        queue = self._queues.get((key.task_queue, key.generation))
        if queue is not None:
            entry = queue.pop(key, None)
            self._bytes -= entry.counted_bytes if entry is not None else 0
            if not queue:
                del self._queues[key.task_queue, key.generation]


def _oldest(queue: dict[Key, Entry], but: Entry, excess: int) -> list[Entry]:
    """Return the least recently used runs, except `but`, whose journals together exceed `excess` bytes."""
    oldest = []
    for entry in queue.values():
        if excess <= 0:
            break
        if entry is not but:
            oldest.append(entry)
            excess -= entry.counted_bytes
    return oldest


_NOTHING: dict[Key, Entry] = {}  # always empty


class LiveRuns:
    """The runs that have live fibers on one lane, least recently used first. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._runs: dict[Entry, None] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._runs

    def settle(self, entry: Entry) -> bool:
        """Mark a run as the most recently used, or remove the run if it has no live fibers. Return whether too many
        runs have live fibers.
        """
        self._runs.pop(entry, None)
        if entry.run.live is not None:
            self._runs[entry] = None
        return len(self._runs) > self._limit

    def excess(self) -> Entry | None:
        """Return the run whose fibers must be dropped next; None if the limit is not exceeded."""
        return self.oldest() if len(self._runs) > self._limit else None

    def oldest(self) -> Entry | None:
        """Return the least recently used run; None if no run has live fibers."""
        return next(iter(self._runs), None)

    def discard(self, entry: Entry) -> None:
        self._runs.pop(entry, None)


class LostJournals:
    """The journals of recently removed runs. If the engine sends a removed run again, its log messages are not
    repeated.

    Thread-safe. At most `most` journals and `most_bytes` are remembered.
    """

    def __init__(self, *, most: int = 100, most_bytes: int = 8 * 1024 * 1024) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._journals: OrderedDict[str, tuple[list[Activation], int]] = OrderedDict()

    def keep(self, run_id: str, journal: list[Activation], size: int) -> None:
        """Remember a journal, and forget the oldest journals beyond the limits."""
        with self._lock:
            self._take(run_id)
            self._journals[run_id] = (journal, size)
            self._bytes += size
            while len(self._journals) > self._most or self._bytes > self._most_bytes:
                self._bytes -= self._journals.popitem(last=False)[1][1]

    def take(self, run_id: str) -> Sequence[Activation]:
        """Return and forget the journal of a run that the engine has sent again; empty if there is none."""
        with self._lock:
            return self._take(run_id)

    def _take(self, run_id: str) -> Sequence[Activation]:
        journal, size = self._journals.pop(run_id, ((), 0))
        self._bytes -= size
        return journal
