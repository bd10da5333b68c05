"""A disk and a clock that fail when told: `shim.c`, compiled when it is first wanted, and the memory that it is told by.

Needs a C compiler and Linux; `is_here` says whether both are. A fault counts when it has hit a process, not when it was
asked for: `Shim.hits` counts what the processes met.
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
    """Whether the shim can be made here."""
    return sys.platform == "linux" and _compiler() is not None


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def library() -> Path:
    """The compiled shim; made once for each text of it."""
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
    """What processes with this environment are told. `prefix` is how the paths of the files begin that are the disk."""

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
        """Wall clocks are so far ahead from now on."""
        self._set(0, int(seconds * 1e9))

    def tell(self, kind: str, times: int) -> None:
        """It shall happen so many times from now on; of a full disk: from now on (1), or no longer (0)."""
        self._set(2 + KINDS.index(kind), times)

    def cut_power(self) -> None:
        """Every process that has written dies, and what it has not synced may be lost."""
        place = 2 + KINDS.index("power-cut")
        self._set(place, self._get(place) + 1)

    def hits(self, kind: str) -> int:
        """How often it has happened."""
        return self._get(2 + len(KINDS) + KINDS.index(kind))

    def calm(self) -> None:
        """Nothing fails any more, and the clock is right."""
        self.set_clock(0.0)
        for kind in KINDS:
            if kind != "power-cut":
                self.tell(kind, 0)

    def _set(self, place: int, value: int) -> None:
        struct.pack_into("q", self._memory, 8 * place, value)

    def _get(self, place: int) -> int:
        found: int = struct.unpack_from("q", self._memory, 8 * place)[0]
        return found
