"""A codec server in this process, configured as by `hourglass codec-server`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from hourglass._http.access import Credentials
from hourglass._tools.cli import codec_server

TOKEN = "t" * 20


@contextmanager
def serve_codec(
    codec: object, *, token: str | None = TOKEN, port: int = 0, names: Sequence[str] = ()
) -> Iterator[str]:
    """Serve a codec and yield the address. If the token is None, the server creates one."""
    credentials = None if token is None else Credentials.create(token)
    with codec_server.served(codec, credentials=credentials, port=port, names=names) as address:  # type: ignore[arg-type]
        yield address


@dataclass(frozen=True)
class ServerLinks:
    """Addresses and token of a codec server: the root, the one-time link, and that link with a wrong code."""

    address: str
    link: str
    wrong_link: str
    token: str


@contextmanager
def serve_codec_with_link(codec: object) -> Iterator[ServerLinks]:
    """Serve a codec with a token that the server creates."""
    credentials = Credentials.create()
    with codec_server.served(codec, credentials=credentials) as address:  # type: ignore[arg-type]
        login = f"{address}{codec_server.LOGIN}?code="
        yield ServerLinks(address, login + credentials.link.code, login + "wrong", credentials.token)


def limit_requests(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Limit the accepted size of requests."""
    monkeypatch.setattr(codec_server, "LARGEST", size)
