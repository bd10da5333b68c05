"""The seed of a run's randomness: the same number that Core derives from a run id, so that a run can move
between engines.

Core feeds the run id to SipHash-1-3 with a zero key, as Rust hashes a string: its UTF-8 bytes and then 0xFF. CPython
has the same function for the sources of modules (PEP 552), a hundred times as fast as one in Python: it is used where
it is there and gives what it should.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

_MASK = (1 << 64) - 1
_INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


@lru_cache(maxsize=1024)  # a run that is replayed asks again
def seed_of(run_id: str) -> int:
    """The 64-bit seed of a run, from the id of its first run."""
    data = run_id.encode() + b"\xff"
    return siphash(data) if _native is None else int.from_bytes(_native(0, data), "little")


def siphash(data: bytes) -> int:
    """SipHash-1-3 with a zero key."""
    whole = len(data) - len(data) % 8
    v0, v1, v2, v3 = _INITIAL
    for start in range(0, whole, 8):
        word = int.from_bytes(data[start : start + 8], "little")
        v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ word)
        v0 ^= word
    word = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ word)
    v0, v1, v2, v3 = _round(v0 ^ word, v1, v2 ^ 0xFF, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    # The rotations are written out: calling a function for each takes longer than all the rest.
    v0 = (v0 + v1) & _MASK
    v1 = (v1 << 13 & _MASK | v1 >> 51) ^ v0
    v0 = v0 << 32 & _MASK | v0 >> 32
    v2 = (v2 + v3) & _MASK
    v3 = (v3 << 16 & _MASK | v3 >> 48) ^ v2
    v0 = (v0 + v3) & _MASK
    v3 = (v3 << 21 & _MASK | v3 >> 43) ^ v0
    v2 = (v2 + v1) & _MASK
    v1 = (v1 << 17 & _MASK | v1 >> 47) ^ v2
    return v0, v1, v2 << 32 & _MASK | v2 >> 32, v3


def _pythons_own() -> Callable[[int, bytes], bytes] | None:
    """The function of this Python, if it has the right one: before 3.11 it was SipHash-2-4."""
    try:
        from _imp import source_hash
    except ImportError:  # another implementation of Python
        return None
    sample = bytes(range(37))
    return source_hash if source_hash(0, sample) == siphash(sample).to_bytes(8, "little") else None


_native = _pythons_own()
