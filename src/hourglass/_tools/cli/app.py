"""All commands by name, and their execution. Errors become a message and an exit code instead of a traceback.

A command is a function listed in `COMMANDS`; related commands share a file. Only the file of the requested command is
loaded, but help loads all files. So no command file may import slow modules at its top.

Exit codes: 0 success, 1 failure, 2 usage error, 130 Ctrl-C, 141 the reader of the output closed the pipe.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from importlib import import_module
from typing import Annotated, Any, cast

import typer

from hourglass._tools.cli import console, logs
from hourglass._tools.cli.commands import Commands
from hourglass.errors import (
    HistoryError,
    HourglassError,
    NondeterminismError,
    PayloadError,
    StorageError,
    TargetError,
    UsageError,
)

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("hourglass._tools.cli.run", "run"),
    "worker": ("hourglass._tools.cli.worker", "worker"),
    "dev": ("hourglass._tools.cli.dev", "dev"),
    "start": ("hourglass._tools.cli.workflows", "start"),
    "result": ("hourglass._tools.cli.workflows", "result"),
    "list": ("hourglass._tools.cli.listing", "list_"),
    "ui": ("hourglass._tools.cli.ui", "ui"),
    "show": ("hourglass._tools.cli.show", "show"),
    "why": ("hourglass._tools.cli.why", "why"),
    "describe": ("hourglass._tools.cli.listing", "describe"),
    "signal": ("hourglass._tools.cli.workflows", "signal"),
    "query": ("hourglass._tools.cli.workflows", "query"),
    "update": ("hourglass._tools.cli.workflows", "update"),
    "cancel": ("hourglass._tools.cli.workflows", "cancel"),
    "terminate": ("hourglass._tools.cli.workflows", "terminate"),
    "reset": ("hourglass._tools.cli.workflows", "reset"),
    "fork": ("hourglass._tools.cli.workflows", "fork"),
    "pause": ("hourglass._tools.cli.workflows", "pause"),
    "resume": ("hourglass._tools.cli.workflows", "resume"),
    "delete": ("hourglass._tools.cli.workflows", "delete"),
    "activity": ("hourglass._tools.cli.activities", "activity"),
    "schedule": ("hourglass._tools.cli.schedules", "schedule"),
    "codec-server": ("hourglass._tools.cli.codec_server", "codec_server"),
    "export": ("hourglass._tools.cli.replay", "export"),
    "replay": ("hourglass._tools.cli.replay", "replay"),
    "debug": ("hourglass._tools.cli.debug", "debug"),
    "check": ("hourglass._tools.cli.check", "check"),
    "port": ("hourglass._tools.cli.port", "port"),
    "backup": ("hourglass._tools.cli.backup", "backup"),
    "move": ("hourglass._tools.cli.move", "move"),
    "docs": ("hourglass._tools.cli.docs", "docs"),
    "doctor": ("hourglass._tools.cli.doctor", "doctor"),
}
"""The module and function of each command, in the order in which the help page lists them."""

PAGES: tuple[tuple[type[HourglassError], str], ...] = (
    (NondeterminismError, "howto/versioning"),
    (HistoryError, "replay"),
    (PayloadError, "converter"),
    (StorageError, "operations"),
    (TargetError, "client"),
)
"""The manual page for each kind of error. The error message refers to the page."""

_TRACEBACK = "--traceback"


def build(arguments: list[str]) -> typer.Typer:
    """Return the application with the requested command, or with all commands."""
    app = Commands(
        name="hourglass",
        help="Durable workflows as plain Python functions, on Temporal or embedded.",
        epilog="`hourglass COMMAND --help` has examples. The manual starts with `hourglass docs tutorial`.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,  # long option names do not fit into boxes at 80 columns
    )
    app.callback()(_common)
    requested = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name in [requested] if requested in COMMANDS else list(COMMANDS):
        module, function = COMMANDS[name]
        command = getattr(import_module(module), function)
        if isinstance(command, typer.Typer):  # a command group
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code. Every error is caught here and printed as a message."""
    shown, arguments = _take_traceback(arguments)
    if shown:
        os.environ["HOURGLASS_TRACEBACK"] = "full"
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logs.PlainFormatter())
    try:
        returned = build(arguments)(args=arguments, prog_name="hourglass", standalone_mode=False)
        return returned if isinstance(returned, int) else 0
    except SystemExit as end:
        return _exit_code(end)
    except (KeyboardInterrupt, typer.Abort) as error:
        return _interrupted(error)
    except BrokenPipeError:
        console.stop_writing()
        return 141
    except Exception as error:
        if shown:
            console.trace(error)
        return _report(error)


def prepare_program() -> None:
    """Prepare a process that runs only this command: set up its standard streams and the handling of uncaught exceptions."""
    console.prepare_streams()
    sys.excepthook = lambda _, error, __: console.trace(error)
    threading.excepthook = _thread_ended


def _thread_ended(end: threading.ExceptHookArgs) -> None:
    if end.exc_value is not None and not isinstance(end.exc_value, SystemExit):
        console.trace(end.exc_value)


def _report(error: Exception) -> int:
    if isinstance(error, HourglassError):
        page = next((page for kind, page in PAGES if isinstance(error, kind)), "")
        console.error(f"{error}\n  see hourglass docs {page}" if page else str(error))
        return 2 if isinstance(error, UsageError) else 1
    if hasattr(error, "format_message") and hasattr(error, "exit_code") and hasattr(error, "show"):
        # The parser's own error. Its class depends on the version of typer.
        output, parsers = io.StringIO(), cast(Any, error)
        parsers.show(file=output)
        console.note(output.getvalue().rstrip("\n"))
        return int(parsers.exit_code)
    if isinstance(error, OSError):
        if error.filename is None:  # usually stdout
            console.stop_writing()
        named = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        console.error(f"{named}{error.strerror or error}")
        return 1
    console.error(
        f"{type(error).__name__}: {error}\n  this error should have a better message; use {_TRACEBACK} to show where it was "
        "raised"
    )
    return 1


def _interrupted(error: BaseException) -> int:
    """Handle Ctrl-C, or a declined confirmation."""
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt):
        return 130
    console.note("Aborted!")
    return 1


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        console.show(f"hourglass {version('hourglass-temporal')}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_version)
    ] = False,
    traceback: Annotated[
        bool,
        typer.Option(_TRACEBACK, help="Show errors with their traceback. May also follow the command."),
    ] = False,
) -> None:
    """Durable workflows as plain Python functions, on Temporal or embedded."""


def _take_traceback(arguments: list[str]) -> tuple[bool, list[str]]:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, remaining = arguments[:end], arguments[end:]
    return _TRACEBACK in options, [option for option in options if option != _TRACEBACK] + remaining


def _exit_code(end: SystemExit) -> int:
    if isinstance(end.__context__, BrokenPipeError):  # how the parser reports a closed pipe
        console.stop_writing()
        return 141
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    console.error(str(end.code))
    return 1
