"""Updates that no worker has accepted: no history contains them, but `describe` lists them."""

from __future__ import annotations

import re
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.tools.web.conftest import http_client, site_of
from tests.tools.web.pages import workflow_page
from tests.waiting import until

from command_line import main
from hourglass import Client, Worker, workflow
from hourglass.client import WorkflowHandle
from hourglass.testing import DevServer


@workflow.defn
class Account:
    def __init__(self) -> None:
        self.sum = 0

    @workflow.run
    def run(self) -> int:
        workflow.wait_condition(lambda: self.sum > 0)
        return self.sum

    @workflow.update
    def deposit(self, amount: int) -> int:
        self.sum += amount
        return self.sum


@workflow.defn
class SlowUpdate:
    def __init__(self) -> None:
        self.waits = self.done = False

    @workflow.run
    def run(self) -> None:
        workflow.wait_condition(lambda: self.done and workflow.all_handlers_finished())

    @workflow.update
    def wait(self) -> None:
        self.waits = True
        workflow.wait_condition(lambda: self.done)

    @workflow.query
    def is_waiting(self) -> bool:
        return self.waits

    @workflow.signal
    def finish(self) -> None:
        self.done = True


def test_unaccepted_update_is_listed_by_describe_the_cli_and_the_web_ui(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"local:{tmp_path / 'accounts.db'}"
    with Client.connect(target) as client, Worker(client, "other", workflows=[Account]):
        handle = client.start_workflow(Account.run, id="account-1")
        assert handle.describe().pending_updates == ()
        request = threading.Thread(target=lambda: handle.execute_update(Account.deposit, 5, id="first"))
        request.start()
        while not (found := handle.describe().pending_updates):
            pass
        assert [(each.id, each.name) for each in found] == [("first", "deposit")]
        assert main(["describe", "account-1", "--target", target]) == 0
        assert "update deposit (first), not yet accepted by a worker" in capsys.readouterr().out
        with http_client(site_of(client, target)) as web:
            text = web.get(workflow_page("account-1"), follow_redirects=True).text
        assert re.search(r"<td>update</td><td class=\"mono\">deposit .*first.*not accepted yet", text)
        with Worker(client, workflows=[Account]):
            assert handle.result() == 5
            request.join(60)
        assert handle.describe().pending_updates == ()


def wait_for_pending_updates(handle: WorkflowHandle[Any]) -> list[tuple[str, str]]:
    """Wait until `describe` lists an update. Return the ids and names of all."""
    found: list[tuple[str, str]] = []

    def has_pending() -> bool:
        found[:] = [(update.id, update.name) for update in handle.describe().pending_updates]
        return bool(found)

    until(has_pending)
    return found


def check_pending_update(client: Client, workflow_id: str) -> None:
    """Check that an update is pending until a worker has accepted it."""
    handle = client.start_workflow(Account.run, id=workflow_id, task_queue=workflow_id)
    request = threading.Thread(target=lambda: handle.execute_update(Account.deposit, 5, id="first"))
    request.start()
    assert wait_for_pending_updates(handle) == [("first", "deposit")]
    with Worker(client, workflow_id, workflows=[Account]):
        assert handle.result() == 5
        request.join(60)
    assert handle.describe().pending_updates == ()


def test_describe_lists_unaccepted_update_while_no_process_owns_the_file(tmp_path: Path) -> None:
    with Client.connect(f"local:{tmp_path / 'accounts.db'}") as client:
        check_pending_update(client, "account-2")


@pytest.mark.server
def test_describe_lists_unaccepted_update_on_a_server(quick_server: DevServer) -> None:
    """The server does not list such updates; the client that waits for the update adds it."""
    with Client.connect(quick_server.target) as client:
        check_pending_update(client, f"account-{uuid.uuid4()}")


@pytest.mark.server
def test_describe_does_not_list_an_accepted_update_on_a_server(quick_server: DevServer) -> None:
    with Client.connect(quick_server.target) as client:
        name = f"account-{uuid.uuid4()}"
        with Worker(client, name, workflows=[SlowUpdate]):
            handle = client.start_workflow(SlowUpdate.run, id=name, task_queue=name)
            request = threading.Thread(target=lambda: handle.execute_update(SlowUpdate.wait, id="slow"))
            request.start()
            until(lambda: handle.query(SlowUpdate.is_waiting))
            assert handle.describe().pending_updates == ()
            handle.signal(SlowUpdate.finish)
            request.join(60)
