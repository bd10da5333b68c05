"""The program of the child process that replays histories for the web UI, and the messages between the child and its parent
(see `replays`).

The child runs the author's code. It ends when its parent closes the connection or sends no message for a long time. If a
replay exceeds its deadline and the parent is gone, an alarm ends the child.
"""

from __future__ import annotations

import importlib
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import msgspec

from hourglass._worker.activities.process_names import find_converter
from hourglass._worker.activities.process_wire import ProcessChannel
from hourglass.converter import (
    ActivitySerializationContext,
    NexusSerializationContext,
    Payload,
    SerializationContext,
    WorkflowSerializationContext,
)
from hourglass.errors import DecodeError, NondeterminismError
from hourglass.replay import History, Moment, Replayer

_LONGEST_IDLE: Final = 300.0


class ReplayerSetup(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The code on which to replay, as names of modules that the parent has loaded, and the options for decoding payloads."""

    modules: list[str]
    converter: str
    namespace: str
    decodes: bool
    """Whether the parent has a codec."""
    wants_context: bool
    limit: float
    """The maximum duration of a replay in seconds."""


class WalkRequest(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A request to replay a history. `at` is the number of the moment to return in full; None means the last moment."""

    workflow_id: str
    history: bytes
    at: int | None = None


class WalkResult(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The moments of a history. The moment with this `number` and its predecessor contain all details."""

    moments: tuple[Moment, ...]
    number: int = 0
    error: str = ""
    """The reason why the replay stopped before the end of the history."""
    error_type: str = ""
    is_nondeterminism: bool = False


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The report that the code cannot be loaded."""

    message: str


class Decode(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A request to decode payloads. At most one context is set."""

    payloads: list[Payload]
    workflow: WorkflowSerializationContext | None = None
    activity: ActivitySerializationContext | None = None
    nexus: NexusSerializationContext | None = None

    @property
    def context(self) -> SerializationContext | None:
        """The serialization context of the payloads."""
        return self.workflow or self.activity or self.nexus


class Decoded(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The decoded payloads, or the reason why they cannot be decoded."""

    payloads: list[Payload] = []
    error: str = ""


from_child: msgspec.msgpack.Decoder[WalkResult | Refused | Decode] = msgspec.msgpack.Decoder(
    WalkResult | Refused | Decode
)
_from_parent: msgspec.msgpack.Decoder[ReplayerSetup | WalkRequest | Decoded] = msgspec.msgpack.Decoder(
    ReplayerSetup | WalkRequest | Decoded
)


class _Parent:
    """The child's connection to its parent process."""

    def __init__(self, sock: socket.socket) -> None:
        self._channel = ProcessChannel(sock)
        self._frames: list[bytes] = []

    def send(self, message: WalkResult | Refused | Decode) -> None:
        self._channel.send(message)

    def receive(self, kind: type[Any]) -> Any:
        """Wait for a message of this type. Raise `EOFError` if the parent is gone, `TimeoutError` if it is silent."""
        while not self._frames:
            frames = self._channel.receive()
            if frames is None:
                raise EOFError
            self._frames = frames
        message = _from_parent.decode(self._frames.pop(0))
        if not isinstance(message, kind):
            raise EOFError
        return message


@dataclass(frozen=True)
class ParentsCodec:
    """A codec that sends payloads to the parent for decoding, because only the parent has the keys."""

    parent: _Parent
    lock: threading.Lock
    wants_context: bool
    context: Any = None

    def with_context(self, context: SerializationContext) -> ParentsCodec:
        """Return the codec for payloads in a context."""
        return replace(self, wants_context=True, context=context)

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Raise `NotImplementedError`, because a replay does not encode payloads."""
        raise NotImplementedError

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Return the payloads as decoded by the parent. Raise `DecodeError` if the parent cannot decode them."""
        context = self.context
        request = Decode(
            payloads=list(payloads),
            workflow=context if isinstance(context, WorkflowSerializationContext) else None,
            activity=context if isinstance(context, ActivitySerializationContext) else None,
            nexus=context if isinstance(context, NexusSerializationContext) else None,
        )
        with self.lock:
            self.parent.send(request)
            answer: Decoded = self.parent.receive(Decoded)
        if answer.error:
            raise DecodeError(answer.error)
        return answer.payloads


def _replayer(parent: _Parent, setup: ReplayerSetup) -> Replayer:
    codec = ParentsCodec(parent, threading.Lock(), setup.wants_context) if setup.decodes else None
    return Replayer(
        modules=[importlib.import_module(name) for name in setup.modules],
        converter=find_converter(setup.converter, ""),
        codec=codec,
        namespace=setup.namespace,
        timeout=setup.limit,
    )


def _replay(replayer: Replayer, request: WalkRequest) -> WalkResult:
    history = History.from_json(request.history, workflow_id=request.workflow_id)
    number = request.at
    if number is None:
        number = max(0, len(replayer.moments(history, range(0))[0]) - 1)
    moments, result = replayer.moments(history, range(max(0, number - 1), number + 1))
    if moments and number >= len(moments):
        return _replay(replayer, WalkRequest(workflow_id=request.workflow_id, history=request.history))
    error = result.error
    return WalkResult(
        moments=moments,
        number=number if moments else 0,
        error="" if error is None else str(error) or type(error).__name__,
        error_type="" if error is None else type(error).__name__,
        is_nondeterminism=isinstance(error, NondeterminismError),
    )


def _serve(parent: _Parent) -> None:
    setup: ReplayerSetup = parent.receive(ReplayerSetup)
    alarm = math.ceil(setup.limit) + 1
    signal.alarm(alarm)  # its default action ends the process, even if code holds the GIL
    try:
        replayer = _replayer(parent, setup)
    except BaseException as error:  # an import may raise anything
        parent.send(Refused(f"the code cannot be imported for the replay: {type(error).__name__}: {error}"))
        return
    while True:
        signal.alarm(0)
        request: WalkRequest = parent.receive(WalkRequest)
        signal.alarm(alarm)
        parent.send(_replay(replayer, request))


def main() -> NoReturn:
    """Run the child program."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    sock.settimeout(_LONGEST_IDLE)
    try:
        _serve(_Parent(sock))
    except (EOFError, OSError):
        pass
    except BaseException:
        os._exit(1)
    os._exit(0)  # threads that the code left running must not keep the process alive
