"""Records and replays the catalogue in processes of their own: `record FOLDER` and `replay FOLDER`.

Most of these bugs are invisible within one process: hash seeds, clocks, module globals and the environment differ in the
next. The verdicts are written as JSON.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hourglass import History, Replayer
from hourglass.errors import NondeterminismError
from hourglass.testing import Environment

from .nets import Bug, caught_by


def record(bug: Bug, folder: Path) -> None:
    """Run the bug's workflow, before its change if it is one, and write the history."""
    workflow = getattr(bug.module, f"{bug.name}_before", bug.workflow)
    with Environment(verify="off", watch="off") as environment:
        for _ in range(bug.option("EARLIER_RUNS", 0) + 1):
            handle = environment.start_workflow(workflow, *bug.arguments(folder))
            handle.result()
        handle.history().to_file(folder / f"{bug.name}.json")


def replay(bug: Bug, folder: Path) -> dict[str, Any]:
    """Return the replayer's verdict on the history and the present code."""
    history = History.from_file(folder / f"{bug.name}.json")
    with Replayer(workflows=[bug.workflow]) as replayer:
        try:
            replayer.replay(history)
        except NondeterminismError as error:
            return {"caught": True, "file": error.file, "line": error.line, "told": str(error)}
    return {"caught": False}


@contextmanager
def server(folder: Path, answer: str) -> Iterator[None]:
    """Run an HTTP server whose answer differs with each start."""
    path = folder / "server"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            while True:
                try:
                    line, _ = listening.accept()
                except OSError:
                    return  # it was shut down
                with line:
                    line.sendall(answer.encode())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def main(what: str, folder: Path) -> None:
    """Prepare and run one of the two commands."""
    (folder / "prices.txt").write_text("100" if what == "record" else "120")
    inbox = folder / "inbox"
    inbox.mkdir(exist_ok=True)
    (inbox / ("a.txt" if what == "record" else "b.txt")).touch()
    if what == "record":
        logging.getLogger("determinism.catalogue").setLevel(logging.DEBUG)
    with server(folder, what):
        if what == "record":
            for bug in caught_by("replay"):
                record(bug, folder)
        else:
            verdicts = {bug.name: replay(bug, folder) for bug in caught_by("replay")}
            (folder / "verdicts.json").write_text(json.dumps(verdicts))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
