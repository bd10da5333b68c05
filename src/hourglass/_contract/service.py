"""The interface between clients and engines: `Request`, the protocol of a connection, the checks of requests, and new ids.

The type parameter of each request class is its answer, so that `await service.call(DescribeWorkflow(…))` is typed. Requests and
answers are frozen data, defined in `workflows`, `activities`, `schedules`, `deployments`, `progress` and `limits`. Payloads are
encoded; the client converts them. Engines reject requests with `hourglass.errors.ServiceError` and its subclasses; an unsupported
request has the status `UNIMPLEMENTED`.
"""

from __future__ import annotations

import math
import os
import types
import typing
from collections.abc import Callable, Coroutine, Mapping
from enum import Enum
from functools import cache
from time import time_ns
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from hourglass._contract.handle import Handle, HandleConfig
from hourglass._evaluator.options import INT64, check_text
from hourglass._forks import ForkStage, at_fork
from hourglass.converter import Failure, Payload
from hourglass.errors import UsageError

A = TypeVar("A")


class Effect(Enum):
    """The effect of a request, and of its repetition after the answer was lost."""

    CHANGE = "changes something, and must do so once"
    IDEMPOTENT = "may be carried out twice: the engine knows it by an id, or nothing comes of the second time"
    READ = "only reads what is stored: it can be answered while nothing can be written"


class Request(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """A request to an engine; `A` is the type of its answer. After `rpc_timeout` seconds the call fails, or, if the class sets
    `waits`, is answered with the present state. `needs_worker`: an engine without a worker cannot answer.
    """

    effect: ClassVar[Effect]
    needs_worker: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    default_timeout: ClassVar[float | None] = None

    rpc_timeout: float | None = None
    rpc_metadata: dict[str, str] | None = None
    """Headers of this call, in addition to those of the connection. Embedded engines ignore them."""

    @property
    def time_limit(self) -> float | None:
        """How long the client waits for an answer, in seconds; None: without a limit."""
        return self.default_timeout if self.rpc_timeout is None else self.rpc_timeout


AS_STORED = "; what is told is what the file has"
"""The end of the notice in an answer that was read while nothing can be written."""


class Nothing(msgspec.Struct, frozen=True):
    """The answer to a request that returns nothing."""


class ReadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request that reads. `notice` describes a present problem of the engine, such as a full disk; "" if there is
    none.
    """

    notice: str = ""


class EngineService(Protocol):
    """The interface between a client and an engine."""

    def call(self, request: Request[A]) -> Coroutine[Any, Any, A]:
        """Send a request and return its answer."""
        ...


class Connection(EngineService, Protocol):
    """An open connection to an engine, for one target and namespace. All its methods run on the control loop."""

    @property
    def target(self) -> str:
        """The address of the engine, without secrets."""
        ...

    @property
    def namespace(self) -> str:
        """The namespace of the connection."""
        ...

    @property
    def identity(self) -> str:
        """The client identity that the engine records."""
        ...

    async def open_handle(self, config: HandleConfig) -> Handle:
        """Open a handle for a task queue. Raises `ServiceError` if the engine rejects it."""
        ...

    async def close(self) -> None:
        """Close the connection and everything it holds."""
        ...


@runtime_checkable
class Remote(Protocol):
    """A connection to a server, which has credentials, replaceable while it is open, and raw gRPC services. Its methods may be
    called in any thread, except `rpc`, which runs on the control loop.
    """

    def set_api_key(self, api_key: str | None) -> None:
        """Use this API key from now on."""
        ...

    def set_rpc_metadata(self, metadata: Mapping[str, str]) -> None:
        """Replace the headers of all calls."""
        ...

    async def rpc(self, call: RawCall) -> Any:
        """Send a message to a service of the server and return its answer. Raises `ServiceError`."""
        ...


class RawCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a gRPC service of a server, with Temporal's own messages."""

    service: str
    rpc: str
    message: Any
    answer: Any
    """The class of the answer."""
    retry: bool = False
    metadata: Mapping[str, str | bytes] = {}
    timeout: float | None = None


RawRpc: TypeAlias = Callable[[RawCall], Any]
"""A function that carries out a raw call; its result is awaited."""


# Validation of requests: the last check before a request is sent, on every engine. Options are checked earlier, with messages in
# the author's terms; this check covers all other fields, and requests that interceptors have changed. The check of each field
# follows from its annotation, and is built once for each class.


Check: TypeAlias = Callable[[Any, str], None]


_LEAST = -INT64 - 1


_PLAIN: tuple[type, ...] = (Payload, Failure)
"""Made by the converter, and not checked."""


def check_request(request: Request[Any]) -> None:
    """Raise `UsageError` for a request with a value of a wrong type, text that UTF-8 cannot encode, or an integer of more than 64
    bits.
    """
    _check_fields(request)


def _check_fields(request: msgspec.Struct) -> None:
    for name, check, default in _fields(type(request)):
        value = getattr(request, name)
        if value is default:  # true for most fields
            continue
        if (
            check is not _text or type(value) is not str or not value.isascii()
        ):  # most other fields are ASCII text
            check(value, name)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, Check, Any], ...]:
    hints = typing.get_type_hints(kind)
    checks = [
        (field.name, _check_of(hints[field.name]), field.default)
        for field in msgspec.structs.fields(kind)
        if field.name in hints
    ]
    return tuple((name, check, default) for name, check, default in checks if check is not None)


def _check_of(hint: Any) -> Check | None:
    """Return the check of an annotation; None if every value is valid."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        members = [argument for argument in arguments if argument is not type(None)]
        inner = _check_of(members[0]) if len(members) == 1 else None
        return None if inner is None else _unless_none(inner)
    if origin is tuple:
        return _each(arguments[0]) if len(arguments) == 2 and arguments[1] is Ellipsis else None
    if origin is dict:
        return _names
    if not isinstance(hint, type) or hint in _PLAIN:
        return None
    if issubclass(hint, Enum):
        return _instance(hint)
    if issubclass(hint, msgspec.Struct):
        return _struct(hint)
    return _SIMPLE.get(hint)


def _text(value: Any, what: str) -> None:
    if type(value) is not str or not value.isascii():
        check_text(value, what)


def _whole(value: Any, what: str) -> None:
    # Compare with the limits: `in range` would iterate for an enum's number.
    if not isinstance(value, int) or isinstance(value, bool) or not _LEAST <= value <= INT64:
        raise UsageError(f"{what} must be a whole number of 64 bits, not {_shown(value)}")


def _number(value: Any, what: str) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise UsageError(f"{what} must be a number, not {_shown(value)}")


def _names(value: Any, what: str) -> None:
    if not isinstance(value, dict):
        raise UsageError(f"{what} must be given by name, not as {_shown(value)}")
    for name in value:
        _text(name, f"a name in {what}")


def _instance(kind: type) -> Check:
    def check(value: Any, what: str) -> None:
        if not isinstance(value, kind):
            raise UsageError(f"{what} must be of type {kind.__name__}, not {_shown(value)}")

    return check


def _unless_none(inner: Check) -> Check:
    def check(value: Any, what: str) -> None:
        if value is not None:
            inner(value, what)

    return check


def _each(hint: Any) -> Check | None:
    inner = _check_of(hint)
    if inner is None:
        return None

    def check(value: Any, what: str) -> None:
        if not isinstance(value, tuple):
            raise UsageError(f"{what} must be several, not {_shown(value)}")
        for element in value:
            inner(element, what)

    return check


def _struct(kind: type[msgspec.Struct]) -> Check:
    def check(value: Any, what: str) -> None:
        if not isinstance(value, kind):
            raise UsageError(f"{what} must be of type {kind.__name__}, not {_shown(value)}")
        _check_fields(value)

    return check


def _shown(value: Any) -> str:
    """Return a value for a message: a number as it is unless it is too long, else the type."""
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 200):
        return repr(value)
    return f"a value of type {type(value).__name__}"


_SIMPLE: dict[type, Check] = {
    str: _text,
    int: _whole,
    float: _number,
    bool: _instance(bool),
    bytes: _instance(bytes),
}


# Ids of runs, requests and other new things: UUIDs of version 7, as Temporal's server generates them. They begin with the time in
# milliseconds, so ids of the same moment are adjacent in an index, and runs that start together are written into the same pages
# of a file. The rest is random. Drawing randomness from the system switches threads, so many ids are drawn at once. Invariants:
# no id is returned twice, in any thread; a forked child shares none with its parent.


_AT_ONCE = 256
_DIGITS = 20
_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
_drawn: list[str] = []


def new_id() -> str:
    """Return a new id."""
    try:
        drawn = _drawn.pop()
    except IndexError:
        data = os.urandom(_AT_ONCE * _DIGITS // 2).hex()
        parts = [data[begin : begin + _DIGITS] for begin in range(0, len(data), _DIGITS)]
        drawn, *others = [f"7{part[:3]}-{_VARIANT[part[3]]}{part[4:7]}-{part[7:19]}" for part in parts]
        _drawn.extend(others)
    now = f"{time_ns() // 1_000_000:012x}"
    return f"{now[:8]}-{now[8:]}-{drawn}"


at_fork(ForkStage.IDS, in_child=_drawn.clear)
