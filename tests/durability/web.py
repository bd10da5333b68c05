"""Web processes forked after preload, and two workers: the owner is killed repeatedly."""

from __future__ import annotations

import http.client
import importlib.util
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hourglass import Client
from hourglass._embedded.multiprocess.ownership import FileLock

from . import work
from .fork_server import ROOT, ForkServer

PROCESSES = 4
PATIENCE = 60.0


@dataclass
class RequestResults:
    """The results of the requests."""

    served_by: set[str] = field(default_factory=set)
    calls: list[tuple[float, float]] = field(default_factory=list)
    """When each began and ended."""
    takeovers: list[float] = field(default_factory=list)
    """Seconds from a kill to the first answer to a request that was made after it."""
    errors: list[str] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    """From start to result, as the web processes saw it."""


def gunicorn_is_here() -> bool:
    """Return whether gunicorn is installed."""
    return importlib.util.find_spec("gunicorn") is not None


@contextmanager
def web_server(path: Path, log: Path, *, gunicorn: bool) -> Iterator[int]:
    """Run a web server with four forked processes; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening, log.open("ab") as errors:
        descriptor = listening.fileno()
        if gunicorn:
            how = [
                "gunicorn",
                "--preload",
                "-w",
                str(PROCESSES),
                "-b",
                f"fd://{descriptor}",
                "--no-control-socket",
            ]
            command = [sys.executable, "-m", *how, "tests.durability.web_app:app"]
        else:
            command = [sys.executable, "-m", "tests.durability.web_app", str(descriptor), str(PROCESSES)]
        environment = {**os.environ, work.FILE: str(path)}
        process = subprocess.Popen(
            command, pass_fds=[descriptor], cwd=ROOT, env=environment, stdout=errors, stderr=errors
        )
        try:
            yield listening.getsockname()[1]
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ask_while_owners_die(
    folder: Path, *, kills: int, threads: int = 4, seed: int = 1, life: float = 0.5, gunicorn: bool = False
) -> RequestResults:
    """Send requests from several threads until this many owners were killed."""
    path, results, over = folder / "orders.db", RequestResults(), threading.Event()
    chance = random.Random(f"web {seed}")
    numbers = iter(range(1_000_000))
    with (
        ForkServer(path, folder / "notes", folder / "log") as fork_server,
        web_server(path, folder / "log", gunicorn=gunicorn) as port,
    ):
        fork_server.fork()

        def keep_asking() -> None:
            while not over.is_set():
                try:
                    _ask(port, next(numbers), results)
                except Exception as error:
                    results.errors.append(f"{type(error).__name__}: {error}")

        askers = [threading.Thread(target=keep_asking, daemon=True) for _ in range(threads)]
        for asker in askers:
            asker.start()
        _until(lambda: len(results.calls) > 20 or results.errors != [])
        for _ in range(kills):
            _kill_owner(fork_server, path, chance.expovariate(1 / life), results)
        over.set()
        for asker in askers:
            asker.join(PATIENCE)
        if any(asker.is_alive() for asker in askers):
            results.errors.append("a request was never answered")
    _check_all_done(path, results)
    return results


def _ask(port: int, number: int, results: RequestResults) -> None:
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", f"/{number}")
        answer = connection.getresponse()
        body = answer.read().decode()
    finally:
        connection.close()
    results.calls.append((began, time.monotonic()))
    if answer.status != 200 or body.split()[0] != str(number + 1):
        results.errors.append(f"request {number}: {answer.status} {body[:500]}")
    else:
        results.served_by.add(body.split()[1])
        results.milliseconds.append(float(body.split()[2]) * 1e3)


def _kill_owner(fork_server: ForkServer, path: Path, after: float, results: RequestResults) -> None:
    """Kill the owner once there is another worker; wait for the next answer."""
    fork_server.fork()
    _until(lambda: FileLock(str(path)).note().pid in fork_server.alive)
    time.sleep(0.2 + after)  # at a random instant
    killed = time.monotonic()
    fork_server.kill(FileLock(str(path)).note().pid)
    _until(lambda: any(began >= killed for began, _ in results.calls[-50:]) or results.errors != [])
    answered = [ended for began, ended in results.calls if began >= killed]
    if answered:
        results.takeovers.append(min(answered) - killed)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it never came to that")
        time.sleep(0.001)


def _check_all_done(path: Path, results: RequestResults) -> None:
    with Client.connect(f"local:{path}") as client:
        done = client.count_workflows("ExecutionStatus = 'Completed'")
        everything = client.count_workflows()
    if not len(results.calls) == done == everything:
        results.errors.append(
            f"{len(results.calls)} requests, {everything} workflows, {done} of them completed"
        )
