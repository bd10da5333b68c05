"""Activities of the scenarios, and the gates by which a test and its activities wait for each other."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import Any

from hourglass import RetryPolicy, activity
from hourglass.errors import ApplicationError

ONCE = RetryPolicy(maximum_attempts=1)
QUICK = RetryPolicy(initial_interval=0.02, backoff_coefficient=1.5, maximum_attempts=4)
_LONGEST = 60.0


class SharedState:
    """State that one scenario's activities share with the test."""

    def __init__(self) -> None:
        self.gates: dict[str, threading.Event] = defaultdict(threading.Event)
        self.calls: list[Any] = []
        self.token = b""
        self.mended = False
        self.lock = threading.Lock()
        self.running = 0
        self.most_running = 0


state = SharedState()


def reset_shared_state() -> None:
    """Replace the state; open all gates, so that old activities return."""
    for gate in list(state.gates.values()):
        gate.set()
    state.__init__()  # type: ignore[misc]


def gate(name: str) -> threading.Event:
    """Return the gate of this name."""
    return state.gates[name]


def wait_for_gate(name: str) -> None:
    """Wait, in the test, until an activity has opened the gate."""
    assert gate(name).wait(_LONGEST), f"nobody came to gate {name}"


@activity.defn
def double(number: int) -> int:
    return number * 2


@activity.defn
async def increase(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


@activity.defn
def record_call(what: str) -> str:
    state.calls.append(what)
    return what


@activity.defn(retry_policy=ONCE)
def opens_gate_and_waits_for_go(name: str) -> str:
    go = gate("go")
    gate(name).set()
    go.wait(_LONGEST)
    return name


@activity.defn(retry_policy=ONCE)
def returns_when_released(name: str, fail: bool = False) -> str:
    """Wait for the gate `name`, then return or fail."""
    gate(name).wait(_LONGEST)
    if fail:
        raise ApplicationError(f"{name} fails")
    return name


@activity.defn(retry_policy=ONCE)
def counts_concurrent_calls(number: int) -> int:
    """Record how many of these run concurrently."""
    with state.lock:
        state.running += 1
        state.most_running = max(state.most_running, state.running)
    if state.running > 1:
        gate("two").set()
    if number == 0:
        gate("two").wait(_LONGEST)
    with state.lock:
        state.running -= 1
    return number * number


@activity.defn(retry_policy=QUICK)
def fails_until_attempt(attempt: int) -> int:
    now = activity.info().attempt
    if now < attempt:
        raise ApplicationError(f"attempt {now} fails", now, type="NotYet")
    return now


@activity.defn(retry_policy=QUICK)
def fails_without_retries(message: str) -> None:
    raise ApplicationError(message, {"why": "broke"}, type="Broke", non_retryable=True)


@activity.defn
def fails_until_mended() -> str:
    if not state.mended:
        raise ApplicationError("not mended yet", non_retryable=True)
    return "mended"


@activity.defn(retry_policy=QUICK)
def raises_value_error() -> None:
    state.calls.append("raised")
    try:
        int("x")
    except ValueError as error:
        raise LookupError("nothing there") from error


@activity.defn(retry_policy=ONCE)
def stops_when_cancelled(name: str) -> str:
    go = gate("go")
    gate(name).set()
    state.calls.append("begun")
    while not activity.wait_cancelled(0.01) and not go.is_set():
        activity.heartbeat()
    state.calls.append("stopped")
    return "stopped"


@activity.defn(retry_policy=ONCE, heartbeat_timeout=0.4)
def stops_heartbeating() -> None:
    """Send one heartbeat, then none."""
    go = gate("go")
    activity.heartbeat("half-way")
    go.wait(_LONGEST)


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.02, maximum_attempts=3), heartbeat_timeout=10)
def resumes_from_heartbeat() -> list[Any]:
    """Fail once after a heartbeat. The second attempt returns its number and the incremented heartbeat detail."""
    detail = activity.heartbeat_details(int)
    if detail is None:
        activity.heartbeat(41)
        raise ApplicationError("interrupted")
    return [activity.info().attempt, detail + 1]


@activity.defn(heartbeat_timeout=None)
def completed_by_test() -> str:
    """Hand its task token to the test, which completes it."""
    state.token = activity.info().task_token
    gate("token").set()
    activity.complete_async()


class Shop:
    """An object with an activity method."""

    def __init__(self, name: str) -> None:
        self.name = name

    @activity.defn
    def greet(self, who: str) -> str:
        return f"{self.name} greets {who}"


SHOP = Shop("Bob")


@activity.defn(name="scale")
class Scaling:
    """A class decorated as an activity; the worker is given an instance."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, number: int) -> int:
        return self.factor * number


class Reversing:
    """A class whose `__call__` is an asynchronous activity."""

    @activity.defn
    async def __call__(self, text: str) -> str:
        return text[::-1]


CALLABLE = [Scaling(3), Reversing()]
