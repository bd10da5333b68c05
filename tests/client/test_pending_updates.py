"""An update that no worker has accepted yet stands in no history, and is shown all the same where the engine is ours."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from tests.ui.conftest import asked

from hourglass import Client, Worker, workflow
from hourglass._cli import main
from hourglass._ui import addresses
from hourglass._ui.site import Site


@workflow.defn
class Account:
    """Takes deposits."""

    def __init__(self) -> None:
        self.sum = 0

    @workflow.run
    def run(self) -> int:
        """Until there is one."""
        workflow.wait_condition(lambda: self.sum > 0)
        return self.sum

    @workflow.update
    def deposit(self, amount: int) -> int:
        """Add."""
        self.sum += amount
        return self.sum


def test_it_is_shown_until_a_worker_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By `describe`, in a program and as a command, and on the page, with its name and id; no longer once it is accepted."""
    target = f"local:{tmp_path / 'accounts.db'}"
    with Client.connect(target) as client, Worker(client, "other", workflows=[Account]):
        handle = client.start_workflow(Account.run, id="account-1")
        assert handle.describe().pending_updates == ()
        asking = threading.Thread(target=lambda: handle.execute_update(Account.deposit, 5, id="first"))
        asking.start()
        while not (found := handle.describe().pending_updates):
            pass
        assert [(each.id, each.name) for each in found] == [("first", "deposit")]
        assert main(["describe", "account-1", "--target", target]) == 0
        assert "update deposit (first), which no worker has accepted yet" in capsys.readouterr().out
        with asked(Site(client, target=target)) as web:
            text = web.get(addresses.workflow("account-1"), follow_redirects=True).text
        assert re.search(r"<td>update</td><td class=\"mono\">deposit .*first.*not accepted yet", text)
        with Worker(client, workflows=[Account]):
            assert handle.result() == 5
            asking.join(60)
        assert handle.describe().pending_updates == ()
