"""The codec seam: what stands between encoded payloads and the outside (encryption, compression).

`map_payloads` finds every payload in events, commands, tasks and requests, and hands all of them to a
function at once, so that a codec that asks a key server does so once. `seal` and `unseal` are the whole way
out and in: failures give up their texts, then the codec gets every payload, and what it does wrong becomes
one clear error.

Search attributes never pass a codec: servers index them. Headers do not either by default, as in Temporal's
own SDKs, whose interceptors write and read them as they are (`HeaderCodecBehavior`).

Must not know any event or command: it walks structs, tuples, lists and dicts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import Any, Protocol, TypeVar

import msgspec

from hourglass._loops import submit
from hourglass.converter._context import SerializationContext, in_context, wants_context
from hourglass.converter._converter import Converter
from hourglass.converter._data import Failure, Payload, causes
from hourglass.converter._data import decode_failure as _open_failure
from hourglass.converter._data import encode_failure as _seal_failure
from hourglass.errors import DecodeError, EncodeError, HourglassError, PayloadError, UsageError

T = TypeVar("T")
PayloadFunction = Callable[[list[Payload]], Sequence[Payload]]

NEVER_CODED = frozenset(("search_attributes",))
WITHOUT_HEADERS = frozenset(("search_attributes", "headers"))

_LEAVES = frozenset((str, int, float, bool, bytes, type(None)))


class HeaderCodecBehavior(IntEnum):
    """Whether a codec gets headers, too: payloads of interceptors, which travel beside the arguments."""

    NO_CODEC = 1
    """They travel as they are, so that proxies and other programs can read them."""
    CODEC = 2
    """They are encoded, and decoded, everywhere."""
    WORKFLOW_ONLY_CODEC = 3
    """They are between a worker and its workflows alone; clients and activities see them encoded."""


class Codec(Protocol):
    """Changes encoded payloads on their way out and in. Its methods are plain, and run in a thread for codecs; or `async def`,
    and run on an event loop of their own.

    `decode` must refuse, by raising, a payload that this codec did not encode: else every program that can
    write to the service can feed the worker plain payloads. Both return one payload for each that they get, in
    the same order.
    """

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload] | Awaitable[Sequence[Payload]]:
        """The payloads as the outside shall see them."""
        ...

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload] | Awaitable[Sequence[Payload]]:
        """The payloads as they were before `encode`."""
        ...


def encoded(codec: Codec, payloads: Sequence[Payload]) -> Sequence[Payload]:
    """What a codec makes of payloads; this thread waits for one that is `async def`."""
    return _settled(codec.encode(payloads))


def decoded(codec: Codec, payloads: Sequence[Payload]) -> Sequence[Payload]:
    """What payloads were before a codec; this thread waits for one that is `async def`."""
    return _settled(codec.decode(payloads))


def _settled(result: Sequence[Payload] | Awaitable[Sequence[Payload]]) -> Sequence[Payload]:
    return submit(result, "codec").result() if isinstance(result, Awaitable) else result


class CodecWithHeaders:
    """A codec that is to get headers, too."""

    def __init__(self, codec: Codec, behavior: HeaderCodecBehavior) -> None:
        self.codec = codec
        self.behavior = behavior

    @property
    def wants_context(self) -> bool:
        """Whether the codec wants to know whose payloads it has."""
        return wants_context(self.codec)

    def with_context(self, context: SerializationContext) -> CodecWithHeaders:
        """The same, with a codec that knows."""
        return CodecWithHeaders(in_context(self.codec, context), self.behavior)

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """As the codec does."""
        return encoded(self.codec, payloads)

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """As the codec does."""
        return decoded(self.codec, payloads)


def with_headers(codec: Codec | None, behavior: HeaderCodecBehavior) -> Codec | None:
    """The codec that does so with headers."""
    if not isinstance(behavior, HeaderCodecBehavior):
        raise UsageError(
            f"header_codec_behavior must be a HeaderCodecBehavior, not {type(behavior).__name__}"
        )
    if behavior is HeaderCodecBehavior.NO_CODEC:
        return codec
    if codec is None:
        raise UsageError(f"header_codec_behavior is {behavior.name}, and there is no codec")
    return CodecWithHeaders(codec, behavior)


def without_codec(codec: Codec, *, in_workflow: bool) -> frozenset[str]:
    """What of a message this codec does not get."""
    if not isinstance(codec, CodecWithHeaders):
        return WITHOUT_HEADERS
    everywhere = codec.behavior is HeaderCodecBehavior.CODEC
    return NEVER_CODED if everywhere or in_workflow else WITHOUT_HEADERS


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
    payloads: list[Payload] = []

    def collect(payload: Payload) -> Payload:
        payloads.append(payload)
        return payload

    _rebuild(obj, Payload, collect, skip)
    if not payloads:
        return obj
    replaced = fn(payloads)
    if len(replaced) != len(payloads):
        raise PayloadError(f"{len(payloads)} payloads went in, {len(replaced)} came out")
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


def seal(obj: T, codec: Codec, converter: Converter, *, in_workflow: bool = False) -> T:
    """What leaves: failures and payloads encoded by the codec; `in_workflow` where workflow code said it. Raises EncodeError."""
    closed = map_failures(obj, lambda failure: encode_failure(failure, converter))
    skip = without_codec(codec, in_workflow=in_workflow)
    return map_payloads(closed, lambda payloads: run_codec(codec, "encode", payloads), skip=skip)


def unseal(obj: T, codec: Codec, converter: Converter, *, in_workflow: bool = False) -> T:
    """What arrives: payloads and failures decoded by the codec. Raises DecodeError."""
    skip = without_codec(codec, in_workflow=in_workflow)
    opened = map_payloads(obj, lambda payloads: run_codec(codec, "decode", payloads), skip=skip)
    return map_failures(opened, lambda failure: decode_failure(failure, converter))


def run_codec(codec: Codec, way: str, payloads: list[Payload]) -> Sequence[Payload]:
    """Call a codec and check what it gives back. Raises `EncodeError` or `DecodeError`, which hold no contents."""
    error = EncodeError if way == "encode" else DecodeError
    own = codec.codec if isinstance(codec, CodecWithHeaders) else codec
    name = f"codec {type(own).__name__}.{way}"
    try:
        results = list(_settled(getattr(own, way)(payloads)))
    except HourglassError as raised:  # ours: what it says holds no contents
        raise error(f"{name}: {raised}") from raised
    except Exception as raised:
        raise error(f"{name} raised {type(raised).__name__}") from raised
    if len(results) != len(payloads):
        raise error(f"{name} returned {len(results)} payloads for {len(payloads)}")
    for result in results:
        if not isinstance(result, Payload):
            raise error(f"{name} returned a {type(result).__name__}, not a Payload")
    return results
