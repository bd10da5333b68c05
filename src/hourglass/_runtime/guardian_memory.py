"""The runs that hung, as a guardian remembers them while processes come and go.

A run is remembered until it goes on, its code changes, or many others have hung since. Its code has changed when one of the
author's files on its stack has: the process that hung cannot tell which code it ran, and what comes after it has loaded its own.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hourglass._runtime.guardian_wire import RunHung

_REMEMBERED = 200
_LONGEST_STACK = 16_000
_FILE = re.compile(r'^  File "(.+)", line \d+', re.MULTILINE)


@dataclass(frozen=True)
class _Remembered:
    hang: RunHung
    at: float
    code: tuple[tuple[str, str], ...]


class HungRuns:
    """What a guardian tells each new process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs: OrderedDict[str, _Remembered] = OrderedDict()

    def add(self, hang: RunHung) -> RunHung:
        """A run hung; returns it with how often it has, in this code."""
        code = code_of(hang.stack)
        known = self._runs.pop(hang.run_id, None)
        times = known.hang.times + 1 if known is not None and known.code == code_of(known.hang.stack) else 1
        hang = replace(hang, times=times, stack=hang.stack[:_LONGEST_STACK])
        self._runs[hang.run_id] = _Remembered(hang, self._clock(), code)
        while len(self._runs) > _REMEMBERED:
            self._runs.popitem(last=False)
        return hang

    def forget(self, run_id: str) -> None:
        """A run went on."""
        self._runs.pop(run_id, None)

    def told(self) -> list[RunHung]:
        """All that a new process should know. Each failure is owed once: the first process that hears of it pays."""
        now = self._clock()
        for run_id, each in list(self._runs.items()):
            if each.code != code_of(each.hang.stack):
                del self._runs[run_id]
        told = [replace(each.hang, age=now - each.at) for each in self._runs.values()]
        for run_id, each in self._runs.items():
            self._runs[run_id] = replace(each, hang=replace(each.hang, owed=False))
        return told


def code_of(stack: str) -> tuple[tuple[str, str], ...]:
    """The files on a stack and what is in them now."""
    return tuple((file, _digest(Path(file))) for file in dict.fromkeys(_FILE.findall(stack)))


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
