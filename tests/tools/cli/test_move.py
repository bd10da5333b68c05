"""`hourglass move`: open runs and schedules of a file continue on a real server, also after an interrupted move."""

from __future__ import annotations

import importlib
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from command_line import main
from hourglass import Client, Worker
from hourglass.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleHandle,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    WorkflowHandle,
)
from hourglass.errors import ScheduleNotFoundError
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
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Any]:
    """A database path, the path of the workflows' code, and its module."""
    code = tmp_path / f"shop_{tmp_path.name}.py"
    code.write_text(f"CHARGES = {str(tmp_path / 'charges')!r}\n{APP}")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "shop.db", code, importlib.import_module(code.stem)


def worker_for(client: Client, shop: Any) -> Worker:
    return Worker(
        client,
        workflows=[shop.shop_order, shop.shop_dice, shop.shop_parent],
        activities=[shop.charge, shop.refuse],
    )


def start_runs(db: Path, shop: Any, *runs: tuple[Any, str, list[str]]) -> None:
    """Start runs on the file, and stop the worker once each waits for its signal."""
    with Client.connect(f"local:{db}") as client, worker_for(client, shop):
        for run, id, args in runs:
            handle = client.start_workflow(run, *args, id=id)
            until(lambda handle=handle: _is_waiting(handle))


def _is_waiting(handle: WorkflowHandle[Any]) -> bool:
    """Return whether a run waits for its signal or its child."""
    names = [event["eventType"].removeprefix("EVENT_TYPE_") for event in handle.history().events]
    if handle.describe().workflow_type == "shop_order":
        return names.count("TIMER_STARTED") == 2
    return names.count("WORKFLOW_TASK_COMPLETED") == 2


def move(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, str]]]:
    capsys.readouterr()
    code = main(["move", *arguments, "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def signal_and_result(server: DevServer, shop: Any, id: str) -> str:
    with Client.connect(server.target) as client, worker_for(client, shop):
        handle = client.get_workflow_handle(id, result_type=str)
        handle.signal("go", "signalled")
        return handle.result(30)


def test_move_plans_then_moves_open_runs_without_repeating_activities(
    shop: tuple[Path, Path, Any], quick_server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Event groups are kept."""
    db, code, module = shop
    start_runs(db, module, (module.shop_order, "move-1", ["o-1"]), (module.shop_dice, "move-dice", []))
    start_runs(db, module, (module.shop_parent, "move-parent", []))
    options = (str(db), "--to", quick_server.target, "--code", str(code))
    status, results = move(capsys, *options, "--dry-run")
    assert status == 0
    assert move(capsys, *options) == (0, results)
    assert {each["id"]: each["verdict"] for each in results} == {
        "move-1": "moves",
        "move-dice": "moves",  # that its code rolls dice shows when it is tried
        "move-parent": "stays",
        "child": "stays",
    }
    assert main(["list", "ExecutionStatus = 'Running'", "--count", "--target", f"local:{db}"]) == 0
    assert capsys.readouterr().out.strip() == "4"
    status, results = move(capsys, *options, "--yes")
    why = {each["id"]: (each["verdict"], each["why"]) for each in results}
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
    assert "where it continues, at" in asked
    assert f"hourglass why move-1 --target {quick_server.target}" in asked
    assert "hourglass reset" not in asked, "it would be alive in both places"
    assert signal_and_result(quick_server, module, "move-1") == "charged o-1, signalled, charged o-1 again"
    assert (db.parent / "charges").read_text().splitlines().count("o-1") == 1


@pytest.mark.parametrize("state", ["paused", "half", "held", "let go", "gone on"])
def test_next_move_completes_an_interrupted_move_of_a_run(
    shop: tuple[Path, Path, Any], quick_server: DevServer, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    db, code, module = shop
    id = f"killed-{state.replace(' ', '-')}"
    start_runs(db, module, (module.shop_order, id, ["o-2"]))
    with Client.connect(f"local:{db}") as here, Client.connect(quick_server.target) as there:
        handle = here.get_workflow_handle(id)
        run_id = handle.describe().run_id
        handle.pause(f"moving to {quick_server.target}")
        history = handle.history()
        request = f"moved-{run_id}"
        if state == "half":
            ends = [
                place
                for place, event in enumerate(history.events)
                if event["eventType"] == "EVENT_TYPE_WORKFLOW_TASK_COMPLETED"
            ]
            cut = json.dumps({"events": history.events[: ends[1]]})
            there.import_workflow(History(id, cut), request_id=request, hold=True)
        elif state != "paused":
            there.import_workflow(history, request_id=request, hold=state == "held")
        with worker_for(there, module):  # workers that are there already get nothing of what is held
            if state == "gone on":
                run = there.get_workflow_handle(id, result_type=str)
                run.signal("go", "signalled")
                assert run.result(30) == "charged o-2, signalled, charged o-2 again"
    status, results = move(capsys, str(db), "--to", quick_server.target, "--code", str(code), "--yes")
    assert (status, [each["verdict"] for each in results]) == (0, ["moved"])
    if state != "gone on":
        assert signal_and_result(quick_server, module, id) == "charged o-2, signalled, charged o-2 again"
    assert (db.parent / "charges").read_text().splitlines() == ["o-2", "o-2 again"]
    with Client.connect(f"local:{db}") as here:
        assert here.get_workflow_handle(id).describe().status.name == "TERMINATED"


def never_due(action: ScheduleActionStartWorkflow, **state: Any) -> Schedule:
    """A schedule that is never due during a test."""
    spec = ScheduleSpec(cron_expressions=["0 0 1 1 *"], time_zone_name="Europe/Berlin")
    return Schedule(action, spec, SchedulePolicy(catchup_window=60), ScheduleState(**state))


def create_schedules(db: Path, name: str) -> None:
    """Create an active and a paused schedule with notes, memo, limits and arguments."""
    with Client.connect(f"local:{db}") as here:
        act = ScheduleActionStartWorkflow("shop_order", "o-9", task_queue="nowhere", memo={"why": ["yearly"]})
        here.create_schedule(
            f"{name}-active",
            never_due(act, note="yearly report", limited_actions=True, remaining_actions=7),
            memo={"team": "shop"},
        )
        here.create_schedule(f"{name}-paused", never_due(act, note="not now", paused=True))


def check_moved(db: Path, server: DevServer, name: str) -> None:
    with Client.connect(f"local:{db}") as here, Client.connect(server.target) as there:
        for each, paused, note in (("active", False, "yearly report"), ("paused", True, "not now")):
            old = here.get_schedule_handle(f"{name}-{each}").describe()
            new = there.get_schedule_handle(f"{name}-{each}").describe()
            assert (new.schedule.state.paused, new.schedule.state.note) == (paused, note)
            assert old.schedule.state.paused, "it would act in both places"
            assert old.schedule.state.note == f"moved to {server.target}: {note}"
            assert list(new.schedule.action.args) == ["o-9"]
            assert new.schedule.action.options["memo"] == {"why": ["yearly"]}
            assert new.schedule.spec.time_zone_name == "Europe/Berlin"
            assert new.schedule.policy.catchup_window == timedelta(seconds=60)
        assert there.get_schedule_handle(f"{name}-active").describe().memo == {"team": "shop"}
        assert there.get_schedule_handle(f"{name}-active").describe().schedule.state.remaining_actions == 7


def test_move_plans_then_moves_schedules_and_pauses_the_originals(
    shop: tuple[Path, Path, Any], quick_server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a query, schedules stay."""
    db, code, module = shop
    start_runs(db, module, (module.shop_order, "with-schedules", ["o-4"]))
    create_schedules(db, "moved")
    options = (str(db), "--to", quick_server.target, "--code", str(code))
    status, results = move(capsys, *options)
    assert status == 0
    assert {(each["kind"], each["id"], each["verdict"]) for each in results} == {
        ("workflow", "with-schedules", "moves"),
        ("schedule", "moved-active", "moves"),
        ("schedule", "moved-paused", "moves"),
    }
    with Client.connect(f"local:{db}") as here, Client.connect(quick_server.target) as there:
        assert not here.get_schedule_handle("moved-active").describe().schedule.state.paused
        with pytest.raises(ScheduleNotFoundError):
            there.get_schedule_handle("moved-active").describe()
    status, results = move(capsys, *options, "--query", "WorkflowId = 'another'", "--yes")
    assert (status, {each["verdict"] for each in results}) == (0, {"stays"})
    assert "--query" in results[0]["why"]
    assert main(["move", *options, "--yes"]) == 0
    printed = capsys.readouterr().out
    assert "moved: 1 of 1 workflows and 2 of 2 schedules" in printed
    assert "active on the server from now on" in printed
    check_moved(db, quick_server, "moved")
    assert move(capsys, *options, "--yes") == (0, [])
    assert (
        signal_and_result(quick_server, module, "with-schedules")
        == "charged o-4, signalled, charged o-4 again"
    )


@pytest.mark.parametrize("killed_at", ["paused", "held", "active on the server", "noted"])
def test_next_move_completes_an_interrupted_move_of_schedules(
    shop: tuple[Path, Path, Any],
    quick_server: DevServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    killed_at: str,
) -> None:
    db, code, _ = shop
    name = f"killed-{killed_at.replace(' ', '-')}"
    create_schedules(db, name)
    options = (str(db), "--to", quick_server.target, "--code", str(code), "--yes")

    class Killed(BaseException):
        pass

    updates = ScheduleHandle.update
    before, after = {"paused": (9, 1), "held": (1, 9), "active on the server": (2, 9), "noted": (9, 3)}[
        killed_at
    ]
    done = 0

    def update(self: ScheduleHandle, change: Any) -> None:
        nonlocal done
        if not self.id.endswith("-active"):
            updates(self, change)
            return
        if done == before:
            raise Killed
        updates(self, change)
        done += 1
        if done == after:
            raise Killed

    monkeypatch.setattr(ScheduleHandle, "update", update)
    with pytest.raises(Killed):
        move(capsys, *options)
    monkeypatch.undo()
    with Client.connect(f"local:{db}") as here, Client.connect(quick_server.target) as there:
        acts_here = not here.get_schedule_handle(f"{name}-active").describe().schedule.state.paused
        try:
            acts_there = not there.get_schedule_handle(f"{name}-active").describe().schedule.state.paused
        except ScheduleNotFoundError:
            acts_there = False
    assert (acts_here, acts_there) == (False, killed_at in ("active on the server", "noted"))
    status, results = move(capsys, *options)
    assert (status, {each["verdict"] for each in results} | {"moved"}) == (0, {"moved"})
    check_moved(db, quick_server, name)


def test_move_keeps_schedules_whose_id_is_used_or_whose_run_stays(
    shop: tuple[Path, Path, Any], quick_server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    db, code, module = shop
    options = (str(db), "--to", quick_server.target, "--code", str(code), "--yes")
    act = ScheduleActionStartWorkflow("shop_dice", id="stay-run", task_queue="default")
    with (
        Client.connect(f"local:{db}") as here,
        Client.connect(quick_server.target) as there,
        worker_for(here, module),
    ):
        taken = ScheduleActionStartWorkflow("shop_order", "x", task_queue="nowhere")
        here.create_schedule("stay-taken", never_due(taken, note="ours"), trigger_immediately=True)
        there.create_schedule("stay-taken", never_due(taken, note="theirs"))
        here.create_schedule("stay-waits", never_due(act), trigger_immediately=True)

        def dice_waits() -> bool:
            found = list(here.list_workflows("WorkflowType = 'shop_dice'"))
            return bool(found) and _is_waiting(here.get_workflow_handle(found[0].id))

        until(dice_waits)
    status, results = move(capsys, *options)
    assert status == 1
    why = {each["id"].split("-20")[0]: (each["verdict"], each["why"]) for each in results}
    assert why["stay-taken"] == (
        "stays",
        "a schedule on the server already has this id: delete one of the two",
    )
    assert "its schedule stay-taken stays" in next(
        each["why"] for each in results if each["workflow_type"] == "shop_order" and each["run_id"]
    )
    assert why["stay-waits"][0] == "stays"
    assert "which stays in the file" in why["stay-waits"][1]
    with Client.connect(f"local:{db}") as here, Client.connect(quick_server.target) as there:
        for each, note in (("stay-taken", "ours"), ("stay-waits", "")):
            state = here.get_schedule_handle(each).describe().schedule.state
            assert (state.paused, state.note) == (False, note)
        assert there.get_schedule_handle("stay-taken").describe().schedule.state.note == "theirs"
        with pytest.raises(ScheduleNotFoundError):
            there.get_schedule_handle("stay-waits").describe()
        there.get_schedule_handle("stay-taken").delete()


def test_move_rejects_invalid_options(
    shop: tuple[Path, Path, Any], quick_server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    db, code, module = shop
    assert main(["move", str(db), "--to", quick_server.target, "--code", str(code)]) == 2
    assert "does not exist" in capsys.readouterr().err
    start_runs(db, module, (module.shop_order, "taken", ["o-3"]))
    assert main(["move", str(db), "--to", "local:other.db", "--code", str(code)]) == 2
    assert "--to must be a Temporal server" in capsys.readouterr().err
    both = ["move", str(db), "--to", quick_server.target, "--code", str(code), "--yes", "--dry-run"]
    assert main(both) == 2
    assert "either --yes" in capsys.readouterr().err
    with Client.connect(quick_server.target) as there:
        other = there.start_workflow("shop_order", "x", id="taken", task_queue="nowhere")
        status, results = move(capsys, str(db), "--to", quick_server.target, "--code", str(code), "--yes")
        assert status == 1
        assert "an open workflow on the server already has this id" in results[0]["why"]
        other.terminate()
    with Client.connect(f"local:{db}") as here:
        assert here.get_workflow_handle("taken").describe().status.name == "RUNNING"
        here.get_workflow_handle("taken").terminate()
    assert move(capsys, str(db), "--to", quick_server.target, "--code", str(code)) == (0, [])
