"""The `hourglass` command. Commands import their own dependencies when they run, so that `--help` is fast.

app             all commands by name, and their execution: errors become a message and an exit code
console         all output to the terminal
loading         imports a FILE or a MODULE with decorated workflows and activities
commands        groups of commands, and options that are declared as a class
connecting      a client for one command; options shared by several commands
logs            log formats of a worker
picture         a timeline on a console
run, worker, dev, dev_worker                     commands that execute workflows
workflows, listing, show, why, ui                commands about workflows
activities, schedules                            command groups for pending activities and for schedules
check, port, replay, debug, doctor, backup, move commands about code and files
move_schedules  the part of `move` that handles schedules
codec_server    decodes payloads for Temporal's web UI with the codec of a program
docs            the manual
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        from hourglass._tools.cli.app import prepare_program, run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.stderr.write(
            "the hourglass command needs two more packages: pip install 'hourglass-temporal[cli]'\n"
        )
        return 1
    if arguments is not None:
        return run(list(arguments))
    prepare_program()
    return run(sys.argv[1:])
