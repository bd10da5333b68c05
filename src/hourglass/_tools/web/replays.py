"""Time travel in a child process, because replays run the author's code, and that must not run in the web UI's process.

A replay may never end, and a backtracking regular expression may hold the GIL all that time. In this process, the replay
would then block the web UI and its reaction to SIGTERM. So a child process replays, is killed at a deadline, and is
replaced. The child inherits no secrets: no descriptor except its socket, and from the environment only the variables that an
interpreter needs (`SAFE_VARIABLES`) and the variables that the user lists in HOURGLASS_REPLAY_ENV. The codec and its keys
stay in this process, and the child requests the decoding of payloads.

Must not know: HTTP, HTML. Calls block, and only one replay runs at a time.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from time import monotonic
from types import ModuleType
from typing import Final

from hourglass._tools.web.replay_child import (
    Decode,
    Decoded,
    Refused,
    ReplayerSetup,
    WalkRequest,
    WalkResult,
    from_child,
)
from hourglass._worker.activities.child_process import command
from hourglass._worker.activities.process_names import converter_place
from hourglass._worker.activities.process_wire import ProcessChannel
from hourglass.client import Client
from hourglass.converter import in_context, wants_context
from hourglass.converter._codec import run_codec
from hourglass.errors import HourglassError, PayloadError, UsageError
from hourglass.replay import History

LIMIT: Final = 20.0
"""The maximum duration of a replay in seconds, including the start of its process."""

PASSED_VARIABLES: Final = "HOURGLASS_REPLAY_ENV"
SAFE_VARIABLES: Final = frozenset(
    (
        "HOME",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
        "LOGNAME",
        "PATH",
        "PYTHONHOME",
        "PYTHONUTF8",
        "SYSTEMROOT",
        "TMPDIR",
        "TZ",
        "USER",
    )
)
_LARGEST_ANSWER: Final = 256 * 1024 * 1024


class ReplayFailedError(HourglassError):
    """A replay exceeded its deadline, or its process died."""


class TimeTravel:
    """Replays histories against loaded code, in a child process that is started on demand."""

    def __init__(self, modules: Sequence[ModuleType], client: Client, limit: float = LIMIT) -> None:
        self._modules = tuple(module.__name__ for module in modules)
        self._converter, self._codec = client.converter, client.codec
        self._namespace = client.namespace
        self._limit = limit
        self._replay_lock = threading.Lock()
        self._lock = threading.Lock()
        self._child: _ReplayProcess | None = None
        self._closed = False

    def walk(self, history: History, at: int | None) -> WalkResult:
        """Replay a history and return its moments. The moment with number `at` (None for the last) and its predecessor
        include the fibers.

        Raise `ReplayFailedError` if the replay takes too long, and `UsageError` if the child cannot load the code.
        """
        if not self._replay_lock.acquire(timeout=self._limit):
            raise ReplayFailedError("other replays are still running: try again later")
        try:
            text = history._text
            encoded = text.encode() if isinstance(text, str) else text
            return self._walk(WalkRequest(workflow_id=history.workflow_id, history=encoded, at=at))
        finally:
            self._replay_lock.release()

    def _walk(self, request: WalkRequest) -> WalkResult:
        deadline = monotonic() + self._limit
        child = self._running_child()
        try:
            answer = self._exchange(child, request, deadline)
            if answer is None and child.exit_code() == 0:  # it ended after a long idle time
                child = self._running_child()
                answer = self._exchange(child, request, deadline)
        except BaseException as error:
            child.kill()
            if isinstance(error, TimeoutError):
                raise ReplayFailedError(
                    f"the replay was stopped after {self._limit:g} seconds: the code may be in an endless loop or in a regular "
                    "expression that backtracks, or the history is too long for the web UI (hourglass debug has no limit)"
                ) from None
            if isinstance(error, OSError):
                raise ReplayFailedError(f"the replay process has ended: {error.strerror}") from None
            raise
        match answer:
            case WalkResult():
                return answer
            case Refused(message):
                child.kill()
                raise UsageError(
                    f"{message}\n  Replays run in a separate process without this process's environment: list the variables that "
                    f"the code needs in {PASSED_VARIABLES}, separated by commas"
                )
            case None:
                raise ReplayFailedError(f"the replay process ended with exit code {child.exit_code()}")

    def _running_child(self) -> _ReplayProcess:
        with self._lock:
            if self._closed:
                raise ReplayFailedError("the web UI is shutting down")
            if self._child is None or self._child.exit_code() is not None:
                if self._child is not None:
                    self._child.kill()
                self._child = _ReplayProcess(self._setup(), self._limit)
            return self._child

    def _setup(self) -> ReplayerSetup:
        return ReplayerSetup(
            modules=list(self._modules),
            converter=converter_place(self._converter),
            namespace=self._namespace,
            decodes=self._codec is not None,
            wants_context=self._codec is not None and wants_context(self._codec),
            limit=self._limit,
        )

    def _exchange(
        self, child: _ReplayProcess, request: WalkRequest, deadline: float
    ) -> WalkResult | Refused | None:
        """Send a request, and serve the child's own requests until the child answers. Return None if the child has ended."""
        try:
            child.send(request, deadline)
            while True:
                message = child.receive(deadline)
                if not isinstance(message, Decode):
                    return message
                child.send(self._decode_payloads(message), deadline)
        except (BrokenPipeError, ConnectionResetError):
            return None

    def _decode_payloads(self, request: Decode) -> Decoded:
        if self._codec is None:
            return Decoded(error="no codec is configured")
        try:
            codec = self._codec if request.context is None else in_context(self._codec, request.context)
            return Decoded(payloads=list(run_codec(codec, "decode", list(request.payloads))))
        except PayloadError as error:
            return Decoded(error=str(error))

    def close(self) -> None:
        """Kill the child immediately, even during a replay."""
        with self._lock:
            self._closed = True
            child, self._child = self._child, None
        if child is not None:
            child.kill()


class _ReplayProcess:
    """The parent's view of the child process."""

    def __init__(self, setup: ReplayerSetup, limit: float) -> None:
        ours, child_socket = socket.socketpair()
        self._channel = ProcessChannel(ours, _LARGEST_ANSWER)
        self._frames: list[bytes] = []
        try:
            with child_socket:
                self._process = subprocess.Popen(
                    command(
                        child_socket.fileno(),
                        os.getpid(),
                        sys.path,
                        program="hourglass._tools.web.replay_child",
                    ),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # the output of the code may contain payloads
                    stderr=subprocess.DEVNULL,
                    env=environment(os.environ),
                    pass_fds=(child_socket.fileno(),),
                    start_new_session=True,  # so that its own children can be killed with it
                )
            ours.settimeout(limit)
            self._channel.send(setup)
        except BaseException:
            self._channel.close()
            raise

    def exit_code(self) -> int | None:
        return self._process.poll()

    def send(self, message: WalkRequest | Decoded, deadline: float) -> None:
        """Send a message. Raise `TimeoutError` if it cannot be sent before the deadline."""
        self._channel.sock.settimeout(_remaining(deadline))
        self._channel.send(message)

    def receive(self, deadline: float) -> WalkResult | Refused | Decode | None:
        """Wait for a message. Return None if the child has ended. Raise `TimeoutError` at the deadline."""
        while not self._frames:
            self._channel.sock.settimeout(_remaining(deadline))
            frames = self._channel.receive()
            if frames is None:
                self._process.wait(_remaining(deadline))
                return None
            self._frames = frames
        return from_child.decode(self._frames.pop(0))

    def kill(self) -> None:
        """Kill the child, and the processes that its code has started. May be called twice, and from any thread."""
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait()
        self._channel.close()


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that the child inherits."""
    required_name = {name.strip() for name in variables.get(PASSED_VARIABLES, "").split(",")}
    return {
        name: value
        for name, value in variables.items()
        if name in SAFE_VARIABLES or name in required_name or name.startswith("LC_")
    }


def _remaining(deadline: float) -> float:
    remaining = deadline - monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining
