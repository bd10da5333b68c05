"""Programs with a client and a worker under a fault, each in a process of its own: run by `test_faults`.

`python -m tests.durability.faults NAME PATH`. Each program asserts its guarantee and prints `held` at the end; anything else
is a failure. Every wait has a condition and a limit.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hourglass import Client, Worker, activity, workflow
from hourglass.client import IdReusePolicy
from hourglass.errors import HourglassError, StorageError, WorkflowAlreadyStartedError

PATIENCE = 30.0
MIB = 1 << 20


@activity.defn
def step(number: int) -> int:
    return number + 1


@workflow.defn
class Basket:
    """Collects items until it is stopped; returns the number of bytes after a step."""

    def __init__(self) -> None:
        self.size = 0
        self.over = False

    @workflow.run
    def run(self) -> int:
        workflow.wait_condition(lambda: self.over)
        return step(self.size)

    @workflow.signal
    def put(self, thing: str) -> None:
        self.size += len(thing)

    @workflow.signal
    def stop(self) -> None:
        self.over = True


@workflow.defn
def sleeper(seconds: float) -> int:
    workflow.sleep(seconds)
    return step(1)


class CapturedLogs(logging.Handler):
    """The log records of level WARNING or higher."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        logging.getLogger("hourglass").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def has(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@contextmanager
def working(path: str) -> Iterator[Client]:
    """Run a client and a worker on a file in this process."""
    with (
        Client.connect(f"local:{path}") as client,
        Worker(client, workflows=[Basket, sleeper], activities=[step], deadlock_timeout=None),
    ):
        yield client


def eventually(attempt: Callable[[], Any], what: str) -> Any:
    """Repeat a call until it is not rejected; return its result."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return attempt()
        except HourglassError as error:
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: {error}") from error
            time.sleep(0.01)  # retried until it succeeds


def refusal(attempt: Callable[[], Any]) -> str:
    """Return the message of a rejected call; an empty string if it succeeds."""
    try:
        attempt()
    except StorageError as error:
        return f"{error.status}: {error}"
    return ""


# --- room -----------------------------------------------------------------------------------------------------


def full_disk(path: str) -> None:
    """On a full disk, new workflows are rejected first, then all requests wait; with free space the engine
    continues by itself."""
    heard = CapturedLogs()
    ballast = f"{path}.ballast"
    with working(path) as client:
        baskets = [client.start_workflow(Basket.run, id=f"basket-{number}") for number in range(5)]
        eat(ballast, leave=24 * MIB)
        message = until_refused(lambda number: client.start_workflow(Basket.run, id=f"late-{number}"))
        assert message.startswith("RESOURCE_EXHAUSTED: new workflows cannot be started: only"), message
        baskets[0].signal(Basket.put, "x")  # running workflows continue
        sent = [fill(basket, heard) for basket in baskets]
        message = refusal(lambda: client.start_workflow(Basket.run, id="too late"))
        assert "its disk has no space left" in message, message
        assert any(thread is not None for _, thread in sent), "the disk was never full"
        assert all(thread.is_alive() for _, thread in sent if thread is not None), "it was acknowledged"
        os.unlink(ballast)
        for thread in [thread for _, thread in sent if thread is not None]:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a signal still waits"
        assert heard.has("works again; nothing was lost")
        for basket in baskets:
            basket.signal(Basket.stop)
        sizes = [basket.result(timeout=PATIENCE) for basket in baskets]
        expected = [count * MIB + 1 for count, _ in sent]
        expected[0] += 1
        assert sizes == expected, (sizes, expected)
        after = eventually(lambda: client.start_workflow(Basket.run, id="after"), "room is back")
        after.signal(Basket.stop)
        assert after.result(timeout=PATIENCE) == 1


def full_disk_at_opening(path: str) -> None:
    """A file on a full disk can be read; every other request is rejected with advice."""
    ballast = f"{path}.ballast"
    with working(path) as client:
        client.start_workflow(Basket.run, id="basket")
    eat(ballast, leave=0)
    heard = CapturedLogs()
    with Client.connect(f"local:{path}") as client:
        assert [run.id for run in client.list_workflows()] == ["basket"]
        assert client.get_workflow_handle("basket").describe().status.name == "RUNNING"
        assert heard.has("has no space left on its disk: free some space")
        message = refusal(lambda: client.start_workflow(Basket.run, id="other"))
        assert message.startswith("RESOURCE_EXHAUSTED: the file"), message
        assert "has no space left on its disk: free some space" in message, message
    with Client.connect(f"local:{path}") as client:
        heard = CapturedLogs()
        worker = Worker(client, workflows=[Basket], activities=[step])
        starting = threading.Thread(target=worker.start, daemon=True)
        starting.start()
        wait_for(lambda: heard.has("has no space left on its disk: free some space"), "nobody is told")
        assert not heard.has("may be damaged"), heard.lines
        os.unlink(ballast)
        starting.join(PATIENCE)
        assert not starting.is_alive(), "it does not begin when there is room"
        basket = client.get_workflow_handle("basket")
        basket.signal(Basket.stop)
        assert basket.result(timeout=PATIENCE) == 1
        worker.shutdown()


def eat(ballast: str, leave: int) -> None:
    """Fill the disk except for this many bytes."""
    space = os.statvfs(os.path.dirname(ballast))
    with open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - leave)


def until_refused(attempt: Callable[[int], Any]) -> str:
    """Start workflows until one is rejected: free space is checked once a second."""
    deadline, number = time.monotonic() + PATIENCE, 0
    while time.monotonic() < deadline:
        number += 1
        message = refusal(lambda: attempt(number))
        if message:
            return message
        time.sleep(0.01)
    raise AssertionError("nothing was refused")


def fill(basket: Any, heard: CapturedLogs) -> tuple[int, threading.Thread | None]:
    """Signal until a call waits; return the number of signals and the waiting call."""
    for count in range(1, 7):  # more would make the history too large
        thread = threading.Thread(target=basket.signal, args=(Basket.put, "x" * MIB), daemon=True)
        thread.start()
        deadline = time.monotonic() + PATIENCE
        while thread.is_alive() and not heard.has("its disk has no space left"):
            assert time.monotonic() < deadline
            thread.join(0.01)
        if thread.is_alive():
            return count, thread
    return 6, None


# --- files that are taken away --------------------------------------------------------------------------------


def file_moved(path: str) -> None:
    """A worker whose file is moved away stops; once the file is back, a new process has everything acknowledged."""
    moved = f"{path}.moved"
    _move_away_and_back(path, lambda: os.rename(path, moved), lambda: os.rename(moved, path))


def folder_moved(path: str) -> None:
    """A worker whose folder is moved away stops; once it is back, a new process has everything acknowledged."""
    folder = os.path.dirname(path)
    moved = f"{folder}.moved"
    _move_away_and_back(path, lambda: os.rename(folder, moved), lambda: os.rename(moved, folder))


def _move_away_and_back(path: str, take: Callable[[], None], put_back: Callable[[], None]) -> None:
    with working(path) as client:
        basket = client.start_workflow(Basket.run, id="basket")
        basket.signal(Basket.put, "before")
        take()
        message = until_refused(lambda _: basket.signal(Basket.put, "", rpc_timeout=1.0))
        assert "while it was in use" in message or "is gone" in message, message
        assert path in message
        put_back()
        assert refusal(lambda: basket.signal(Basket.put, "late", rpc_timeout=1.0))
    subprocess.run([sys.executable, "-m", "tests.durability.faults", "check_basket", path], check=True)


def check_basket(path: str) -> None:
    """Check that the basket has everything acknowledged before the move, and can complete."""
    with working(path) as client:
        basket = client.get_workflow_handle("basket", workflow=Basket)
        basket.signal(Basket.put, "after")
        basket.signal(Basket.stop)
        assert basket.result(timeout=PATIENCE) == len("beforeafter") + 1


def file_deleted(path: str) -> None:
    """A deleted file is reported repeatedly, and no empty file replaces it without a request."""
    with working(path) as client:
        client.start_workflow(Basket.run, id="basket")
        os.unlink(path)
        message = until_refused(
            lambda number: client.start_workflow(Basket.run, id=f"next-{number}", rpc_timeout=1.0)
        )
        assert path in message
        for _ in range(3):
            again = refusal(lambda: client.start_workflow(Basket.run, id="once more", rpc_timeout=5.0))
            assert "is missing, but its write-ahead log" in again or "was deleted" in again, again
        assert not os.path.exists(path)


# --- files that are wrong from the beginning ------------------------------------------------------------------


def unusable_file_rejected(path: str) -> None:
    """An unusable file is rejected for clients and workers with the same message, and stays unchanged."""
    before = _bytes(path)
    with Client.connect(f"local:{path}") as client:
        message = refusal(lambda: client.start_workflow(Basket.run, id="basket"))
        assert message, "a client may use it"
        worker = Worker(client, workflows=[Basket], activities=[step])
        refused = refusal(lambda: worker.start())
        assert refused, "a worker may use it"
        assert path in message
        assert path in refused
    assert _bytes(path) == before
    print(message)


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:  # no process has it open
        return file.read()


def invalid_file_replaced(path: str) -> None:
    """A worker that started on an invalid file continues by itself when a valid one replaces it."""
    good = f"{path}.good"
    with working(path) as client:
        client.start_workflow(Basket.run, id="basket")
    os.rename(path, good)
    with open(path, "wb") as file:
        file.write(b"not a database" * 100)
    with Client.connect(f"local:{path}") as client:
        handle = client.get_workflow_handle("basket")
        assert "is not a database" in refusal(lambda: handle.signal(Basket.stop))
        os.replace(good, path)
        handle.signal(Basket.stop)
        with Worker(client, workflows=[Basket], activities=[step]):
            assert handle.result(timeout=PATIENCE) == 1


# --- time -----------------------------------------------------------------------------------------------------

_shift_ns = 0


def shift_clock() -> None:
    """Make the wall clock of this process adjustable; call it before Hourglass reads the clock."""
    from hourglass._embedded import clock

    real = time.time_ns
    clock.RealClock.__init__.__defaults__ = (lambda: real() + _shift_ns, time.monotonic_ns)  # type: ignore[misc]


def set_clock(hours: float) -> None:
    global _shift_ns
    _shift_ns = int(hours * 3600e9)


def clock_forward(path: str) -> None:
    """When the wall clock jumps an hour ahead, due timers fire soon and in order; later ones still wait."""
    shift_clock()
    with working(path) as client:
        within = client.start_workflow(sleeper, 1800.0, id="within")
        beyond = client.start_workflow(sleeper, 5 * 3600.0, id="beyond")
        asleep(within, beyond)
        set_clock(1)
        assert within.result(timeout=PATIENCE) == 2
        assert beyond.describe().status.name == "RUNNING"
        in_order(within.history().events)
        assert client.execute_workflow(sleeper, 0.01, id="after") == 2
        set_clock(0)  # and back
        assert client.execute_workflow(sleeper, 0.01, id="later") == 2
        beyond.terminate("enough")


def clock_back(path: str) -> None:
    """When the wall clock jumps an hour back, even over a restart, no timer waits an hour longer."""
    shift_clock()
    with working(path) as client:
        asleep(run := client.start_workflow(sleeper, 0.5, id="one"))
        set_clock(-1)
        assert run.result(timeout=PATIENCE) == 2
        in_order(run.history().events)
        asleep(two := client.start_workflow(sleeper, 1.0, id="two"))
        left = two.run_id
    with working(path) as client:
        two = client.get_workflow_handle("two", run_id=left)
        assert two.result(timeout=PATIENCE) == 2
        in_order(two.history().events)


def clock_briefly_ahead(path: str) -> None:
    """When the wall clock is ahead for a moment, by hours or a month, there is no lasting effect and nothing is
    deleted."""
    shift_clock()
    heard = CapturedLogs()
    with working(path) as client:
        paid = client.start_workflow(sleeper, 0.01, id="paid")
        assert paid.result(timeout=PATIENCE) == 2
        asleep(later := client.start_workflow(sleeper, 8 * 3600.0, id="later"))
        set_clock(5)
        wait_for(lambda: heard.has("jumped forward by 5:00:00"), "the jump is not logged")
        asleep(client.start_workflow(sleeper, 3.0, id="within"))
        set_clock(0)
        wait_for(lambda: heard.has("jumped back by 5:00:00"), "the way back is not logged")
        assert later.describe().status.name == "RUNNING"
        within = client.get_workflow_handle("within")
        assert within.result(timeout=PATIENCE) == 2
        in_order(within.history().events)
        set_clock(31 * 24)
        wait_for(lambda: heard.has("jumped forward by 31 days"), "the jump is not logged")
    with working(path) as client:  # a restart does not change it
        assert_start_is_rejected(client, "paid")
        set_clock(0)
        wait_for(lambda: heard.has("jumped back by 31 days"), "the way back is not logged")
        assert_start_is_rejected(client, "paid")
        new = client.start_workflow(sleeper, 0.01, id="new")
        assert new.result(timeout=PATIENCE) == 2
        assert abs(new.describe().start_time.timestamp() - time.time()) < 60
    with working(path) as client:
        assert (
            abs(
                client.start_workflow(sleeper, 0.0, id="newer").describe().start_time.timestamp()
                - time.time()
            )
            < 60
        )


def assert_start_is_rejected(client: Client, name: str) -> None:
    try:
        client.start_workflow(sleeper, 0.01, id=name, id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE)
    except WorkflowAlreadyStartedError:
        return
    raise AssertionError(f"{name} was started again")


def wait_for(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def asleep(*handles: Any) -> None:
    """Wait until each run has started its timer; a short one may already have fired."""
    deadline = time.monotonic() + PATIENCE
    for handle in handles:
        while "EVENT_TYPE_TIMER_STARTED" not in [event["eventType"] for event in handle.history().events]:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def in_order(events: list[dict[str, Any]]) -> None:
    times = [event["eventTime"] for event in events]
    assert times == sorted(times), times


# --- the end of the log ---------------------------------------------------------------------------------------


def start_orders_until_killed(path: str) -> None:
    """Start orders until killed; print each acknowledged one."""
    with working(path) as client:
        for number in range(10_000):
            client.start_workflow(Basket.run, id=f"basket-{number}").signal(Basket.put, "x" * 100)
            print(number, flush=True)


def torn_log_of_dead_worker(path: str) -> None:
    """However the end of a dead worker's log is torn, everything before it exists and completes."""
    command = [sys.executable, "-m", "tests.durability.faults", "start_orders_until_killed", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(30):
            process.stdout.readline()
        process.kill()
    log = _bytes(f"{path}-wal")
    order_ids = []
    for place, keep in enumerate((1.0, 0.9, 0.5, 0.2)):
        copy = f"{path}.{place}"
        shutil.copy(path, copy)
        with open(f"{copy}-wal", "wb") as file:
            file.write(log[: int(len(log) * keep)] + (b"\xee" * 777 if place % 2 else b""))
        order_ids.append(_finish_all(copy))
    assert order_ids == sorted(order_ids, reverse=True), order_ids
    assert order_ids[0] >= 30, order_ids
    assert order_ids[0] > order_ids[-1], order_ids


def _finish_all(path: str) -> int:
    with working(path) as client:
        ids = [run.id for run in client.list_workflows()]
        for name in ids:
            client.get_workflow_handle(name).signal(Basket.stop)
        results = [client.get_workflow_handle(name).result(timeout=PATIENCE) for name in ids]
        assert all(result in (1, 101) for result in results), results
        assert sum(result == 1 for result in results) <= 1, "only the last one's signal may be cut off"
    return len(ids)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
    print("held", flush=True)
