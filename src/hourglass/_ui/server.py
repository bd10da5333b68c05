"""Serves the page: address, token, browser.

On loopback no token is needed: a user who can reach it can read the file, too. Any other address needs one, given or made
here, and said once on the terminal.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterator

import uvicorn

from hourglass._ui.app import build
from hourglass._ui.site import Site
from hourglass.errors import UsageError

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
PORT = 8300


def hosts_of(host: str, port: int, more: tuple[str, ...] = ()) -> frozenset[str]:
    """The values of the header `Host` that are the page's own."""
    names = {host, *more, *(LOOPBACK if host in LOOPBACK or host in ("0.0.0.0", "::") else ())}
    bracketed = {f"[{name}]" if ":" in name else name for name in names}
    found = {f"{name}:{port}" for name in bracketed} | {each for each in more if ":" in each}
    return frozenset(each.lower() for each in (found | bracketed if port == 80 else found))


def check_token(host: str, token: str | None) -> str | None:
    """The token that is asked for: none on loopback unless one was given. Raises `UsageError` beyond it without one."""
    if token is not None and len(token) < 16:
        raise UsageError(
            "a token has 16 characters or more: python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    if host not in LOOPBACK and token is None:
        raise UsageError(
            f"serving the page on {host} lets others ask it: give --token, or set HOURGLASS_UI_TOKEN; "
            f"for example {secrets.token_urlsafe(24)}"
        )
    return token


def bound(host: str, port: int | None) -> socket.socket:
    """A socket for the page: on the port that was asked for, or on the usual one, or on a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in (port,) if port is not None else (PORT, 0):
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, candidate))
        except OSError as error:
            made.close()
            if candidate == 0 or port is not None:
                raise UsageError(
                    f"the page cannot be served on {host}:{candidate}: {error.strerror}"
                ) from error
            continue
        made.listen(128)  # from here on a browser waits until the page answers, and is not refused
        return made
    raise AssertionError("the loop returns or raises")


def address_of(listening: socket.socket) -> str:
    """The address under which a page on this socket is found."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@contextlib.contextmanager
def served(
    site: Site,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    names: tuple[str, ...] = (),
    listening: socket.socket | None = None,
) -> Iterator[str]:
    """Serve the page on a thread while the block lasts; gives its address. `listening` is a socket that is bound already, where
    the page is served by one process after another.
    """
    token = check_token(host, token)
    listening = bound(host, port) if listening is None else listening
    number = listening.getsockname()[1]
    app = build(site, hosts=hosts_of(host, number, names), token=token)
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,  # pages that are open listen for as long as they are let
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # signals are the program's
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listening]}, name="hourglass-ui", daemon=True
    )
    thread.start()
    try:
        yield address_of(listening)
    finally:
        server.should_exit = True
        thread.join(5.0)
        site.close()
        listening.close()
