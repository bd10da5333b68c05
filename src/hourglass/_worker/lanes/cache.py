"""What is kept of runs between activations: states for all lanes, live fibers for the lane that made them.

`StateCache` maps (task queue, run id, generation of the handle) to the state of a run and outlives lanes and handles.
It mirrors the engine's sticky cache: least recently used first, and bounded; what is too much is given back by asking
the engine for its eviction, and so is a run whose journal has grown too long. Each state has one owner, a lane's
`Evaluations`, which alone may touch it. When a lane is replaced its states go to its successor, without their fibers,
and those of runs that wait behind code that does not come back go to another lane; the former owner finds nothing any
more.

`LiveRuns` is a lane's own list of runs that hold live fibers, the cheap loss: beyond its limit they are dropped
first, and the journal brings them back. Neither drops fibers; the lane does, on its thread, because a greenlet cannot
leave the thread that made it.

Two more remember something of runs that are gone: `LostJournals` what they did, `TurnRules` which turns those take that
temporalio began.
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

from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.evaluator import Evaluator
from hourglass._evaluator.events import Activation, ActivityCompleted, ChildCompleted, RunEvicted

# What an activation costs in a journal beside its payloads.
_ACTIVATION_BYTES = 110
_LARGE = 1000  # events, commands and fibers of a run
# What a journal grows by is counted in such parts of the limit, 4 KiB, and not after every activation.
_GRAINS = 2**17


FEWEST_CACHED = 1000
"""So many runs are kept where the user says nothing, however little memory there is."""

_MOST_CACHED = 100_000
_BYTES_EACH = 32 * 1024  # of a small run, in the engine and here
_PART_OF_MEMORY = 8


def most_cached() -> int:
    """How many runs may be kept while all are busy, where the user says nothing: an eighth of the memory that this
    process may have, a container's limit included.
    """
    return max(FEWEST_CACHED, min(_MOST_CACHED, memory_limit() // _PART_OF_MEMORY // _BYTES_EACH))


def memory_limit() -> int:
    """The bytes of memory that this process may have: the machine's, or less where its control group says so."""
    try:
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (ValueError, OSError, AttributeError):  # a system that does not say
        found = [1 << 31]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # there is no such group, or it has no limit ("max")
            found.append(int(Path(path).read_text(encoding="ascii")))
    return min(each for each in found if each > 0)


class Key(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Which run: a handle that was opened anew for the same queue has another generation and begins with nothing."""

    task_queue: str
    run_id: str
    generation: int = 0


@dataclass(frozen=True)
class CacheLimits:
    """How much is kept: live fibers per lane, states per task queue, and how much their journals may take in all.

    A journal above either limit of its own is not kept between activations: then every task begins with the whole
    history, which makes a run cost the square of its length. No history that Temporal allows (51,200 events, 50 MB)
    gets there; what many such runs take together is limited instead.
    """

    live: int = 1000
    states: int = 1100
    journal_entries: int = 60_000
    journal_bytes: int = 64 * 1024 * 1024
    all_journals_bytes: int = 512 * 1024 * 1024


@dataclass(eq=False, slots=True)
class Entry:
    """A run and what the cache knows of it."""

    key: Key
    run: Evaluator
    workflow_id: str = ""
    verified: bool = False
    activations: int = 0
    journal_bytes: int = 0
    eviction_requested: bool = field(default=False, repr=False)
    checked_work: int = 0
    checked: int = 0  # so many activations were executed again, and compared
    counted_bytes: int = 0  # what the cache has counted of its journal
    noted: bytes = b""  # what a lane writes down while it executes the run, where it does (see `lane_notes`)

    def grown(self, activation: Activation) -> None:
        """The run has handled an activation that its journal keeps."""
        self.activations += 1
        self.journal_bytes += weight(activation)

    def is_to_be_checked(self, first: int = 1) -> bool:
        """Whether to execute the run again, to compare: at activations 1, 2, 4, 8 … from this one on, but a large one
        only when it has grown by half since: what it takes in all stays a small multiple of the run itself.
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
        """The same run as data, for another lane: the old one's fibers cannot leave its thread."""
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
    """States by key, each with its owner. For several threads; no code but its own runs under its lock."""

    def __init__(self, limits: CacheLimits | None = None) -> None:
        self.limits = limits or CacheLimits()
        self._grain = self.limits.all_journals_bytes // _GRAINS
        self._lock = threading.Lock()
        self._queues: dict[_Queue, dict[Key, Entry]] = {}
        self._owned: dict[object, dict[Key, Entry]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return sum(len(each) for each in list(self._queues.values()))

    def admit(self, owner: object) -> None:
        """Let `owner` have states: one that was never admitted, or was released, keeps nothing."""
        with self._lock:
            self._owned.setdefault(owner, {})

    def count(self, owner: object) -> int:
        """How many states `owner` has."""
        return len(self._owned.get(owner, ()))

    def owned(self, owner: object) -> list[Entry]:
        """The states of `owner`."""
        with self._lock:
            return list(self._owned.get(owner, _NOTHING).values())

    def get(self, key: Key, owner: object) -> Entry | None:
        """The owner's run, which becomes the most recently used; None on a miss."""
        with self._lock:
            entry = self._owned.get(owner, _NOTHING).get(key)
            if entry is not None:
                queue = self._queues[key.task_queue, key.generation]
                # Behind all others: a plain dict keeps that order too, in half the room of an OrderedDict.
                del queue[key]
                queue[entry.key] = entry
            return entry

    def put(self, entry: Entry, owner: object) -> bool:
        """Keep a run, in place of one with the same key; False if the owner is no longer admitted."""
        key = entry.key
        with self._lock:
            owned = self._owned.get(owner)
            if owned is None:
                return False
            for others in self._owned.values():
                others.pop(key, None)
            owned[key] = entry
            self._unlist(key)
            self._queues.setdefault((key.task_queue, key.generation), {})[key] = entry
            return True

    def remove(self, key: Key, owner: object) -> Entry | None:
        """Forget a run of the owner's; the caller drops its fibers."""
        with self._lock:
            entry = self._owned.get(owner, _NOTHING).pop(key, None)
            if entry is not None:
                self._unlist(key)
            return entry

    def discard(self, key: Key) -> Entry | None:
        """Forget a run, of any owner, while none of its activations is out; gives it if it holds fibers, which its
        lane must drop.
        """
        gone: Entry | None = None
        with self._lock:
            for owned in self._owned.values():
                gone = owned.pop(key, gone)
            self._unlist(key)
        return gone if gone is not None and gone.run.live is not None else None

    def hand_over(self, owner: object, successor: object, without: Key | None = None) -> Entry | None:
        """All states of an owner go to its successor, as data, but for one, which is forgotten and returned. The
        owner has none, and gets none, from now on.
        """
        with self._lock:
            owned = self._owned.pop(owner, {})
            left = owned.pop(without, None) if without is not None else None
            if left is not None:
                self._unlist(left.key)
            inherited = self._owned.setdefault(successor, {})
            for key, entry in owned.items():
                fresh = entry.without_fibers()
                inherited[key] = fresh
                self._queues[key.task_queue, key.generation][key] = fresh
            return left

    def pass_on(self, key: Key, owner: object, other: object) -> Entry | None:
        """One run of an owner goes to another, as data; gives what the owner had, whose fibers it must drop."""
        with self._lock:
            inherited = self._owned.get(other)
            entry = self._owned.get(owner, _NOTHING).pop(key, None) if inherited is not None else None
            if entry is None or inherited is None:
                return None
            fresh = inherited[key] = entry.without_fibers()
            self._queues[key.task_queue, key.generation][key] = fresh
            return entry

    def find(self, key: Key) -> Entry | None:
        """A run, of any owner; it stays as recently used as it was."""
        return self._queues.get((key.task_queue, key.generation), _NOTHING).get(key)

    def release(self, owner: object) -> None:
        """Forget an owner and all its states."""
        with self._lock:
            for key in self._owned.pop(owner, {}):
                self._unlist(key)

    def pop_older(self, task_queue: str, generation: int, owner: object) -> list[Entry]:
        """Forget the owner's runs of a queue's former handles; the caller drops their fibers."""
        with self._lock:
            owned = self._owned.get(owner, _NOTHING)
            old = [key for key in owned if key.task_queue == task_queue and key.generation < generation]
            for key in old:
                self._unlist(key)
            return [owned.pop(key) for key in old]

    def to_evict(self, entry: Entry) -> list[Key]:
        """The runs of the same handle whose eviction must be asked for now, each named once: too long a journal, too
        many states, or too much in all.
        """
        key, limits = entry.key, self.limits
        is_long = entry.activations > limits.journal_entries or entry.journal_bytes > limits.journal_bytes
        if not is_long and entry.counted_bytes and entry.journal_bytes - entry.counted_bytes < self._grain:
            return []  # there are no more states than before, and they take hardly more
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
            chosen.extend(each for each in list(queue.values())[: max(0, excess)] if each is not entry)
            fresh = [each for each in dict.fromkeys(chosen) if not each.eviction_requested]
            for each in fresh:
                each.eviction_requested = True
        return [each.key for each in fresh]

    def _unlist(self, key: Key) -> None:
        queue = self._queues.get((key.task_queue, key.generation))
        if queue is not None:
            gone = queue.pop(key, None)
            self._bytes -= gone.counted_bytes if gone is not None else 0
            if not queue:
                del self._queues[key.task_queue, key.generation]


def _oldest(queue: dict[Key, Entry], but: Entry, excess: int) -> list[Entry]:
    """The runs to give up, least recently used first, that take as much as is too much."""
    found = []
    for entry in queue.values():
        if excess <= 0:
            break
        if entry is not but:
            found.append(entry)
            excess -= entry.counted_bytes
    return found


_NOTHING: dict[Key, Entry] = {}  # stands for what has no owner; never filled


class LiveRuns:
    """The runs that hold live fibers on one lane, least recently used first. Not for several threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._runs: dict[Entry, None] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._runs

    def settle(self, entry: Entry) -> bool:
        """Note whether a run holds live fibers now; True if too many do."""
        self._runs.pop(entry, None)
        if entry.run.live is not None:
            self._runs[entry] = None
        return len(self._runs) > self._limit

    def excess(self) -> Entry | None:
        """The run whose fibers must be dropped next, None if there is room. Settle it afterwards."""
        return self.oldest() if len(self._runs) > self._limit else None

    def oldest(self) -> Entry | None:
        """The least recently used run."""
        return next(iter(self._runs), None)

    def discard(self, entry: Entry) -> None:
        """Forget a run."""
        self._runs.pop(entry, None)


class LostJournals:
    """The journals of runs that were lost a moment ago, for a while and a few MiB: should the engine send one of
    them again, its log messages have been written already. For several threads.
    """

    def __init__(self, *, most: int = 100, most_bytes: int = 8 * 1024 * 1024) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[list[Activation], int]] = OrderedDict()

    def keep(self, run_id: str, journal: list[Activation], size: int) -> None:
        """Keep a journal; the oldest ones go."""
        with self._lock:
            self._take(run_id)
            self._kept[run_id] = (journal, size)
            self._bytes += size
            while len(self._kept) > self._most or self._bytes > self._most_bytes:
                self._bytes -= self._kept.popitem(last=False)[1][1]

    def take(self, run_id: str) -> Sequence[Activation]:
        """The journal of a run that comes back, empty if it is not kept."""
        with self._lock:
            return self._take(run_id)

    def _take(self, run_id: str) -> Sequence[Activation]:
        kept = self._kept.pop(run_id, None)
        if kept is None:
            return ()
        self._bytes -= kept[1]
        return kept[0]


def weight(activation: Activation) -> int:
    """About how many bytes an activation takes in a journal."""
    total = _ACTIVATION_BYTES
    for event in activation.events:
        if isinstance(event, (ActivityCompleted, ChildCompleted)):
            total += len(event.result.data) if event.result is not None else 0
        else:
            for argument in getattr(event, "arguments", ()):
                total += len(argument.data)
    return total


# --- turns of runs that temporalio began --------------------------------------------------------------------


_MOST_TURNS = 10_000


class TurnRules:
    """Which Python's turns the runs take that temporalio began, by trial: histories do not say.

    From Python 3.12 on `asyncio.wait_for`, and with it temporalio's `wait_condition`, and `asyncio.gather` of what is
    done already take a turn less than before. A run of theirs that moves here takes the older turns first; where the
    engine finds that its commands differ from those on record, the newer ones the next time, and so on by turns.

    Must not know: lanes, engines, what a run does. For several threads: a run may come back to another lane.
    Invariant: it holds at most `_MOST_TURNS` run ids; one that was pushed out is tried by the older rule again, and
    costs one more failed task.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newer: dict[str, None] = {}

    def settings(self, run_id: str, usual: RunSettings) -> RunSettings:
        """The settings of a run that begins here."""
        return msgspec.structs.replace(usual, newer_turns=True) if run_id in self._newer else usual

    def learn(self, evicted: RunEvicted, entry: Entry | None) -> bool:
        """Switch a run that does not fit its history to the other turn rules. Return whether these are untried yet."""
        if evicted.reason != "NONDETERMINISM" or entry is None or not entry.run.behaviour.python_is_unknown:
            return False
        run_id = entry.key.run_id
        with self._lock:
            if run_id in self._newer:
                del self._newer[run_id]
                return False
            self._newer[run_id] = None
            if len(self._newer) > _MOST_TURNS:
                del self._newer[next(iter(self._newer))]
            return True
