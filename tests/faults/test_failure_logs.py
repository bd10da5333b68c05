"""Logs of failures: what a worker, and a client that waits, report. On both engines."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

import hourglass
from hourglass import RetryPolicy, activity, workflow
from hourglass._worker import work_log
from hourglass._worker.lanes.nesting import DEEP
from hourglass.client import Client, _wait_notices
from hourglass.errors import ApplicationError, ApplicationErrorCategory, StorageError, WorkflowFailedError
from hourglass.testing import DevServer
from hourglass.worker import Worker

BY_ZERO = (
    "integer division or modulo by zero" if sys.version_info < (3, 14) else "division by zero"
)  # Python's words
PACKAGE = Path(hourglass.__file__).parent
SOON = RetryPolicy(initial_interval=0.01, maximum_interval=0.02)


def divide(number: int) -> int:
    return number // 0


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01, maximum_attempts=2))
def charge(order_id: str, cents: int) -> int:
    """Fail; its arguments must not be in the log."""
    return divide(cents)


@activity.defn(retry_policy=RetryPolicy(initial_interval=30.0))
def fails_for_long(cents: int) -> int:
    return divide(cents)


@activity.defn(retry_policy=SOON)
def not_there_yet(key: str) -> int:
    if activity.info().attempt < 3:
        raise ApplicationError("nothing yet", category=ApplicationErrorCategory.BENIGN)
    return 3


@activity.defn(start_to_close_timeout=0.3, retry_policy=RetryPolicy(maximum_attempts=1))
def times_out() -> None:
    _released.wait(30)


_released = threading.Event()


@workflow.defn
def order(order_id: str) -> int:
    return charge(order_id, 123456)


@workflow.defn
def waits_long() -> int:
    return fails_for_long(1)


@workflow.defn
def parent_of_waits() -> int:
    return waits_long()


@workflow.defn
def polls() -> int:
    return not_there_yet("k")


@workflow.defn
def fails_as_planned() -> None:
    raise ApplicationError("as planned", category=ApplicationErrorCategory.BENIGN)


@workflow.defn
def executes_times_out() -> None:
    times_out()


@workflow.defn
def checks(number: int) -> None:
    reject(number)


@workflow.defn
def down(number: int) -> int:
    return 1 + down(number - 1) if number else 0


def reject(number: int) -> None:
    raise ApplicationError(f"{number} is too much", type="TooMuch")


WORKFLOWS = [order, waits_long, parent_of_waits, polls, fails_as_planned, executes_times_out, checks, down]
ACTIVITIES = [charge, fails_for_long, not_there_yet, times_out]


def worker(client: Client) -> Worker:
    return Worker(client, "silence", workflows=WORKFLOWS, activities=ACTIVITIES)


def records(caplog: pytest.LogCaptureFixture, *, least: int = logging.WARNING) -> list[Any]:
    return [
        record for record in caplog.records if record.levelno >= least and record.name.startswith("hourglass")
    ]


def messages(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [text for record in records(caplog) if part in (text := record.getMessage())]


def test_each_failed_attempt_is_logged_once(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """The log has ids, attempts and the author's lines, and neither payloads nor our own frames."""
    with caplog.at_level(logging.INFO, "hourglass"), worker(client), pytest.raises(WorkflowFailedError):
        client.execute_workflow(order, "secret-7", id="order-1", task_queue="silence")
    first, last, run = records(caplog)
    assert (first.levelname, last.levelname, run.levelname) == ("WARNING", "ERROR", "WARNING")
    for at, record in enumerate((first, last), 1):
        text = record.getMessage()
        assert (
            f"activity charge of workflow order-1 (id {record.activity_id}, attempt {at} of 2) failed" in text
        )
        assert f"ZeroDivisionError: {BY_ZERO}" in text
        assert "in divide\n    return number // 0" in text
        assert "secret-7" not in text
        assert "123456" not in text
        assert "attempts.py" not in text
        facts = (
            record.workflow_id,
            record.workflow_type,
            record.task_queue,
            record.activity_type,
            record.attempt,
            record.error_type,
        )
        assert facts == ("order-1", "order", "silence", "charge", at, "ZeroDivisionError")
        assert record.run_id
    assert "retried in 0.01 s" in first.getMessage()
    assert datetime.fromisoformat(first.next_attempt_time)
    assert "failed permanently (no attempts are left)" in last.getMessage()
    assert not hasattr(last, "next_attempt_time")
    assert "order order-1 failed after" in run.getMessage()
    assert f"activity charge failed: ZeroDivisionError: {BY_ZERO}" in run.getMessage()
    assert run.workflow_id == "order-1"


def test_endless_recursion_of_children_is_logged_once(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "hourglass"), worker(client):
        assert client.execute_workflow(down, DEEP + 5, task_queue="silence") == DEEP + 5
    (record,) = messages(caplog, "call itself without end")
    assert record.startswith("workflow down (")


def test_failed_workflow_is_logged_with_its_lines(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hourglass"), worker(client), pytest.raises(WorkflowFailedError):
        client.execute_workflow(checks, 7, id="checks-1", task_queue="silence")
    (record,) = records(caplog)
    assert "checks checks-1 failed after" in record.getMessage()
    assert "TooMuch: 7 is too much\n" in record.getMessage()
    assert "in reject\n    raise ApplicationError" in record.getMessage()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (0.00008, "less than 1 ms"),
        (0.01, "0.01 s"),
        (90, "90 s"),
        (5400, "1:30:00"),
        (172_800, "2 days, 0:00:00"),
    ],
)
def test_durations_are_logged_readably(seconds: float, expected: str) -> None:
    assert work_log.duration_text(round(seconds * 1e9)) == expected


def test_benign_errors_are_not_logged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "hourglass"),
        worker(client),
    ):
        assert client.execute_workflow(polls, id="polls-1", task_queue="silence") == 3
        with pytest.raises(WorkflowFailedError) as caught:
            client.execute_workflow(fails_as_planned, id="planned-1", task_queue="silence")
    assert records(caplog) == []
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.category is ApplicationErrorCategory.BENIGN


def logged_while_waiting(handle: Any, find: Callable[[], list[str]]) -> list[str]:
    """Wait for the result in a thread until something is logged, then terminate the workflow. Return the log."""
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(handle.result)
        logged = until(find)
        handle.terminate("enough")
        assert isinstance(waiting.exception(30), WorkflowFailedError)
    return logged


def test_waiting_client_logs_a_failing_activity_once(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The activity belongs to the workflow or to its child."""
    monkeypatch.setattr(_wait_notices, "SILENCE", 0.05)
    with worker(client):
        for workflow_, id in ((waits_long, "waits-1"), (parent_of_waits, "parent-1")):
            caplog.clear()
            handle = client.start_workflow(workflow_, id=id, task_queue="silence")
            logged_while_waiting(handle, lambda: messages(caplog, "shows more"))
            (message,) = messages(caplog, "shows more")
            assert "activity fails_for_long, which failed and is retried (attempt 2, next at " in message
            assert f"ZeroDivisionError: {BY_ZERO}" in message
            assert message.startswith(f"workflow {id} waits for ")


@pytest.mark.server
def test_waiting_client_logs_a_missing_worker_on_a_server(
    quick_server: DevServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_wait_notices, "SILENCE", 0.05)
    with Client.connect(quick_server.target) as client:
        handle = client.start_workflow(order, "o", id="unserved-1", task_queue="silence-unserved")
        (record,) = logged_while_waiting(handle, lambda: messages(caplog, "has no worker"))
    assert record == "workflow unserved-1 has no worker: no worker polls its task queue 'silence-unserved'"


@workflow.defn
def executes_on_unserved_queue() -> int:
    return fails_for_long.options(task_queue="silence-nowhere")(1)


@workflow.defn
def parent_of_unserved() -> int:
    return executes_on_unserved_queue()


@workflow.defn
def parent_on_unserved_queue() -> int:
    return waits_long.options(task_queue="silence-no-queue")()


def test_waiting_client_logs_tasks_without_a_worker(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activities, children, workflows and standalone activities."""
    monkeypatch.setattr(_wait_notices, "SILENCE", 0.05)
    mine = [waits_long, executes_on_unserved_queue, parent_of_unserved, parent_on_unserved_queue]
    cases: list[tuple[Any, str, str, str]] = [
        (
            waits_long,
            "untaken",
            "waits for activity fails_for_long, which has no worker: ",
            "silence-untaken",
        ),
        (
            executes_on_unserved_queue,
            "untaken",
            "activity fails_for_long, which has no worker: ",
            "silence-nowhere",
        ),
        (parent_on_unserved_queue, "untaken", "waits for workflow ", "silence-no-queue"),
        (waits_long, "idle", "workflow taken-idle-", "silence-idle"),
    ]
    with (
        Worker(client, "silence-untaken", workflows=mine),
        Worker(client, "silence-idle", activities=[fails_for_long]),
        ThreadPoolExecutor(1) as thread,
    ):
        for at, (definition, queue, part, named) in enumerate(cases):
            handle = client.start_workflow(
                definition, id=f"taken-{queue}-{at}", task_queue=f"silence-{queue}"
            )
            (record,) = logged_while_waiting(
                handle, lambda at=at, part=part: [m for m in messages(caplog, part) if f"-{at} " in m]
            )
            assert repr(named) in record
        alone = client.start_activity(
            fails_for_long, 1, id="alone-1", task_queue="silence-alone", start_to_close_timeout=5
        )
        waiting = thread.submit(alone.result)
        (record,) = until(lambda: messages(caplog, "activity alone-1 (fails_for_long) has no worker: "))
        alone.terminate("enough")
        assert waiting.exception(30) is not None
        assert record.endswith(". Register it: Worker(client, 'silence-alone', activities=[fails_for_long])")


def test_waiting_client_logs_a_missing_activity_of_a_child_once(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_wait_notices, "SILENCE", 0.05)
    with (
        Worker(client, "silence-child", workflows=[executes_on_unserved_queue, parent_of_unserved]),
        ThreadPoolExecutor(2) as threads,
    ):
        handles = [
            client.start_workflow(parent_of_unserved, id=f"child-{at}", task_queue="silence-child")
            for at in range(2)
        ]
        waiting = [threads.submit(handle.result) for handle in handles]
        (record,) = until(lambda: messages(caplog, "has no worker"))
        for handle in handles:
            handle.terminate("enough")
        assert [isinstance(each.exception(30), WorkflowFailedError) for each in waiting] == [True, True]
    assert "waits for workflow " in record
    assert "which waits for activity fails_for_long, which has no worker: " in record
    assert len(messages(caplog, "has no worker")) == 1


def test_waiting_client_logs_a_missing_worker_in_memory(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_wait_notices, "SILENCE", 0.05)
    with Client.connect("local:") as client:
        handle = client.start_workflow(order, "o", id="unserved-2")
        (record,) = logged_while_waiting(handle, lambda: messages(caplog, "has no worker"))
    assert record == "workflow unserved-2 has no worker: no worker polls its task queue 'default'"


@workflow.defn
class Basket:
    @workflow.run
    def run(self) -> None:
        workflow.wait_condition(lambda: False)

    @workflow.update
    def put(self, item: str) -> str:
        return item


def test_waiting_client_logs_an_update_without_a_worker(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_wait_notices, "SILENCE", 0.05)
    queue = "silence-updates"
    handle = client.start_workflow(Basket.run, id="basket-1", task_queue=queue)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(handle.execute_update, Basket.put, "pear")
        (record,) = until(lambda: messages(caplog, "has no worker"))
        assert record == f"workflow basket-1 has no worker: no worker polls its task queue {queue!r}"
        with Worker(client, queue, workflows=[Basket]):
            assert waiting.result(60) == "pear"
            handle.terminate("enough")
    assert messages(caplog, "has no worker") == [record]


@pytest.mark.server
def test_waiting_client_ignores_pollers_of_ended_workers(
    quick_server: DevServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server lists pollers for minutes after they ended."""
    monkeypatch.setattr(_wait_notices, "SILENCE", 0.05)
    monkeypatch.setattr(_wait_notices, "_PATIENCE", 0.1)
    with Client.connect(quick_server.target) as client:
        with Worker(client, "silence-ended", workflows=[checks]), pytest.raises(WorkflowFailedError):
            client.execute_workflow(checks, 1, id="ended-0", task_queue="silence-ended")
        handle = client.start_workflow(checks, 1, id="ended-1", task_queue="silence-ended")
        (record,) = logged_while_waiting(handle, lambda: messages(caplog, "has no worker"))
    assert record.startswith("workflow ended-1 has no worker: ")


def test_timed_out_attempt_is_logged_by_its_worker(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    _released.clear()
    with (
        caplog.at_level(logging.WARNING, "hourglass"),
        worker(client),
    ):
        with pytest.raises(WorkflowFailedError):
            client.execute_workflow(executes_times_out, id="late-1", task_queue="silence")
        try:
            timeouts = until(lambda: messages(caplog, "activity times_out of workflow late-1"))
        finally:
            _released.set()
    assert len(timeouts) == 1
    assert "start_to_close_timeout 0.3 s" in timeouts[0]


def test_printed_error_shows_remote_lines(client: Client) -> None:
    """The only frame of ours is the called method."""
    with (
        worker(client),
        pytest.raises(WorkflowFailedError) as caught,
    ):
        client.execute_workflow(order, "o", id="order-2", task_queue="silence")
    text = "".join(traceback.format_exception(caught.value))
    assert "Raised at (most recent call last):\n" in text
    assert f"in divide\n    return number // 0\nZeroDivisionError: {BY_ZERO}\n" in text
    ours = [
        line
        for line in text.splitlines()
        if line.lstrip().startswith("File") and "/hourglass/client/" in line
    ]
    assert [line.rpartition(" in ")[2] for line in ours] == ["execute_workflow"]
    assert "/hourglass/_worker/" not in text
    assert "/hourglass/_worker/" in str(getattr(caught.value.root_cause, "remote_traceback", ""))


def test_unusable_file_is_reported_without_our_frames(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "dir.db").mkdir()
    (tmp_path / "text.db").write_text("no database, but long enough to be one\n" * 100)
    with pytest.raises(StorageError, match="is a directory: pass the path of a file") as refused:
        Client.connect(f"local:{tmp_path / 'dir.db'}")
    with (
        Client.connect(f"local:{tmp_path / 'text.db'}") as client,
        pytest.raises(StorageError, match="is not a database") as unusable,
    ):
        Worker(client, workflows=[order]).start()
    for caught in (refused, unusable):
        frames = traceback.extract_tb(caught.value.__traceback__)
        ours = [frame.name for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)]
        assert ours in ([], ["connect"], ["start"])
    assert [record for record in caplog.records if record.exc_info] == []
    assert messages(caplog, "is not a database")


def test_full_tracebacks_are_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOURGLASS_TRACEBACK", "full")
    with Client.connect("local:") as client, worker(client), pytest.raises(WorkflowFailedError) as caught:
        client.execute_workflow(order, "o", task_queue="silence")
    text = "".join(traceback.format_exception(caught.value))
    assert "/client/_waiting.py" in text


@workflow.defn
def schedules_without_worker() -> None:
    charge.options(task_queue="nobody", schedule_to_start_timeout=0.05)("o", 1)


def test_attempt_timeout_without_a_worker_is_logged_by_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[schedules_without_worker]),
        pytest.raises(WorkflowFailedError),
    ):
        client.execute_workflow(schedules_without_worker, id="nobody-1")
    (record,) = [record for record in records(caplog) if record.name == "hourglass.embedded"]
    assert record.levelname == "ERROR"
    text = (
        "activity charge of workflow nobody-1 (id 1, attempt 1) timed out while no worker was executing it; "
        "it will not be retried"
    )
    assert record.getMessage() == text
    assert (record.workflow_id, record.activity_type, record.task_queue) == ("nobody-1", "charge", "nobody")


DIES = """
import os, pathlib, signal
from hourglass import Client, Worker, activity, workflow

@activity.defn
def dies(once: str) -> str:
    if not pathlib.Path(once).exists():
        pathlib.Path(once).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "lived"

@workflow.defn
def risky(once: str) -> str:
    return dies(once)

if __name__ == "__main__":
    with Client.connect(TARGET) as client, Worker(client, workflows=[risky], activities=[dies]):
        handle = client.start_workflow(risky, ONCE, id="risky-1", id_conflict_policy=2)
        print(handle.result())
"""


def test_attempt_lost_with_its_process_is_logged_by_the_next(tmp_path: Path) -> None:
    program = tmp_path / "risky.py"
    target, once = f"local:{tmp_path / 'a.db'}", str(tmp_path / "once")
    program.write_text(DIES.replace("TARGET", repr(target)).replace("ONCE", repr(once)))
    command = [sys.executable, str(program)]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == -9
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "lived" in done.stdout
    lost = (
        "activity dies of workflow risky-1 (id 1, attempt 1) was lost, because the process of its worker ended; "
        "it will be retried"
    )
    assert done.stderr.count(lost) == 1


PLAIN = """
from hourglass import Client, Worker, activity, workflow

@activity.defn
def charge(cents: int) -> int:
    return cents // 0

@workflow.defn
def order(cents: int) -> int:
    return charge(cents)

with Client.connect(TARGET) as client, Worker(client, "plain", workflows=[order], activities=[charge]):
    handle = client.start_workflow(order, 1, id="plain-1", task_queue="plain")
    try:
        handle.result(timeout=1.0)
    except TimeoutError:
        handle.terminate("enough")
"""


def test_program_without_logging_configuration_shows_failures(client: Client, tmp_path: Path) -> None:
    target = client.target if client.target != "local:" else f"local:{tmp_path / 'a.db'}"
    program = tmp_path / "plain.py"
    program.write_text(PLAIN.replace("TARGET", repr(target)))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "activity charge of workflow plain-1 (id 1, attempt 1) failed (retried in 1 s, at " in done.stderr
    assert f'  File "{program}", line 6, in charge\n    return cents // 0\n' in done.stderr
