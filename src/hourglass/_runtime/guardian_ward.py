"""One guarded process, seen from its guardian: started, listened to, told to stop, examined, killed.

Nothing here waits for the process but `examine`, which gives it a second. The life of a ward is that of one process: what comes
after it in its place is another ward.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from hourglass._runtime import standstill
from hourglass._runtime.guardian_wire import (
    STOP,
    VARIABLE,
    Handover,
    RunHung,
    Said,
    decode,
    encode_handover,
    encode_hangs,
)
from hourglass._runtime.lane_notes import SIZE, read_notes

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_CHUNK, _LONGEST_LINE = 1 << 16, 1 << 20


class Ward:
    """A guarded process. `silent` and `sample` are its guardian's: for how long nothing was heard, and a look at its threads."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        interval: float,
        hangs: list[RunHung],
        *,
        place: int,
        now: float,
    ) -> None:
        self.started = now
        self.loaded = False
        self.ready_at: float | None = None
        self.leaving_at: float | None = None
        self.silent = 0.0
        self.sample: dict[int, int] = {}
        self.killed_for = ""
        self._hung_up = False
        self._heard = b""
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        self._notes, self._stacks = _file(bytes(SIZE)), _file(b"")
        with theirs, _file(encode_hangs(hangs)) as told:
            handover = Handover(
                socket=theirs.fileno(),
                notes=self._notes.fileno(),
                stacks=self._stacks.fileno(),
                hangs=told.fileno(),
                parent=os.getpid(),
                place=place,
                interval=interval,
            )
            self._process = _start(command, {**environ, VARIABLE: encode_handover(handover)}, handover)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """How it ended, None while it lives."""
        return self._process.poll()

    def heard(self) -> list[Said]:
        """What it has said since."""
        try:
            while len(self._heard) <= _LONGEST_LINE:
                chunk = self.socket.recv(_CHUNK)
                if not chunk:
                    self._hung_up = True
                    break
                self._heard += chunk
        except BlockingIOError:
            pass
        except OSError:
            self._hung_up = True
        *lines, self._heard = self._heard.split(b"\n")
        if len(self._heard) > _LONGEST_LINE:
            self._heard = b""  # nobody of ours says that
        return [said for line in lines if (said := decode(line)) is not None]

    def has_hung_up(self) -> bool:
        """Whether nothing more will be heard."""
        return self._hung_up

    def ask_to_stop(self) -> None:
        """Let it finish what is in flight, and end."""
        try:
            self.socket.send(STOP)
        except OSError:
            pass  # it has ended

    def kill(self, why: str = "") -> None:
        """End it at once."""
        self.killed_for = self.killed_for or why
        self._process.kill()

    def is_stopped(self) -> bool:
        """Whether somebody has stopped it on purpose."""
        return standstill.is_stopped(self.pid)

    def look(self) -> None:
        """Remember what its threads have used so far, if that was not done yet."""
        if not self.sample:
            self.sample = standstill.processor_time(self.pid)

    def examine(self) -> standstill.Standstill:
        """Where it stands, and at which run."""
        notes = [each for each in read_notes(os.pread(self._notes.fileno(), SIZE, 0)) if each.native_id]
        return standstill.examine(self.pid, self._stacks.fileno(), self.sample, notes)

    def close(self) -> None:
        """It has ended: free what it used."""
        self._process.wait()
        self.socket.close()
        self._notes.close()
        self._stacks.close()


def _start(command: Sequence[str], environ: Mapping[str, str], handover: Handover) -> subprocess.Popen[bytes]:
    # It begins with these blocked, and lets them through when it can handle them: Ctrl-C in its first moments is no traceback.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        return subprocess.Popen(
            command,
            env=environ,
            pass_fds=(handover.socket, handover.notes, handover.stacks, handover.hangs),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _file(content: bytes) -> IO[bytes]:
    file = tempfile.TemporaryFile("w+b", buffering=0)  # noqa: SIM115 - lives as long as the ward
    file.write(content)
    return file
