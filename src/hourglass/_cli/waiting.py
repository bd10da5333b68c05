"""Connecting where somebody may not be there yet: what passes is waited for, aloud."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hourglass.client import Client

logger = logging.getLogger("hourglass.worker")

_FIRST_PAUSE, _LAST_PAUSE = 0.5, 10.0


def connected(
    target: str | None,
    namespace: str | None,
    codec: str | None,
    over: threading.Event,
    *,
    retention: float | None = None,
) -> Client | None:
    """A client; None if it is over before there is one."""
    from hourglass._cli.codecs import codec_named
    from hourglass.client import Client
    from hourglass.errors import ConnectionFailedError

    chosen = codec_named(codec)
    pause = _FIRST_PAUSE
    while not over.is_set():
        try:
            return Client.connect(target, namespace=namespace, codec=chosen, retention=retention)
        except ConnectionFailedError as error:
            logger.warning("%s. It is tried again in %g s", error, pause)
        over.wait(pause)
        pause = min(2 * pause, _LAST_PAUSE)
    return None
