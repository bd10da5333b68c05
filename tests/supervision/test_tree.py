"""Inspection and reports of a running tree."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hourglass._supervision import (
    DynamicSupervisor,
    NoSuchChild,
    Reports,
    StartFailed,
    SupervisionReport,
    Supervisor,
    Tree,
    start_tree,
)
from hourglass._supervision.exits import KILLED, crash

from .world import Boom, World, on_both_loops


async def start_example(world: World) -> tuple[Tree, DynamicSupervisor]:
    pool = DynamicSupervisor()
    inner = Supervisor(
        "rest_for_one", [world.worker("Runtime"), world.worker("Holder"), pool.as_child("Pool")]
    )
    tree = await world.start(
        inner.as_child("Subsystem"),
        world.worker("Lanes", restart="temporary"),
        world.worker("Slow", backoff=(9, 9)),
    )
    await pool.start_child(world.worker("default"))
    return tree, pool


@on_both_loops
async def test_tree_paths_list_living_processes_in_start_order(world: World) -> None:
    tree, _ = await start_example(world)
    assert tree.paths() == [
        "App",
        "App/Subsystem",
        "App/Subsystem/Runtime",
        "App/Subsystem/Holder",
        "App/Subsystem/Pool",
        "App/Subsystem/Pool/default",
        "App/Lanes",
        "App/Slow",
    ]
    await tree.stop()
    assert tree.paths() == []


@on_both_loops
async def test_tree_drawing_shows_states_and_restarts(world: World) -> None:
    tree, _ = await start_example(world)
    for _ in range(2):
        await world.crash("App/Subsystem/Holder")
    await world.crash("App/Lanes")
    await world.crash("App/Slow")
    assert tree.render() == "\n".join(
        (
            "App  running",
            "├── Subsystem  running",
            "│   ├── Runtime  running",
            "│   ├── Holder  running, 2 restarts",
            "│   └── Pool  running, 2 restarts",
            "├── Lanes  ended",
            "└── Slow  waiting",
        )
    )
    await tree.stop()
    assert tree.render() == "App  dead"


@on_both_loops
async def test_unknown_tree_path_is_rejected(world: World) -> None:
    tree, _ = await start_example(world)
    for path, message in (
        ("Other", "the tree's root is 'App'"),
        ("", "the tree's root is 'App'"),
        ("App/Nobody", "App has no running child 'Nobody'"),
        ("App/Subsystem/Holder/x", "App/Subsystem/Holder has no running child 'x'"),
    ):
        with pytest.raises(NoSuchChild, match=message):
            tree.kill(path)


@on_both_loops
async def test_killing_the_root_process_ends_the_tree(world: World) -> None:
    tree, _ = await start_example(world)
    tree.kill("App")
    assert (tree.paths(), await tree.root.wait_dead()) == ([], KILLED)
    assert await tree.stop() is KILLED


@on_both_loops
async def test_tree_without_a_clock_uses_the_event_loops_clock(world: World) -> None:
    restarted = asyncio.Event()
    seen: list[str] = []

    def sink(report: SupervisionReport) -> None:
        seen.append(report.kind)
        if seen.count("started") == 3:
            restarted.set()

    root = Supervisor("one_for_one", [world.worker("a", backoff=(0.001, 0.001))]).as_child("App")
    tree = await start_tree(root, sink=sink)
    tree.kill("App/a")
    await restarted.wait()
    assert seen == ["started", "started", "exited", "delayed", "restarting", "started"]
    await tree.stop()


@on_both_loops
async def test_every_start_exit_restart_and_escalation_is_reported(world: World) -> None:
    inner = Supervisor("one_for_one", [world.worker("a")], max_restarts=1)
    tree = await world.start(inner.as_child("Sub"))
    await world.crash("App/Sub/a")
    await world.crash("App/Sub/a")
    assert [f"{report.kind} {report.path}" for report in world.reports] == [
        "started App/Sub/a",
        "started App/Sub",
        "started App",
        "exited App/Sub/a",
        "restarting App/Sub/a",
        "started App/Sub/a",
        "exited App/Sub/a",
        "gave_up App/Sub",
        "exited App/Sub",
        "restarting App/Sub",
        "started App/Sub/a",
        "started App/Sub",
    ]
    assert [str(report) for report in tree.reports()] == [str(report) for report in world.reports]
    assert (
        world.reports[7].detail
        == "restart intensity exceeded with more than 1 restarts in 5 s; last child 'a'"
    )
    assert isinstance(world.reports[3].error, Boom)


def test_recent_reports_are_bounded_and_hold_no_exceptions() -> None:
    reports = Reports(lambda report: None, size=3)
    for number in range(10):
        reports.add("exited", f"App/{number}", float(number), crash(Boom()))
    assert [report.path for report in reports.recent()] == ["App/7", "App/8", "App/9"]
    assert [report.error for report in reports.recent()] == [None] * 3


def test_report_text_contains_the_error_type_but_not_its_message() -> None:
    with pytest.raises(ValueError) as caught:
        raise ValueError("secret")
    reports = Reports(lambda report: None)
    reports.add("exited", "App/a", 0.0, crash(caught.value))
    (report,) = reports.recent()
    assert "secret" not in f"{report} {report!r} {crash(caught.value)!r}"
    assert "ValueError at test_tree.py:" in str(report)


def test_default_report_sink_logs_by_severity(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "hourglass.supervision")
    reports = Reports()
    reports.add("started", "App/a", 0.0)
    reports.add("exited", "App/a", 0.0, KILLED)
    reports.add("exited", "App/a", 0.0, crash(Boom()))
    reports.add("restarting", "App/a", 0.0, detail="restart 1")
    reports.add("gave_up", "App", 0.0)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("DEBUG", "App/a started"),
        ("WARNING", "App/a exited (killed)"),
        ("ERROR", "App/a exited (crash: Boom)"),
        ("WARNING", "App/a restarting (restart 1)"),
        ("ERROR", "App gave up"),
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [False, False, True, False, False]


@on_both_loops
async def test_failing_report_sink_does_not_affect_the_tree(world: World) -> None:
    def broken(report: object) -> None:
        raise Boom

    tree = await start_tree(
        Supervisor("one_for_one", [world.worker("a")]).as_child("App"), clock=world.clock, sink=broken
    )
    tree.kill("App/a")
    await world.settle()
    assert tree.paths() == ["App", "App/a"]
    await tree.stop()


@on_both_loops
async def test_failed_tree_start_stops_its_children(world: World) -> None:
    world.refusals["a"] = 1
    with pytest.raises(StartFailed, match="App did not start"):
        await world.start(world.worker("b"), world.worker("a"))
    assert world.log == ["+b", "+a", "-a", "-b"]
