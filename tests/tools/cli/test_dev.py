"""`hourglass dev` as real processes: it reloads edited files, and first checks the open runs against the new code."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hourglass import Client
from hourglass._tools.cli.dev_worker import folders
from hourglass.client import WorkflowHandle
from servers import free_port

from .command import Command, is_gone, run_command, until

APP = """
from hourglass import activity, workflow

decision = workflow.Channel("decision", str)


@activity.defn
def charge(order: str) -> str:
    return f"charged {order}"


@workflow.defn
def checkout(order: str) -> str:
    paid = charge(order)
    decision.receive()
    return paid
"""
INCOMPATIBLE = APP.replace("    paid = charge(order)", "    workflow.sleep(3600)\n    paid = charge(order)")
BUGGY = APP.replace("return paid", "return paid[999]")
FIXED = APP.replace("return paid", "return paid + ', at last'")


class DevProject:
    """A directory with a program for `hourglass dev`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = folder / "app.py"
        self.target = f"local:{folder / 'shop.db'}"
        self.app.write_text(APP)

    @contextmanager
    def running_dev(self, *options: str) -> Iterator[Command]:
        """Run `hourglass dev`, from when it receives tasks."""
        with self.start_dev(*options) as dev:
            dev.wait_for("receiving tasks")
            yield dev

    def start_dev(self, *options: str) -> Command:
        given = () if "--temporal" in options else ("--target", self.target)
        return Command("dev", "app.py", *given, *options, cwd=self.folder)


def start_waiting_run(client: Client) -> WorkflowHandle[str]:
    """Start a run that has charged and waits for a decision."""
    handle = client.start_workflow("checkout", "o-1", id="order-1", result_type=str)
    until("it waits", lambda: _has(handle, "ACTIVITY_TASK_COMPLETED") and not handle.describe().task_attempt)
    return handle


def decide(handle: WorkflowHandle[str]) -> str:
    """Send the decision and return the result."""
    handle.signal("decision", "yes")
    return handle.result(timeout=30)


def _has(handle: WorkflowHandle[str], kind: str) -> bool:
    return any(each["eventType"].endswith(kind) for each in handle.history().events)


@pytest.fixture
def project(tmp_path: Path) -> DevProject:
    return DevProject(tmp_path)


@pytest.fixture
def client(project: DevProject) -> Iterator[Client]:
    with Client.connect(project.target) as client:
        yield client


def test_dev_reloads_an_edited_file_and_continues_open_runs(project: DevProject, client: Client) -> None:
    with project.running_dev() as dev:
        handle = start_waiting_run(client)
        project.app.write_text(FIXED)
        dev.wait_for("changed: app.py")
        dev.wait_for("receiving tasks", 2)
        assert "1 open run matches this code" in dev.text
        assert decide(handle) == "charged o-1, at last"
        dev.signal(signal.SIGINT)
        assert dev.wait_end() == 0, dev.text


def test_dev_reports_an_edit_that_breaks_an_open_run_before_it_runs(
    project: DevProject, client: Client
) -> None:
    with project.running_dev() as dev:
        handle = start_waiting_run(client)
        events = len(handle.history().events)
        project.app.write_text(INCOMPATIBLE)
        dev.wait_for("receiving tasks", 2)
        assert "this code would break order-1 (checkout)" in dev.text
        assert "expected by the history: activity charge number 1" in dev.text
        line = INCOMPATIBLE.splitlines().index("    workflow.sleep(3600)") + 1
        assert re.search(rf"issued by the code:      timer number 1 of 3600 s +at app\.py:{line}", dev.text)
        assert "1 of 1 open runs would break" in dev.text
        assert dev.text.index("would break") < dev.text.rindex("receiving tasks")
        assert len(handle.history().events) == events
        project.app.write_text(APP)
        dev.wait_for("receiving tasks", 3)
        assert decide(handle) == "charged o-1"


def test_dev_strict_receives_no_tasks_until_a_compatible_edit(project: DevProject, client: Client) -> None:
    with project.running_dev("--strict") as dev:
        handle = start_waiting_run(client)
        project.app.write_text(INCOMPATIBLE)
        dev.wait_for("waiting for the next change")
        assert "the worker receives no tasks, because --strict is set" in dev.text
        assert client.describe_task_queue().workflow_pollers == ()
        project.app.write_text(APP)
        dev.wait_for("receiving tasks", 2)
        assert decide(handle) == "charged o-1"


def test_dev_reports_a_syntax_error_and_waits_for_the_next_edit(project: DevProject, client: Client) -> None:
    with project.running_dev() as dev:
        project.app.write_text(APP.replace("def checkout(order: str)", "def checkout(order: str"))
        dev.wait_for("waiting for the next change")
        assert re.search(r"app\.py:\d+: SyntaxError", dev.text), dev.text
        project.app.write_text(APP)
        dev.wait_for("receiving tasks", 2)
        start_waiting_run(client)


def test_dev_shows_a_parked_run_with_its_line(project: DevProject, client: Client) -> None:
    project.app.write_text(BUGGY)
    with project.running_dev() as dev:
        handle = start_waiting_run(client)
        handle.signal("decision", "yes")
        dev.wait_for("IndexError: string index out of range")
        line = BUGGY.splitlines().index("    return paid[999]") + 1
        assert re.search(rf"is parked: IndexError at \S+app\.py:{line}", dev.text)
        assert "_evaluator" not in dev.text
        project.app.write_text(FIXED)
        dev.wait_for("receiving tasks", 2)
        assert handle.result(timeout=30) == "charged o-1, at last"


def test_dev_shows_a_rejected_start_without_traceback(project: DevProject, client: Client) -> None:
    with project.running_dev() as dev:
        client.start_workflow("checkout", id="order-2")
        dev.wait_for("cannot start: workflow checkout takes 1 argument (order), got 0")
        assert "Traceback" not in dev.text


def test_dev_reports_a_deleted_file_and_continues_when_it_returns(
    project: DevProject, client: Client
) -> None:
    with project.running_dev() as dev:
        handle = start_waiting_run(client)
        project.app.unlink()
        dev.wait_for("file app.py does not exist")
        dev.wait_for("waiting for the next change")
        project.app.write_text(FIXED)
        dev.wait_for("receiving tasks", 2)
        assert decide(handle) == "charged o-1, at last"


def test_dev_worker_process_ends_with_its_parent(project: DevProject, client: Client) -> None:
    with project.running_dev() as dev:
        (child,) = _children(dev.process.pid)
        dev.process.kill()
        until("the child has ended", lambda: is_gone(child), 20)


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in text.split()]


@pytest.mark.server
def test_dev_temporal_option_runs_a_server_with_web_ui_and_private_files(project: DevProject) -> None:
    port, ui_port = free_port(), free_port()
    with project.start_dev("--temporal", "--port", str(port), "--ui-port", str(ui_port)) as dev:
        dev.wait_for("receiving tasks")
        target = _said(dev, "Temporal server")
        assert target == f"127.0.0.1:{port}"
        assert _said(dev, "web UI") == f"http://127.0.0.1:{ui_port}"
        second = run_command("dev", "app.py", "--temporal", "--ui-port", str(ui_port), cwd=project.folder)
        assert (second.returncode, f"port {ui_port} is in use" in second.stderr) == (2, True)
        with Client.connect(target) as client:
            handle = start_waiting_run(client)
            project.app.write_text(FIXED)
            dev.wait_for("receiving tasks", 2)
            assert decide(handle) == "charged o-1, at last"
        dev.signal(signal.SIGTERM)
        assert dev.wait_end() == 0, dev.text
    server_files = [project.folder / ".hourglass", *(project.folder / ".hourglass").glob("temporal.db*")]
    assert len(server_files) > 1
    assert not any(each.stat().st_mode & 0o077 for each in server_files)
    assert (project.folder / ".hourglass" / ".gitignore").read_text() == "*\n"


def _said(dev: Command, what: str) -> str:
    return next(line for line in dev.lines if line.startswith(what)).removeprefix(what).strip()


def test_dev_rejects_contradictory_options_and_invalid_targets(project: DevProject) -> None:
    for options, message in (
        (("--temporal", "--target", "local:x.db"), "omit --target"),
        (("--ui-port", "9"), "add --temporal"),
        (("--target", "nonsense"), "nonsense"),
    ):
        process = run_command("dev", "app.py", *options, cwd=project.folder)
        assert (process.returncode, message in process.stderr) == (2, True), process.stderr


def test_dev_watches_the_import_directory_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shop" / "orders"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert folders([str(package / "flows.py")]) == (tmp_path,)
    assert folders(["shop.orders", "shop/orders/flows.py"]) == (tmp_path,)
