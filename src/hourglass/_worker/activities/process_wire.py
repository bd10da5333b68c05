"""What a worker and a process beside it say to each other: messages as data, and frames on a socket.

A frame is four bytes of length and that many bytes of MessagePack; a child that announces more than it could have to say is
not listened to. No object of the user's travels, only payloads.

A function, or a converter, of the parent travels as `module:qualified.name`, and the child imports it by that. The
parent names only what its resolver has found, or what its author gave to the worker; the type name that came over the
wire names nothing here. What the child finds must be decorated.

A script that was started as a program is `__main__` in the parent. The child runs its file under the name
`__mp_main__`, as Python's own multiprocessing does, so that what stands below `if __name__ == "__main__":` does not
run there.
"""

from __future__ import annotations

import importlib
import os
import socket
import struct
import sys
import threading
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType
from typing import TypeAlias

import msgspec

from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
)
from hourglass._evaluator.specs import Payloads
from hourglass.activity import ActivityDefinition, activity_definition
from hourglass.converter import Converter, Payload, default_converter
from hourglass.errors import DefinitionError, HourglassError, UsageError

# --- functions by name -----------------------------------------------------------------------------------------------


MAIN = "__main__"
ALIAS = "__mp_main__"

_loading_main = False


# --- in the parent ---------------------------------------------------------------------------------------------------


def place_of(definition: ActivityDefinition) -> str:
    """`module:qualified.name` of an activity's function; DefinitionError if a child could not find it."""
    fn = definition.fn
    module = sys.modules.get(fn.__module__)
    found = None if module is None else _descend(module, fn.__qualname__)
    known = activity_definition(found)
    if known is None or known.fn is not fn:
        raise DefinitionError(
            f"activity {definition.name}: executor='process' finds a function by its name, but "
            f"{fn.__module__}.{fn.__qualname__} is not this activity. Decorate it where it is defined, and keep its name"
        )
    return f"{_module_name(definition.name, fn.__module__)}:{fn.__qualname__}"


def main_script() -> str:
    """The file of the program that runs here; empty if it is not one."""
    main = sys.modules.get(MAIN)
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None:
        return ""
    path = os.path.abspath(file)
    return path if os.path.isfile(path) else ""


def converter_place(converter: Converter) -> str:
    """Where a child finds the converter's class; empty for the default. DefinitionError if it cannot."""
    cls = type(converter)
    if cls is Converter:
        return ""
    module = sys.modules.get(cls.__module__)
    if vars(converter) or module is None or _descend(module, cls.__qualname__) is not cls:
        raise DefinitionError(
            f"converter {cls.__qualname__}: process activities make one of their own, so its class must stand in a module "
            f"and its objects must hold nothing"
        )
    return f"{_module_name(f'converter {cls.__qualname__}', cls.__module__)}:{cls.__qualname__}"


def _module_name(what: str, module: str) -> str:
    if module != MAIN:
        return module
    spec = getattr(sys.modules[MAIN], "__spec__", None)
    if spec is not None and not spec.name.endswith(MAIN):  # python -m package.module
        return str(spec.name)
    if spec is None and main_script():
        return MAIN
    raise DefinitionError(
        f"{what} is defined in what runs as __main__ and has no file that another interpreter can import: for "
        f"executor='process' put it into a module"
    )


# --- in the child ----------------------------------------------------------------------------------------------------


def find_activity(place: str, main: str) -> ActivityDefinition:
    """The activity at a place that the parent named."""
    module, _, name = place.partition(":")
    definition = activity_definition(_descend(_imported(module, main), name))
    if definition is None or definition.executor != "process":
        raise DefinitionError(
            f"{place} is no process activity in the other interpreter: is it defined under a condition?"
        )
    return definition


def find_converter(place: str, main: str) -> Converter:
    """A converter of the class that the parent named."""
    if not place:
        return default_converter
    module, _, name = place.partition(":")
    cls = _descend(_imported(module, main), name)
    if not (isinstance(cls, type) and issubclass(cls, Converter)):
        raise DefinitionError(f"{place} is no converter in the other interpreter")
    return cls()


def refuse_in_script() -> None:
    """Raise if a child runs the parent's script just now: it must not start workers of its own."""
    if _loading_main:
        raise UsageError(
            "a process activity's interpreter imports this script to find the activity, and the script starts a worker as "
            'it is imported: put that below `if __name__ == "__main__":`'
        )


def _imported(module: str, main: str) -> ModuleType:
    return _load_main(main) if module == MAIN else importlib.import_module(module)


def _load_main(path: str) -> ModuleType:
    global _loading_main
    known = sys.modules.get(ALIAS)
    if known is not None:
        return known
    spec = spec_from_loader(ALIAS, SourceFileLoader(ALIAS, path))
    if spec is None or spec.loader is None:
        raise DefinitionError(f"the script {path} cannot be imported by another interpreter")
    module = module_from_spec(spec)
    former = sys.modules[MAIN]
    # As `__main__`, too: code that looks there must find the script, as in the parent, and not the child's program.
    sys.modules[ALIAS] = sys.modules[MAIN] = module
    _loading_main = True
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[ALIAS]
        sys.modules[MAIN] = former
        raise
    finally:
        _loading_main = False
    return module


def _descend(module: ModuleType, name: str) -> object:
    found: object = module
    for segment in name.split("."):
        found = getattr(found, segment, None)
    return found


# --- messages and frames ---------------------------------------------------------------------------------------------


_HEAD = struct.Struct(">I")
_CHUNK = 1 << 18
_LARGEST = 1 << 30  # also where payloads have no limit
_AROUND = 1 << 20  # a message is its payloads, and what stands around them


class Setup(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How the child finds what the parent finds: its import path, its script, its converter's class."""

    path: list[str]
    argv: list[str]
    main: str = ""
    converter: str = ""
    payload_limit: int | None = None


class RunAttempt(msgspec.Struct, frozen=True, tag=True):
    """Run an attempt."""

    number: int
    function: str
    task: ActivityTask


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """An attempt was asked to stop."""

    number: int
    reason: str


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The attempt made a heartbeat."""

    number: int
    details: Payloads


class Published(msgspec.Struct, frozen=True, tag=True):
    """The attempt published an item."""

    number: int
    name: str
    value: Payload


class Done(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The attempt has ended, in one of four ways."""

    number: int
    ok: ActivityOk | None = None
    failed: AttemptFailed | None = None
    cancelled: AttemptCancelled | None = None
    deferred: ActivityDeferred | None = None

    @property
    def result(self) -> ActivityResult | None:
        """The way it ended."""
        return self.ok or self.failed or self.cancelled or self.deferred


ToChild: TypeAlias = Setup | RunAttempt | Cancel
ToParent: TypeAlias = Beat | Published | Done

to_child = msgspec.msgpack.Decoder(ToChild)
to_parent = msgspec.msgpack.Decoder(ToParent)


def done(number: int, result: ActivityResult) -> Done:
    """A result as a message."""
    match result:
        case ActivityOk():
            return Done(number=number, ok=result)
        case AttemptFailed():
            return Done(number=number, failed=result)
        case AttemptCancelled():
            return Done(number=number, cancelled=result)
        case ActivityDeferred():
            return Done(number=number, deferred=result)


class FrameTooLarge(HourglassError):
    """The other end announced a message that is larger than it could be."""


def frame_limit(payload_limit: int | None) -> int:
    """The largest message of a child whose payloads may be so large."""
    return _LARGEST if payload_limit is None else min(2 * payload_limit + _AROUND, _LARGEST)


class ProcessChannel:
    """One end of the socket. Any thread may send; one thread receives, and takes no message larger than `limit`."""

    def __init__(self, sock: socket.socket, limit: int | None = None) -> None:
        self.sock = sock
        self._limit = limit
        self._lock = threading.Lock()
        self._buffer = bytearray()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; raises OSError if the other end is closed."""
        data = msgspec.msgpack.encode(message)
        with self._lock:
            self.sock.sendall(_HEAD.pack(len(data)))
            self.sock.sendall(data)

    def receive(self, *flags: int) -> list[bytes] | None:
        """The messages that have come, still encoded: perhaps none, if only a part of one has; None at the end. Raises
        `FrameTooLarge` as soon as one is announced that is.
        """
        chunk = self.sock.recv(_CHUNK, *flags)
        if not chunk:
            return None
        self._buffer += chunk
        return self._frames()

    def close(self) -> None:
        """Hang up."""
        self.sock.close()

    def _frames(self) -> list[bytes]:
        found: list[bytes] = []
        start = 0
        while len(self._buffer) >= start + _HEAD.size:
            (length,) = _HEAD.unpack_from(self._buffer, start)
            if self._limit is not None and length > self._limit:
                raise FrameTooLarge(
                    f"a message of {length:,} bytes was announced, more than the limit of {self._limit:,}"
                )
            end = start + _HEAD.size + length
            if len(self._buffer) < end:
                break
            found.append(bytes(self._buffer[start + _HEAD.size : end]))
            start = end
        del self._buffer[:start]
        return found
