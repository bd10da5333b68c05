"""The parts of a guardian that need no process: its decisions, the notes that it reads, and the quarantine."""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time

import pytest

from hourglass._evaluator.definition import define_function
from hourglass._worker.health import guarded
from hourglass._worker.health.guardian import Restarts, after_exit, exit_reason, silence_limit
from hourglass._worker.health.incidents import Incident
from hourglass._worker.health.lane_notes import SIZE, SLOTS, LaneNotes, packed, read_notes
from hourglass._worker.health.quarantine import Quarantine
from hourglass._worker.health.stacks import HungStack, author_stack, parse_dump

from ..lanes.lane_world import Clock


def body() -> None:
    pass


DEFINITION = define_function(body, None, ())


def hang_incident(run_id: str = "r", age: float = 0.0, **changes: object) -> Incident:
    """An incident of a process that was killed because the run's code held the GIL."""
    values = {"workflow_type": "body", "stack": "a stack\n", "place": "a.py:1 in f", **changes}
    return Incident(run_id, at=time.time() - age, **{"stopped_process": True, **values})  # type: ignore[arg-type]


def test_guardian_restarts_with_backoff_up_to_thirty_seconds() -> None:
    restarts, delays = Restarts(), []
    for _ in range(8):
        decided = after_exit(restarts, 1, 5.0)
        assert decided is not None
        delay, restarts = decided
        delays.append(delay)
    assert delays == [1, 2, 4, 8, 16, 30, 30, 30]


def test_process_that_ran_for_a_minute_resets_the_restart_backoff() -> None:
    decided = after_exit(Restarts(failures=5, worked=True), -9, 60.0)
    assert decided == (1.0, Restarts(failures=1, worked=True))


@pytest.mark.parametrize("code", [0, 1, -9, guarded.REPLACE_ME])
def test_guardian_restarts_a_process_after_any_unexpected_exit(code: int) -> None:
    assert after_exit(Restarts(), code, None) is not None


def test_process_with_a_usage_error_is_restarted_only_if_it_worked_before() -> None:
    assert after_exit(Restarts(), guarded.USAGE_ERROR, None) is None
    assert after_exit(Restarts(worked=True), guarded.USAGE_ERROR, None) is not None


@pytest.mark.parametrize(
    ("code", "description"),
    [
        (-9, "was killed by SIGKILL"),
        (-200, "was killed by signal 200"),
        (0, "ended unexpectedly"),
        (3, "crashed with exit code 3"),
        (guarded.REPLACE_ME, "requested its replacement: too many of its threads cannot be stopped"),
    ],
)
def test_guardian_describes_exit_codes_in_words(code: int, description: str) -> None:
    assert exit_reason(code) == description


def test_time_until_a_silent_process_is_killed_follows_the_deadlock_timeout() -> None:
    assert silence_limit(2.0, loaded=True) == 4.0
    assert silence_limit(2.0, loaded=False) == 60.0
    assert silence_limit(0.1, loaded=True) == 1.0
    assert silence_limit(None, loaded=True) == float("inf")


def test_run_that_stopped_a_process_fails_its_task_and_is_retried() -> None:
    quarantine = Quarantine(clock=Clock())
    quarantine.restore([hang_incident()], {"r"})
    held = quarantine.held("r", None)
    assert held is not None
    assert held.stack == HungStack("a stack\n", "a.py:1 in f")
    assert quarantine.held("r", None) is None
    assert quarantine.held("r", DEFINITION) is None


def test_run_that_stopped_two_processes_is_quarantined_until_the_back_off() -> None:
    clock = Clock()
    clock.now = 1000.0
    quarantine = Quarantine(back_off=600, clock=clock)
    quarantine.restore([hang_incident(times=2, age=100.0)])
    assert quarantine.held("r", None) is not None
    assert quarantine.held("another", DEFINITION) is None
    clock.now += 501
    assert quarantine.held("r", None) is None
    assert quarantine.held("r", None) is not None


def test_two_runs_that_stopped_processes_quarantine_their_workflow() -> None:
    """Otherwise a thousand runs of a bad deployment would stop two thousand processes."""
    clock = Clock()
    clock.now = 1000.0
    quarantine = Quarantine(back_off=600, clock=clock)
    quarantine.restore([hang_incident("a"), hang_incident("b"), hang_incident("c", workflow_type="other")])
    assert quarantine.held("new", DEFINITION) is not None
    clock.now += 601
    assert quarantine.held("new", DEFINITION) is None


def test_hangs_without_a_stopped_process_do_not_quarantine_other_runs() -> None:
    quarantine = Quarantine(clock=Clock())
    quarantine.restore([hang_incident("a", stopped_process=False), hang_incident("b", stopped_process=False)])
    assert quarantine.held("new", DEFINITION) is None


class RecordedCalls:
    """A record of incidents that remembers its calls."""

    def __init__(self) -> None:
        self.fresh: list[Incident] = []
        self.calls: list[tuple[str, ...]] = []

    def current(self) -> list[Incident]:
        return []

    def add(self, incident: Incident) -> None:
        self.calls.append(("add", incident.run_id, incident.workflow_type, incident.stack, incident.place))

    def forget(self, *run_ids: str) -> None:
        self.calls.append(("forget", *run_ids))


def test_quarantine_records_hangs_and_progress_for_the_next_process() -> None:
    record = RecordedCalls()
    quarantine = Quarantine(record)
    quarantine.add("r", DEFINITION, HungStack("text", "place"))
    quarantine.release("r")
    quarantine.release("r")
    assert record.calls == [("add", "r", "body", "text", "place"), ("forget", "r")]


DUMP = """Fatal Python error: nothing of ours
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 5 in wait

Current thread 0x00007f02 (most recent call first):
  File "{library}", line 166 in match
  File "/app/caf\\xe9/shop.py", line 22 in catastrophe
  File "/app/main.py", line ??? in main
  ...
"""


def test_faulthandler_dump_is_parsed_into_threads_and_frames() -> None:
    first, second = parse_dump(DUMP.format(library=re.__file__))
    assert (first.ident, second.ident) == (0x7F01, 0x7F02)
    assert [frame.name for frame in second.frames] == ["match", "catastrophe", "main"]
    assert author_stack(second.frames).place == "/app/café/shop.py:22 in catastrophe"
    assert "threading" in author_stack(first.frames).place
    assert parse_dump('Stack (most recent call first):\n  File "a.py", line 1 in f\n')[0].ident is None
    assert parse_dump("") == []
    assert author_stack(()) == HungStack()


def test_lane_notes_are_read_with_run_workflow_and_thread() -> None:
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), SIZE)
        notes = LaneNotes(file.fileno())
        first_note, second_note = notes.note(), notes.note()
        first_note.write(packed("run-1", "checkout", "0123456789abcdef"))
        second_note.write(packed("r" * 100, "t" * 400, activity_id="7"))
        first, second = read_notes(os.pread(file.fileno(), SIZE, 0))
        assert (first.run_id, first.workflow_type) == ("run-1", "checkout")
        assert (first.code, first.activity_id) == ("0123456789abcdef", "")
        assert (second.code, second.activity_id) == ("", "7")
        assert (first.native_id, first.ident) == (threading.get_native_id(), threading.get_ident())
        assert (len(second.run_id), len(second.workflow_type)) == (63, 159)
        first_note.clear()
        second_note.clear()
        assert read_notes(os.pread(file.fileno(), SIZE, 0)) == []


def test_released_slots_of_lane_notes_are_reused() -> None:
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), SIZE)
        notes = LaneNotes(file.fileno())
        note = notes.note()
        for number in range(1000):
            successor = notes.note()
            note.release()
            note = successor
            note.write(packed(f"run-{number}", "x"))
        assert [item.run_id for item in read_notes(os.pread(file.fileno(), SIZE, 0))] == ["run-999"]
        taken = []
        while (another := notes.note()) is not None:
            taken.append(another)
        assert len(taken) == SLOTS - 1
        assert notes.note() is None
