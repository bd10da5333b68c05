"""The process that works under `hourglass dev`: loads the code, checks the open runs against it, then takes work.

It ends when its parent hangs up. What only a change can mend is said, and the exit code tells the parent to wait for one.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hourglass._cli import console
from hourglass._cli.reloading import STOP, TARGET, WAITS

if TYPE_CHECKING:
    from hourglass._cli.loading import Loaded
    from hourglass.client import Client

logger = logging.getLogger("hourglass.dev")

_DRAIN = 2.0
_ASKED_WRONGLY = 2
_MOST_SAID = 10


@dataclass(frozen=True, kw_only=True)
class DevOptions:
    """What was asked for on the command line."""

    sources: tuple[str, ...]
    target: str | None
    namespace: str | None
    codec: str | None
    task_queues: tuple[str, ...]
    strict: bool
    check: int


class Life:
    """This process, as its parent made it. `target` is where to work, if the command line does not say it."""

    def __init__(self, pipe: int, target: str) -> None:
        self.target = target
        self.over = threading.Event()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, too, and tells us
        signal.signal(signal.SIGTERM, lambda *_: self.over.set())
        threading.Thread(target=self._listen, args=(pipe,), name="hourglass-dev", daemon=True).start()

    def _listen(self, pipe: int) -> None:
        while os.read(pipe, 1):
            pass
        self.over.set()


def enter(environment: MutableMapping[str, str]) -> Life | None:
    """The life of the process that works; None in its parent."""
    pipe = environment.pop(STOP, "")
    target = environment.pop(TARGET, "")
    return Life(int(pipe), target) if pipe else None


def serve(options: DevOptions, life: Life) -> int:
    """Work until the parent hangs up; returns the exit code."""
    from hourglass._cli.dev_log import AuthorsLines
    from hourglass._cli.loading import LoadError, load
    from hourglass._cli.waiting import connected
    from hourglass.errors import HourglassError

    for handler in logging.getLogger().handlers:
        handler.addFilter(AuthorsLines())
    try:
        loaded = load(options.sources)
    except LoadError as error:
        console.error(str(error))
        return WAITS
    try:
        client = connected(options.target, options.namespace, options.codec, life.over)
        if client is None:
            return 0
        with client:
            return _serve(options, client, loaded, life)
    except HourglassError as error:
        console.error(str(error))
        return _ASKED_WRONGLY


def _serve(options: DevOptions, client: Client, loaded: Loaded, life: Life) -> int:
    from hourglass.worker import Worker

    if client.target == "local:":
        logger.warning("an engine in memory forgets everything at each reload: give --target local:FILE")
    if not _fits(options, client, loaded, life) and options.strict:
        logger.error("no work is taken, because --strict was given")
        return WAITS
    if life.over.is_set():
        return 0
    worker = Worker(
        client,
        options.task_queues[0],
        modules=loaded.modules,
        verify="always",
        watch="warn",
        graceful_shutdown_timeout=_DRAIN,
    )
    with worker:
        for queue in options.task_queues[1:]:
            worker.start_worker(queue)
        logger.info(
            "taking work on %s: %s", client.target, ", ".join((*loaded.workflows, *loaded.activities))
        )
        while not life.over.wait(1.0):  # bounded, so that signals are handled on every platform
            pass
    return 0


def _fits(options: DevOptions, client: Client, loaded: Loaded, life: Life) -> bool:
    from hourglass._cli.open_runs import check_open_runs

    if not options.check:
        return True
    checked = check_open_runs(client, loaded, options.task_queues, options.check, life.over)
    for each in checked.broken[:_MOST_SAID]:
        told = each.reason.replace("\n", "\n    ")
        logger.error("this code would break %s (%s):\n    %s", each.id, each.workflow_type, told)
    if checked.broken:
        logger.error(
            "%d of %d open runs would break; mend the code, or put the change behind workflow.patched(…)",
            len(checked.broken),
            checked.tried,
        )
    elif checked.tried:
        logger.info(
            "%s this code", "1 open run fits" if checked.tried == 1 else f"{checked.tried} open runs fit"
        )
    return not checked.broken
