"""`hourglass ui`: the web UI."""

from __future__ import annotations

import os
import socket
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from hourglass._http.access import Credentials, read_token
from hourglass._tools.cli import connecting, console
from hourglass._tools.cli.connecting import DecodingEngine, Host, TokenOption
from hourglass.errors import UsageError

TOKEN = "HOURGLASS_UI_TOKEN"

Port: TypeAlias = Annotated[
    int | None, typer.Option(min=1, max=65535, metavar="N", help="The port.  [default: 8300, or a free one]")
]


def credentials_for(token: str | None = None) -> Credentials:
    """Return the credentials of a web UI. The token comes from the option or the environment, or is random."""
    return Credentials.create(read_token(token, "--token") or read_token(os.environ.get(TOKEN), TOKEN))


@contextmanager
def announced(address: str, link: str, credentials: Credentials, *, open_browser: bool) -> Iterator[None]:
    """Print the URL of the web UI and the login link. Open it in a browser if requested."""
    console.show(f"web UI: {address}")
    console.show(f"log in with this link, which works once: {link}")
    if credentials.generated:
        console.show(f"token, to log in again: {credentials.token}")
    if not (open_browser and console.room() is not None):
        yield
        return
    # Through a file that only this user can read, because every user can read the arguments of the browser process.
    with tempfile.TemporaryDirectory(prefix="hourglass-ui-") as folder:
        page = Path(folder) / "open.html"
        page.write_text(
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={escape(link)}">'
            f'<p><a href="{escape(link)}">Open Hourglass</a></p>'
        )
        webbrowser.open(page.as_uri())
        yield


@contextmanager
def page_socket() -> Iterator[tuple[socket.socket, Credentials] | None]:
    """Listen for the web UI beside a worker, and print its URL. Yield None if it is not installed."""
    credentials = credentials_for()
    try:
        from hourglass._tools.web.server import address_of, bound, link_of
    except ModuleNotFoundError:
        console.note("the web UI is not installed: pip install 'hourglass-temporal[ui]', or use --no-ui")
        yield None
        return
    with bound("127.0.0.1", None) as listening:
        link = link_of(listening, credentials)
        with announced(address_of(listening), link, credentials, open_browser=True):
            yield listening, credentials


def ui(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|MODULE",
            help="Code of the workflows, for typed forms and time travel.",
        ),
    ] = None,
    *,
    engine: DecodingEngine,
    host: Host = "127.0.0.1",
    port: Port = None,
    token: TokenOption = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="HOST[:PORT]", help="The web UI's public name, for example behind a proxy."
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, change nothing.")] = False,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = True,
) -> None:
    """Serve the web UI, which shows workflows in a browser.

    It shows the steps and the state of workflows, and why they wait; with their code, also any earlier step.

    \b
    Examples:
      hourglass ui
      hourglass ui app.py --target local:orders.db
      hourglass ui --target localhost:7233 --read-only
    """
    try:
        from hourglass._tools.web.server import bound, link_of, served
        from hourglass._tools.web.site import Site
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "jinja2", "anyio"):
            raise
        raise UsageError("the web UI needs more packages: pip install 'hourglass-temporal[ui]'") from None
    from hourglass._tools.cli.loading import load
    from hourglass._tools.timeline.watching import decoder
    from hourglass._worker.targets import resolve

    credentials = credentials_for(token)
    modules = load(sources).modules if sources else ()
    chosen = engine.payload_codec()
    wait_for_sigterm = connecting.sigterm()
    with engine.connect() as client:
        site = Site(
            client,
            target=str(resolve(engine.target, namespace=engine.namespace)),
            modules=modules,
            read_only=read_only,
            decode=None if chosen is None else decoder(chosen),
        )
        listening = bound(host, port)
        with (
            served(
                site, host=host, credentials=credentials, names=tuple(name or ()), listening=listening
            ) as address,
            announced(address, link_of(listening, credentials), credentials, open_browser=open_),
        ):
            wait_for_sigterm()
