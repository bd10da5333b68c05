"""`hourglass ui`: every workflow in a browser."""

from __future__ import annotations

import os
import socket
import webbrowser
from typing import Annotated, TypeAlias

import typer

from hourglass._cli import connecting, console
from hourglass._cli.connecting import Codec, Host, Namespace, Target
from hourglass.errors import UsageError

TOKEN = "HOURGLASS_UI_TOKEN"

Port: TypeAlias = Annotated[
    int | None, typer.Option(min=1, max=65535, metavar="N", help="[default: 8300, or a free one]")
]


def page_socket() -> socket.socket | None:
    """A socket for the page beside a worker, whose address is told, and opened on a terminal; None where it cannot be served."""
    try:
        from hourglass._ui.server import address_of, bound
    except ModuleNotFoundError:
        console.note("without the page: pip install 'hourglass-temporal[ui]', or say --no-ui")
        return None
    listening = bound("127.0.0.1", None)
    console.show(f"the page is at {address_of(listening)}")
    if console.room() is not None:
        webbrowser.open(address_of(listening))
    return listening


def ui(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|MODULE",
            help="Code of the workflows: for forms that know their types, and to walk back in time.",
        ),
    ] = None,
    target: Target = None,
    namespace: Namespace = None,
    codec: Codec = None,
    host: Host = "127.0.0.1",
    port: Port = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help=f"What readers must know.  [default: ${TOKEN}]", show_default=False
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST[:PORT]", help="Another name of the page, as behind a proxy."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, change nothing.")] = False,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = True,
) -> None:
    """Look at workflows in a browser, and act on them.

    What they do, why they wait, what they did; with their code also back in time.

    \b
    Examples:
      hourglass ui
      hourglass ui app.py --target local:orders.db
      hourglass ui --target localhost:7233 --read-only
    """
    try:
        from hourglass._ui.server import check_token, served
        from hourglass._ui.site import Site
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "jinja2", "anyio"):
            raise
        raise UsageError("the page needs more packages: pip install 'hourglass-temporal[ui]'") from None
    from hourglass._cli.loading import load
    from hourglass._runtime.targets import resolve
    from hourglass._story.watching import decoder

    secret = token or os.environ.get(TOKEN) or None
    check_token(host, secret)
    modules = load(sources).modules if sources else ()
    chosen = connecting.codec_named(codec)
    wait_for_sigterm = connecting.sigterm()
    with connecting.connected(target, namespace, codec) as client:
        site = Site(
            client,
            target=str(resolve(target, namespace=namespace)),
            modules=modules,
            read_only=read_only,
            decode=None if chosen is None else decoder(chosen),
        )
        with served(site, host=host, port=port, token=secret, names=tuple(name or ())) as address:
            console.show(f"the page is at {address}")
            if open_ and console.room() is not None:
                webbrowser.open(address)
            wait_for_sigterm()
