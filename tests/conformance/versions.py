"""Worker versions: pinned runs stay with their version, others move to the current one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from hourglass import RetryPolicy, Worker, activity, workflow
from hourglass._temporal.version import has
from hourglass.client import (
    AutoUpgradeVersioningOverride,
    OneTimeVersioningOverride,
    PinnedVersioningOverride,
    WorkflowHandle,
)
from hourglass.errors import ApplicationError, ServiceError, UsageError, WorkflowFailedError
from hourglass.worker import VersioningBehavior, WorkerDeploymentConfig, WorkerDeploymentVersion

from .scenario import scenario
from .world import LIMIT, World

PINNED, AUTO_UPGRADE = VersioningBehavior.PINNED, VersioningBehavior.AUTO_UPGRADE
ON_CURRENT = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
go = workflow.Channel("go", str)


def current_build_id() -> str:
    """Return the build id that runs the workflow code now."""
    version = workflow.info().get_current_deployment_version()
    assert (version.build_id if version else "") == workflow.info().get_current_build_id()
    return version.build_id if version else ""


@activity.defn
def work(text: str) -> str:
    return text


def run_case(then: str) -> object:
    """Return the build ids before and after the `go` signal, depending on the case."""
    before = current_build_id()
    if then == "at once":
        return before
    go.receive()
    child_id = f"{workflow.info().workflow_id}-child"
    match then:
        case "child":
            return [
                before,
                current_build_id(),
                workflow.execute_child_workflow("pinned_workflow", "at once", id=child_id),
            ]
        case "moving child":
            return [
                before,
                current_build_id(),
                workflow.execute_child_workflow("auto_upgrade_workflow", "at once", id=child_id),
            ]
        case "pinned child" | "child of no version":
            its = "2" if then == "pinned child" else "none"
            there = PinnedVersioningOverride(WorkerDeploymentVersion(workflow.info().task_queue, its))
            return [
                before,
                current_build_id(),
                workflow.execute_child_workflow(
                    "auto_upgrade_workflow", "at once", id=child_id, versioning_override=there
                ),
            ]
        case "twice":
            between = current_build_id()
            go.receive()
            return [before, between, current_build_id()]
        case "continue":
            workflow.continue_as_new("at once")
        case "continue elsewhere":
            workflow.continue_as_new("at once", initial_versioning_behavior=ON_CURRENT)
        case "retry" if workflow.info().attempt == 1:
            raise ApplicationError("once more")
        case "changed":
            return [before, current_build_id(), workflow.info().is_target_worker_deployment_version_changed]
    return [before, current_build_id(), work("done")]


@workflow.defn(versioning_behavior=PINNED)
def pinned_workflow(then: str = "") -> object:
    return run_case(then)


@workflow.defn(versioning_behavior=AUTO_UPGRADE)
def auto_upgrade_workflow(then: str = "") -> object:
    return run_case(then)


@workflow.defn
def unversioned_workflow(then: str = "") -> object:
    return run_case(then)


@workflow.defn(dynamic=True, versioning_behavior=PINNED)
class DynamicBehavior:
    """The versioning behavior depends on the workflow type."""

    @workflow.run
    def run(self, arguments: Sequence[workflow.RawPayload]) -> object:
        return run_case("")

    @workflow.dynamic_config
    def config(self) -> workflow.DynamicWorkflowConfig:
        moving = workflow.info().workflow_type == "any-that-moves"
        return workflow.DynamicWorkflowConfig(
            versioning_behavior=AUTO_UPGRADE if moving else VersioningBehavior.UNSPECIFIED
        )


class Deployment:
    """The deployment of one scenario, named after its task queue."""

    def __init__(self, world: World, stack: ExitStack) -> None:
        self.world = world
        self._stack = stack
        world.stop_worker()

    def version(self, build_id: str) -> WorkerDeploymentVersion:
        """Return a version of this deployment."""
        return WorkerDeploymentVersion(self.world.queue, build_id)

    def start_worker(self, build_id: str) -> Worker:
        """Start a worker of a version in addition to the running ones."""
        config = WorkerDeploymentConfig(
            self.version(build_id), default_versioning_behavior=VersioningBehavior.PINNED
        )
        worker = Worker(
            self.world.client,
            self.world.queue,
            modules=[sys.modules[__name__]],
            verify="always",
            deployment_config=config,
        )
        return self._stack.enter_context(worker)

    def make_current(self, build_id: str | None) -> None:
        """Make a version current; wait until the task queue reports it."""
        client, queue = self.world.client, self.world.queue
        client.set_current_version(queue, build_id)
        wanted = None if build_id is None else self.version(build_id)
        self.world.wait_until(
            lambda: client.describe_task_queue(queue).current_version == wanted, f"version {build_id}"
        )

    def deploy(self, build_id: str) -> Worker:
        """Start a worker of a version and make the version current."""
        worker = self.start_worker(build_id)
        self.make_current(build_id)
        return worker

    def start_waiting_run(
        self, workflow: object, then: str = "", **options: object
    ) -> WorkflowHandle[object]:
        """Start a run; wait for its first workflow task."""
        handle = self.world.start(workflow, then, **options)
        self.world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED")
        return handle


@contextmanager
def deployment(world: World) -> Iterator[Deployment]:
    """Create the scenario's deployment; shut down its workers at the end."""
    with ExitStack() as stack:
        yield Deployment(world, stack)


@scenario()
def pinned_run_stays_with_its_version(world: World) -> None:
    with deployment(world) as deployed:
        deployed.deploy("1")
        first = deployed.start_waiting_run(pinned_workflow)
        deployed.deploy("2")
        second = deployed.start_waiting_run(pinned_workflow)
        for handle in (first, second):
            handle.signal(go, "")
        assert first.result(timeout=LIMIT) == ["1", "1", "done"]
        assert second.result(timeout=LIMIT) == ["2", "2", "done"]
        described = first.describe()
        assert described.deployment_version == deployed.version("1")
        assert described.versioning_behavior is PINNED


@scenario()
def dynamic_config_sets_versioning_behavior(world: World) -> None:
    with deployment(world) as deployed:
        deployed.deploy("1")
        pinned, moving = (deployed.world.start(name) for name in ("any-that-stays", "any-that-moves"))
        for handle, behavior in ((pinned, PINNED), (moving, AUTO_UPGRADE)):
            world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED")
            assert handle.describe().versioning_behavior is behavior
            handle.signal(go, "")
            assert handle.result(timeout=LIMIT) == ["1", "1", "done"]


@scenario()
def auto_upgrade_run_moves_to_current_version(world: World) -> None:
    with deployment(world) as deployed:
        deployed.deploy("1")
        handle = deployed.start_waiting_run(auto_upgrade_workflow)
        assert handle.describe().deployment_version == deployed.version("1")
        deployed.deploy("2")
        handle.signal(go, "")
        assert handle.result(timeout=LIMIT) == ["1", "2", "done"]
        assert handle.describe().deployment_version == deployed.version("2")
        assert handle.describe().versioning_behavior is AUTO_UPGRADE


@scenario()
def pinned_run_knows_that_target_version_changed(world: World) -> None:
    with deployment(world) as deployed:
        deployed.deploy("1")
        handle = deployed.start_waiting_run(pinned_workflow, "changed")
        deployed.deploy("2")
        handle.signal(go, "")
        assert handle.result(timeout=LIMIT) == ["1", "1", True]


@scenario()
def child_starts_on_version_of_its_parent(world: World) -> None:
    with deployment(world) as deployed:
        deployed.deploy("1")
        pinned = deployed.start_waiting_run(pinned_workflow, "child")
        moving = deployed.start_waiting_run(pinned_workflow, "moving child")
        moved = deployed.start_waiting_run(auto_upgrade_workflow, "moving child")
        deployed.deploy("2")
        for handle in (pinned, moving, moved):
            handle.signal(go, "")
        assert pinned.result(timeout=LIMIT) == ["1", "1", "1"]
        assert moving.result(timeout=LIMIT) == ["1", "1", "1"]
        assert moved.result(timeout=LIMIT) == ["1", "2", "2"]
        for handle in (pinned, moving, moved):
            child = world.client.get_workflow_handle(f"{handle.id}-child")
            world.handles.append(world.client.get_workflow_handle(child.id, run_id=child.describe().run_id))


@scenario()
def continued_run_starts_on_version_of_previous_run(world: World) -> None:
    with deployment(world) as deployed:
        deployed.deploy("1")
        pinned = deployed.start_waiting_run(pinned_workflow, "continue")
        moving = deployed.start_waiting_run(auto_upgrade_workflow, "continue")
        deployed.deploy("2")
        for handle in (pinned, moving):
            handle.signal(go, "")
        assert pinned.result(timeout=LIMIT) == "1"
        assert moving.result(timeout=LIMIT) == "2"


@scenario()
def pinned_run_can_continue_as_new_on_current_version(world: World) -> None:
    with deployment(world) as deployed:
        deployed.deploy("1")
        pinned = deployed.start_waiting_run(pinned_workflow, "continue elsewhere")
        deployed.deploy("2")
        pinned.signal(go, "")
        assert pinned.result(timeout=LIMIT) == "2"


@scenario()
def retry_of_pinned_run_starts_on_current_version(world: World) -> None:
    with deployment(world) as deployed:
        deployed.deploy("1")
        policy = RetryPolicy(initial_interval=0.1, maximum_attempts=2)
        handle = deployed.start_waiting_run(pinned_workflow, "retry", retry_policy=policy)
        deployed.deploy("2")
        handle.signal(go, "")
        again = world.client.get_workflow_handle(handle.id)
        world.wait_until(lambda: again.describe().run_id != handle.run_id, "a second attempt")
        world.wait_for_event(
            again, "WORKFLOW_TASK_COMPLETED"
        )  # otherwise the signal may arrive during the backoff
        again.signal(go, "")
        assert again.result(timeout=LIMIT) == ["2", "2", "done"]


@scenario()
def versioning_override_pins_or_releases_run(world: World) -> None:
    with deployment(world) as deployed:
        deployed.deploy("1")
        freed = deployed.start_waiting_run(
            pinned_workflow, versioning_override=AutoUpgradeVersioningOverride()
        )
        deployed.deploy("2")
        pin = PinnedVersioningOverride(deployed.version("1"))
        pinned = deployed.start_waiting_run(auto_upgrade_workflow, versioning_override=pin)
        assert pinned.describe().versioning_behavior is PINNED
        assert freed.describe().versioning_behavior is AUTO_UPGRADE
        for handle in (freed, pinned):
            handle.signal(go, "")
        assert freed.result(timeout=LIMIT) == ["1", "2", "done"]
        assert pinned.result(timeout=LIMIT) == ["1", "1", "done"]


@scenario()
def pinned_override_is_inherited_by_child_and_continued_run(world: World) -> None:
    with deployment(world) as deployed:
        deployed.deploy("1")
        deployed.deploy("2")
        pin = PinnedVersioningOverride(deployed.version("1"))
        parent = deployed.start_waiting_run(auto_upgrade_workflow, "moving child", versioning_override=pin)
        following = deployed.start_waiting_run(auto_upgrade_workflow, "continue", versioning_override=pin)
        for handle in (parent, following):
            handle.signal(go, "")
        assert parent.result(timeout=LIMIT) == ["1", "1", "1"]
        assert following.result(timeout=LIMIT) == "1"
        child = world.client.get_workflow_handle(f"{parent.id}-child")
        world.handles.append(world.client.get_workflow_handle(child.id, run_id=child.describe().run_id))


@scenario()
def workers_take_no_tasks_until_their_version_is_current(world: World) -> None:
    with deployment(world) as deployed:
        deployed.start_worker("1")
        handle = world.start(pinned_workflow, "at once")
        deployed.make_current("1")
        assert handle.result(timeout=LIMIT) == "1"


@scenario()
def unversioned_run_moves_to_current_version_and_back(world: World) -> None:
    with deployment(world) as deployed:
        world.start_worker()
        before = deployed.start_waiting_run(pinned_workflow)
        world.stop_worker()
        deployed.deploy("1")
        before.signal(go, "")
        assert before.result(timeout=LIMIT) == ["", "1", "done"]
        deployed.make_current(None)
        world.start_worker()
        assert world.run(pinned_workflow, "at once") == ""
        world.stop_worker()


@scenario()
def ramping_version_takes_its_percentage_of_runs(world: World) -> None:
    client, queue = world.client, world.queue
    with deployment(world) as deployed:
        deployed.deploy("1")
        pinned, moving = (
            deployed.start_waiting_run(pinned_workflow),
            deployed.start_waiting_run(auto_upgrade_workflow),
        )
        deployed.start_worker("2")
        assert client.set_ramping_version(queue, "2", 100) is None
        world.wait_until(
            lambda: client.describe_task_queue(queue).ramping_version == deployed.version("2"), "a ramp"
        )
        description = client.describe_deployment(queue)
        assert (description.current, description.ramping) == (deployed.version("1"), deployed.version("2"))
        assert description.ramping_percentage == 100
        assert {entry.version.build_id: entry.status for entry in description.versions} == {
            "1": "CURRENT",
            "2": "RAMPING",
        }
        for handle in (pinned, moving):
            handle.signal(go, "")
        assert pinned.result(timeout=LIMIT) == ["1", "1", "done"]
        assert moving.result(timeout=LIMIT) == ["1", "2", "done"]
        assert world.run(pinned_workflow, "at once") == "2"
        with pytest.raises(ServiceError, match="already current"):
            client.set_ramping_version(queue, "1", 5)
        with pytest.raises(UsageError, match="from 0 to 100"):
            client.set_ramping_version(queue, "2", 101)
        assert client.set_ramping_version(queue, None) == deployed.version("2")
        world.wait_until(lambda: client.describe_task_queue(queue).ramping_version is None, "no ramp")
        assert world.run(pinned_workflow, "at once") == "1"
        client.set_ramping_version(queue, "2", 10.5)
        deployed.make_current("2")
        description = client.describe_deployment(queue)
        assert (description.current, description.ramping, description.ramping_percentage) == (
            deployed.version("2"),
            None,
            0,
        )


@scenario()
def batch_update_moves_pinned_runs_of_a_version(world: World) -> None:
    with deployment(world) as deployed:
        deployed.deploy("1")
        first, second = (
            deployed.start_waiting_run(pinned_workflow),
            deployed.start_waiting_run(pinned_workflow),
        )
        deployed.deploy("2")
        there = f"TemporalWorkerDeploymentVersion = '{world.queue}:1' AND WorkflowType = 'pinned_workflow'"
        world.wait_until(lambda: world.client.count_workflows(there).count == 2, "both to be found")
        result = world.client.update_options_of_workflows(
            there, versioning_override=PinnedVersioningOverride(deployed.version("2"))
        )
        assert (result.found, result.done, result.errors) == (2, 2, {})
        for handle in (first, second):
            handle.signal(go, "")
            assert handle.result(timeout=LIMIT) == ["1", "2", "done"]


@scenario()
def unversioned_workflow_uses_default_behavior_of_worker(world: World) -> None:
    with deployment(world) as deployed:
        deployed.deploy("1")
        handle = deployed.start_waiting_run(unversioned_workflow)
        assert handle.describe().versioning_behavior is PINNED
        deployed.deploy("2")
        handle.signal(go, "")
        assert handle.result(timeout=LIMIT) == ["1", "1", "done"]


@scenario()
def describe_deployment_lists_versions_and_unknown_ones_are_rejected(world: World) -> None:
    with deployment(world) as deployed:
        deployed.deploy("1")
        deployed.deploy("2")
        description = world.client.describe_deployment(world.queue)
        assert description.current == deployed.version("2")
        assert [entry.version.build_id for entry in description.versions] == ["2", "1"]
        assert description.versions[0].status == "CURRENT"
        assert world.client.set_current_version(world.queue, "1") == deployed.version("2")
        for refused in (
            lambda: world.client.set_current_version(world.queue, "3", wait=0),
            lambda: world.client.describe_deployment(f"{world.queue}x"),
        ):
            with pytest.raises(ServiceError) as caught:
                refused()
            assert caught.value.status == "NOT_FOUND"
        nowhere = PinnedVersioningOverride(deployed.version("3"))
        with pytest.raises(ServiceError) as caught:
            world.client.start_workflow(
                pinned_workflow, "at once", task_queue=world.queue, versioning_override=nowhere
            )
        assert caught.value.status == "FAILED_PRECONDITION"


@scenario("loose")
def update_options_moves_run_permanently_or_for_one_task(world: World) -> None:
    with deployment(world) as deployed:
        deployed.deploy("1")
        for_good, once, back = (deployed.start_waiting_run(pinned_workflow, "twice") for _ in range(3))
        moving = deployed.start_waiting_run(auto_upgrade_workflow, "twice")
        deployed.deploy("2")
        for_good.update_options(versioning_override=PinnedVersioningOverride(deployed.version("2")))
        once.update_options(versioning_override=OneTimeVersioningOverride(deployed.version("2")))
        back.update_options(versioning_override=PinnedVersioningOverride(deployed.version("2")))
        back.update_options(versioning_override=None)
        moving.update_options(versioning_override=PinnedVersioningOverride(deployed.version("1")))
        for handle in (for_good, once, back, moving):
            for _ in range(2):
                handle.signal(go, "")
        assert for_good.result(timeout=LIMIT) == ["1", "2", "2"]
        assert once.result(timeout=LIMIT) == [
            "1",
            "2",
            "2",
        ]  # its workflow is pinned, so it stays with the new version
        assert back.result(timeout=LIMIT) == ["1", "1", "1"]
        assert moving.result(timeout=LIMIT) == ["1", "1", "1"]
        assert for_good.describe().deployment_version == deployed.version("2")
        with pytest.raises(ServiceError):
            for_good.update_options(versioning_override=None)


@scenario("loose")
def child_versioning_override_selects_its_version(world: World) -> None:
    if not has((1, 35)):
        pytest.skip("Core's command for a child says no version before temporalio 1.35")
    with deployment(world) as deployed:
        deployed.deploy("1")
        lost = deployed.start_waiting_run(pinned_workflow, "child of no version")
        lost.signal(go, "")
        with pytest.raises(WorkflowFailedError) as failed:
            lost.result(timeout=LIMIT)
        assert "versioning override" in str(failed.value).lower()
        deployed.deploy("2")
        deployed.make_current("1")
        parent = deployed.start_waiting_run(pinned_workflow, "pinned child")
        parent.signal(go, "")
        assert parent.result(timeout=LIMIT) == ["1", "1", "2"]
