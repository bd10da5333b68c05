"""`hourglass move`: open runs of a file go on on a real server, with what they have done, whenever the move was interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from hourglass import Client, Worker
from hourglass._cli import main
from hourglass.client import WorkflowHandle
from hourglass.replay import History
from hourglass.testing import DevServer

pytestmark = pytest.mark.server

APP = """
from hourglass import activity, workflow
from hourglass.errors import ActivityError, ApplicationError

go = workflow.Channel("go", str)


@activity.defn(name="charge")
def charge(order: str) -> str:
    with open(CHARGES, "a") as file:
        file.write(order + "\\n")
    return f"charged {order}"


@activity.defn
def refuse() -> None:
    raise ApplicationError("no", non_retryable=True)


@workflow.defn
def shop_order(order: str) -> str:
    with workflow.create_event_group("payment", label="Pay").scope():
        receipt = charge(order)
    try:
        refuse()
    except ActivityError:
        pass
    workflow.sleep(0.05)
    workflow.spawn(workflow.sleep, 3600)
    return f"{receipt}, {go.receive()}, {charge(order + ' again')}"


@workflow.defn
def shop_dice() -> str:
    charge(str(workflow.uuid4()))
    return go.receive()


@workflow.defn
def shop_parent() -> str:
    return shop_order.options(id="child")("c")
"""


@pytest.fixture
def shop(tmp_path: Path) -> tuple[Path, Path, Any]:
    """A file with open runs, the code's file, and its module."""
    code = tmp_path / f"shop_{tmp_path.name}.py"
    code.write_text(f"CHARGES = {str(tmp_path / 'charges')!r}\n{APP}")
    from hourglass._cli.loading import load

    return tmp_path / "shop.db", code, load([str(code)]).modules[0]


def serving(client: Client, shop: Any) -> Worker:
    return Worker(
        client,
        workflows=[shop.shop_order, shop.shop_dice, shop.shop_parent],
        activities=[shop.charge, shop.refuse],
    )


def begin(db: Path, shop: Any, *runs: tuple[Any, str, list[str]]) -> None:
    """Start runs on the file, and stop its worker when each waits for its signal."""
    with Client.connect(f"local:{db}") as client, serving(client, shop):
        for run, id, args in runs:
            handle = client.start_workflow(run, *args, id=id)
            until(lambda handle=handle: _waits(handle))


def _waits(handle: WorkflowHandle[Any]) -> bool:
    """Whether a run has come to its signal, or to its child."""
    names = [event["eventType"].removeprefix("EVENT_TYPE_") for event in handle.history().events]
    if handle.describe().workflow_type == "shop_order":
        return names.count("TIMER_STARTED") == 2
    return names.count("WORKFLOW_TASK_COMPLETED") == 2


def move(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, str]]]:
    capsys.readouterr()
    code = main(["move", *arguments, "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def finish(server: DevServer, shop: Any, id: str) -> str:
    with Client.connect(server.target) as client, serving(client, shop):
        handle = client.get_workflow_handle(id, result_type=str)
        handle.signal("go", "signalled")
        return handle.result(30)


def test_runs_move_where_their_history_can(
    shop: tuple[Path, Path, Any], quick_server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """First it is only told, and nothing changes; then they move, and what was charged is not charged again. Their events are
    of the groups that they were of.
    """
    db, code, module = shop
    begin(db, module, (module.shop_order, "move-1", ["o-1"]), (module.shop_dice, "move-dice", []))
    begin(db, module, (module.shop_parent, "move-parent", []))
    options = (str(db), "--to", quick_server.target, "--code", str(code))
    status, told = move(capsys, *options, "--dry-run")
    assert status == 0
    assert move(capsys, *options) == (0, told)
    assert {each["id"]: each["verdict"] for each in told} == {
        "move-1": "moves",
        "move-dice": "moves",  # that its code rolls dice shows when it is tried
        "move-parent": "stays",
        "child": "stays",
    }
    assert main(["list", "ExecutionStatus = 'Running'", "--count", "--target", f"local:{db}"]) == 0
    assert capsys.readouterr().out.strip() == "4"
    status, told = move(capsys, *options, "--yes")
    why = {each["id"]: (each["verdict"], each["why"]) for each in told}
    assert status == 1
    assert why["move-1"][0] == "moved"
    assert "random numbers" in why["move-dice"][1]
    assert "child of move-parent" in why["child"][1]
    assert "started a child workflow" in why["move-parent"][1]
    with Client.connect(f"local:{db}") as here, Client.connect(quick_server.target) as there:
        assert here.get_workflow_handle("move-1").describe().status.name == "TERMINATED"
        assert here.get_workflow_handle("move-dice").describe().status.name == "RUNNING"
        assert there.count_workflows("WorkflowId = 'move-dice' AND ExecutionStatus = 'Running'") == 0
        events = there.get_workflow_handle("move-1").history().events
        grouped = [each["eventGroupMarkers"] for each in events if "eventGroupMarkers" in each]
        assert [group["label"]["id"] for groups in grouped for group in groups] == ["payment"]
    assert main(["why", "move-1", "--target", f"local:{db}"]) == 0
    asked = " ".join(capsys.readouterr().out.split())
    assert "goes on there: nothing is wrong, at" in asked
    assert f"hourglass why move-1 --target {quick_server.target}" in asked
    assert "hourglass reset" not in asked, "it would be alive in both places"
    assert finish(quick_server, module, "move-1") == "charged o-1, signalled, charged o-1 again"
    assert (db.parent / "charges").read_text().splitlines().count("o-1") == 1


@pytest.mark.parametrize("left", ["paused", "half", "held", "let go", "gone on"])
def test_a_move_that_was_killed_is_finished_by_the_next(
    shop: tuple[Path, Path, Any], quick_server: DevServer, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    """Whatever the first left behind: a run that rests here, half a run there, a whole one that is held, one that may go, or
    one that has gone on, and ended, before the next move came.
    """
    db, code, module = shop
    id = f"killed-{left.replace(' ', '-')}"
    begin(db, module, (module.shop_order, id, ["o-2"]))
    with Client.connect(f"local:{db}") as here, Client.connect(quick_server.target) as there:
        handle = here.get_workflow_handle(id)
        run_id = handle.describe().run_id
        handle.pause(f"moving to {quick_server.target}")
        history = handle.history()
        request = f"moved-{run_id}"
        if left == "half":
            ends = [
                place
                for place, event in enumerate(history.events)
                if event["eventType"] == "EVENT_TYPE_WORKFLOW_TASK_COMPLETED"
            ]
            cut = json.dumps({"events": history.events[: ends[1]]})
            there.import_workflow(History(id, cut), request_id=request, hold=True)
        elif left != "paused":
            there.import_workflow(history, request_id=request, hold=left == "held")
        with serving(there, module):  # workers that are there already get nothing of what is held
            if left == "gone on":
                run = there.get_workflow_handle(id, result_type=str)
                run.signal("go", "signalled")
                assert run.result(30) == "charged o-2, signalled, charged o-2 again"
    status, told = move(capsys, str(db), "--to", quick_server.target, "--code", str(code), "--yes")
    assert (status, [each["verdict"] for each in told]) == (0, ["moved"])
    if left != "gone on":
        assert finish(quick_server, module, id) == "charged o-2, signalled, charged o-2 again"
    assert (db.parent / "charges").read_text().splitlines() == ["o-2", "o-2 again"]
    with Client.connect(f"local:{db}") as here:
        assert here.get_workflow_handle(id).describe().status.name == "TERMINATED"


def test_what_is_asked_wrongly_is_told(
    shop: tuple[Path, Path, Any], quick_server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file, no server, an id that is taken there, and nothing to move."""
    db, code, module = shop
    assert main(["move", str(db), "--to", quick_server.target, "--code", str(code)]) == 2
    assert "there is no file" in capsys.readouterr().err
    begin(db, module, (module.shop_order, "taken", ["o-3"]))
    assert main(["move", str(db), "--to", "local:other.db", "--code", str(code)]) == 2
    assert "--to is a Temporal server" in capsys.readouterr().err
    both = ["move", str(db), "--to", quick_server.target, "--code", str(code), "--yes", "--dry-run"]
    assert main(both) == 2
    assert "either --yes" in capsys.readouterr().err
    with Client.connect(quick_server.target) as there:
        other = there.start_workflow("shop_order", "x", id="taken", task_queue="nowhere")
        status, told = move(capsys, str(db), "--to", quick_server.target, "--code", str(code), "--yes")
        assert status == 1
        assert "open workflow of this id there already" in told[0]["why"]
        other.terminate()
    with Client.connect(f"local:{db}") as here:
        assert here.get_workflow_handle("taken").describe().status.name == "RUNNING"
        here.get_workflow_handle("taken").terminate()
    assert move(capsys, str(db), "--to", quick_server.target, "--code", str(code)) == (0, [])
