"""The shape of the supervision tree, and the order in which its children start and stop."""

from __future__ import annotations

from hourglass import Client, Worker
from hourglass._supervision import ChildSpec

from .world import ACTIVITIES, WORKER, WORKERS, WORKFLOWS, memory, steps

COMPLETE_TREE = [
    "Application",
    "Application/EvaluatorSupervisor",
    "Application/ExecutorSupervisor",
    "Application/LaneSupervisor",
    "Application/LaneSupervisor/default:hourglass-lane-1",
    "Application/Subsystem",
    "Application/Subsystem/Runtime",
    "Application/Subsystem/BridgeHolder",
    "Application/Subsystem/WorkerRegistry",
    "Application/Subsystem/WorkerSupervisor",
    "Application/Subsystem/WorkerSupervisor/default",
    "Application/Subsystem/WorkerSupervisor/default/WorkflowPollLoop",
    "Application/Subsystem/WorkerSupervisor/default/ActivityPollLoop",
    "Application/Subsystem/WorkerLauncher",
    "Application/Subsystem/Watchdog",
]


def test_tree_paths_and_drawing_of_a_worker():
    with Client.connect("local:") as client, Worker(client, workflows=WORKFLOWS) as worker:
        assert worker.tree.paths() == COMPLETE_TREE
        drawing = worker.tree.render()
    assert drawing.splitlines()[0] == "Application  running"
    assert "│   └── default:hourglass-lane-1  running" in drawing
    assert "    │       ├── WorkflowPollLoop  running" in drawing
    assert drawing.splitlines()[-1] == "    └── Watchdog  running"


async def test_attempt_jobs_are_children_of_the_executor_supervisor():
    from .world import begun, stage, waiting

    async with memory() as world:
        await world.start(waiting, 1)
        await begun()
        tasks = [path for path in world.paths() if "attempt" in path or "evaluation" in path]
        assert tasks == ["Application/ExecutorSupervisor/attempt-1"]
        stage.go.set()
        assert await world.result() == 3


def _paths_of_reports(tree, kind):
    """Return the paths of these reports in order, except lanes and poll loops, whose order is not fixed."""
    beside = (":hourglass-lane", "PollLoop")
    return [r.path for r in tree.reports() if r.kind == kind and not any(item in r.path for item in beside)]


async def test_tree_children_start_in_order_and_stop_in_reverse():
    async with memory() as world:
        tree = world.app.tree
        assert await world.run(steps, 1, id="w") == 4
    started = _paths_of_reports(tree, "started")
    fixed = [path for path in COMPLETE_TREE if "PollLoop" not in path and ":hourglass" not in path]
    # A supervisor starts after its children; the Worker is launched separately.
    supervisors = ("Application", "Application/Subsystem", WORKER)
    assert [path for path in started if path not in supervisors] == [
        path for path in fixed if path not in supervisors
    ]
    stopped = _paths_of_reports(tree, "exited")
    assert stopped[0] == WORKER
    assert [path for path in stopped if path not in supervisors] == [
        path for path in reversed(fixed) if path not in supervisors
    ]
    assert stopped[-1] == "Application"


async def test_graceful_worker_stop_kills_no_child_of_the_tree():
    async with memory() as world:
        tree = world.app.tree
    exits = {report.path: report.exit for report in tree.reports() if report.kind == "exited"}
    assert {exits.pop(f"{WORKER}/{loop}") for loop in ("WorkflowPollLoop", "ActivityPollLoop")} == {"normal"}
    assert set(exits.values()) == {"shutdown"}


async def test_worker_unregisters_before_its_poll_loops_stop():
    seen = []
    async with memory(serve=False) as world:
        app = world.app
        assert app.registry.names() == ()
        await world.serve()
        assert app.registry.whereis("default") is world.find(WORKER)
        assert "default" in app.tables.registrations
        loops = [world.find(f"{WORKER}/{name}") for name in ("WorkflowPollLoop", "ActivityPollLoop")]
        for loop in loops:
            loop.monitor(lambda down: seen.append(("default" in app.tables.registrations, str(down.exit))))
    assert seen == [(False, "normal"), (False, "normal")]
    assert app.registry.names() == ()


def test_worker_without_a_task_queue_serves_the_default_queue():
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=WORKFLOWS, activities=ACTIVITIES) as worker,
    ):
        assert worker.task_queue == "default"
        assert WORKER in worker.tree.paths()
        assert client.execute_workflow(steps, 1) == 4


async def test_slash_in_a_task_queue_name_is_escaped_in_tree_paths():
    async with memory(serve=False) as world:
        await world.serve("a/b%")
        assert f"{WORKERS}/a%2Fb%25" in world.paths()
        assert await world.run(steps, 1, id="w", queue="a/b%") == 4


async def test_application_is_a_single_child_spec():
    from hourglass._worker.tree.subsystem import application

    async with memory(serve=False) as world:
        spec = application(world.app)
        assert isinstance(spec, ChildSpec)
        assert [child.id for child in spec.start.children] == [
            "EvaluatorSupervisor",
            "ExecutorSupervisor",
            "LaneSupervisor",
            "Subsystem",
        ]
