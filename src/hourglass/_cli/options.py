"""Options that several commands have, each said once: name, form and help."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

import typer


class LogForm(StrEnum):
    """How something is logged."""

    pretty = "pretty"
    json = "json"


class LogLevel(StrEnum):
    """What is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


Sources: TypeAlias = Annotated[
    list[str],
    typer.Argument(metavar="FILE|MODULE", help="Where workflows and activities are: app.py, or app.orders."),
]
Target: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TARGET",
        help="host:port, profile:NAME or local:FILE. Else HOURGLASS_TARGET, then TEMPORAL_ADDRESS, "
        "then local:hourglass.db.",
    ),
]
Namespace: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="The namespace on the server.")
]
Codec: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:OBJECT",
        help="What decodes and encodes the payloads, such as app.secrets:codec. Else HOURGLASS_CODEC.",
    ),
]
TaskQueues: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--task-queue",
        metavar="NAME",
        help="A task queue to serve; several may be given.  [default: default]",
    ),
]
Log: TypeAlias = Annotated[LogForm, typer.Option(help="For people, or a JSON document per line.")]
Level: TypeAlias = Annotated[LogLevel, typer.Option(help="What is logged.")]
