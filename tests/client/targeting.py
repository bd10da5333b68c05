"""Targets as `Client.connect` understands them, without connecting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hourglass._worker.portal import Portal
from hourglass._worker.targets import Target, open_connection, resolve

NONE: Mapping[str, str] = {}


def given(target: str | None = None, environ: Mapping[str, str] | None = NONE, **arguments: Any) -> Target:
    """Return what a target means in an environment, which is empty by default; None is that of this process."""
    return resolve(target, environ=environ, **arguments)


def connect_to(target: Target) -> object:
    """Connect as a client does, with a second for the server to answer."""
    return Portal.current().call(open_connection(target, "me", 1.0))
