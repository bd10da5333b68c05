"""The machine and the process on which a run happens to be."""

from __future__ import annotations

import logging
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from hourglass import workflow

from .acts import charge, note

# Bug `environment`: a switch in the environment of the process, which is another one after a deploy.


@workflow.defn
def environment() -> str:
    if os.environ.get("CATALOGUE") == "first":  # caught: check HG105
        note("strict")
    return charge(100)  # caught: replay


# Bug `log_level`: a step that is only done where the log is verbose.

logger = logging.getLogger("determinism.catalogue")


@workflow.defn
def log_level() -> str:
    if logger.isEnabledFor(logging.DEBUG):  # caught: check HG114
        logger.debug("state: %s", note("the state, for the log"))
    return charge(100)  # caught: replay


# Bug `network`: a request from workflow code: it is sent again by every execution, and the answer is
# another one.


@workflow.defn
def network(folder: str) -> str:
    line = socket.socket(socket.AF_UNIX)  # caught: check HG107
    line.connect(f"{folder}/server")  # caught: check HG107, watch
    answer = line.recv(100).decode()  # caught: check HG107, watch
    line.close()  # caught: check HG107
    return note(answer)  # caught: replay


# Bug `own_thread`: a thread of its own: what it has done when the workflow looks is anybody's guess.


@workflow.defn
def own_thread() -> str:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append("something"))  # caught: check HG108
    thread.start()  # caught: check HG108, watch
    thread.join()  # caught: check HG108, watch
    return note(",".join(found))


# Bug `reads_file`: a price list on the disk of whatever machine the run is on.


@workflow.defn
def reads_file(folder: str) -> str:
    prices = Path(folder) / "prices.txt"
    cents = int(prices.read_text())  # caught: check HG106, watch
    return charge(cents)  # caught: replay


# Bug `replay_branch`: a step that is to happen "only once", and so never fits its own history.


@workflow.defn
def replay_branch() -> str:
    if not workflow.is_replaying():  # caught: check HG114
        note("only once")
    return charge(100)  # caught: replay


# Bug `thread_pool`: a pool of threads that close over a local: they finish in the order that the operating
# system likes.


@workflow.defn
def thread_pool(names: list[str]) -> list[str]:
    prefix = "order"

    def named(name: str) -> str:
        return f"{prefix}-{name}"

    with ThreadPoolExecutor(2) as pool:  # caught: check HG108, watch
        futures = [pool.submit(named, name) for name in names]  # caught: check HG108, watch
        done = [future.result() for future in as_completed(futures)]  # caught: check HG108, watch
    return [note(each) for each in sorted(done)]


ARGUMENTS = {
    "network": ("{folder}",),
    "reads_file": ("{folder}",),
    "thread_pool": (["a", "b"],),
}
