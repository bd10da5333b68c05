"""The codec interface: transforms encoded payloads before they leave and after they arrive (encryption,
compression).

`map_payloads` collects every payload in events, commands, tasks and requests, and passes all of them to a
function at once, so that a codec that queries a key server does so once. `seal` and `unseal` are the complete
conversions: failures move their texts into payloads, then the codec gets every payload, and its errors become
one clear error.

Search attributes never pass a codec: servers index them. Headers do not either by default, as in Temporal's
own SDKs: their interceptors write and read them unencoded (`HeaderCodecBehavior`).

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
    """Whether a codec gets headers, too: payloads of interceptors, sent beside the arguments."""

    NO_CODEC = 1
    """Headers are sent unencoded, so that proxies and other programs can read them."""
    CODEC = 2
    """Headers are encoded and decoded everywhere."""
    WORKFLOW_ONLY_CODEC = 3
    """Headers are encoded only between a worker and its workflows; clients and activities see them encoded."""


class Codec(Protocol):
    """Transforms encoded payloads before they leave and after they arrive.

    Its methods are plain functions, called in a thread for codecs, or `async def`, run on an event loop of
    their own.

    `decode` must reject, by raising, a payload that this codec did not encode: otherwise every program that
    can write to the service can feed the worker plain payloads. Both return one payload for each argument, in
    the same order.
    """

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload] | Awaitable[Sequence[Payload]]:
        """Return the payloads as they leave the program."""
        ...

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload] | Awaitable[Sequence[Payload]]:
        """Return the payloads as they were before `encode`."""
        ...


def encoded(codec: Codec, payloads: Sequence[Payload]) -> Sequence[Payload]:
    """Return payloads encoded by a codec; blocks this thread if the codec is `async def`."""
    return _settled(codec.encode(payloads))


def decoded(codec: Codec, payloads: Sequence[Payload]) -> Sequence[Payload]:
    """Return payloads decoded by a codec; blocks this thread if the codec is `async def`."""
    return _settled(codec.decode(payloads))


def _settled(result: Sequence[Payload] | Awaitable[Sequence[Payload]]) -> Sequence[Payload]:
    return submit(result, "codec").result() if isinstance(result, Awaitable) else result


class CodecWithHeaders:
    """A codec that also gets headers."""

    def __init__(self, codec: Codec, behavior: HeaderCodecBehavior) -> None:
        self.codec = codec
        self.behavior = behavior

    @property
    def wants_context(self) -> bool:
        """Whether the codec depends on the serialization context."""
        return wants_context(self.codec)

    def with_context(self, context: SerializationContext) -> CodecWithHeaders:
        """Return a copy with the codec bound to the context."""
        return CodecWithHeaders(in_context(self.codec, context), self.behavior)

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Encode with the codec."""
        return encoded(self.codec, payloads)

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Decode with the codec."""
        return decoded(self.codec, payloads)


def with_headers(codec: Codec | None, behavior: HeaderCodecBehavior) -> Codec | None:
    """Return a codec with this behaviour for headers."""
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
    """Return the fields of a message that this codec does not get."""
    if not isinstance(codec, CodecWithHeaders):
        return WITHOUT_HEADERS
    everywhere = codec.behavior is HeaderCodecBehavior.CODEC
    return NEVER_CODED if everywhere or in_workflow else WITHOUT_HEADERS


def _rebuild(node: Any, kind: type, change: Callable[[Any], Any], skip: frozenset[str]) -> Any:
    """Return a copy of the tree with every object of the kind changed; subtrees without one are reused."""
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
    """Rebuild a chain of causes in a loop: it may be longer than Python's stack."""
    rebuilt: Any = None
    for link in reversed(list(causes(failure))):
        new: Any = _rebuild_struct(link, kind, change, skip | _CAUSE)
        rebuilt = new if new.cause is rebuilt else msgspec.structs.replace(new, cause=rebuilt)
    return rebuilt  # type: ignore[no-any-return]


def map_payloads(obj: T, fn: PayloadFunction, *, skip: frozenset[str] = NEVER_CODED) -> T:
    """Return a copy of `obj` with every payload replaced. `fn` is called once, with all of them.

    Fields named in `skip` are left alone. An object without payloads is returned unchanged.
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
    # Both passes walk in the same order, so that the n-th payload is replaced by the n-th result.
    remaining = iter(replaced)
    return _rebuild(obj, Payload, lambda _: next(remaining), skip)  # type: ignore[no-any-return]


def map_failures(obj: T, fn: Callable[[Failure], Failure]) -> T:
    """Return a copy of `obj` with every failure (including its causes) replaced."""
    return _rebuild(obj, Failure, fn, frozenset())  # type: ignore[no-any-return]


def encode_failure(failure: Failure, converter: Converter) -> Failure:
    """Return the failure with its texts and those of its causes in `encoded_attributes`, where codecs can reach
    them.
    """
    return _seal_failure(failure, converter.encode)


def decode_failure(failure: Failure, converter: Converter) -> Failure:
    """Decode a failure that `encode_failure` encoded."""
    return _open_failure(failure, converter.decode)


def seal(obj: T, codec: Codec, converter: Converter, *, in_workflow: bool = False) -> T:
    """Return outgoing data with failures and payloads encoded. `in_workflow`: from workflow code. Raise
    EncodeError.
    """
    closed = map_failures(obj, lambda failure: encode_failure(failure, converter))
    skip = without_codec(codec, in_workflow=in_workflow)
    return map_payloads(closed, lambda payloads: run_codec(codec, "encode", payloads), skip=skip)


def unseal(obj: T, codec: Codec, converter: Converter, *, in_workflow: bool = False) -> T:
    """Return incoming data with payloads and failures decoded. `in_workflow`: for workflow code. Raise
    DecodeError.
    """
    skip = without_codec(codec, in_workflow=in_workflow)
    opened = map_payloads(obj, lambda payloads: run_codec(codec, "decode", payloads), skip=skip)
    return map_failures(opened, lambda failure: decode_failure(failure, converter))


def run_codec(codec: Codec, way: str, payloads: list[Payload]) -> Sequence[Payload]:
    """Call a codec and check its result. Raise `EncodeError` or `DecodeError` without any contents."""
    error = EncodeError if way == "encode" else DecodeError
    own = codec.codec if isinstance(codec, CodecWithHeaders) else codec
    name = f"codec {type(own).__name__}.{way}"
    try:
        results = list(_settled(getattr(own, way)(payloads)))
    except HourglassError as raised:  # our own message, without contents
        raise error(f"{name}: {raised}") from raised
    except Exception as raised:
        raise error(f"{name} raised {type(raised).__name__}") from raised
    if len(results) != len(payloads):
        raise error(f"{name} returned {len(results)} payloads for {len(payloads)}")
    for result in results:
        if not isinstance(result, Payload):
            raise error(f"{name} returned a {type(result).__name__}, not a Payload")
    return results
