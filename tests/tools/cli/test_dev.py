"""`hourglass dev` as real processes, with real edits of a real file: it reloads, checks the open runs first, and continues."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hourglass import Client
from hourglass._tools.cli.dev_worker import folders
from hourglass.client import WorkflowHandle
from servers import free_port

from .command import Command, is_gone, run, until

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
ANOTHER_WAY = APP.replace("    paid = charge(order)", "    workflow.sleep(3600)\n    paid = charge(order)")
BUGGY = APP.replace("return paid", "return paid[999]")
FIXED = APP.replace("return paid", "return paid + ', at last'")


class Project:
    """A folder with a program, and what `hourglass dev` does with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = folder / "app.py"
        self.target = f"local:{folder / 'shop.db'}"
        self.app.write_text(APP)

    def dev(self, *options: str) -> Command:
        """The command, running."""
        given = () if "--temporal" in options else ("--target", self.target)
        return Command("dev", "app.py", *given, *options, cwd=self.folder)


def waiting(client: Client) -> WorkflowHandle[str]:
    """A run that has charged, and waits for a decision."""
    handle = client.start_workflow("checkout", "o-1", id="order-1", result_type=str)
    until("it waits", lambda: _has(handle, "ACTIVITY_TASK_COMPLETED") and not handle.describe().task_attempt)
    return handle


def _has(handle: WorkflowHandle[str], kind: str) -> bool:
    return any(each["eventType"].endswith(kind) for each in handle.history().events)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def client(project: Project) -> Iterator[Client]:
    with Client.connect(project.target) as client:
        yield client


def test_edited_file_is_reloaded(project: Project, client: Client) -> None:
    """The file is edited, the open runs are tried, and a run continues with the new code; Ctrl-C ends both processes."""
    with project.dev() as dev:
        dev.wait_for("receiving tasks")
        handle = waiting(client)
        project.app.write_text(FIXED)
        dev.wait_for("changed: app.py")
        dev.wait_for("receiving tasks", 2)
        assert "1 open run matches this code" in dev.text
        handle.signal("decision", "yes")
        assert handle.result(timeout=30) == "charged o-1, at last"
        dev.signal(signal.SIGINT)
        assert dev.wait_end() == 0, dev.text


def test_edit_that_breaks_an_open_run_is_reported(project: Project, client: Client) -> None:
    """Before any run is touched it is said which would break, and where; undoing the edit lets the run continue."""
    with project.dev() as dev:
        dev.wait_for("receiving tasks")
        handle = waiting(client)
        events = len(handle.history().events)
        project.app.write_text(ANOTHER_WAY)
        dev.wait_for("receiving tasks", 2)
        assert "this code would break order-1 (checkout)" in dev.text
        assert "expected by the history: activity charge number 1" in dev.text
        line = ANOTHER_WAY.splitlines().index("    workflow.sleep(3600)") + 1
        assert re.search(rf"issued by the code:      timer number 1 of 3600 s +at app\.py:{line}", dev.text)
        assert "1 of 1 open runs would break" in dev.text
        assert dev.text.index("would break") < dev.text.rindex("receiving tasks")
        assert len(handle.history().events) == events
        project.app.write_text(APP)
        dev.wait_for("receiving tasks", 3)
        handle.signal("decision", "yes")
        assert handle.result(timeout=30) == "charged o-1"


def test_strict_mode_waits_for_a_compatible_edit(project: Project, client: Client) -> None:
    """With --strict the worker waits for the next edit; until then nobody serves the queue."""
    with project.dev("--strict") as dev:
        dev.wait_for("receiving tasks")
        handle = waiting(client)
        project.app.write_text(ANOTHER_WAY)
        dev.wait_for("waiting for the next change")
        assert "the worker receives no tasks, because --strict is set" in dev.text
        assert client.describe_task_queue().workflow_pollers == ()
        project.app.write_text(APP)
        dev.wait_for("receiving tasks", 2)
        handle.signal("decision", "yes")
        assert handle.result(timeout=30) == "charged o-1"


def test_file_that_fails_to_load_is_reported(project: Project, client: Client) -> None:
    """The error is shown with its line, and the next edit is waited for."""
    with project.dev() as dev:
        dev.wait_for("receiving tasks")
        project.app.write_text(APP.replace("def checkout(order: str)", "def checkout(order: str"))
        dev.wait_for("waiting for the next change")
        assert re.search(r"app\.py:\d+: SyntaxError", dev.text), dev.text
        project.app.write_text(APP)
        dev.wait_for("receiving tasks", 2)
        waiting(client)


def test_parked_run_is_shown_at_once(project: Project, client: Client) -> None:
    """A bug is shown with its line and without lines of ours; fixing it lets the run continue."""
    project.app.write_text(BUGGY)
    with project.dev() as dev:
        dev.wait_for("receiving tasks")
        handle = waiting(client)
        handle.signal("decision", "yes")
        dev.wait_for("IndexError: string index out of range")
        line = BUGGY.splitlines().index("    return paid[999]") + 1
        assert re.search(rf"is parked: IndexError at \S+app\.py:{line}", dev.text)
        assert "_evaluator" not in dev.text
        project.app.write_text(FIXED)
        dev.wait_for("receiving tasks", 2)
        assert handle.result(timeout=30) == "charged o-1, at last"


def test_our_own_errors_are_shown_without_traceback(project: Project, client: Client) -> None:
    """A run with a wrong argument is told by what is wrong with it, not by lines of ours."""
    with project.dev() as dev:
        dev.wait_for("receiving tasks")
        client.start_workflow("checkout", id="order-2")
        dev.wait_for("cannot start: workflow checkout takes 1 argument (order), got 0")
        assert "Traceback" not in dev.text


def test_deleted_file_is_reported(project: Project, client: Client) -> None:
    """It says that the file is gone and waits; when it is back, open runs continue."""
    with project.dev() as dev:
        dev.wait_for("receiving tasks")
        handle = waiting(client)
        project.app.unlink()
        dev.wait_for("file app.py does not exist")
        dev.wait_for("waiting for the next change")
        project.app.write_text(FIXED)
        dev.wait_for("receiving tasks", 2)
        handle.signal("decision", "yes")
        assert handle.result(timeout=30) == "charged o-1, at last"


def test_worker_ends_with_its_parent(project: Project, client: Client) -> None:
    """No worker is left behind that nobody reloads."""
    with project.dev() as dev:
        dev.wait_for("receiving tasks")
        (child,) = _children(dev.process.pid)
        dev.process.kill()
        until("the child has ended", lambda: is_gone(child), 20)


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in text.split()]


@pytest.mark.server
def test_dev_command_with_a_temporal_server(project: Project) -> None:
    """--temporal runs a real server with its web UI, says where, and keeps what it knows in the project's folder."""
    port, ui_port = free_port(), free_port()
    with project.dev("--temporal", "--port", str(port), "--ui-port", str(ui_port)) as dev:
        dev.wait_for("receiving tasks")
        target = _said(dev, "Temporal server")
        assert target == f"127.0.0.1:{port}"
        assert _said(dev, "web UI") == f"http://127.0.0.1:{ui_port}"
        taken = run("dev", "app.py", "--temporal", "--ui-port", str(ui_port), cwd=project.folder)
        assert (taken.returncode, f"port {ui_port} is in use" in taken.stderr) == (2, True)
        with Client.connect(target) as client:
            handle = waiting(client)
            project.app.write_text(FIXED)
            dev.wait_for("receiving tasks", 2)
            handle.signal("decision", "yes")
            assert handle.result(timeout=30) == "charged o-1, at last"
        dev.signal(signal.SIGTERM)
        assert dev.wait_end() == 0, dev.text
    made = [project.folder / ".hourglass", *(project.folder / ".hourglass").glob("temporal.db*")]
    assert len(made) > 1
    assert not any(each.stat().st_mode & 0o077 for each in made)
    assert (project.folder / ".hourglass" / ".gitignore").read_text() == "*\n"


def _said(dev: Command, what: str) -> str:
    return next(line for line in dev.lines if line.startswith(what)).removeprefix(what).strip()


def test_invalid_dev_options_are_rejected(project: Project) -> None:
    """Two targets at once, or a place that refuses, end it with a message."""
    answer = run("dev", "app.py", "--temporal", "--target", "local:x.db", cwd=project.folder)
    assert answer.returncode == 2
    assert "omit --target" in answer.stderr
    answer = run("dev", "app.py", "--ui-port", "9", cwd=project.folder)
    assert answer.returncode == 2
    assert "add --temporal" in answer.stderr
    answer = run("dev", "app.py", "--target", "nonsense", cwd=project.folder)
    assert answer.returncode == 2
    assert "nonsense" in answer.stderr


def test_watched_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that a file is imported from, above its packages; the current one for modules; none twice."""
    package = tmp_path / "shop" / "orders"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert folders([str(package / "flows.py")]) == (tmp_path,)
    assert folders(["shop.orders", "shop/orders/flows.py"]) == (tmp_path,)
