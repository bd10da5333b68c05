"""Versions of workers: pinned runs stay, others move on to the current version."""

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


def build() -> str:
    """The build that runs the code now."""
    version = workflow.info().get_current_deployment_version()
    assert (version.build_id if version else "") == workflow.info().get_current_build_id()
    return version.build_id if version else ""


@activity.defn
def step(text: str) -> str:
    """Some work."""
    return text


def body(then: str) -> object:
    """Says where it runs, before and after it was told to go on."""
    before = build()
    if then == "at once":
        return before
    go.receive()
    child_id = f"{workflow.info().workflow_id}-child"
    match then:
        case "child":
            return [before, build(), workflow.execute_child_workflow("stays", "at once", id=child_id)]
        case "moving child":
            return [before, build(), workflow.execute_child_workflow("moves", "at once", id=child_id)]
        case "pinned child" | "child of no version":
            its = "2" if then == "pinned child" else "none"
            there = PinnedVersioningOverride(WorkerDeploymentVersion(workflow.info().task_queue, its))
            return [
                before,
                build(),
                workflow.execute_child_workflow("moves", "at once", id=child_id, versioning_override=there),
            ]
        case "twice":
            between = build()
            go.receive()
            return [before, between, build()]
        case "continue":
            workflow.continue_as_new("at once")
        case "continue elsewhere":
            workflow.continue_as_new("at once", initial_versioning_behavior=ON_CURRENT)
        case "retry" if workflow.info().attempt == 1:
            raise ApplicationError("once more")
        case "changed":
            return [before, build(), workflow.info().is_target_worker_deployment_version_changed]
    return [before, build(), step("done")]


@workflow.defn(versioning_behavior=PINNED)
def stays(then: str = "") -> object:
    """A run stays with its version."""
    return body(then)


@workflow.defn(versioning_behavior=AUTO_UPGRADE)
def moves(then: str = "") -> object:
    """A run moves to the current version."""
    return body(then)


@workflow.defn
def says_nothing(then: str = "") -> object:
    """Leaves it to the worker."""
    return body(then)


@workflow.defn(dynamic=True, versioning_behavior=PINNED)
class Any:
    """Whether a run stays is said by its type's name."""

    @workflow.run
    def run(self, arguments: Sequence[workflow.RawPayload]) -> object:
        """As the others."""
        return body("")

    @workflow.dynamic_config
    def config(self) -> workflow.DynamicWorkflowConfig:
        """By its name."""
        moving = workflow.info().workflow_type == "any-that-moves"
        return workflow.DynamicWorkflowConfig(
            versioning_behavior=AUTO_UPGRADE if moving else VersioningBehavior.UNSPECIFIED
        )


class Deployment:
    """The versions of one scenario: its queue's name is the deployment's."""

    def __init__(self, world: World, stack: ExitStack) -> None:
        self.world = world
        self._stack = stack
        world.stop_worker()

    def version(self, build_id: str) -> WorkerDeploymentVersion:
        """A version of this deployment."""
        return WorkerDeploymentVersion(self.world.queue, build_id)

    def worker(self, build_id: str) -> Worker:
        """Start a worker of a version, beside those that run."""
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
        """Make a version current, and wait until the queue knows of it."""
        client, queue = self.world.client, self.world.queue
        client.set_current_version(queue, build_id)
        wanted = None if build_id is None else self.version(build_id)
        self.world.until_true(
            lambda: client.describe_task_queue(queue).current_version == wanted, f"version {build_id}"
        )

    def deploy(self, build_id: str) -> Worker:
        """Start a worker of a version, and make it current."""
        worker = self.worker(build_id)
        self.make_current(build_id)
        return worker

    def begun(self, workflow: object, then: str = "", **options: object) -> WorkflowHandle[object]:
        """Start a run, and wait until it waits."""
        handle = self.world.start(workflow, then, **options)
        self.world.until(handle, "WORKFLOW_TASK_COMPLETED")
        return handle


@contextmanager
def deployment(world: World) -> Iterator[Deployment]:
    """The scenario's deployment; its workers end with it."""
    with ExitStack() as stack:
        yield Deployment(world, stack)


@scenario()
def a_pinned_run_stays_with_its_version(world: World) -> None:
    """A run that began on the first version ends there, its activity too, though another is current."""
    with deployment(world) as deployed:
        deployed.deploy("1")
        first = deployed.begun(stays)
        deployed.deploy("2")
        second = deployed.begun(stays)
        for handle in (first, second):
            handle.signal(go, "")
        assert first.result(timeout=LIMIT) == ["1", "1", "done"]
        assert second.result(timeout=LIMIT) == ["2", "2", "done"]
        described = first.describe()
        assert described.deployment_version == deployed.version("1")
        assert described.versioning_behavior is PINNED


@scenario()
def a_dynamic_workflow_says_whether_its_runs_stay(world: World) -> None:
    """What its `dynamic_config` says of a run counts, else its decorator."""
    with deployment(world) as deployed:
        deployed.deploy("1")
        kept, moved = (deployed.world.start(name) for name in ("any-that-stays", "any-that-moves"))
        for handle, behavior in ((kept, PINNED), (moved, AUTO_UPGRADE)):
            world.until(handle, "WORKFLOW_TASK_COMPLETED")
            assert handle.describe().versioning_behavior is behavior
            handle.signal(go, "")
            assert handle.result(timeout=LIMIT) == ["1", "1", "done"]


@scenario()
def an_auto_upgrade_run_moves_to_the_current_version(world: World) -> None:
    """A run that may move on is continued by the version that is current then."""
    with deployment(world) as deployed:
        deployed.deploy("1")
        handle = deployed.begun(moves)
        assert handle.describe().deployment_version == deployed.version("1")
        deployed.deploy("2")
        handle.signal(go, "")
        assert handle.result(timeout=LIMIT) == ["1", "2", "done"]
        assert handle.describe().deployment_version == deployed.version("2")
        assert handle.describe().versioning_behavior is AUTO_UPGRADE


@scenario()
def a_pinned_run_hears_that_it_could_move(world: World) -> None:
    """A pinned run is told when another version has become current."""
    with deployment(world) as deployed:
        deployed.deploy("1")
        handle = deployed.begun(stays, "changed")
        deployed.deploy("2")
        handle.signal(go, "")
        assert handle.result(timeout=LIMIT) == ["1", "1", True]


@scenario()
def children_begin_on_their_parents_version(world: World) -> None:
    """A child of a pinned run begins where its parent is pinned; one of a run that moved, where that is now."""
    with deployment(world) as deployed:
        deployed.deploy("1")
        pinned = deployed.begun(stays, "child")
        moving = deployed.begun(stays, "moving child")
        moved = deployed.begun(moves, "moving child")
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
def runs_that_follow_begin_on_the_same_version(world: World) -> None:
    """Continued as new, a pinned run stays with its version; one that moves on is where it has moved."""
    with deployment(world) as deployed:
        deployed.deploy("1")
        pinned = deployed.begun(stays, "continue")
        moving = deployed.begun(moves, "continue")
        deployed.deploy("2")
        for handle in (pinned, moving):
            handle.signal(go, "")
        assert pinned.result(timeout=LIMIT) == "1"
        assert moving.result(timeout=LIMIT) == "2"


@scenario()
def a_pinned_run_continues_on_the_current_version(world: World) -> None:
    """A pinned run that lives long moves to the current version where it begins anew, if it asks to."""
    with deployment(world) as deployed:
        deployed.deploy("1")
        pinned = deployed.begun(stays, "continue elsewhere")
        deployed.deploy("2")
        pinned.signal(go, "")
        assert pinned.result(timeout=LIMIT) == "2"


@scenario()
def a_retry_begins_on_the_current_version(world: World) -> None:
    """The next attempt of a pinned run is a new beginning: perhaps the new version does not fail."""
    with deployment(world) as deployed:
        deployed.deploy("1")
        policy = RetryPolicy(initial_interval=0.1, maximum_attempts=2)
        handle = deployed.begun(stays, "retry", retry_policy=policy)
        deployed.deploy("2")
        handle.signal(go, "")
        again = world.client.get_workflow_handle(handle.id)
        world.until_true(lambda: again.describe().run_id != handle.run_id, "a second attempt")
        world.until(again, "WORKFLOW_TASK_COMPLETED")  # else the signal may meet it while it still backs off
        again.signal(go, "")
        assert again.result(timeout=LIMIT) == ["2", "2", "done"]


@scenario()
def an_override_pins_or_moves(world: World) -> None:
    """Whoever starts a run may pin it to a version that is not current, or have one move that would stay."""
    with deployment(world) as deployed:
        deployed.deploy("1")
        freed = deployed.begun(stays, versioning_override=AutoUpgradeVersioningOverride())
        deployed.deploy("2")
        pin = PinnedVersioningOverride(deployed.version("1"))
        pinned = deployed.begun(moves, versioning_override=pin)
        assert pinned.describe().versioning_behavior is PINNED
        assert freed.describe().versioning_behavior is AUTO_UPGRADE
        for handle in (freed, pinned):
            handle.signal(go, "")
        assert freed.result(timeout=LIMIT) == ["1", "2", "done"]
        assert pinned.result(timeout=LIMIT) == ["1", "1", "done"]


@scenario()
def what_an_override_leaves_to_others(world: World) -> None:
    """A run that was pinned from outside passes that on to its child, and to the run that it continues as."""
    with deployment(world) as deployed:
        deployed.deploy("1")
        deployed.deploy("2")
        pin = PinnedVersioningOverride(deployed.version("1"))
        parent = deployed.begun(moves, "moving child", versioning_override=pin)
        following = deployed.begun(moves, "continue", versioning_override=pin)
        for handle in (parent, following):
            handle.signal(go, "")
        assert parent.result(timeout=LIMIT) == ["1", "1", "1"]
        assert following.result(timeout=LIMIT) == "1"
        child = world.client.get_workflow_handle(f"{parent.id}-child")
        world.handles.append(world.client.get_workflow_handle(child.id, run_id=child.describe().run_id))


@scenario()
def a_run_waits_for_a_current_version(world: World) -> None:
    """Workers of a version that is not current take nothing; once it is, they take what waited."""
    with deployment(world) as deployed:
        deployed.worker("1")
        handle = world.start(stays, "at once")
        deployed.make_current("1")
        assert handle.result(timeout=LIMIT) == "1"


@scenario()
def workers_without_a_version_hand_over(world: World) -> None:
    """A run begun without versions goes on with the version that is current, and without one again when none is."""
    with deployment(world) as deployed:
        world.start_worker()
        before = deployed.begun(stays)
        world.stop_worker()
        deployed.deploy("1")
        before.signal(go, "")
        assert before.result(timeout=LIMIT) == ["", "1", "done"]
        deployed.make_current(None)
        world.start_worker()
        assert world.run(stays, "at once") == ""
        world.stop_worker()


@scenario()
def a_version_that_ramps_takes_its_share(world: World) -> None:
    """A version that ramps takes new runs, and those that move on, as its percentage says; pinned ones stay; made current, it
    ramps no more; what cannot ramp is refused.
    """
    client, queue = world.client, world.queue
    with deployment(world) as deployed:
        deployed.deploy("1")
        pinned, moving = deployed.begun(stays), deployed.begun(moves)
        deployed.worker("2")
        assert client.set_ramping_version(queue, "2", 100) is None
        world.until_true(
            lambda: client.describe_task_queue(queue).ramping_version == deployed.version("2"), "a ramp"
        )
        found = client.describe_deployment(queue)
        assert (found.current, found.ramping) == (deployed.version("1"), deployed.version("2"))
        assert found.ramping_percentage == 100
        assert {each.version.build_id: each.status for each in found.versions} == {
            "1": "CURRENT",
            "2": "RAMPING",
        }
        for handle in (pinned, moving):
            handle.signal(go, "")
        assert pinned.result(timeout=LIMIT) == ["1", "1", "done"]
        assert moving.result(timeout=LIMIT) == ["1", "2", "done"]
        assert world.run(stays, "at once") == "2"
        with pytest.raises(ServiceError, match="already current"):
            client.set_ramping_version(queue, "1", 5)
        with pytest.raises(UsageError, match="from 0 to 100"):
            client.set_ramping_version(queue, "2", 101)
        assert client.set_ramping_version(queue, None) == deployed.version("2")
        world.until_true(lambda: client.describe_task_queue(queue).ramping_version is None, "no ramp")
        assert world.run(stays, "at once") == "1"
        client.set_ramping_version(queue, "2", 10.5)
        deployed.make_current("2")
        found = client.describe_deployment(queue)
        assert (found.current, found.ramping, found.ramping_percentage) == (deployed.version("2"), None, 0)


@scenario()
def pinned_runs_are_moved_together(world: World) -> None:
    """Every open run of a version is moved to another one by one call; those of other versions stay."""
    with deployment(world) as deployed:
        deployed.deploy("1")
        first, second = deployed.begun(stays), deployed.begun(stays)
        deployed.deploy("2")
        there = f"TemporalWorkerDeploymentVersion = '{world.queue}:1' AND WorkflowType = 'stays'"
        world.until_true(lambda: world.client.count_workflows(there).count == 2, "both to be found")
        result = world.client.update_options_of_workflows(
            there, versioning_override=PinnedVersioningOverride(deployed.version("2"))
        )
        assert (result.found, result.done, result.errors) == (2, 2, {})
        for handle in (first, second):
            handle.signal(go, "")
            assert handle.result(timeout=LIMIT) == ["1", "2", "done"]


@scenario()
def a_workers_default(world: World) -> None:
    """A workflow that says nothing does as its worker says."""
    with deployment(world) as deployed:
        deployed.deploy("1")
        handle = deployed.begun(says_nothing)
        assert handle.describe().versioning_behavior is PINNED
        deployed.deploy("2")
        handle.signal(go, "")
        assert handle.result(timeout=LIMIT) == ["1", "1", "done"]


@scenario()
def what_a_deployment_says_of_itself(world: World) -> None:
    """Its versions, newest first, and which is current; what nobody ever had is refused."""
    with deployment(world) as deployed:
        deployed.deploy("1")
        deployed.deploy("2")
        found = world.client.describe_deployment(world.queue)
        assert found.current == deployed.version("2")
        assert [each.version.build_id for each in found.versions] == ["2", "1"]
        assert found.versions[0].status == "CURRENT"
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
            world.client.start_workflow(stays, "at once", task_queue=world.queue, versioning_override=nowhere)
        assert caught.value.status == "FAILED_PRECONDITION"


@scenario("loose")
def a_run_that_is_moved(world: World) -> None:
    """A client moves a pinned run to another version, for good or for one workflow task, and takes that back."""
    with deployment(world) as deployed:
        deployed.deploy("1")
        for_good, once, back = (deployed.begun(stays, "twice") for _ in range(3))
        moving = deployed.begun(moves, "twice")
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
        assert once.result(timeout=LIMIT) == ["1", "2", "2"]  # its workflow pins it to where it is then
        assert back.result(timeout=LIMIT) == ["1", "1", "1"]
        assert moving.result(timeout=LIMIT) == ["1", "1", "1"]
        assert for_good.describe().deployment_version == deployed.version("2")
        with pytest.raises(ServiceError):
            for_good.update_options(versioning_override=None)


@scenario("loose")
def a_child_of_another_version(world: World) -> None:
    """A parent says which version its child belongs to."""
    if not has((1, 35)):
        pytest.skip("Core's command for a child says no version before temporalio 1.35")
    with deployment(world) as deployed:
        deployed.deploy("1")
        lost = deployed.begun(stays, "child of no version")
        lost.signal(go, "")
        with pytest.raises(WorkflowFailedError) as failed:
            lost.result(timeout=LIMIT)
        assert "versioning override" in str(failed.value).lower()
        deployed.deploy("2")
        deployed.make_current("1")
        parent = deployed.begun(stays, "pinned child")
        parent.signal(go, "")
        assert parent.result(timeout=LIMIT) == ["1", "1", "2"]
