"""`hourglass why` in staged situations, most of them on the embedded engine: it names the right cause, the line, what to do."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command_line import main
from hourglass import Client, RetryPolicy, Worker
from hourglass.client import UpdateStage
from hourglass.testing import DevServer
from servers import free_port, temporal_cli

from . import why_flows
from .command import until

FLOWS = Path(why_flows.__file__)


def line_of(text: str) -> str:
    """Return the location of a line of the staged workflows, as the page shows it."""
    at = next(at for at, line in enumerate(FLOWS.read_text().splitlines(), 1) if text in line)
    return f"{FLOWS.name}:{at}"


def code_of_then(folder: Path) -> Path:
    """A file with the code that began the runs of the type that changes."""
    code = folder / "code_of_then.py"
    code.write_text(
        "from hourglass import activity, workflow\n\ndecision = workflow.Channel('decision', bool)\n\n\n"
        "@activity.defn\ndef well() -> str:\n    return 'well'\n\n\n"
        "@workflow.defn(name='changing')\ndef then() -> None:\n    well()\n    decision.receive()\n"
    )
    return code


class Stage:
    """A target, a client of it, and what `hourglass why` says there."""

    def __init__(self, client: Client, target: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.client = client
        self.target = target
        self._capsys = capsys

    def ask(self, workflow_id: str, *options: str) -> tuple[int, str]:
        """The exit code and the page."""
        self._capsys.readouterr()
        code = main(["why", workflow_id, "--target", self.target, *options])
        return code, self._capsys.readouterr().out

    def why(self, workflow_id: str, cause: str, *options: str) -> tuple[dict[str, Any], str]:
        """Wait until this is the cause. Return the first finding and the page."""
        seen: dict[str, Any] = {}

        def looks_like_it() -> bool:
            seen.update(json.loads(self.ask(workflow_id, "--json", *options)[1]))
            return seen["cause"] in cause.split(" or ")

        try:
            until(f"{workflow_id}: {cause}", looks_like_it, 20)
        except AssertionError as error:
            raise AssertionError(f"{error}; instead: {json.dumps(seen, indent=1)}") from None
        code, page = self.ask(workflow_id, *options)
        assert code == 0
        assert page.startswith(workflow_id)
        found: dict[str, Any] = seen["findings"][0]
        return found, page

    @contextmanager
    def worker(self, queue: str = "default", **given: Any) -> Iterator[Worker]:
        """A worker of the staged workflows."""
        options = given or {"workflows": why_flows.WORKFLOWS, "activities": why_flows.ACTIVITIES}
        with Worker(self.client, queue, **options) as worker:
            yield worker


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Stage]:
    """An empty file of the embedded engine."""
    target = f"local:{tmp_path / 'why.db'}"
    with Client.connect(target) as client:
        yield Stage(client, target, capsys)


@pytest.fixture
def served(stage: Stage) -> Iterator[Stage]:
    """The same with a worker."""
    why_flows.released.clear()
    with stage.worker():
        yield stage
        why_flows.released.set()


@pytest.fixture(params=["embedded", pytest.param("server", marks=pytest.mark.server)])
def either(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Iterator[Stage]:
    """The embedded engine, and a real server."""
    if request.param == "embedded":
        yield request.getfixturevalue("stage")
        return
    server: DevServer = request.getfixturevalue("quick_server")
    with Client.connect(server.target) as client:
        yield Stage(client, server.target, capsys)


# --- workers ---------------------------------------------------------------------------------------------------------


def test_why_no_worker(either: Stage) -> None:
    """The page says that no worker serves the queue, and how to start one."""
    either.client.start_workflow(why_flows.sleeps, id="alone-1", task_queue="why-alone")
    found, page = either.why(
        "alone-1", "no_worker or wrong_queue"
    )  # on a shared server others serve other queues
    assert "no worker polls its task queue 'why-alone'" in page
    assert found["do"][0]["command"].startswith("hourglass worker FILE --task-queue why-alone --target ")
    either.client.get_workflow_handle("alone-1").terminate()


def test_why_wrong_queue(either: Stage) -> None:
    """Others are served: it names them, and the one that was probably meant."""
    with either.worker("why-orders"):
        either.client.start_workflow(why_flows.ends_well, id="right-1", task_queue="why-orders").result()
        either.client.start_workflow(why_flows.sleeps, id="typo-1", task_queue="why-ordres")
        found, page = either.why("typo-1", "wrong_queue")
        assert "did you mean 'why-orders'?" in page
        assert any("--task-queue why-orders" in each["command"] for each in found["do"])
        either.client.get_workflow_handle("typo-1").terminate()


def test_why_no_worker_for_an_activity(served: Stage) -> None:
    """The workflow is served, its activity's queue is not."""
    served.client.start_workflow(why_flows.asks_elsewhere, id="act-1")
    _, page = served.why("act-1", "no_activity_worker")
    assert ": no worker polls task queue 'elsewhere' for activities" in page


# --- activities ------------------------------------------------------------------------------------------------------


def test_why_failing_activity(either: Stage) -> None:
    """The page shows the exception, its line, the number of failures, and the time of the next attempt."""
    with either.worker("why-pays"):
        handle = either.client.start_workflow(why_flows.pays, "o-1", id="pays-1", task_queue="why-pays")
        found, page = either.why("pays-1", "activity_fails")
        assert "ConnectionError: the bank does not answer for o-1" in page
        assert line_of("raise ConnectionError") in page
        assert "1 attempt; next attempt at " in page
        assert line_of("return closed_bank(order)") in page
        assert found["next_attempt"] is not None
        handle.terminate()


@pytest.mark.parametrize(
    ("workflow", "kind", "limit"),
    [
        ("hurries", "StartToClose", "start_to_close_timeout 0.05 s"),
        ("listens", "Heartbeat", "heartbeat_timeout 0.05 s"),
    ],
)
def test_why_activity_that_times_out(served: Stage, workflow: str, kind: str, limit: str) -> None:
    """The page shows which timeout expired and its length, and says that the activity is retried."""
    served.client.start_workflow(workflow, id="late-1")
    found, page = served.why("late-1", "activity_times_out")
    assert kind.lower() in page.lower().replace(" ", "")
    assert limit in page
    assert found["next_attempt"] is not None


@pytest.mark.parametrize(
    ("workflow", "kind"),
    [("misses_the_start", "schedule to start"), ("misses_the_end", "schedule to close")],
)
def test_why_run_failed_by_an_activity_timeout(served: Stage, workflow: str, kind: str) -> None:
    """A limit that allows no further attempt fails the run: the activity and the reason are named."""
    served.client.start_workflow(workflow, id="over-1")
    found, page = served.why("over-1", "failed")
    assert "failed, because activity " in page
    assert kind in page
    assert "hourglass reset over-1 --before " in page
    assert found["failure"]


@pytest.mark.parametrize("name", ["is_stuck", "is_stuck_async"])
def test_why_stuck_activity(either: Stage, name: str) -> None:
    """The page shows the timeout, the time of the last heartbeat, and the line at which the code is."""
    why_flows.released.clear()
    with either.worker("why-stuck"):
        handle = either.client.start_workflow(name, id=f"{name}-1", task_queue="why-stuck")
        until("its stack", lambda: "its thread is at:" in either.ask(f"{name}-1")[1], 20)
        found, page = either.why(f"{name}-1", "activity_runs")
        why_flows.released.set()
        line = "released.wait(30)" if name == "is_stuck" else "await asyncio.to_thread"
        assert "in rests" in page
        assert line in page
        assert "start_to_close_timeout 600 s" in page
        assert "no heartbeat of " in page
        assert found["until"] is not None
        handle.result(timeout=30)


def test_why_unknown_activity_type(served: Stage) -> None:
    """The worker has no code for it."""
    served.client.start_workflow(why_flows.asks_a_stranger, id="stranger-1")
    _, page = served.why("stranger-1", "unknown_activity")
    assert "activity nobody_knows_it, which is not registered with the worker" in page


# --- parked ----------------------------------------------------------------------------------------------------------


def test_why_bug(either: Stage) -> None:
    """The page shows the exception and the line that raised it, and says that fixing the line is enough."""
    with either.worker("why-bug"):
        handle = either.client.start_workflow(why_flows.stumbles, id="bug-1", task_queue="why-bug")
        found, page = either.why("bug-1", "bug")
        assert "KeyError: 'apples'" in page
        assert f'{line_of("""return stock["apples"]""")}   return stock["apples"]' in page
        assert "Fix the line" in page
        assert found["attempts"] >= 1
        handle.terminate()


def test_why_nondeterminism(either: Stage, tmp_path: Path) -> None:
    """The page shows the event in the history and the command of the code, and the line if the code is
    available.
    """
    client = either.client
    with either.worker("why-new", workflows=[why_flows.before_the_change], activities=[why_flows.well]):
        handle = client.start_workflow("changing", id="changing-1", task_queue="why-new")
        either.why("changing-1", "signal")
    with either.worker("why-new", workflows=[why_flows.after_the_change], activities=[why_flows.well]):
        handle.signal(why_flows.decision, True)
        _, page = either.why("changing-1", "nondeterminism")
    assert "its code no longer matches its history" in page
    assert "hourglass why changing-1 --code FILE" in page
    where = "local" if either.target.startswith("local:") else "server"
    code = tmp_path / f"changed_{where}.py"  # a module of a name is imported once
    code.write_text(
        "from hourglass import workflow\n\n\n@workflow.defn(name='changing')\n"
        "def later() -> None:\n    workflow.sleep(3600)\n"
    )
    _, page = either.why("changing-1", "nondeterminism", "--code", str(code))
    assert "expected by the history: activity well number 1" in page
    assert "issued by the code:      timer number 1 of 3600 s" in page
    assert f"{code.name}:6   workflow.sleep(3600)" in page
    assert page.splitlines()[0].startswith(
        "changing-1 (changing) cannot continue, because its code no longer matches"
    )
    handle.terminate()


def test_why_nondeterminism_comes_first(stage: Stage, tmp_path: Path) -> None:
    """The difference comes before other findings, such as a missing worker or a wait; for a parked run the page says
    if the local code fits.
    """
    client = stage.client
    with stage.worker(workflows=[why_flows.before_the_change], activities=[why_flows.well]):
        client.start_workflow("changing", id="fits-1")
        stage.why("fits-1", "signal")
    code = tmp_path / "changed_headline.py"
    code.write_text(
        "from hourglass import workflow\n\n\n@workflow.defn(name='changing')\n"
        "def later() -> None:\n    workflow.sleep(3600)\n"
    )
    _, page = stage.why("fits-1", "nondeterminism", "--code", str(code))
    assert page.splitlines()[0].startswith("fits-1 (changing) will not continue with this code")
    assert "It also has no worker" in page
    with stage.worker(workflows=[why_flows.after_the_change], activities=[why_flows.well]):
        client.get_workflow_handle("fits-1").signal(why_flows.decision, True)
        stage.why("fits-1", "nondeterminism")
    found, page = stage.why("fits-1", "nondeterminism", "--code", str(code_of_then(tmp_path)))
    assert "is parked, but would continue with the code of --code" in page
    assert found["do"][0]["command"].startswith("hourglass worker FILE")


def test_why_hanging_code(stage: Stage) -> None:
    """Workflow code that blocks its thread: the line, and that it belongs into an activity."""
    why_flows.released.clear()
    with stage.worker(workflows=[why_flows.blocks], deadlock_timeout=0.2):
        stage.client.start_workflow(why_flows.blocks, id="blocks-1")
        _, page = stage.why("blocks-1", "hung")
        why_flows.released.set()
    assert f"{FLOWS.name}:{int(line_of('def blocks').rpartition(':')[2]) + 1}" in page
    assert "move it into an activity" in page


def test_why_undecodable_payload(served: Stage) -> None:
    """The page names the argument, the received and the expected type, and no line of code."""
    served.client.start_workflow("counts", "three", id="counts-1")
    found, page = served.why("counts-1", "undecodable")
    assert "argument 'number' of workflow counts: expected int, got str" in page
    assert found["place"] == ""
    assert "three" not in page


def test_why_unknown_workflow_type(served: Stage) -> None:
    """The worker has no code for it."""
    served.client.start_workflow("nobody_wrote_it", id="type-1")
    _, page = served.why("type-1", "unknown_workflow")
    assert "workflow type 'nobody_wrote_it' is not registered with this worker" in page
    assert "hourglass worker FILE" in page


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_why_waiting_for_a_signal(either: Stage) -> None:
    """The page shows the signal, the waiting line, the deadline, and the command that sends the signal."""
    with either.worker("why-signal"):
        handle = either.client.start_workflow(why_flows.decides, id="decides-1", task_queue="why-signal")
        found, page = either.why("decides-1", "signal")
        assert "waits for signal 'decision', since " in page
        assert line_of("return decision.receive") in page
        assert "(in 3 h)" in page
        assert "    hourglass signal decision decides-1 VALUE --target" in page
        assert found["until"] is not None
        handle.terminate()


def test_why_waiting_for_a_signal_with_a_deadline(either: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """`why`, without a worker too, and `show` name the signal, not the timer that limits the wait."""
    with either.worker("why-limit"):
        handle = either.client.start_workflow(why_flows.decides, id="limit-1", task_queue="why-limit")
        either.why("limit-1", "signal")
    _, page = either.why("limit-1", "no_worker or wrong_queue or signal")
    assert "waits for signal 'decision', since " in page
    assert "timer" not in page
    assert main(["show", "limit-1", "--target", either.target]) == 0
    shown = capsys.readouterr().out
    assert "waits for  signal decision, for at most 3 h more" in shown
    assert "wait for signal decision" in shown
    handle.terminate()


def test_why_misspelt_signal(either: Stage) -> None:
    """A signal that nothing takes is the headline where its name is nearly that of one that is waited for."""
    with either.worker("why-typo"):
        handle = either.client.start_workflow(why_flows.decides, id="misspelt-1", task_queue="why-typo")
        either.why("misspelt-1", "signal")
        handle.signal("desicion", True)
        found, page = either.why("misspelt-1", "unheard")
        assert "received signal 'desicion', which has no handler" in page
        assert "did you mean 'decision'?" in page
        assert "It also waits for signal 'decision'" in page
        assert found["do"][0]["command"].startswith("hourglass signal decision misspelt-1 VALUE")
        handle.signal("another", True)  # it may be meant for what the code has not come to
        assert "'another'" not in either.ask("misspelt-1")[1]
        handle.terminate()


def test_why_waiting_for_a_signal_without_a_worker(stage: Stage) -> None:
    """The waiting line is unknown: the missing worker comes first, followed by everything that is known."""
    with stage.worker(workflows=[why_flows.before_the_change], activities=[why_flows.well]):
        stage.client.start_workflow("changing", id="quiet-1")
        stage.why("quiet-1", "signal")
    _, page = stage.why("quiet-1", "no_worker")
    assert "It also waits for a signal, an update, or a condition" in page
    assert "no worker is running to answer queries" in page


def test_why_waiting_for_a_timer(served: Stage) -> None:
    """Until when."""
    served.client.start_workflow(why_flows.sleeps, id="sleeps-1")
    found, page = served.why("sleeps-1", "timer")
    assert "(in 3 d)" in page
    assert line_of("workflow.sleep(timedelta(days=3))") in page
    assert found["until"] is not None


def test_why_waiting_for_a_child(served: Stage) -> None:
    """The child is followed: what it waits for, and what to do about that."""
    served.client.start_workflow(why_flows.delegates, id="parent-1")
    served.why("parent-1-child", "signal")
    found, page = served.why("parent-1", "child")
    assert found["child"]["cause"] == "signal"
    assert "↳ parent-1-child (decides) waits for signal 'decision'" in page
    assert "hourglass signal decision parent-1-child VALUE" in page


def test_why_waiting_for_an_update(served: Stage) -> None:
    """The page shows an update that was accepted but has not returned, and the line at which its handler waits."""
    handle = served.client.start_workflow(why_flows.changes, id="changes-1")
    handle.start_update("change", 3, wait_for_stage=UpdateStage.ACCEPTED)
    _, page = served.why("changes-1", "update")
    assert "handles update 'change', which has not completed" in page
    assert line_of("workflow.wait_condition(lambda: to < 0)") in page


def test_why_waiting_for_a_condition(served: Stage) -> None:
    """The line of the condition, and the messages that could make it true."""
    served.client.start_workflow(why_flows.changes, id="changes-2")
    _, page = served.why("changes-2", "condition")
    assert "workflow.wait_condition(lambda: False)" in page
    assert "hourglass update change changes-2 …" in page


def test_why_waiting_for_a_lock(served: Stage) -> None:
    """The page shows the line that waits for the lock, and the line at which the holder is."""
    served.client.start_workflow(why_flows.locks, id="locks-1")
    found, page = served.why("locks-1", "lock")
    assert found["code"] == "with lock:"
    assert "meanwhile holder is at" in page
    assert "workflow.wait_condition(lambda: False)" in page


# --- closed ----------------------------------------------------------------------------------------------------------


def test_why_compensated_saga(either: Stage) -> None:
    """The page names the steps executed since the failure, and does not advise a reset to a point where
    compensation has started.
    """
    with either.worker("why-saga"):
        handle = either.client.start_workflow(why_flows.undoes, "o", id="undoes-1", task_queue="why-saga")
        found, page = either.why("undoes-1", "failed")
        assert "failed, because activity refused failed" in page
        assert "after that it ran refund, release" in page
        commands = [each["command"] for each in found["do"]]
        assert (
            f"hourglass start undoes … --id undoes-1 --task-queue why-saga --target {either.target}"
            in commands
        )
        assert [each for each in commands if " reset " in each] == [
            f"hourglass reset undoes-1 --before reserve --target {either.target}"
        ]
        assert handle.describe().status.name == "FAILED"


def test_why_saga_with_an_error_of_its_own(served: Stage) -> None:
    """The failed step is found even if the workflow raised another error; names show which step was undone."""
    served.client.start_workflow(why_flows.undoes_its_own, "o", id="trip-1")
    found, page = served.why("trip-1", "failed")
    assert "after that it ran cancel_hotel" in page
    assert any("reset trip-1 --before book_hotel" in each["command"] for each in found["do"])
    assert (
        main(["reset", "trip-1", "--before", "cancel_hotel", "--target", served.target]) == 0
    )  # a local activity


def test_why_failed_run(served: Stage) -> None:
    """The step, its root cause, its line, and how to do it again."""
    served.client.start_workflow(why_flows.ships, id="ships-1")
    _, page = served.why("ships-1", "failed")
    assert "failed, because activity refused failed, at " in page
    assert "NoCarrier: no carrier serves this address" in page
    assert line_of("raise ApplicationError") in page
    assert "hourglass reset ships-1 --before refused" in page


def test_why_timed_out_run(served: Stage) -> None:
    """The page shows the timeout that expired, and what the run was waiting for at that time."""
    served.client.start_workflow(why_flows.sleeps, id="slow-1", run_timeout=0.2)
    _, page = served.why("slow-1", "timed_out")
    assert "its run_timeout was 200 ms" in page
    assert "it timed out while it waited for timer 3 d" in page


def test_why_terminated_run(served: Stage) -> None:
    """The page shows who terminated the run, and the reason."""
    handle = served.client.start_workflow(why_flows.sleeps, id="ended-1")
    handle.terminate("customer called")
    _, page = served.why("ended-1", "terminated")
    assert f"was terminated by {served.client.identity}" in page
    assert "reason: customer called" in page


def test_why_cancelled_run(served: Stage) -> None:
    """The page says that the run was cancelled, and shows the reason."""
    handle = served.client.start_workflow(why_flows.sleeps, id="cancelled-1")
    served.why("cancelled-1", "timer")
    handle.cancel("not needed")
    _, page = served.why("cancelled-1", "cancelled")
    assert "was cancelled" in page
    assert "reason: not needed" in page


def test_why_completed_run(served: Stage) -> None:
    """The page reports no problem."""
    served.client.start_workflow(why_flows.ends_well, id="well-1").result()
    _, page = served.why("well-1", "done")
    assert "has completed, at " in page


def test_why_run_that_ignores_its_cancellation(either: Stage) -> None:
    """The page shows when and why cancellation was requested, what the run does instead, and how to terminate
    it.
    """
    with either.worker("why-refuses"):
        handle = either.client.start_workflow(why_flows.refuses, id="refuses-1", task_queue="why-refuses")
        either.why("refuses-1", "timer")
        handle.cancel("the customer called")
        found, page = either.why("refuses-1", "cancelling")
        assert "received a cancellation request, but has not ended" in page
        assert "reason: the customer called" in page
        assert "It also waits for a timer" in page
        assert any(each["command"].startswith("hourglass terminate refuses-1") for each in found["do"])
        handle.terminate()


def test_why_retried_run(served: Stage) -> None:
    """A run whose last attempt failed has not begun again: what the attempt before raised, at which line, and when."""
    policy = RetryPolicy(initial_interval=3600)
    served.client.start_workflow(why_flows.gives_up, id="again-1", retry_policy=policy)
    found, page = served.why("again-1", "delayed")
    assert "failed and is retried by its retry policy: attempt 2 has not started" in page
    assert "SoldOut: the shelf is empty" in page
    assert line_of('type="SoldOut"') in page
    assert found["until"] is not None


def test_why_no_free_activity_slot(stage: Stage) -> None:
    """The page says that the worker has no free slot, and how to add slots."""
    why_flows.released.clear()
    options: dict[str, Any] = {"workflows": why_flows.WORKFLOWS, "activities": why_flows.ACTIVITIES}
    with stage.worker(**options, max_concurrent_activities=1):
        stage.client.start_workflow(why_flows.crowds, id="crowds-1")
        stage.why("crowds-1", "activity_runs")
        until("a word about room", lambda: "no free slot for the activity" in stage.ask("crowds-1")[1])
        assert "which no worker has started yet (×2)" in stage.ask("crowds-1")[1]
        why_flows.released.set()


@pytest.mark.server
def test_why_paused_activity(quick_server: DevServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody paused it by hand: that it waits for them, not for its next attempt."""
    with Client.connect(quick_server.target) as client:
        stage = Stage(client, quick_server.target, capsys)
        with stage.worker("why-paused"):
            handle = client.start_workflow(why_flows.pays, "o-1", id="paused-1", task_queue="why-paused")
            stage.why("paused-1", "activity_fails")
            named = ("--workflow-id", "paused-1", "--activity-id", "1", "--address", quick_server.target)
            subprocess.run(
                [temporal_cli(), "activity", "pause", *named], check=True, capture_output=True, timeout=30
            )
            found, page = stage.why("paused-1", "paused")
            assert "which is paused: it is not retried until it is unpaused" in page
            assert found["do"][0]["command"].endswith(f"--activity-id 1 --address {quick_server.target}")
            handle.terminate()


# --- nothing to look at ----------------------------------------------------------------------------------------------


def test_why_unknown_id(served: Stage) -> None:
    """Similar ids are named; the exit code is 1."""
    served.client.start_workflow(why_flows.sleeps, id="order-17")
    code, page = served.ask("ordr-17")
    assert code == 1
    assert "ordr-17 does not exist on this target" in page
    assert "similar ids: order-17" in page
    assert "hourglass why order-17 --target" in page


def test_why_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A question makes no file."""
    path = tmp_path / "none.db"
    assert main(["why", "order-1", "--target", f"local:{path}"]) == 1
    assert f"file {path} does not exist" in capsys.readouterr().out
    assert not path.exists()


def test_why_unreachable_server(unused_port: Callable[[], int], capsys: pytest.CaptureFixture[str]) -> None:
    """The target is named, and what it answered; the exit code is 1."""
    target = f"127.0.0.1:{unused_port()}"
    assert main(["why", "order-1", "--target", target, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["cause"] == "unreachable"
    assert target in document["findings"][0]["what"]
    assert document["findings"][0]["do"][0]["command"] == f"hourglass doctor --target {target}"


@pytest.fixture
def unused_port() -> Callable[[], int]:
    """Ports of the loopback interface that nobody listens on."""
    return free_port
