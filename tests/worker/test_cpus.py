"""The number of CPUs available to a worker, and the binding of a process's threads to one of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hourglass._worker import cpus
from hourglass._worker.cpus import CPUBinding

pytestmark = pytest.mark.skipif(not cpus.can_bind(), reason="this system binds no threads to CPUs")


# --- available CPUs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quotas", "expected"),
    [
        ({}, None),
        ({"": "max 100000"}, None),
        ({"a/b": "150000 100000"}, 1.5),
        ({"a": "50000 100000", "a/b": "400000 100000"}, 0.5),  # the smallest quota of all parents
        ({"a/b": "garbage"}, None),
        ({"a/b": "100000 0"}, None),
    ],
)
def test_container_quota_limits_available_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quotas: dict[str, str], expected: float | None
) -> None:
    for folder, text in quotas.items():
        (tmp_path / "groups" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / folder / "cpu.max").write_text(f"{text}\n")
    (tmp_path / "own").write_text("1:name=systemd:/elsewhere\n0::/a/b\n")
    monkeypatch.setattr(cpus, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(cpus, "_OWN_CGROUP", tmp_path / "own")
    assert cpus._quota() == expected
    most = len(cpus.allowed())
    assert cpus.available() == (most if expected is None else min(most, -int(-expected // 1)))


# --- a processor for each process --------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that tests set."""
    now = [0.0]
    monkeypatch.setattr(cpus, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def binding() -> CPUBinding:
    """This process as one of several; only threads of the tests are bound."""
    allowed = cpus.allowed()
    if len(allowed) < 2:
        pytest.skip("there is but one processor")
    return CPUBinding(min(allowed), allowed)


def _in_a_thread(job: Callable[[], object]) -> None:
    thread = threading.Thread(target=job)
    thread.start()
    thread.join()


def test_threads_of_brief_activity_types_are_bound_to_one_processor(
    binding: CPUBinding, clock: list[float]
) -> None:
    """The first attempt of a type runs unbound, because it may start threads or programs that stay; a long attempt
    makes its type unbound for good.
    """
    allowed, own = set(cpus.allowed()), {binding.own}
    seen: list[set[int]] = []

    def attempt(kind: str, seconds: float) -> set[int]:
        def job(seconds: float) -> None:
            seen.append(os.sched_getaffinity(0))
            clock[0] += seconds

        binding.run(kind, job, seconds)
        return seen[-1]

    def threads() -> None:
        assert attempt("brief", 0.001) == allowed
        assert attempt("brief", 0.001) == own
        assert attempt("long", 10.0) == allowed
        assert attempt("long", 0.001) == allowed  # one long attempt suffices
        assert attempt("brief", 10.0) == own
        assert attempt("brief", 0.001) == allowed
        seen.append(allowed | own)

    _in_a_thread(threads)
    assert len(seen) == 7  # all attempts were executed


def test_time_waiting_for_the_gil_does_not_make_an_activity_type_long(
    binding: CPUBinding, clock: list[float]
) -> None:
    started, proceed = threading.Barrier(21), threading.Event()

    def job() -> None:
        started.wait(60)
        proceed.wait(60)

    threads = [threading.Thread(target=binding.run, args=("computes", job)) for _ in range(20)]
    for thread in threads:
        thread.start()
    started.wait(60)
    clock[0] += 20 * cpus.BRIEF * 0.9
    proceed.set()
    for thread in threads:
        thread.join(60)
    affinities: list[set[int]] = []
    _in_a_thread(lambda: binding.run("computes", lambda: affinities.append(os.sched_getaffinity(0))))
    assert affinities == [{binding.own}]


def test_failed_attempts_count_for_cpu_binding(binding: CPUBinding, clock: list[float]) -> None:
    affinities: list[set[int]] = []

    def job() -> None:
        affinities.append(os.sched_getaffinity(0))
        raise KeyError("no such order")

    def thread() -> None:
        for _ in range(2):
            with pytest.raises(KeyError, match="no such order"):
                binding.run("raises", job)

    _in_a_thread(thread)
    assert affinities == [set(cpus.allowed()), {binding.own}]


def test_attempt_runs_unbound_if_the_system_rejects_the_binding(
    binding: CPUBinding, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    done: list[int] = []
    _in_a_thread(lambda: binding.run("any", done.append, 1))
    assert done == [1]
