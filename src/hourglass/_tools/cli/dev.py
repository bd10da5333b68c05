"""`hourglass dev`: a worker for development. It reloads when a file changes, and checks open runs before it receives
tasks."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from hourglass._tools.cli import logs
from hourglass._tools.cli.connecting import DecodingEngine, Level, LogForm, LogLevel, Sources, TaskQueues
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


@dataclass(frozen=True, kw_only=True)
class DevOptions:
    """The options of the command line."""

    sources: Sources
    temporal: Temporal = False
    port: Port = None
    ui_port: UiPort = None
    engine: DecodingEngine
    task_queues: TaskQueues = None
    strict: Strict = False
    check: Check = 200
    ui: Page = True
    log_level: Level = LogLevel.info

    @property
    def queues(self) -> tuple[str, ...]:
        """The task queues to serve."""
        return tuple(dict.fromkeys(self.task_queues or ["default"]))


def dev(*, options: DevOptions) -> None:
    """Run a worker that reloads when a file changes.

    Before it receives tasks, it executes the open runs again with the changed code, and shows which would break, and where.
    Runs are verified while they execute, and calls that are not deterministic are reported.

    \b
    Examples:
      hourglass dev app.py
      hourglass dev app.py --temporal
    """
    from hourglass._tools.cli import dev_worker

    logs.configure(LogForm.pretty.value, options.log_level.value)
    logging.getLogger("hourglass.runs").setLevel(logging.DEBUG)  # a line for each run that starts or closes
    if options.log_level is not LogLevel.debug:  # the messages would be repeated at each reload
        for name in _QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
    _reject_conflicting(options)
    life = dev_worker.enter(os.environ)
    if life is not None:
        engine = replace(options.engine, target=life.target or options.engine.target)
        raise typer.Exit(dev_worker.serve(replace(options, engine=engine), life))
    raise typer.Exit(_watch(options))


def _reject_conflicting(options: DevOptions) -> None:
    if os.name != "posix":
        raise UsageError(
            "hourglass dev needs a POSIX system: use hourglass worker, and restart it after each change"
        )
    if options.temporal and options.engine.target is not None:
        raise UsageError("--temporal runs its own server: omit --target")
    if not options.temporal and (options.port is not None or options.ui_port is not None):
        raise UsageError("--port and --ui-port apply to the server that --temporal runs: add --temporal")


def _watch(options: DevOptions) -> int:
    from hourglass._tools.cli.dev_worker import Reloader, folders
    from hourglass._tools.cli.ui import page_socket

    with ExitStack() as stack:
        target = stack.enter_context(_server(options)).target if options.temporal else ""
        # The same interpreter, flags and arguments, because the environment decides the role of the process.
        command = (sys.executable, *sys.orig_argv[1:])
        page = stack.enter_context(page_socket()) if options.ui else None
        return Reloader(command, folders(options.sources), target=target, page=page).run()


@contextmanager
def _server(options: DevOptions) -> Iterator[DevServer]:
    """Run the dev server of this directory, with the data of earlier sessions."""
    from hourglass._tools.cli import console
    from hourglass.testing import dev_server

    folder = Path(FOLDER)
    folder.mkdir(mode=0o700, exist_ok=True)
    # Also of a server that was started by hand, or by an earlier version.
    for file in folder.glob("temporal.db*"):
        file.chmod(0o600)
    (folder / ".gitignore").write_text("*\n")
    with dev_server(
        port=_chosen(options.port, _PORT),
        db_filename=folder / "temporal.db",
        namespace=options.engine.namespace or "default",
        ui=True,
        ui_port=_chosen(options.ui_port, _UI_PORT),
    ) as server:
        console.note(f"Temporal server   {server.target}")
        console.note(f"web UI            {server.ui_url}")
        yield server


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
