"""The stored bytes of values, and the random seed of a run, which is a hash of its id."""

from __future__ import annotations

import msgspec
import pytest

from hourglass._embedded.activations import cursor
from hourglass._history.encoding import array, encode


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 65_535, 65_536])
def test_array_of_encoded_values_equals_the_encoded_list(count: int) -> None:
    values = [{"n": number % 7} for number in range(count)]
    assert bytes(array(len(values), b"".join(map(encode, values)))) == msgspec.msgpack.encode(values)


def test_lone_surrogate_is_encoded_as_a_question_mark() -> None:
    value = {"half \ud800": ["\udfff", b"\xff\x00", 1]}
    assert msgspec.msgpack.decode(encode(value)) == {"half ?": ["?", b"\xff\x00", 1]}


def test_import_fails_if_python_hash_is_not_siphash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workflows would draw other random numbers in replay with another hash."""
    monkeypatch.setattr(cursor, "source_hash", lambda key, data: bytes(8))
    cursor.seed_of.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="does not support SipHash-1-3"):
            cursor._check_seed()
    finally:
        cursor.seed_of.cache_clear()


def test_random_seed_of_a_run_id_never_changes() -> None:
    """`test_core_replay.py` shows that the seed is Core's."""
    assert cursor.seed_of("01234567-89ab-cdef-0123-000000000001") == 0x372AFB2DF019857D
