"""`hourglass backup`: a copy of a file of the embedded engine, while it is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hourglass._tools.cli import connecting
from hourglass._tools.cli.connecting import Json
from hourglass.errors import UsageError


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The engine's file, such as hourglass.db.")],
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="The path of the copy.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    json: Json = False,
) -> None:
    """Copy the engine's file, even while workers use it. The copy is complete, or none is made.

    \b
    Example:
      hourglass backup orders.db /backups/orders-monday.db
    """
    from hourglass._embedded.store.sqlite.database import backup as copy

    if str(file).startswith("local:"):
        file = Path(str(file).removeprefix("local:"))
    if not file.exists():
        raise UsageError(f"file {file} does not exist")
    if destination.is_file() and not overwrite:
        raise UsageError(f"{destination} already exists: use --overwrite to replace it")
    with connecting.progress("copying pages") as progress:
        copy(file, destination, overwrite=overwrite, progress=progress)
    size = destination.stat().st_size
    message = f"copied {file} to {destination} ({size / 1e6:.1f} MB)"
    connecting.report(message, json, file=str(file), destination=str(destination), bytes=size)
