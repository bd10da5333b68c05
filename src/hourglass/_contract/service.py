"""The seam between clients and engines: `Request`, the protocol of a connection, whose `call` takes one, and when one is well
formed.

Each request class names its answer as its type parameter, so that `await service.call(DescribeWorkflow(…))` is typed.
Requests and answers are frozen data, and stand by what they are about: `workflows`, `activities`, `schedules`,
`deployments`, `progress`, `limits`. Payloads are encoded; conversion happens above, transport below. Refusals are raised as
`hourglass.errors.ServiceError` and its kinds by the engine; what it cannot do has the status `UNIMPLEMENTED`.
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


# --- what is asked ------------------------------------------------------------------------------------------


class Effect(Enum):
    """What happens if a request is carried out, and what if that happens twice because its answer was lost."""

    CHANGE = "changes something, and must do so once"
    IDEMPOTENT = "may be carried out twice: the engine knows it by an id, or nothing comes of the second time"
    READ = "only reads what is stored: it can be answered while nothing can be written"


class Request(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """Something asked of an engine; `A` is the answer's type. `rpc_timeout` is seconds for this one call, after which
    it fails, or (`waits`) the engine answers how it is then. `needs_worker`: an engine without a worker cannot answer.
    """

    effect: ClassVar[Effect]
    needs_worker: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    default_timeout: ClassVar[float | None] = None

    rpc_timeout: float | None = None
    rpc_metadata: dict[str, str] | None = None
    """Headers of this one call, beside those of the connection; an engine in this process reads none."""

    @property
    def time_limit(self) -> float | None:
        """How long the client waits for an answer, in seconds; None: as long as it takes."""
        return self.default_timeout if self.rpc_timeout is None else self.rpc_timeout


AS_STORED = "; what is told is what the file has"
"""The end of the notice with which an engine answers a read while nothing can be written."""


class Nothing(msgspec.Struct, frozen=True):
    """The answer to a request that has none."""


class ReadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request that reads. `notice` is the engine's present trouble, such as a full disk; "" if there is none."""

    notice: str = ""


# --- where it is asked -----------------------------------------------------------------------------------------


class EngineService(Protocol):
    """The seam between client and engine."""

    def call(self, request: Request[A]) -> Coroutine[Any, Any, A]:
        """Ask, and wait for the answer."""
        ...


class Connection(EngineService, Protocol):
    """An open connection to an engine, for one target and namespace. All its methods run on the control loop."""

    @property
    def target(self) -> str:
        """What it is connected to, without secrets."""
        ...

    @property
    def namespace(self) -> str:
        """The namespace it works in."""
        ...

    @property
    def identity(self) -> str:
        """The identity that the engine is told."""
        ...

    async def open_handle(self, config: HandleConfig) -> Handle:
        """Open a handle for a task queue. Raises `ServiceError` where the engine refuses."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


@runtime_checkable
class Remote(Protocol):
    """A connection to a server: it has credentials, which can change while it is open, and raw gRPC services. All may be
    called in any thread but `rpc`, which runs on the control loop.
    """

    def set_api_key(self, api_key: str | None) -> None:
        """Send this key from now on."""
        ...

    def set_rpc_metadata(self, metadata: Mapping[str, str]) -> None:
        """Send these headers from now on, and not those of before."""
        ...

    async def rpc(self, call: RawCall) -> Any:
        """Send a message to a service of the server, and wait for its answer. Raises `ServiceError`."""
        ...


class RawCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a gRPC service of a server, as Temporal's own messages."""

    service: str
    rpc: str
    message: Any
    answer: Any
    """The class of the answer."""
    retry: bool = False
    metadata: Mapping[str, str | bytes] = {}
    timeout: float | None = None


RawRpc: TypeAlias = Callable[[RawCall], Any]
"""What carries out a raw call: gives something to await."""


# --- whether a request is well formed -----------------------------------------------------------------------
#
# The last gate before anything is sent, the same for every engine. Options are checked where they are given, in their
# author's words; this is for all that no such check knows of, and for requests that interceptors have changed. Without it
# one engine raises whatever its encoder does, and another stores a value that its readers choke on. What each field may hold
# is read from its annotation, once for each kind of request.


Check: TypeAlias = Callable[[Any, str], None]


_LEAST = -INT64 - 1


_PLAIN: tuple[type, ...] = (Payload, Failure)
"""What the converter made: not looked into."""


def check_request(request: Request[Any]) -> None:
    """Raise `UsageError` for a request with a value of a wrong type, a text that UTF-8 cannot hold, or a number that no
    engine can.
    """
    _check_fields(request)


def _check_fields(said: msgspec.Struct) -> None:
    for name, check, default in _fields(type(said)):
        value = getattr(said, name)
        if value is default:  # most fields are, of every request
            continue
        if check is not _text or type(value) is not str or not value.isascii():  # most others are plain texts
            check(value, name)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, Check, Any], ...]:
    hints = typing.get_type_hints(kind)
    found = [
        (field.name, _check_of(hints[field.name]), field.default)
        for field in msgspec.structs.fields(kind)
        if field.name in hints
    ]
    return tuple((name, check, default) for name, check, default in found if check is not None)


def _check_of(hint: Any) -> Check | None:
    """The check of one annotation; None if anything will do."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        others = [each for each in arguments if each is not type(None)]
        inner = _check_of(others[0]) if len(others) == 1 else None
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
    # By its limits: whether an enum's number is in a `range` is found out by going through it.
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
        for each in value:
            inner(each, what)

    return check


def _struct(kind: type[msgspec.Struct]) -> Check:
    def check(value: Any, what: str) -> None:
        if not isinstance(value, kind):
            raise UsageError(f"{what} must be of type {kind.__name__}, not {_shown(value)}")
        _check_fields(value)

    return check


def _shown(value: Any) -> str:
    """A value in a message: numbers as they are, if they are not too long, of others the type."""
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


# --- ids -------------------------------------------------------------------------------------------------------
#
# Ids for whatever is new, such as runs and requests: UUIDs of version 7, as Temporal's server gives them, too.
#
# They begin with the time, to the millisecond, so those of one moment stand side by side in an index: what starts
# together is written into the same pages of a file, however much is in it. The rest is random. To ask the system for
# randomness hands the interpreter over to another thread, so it is asked for many ids at once. Invariants: an id is
# given once, whichever thread asks; a forked child shares none with its parent.


_AT_ONCE = 256
_DIGITS = 20
_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
_drawn: list[str] = []


def new_id() -> str:
    """A new id, as text."""
    try:
        drawn = _drawn.pop()
    except IndexError:
        data = os.urandom(_AT_ONCE * _DIGITS // 2).hex()
        parts = [data[begin : begin + _DIGITS] for begin in range(0, len(data), _DIGITS)]
        drawn, *others = [f"7{each[:3]}-{_VARIANT[each[3]]}{each[4:7]}-{each[7:19]}" for each in parts]
        _drawn.extend(others)
    now = f"{time_ns() // 1_000_000:012x}"
    return f"{now[:8]}-{now[8:]}-{drawn}"


at_fork(ForkStage.IDS, in_child=_drawn.clear)
