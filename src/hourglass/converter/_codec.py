"""The codec seam: what stands between encoded payloads and the outside (encryption, compression).

`map_payloads` finds every payload in events, commands, tasks and requests, and hands all of them to a
function at once, so that a codec that asks a key server does so once. `seal` and `unseal` are the whole way
out and in: failures give up their texts, then the codec gets every payload, and what it does wrong becomes
one clear error.

Search attributes never pass a codec: servers index them. Headers do not either by default, as in Temporal's
own SDKs, whose interceptors write and read them as they are.

Must not know any event or command: it walks structs, tuples, lists and dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from hourglass.converter._converter import Converter
from hourglass.converter._data import Failure, Payload, causes
from hourglass.converter._data import decode_failure as _open_failure
from hourglass.converter._data import encode_failure as _seal_failure
from hourglass.errors import DecodeError, EncodeError, PayloadError

T = TypeVar("T")
PayloadFunction = Callable[[list[Payload]], Sequence[Payload]]

NEVER_CODED = frozenset(("search_attributes",))
WITHOUT_HEADERS = frozenset(("search_attributes", "headers"))

_LEAVES = frozenset((str, int, float, bool, bytes, type(None)))


class Codec(Protocol):
    """Changes encoded payloads on their way out and in. Synchronous: it runs in a worker's thread.

    `decode` must refuse, by raising, a payload that this codec did not encode: else every program that can
    write to the service can feed the worker plain payloads. Both return one payload for each that they get, in
    the same order.
    """

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """The payloads as the outside shall see them."""
        ...

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """The payloads as they were before `encode`."""
        ...


# --- finding things -------------------------------------------------------------------------------


def _rebuild(node: Any, kind: type, change: Callable[[Any], Any], skip: frozenset[str]) -> Any:
    """A copy of the tree with every object of the kind changed; whatever holds none is the same object."""
    if type(node) in _LEAVES:
        return node
    if isinstance(node, kind):
        return change(node)
    match node:
        case Failure():
            return _rebuild_failure(node, kind, change, skip)
        case msgspec.Struct():
            return _rebuild_struct(node, kind, change, skip)
        case dict():
            changed = {key: _rebuild(value, kind, change, skip) for key, value in node.items()}
            return changed if any(changed[key] is not node[key] for key in node) else node
        case tuple() | list():
            items = [_rebuild(item, kind, change, skip) for item in node]
            if all(new is old for new, old in zip(items, node, strict=True)):
                return node
            return items if isinstance(node, list) else tuple(items)
        case _:
            return node


def _rebuild_struct(
    node: msgspec.Struct,
    kind: type,
    change: Callable[[Any], Any],
    skip: frozenset[str],
) -> msgspec.Struct:
    changes: dict[str, Any] = {}
    for name in node.__struct_fields__:
        if name not in skip:
            old = getattr(node, name)
            new = _rebuild(old, kind, change, skip)
            if new is not old:
                changes[name] = new
    return msgspec.structs.replace(node, **changes) if changes else node


_CAUSE = frozenset(("cause",))


def _rebuild_failure(
    failure: Failure, kind: type, change: Callable[[Any], Any], skip: frozenset[str]
) -> Failure:
    """Along the chain of causes in a loop: a chain may be longer than Python's stack."""
    rebuilt: Any = None
    for link in reversed(list(causes(failure))):
        new: Any = _rebuild_struct(link, kind, change, skip | _CAUSE)
        rebuilt = new if new.cause is rebuilt else msgspec.structs.replace(new, cause=rebuilt)
    return rebuilt  # type: ignore[no-any-return]


def map_payloads(obj: T, fn: PayloadFunction, *, skip: frozenset[str] = NEVER_CODED) -> T:
    """A copy of `obj` with every payload replaced. `fn` is called once, with all of them.

    Fields named in `skip` are left alone. An object without payloads is returned as it is.
    """
    found: list[Payload] = []

    def collect(payload: Payload) -> Payload:
        found.append(payload)
        return payload

    _rebuild(obj, Payload, collect, skip)
    if not found:
        return obj
    replaced = fn(found)
    if len(replaced) != len(found):
        raise PayloadError(f"{len(found)} payloads went in, {len(replaced)} came out")
    # The walk is the same both times, so that the n-th payload found is the n-th replaced.
    remaining = iter(replaced)
    return _rebuild(obj, Payload, lambda _: next(remaining), skip)  # type: ignore[no-any-return]


def map_failures(obj: T, fn: Callable[[Failure], Failure]) -> T:
    """A copy of `obj` with every failure (as a whole, with its causes) replaced."""
    return _rebuild(obj, Failure, fn, frozenset())  # type: ignore[no-any-return]


# --- the way out and in ---------------------------------------------------------------------------


def encode_failure(failure: Failure, converter: Converter) -> Failure:
    """The failure with its texts and its causes' texts in `encoded_attributes`, where codecs reach."""
    return _seal_failure(failure, converter.encode)


def decode_failure(failure: Failure, converter: Converter) -> Failure:
    """The reverse of `encode_failure`."""
    return _open_failure(failure, converter.decode)


def seal(obj: T, codec: Codec, converter: Converter, *, headers: bool = False) -> T:
    """What leaves: failures and payloads encoded by the codec. Raises EncodeError."""
    closed = map_failures(obj, lambda failure: encode_failure(failure, converter))
    skip = NEVER_CODED if headers else WITHOUT_HEADERS
    return map_payloads(closed, lambda payloads: _run(codec, "encode", payloads), skip=skip)


def unseal(obj: T, codec: Codec, converter: Converter, *, headers: bool = False) -> T:
    """What arrives: payloads and failures decoded by the codec. Raises DecodeError."""
    skip = NEVER_CODED if headers else WITHOUT_HEADERS
    opened = map_payloads(obj, lambda payloads: _run(codec, "decode", payloads), skip=skip)
    return map_failures(opened, lambda failure: decode_failure(failure, converter))


def _run(codec: Codec, way: str, payloads: list[Payload]) -> Sequence[Payload]:
    """Call a codec and check what it gives back."""
    error = EncodeError if way == "encode" else DecodeError
    name = f"codec {type(codec).__name__}.{way}"
    try:
        results = list(getattr(codec, way)(payloads))
    except Exception as raised:
        raise error(f"{name} raised {type(raised).__name__}") from raised
    if len(results) != len(payloads):
        raise error(f"{name} returned {len(results)} payloads for {len(payloads)}")
    for result in results:
        if not isinstance(result, Payload):
            raise error(f"{name} returned a {type(result).__name__}, not a Payload")
    return results
