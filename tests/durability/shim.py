"""A disk and a clock that fail on command: `shim.c`, compiled on first use, and the shared memory that controls it.

Needs a C compiler and Linux, see `is_here`. A fault counts when it has hit a process, not when it was requested: `Shim.hits`
counts the hits.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("shim.c")
KINDS = ("disk-full", "write-error", "sync-error", "slow-sync", "torn-write", "power-cut")
_FILES = 64
_WORDS = 2 + 2 * len(KINDS) + _FILES


def is_here() -> bool:
    """Return whether the shim can be compiled here."""
    return sys.platform == "linux" and _compiler() is not None


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def library() -> Path:
    """Return the compiled shim; compile it once for each version of its source."""
    compiler = _compiler()
    assert compiler is not None, "a C compiler is needed"
    name = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    place = Path(tempfile.gettempdir()) / f"hourglass-shim-{os.getuid()}-{name}.so"
    if not place.exists():
        made = place.with_suffix(f".{os.getpid()}")
        command = [compiler, "-shared", "-fPIC", "-O1", "-pthread", "-o", str(made), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        made.replace(place)
    return place


class Shim:
    """Controls the processes that run with its environment. `prefix` is the start of the paths on the failing disk."""

    def __init__(self, control: Path, prefix: Path, seed: int) -> None:
        control.write_bytes(bytes(8 * _WORDS))
        with control.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.environment = {
            "LD_PRELOAD": str(library()),
            "HOURGLASS_SHIM_CONTROL": str(control),
            "HOURGLASS_SHIM_PREFIX": str(prefix),
        }
        self._set(1, seed)

    def set_clock(self, seconds: float) -> None:
        """Move wall clocks ahead by this many seconds."""
        self._set(0, int(seconds * 1e9))

    def tell(self, kind: str, times: int) -> None:
        """Let a fault happen this many times. For a full disk, 1 turns it on and 0 off."""
        self._set(2 + KINDS.index(kind), times)

    def cut_power(self) -> None:
        """Kill every process that has written; what it has not synced may be lost."""
        place = 2 + KINDS.index("power-cut")
        self._set(place, self._get(place) + 1)

    def hits(self, kind: str) -> int:
        """Return how often the fault has happened."""
        return self._get(2 + len(KINDS) + KINDS.index(kind))

    def reset(self) -> None:
        """Stop all faults and reset the clock."""
        self.set_clock(0.0)
        for kind in KINDS:
            if kind != "power-cut":
                self.tell(kind, 0)

    def _set(self, place: int, value: int) -> None:
        struct.pack_into("q", self._memory, 8 * place, value)

    def _get(self, place: int) -> int:
        value: int = struct.unpack_from("q", self._memory, 8 * place)[0]
        return value
