"""The watcher reports nondeterministic calls of workflow code."""

from __future__ import annotations

import asyncio
import datetime
import gc
import io
import json
import logging
import os
import queue
import random
import re
import secrets
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import FunctionType
from zoneinfo import ZoneInfo

import pytest

import hourglass
from hourglass import activity, workflow
from hourglass._evaluator.commands import Succeeded, TaskFailed
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.evaluator import Evaluator
from hourglass._evaluator.events import TimerFired
from hourglass._worker.lanes.evaluation import Evaluations, LaneContext
from hourglass._worker.lanes.watcher import Watcher
from hourglass.errors import DeterminismError

from ..scripted import on, start

lock = threading.Lock()
rlock = threading.RLock()
condition = threading.Condition()
box: queue.Queue[int] = queue.Queue()
box.put(1)


def _with_lock() -> None:
    with lock:
        pass


def _with_condition() -> None:
    with condition:
        pass


def _connect() -> None:
    with socket.socket() as connection:
        connection.connect_ex(("127.0.0.1", 1))


def _reads_clock() -> None:
    time.time()


def _start_thread() -> None:
    thread = threading.Thread(target=int)
    thread.start()


FORBIDDEN_CALLS = {
    "time.time": (lambda: time.time(), "clock"),
    "time.time_ns": (lambda: time.time_ns(), "clock"),
    "time.monotonic": (lambda: time.monotonic(), "clock"),
    "time.perf_counter": (lambda: time.perf_counter(), "clock"),
    "datetime.now": (lambda: datetime.datetime.now(), "clock"),
    "datetime.now(utc)": (lambda: datetime.datetime.now(datetime.UTC), "clock"),
    "datetime.today": (lambda: datetime.datetime.today(), "clock"),
    "date.today": (lambda: datetime.date.today(), "clock"),
    "time.sleep": (lambda: time.sleep(0), "sleeps"),
    "random.random": (lambda: random.random(), "randomness"),
    "random.randint": (lambda: random.randint(1, 6), "randomness"),
    "random.choice": (lambda: random.choice([1, 2]), "randomness"),
    "random.shuffle": (lambda: random.shuffle([1, 2, 3]), "randomness"),
    "SystemRandom": (lambda: random.SystemRandom().random(), "randomness"),
    "Random()": (lambda: random.Random(), "randomness"),
    "uuid1": (lambda: uuid.uuid1(), "randomness|clock"),
    "uuid4": (lambda: uuid.uuid4(), "randomness"),
    "secrets.token_hex": (lambda: secrets.token_hex(), "randomness"),
    "os.urandom": (lambda: os.urandom(4), "randomness"),
    "open": (lambda: open(os.devnull).close(), "I/O"),
    "Path.read_text": (lambda: Path(os.devnull).read_text(), "I/O"),
    "os.path.exists": (lambda: os.path.exists("/"), "I/O"),
    "os.listdir": (lambda: os.listdir("/"), "I/O"),
    "tempfile": (lambda: tempfile.TemporaryFile().close(), "I/O|randomness"),
    "socket": (_connect, "I/O"),
    "subprocess": (lambda: subprocess.run(["true"], check=True), "I/O|lock"),
    "thread": (_start_thread, "thread|lock"),
    "lock.acquire": (lambda: (lock.acquire(), lock.release()), "lock"),
    "with lock": (_with_lock, "lock"),
    "rlock.acquire": (lambda: (rlock.acquire(), rlock.release()), "lock"),
    "with condition": (_with_condition, "lock"),
    "queue.get": (lambda: box.get(), "lock"),
}


def watched(fn, action="error"):
    """Run a function as a workflow under a watcher and return the watcher's report."""
    watcher = Watcher(action)
    run = Evaluator(workflow.defn(name="watched")(fn).__hourglass_workflow__, "r", RunSettings())
    watcher.enter()
    try:
        run.activate(start("r", "watched"))
    finally:
        report = watcher.exit()
        run.drop()
    assert run.error is None, run.error
    return report


@pytest.mark.parametrize("name", FORBIDDEN_CALLS)
def test_watcher_reports_each_kind_of_forbidden_call_with_its_line(name):
    offence, kind = FORBIDDEN_CALLS[name]
    code = offence.__code__

    def body() -> None:
        offence()

    report = watched(body)
    assert isinstance(report, DeterminismError)
    assert re.search(kind, str(report))
    lines = {int(line) for line in re.findall(re.escape(__file__) + r":(\d+)", str(report))}
    own = {line for _, _, line in code.co_lines() if line}
    assert lines
    assert lines <= own


def _plain_body() -> str:
    @dataclass
    class Item:
        price: Decimal

    items = [Item(Decimal(n)) for n in range(3)]
    text = json.dumps({"n": [str(item.price) for item in items]})
    moment = workflow.now().astimezone(ZoneInfo("Europe/Paris"))
    number = workflow.random().randint(1, 6)
    random.Random(7).random()
    workflow.random().shuffle([1, 2, 3])
    str(workflow.uuid4())
    workflow.time()
    datetime.datetime(2020, 1, 1).isoformat()
    datetime.datetime.fromtimestamp(0, datetime.UTC)
    re.sub("a", "b", text)
    import colorsys  # noqa: F401 - a lazy import is not reported as I/O

    logging.getLogger("some").warning("hello %s", number)
    io.StringIO("x").read()
    sorted(items, key=lambda item: item.price)
    workflow.logger.warning("hello")
    return f"{moment}{number}"


def test_watcher_ignores_locks_of_packages_and_asyncio():
    package = sysconfig.get_path("purelib") + "/theirs/package.py"
    theirs = {"lock": lock, "time": time}
    exec(compile("def guard():\n with lock: pass\ndef read():\n time.time()\n", package, "exec"), theirs)

    def guards() -> None:
        theirs["guard"]()

    def reads() -> None:
        theirs["read"]()

    async def waits() -> None:
        event = asyncio.Event()
        asyncio.get_running_loop().call_soon(event.set)
        await event.wait()

    assert watched(guards) is None
    assert watched(waits) is None
    assert "clock" in str(watched(reads))


def test_watcher_does_not_report_deterministic_code():
    sys.modules.pop("colorsys", None)
    ZoneInfo.clear_cache()
    assert watched(_plain_body) is None


def test_watcher_ignores_calls_of_hourglass_itself():
    home = Path(hourglass.__file__).parent
    ours = FunctionType(_reads_clock.__code__.replace(co_filename=str(home / "some.py")), globals())

    def body() -> None:
        ours()

    assert watched(body) is None
    assert watched(lambda: _reads_clock()) is not None


def test_watcher_allows_calls_in_unsafe_blocks():
    def body() -> None:
        with workflow.unsafe():
            time.time()

    def careless() -> None:
        with workflow.unsafe():
            time.time()
        time.time()

    assert watched(body) is None
    assert str(watched(careless)).count("reads a clock") == 1


def test_watcher_reports_each_line_once_with_advice():
    def body() -> None:
        for _ in range(5):
            time.time()

    report = str(watched(body))
    assert report.count("time.time()") == 1
    assert "workflow.now()" in report


def test_watcher_logs_each_line_once_with_warn(caplog):
    def body() -> None:
        for _ in range(5):
            time.time()

    with caplog.at_level(logging.WARNING):
        assert watched(body, "warn") is None
    (record,) = caplog.records
    assert "reads a clock" in record.getMessage()
    assert f"{__file__}:" in record.getMessage()


def test_watcher_installs_no_profile_function_outside_activations():
    watcher = Watcher("error")
    before = sys.getprofile()
    watcher.enter()
    time.time()
    assert watcher.exit() is None
    assert sys.getprofile() is before


@activity.defn
def nothing() -> None: ...


@workflow.defn
def offends_late() -> None:
    workflow.sleep(1)
    time.time()


def test_watcher_fails_a_task_that_offends_after_a_wait():
    definition = offends_late.__hourglass_workflow__
    lane = Evaluations(
        LaneContext(lambda _: definition, RunSettings(task_queue="q"), watcher=Watcher("error"))
    )
    assert isinstance(lane.evaluate(start("r", "offends_late")).completion, Succeeded)
    completion = lane.evaluate(on("r", TimerFired(1))).completion
    assert isinstance(completion, TaskFailed)
    line = definition.run.__code__.co_firstlineno + 3
    assert f"{__file__}:{line}" in completion.failure.message
    lane.close()


def test_watcher_ignores_garbage_collector_callbacks():
    def measure(phase: str, _: dict[str, int]) -> None:
        time.perf_counter()

    def body() -> None:
        gc.collect()

    gc.callbacks.append(measure)
    try:
        assert watched(body) is None
    finally:
        gc.callbacks.remove(measure)


def test_watcher_ignores_clocks_read_by_log_handlers():
    class Stamping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            self.at = time.monotonic()

    def body() -> None:
        workflow.logger.warning("stamped")

    logger, handler = logging.getLogger("hourglass.workflow"), Stamping()
    logger.addHandler(handler)
    try:
        assert watched(body) is None
        assert handler.at > 0
    finally:
        logger.removeHandler(handler)
