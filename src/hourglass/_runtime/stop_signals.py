"""Ctrl-C and SIGTERM as a polite request to stop, while a worker runs on the main thread. Elsewhere it does nothing."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

logger = logging.getLogger("hourglass.worker")


class StopSignals:
    """While a worker runs on the main thread: SIGINT and SIGTERM end it politely, a second one as usual."""

    def __init__(self, over: threading.Event) -> None:
        self._over = over
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._stop)

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _stop(self, number: int, _: object) -> None:
        logger.info("%s: shutting down", signal.Signals(number).name)
        self._restore()
        self._over.set()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
