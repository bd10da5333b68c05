"""Process activities. Tests learn of their progress through files."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from hourglass import activity
from hourglass.errors import ApplicationError, Cancelled


@dataclass
class Order:
    id: str
    cents: int


@activity.defn(executor="process")
def pid() -> int:
    return os.getpid()


@activity.defn(executor="process")
def price(order: Order) -> Order:
    return Order(order.id, order.cents * 2)


@activity.defn(executor="process")
def facts() -> list[object]:
    info = activity.info()
    return [info.activity_id, info.activity_type, info.attempt, info.workflow_id, activity.in_activity()]


@activity.defn(executor="process")
def beats() -> object:
    before = activity.heartbeat_details(str)
    activity.heartbeat("cursor", 2)
    return before


@activity.defn(executor="process")
def until_cancelled(sign: str) -> str:
    Path(sign).write_text("begun")
    try:
        while True:
            activity.heartbeat("step")
            threading.Event().wait(0.01)
    except Cancelled:
        activity.heartbeat("cleaned up")
        raise


@activity.defn(executor="process")
def waits(sign: str) -> bool:
    Path(sign).write_text("begun")
    return activity.wait_cancelled()


@activity.defn(executor="process")
def ignores_cancellation(sign: str) -> None:
    Path(sign).write_text(str(os.getpid()))
    threading.Event().wait()


@activity.defn(executor="process")
def ends(how: str) -> str:
    match how:
        case "exit 3":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            ctypes.string_at(0)
        case "sys.exit":
            sys.exit(4)
        case "interrupt":
            raise KeyboardInterrupt
        case "generator":
            raise GeneratorExit
        case "recursion":
            return ends.fn(how)
        case "memory":
            raise MemoryError("no more")
        case "application":
            raise ApplicationError("declined", "detail", type="Bank", non_retryable=True)
        case "object":
            return object()  # type: ignore[return-value]
        case "large":
            return "x" * (3 * 1024 * 1024)
        case "large failure":
            raise ValueError("y" * (3 * 1024 * 1024))
        case "late answer":
            threading.Timer(0, os._exit, (5,)).start()
            threading.Event().wait()
    return how


@activity.defn(executor="process")
def forks() -> list[object]:
    """The copy heartbeats and returns as if it were the activity, while the original still runs."""
    copy = os.fork()
    if copy == 0:
        activity.heartbeat("from the copy")
        return ["copy"]
    return ["original", os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])]


@activity.defn(executor="process")
def forks_and_dies(sign: str) -> str:
    if os.fork() == 0:
        while not Path(sign).exists():
            threading.Event().wait(0.01)
        os._exit(0)
    os._exit(7)


@activity.defn(executor="process")
def leaks_threads() -> int:
    for _ in range(5):
        threading.Thread(target=threading.Event().wait).start()
    return threading.active_count()


@activity.defn(executor="process")
def prints(text: str) -> None:
    print(text)
    print(text, file=sys.stderr)


@activity.defn(executor="process", heartbeat_timeout=None)
def completes_async() -> str:
    activity.complete_async()


@activity.defn(executor="process")
def asks_for_client() -> None:
    activity.client()


@activity.defn(executor="process")
def ignores_group_signals() -> list[str]:
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    return ["still here"]


class Tools:
    @staticmethod
    @activity.defn(executor="process")
    def static(number: int) -> int:
        return number + 1

    @activity.defn(executor="process")
    def method(self) -> None: ...


@activity.defn(name="renamed", executor="process")
def original(number: int) -> int:
    return number * 3


def _plain() -> int:
    return 1


bound_elsewhere = activity.defn(name="bound_elsewhere", executor="process")(_plain)


@activity.defn(executor="process")
def floods(length: int) -> str:
    """Announce a message of this length and send 1,000 bytes of it."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            sock = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue  # not a socket, or closed
        if sock.family == socket.AF_UNIX:
            sock.sendall(struct.pack(">I", length) + b"x" * 1000)
    return "unheard"


ALL = [value for value in list(globals().values()) if isinstance(value, activity.Activity)] + [Tools.static]
