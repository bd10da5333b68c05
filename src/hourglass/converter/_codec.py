"""The interface of codecs. A codec transforms encoded payloads before they leave and after they arrive (encryption,
compression).

`map_payloads` collects all payloads in events, commands, tasks and requests, and passes them to a function in a single call.
So a codec that queries a key server does so only once. `seal` and `unseal` are the complete conversions: they move the texts
of failures into payloads, pass every payload to the codec, and convert the codec's errors to one clear error.

Search attributes are never passed to a codec, because servers index them. By default headers are not either: as in
Temporal's own SDKs, interceptors write and read headers unencoded (`HeaderCodecBehavior`).

Must not know: any event or command. The functions only walk structs, tuples, lists and dicts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import Any, Protocol, TypeVar

import msgspec

from hourglass._loops import submit
from hourglass.converter._context import SerializationContext, in_context, wants_context
from hourglass.converter._converter import Converter
from hourglass.converter._data import Failure, Payload, causes, joined, opened, sealed
from hourglass.errors import DecodeError, EncodeError, HourglassError, PayloadError, UsageError

T = TypeVar("T")
PayloadFunction = Callable[[list[Payload]], Sequence[Payload]]

NEVER_CODED = frozenset(("search_attributes",))
WITHOUT_HEADERS = frozenset(("search_attributes", "headers"))

_LEAVES = frozenset((str, int, float, bool, bytes, type(None)))


class HeaderCodecBehavior(IntEnum):
    """Whether a codec also receives headers, i.e. the payloads that interceptors send beside the arguments."""

    NO_CODEC = 1
    """Headers are sent unencoded, so that proxies and other programs can read them."""
    CODEC = 2
    """Headers are encoded and decoded everywhere."""
    WORKFLOW_ONLY_CODEC = 3
    """Headers are encoded only between a worker and its workflows. Clients and activities see the encoded form."""


class Codec(Protocol):
    """Transforms encoded payloads before they leave and after they arrive.

    The methods are either plain functions, called in a separate thread for codecs, or `async def` functions, run on a
    separate event loop.

    `decode` must raise an exception for a payload that this codec did not encode. Otherwise any program that can write to
    the service could feed plain payloads to the worker. Both methods return one payload for each payload received, in the
    same order.
    """

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload] | Awaitable[Sequence[Payload]]:
        """Return the payloads as they must leave the program."""
        ...

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload] | Awaitable[Sequence[Payload]]:
        """Return the payloads in the form that they had before `encode`."""
        ...


def encoded(codec: Codec, payloads: Sequence[Payload]) -> Sequence[Payload]:
    """Return payloads encoded by a codec. Block this thread if the codec is `async def`."""
    return _settled(codec.encode(payloads))


def decoded(codec: Codec, payloads: Sequence[Payload]) -> Sequence[Payload]:
    """Return payloads decoded by a codec. Block this thread if the codec is `async def`."""
    return _settled(codec.decode(payloads))


def _settled(result: Sequence[Payload] | Awaitable[Sequence[Payload]]) -> Sequence[Payload]:
    return submit(result, "codec").result() if isinstance(result, Awaitable) else result


class CodecWithHeaders:
    """A codec that also receives headers."""

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
    """Return a codec with this behaviour for headers. Raise `UsageError` if headers should be encoded but there is no
    codec."""
    if not isinstance(behavior, HeaderCodecBehavior):
        raise UsageError(
            f"header_codec_behavior must be a HeaderCodecBehavior, not {type(behavior).__name__}"
        )
    if behavior is HeaderCodecBehavior.NO_CODEC:
        return codec
    if codec is None:
        raise UsageError(f"header_codec_behavior {behavior.name} requires a codec")
    return CodecWithHeaders(codec, behavior)


def without_codec(codec: Codec, *, in_workflow: bool) -> frozenset[str]:
    """Return the names of the message fields that are not passed to this codec."""
    if not isinstance(codec, CodecWithHeaders):
        return WITHOUT_HEADERS
    everywhere = codec.behavior is HeaderCodecBehavior.CODEC
    return NEVER_CODED if everywhere or in_workflow else WITHOUT_HEADERS


def _rebuild(node: Any, kind: type, change: Callable[[Any], Any], skip: frozenset[str]) -> Any:
    """Return a copy of the tree with every object of the kind changed. Subtrees without objects of the kind are reused."""
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
    """Rebuild a failure and its causes in a loop, because the chain may be longer than Python's stack."""
    rebuilt: Any = None
    for link in reversed(list(causes(failure))):
        new: Any = _rebuild_struct(link, kind, change, skip | _CAUSE)
        rebuilt = new if new.cause is rebuilt else msgspec.structs.replace(new, cause=rebuilt)
    return rebuilt  # type: ignore[no-any-return]


def map_payloads(obj: T, fn: PayloadFunction, *, skip: frozenset[str] = NEVER_CODED) -> T:
    """Return a copy of `obj` with every payload replaced. `fn` is called once, with all payloads.

    Fields named in `skip` are not changed. An object without payloads is returned unchanged.
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
        raise PayloadError(f"expected {len(payloads)} payloads, got {len(replaced)}")
    # Both passes walk in the same order, so that the n-th payload is replaced by the n-th result.
    remaining = iter(replaced)
    return _rebuild(obj, Payload, lambda _: next(remaining), skip)  # type: ignore[no-any-return]


def map_failures(obj: T, fn: Callable[[Failure], Failure]) -> T:
    """Return a copy of `obj` with every failure (including its causes) replaced."""
    return _rebuild(obj, Failure, fn, frozenset())  # type: ignore[no-any-return]


def encode_failure(failure: Failure, converter: Converter) -> Failure:
    """Return the failure with its texts and its causes' texts moved to `encoded_attributes`, where a codec encodes them."""
    return joined([sealed(link, converter.encode) for link in causes(failure)])


def decode_failure(failure: Failure, converter: Converter) -> Failure:
    """Reverse `encode_failure`. Texts that cannot be decoded stay encoded."""
    return joined([opened(link, converter.decode) for link in causes(failure)])


def seal(obj: T, codec: Codec, converter: Converter, *, in_workflow: bool = False) -> T:
    """Return outgoing data with failures and payloads encoded; `in_workflow` if workflow code sends the data. Raise
    `EncodeError`.
    """
    closed = map_failures(obj, lambda failure: encode_failure(failure, converter))
    skip = without_codec(codec, in_workflow=in_workflow)
    return map_payloads(closed, lambda payloads: run_codec(codec, "encode", payloads), skip=skip)


def unseal(obj: T, codec: Codec, converter: Converter, *, in_workflow: bool = False) -> T:
    """Return incoming data with payloads and failures decoded; `in_workflow` if workflow code receives the data. Raise
    `DecodeError`.
    """
    skip = without_codec(codec, in_workflow=in_workflow)
    opened = map_payloads(obj, lambda payloads: run_codec(codec, "decode", payloads), skip=skip)
    return map_failures(opened, lambda failure: decode_failure(failure, converter))


def run_codec(codec: Codec, way: str, payloads: list[Payload]) -> Sequence[Payload]:
    """Call a codec and check the result. Raise `EncodeError` or `DecodeError`, without any payload contents in the
    message."""
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
        raise error(f"{name} returned {len(results)} payloads, expected {len(payloads)}")
    for result in results:
        if not isinstance(result, Payload):
            raise error(f"{name} returned a {type(result).__name__}, not a Payload")
    return results
