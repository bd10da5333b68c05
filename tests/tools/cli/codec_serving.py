"""A codec server in this process, as `hourglass codec-server` runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from hourglass._http.access import Credentials
from hourglass._tools.cli import codec_server

TOKEN = "t" * 20


@contextmanager
def served(
    codec: object, *, token: str | None = TOKEN, port: int = 0, names: Sequence[str] = ()
) -> Iterator[str]:
    """Serve a codec and yield its address; without a token the server draws one."""
    credentials = None if token is None else Credentials.create(token)
    with codec_server.served(codec, credentials=credentials, port=port, names=names) as address:  # type: ignore[arg-type]
        yield address


@dataclass(frozen=True)
class Links:
    """The addresses of a codec server: its root, its one-time link, and the same link with a wrong code; and its token."""

    address: str
    link: str
    wrong_link: str
    token: str


@contextmanager
def served_with_link(codec: object) -> Iterator[Links]:
    """Serve a codec with a token drawn by the server."""
    credentials = Credentials.create()
    with codec_server.served(codec, credentials=credentials) as address:  # type: ignore[arg-type]
        login = f"{address}{codec_server.LOGIN}?code="
        yield Links(address, login + credentials.link.code, login + "wrong", credentials.token)


def limit_requests(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let the server refuse requests of more than `size` bytes."""
    monkeypatch.setattr(codec_server, "LARGEST", size)
