"""Which workflow ids may have been used before: a sieve (a Bloom filter) over all of them.

Must not know: SQL, runs. A start must know whether its id is free, and most are; to ask the file each time costs the
control loop a fight for the interpreter beside busy threads. Invariants: an id that was added is never said to be new;
of those that were not, about one in two hundred is taken for used, which costs a read and nothing else; memory is two
bytes per id, in pieces.
"""

from __future__ import annotations

from collections.abc import Iterable

_BITS = 21
_MASK = (1 << _BITS) - 1
_IDS = (1 << _BITS) // 16
"""How many ids a piece holds: with sixteen bits for each, three of which are set, it is wrong often enough to be small."""


class KnownIds:
    """Every id that there is, and perhaps some that are not."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._pieces = [bytearray(1 << (_BITS - 3))]
        self._left = _IDS
        for each in ids:
            self.add(each)

    def add(self, text: str) -> None:
        """This id is used from now on."""
        if not self._left:
            self._pieces.append(bytearray(1 << (_BITS - 3)))
            self._left = _IDS
        self._left -= 1
        piece = self._pieces[-1]
        for place in _places(text):
            piece[place >> 3] |= 1 << (place & 7)

    def may_have(self, text: str) -> bool:
        """Whether an id may be used; False: it is not."""
        one, two, three = _places(text)
        return any(
            piece[one >> 3] >> (one & 7) & piece[two >> 3] >> (two & 7) & piece[three >> 3] >> (three & 7) & 1
            for piece in self._pieces
        )


def _places(text: str) -> tuple[int, int, int]:
    value = hash(text)  # all sixty-four bits are good, and differ from process to process
    return value & _MASK, (value >> _BITS) & _MASK, (value >> 2 * _BITS) & _MASK
