"""Resolution of targets as in `Client.connect`, without connecting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hourglass._worker.portal import Portal
from hourglass._worker.targets import Target, open_connection, resolve

NONE: Mapping[str, str] = {}


def resolve_target(
    target: str | None = None, environ: Mapping[str, str] | None = NONE, **arguments: Any
) -> Target:
    """Resolve a target with these environment variables (by default none; None means those of this process)."""
    return resolve(target, environ=environ, **arguments)


def connect_to(target: Target) -> object:
    """Connect to the target, with a timeout of one second."""
    return Portal.current().call(open_connection(target, "me", 1.0))
