"""The seed of a run's randomness: the same number that Core derives from a run id, so that a run can move
between engines.

Core feeds the run id to SipHash-1-3 with a zero key, as Rust hashes a string: its UTF-8 bytes and then 0xFF.
"""

from __future__ import annotations

from functools import lru_cache

_MASK = (1 << 64) - 1
_INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


@lru_cache(maxsize=1024)  # a run that is replayed asks again
def seed_of(run_id: str) -> int:
    """The 64-bit seed of a run, from the id of its first run."""
    data = run_id.encode() + b"\xff"
    whole = len(data) - len(data) % 8
    state = _INITIAL
    for start in range(0, whole, 8):
        state = _absorb(state, int.from_bytes(data[start : start + 8], "little"))
    state = _absorb(state, int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    v0, v1, v2, v3 = state
    state = (v0, v1, v2 ^ 0xFF, v3)
    for _ in range(3):
        state = _round(*state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _absorb(state: tuple[int, int, int, int], word: int) -> tuple[int, int, int, int]:
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ word)
    return v0 ^ word, v1, v2, v3


def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = (v0 + v1) & _MASK
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = (v2 + v3) & _MASK
    v3 = _rotate(v3, 16) ^ v2
    v0 = (v0 + v3) & _MASK
    v3 = _rotate(v3, 21) ^ v0
    v2 = (v2 + v1) & _MASK
    v1 = _rotate(v1, 17) ^ v2
    return v0, v1, _rotate(v2, 32), v3


def _rotate(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (64 - bits))) & _MASK
