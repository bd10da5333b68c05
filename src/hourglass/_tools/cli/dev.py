"""`hourglass dev`: a worker for development. It reloads when a file changes, and checks open runs before it receives
tasks."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from hourglass._tools.cli import logs
from hourglass._tools.cli.connecting import (
    Codec,
    Level,
    LogForm,
    LogLevel,
    Namespace,
    Sources,
    Target,
    TaskQueues,
)
from hourglass.errors import UsageError

if TYPE_CHECKING:
    from hourglass.testing import DevServer

FOLDER = ".hourglass"
_PORT, _UI_PORT = 7233, 8233
_QUIET = ("watchfiles", "hourglass.embedded", "hourglass.worker")


Temporal: TypeAlias = Annotated[
    bool, typer.Option("--temporal", help="Also run a Temporal dev server with its web UI.")
]
Port: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, metavar="N", help="The dev server's port.  [default: 7233, or a free one]"
    ),
]
UiPort: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, metavar="N", help="The port of its web UI.  [default: 8233, or a free one]"
    ),
]
Strict: TypeAlias = Annotated[
    bool, typer.Option("--strict", help="Do no work while the code would break an open run.")
]
Page: TypeAlias = Annotated[bool, typer.Option("--ui/--no-ui", help="Serve the web UI.")]
Check: TypeAlias = Annotated[
    int, typer.Option(min=0, metavar="N", help="Open runs to check before receiving tasks; 0 checks none.")
]


def dev(
    sources: Sources,
    temporal: Temporal = False,
    port: Port = None,
    ui_port: UiPort = None,
    target: Target = None,
    namespace: Namespace = None,
    codec: Codec = None,
    task_queues: TaskQueues = None,
    strict: Strict = False,
    check: Check = 200,
    ui: Page = True,
    log_level: Level = LogLevel.info,
) -> None:
    """Run a worker that reloads when a file changes.

    Before it receives tasks, it executes the open runs again with the changed code, and shows which would break, and where.
    Runs are verified while they execute, and calls that are not deterministic are reported.

    \b
    Examples:
      hourglass dev app.py
      hourglass dev app.py --temporal
    """
    from hourglass._tools.cli import dev_worker

    logs.configure(LogForm.pretty.value, log_level.value)
    logging.getLogger("hourglass.runs").setLevel(logging.DEBUG)  # a line for each run that starts or closes
    if log_level is not LogLevel.debug:  # the messages would be repeated at each reload
        for name in _QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
    _reject_conflicting_options(temporal, target, port, ui_port)
    life = dev_worker.enter(os.environ)
    if life is not None:
        options = dev_worker.DevOptions(
            sources=tuple(sources),
            target=life.target or target,
            namespace=namespace,
            codec=codec,
            task_queues=tuple(dict.fromkeys(task_queues or ["default"])),
            strict=strict,
            check=check,
        )
        raise typer.Exit(dev_worker.serve(options, life))
    server = _Server(namespace or "default", port, ui_port) if temporal else None
    raise typer.Exit(_watch(sources, server, ui))


def _reject_conflicting_options(
    temporal: bool, target: str | None, port: int | None, ui_port: int | None
) -> None:
    if os.name != "posix":
        raise UsageError(
            "hourglass dev needs a POSIX system: use hourglass worker, and restart it after each change"
        )
    if temporal and target is not None:
        raise UsageError("--temporal runs its own server: omit --target")
    if not temporal and (port is not None or ui_port is not None):
        raise UsageError("--port and --ui-port apply to the server that --temporal runs: add --temporal")


def _watch(sources: list[str], temporal: _Server | None, ui: bool) -> int:
    from hourglass._tools.cli.dev_worker import Reloader, folders
    from hourglass._tools.cli.ui import page_socket

    with ExitStack() as stack:
        server = None if temporal is None else stack.enter_context(temporal)
        # The same interpreter, flags and arguments, because the environment decides the role of the process.
        command = (sys.executable, *sys.orig_argv[1:])
        page = stack.enter_context(page_socket()) if ui else None
        reloader = Reloader(
            command, folders(sources), target="" if server is None else server.target, page=page
        )
        return reloader.run()


class _Server:
    """The dev server of this directory, with the data of earlier sessions."""

    def __init__(self, namespace: str, port: int | None, ui_port: int | None) -> None:
        self._namespace = namespace
        self._port, self._ui_port = port, ui_port
        self._stack = ExitStack()

    def __enter__(self) -> DevServer:
        from hourglass._tools.cli import console
        from hourglass.testing import dev_server

        folder = Path(FOLDER)
        folder.mkdir(mode=0o700, exist_ok=True)
        for file in folder.glob(
            "temporal.db*"
        ):  # of a server that was started by hand, or by an earlier version
            file.chmod(0o600)
        (folder / ".gitignore").write_text("*\n")
        server = self._stack.enter_context(
            dev_server(
                port=_chosen(self._port, _PORT),
                db_filename=folder / "temporal.db",
                namespace=self._namespace,
                ui=True,
                ui_port=_chosen(self._ui_port, _UI_PORT),
            )
        )
        console.note(f"Temporal server   {server.target}")
        console.note(f"web UI            {server.ui_url}")
        return server

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _chosen(wished: int | None, usual: int) -> int | None:
    """Return the port to use, or None for any free port."""
    if wished is not None:
        if not _is_free(wished):
            raise UsageError(f"port {wished} is in use: choose another port")
        return wished
    return usual if _is_free(usual) else None


def _is_free(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
