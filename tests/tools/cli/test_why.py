"""`hourglass why` in staged situations: the cause, the line and the remedy."""

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


def write_original_code(folder: Path) -> Path:
    """Write the original code of the workflow type that changes."""
    code = folder / "code_of_then.py"
    code.write_text(
        "from hourglass import activity, workflow\n\ndecision = workflow.Channel('decision', bool)\n\n\n"
        "@activity.defn\ndef well() -> str:\n    return 'well'\n\n\n"
        "@workflow.defn(name='changing')\ndef then() -> None:\n    well()\n    decision.receive()\n"
    )
    return code


class Stage:
    """A target, its client, and the output of `hourglass why` there."""

    def __init__(self, client: Client, target: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.client = client
        self.target = target
        self._capsys = capsys

    def run_why(self, workflow_id: str, *options: str) -> tuple[int, str]:
        """Return exit code and output."""
        self._capsys.readouterr()
        code = main(["why", workflow_id, "--target", self.target, *options])
        return code, self._capsys.readouterr().out

    def wait_for_cause(self, workflow_id: str, cause: str, *options: str) -> tuple[dict[str, Any], str]:
        """Wait until this is the cause. Return the first finding and the page."""
        document: dict[str, Any] = {}

        def has_cause() -> bool:
            document.update(json.loads(self.run_why(workflow_id, "--json", *options)[1]))
            return document["cause"] in cause.split(" or ")

        try:
            until(f"{workflow_id}: {cause}", has_cause, 20)
        except AssertionError as error:
            raise AssertionError(f"{error}; instead: {json.dumps(document, indent=1)}") from None
        code, page = self.run_why(workflow_id, *options)
        assert code == 0
        assert page.startswith(workflow_id)
        found: dict[str, Any] = document["findings"][0]
        return found, page

    @contextmanager
    def worker(self, queue: str = "default", **worker_options: Any) -> Iterator[Worker]:
        options = worker_options or {"workflows": why_flows.WORKFLOWS, "activities": why_flows.ACTIVITIES}
        with Worker(self.client, queue, **options) as worker:
            yield worker


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Stage]:
    """An empty file of the embedded engine."""
    target = f"local:{tmp_path / 'why.db'}"
    with Client.connect(target) as client:
        yield Stage(client, target, capsys)


@pytest.fixture
def served_stage(stage: Stage) -> Iterator[Stage]:
    """An empty file with a worker."""
    why_flows.released.clear()
    with stage.worker():
        yield stage
        why_flows.released.set()


@pytest.fixture(params=["embedded", pytest.param("server", marks=pytest.mark.server)])
def engine_stage(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Iterator[Stage]:
    """A file of the embedded engine, and a real server."""
    if request.param == "embedded":
        yield request.getfixturevalue("stage")
        return
    server: DevServer = request.getfixturevalue("quick_server")
    with Client.connect(server.target) as client:
        yield Stage(client, server.target, capsys)


# --- workers ---------------------------------------------------------------------------------------------------------


def test_why_reports_a_missing_worker_and_how_to_start_one(engine_stage: Stage) -> None:
    engine_stage.client.start_workflow(why_flows.sleeps, id="alone-1", task_queue="why-alone")
    found, page = engine_stage.wait_for_cause(
        "alone-1", "no_worker or wrong_queue"
    )  # on a shared server others serve other queues
    assert "no worker polls its task queue 'why-alone'" in page
    assert found["do"][0]["command"].startswith("hourglass worker FILE --task-queue why-alone --target ")
    engine_stage.client.get_workflow_handle("alone-1").terminate()


def test_why_suggests_the_intended_task_queue(engine_stage: Stage) -> None:
    with engine_stage.worker("why-orders"):
        engine_stage.client.start_workflow(
            why_flows.ends_well, id="right-1", task_queue="why-orders"
        ).result()
        engine_stage.client.start_workflow(why_flows.sleeps, id="typo-1", task_queue="why-ordres")
        found, page = engine_stage.wait_for_cause("typo-1", "wrong_queue")
        assert "did you mean 'why-orders'?" in page
        assert any("--task-queue why-orders" in each["command"] for each in found["do"])
        engine_stage.client.get_workflow_handle("typo-1").terminate()


@pytest.mark.parametrize(
    ("workflow", "cause", "texts"),
    [
        (
            "asks_elsewhere",
            "no_activity_worker",
            [": no worker polls task queue 'elsewhere' for activities"],
        ),
        (
            "asks_a_stranger",
            "unknown_activity",
            ["activity nobody_knows_it, which is not registered with the worker"],
        ),
        (
            "nobody_wrote_it",
            "unknown_workflow",
            [
                "workflow type 'nobody_wrote_it' is not registered with this worker",
                "hourglass worker FILE",
            ],
        ),
        ("sleeps", "timer", ["\n  until ", "(in 3 d)", line_of("workflow.sleep(timedelta(days=3))")]),
        (
            "changes",
            "condition",
            ["workflow.wait_condition(lambda: False)", "hourglass update change changes-1 …"],
        ),
        (
            "locks",
            "lock",
            ["   with lock:", "meanwhile holder is at", "workflow.wait_condition(lambda: False)"],
        ),
        (
            "ships",
            "failed",
            [
                "failed, because activity refused failed, at ",
                "NoCarrier: no carrier serves this address",
                line_of("raise ApplicationError"),
                "hourglass reset ships-1 --before refused",
            ],
        ),
        ("ends_well", "done", ["has completed, at "]),
    ],
)
def test_why_of_a_run_on_a_file_shows_cause_line_and_remedy(
    served_stage: Stage, workflow: str, cause: str, texts: list[str]
) -> None:
    served_stage.client.start_workflow(workflow, id=f"{workflow}-1")
    _, page = served_stage.wait_for_cause(f"{workflow}-1", cause)
    assert [text for text in texts if text not in page] == []


# --- activities ------------------------------------------------------------------------------------------------------


def test_why_shows_error_line_attempts_and_next_retry_of_a_failing_activity(engine_stage: Stage) -> None:
    with engine_stage.worker("why-pays"):
        handle = engine_stage.client.start_workflow(why_flows.pays, "o-1", id="pays-1", task_queue="why-pays")
        found, page = engine_stage.wait_for_cause("pays-1", "activity_fails")
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
def test_why_shows_the_expired_timeout_of_a_retried_activity(
    served_stage: Stage, workflow: str, kind: str, limit: str
) -> None:
    served_stage.client.start_workflow(workflow, id="late-1")
    found, page = served_stage.wait_for_cause("late-1", "activity_times_out")
    assert kind.lower() in page.lower().replace(" ", "")
    assert limit in page
    assert found["next_attempt"] is not None


@pytest.mark.parametrize(
    ("workflow", "kind"),
    [("misses_the_start", "schedule to start"), ("misses_the_end", "schedule to close")],
)
def test_why_of_a_run_failed_by_an_activity_timeout_names_activity_and_timeout(
    served_stage: Stage, workflow: str, kind: str
) -> None:
    served_stage.client.start_workflow(workflow, id="over-1")
    found, page = served_stage.wait_for_cause("over-1", "failed")
    assert "failed, because activity " in page
    assert kind in page
    assert "hourglass reset over-1 --before " in page
    assert found["failure"]


@pytest.mark.parametrize("name", ["is_stuck", "is_stuck_async"])
def test_why_shows_line_heartbeat_and_timeout_of_a_stuck_activity(engine_stage: Stage, name: str) -> None:
    why_flows.released.clear()
    with engine_stage.worker("why-stuck"):
        handle = engine_stage.client.start_workflow(name, id=f"{name}-1", task_queue="why-stuck")
        until("its stack", lambda: "its thread is at:" in engine_stage.run_why(f"{name}-1")[1], 20)
        found, page = engine_stage.wait_for_cause(f"{name}-1", "activity_runs")
        why_flows.released.set()
        line = "released.wait(30)" if name == "is_stuck" else "await asyncio.to_thread"
        assert "in rests" in page
        assert line in page
        assert "start_to_close_timeout 600 s" in page
        assert "no heartbeat of " in page
        assert found["until"] is not None
        handle.result(timeout=30)


# --- parked ----------------------------------------------------------------------------------------------------------


def test_why_shows_exception_and_line_of_a_bug_in_workflow_code(engine_stage: Stage) -> None:
    with engine_stage.worker("why-bug"):
        handle = engine_stage.client.start_workflow(why_flows.stumbles, id="bug-1", task_queue="why-bug")
        found, page = engine_stage.wait_for_cause("bug-1", "bug")
        assert "KeyError: 'apples'" in page
        assert f'{line_of("""return stock["apples"]""")}   return stock["apples"]' in page
        assert "Fix the line" in page
        assert found["attempts"] >= 1
        handle.terminate()


def test_why_shows_history_event_and_command_of_nondeterministic_code(
    engine_stage: Stage, tmp_path: Path
) -> None:
    client = engine_stage.client
    with engine_stage.worker("why-new", workflows=[why_flows.before_the_change], activities=[why_flows.well]):
        handle = client.start_workflow("changing", id="changing-1", task_queue="why-new")
        engine_stage.wait_for_cause("changing-1", "signal")
    with engine_stage.worker("why-new", workflows=[why_flows.after_the_change], activities=[why_flows.well]):
        handle.signal(why_flows.decision, True)
        _, page = engine_stage.wait_for_cause("changing-1", "nondeterminism")
    assert "its code no longer matches its history" in page
    assert "hourglass why changing-1 --code FILE" in page
    where = "local" if engine_stage.target.startswith("local:") else "server"
    code = tmp_path / f"changed_{where}.py"  # a module of a name is imported once
    code.write_text(
        "from hourglass import workflow\n\n\n@workflow.defn(name='changing')\n"
        "def later() -> None:\n    workflow.sleep(3600)\n"
    )
    _, page = engine_stage.wait_for_cause("changing-1", "nondeterminism", "--code", str(code))
    assert "expected by the history: activity well number 1" in page
    assert "issued by the code:      timer number 1 of 3600 s" in page
    assert f"{code.name}:6   workflow.sleep(3600)" in page
    assert page.splitlines()[0].startswith(
        "changing-1 (changing) cannot continue, because its code no longer matches"
    )
    handle.terminate()


def test_why_lists_nondeterminism_before_other_findings(stage: Stage, tmp_path: Path) -> None:
    """For a parked run it also says whether the given code matches the history."""
    client = stage.client
    with stage.worker(workflows=[why_flows.before_the_change], activities=[why_flows.well]):
        client.start_workflow("changing", id="fits-1")
        stage.wait_for_cause("fits-1", "signal")
    code = tmp_path / "changed_headline.py"
    code.write_text(
        "from hourglass import workflow\n\n\n@workflow.defn(name='changing')\n"
        "def later() -> None:\n    workflow.sleep(3600)\n"
    )
    _, page = stage.wait_for_cause("fits-1", "nondeterminism", "--code", str(code))
    assert page.splitlines()[0].startswith("fits-1 (changing) will not continue with this code")
    assert "It also has no worker" in page
    with stage.worker(workflows=[why_flows.after_the_change], activities=[why_flows.well]):
        client.get_workflow_handle("fits-1").signal(why_flows.decision, True)
        stage.wait_for_cause("fits-1", "nondeterminism")
    found, page = stage.wait_for_cause(
        "fits-1", "nondeterminism", "--code", str(write_original_code(tmp_path))
    )
    assert "is parked, but would continue with the code of --code" in page
    assert found["do"][0]["command"].startswith("hourglass worker FILE")


def test_why_shows_the_line_of_workflow_code_that_blocks_its_thread(stage: Stage) -> None:
    why_flows.released.clear()
    with stage.worker(workflows=[why_flows.blocks], deadlock_timeout=0.2):
        stage.client.start_workflow(why_flows.blocks, id="blocks-1")
        _, page = stage.wait_for_cause("blocks-1", "hung")
        why_flows.released.set()
    assert f"{FLOWS.name}:{int(line_of('def blocks').rpartition(':')[2]) + 1}" in page
    assert "move it into an activity" in page


def test_why_command_names_the_argument_that_cannot_be_decoded(served_stage: Stage) -> None:
    served_stage.client.start_workflow("counts", "three", id="counts-1")
    found, page = served_stage.wait_for_cause("counts-1", "undecodable")
    assert "argument 'number' of workflow counts: expected int, got str" in page
    assert found["place"] == ""
    assert "three" not in page


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_why_of_a_run_waiting_for_a_signal_shows_line_deadline_and_command(engine_stage: Stage) -> None:
    with engine_stage.worker("why-signal"):
        handle = engine_stage.client.start_workflow(
            why_flows.decides, id="decides-1", task_queue="why-signal"
        )
        found, page = engine_stage.wait_for_cause("decides-1", "signal")
        assert "waits for signal 'decision', since " in page
        assert line_of("return decision.receive") in page
        assert "(in 3 h)" in page
        assert "    hourglass signal decision decides-1 VALUE --target" in page
        assert found["until"] is not None
        handle.terminate()


def test_why_and_show_name_the_signal_instead_of_its_deadline_timer(
    engine_stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    with engine_stage.worker("why-limit"):
        handle = engine_stage.client.start_workflow(why_flows.decides, id="limit-1", task_queue="why-limit")
        engine_stage.wait_for_cause("limit-1", "signal")
    _, page = engine_stage.wait_for_cause("limit-1", "no_worker or wrong_queue or signal")
    assert "waits for signal 'decision', since " in page
    assert "timer" not in page
    assert main(["show", "limit-1", "--target", engine_stage.target]) == 0
    shown = capsys.readouterr().out
    assert "waits for  signal decision, for at most 3 h more" in shown
    assert "wait for signal decision" in shown
    handle.terminate()


def test_why_reports_an_unhandled_signal_with_a_similar_name(engine_stage: Stage) -> None:
    with engine_stage.worker("why-typo"):
        handle = engine_stage.client.start_workflow(why_flows.decides, id="misspelt-1", task_queue="why-typo")
        engine_stage.wait_for_cause("misspelt-1", "signal")
        handle.signal("desicion", True)
        found, page = engine_stage.wait_for_cause("misspelt-1", "unheard")
        assert "received signal 'desicion', which has no handler" in page
        assert "did you mean 'decision'?" in page
        assert "It also waits for signal 'decision'" in page
        assert found["do"][0]["command"].startswith("hourglass signal decision misspelt-1 VALUE")
        handle.signal("another", True)  # it may be meant for what the code has not come to
        assert "'another'" not in engine_stage.run_why("misspelt-1")[1]
        handle.terminate()


def test_why_of_a_waiting_run_without_a_worker_reports_the_worker_first(stage: Stage) -> None:
    with stage.worker(workflows=[why_flows.before_the_change], activities=[why_flows.well]):
        stage.client.start_workflow("changing", id="quiet-1")
        stage.wait_for_cause("quiet-1", "signal")
    _, page = stage.wait_for_cause("quiet-1", "no_worker")
    assert "It also waits for a signal, an update, or a condition" in page
    assert "no worker is running to answer queries" in page


def test_why_of_a_run_waiting_for_a_child_explains_the_child(served_stage: Stage) -> None:
    served_stage.client.start_workflow(why_flows.delegates, id="parent-1")
    served_stage.wait_for_cause("parent-1-child", "signal")
    found, page = served_stage.wait_for_cause("parent-1", "child")
    assert found["child"]["cause"] == "signal"
    assert "↳ parent-1-child (decides) waits for signal 'decision'" in page
    assert "hourglass signal decision parent-1-child VALUE" in page


def test_why_shows_the_line_at_which_an_update_handler_waits(served_stage: Stage) -> None:
    handle = served_stage.client.start_workflow(why_flows.changes, id="changes-1")
    handle.start_update("change", 3, wait_for_stage=UpdateStage.ACCEPTED)
    _, page = served_stage.wait_for_cause("changes-1", "update")
    assert "handles update 'change', which has not completed" in page
    assert line_of("workflow.wait_condition(lambda: to < 0)") in page


# --- closed ----------------------------------------------------------------------------------------------------------


def test_why_of_a_failed_saga_names_compensations_and_a_safe_reset(engine_stage: Stage) -> None:
    with engine_stage.worker("why-saga"):
        handle = engine_stage.client.start_workflow(
            why_flows.undoes, "o", id="undoes-1", task_queue="why-saga"
        )
        found, page = engine_stage.wait_for_cause("undoes-1", "failed")
        assert "failed, because activity refused failed" in page
        assert "after that it ran refund, release" in page
        commands = [each["command"] for each in found["do"]]
        assert (
            f"hourglass start undoes … --id undoes-1 --task-queue why-saga --target {engine_stage.target}"
            in commands
        )
        assert [each for each in commands if " reset " in each] == [
            f"hourglass reset undoes-1 --before reserve --target {engine_stage.target}"
        ]
        assert handle.describe().status.name == "FAILED"


def test_why_of_a_saga_with_another_error_finds_the_failed_step(served_stage: Stage) -> None:
    served_stage.client.start_workflow(why_flows.undoes_its_own, "o", id="trip-1")
    found, page = served_stage.wait_for_cause("trip-1", "failed")
    assert "after that it ran cancel_hotel" in page
    assert any("reset trip-1 --before book_hotel" in each["command"] for each in found["do"])
    assert (
        main(["reset", "trip-1", "--before", "cancel_hotel", "--target", served_stage.target]) == 0
    )  # a local activity


def test_why_of_a_timed_out_run_shows_timeout_and_pending_wait(served_stage: Stage) -> None:
    served_stage.client.start_workflow(why_flows.sleeps, id="slow-1", run_timeout=0.2)
    _, page = served_stage.wait_for_cause("slow-1", "timed_out")
    assert "its run_timeout was 200 ms" in page
    assert "it timed out while it waited for timer 3 d" in page


def test_why_of_a_terminated_run_shows_identity_and_reason(served_stage: Stage) -> None:
    handle = served_stage.client.start_workflow(why_flows.sleeps, id="ended-1")
    handle.terminate("customer called")
    _, page = served_stage.wait_for_cause("ended-1", "terminated")
    assert f"was terminated by {served_stage.client.identity}" in page
    assert "reason: customer called" in page


def test_why_of_a_cancelled_run_shows_the_reason(served_stage: Stage) -> None:
    handle = served_stage.client.start_workflow(why_flows.sleeps, id="cancelled-1")
    served_stage.wait_for_cause("cancelled-1", "timer")
    handle.cancel("not needed")
    _, page = served_stage.wait_for_cause("cancelled-1", "cancelled")
    assert "was cancelled" in page
    assert "reason: not needed" in page


def test_why_of_a_run_that_ignores_cancellation_suggests_terminating_it(engine_stage: Stage) -> None:
    with engine_stage.worker("why-refuses"):
        handle = engine_stage.client.start_workflow(
            why_flows.refuses, id="refuses-1", task_queue="why-refuses"
        )
        engine_stage.wait_for_cause("refuses-1", "timer")
        handle.cancel("the customer called")
        found, page = engine_stage.wait_for_cause("refuses-1", "cancelling")
        assert "received a cancellation request, but has not ended" in page
        assert "reason: the customer called" in page
        assert "It also waits for a timer" in page
        assert any(each["command"].startswith("hourglass terminate refuses-1") for each in found["do"])
        handle.terminate()


def test_why_of_a_retried_run_shows_error_of_the_last_attempt_and_next_start(served_stage: Stage) -> None:
    policy = RetryPolicy(initial_interval=3600)
    served_stage.client.start_workflow(why_flows.gives_up, id="again-1", retry_policy=policy)
    found, page = served_stage.wait_for_cause("again-1", "delayed")
    assert "failed and is retried by its retry policy: attempt 2 has not started" in page
    assert "SoldOut: the shelf is empty" in page
    assert line_of('type="SoldOut"') in page
    assert found["until"] is not None


def test_why_reports_that_the_worker_has_no_free_activity_slot(stage: Stage) -> None:
    why_flows.released.clear()
    options: dict[str, Any] = {"workflows": why_flows.WORKFLOWS, "activities": why_flows.ACTIVITIES}
    with stage.worker(**options, max_concurrent_activities=1):
        stage.client.start_workflow(why_flows.crowds, id="crowds-1")
        stage.wait_for_cause("crowds-1", "activity_runs")
        until("a word about room", lambda: "no free slot for the activity" in stage.run_why("crowds-1")[1])
        assert "which no worker has started yet (×2)" in stage.run_why("crowds-1")[1]
        why_flows.released.set()


@pytest.mark.server
def test_why_of_a_paused_activity_shows_the_unpause_command(
    quick_server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client.connect(quick_server.target) as client:
        stage = Stage(client, quick_server.target, capsys)
        with stage.worker("why-paused"):
            handle = client.start_workflow(why_flows.pays, "o-1", id="paused-1", task_queue="why-paused")
            stage.wait_for_cause("paused-1", "activity_fails")
            named = ("--workflow-id", "paused-1", "--activity-id", "1", "--address", quick_server.target)
            subprocess.run(
                [temporal_cli(), "activity", "pause", *named], check=True, capture_output=True, timeout=30
            )
            found, page = stage.wait_for_cause("paused-1", "paused")
            assert "which is paused: it is not retried until it is unpaused" in page
            assert found["do"][0]["command"].endswith(f"--activity-id 1 --address {quick_server.target}")
            handle.terminate()


# --- nothing to look at ----------------------------------------------------------------------------------------------


def test_why_of_an_unknown_id_suggests_similar_ids(served_stage: Stage) -> None:
    served_stage.client.start_workflow(why_flows.sleeps, id="order-17")
    code, page = served_stage.run_why("ordr-17")
    assert code == 1
    assert "ordr-17 does not exist on this target" in page
    assert "similar ids: order-17" in page
    assert "hourglass why order-17 --target" in page


def test_why_on_a_missing_file_creates_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.db"
    assert main(["why", "order-1", "--target", f"local:{path}"]) == 1
    assert f"file {path} does not exist" in capsys.readouterr().out
    assert not path.exists()


def test_why_on_an_unreachable_server_names_the_target(
    unused_port: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"127.0.0.1:{unused_port()}"
    assert main(["why", "order-1", "--target", target, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["cause"] == "unreachable"
    assert target in document["findings"][0]["what"]
    assert document["findings"][0]["do"][0]["command"] == f"hourglass doctor --target {target}"


@pytest.fixture
def unused_port() -> Callable[[], int]:
    return free_port
