"""Limits kept by the embedded engine: after kills, without a worker, and together with keeper workflows."""

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

TIMEOUT = 60.0

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


def stored_limits(path: Path) -> list[str]:
    """Return the names of the limits in a file."""
    with sqlite3.connect(path) as connection:
        return [
            name for (name,) in connection.execute("SELECT name FROM meta WHERE name LIKE ?", (f"{NOTE}%",))
        ]


def wait_for_lines(journal: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the file has this number of lines or the process has ended."""
    until = time.monotonic() + TIMEOUT
    while process.poll() is None and len(read_lines(journal)) < count:
        assert time.monotonic() < until
        time.sleep(0.01)


def read_lines(journal: Path) -> list[str]:
    return journal.read_text().split("\n")[:-1] if journal.exists() else []


def test_slots_survive_repeated_kills_of_the_process(tmp_path: Path) -> None:
    """Two slots serve eight runs while the process is killed repeatedly. No slot remains in the file."""
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
    visits = read_lines(journal)
    assert visits[-1] == "done"
    holders: set[str] = set()
    for action, _, name in (line.partition(" ") for line in visits):
        if action == "in":
            holders.add(name)
        else:
            holders.discard(name)
        assert len(holders) <= 2
    assert {name for action, _, name in (line.partition(" ") for line in visits) if action == "out"} == {
        f"visit-{number}" for number in range(8)
    }
    assert [name for name in stored_limits(path) if "slots" in name] == []


@workflow.defn
def hold_until_signalled(key: str) -> str:
    with limits.slot(key):
        inside.publish("in")
        return go.receive()


@workflow.defn
def return_argument(value: int) -> int:
    return value


def test_slot_of_a_run_terminated_without_an_owner_is_freed(tmp_path: Path) -> None:
    target = f"local:{tmp_path / 'limits.db'}"
    with Client.connect(target) as client:
        with Worker(client, workflows=[hold_until_signalled]):
            holder = client.start_workflow(hold_until_signalled, "k", id="holder")
            assert next(inside.follow(holder, timeout=TIMEOUT)) == "in"
            waiting = client.start_workflow(hold_until_signalled, "k", id="waiting")
            until = time.monotonic() + TIMEOUT
            table = client.get_workflow_handle("hourglass.slots:k")
            while not table.query(SlotKeeper.slots).waiting:
                assert time.monotonic() < until
        assert sorted(stored_limits(tmp_path / "limits.db")) == sorted(
            f"{NOTE}hourglass.slots:k\n{run.run_id}" for run in (holder, waiting)
        )
    with Client.connect(target) as client:
        client.get_workflow_handle("holder").terminate("gone")
        assert stored_limits(tmp_path / "limits.db") == [f"{NOTE}hourglass.slots:k\n{waiting.run_id}"]
        with Worker(client, workflows=[hold_until_signalled]):
            reopened: WorkflowHandle[str] = client.get_workflow_handle("waiting")
            assert next(inside.follow(reopened, timeout=TIMEOUT)) == "in"
            reopened.signal(go, "out")
            assert reopened.result(timeout=TIMEOUT) == "out"
    assert stored_limits(tmp_path / "limits.db") == []


def test_calls_debounced_without_a_worker_become_one_run(tmp_path: Path) -> None:
    target = f"local:{tmp_path / 'limits.db'}"
    for value in range(3):
        with Client.connect(target) as client:
            limits.debounce(client, return_argument, value, key="k", wait=0)
    with Client.connect(target) as client, Worker(client, workflows=[return_argument]):
        call = limits.debounce(client, return_argument, 3, key="other", wait=0)
        assert call.result() == 3
        until = time.monotonic() + TIMEOUT
        while not (runs := [run for run in client.list_workflows() if run.id.startswith("k:")]):
            assert time.monotonic() < until
        assert client.get_workflow_handle(runs[0].id).result(timeout=TIMEOUT) == 2
        assert client.count_workflows() == 2


def test_damaged_limit_in_the_file_is_logged_and_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "limits.db"
    with Client.connect(f"local:{path}") as client, Worker(client, workflows=[hold_until_signalled]):
        client.start_workflow(return_argument, 1, id="any")
    with sqlite3.connect(path) as connection:
        for name in (f"{NOTE}hourglass.slots:bad\nrun", f"{NOTE}hourglass.throttle:bad", f"{NOTE}other"):
            connection.execute("INSERT INTO meta (name, value) VALUES (?, ?)", (name, b"\xff"))
    with (
        caplog.at_level(logging.ERROR),
        Client.connect(f"local:{path}") as client,
        Worker(client, workflows=[hold_until_signalled]),
    ):
        holder = client.start_workflow(hold_until_signalled, "good")
        assert next(inside.follow(holder, timeout=TIMEOUT)) == "in"
    assert sum("cannot be read and is discarded" in record.message for record in caplog.records) >= 3


class ReversingCodec:
    """Reverses the data of payloads."""

    def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(payload.data[::-1], "test/reversed", {"was": payload.encoding.encode()})
            for payload in payloads
        ]

    def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(payload.data[::-1], (payload.metadata or {})["was"].decode()) for payload in payloads]


def test_limits_use_keeper_workflows_if_a_codec_hides_messages() -> None:
    with (
        Client.connect("local:", codec=ReversingCodec()) as client,
        Worker(client, workflows=[hold_until_signalled, return_argument]),
    ):
        holder = client.start_workflow(hold_until_signalled, "k", id="holder")
        assert next(inside.follow(holder, timeout=TIMEOUT)) == "in"
        waiting = client.start_workflow(
            hold_until_signalled, "k", id="waiting"
        )  # started later, so that its request is second
        for handle in (holder, waiting):
            handle.signal(go, "out")
            assert handle.result(timeout=TIMEOUT) == "out"
        assert limits.debounce(client, return_argument, 3, key="k", wait=0).result() == 3
        assert client.count_workflows("WorkflowType = 'hourglass.slots'") == 1
        assert client.count_workflows("WorkflowType = 'hourglass.debounce'") == 1


@workflow.defn
def hold(seconds: float) -> tuple[float, float]:
    with limits.slot("k"):
        entered = workflow.time()
        workflow.sleep(seconds)
        return entered, workflow.time()


def test_open_keeper_workflow_is_used_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, env: Environment
) -> None:
    """Afterwards the engine keeps the limit. The histories replay."""
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
def throttle_repeatedly(key: str, count: int) -> None:
    for _ in range(count):
        limits.throttle(key, 5, per=1)


def test_terminating_a_busy_run_releases_its_throttle(env: Environment) -> None:
    busy = env.start_workflow(throttle_repeatedly, "k", 10_000)
    env.skip(10)
    busy.terminate()
    begin = env.now().timestamp()
    env.execute_workflow(throttle_repeatedly, "k", 1)
    assert env.now().timestamp() - begin <= 1.0
