"""Addresses and programs for tests that start servers themselves."""

from __future__ import annotations

import socket
from importlib import import_module


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def temporal_cli() -> str:
    """Return the path of the `temporal` program that `dev_server` runs."""
    path: str = import_module("hourglass.testing._dev_server").find_cli()
    return path
