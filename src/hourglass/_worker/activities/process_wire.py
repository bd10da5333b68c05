"""The messages between a worker and a child process for activities, and their frames on a socket.

A frame is four bytes of length and that many bytes of MessagePack; a child that announces a frame above the limit is
disconnected. Only payloads are sent, no objects of user code.

A function or converter is sent as `module:qualified.name`, by which the child imports it. The parent sends only names that
its resolver has found, or that the author gave to the worker, never a type name received from an engine. The function that
the child finds must be decorated.

A script that was started as a program is `__main__` in the parent. The child runs its file under the name `__mp_main__`,
as Python's multiprocessing does, so that code below `if __name__ == "__main__":` does not run there.
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
    """Return `module:qualified.name` of an activity's function. Raises DefinitionError if a child could not find it."""
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
    """Return the script that runs as this program; empty if it was not started from a script."""
    main = sys.modules.get(MAIN)
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None:
        return ""
    path = os.path.abspath(file)
    return path if os.path.isfile(path) else ""


def converter_place(converter: Converter) -> str:
    """Return `module:qualified.name` of the converter's class; empty for the default.

    Raises DefinitionError if a child could not create an equal converter.
    """
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
    """Return the activity that the parent named."""
    module, _, name = place.partition(":")
    definition = activity_definition(_descend(_imported(module, main), name))
    if definition is None or definition.executor != "process":
        raise DefinitionError(
            f"{place} is no process activity in the other interpreter: is it defined under a condition?"
        )
    return definition


def find_converter(place: str, main: str) -> Converter:
    """Return a converter of the class that the parent named."""
    if not place:
        return default_converter
    module, _, name = place.partition(":")
    cls = _descend(_imported(module, main), name)
    if not (isinstance(cls, type) and issubclass(cls, Converter)):
        raise DefinitionError(f"{place} is no converter in the other interpreter")
    return cls()


def refuse_in_script() -> None:
    """Raise UsageError while a child imports the parent's script, which must not start workers in the child."""
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
    # Also as `__main__`: code that refers to it must find the script, as in the parent, and not the child's program.
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
_LARGEST = 1 << 30  # also if payloads have no limit
_AROUND = 1 << 20  # bytes of a message beside its payloads


class Setup(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The parent's import path, script and converter, sent first."""

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
    """A request to cancel an attempt."""

    number: int
    reason: str


class Beat(msgspec.Struct, frozen=True, tag=True):
    """A heartbeat of the attempt."""

    number: int
    details: Payloads


class Published(msgspec.Struct, frozen=True, tag=True):
    """An item that the attempt published."""

    number: int
    name: str
    value: Payload


class Done(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The end of an attempt, with one of four results."""

    number: int
    ok: ActivityOk | None = None
    failed: AttemptFailed | None = None
    cancelled: AttemptCancelled | None = None
    deferred: ActivityDeferred | None = None

    @property
    def result(self) -> ActivityResult | None:
        """The result that is set."""
        return self.ok or self.failed or self.cancelled or self.deferred


ToChild: TypeAlias = Setup | RunAttempt | Cancel
ToParent: TypeAlias = Beat | Published | Done

to_child = msgspec.msgpack.Decoder(ToChild)
to_parent = msgspec.msgpack.Decoder(ToParent)


def done(number: int, result: ActivityResult) -> Done:
    """Return a result as a message."""
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
    """The other end announced a message above the size limit."""


def frame_limit(payload_limit: int | None) -> int:
    """Return the size limit for messages of a child with this limit for payloads."""
    return _LARGEST if payload_limit is None else min(2 * payload_limit + _AROUND, _LARGEST)


class ProcessChannel:
    """One end of the socket. Any thread may send; one thread receives, and accepts messages of at most `limit` bytes."""

    def __init__(self, sock: socket.socket, limit: int | None = None) -> None:
        self.sock = sock
        self._limit = limit
        self._lock = threading.Lock()
        self._buffer = bytearray()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message. Raises OSError if the other end is closed."""
        data = msgspec.msgpack.encode(message)
        with self._lock:
            self.sock.sendall(_HEAD.pack(len(data)))
            self.sock.sendall(data)

    def receive(self, *flags: int) -> list[bytes] | None:
        """Return the messages that have arrived completely, still encoded; None at the end of the connection.

        Raises `FrameTooLarge` as soon as a message above the limit is announced.
        """
        chunk = self.sock.recv(_CHUNK, *flags)
        if not chunk:
            return None
        self._buffer += chunk
        return self._frames()

    def close(self) -> None:
        """Close the connection."""
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
