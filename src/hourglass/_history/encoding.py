"""What is stored, as bytes: MessagePack.

Must not know: SQL, what is stored. The transition that writes an event encodes it, once: its length counts against
its run's limits, and the bytes are what the store keeps. Invariants: whatever has been decided can be encoded, also
with half a character in a name; bytes of values that `array` puts a head before are those of the values in a list.
"""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.msgpack.Encoder().encode
_FEW = [bytes((0x90 | count,)) for count in range(16)]


def encode(value: Any) -> bytes:
    """A value as bytes."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        # A lone surrogate in one name must not fail the commit that the changes of other runs share.
        return _encode(_mend(msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=False)))


def encode_each(values: list[Any]) -> bytes:
    """Values as bytes, one after the other: a list of them without its head."""
    encoded = encode(values)
    count = len(values)
    return encoded[1 if count < 16 else 3 if count < 1 << 16 else 5 :]


def array(count: int, encoded: bytes) -> bytearray:
    """So many encoded values, one after the other, as an encoded list of them."""
    if count < 16:
        head = _FEW[count]
    else:
        head = b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
    return bytearray().join((head, encoded))


def plain(text: str) -> str:
    """Text that UTF-8 can hold: lone surrogates, which come from file names, are replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _mend(value: Any) -> Any:
    match value:
        case str():
            return plain(value)
        case dict():
            return {_mend(key): _mend(each) for key, each in value.items()}
        case list() | tuple():
            return [_mend(each) for each in value]
        case _:
            return value
