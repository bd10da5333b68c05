"""The parts of a guardian that need no process: what it decides, remembers, reads and says."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from pathlib import Path

import pytest

from hourglass._evaluator.definition import define_function
from hourglass._worker.health import guarded as wire
from hourglass._worker.health.guardian import Lifetimes, SilenceLimit, after_exit, why
from hourglass._worker.health.hung import (
    HungStack,
    RunHung,
    RunWentOn,
    decode_hangs,
    encode_hangs,
    parse_dump,
    told,
)
from hourglass._worker.health.lane_notes import SIZE, SLOTS, LaneNotes, packed, read_notes
from hourglass._worker.health.parked import HungRuns, Quarantine

from .lane_world import Clock


def body() -> None:
    pass


DEFINITION = define_function(body, None, ())


def hang(run_id: str = "r", **changes: object) -> RunHung:
    values = {"workflow_type": "body", "stack": "a stack\n", "place": "a.py:1 in f", **changes}
    return RunHung(run_id, **values)  # type: ignore[arg-type]


# --- decisions -------------------------------------------------------------------------------------------------------


def test_restarts_back_off() -> None:
    """One second, doubling to thirty, for as long as processes do not last."""
    lifetimes, delays = Lifetimes(), []
    for _ in range(8):
        decided = after_exit(lifetimes, 1, 5.0)
        assert decided is not None
        delay, lifetimes = decided
        delays.append(delay)
    assert delays == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_minute_of_health_is_a_new_beginning() -> None:
    """A process that worked for a minute has paid for those before it."""
    decided = after_exit(Lifetimes(failures=5, worked=True), -9, 60.0)
    assert decided == (1.0, Lifetimes(failures=1, worked=True))


@pytest.mark.parametrize("code", [0, 1, -9, wire.REPLACE_ME])
def test_what_may_pass_is_started_again(code: int) -> None:
    """However a process ended that nobody asked to end."""
    assert after_exit(Lifetimes(), code, None) is not None


def test_what_cannot_start_is_given_up() -> None:
    """Unless it has worked before: then somebody is at it, and it may pass."""
    assert after_exit(Lifetimes(), wire.REFUSED, None) is None
    assert after_exit(Lifetimes(worked=True), wire.REFUSED, None) is not None


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-9, "was killed by SIGKILL"),
        (-200, "was killed by signal 200"),
        (0, "ended, though it was not asked to"),
        (3, "crashed with exit code 3"),
        (wire.REPLACE_ME, "asked to be replaced: too many of its threads cannot be stopped"),
    ],
)
def test_it_says_why(code: int, said: str) -> None:
    """The exit code in words."""
    assert why(code) == said


def test_how_long_a_process_may_be_silent() -> None:
    """Twice the deadlock timeout; longer while it loads; for ever where there is none."""
    silence = SilenceLimit(2.0)
    assert silence.allowed(loaded=True) == 4.0
    assert silence.allowed(loaded=False) == 60.0
    assert silence.interval == 0.5
    assert SilenceLimit(0.1).allowed(loaded=True) == 1.0
    assert SilenceLimit(None).allowed(loaded=True) is None


# --- what is said ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        "beat",
        "loaded",
        "ready",
        hang(times=2, age=1.5, owed=True, costly=True),
        RunWentOn("r"),
        "leaving",
    ],
)
def test_what_is_said_is_heard(said: wire.Said) -> None:
    """One line each, the same on the other side."""
    line = wire.encode(said)
    assert line.count(b"\n") == 1
    assert wire.decode(line) == said


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b'"boo"',
        b'{"Boo": {}}',
        b'{"RunHung": {}}',
        b'{"RunHung": 1}',
        b'{"RunWentOn": {"x": 1}}',
    ],
)
def test_nonsense_is_not_heard(line: bytes) -> None:
    """A process that runs the code of others may write anything to its descriptors."""
    assert wire.decode(line) is None


def test_hangs_are_handed_over() -> None:
    """A list survives the way to the next process, and so does none."""
    hangs = [hang("a"), hang("b", costly=True)]
    assert decode_hangs(encode_hangs(hangs)) == hangs
    assert decode_hangs(b"") == []


# --- memory ----------------------------------------------------------------------------------------------------------


def stack_in(file: Path) -> str:
    return f'  File "{file}", line 1, in f\n    f()\n'


def test_hangs_are_counted_until_the_run_goes_on(tmp_path: Path) -> None:
    """Each process is told how often, and how long ago."""
    file = tmp_path / "a.py"
    file.write_text("f()\n")
    clock = Clock()
    runs = HungRuns(clock)
    assert runs.add(hang(stack=stack_in(file))).times == 1
    assert runs.add(hang(stack=stack_in(file))).times == 2
    clock.now += 5
    assert [(each.times, each.age) for each in runs.told()] == [(2, 5.0)]
    runs.forget("r")
    assert runs.told() == []


def test_changed_code_is_tried_again(tmp_path: Path) -> None:
    """A file on the stack has changed: what hung in it is forgotten."""
    file = tmp_path / "a.py"
    file.write_text("f()\n")
    runs = HungRuns()
    runs.add(hang(stack=stack_in(file)))
    assert len(runs.told()) == 1
    file.write_text("g()\n")
    assert runs.told() == []


def test_a_hang_in_changed_code_is_the_first_one(tmp_path: Path) -> None:
    """Twice means twice in the same code."""
    file = tmp_path / "a.py"
    file.write_text("f()\n")
    runs = HungRuns()
    runs.add(hang(stack=stack_in(file)))
    file.write_text("g()\n")
    assert runs.add(hang(stack=stack_in(file))).times == 1


def test_a_failure_is_owed_once() -> None:
    """The first process that hears of a hang fails the run's task, the next ones do not."""
    runs = HungRuns()
    runs.add(hang(owed=True))
    assert [each.owed for each in runs.told()] == [True]
    assert [each.owed for each in runs.told()] == [False]


# --- quarantine ------------------------------------------------------------------------------------------------------


def test_an_owed_failure_is_paid_and_the_run_tried_again() -> None:
    """A run that stopped a process once: its task fails, with the stack, and the next one is executed."""
    quarantine = Quarantine(clock=Clock())
    quarantine.restore([hang(owed=True, costly=True)])
    held = quarantine.held("r", None)
    assert held is not None
    assert held.stack == HungStack("a stack\n", "a.py:1 in f")
    assert quarantine.held("r", None) is None
    assert quarantine.held("r", DEFINITION) is None


def test_a_run_that_stopped_two_processes_is_held_for_a_while() -> None:
    """After the back-off it gets one try."""
    clock = Clock()
    clock.now = 1000.0
    quarantine = Quarantine(back_off=600, clock=clock)
    quarantine.restore([hang(times=2, age=100.0, costly=True)])
    assert quarantine.held("r", None) is not None
    assert quarantine.held("another", DEFINITION) is None
    clock.now += 501
    assert quarantine.held("r", None) is None
    assert quarantine.held("r", None) is not None


def test_two_runs_that_stopped_a_process_each_hold_all_of_their_workflow() -> None:
    """Else a thousand runs of one bad deploy would stop two thousand processes."""
    clock = Clock()
    clock.now = 1000.0
    quarantine = Quarantine(back_off=600, clock=clock)
    quarantine.restore([hang("a", costly=True), hang("b", costly=True), hang("c", workflow_type="other")])
    assert quarantine.held("new", DEFINITION) is not None
    clock.now += 601
    assert quarantine.held("new", DEFINITION) is None


def test_hangs_that_stopped_no_process_hold_nobody_else() -> None:
    """Threads can be replaced: the rules within the process are enough."""
    quarantine = Quarantine(clock=Clock())
    quarantine.restore([hang("a"), hang("b")])
    assert quarantine.held("new", DEFINITION) is None


def test_the_guardian_hears_of_hangs_and_of_their_end() -> None:
    """So that the next process knows them, too."""
    heard: list[object] = []
    quarantine = Quarantine()
    quarantine.on_hung = lambda *said: heard.append(said)
    quarantine.on_went_on = heard.append
    stack = HungStack("text", "place")
    quarantine.add("r", DEFINITION, stack)
    quarantine.forget("r")
    quarantine.forget("r")
    assert heard == [("r", "body", stack), "r"]


# --- looking ---------------------------------------------------------------------------------------------------------

DUMP = """Fatal Python error: nothing of ours
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 5 in wait

Current thread 0x00007f02 (most recent call first):
  File "{library}", line 166 in match
  File "/app/caf\\xe9/shop.py", line 22 in catastrophe
  File "/app/main.py", line ??? in main
  ...
"""


def test_a_dump_is_read() -> None:
    """Headers and frames, names that are not ASCII, and whatever else stands there."""
    first, second = parse_dump(DUMP.format(library=re.__file__))
    assert (first.ident, second.ident) == (0x7F01, 0x7F02)
    assert [each.name for each in second.frames] == ["match", "catastrophe", "main"]
    assert told(second.frames).place == "/app/café/shop.py:22 in catastrophe"
    assert "threading" in told(first.frames).place
    assert parse_dump('Stack (most recent call first):\n  File "a.py", line 1 in f\n')[0].ident is None
    assert parse_dump("") == []
    assert told(()) == HungStack()


def test_notes_are_read_by_another() -> None:
    """What a lane is at, and by which thread; nothing once it is struck."""
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), SIZE)
        notes = LaneNotes(file.fileno())
        one, other = notes.note(), notes.note()
        one.take(packed("run-1", "checkout", "0123456789abcdef"))
        other.take(packed("r" * 100, "t" * 400, activity="7"))
        first, second = read_notes(os.pread(file.fileno(), SIZE, 0))
        assert (first.run_id, first.workflow_type) == ("run-1", "checkout")
        assert (first.code, first.activity) == ("0123456789abcdef", "")
        assert (second.code, second.activity) == ("", "7")
        assert (first.native_id, first.ident) == (threading.get_native_id(), threading.get_ident())
        assert (len(second.run_id), len(second.workflow_type)) == (63, 159)
        one.strike()
        other.strike()
        assert read_notes(os.pread(file.fileno(), SIZE, 0)) == []


def test_places_for_notes_are_used_again() -> None:
    """Lanes that come after others take the places of those that ended; where all are taken, nothing is noted."""
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), SIZE)
        notes = LaneNotes(file.fileno())
        note = notes.note()
        for number in range(1000):
            heir = note.renewed()
            note.release()
            note = heir
            note.take(packed(f"run-{number}", "x"))
        assert [each.run_id for each in read_notes(os.pread(file.fileno(), SIZE, 0))] == ["run-999"]
        taken = []
        while (one := notes.note()) is not None:
            taken.append(one)
        assert len(taken) == SLOTS - 1
        assert note.renewed() is None


def test_notes_are_taken_in_several_files() -> None:
    """For the guardian, and for the process that comes after; what was noted before the second came is in it, too."""
    with tempfile.TemporaryFile() as one, tempfile.TemporaryFile() as two:
        for file in (one, two):
            os.ftruncate(file.fileno(), SIZE)
        notes = LaneNotes(one.fileno())
        note = notes.note()
        note.take(packed("r", "x"))
        added = notes.add(two.fileno())
        assert [each.run_id for each in read_notes(os.pread(two.fileno(), SIZE, 0))] == ["r"]
        note.take(packed("s", "x"))
        notes.remove(added)
        note.take(packed("t", "x"))
        assert [each.run_id for each in read_notes(os.pread(one.fileno(), SIZE, 0))] == ["t"]
        assert [each.run_id for each in read_notes(os.pread(two.fileno(), SIZE, 0))] == ["s"]
