"""How many processors there are for a worker, and what a process that keeps to one of them executes where."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hourglass._worker import processors
from hourglass._worker.processors import ProcessorBinding

pytestmark = pytest.mark.skipif(
    not processors.can_bind(), reason="this system binds no threads to processors"
)


# --- how many there are ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quotas", "expected"),
    [
        ({}, None),
        ({"": "max 100000"}, None),
        ({"a/b": "150000 100000"}, 1.5),
        ({"a": "50000 100000", "a/b": "400000 100000"}, 0.5),  # the narrowest of those around it
        ({"a/b": "garbage"}, None),
        ({"a/b": "100000 0"}, None),
    ],
)
def test_container_quota_limits_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quotas: dict[str, str], expected: float | None
) -> None:
    """Sixty processors of which a container may use two are two; what cannot be read is no quota."""
    for folder, text in quotas.items():
        (tmp_path / "groups" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / folder / "cpu.max").write_text(f"{text}\n")
    (tmp_path / "own").write_text("1:name=systemd:/elsewhere\n0::/a/b\n")
    monkeypatch.setattr(processors, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(processors, "_OWN_CGROUP", tmp_path / "own")
    assert processors._quota() == expected
    most = len(processors.allowed())
    assert processors.available() == (most if expected is None else min(most, -int(-expected // 1)))


# --- one for each process --------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as it is written here."""
    now = [0.0]
    monkeypatch.setattr(processors, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def binding() -> ProcessorBinding:
    """This process as one of several; the threads of the tests, not this one, are what it places."""
    given = processors.allowed()
    if len(given) < 2:
        pytest.skip("there is but one processor")
    return ProcessorBinding(min(given), given)


def _in_a_thread(job: Callable[[], object]) -> None:
    thread = threading.Thread(target=job)
    thread.start()
    thread.join()


def test_brief_activity_types_are_bound(binding: ProcessorBinding, clock: list[float]) -> None:
    """The first may start threads or programs that stay: those are free. One that ran long sets its kind free for good."""
    given, own = set(processors.allowed()), {binding.own}
    seen: list[set[int]] = []

    def attempt(kind: str, seconds: float) -> set[int]:
        def job(seconds: float) -> None:
            seen.append(os.sched_getaffinity(0))
            clock[0] += seconds

        binding.run(kind, job, seconds)
        return seen[-1]

    def threads() -> None:
        assert attempt("brief", 0.001) == given
        assert attempt("brief", 0.001) == own
        assert attempt("long", 10.0) == given
        assert attempt("long", 0.001) == given  # once is enough
        assert attempt("brief", 10.0) == own
        assert attempt("brief", 0.001) == given
        seen.append(given | own)

    _in_a_thread(threads)
    assert len(seen) == 7  # all of it was executed


def test_waiting_for_the_interpreter_counts_as_brief(binding: ProcessorBinding, clock: list[float]) -> None:
    """Among twenty that compute at a time each takes twenty times as long by the clock."""
    began, go_on = threading.Barrier(21), threading.Event()

    def job() -> None:
        began.wait(60)
        go_on.wait(60)

    threads = [threading.Thread(target=binding.run, args=("computes", job)) for _ in range(20)]
    for thread in threads:
        thread.start()
    began.wait(60)
    clock[0] += 20 * processors.BRIEF * 0.9
    go_on.set()
    for thread in threads:
        thread.join(60)
    found: list[set[int]] = []
    _in_a_thread(lambda: binding.run("computes", lambda: found.append(os.sched_getaffinity(0))))
    assert found == [{binding.own}]


def test_failed_attempts_count_for_binding(binding: ProcessorBinding, clock: list[float]) -> None:
    """The thread pool logs it; the kind is known all the same."""
    found: list[set[int]] = []

    def job() -> None:
        found.append(os.sched_getaffinity(0))
        raise KeyError("no such order")

    def thread() -> None:
        for _ in range(2):
            with pytest.raises(KeyError, match="no such order"):
                binding.run("raises", job)

    _in_a_thread(thread)
    assert found == [set(processors.allowed()), {binding.own}]


def test_rejected_binding_changes_nothing(
    binding: ProcessorBinding, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox may forbid it, a container lose the processor: the attempt is made where the thread stands."""

    def refuse(*_: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    done: list[int] = []
    _in_a_thread(lambda: binding.run("any", done.append, 1))
    assert done == [1]
