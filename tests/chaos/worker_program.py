"""A worker as a program of its own, to be killed: `python -m tests.chaos.worker_program TARGET QUEUE`."""

from __future__ import annotations

import logging
import sys
import threading

from hourglass import Client, Worker

from . import work


def main(target: str, queue: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    with Client.connect(target) as client:
        worker = Worker(
            client, queue, workflows=work.WORKFLOWS, activities=work.ACTIVITIES, deadlock_timeout=None
        )
        threading.Thread(target=_tell, args=(worker,), daemon=True).start()
        worker.run()
    print("ended", flush=True)


def _tell(worker: Worker) -> None:
    while worker.statistics().state != "running":
        threading.Event().wait(0.01)
    print("ready", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
