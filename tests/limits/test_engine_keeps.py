"""The embedded engine keeps limits itself: through kills, without a worker, beside workflows that keep the same key."""

from __future__ import annotations

import logging
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hourglass import Client, Worker, limits, workflow
from hourglass._embedded.limits.bursts import NOTE
from hourglass._embedded.limits.keepers import Keepers
from hourglass.client import WorkflowHandle
from hourglass.converter import Payload
from hourglass.limits._slots import SlotKeeper
from hourglass.progress import Progress
from hourglass.replay import Replayer
from hourglass.testing import Environment

PATIENCE = 60.0

inside = Progress("inside", str)
go = workflow.Channel("go", str)

PROGRAM = textwrap.dedent("""
    import os, sys, time
    from hourglass import Client, Worker, activity, limits, workflow

    target, journal = sys.argv[1:]

    def note(text):
        with open(journal, "a") as file:
            file.write(text + "\\n")
            file.flush()
            os.fsync(file.fileno())

    @activity.defn(start_to_close_timeout=30)
    def work(name: str) -> None:
        note(f"in {name}")
        time.sleep(0.05)

    @activity.defn(start_to_close_timeout=30)
    def leave(name: str) -> None:
        note(f"out {name}")

    @workflow.defn
    def visit(number: int) -> float:
        name = workflow.info().workflow_id
        limits.throttle("door", 3, per=0.2)
        with limits.slot("room", 2):
            work(name)
            leave(name)
        return workflow.time()

    with Client.connect(target) as client, Worker(client, workflows=[visit], activities=[work, leave]) as worker:
        for number in range(8):
            limits.once(client, visit, number, key=f"visit-{number}")
        for number in range(8):
            client.get_workflow_handle(f"visit-{number}").result()
        note("done")
""")


def rows(path: Path) -> list[str]:
    """The names under which the engine keeps limits in a file."""
    with sqlite3.connect(path) as connection:
        return [
            name for (name,) in connection.execute("SELECT name FROM meta WHERE name LIKE ?", (f"{NOTE}%",))
        ]


def wait_for_lines(journal: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    """Until a file has so many lines, or the process has ended."""
    until = time.monotonic() + PATIENCE
    while process.poll() is None and len(read(journal)) < count:
        assert time.monotonic() < until
        time.sleep(0.01)


def read(journal: Path) -> list[str]:
    """The lines of a file."""
    return journal.read_text().split("\n")[:-1] if journal.exists() else []


def test_kills_neither_lose_nor_duplicate_slots(tmp_path: Path) -> None:
    """A process is killed again and again while eight runs go through two slots: never are three inside, all get through, and
    nothing is left of the slots.
    """
    journal, path = tmp_path / "journal", tmp_path / "limits.db"
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    for lines in (1, 4, 9, 10_000):
        process = subprocess.Popen([sys.executable, str(program), f"local:{path}", str(journal)])
        try:
            wait_for_lines(journal, lines, process)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    visits = read(journal)
    assert visits[-1] == "done"
    there: set[str] = set()
    for what, _, name in (line.partition(" ") for line in visits):
        if what == "in":
            there.add(name)
        else:
            there.discard(name)
        assert len(there) <= 2
    assert {name for what, _, name in (line.partition(" ") for line in visits) if what == "out"} == {
        f"visit-{number}" for number in range(8)
    }
    assert [name for name in rows(path) if "slots" in name] == []


@workflow.defn
def held(key: str) -> str:
    """Hold a slot until told."""
    with limits.slot(key):
        inside.publish("in")
        return go.receive()


@workflow.defn
def last(value: int) -> int:
    """What it was called with."""
    return value


def test_slot_of_a_run_terminated_without_a_worker_is_free(tmp_path: Path) -> None:
    """A holder is terminated while no process owns the file: the next run enters when a worker is back."""
    target = f"local:{tmp_path / 'limits.db'}"
    with Client.connect(target) as client:
        with Worker(client, workflows=[held]):
            holder = client.start_workflow(held, "k", id="holder")
            assert next(inside.follow(holder, timeout=PATIENCE)) == "in"
            waiting = client.start_workflow(held, "k", id="waiting")
            until = time.monotonic() + PATIENCE
            table = client.get_workflow_handle("hourglass.slots:k")
            while not table.query(SlotKeeper.slots).waiting:
                assert time.monotonic() < until
        assert sorted(rows(tmp_path / "limits.db")) == sorted(
            f"{NOTE}hourglass.slots:k\n{each.run_id}" for each in (holder, waiting)
        )
    with Client.connect(target) as client:
        client.get_workflow_handle("holder").terminate("gone")
        assert rows(tmp_path / "limits.db") == [f"{NOTE}hourglass.slots:k\n{waiting.run_id}"]
        with Worker(client, workflows=[held]):
            again: WorkflowHandle[str] = client.get_workflow_handle("waiting")
            assert next(inside.follow(again, timeout=PATIENCE)) == "in"
            again.signal(go, "out")
            assert again.result(timeout=PATIENCE) == "out"
    assert rows(tmp_path / "limits.db") == []


def test_debounce_without_a_worker(tmp_path: Path) -> None:
    """Calls of several clients without a worker become one run when a worker starts."""
    target = f"local:{tmp_path / 'limits.db'}"
    for value in range(3):
        with Client.connect(target) as client:
            limits.debounce(client, last, value, key="k", wait=0)
    with Client.connect(target) as client, Worker(client, workflows=[last]):
        call = limits.debounce(client, last, 3, key="other", wait=0)
        assert call.result() == 3
        until = time.monotonic() + PATIENCE
        while not (found := [each for each in client.list_workflows() if each.id.startswith("k:")]):
            assert time.monotonic() < until
        assert client.get_workflow_handle(found[0].id).result(timeout=PATIENCE) == 2
        assert client.count_workflows() == 2


def test_unreadable_limit_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged row is logged; the file can be opened, and other limits work."""
    path = tmp_path / "limits.db"
    with Client.connect(f"local:{path}") as client, Worker(client, workflows=[held]):
        client.start_workflow(last, 1, id="any")
    with sqlite3.connect(path) as connection:
        for name in (f"{NOTE}hourglass.slots:bad\nrun", f"{NOTE}hourglass.throttle:bad", f"{NOTE}other"):
            connection.execute("INSERT INTO meta (name, value) VALUES (?, ?)", (name, b"\xff"))
    with (
        caplog.at_level(logging.ERROR),
        Client.connect(f"local:{path}") as client,
        Worker(client, workflows=[held]),
    ):
        holder = client.start_workflow(held, "good")
        assert next(inside.follow(holder, timeout=PATIENCE)) == "in"
    assert sum("cannot be read and is discarded" in each.message for each in caplog.records) >= 3


class Reversed:
    """Turns data round."""

    def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Turn it round."""
        return [
            Payload(each.data[::-1], "test/reversed", {"was": each.encoding.encode()}) for each in payloads
        ]

    def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """And back."""
        return [Payload(each.data[::-1], (each.metadata or {})["was"].decode()) for each in payloads]


def test_keeper_workflow_with_a_codec() -> None:
    """The engine cannot read the messages of runs: a keeper answers, as on a server."""
    with Client.connect("local:", codec=Reversed()) as client, Worker(client, workflows=[held, last]):
        holder = client.start_workflow(held, "k", id="holder")
        assert next(inside.follow(holder, timeout=PATIENCE)) == "in"
        waiting = client.start_workflow(held, "k", id="waiting")  # only now, or it may be the first to ask
        for handle in (holder, waiting):
            handle.signal(go, "out")
            assert handle.result(timeout=PATIENCE) == "out"
        assert limits.debounce(client, last, 3, key="k", wait=0).result() == 3
        assert client.count_workflows("WorkflowType = 'hourglass.slots'") == 1
        assert client.count_workflows("WorkflowType = 'hourglass.debounce'") == 1


@workflow.defn
def hold(seconds: float) -> tuple[float, float]:
    """Hold a slot for a while."""
    with limits.slot("k"):
        entered = workflow.time()
        workflow.sleep(seconds)
        return entered, workflow.time()


def test_open_keeper_workflow_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a keeper is open, runs use it; after its end the engine keeps the key. Histories replay."""
    with Environment() as env:
        with monkeypatch.context() as patch:
            patch.setattr(Keepers, "read", lambda *_: None)
            first = env.start_workflow(hold, 10.0)
            env.skip(1)
        second = env.start_workflow(hold, 10.0)
        assert second.result()[0] == first.result()[1]
        keepers = "WorkflowType = 'hourglass.slots'"
        assert env.client.count_workflows(keepers) == 1
        env.skip(minutes=5)
        third, fourth = (env.start_workflow(hold, 10.0) for _ in range(2))
        assert fourth.result()[0] == third.result()[1]
        assert env.client.count_workflows(keepers) == 1
        with Replayer(workflows=[hold]) as replayer:
            for run in (first, second, third, fourth):
                assert replayer.replay(run.history()).ok


@workflow.defn
def again_and_again(key: str, count: int) -> None:
    """So many turns in a row, and nothing else."""
    for _ in range(count):
        limits.throttle(key, 5, per=1)


def test_loan_of_a_terminated_run_ends() -> None:
    """A key is lent to a busy run; when that is terminated, another run gets turns at once."""
    with Environment() as env:
        lent = env.start_workflow(again_and_again, "k", 10_000)
        env.skip(10)
        lent.terminate()
        begin = env.now().timestamp()
        env.execute_workflow(again_and_again, "k", 1)
        assert env.now().timestamp() - begin <= 1.0
