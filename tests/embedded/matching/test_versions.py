"""Worker versions on the embedded engine: routing, pinning, persistence and validation."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import specs
from tests.waiting import until

from hourglass import Client, Worker, activity, workflow
from hourglass._embedded.transitions.run import Run
from hourglass._embedded.transitions.versioning import (
    ATTRIBUTES,
    after_task,
    behavior,
    inherited,
    inherited_override,
    pinned_version,
    without_version,
)
from hourglass._history import events as h
from hourglass.client import AutoUpgradeVersioningOverride, PinnedVersioningOverride, WorkflowHandle
from hourglass.errors import DefinitionError, ServiceError, ServiceTimeoutError, StorageError, UsageError
from hourglass.worker import WorkerDeploymentConfig
from hourglass.workflow import VersioningBehavior, WorkerDeploymentVersion

PINNED, AUTO_UPGRADE = VersioningBehavior.PINNED, VersioningBehavior.AUTO_UPGRADE
go = workflow.Channel("go", str)


def version(build_id: str) -> WorkerDeploymentVersion:
    return WorkerDeploymentVersion("shop", build_id)


def build() -> str:
    return workflow.info().get_current_build_id()


@activity.defn
def packed() -> str:
    return "packed"


def tour(stops: int) -> list[str]:
    """Return the build ids that executed the run at each stop."""
    builds = [build()]

    @workflow.query
    def where() -> list[str]:
        return builds

    for _ in range(stops):
        go.receive()
        builds.append(build())
    return builds


@workflow.defn(versioning_behavior=PINNED)
def pinned_tour(stops: int = 1) -> list[str]:
    return tour(stops)


@workflow.defn(versioning_behavior=AUTO_UPGRADE)
def upgrading_tour(stops: int = 1) -> list[str]:
    return tour(stops)


@workflow.defn(versioning_behavior=PINNED)
def pinned_with_activity_on_another_queue() -> list[str]:
    return [build(), workflow.execute_activity(packed, task_queue="packing")]


def versioned_worker(client: Client, build_id: str, queue: str = "default", **more: Any) -> Worker:
    config = WorkerDeploymentConfig(version(build_id))
    flows = [pinned_tour, upgrading_tour, pinned_with_activity_on_another_queue]
    return Worker(
        client, queue, workflows=flows, activities=[packed], deployment_config=config, verify="always", **more
    )


def has_run_on(handle: WorkflowHandle[Any], *builds: str) -> bool:
    """Whether the run has been executed by these build ids so far."""
    return bool(handle.query("where") == list(builds))


@pytest.fixture(params=["memory", "file"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """A client of an engine in memory, or on a file."""
    with Client.connect("local:" if request.param == "memory" else f"local:{tmp_path / 'v.db'}") as client:
        yield client


# --- who runs what -----------------------------------------------------------------------------------------------------


def test_pinned_run_waits_for_a_worker_of_its_version(client: Client) -> None:
    with versioned_worker(client, "1"):
        client.set_current_version("shop", "1")
        handle = client.start_workflow(pinned_tour)
        until(lambda: has_run_on(handle, "1"))
    with versioned_worker(client, "2"):
        client.set_current_version("shop", "2")
        handle.signal(go, "")
        pinned = client.start_workflow(pinned_tour)
        until(lambda: has_run_on(pinned, "2"))
        with pytest.raises(ServiceTimeoutError, match="check that a worker"):
            handle.query("where", rpc_timeout=0.2)
        assert handle.describe().task_attempt == 1
        with versioned_worker(client, "1"):
            assert handle.result(timeout=20) == ["1", "1"]
        pinned.signal(go, "")
        assert pinned.result(timeout=20) == ["2", "2"]


def test_activity_on_an_unversioned_queue_runs_for_a_pinned_workflow(client: Client) -> None:
    with versioned_worker(client, "1"), Worker(client, "packing", activities=[packed]):
        client.set_current_version("shop", "1")
        assert client.execute_workflow(pinned_with_activity_on_another_queue) == ["1", "packed"]


def test_reset_run_stays_pinned_to_its_version(client: Client) -> None:
    with versioned_worker(client, "1"), versioned_worker(client, "2"):
        client.set_current_version("shop", "1")
        handle = client.start_workflow(pinned_tour, 2)
        until(lambda: has_run_on(handle, "1"))
        handle.signal(go, "")
        until(lambda: has_run_on(handle, "1", "1"))
        client.set_current_version("shop", "2")
        again = handle.reset(event_id=8)
        again.signal(go, "")
        assert again.result(timeout=20) == ["1", "1", "1"]


def test_runs_are_listed_by_version(client: Client) -> None:
    """A version is draining while it has open pinned runs."""
    with versioned_worker(client, "1"), versioned_worker(client, "2"):
        client.set_current_version("shop", "1")
        pinned, moving = client.start_workflow(pinned_tour), client.start_workflow(upgrading_tour)
        until(lambda: has_run_on(pinned, "1") and has_run_on(moving, "1"))
        client.set_current_version("shop", "2")
        listed = client.list_workflows("TemporalWorkerDeploymentVersion = 'shop:1'")
        assert {run.id for run in listed} == {pinned.id, moving.id}
        statuses = {
            described.version.build_id: described.status
            for described in client.describe_deployment("shop").versions
        }
        assert statuses == {"2": "CURRENT", "1": "DRAINING"}
        for handle in (pinned, moving):
            handle.signal(go, "")
            handle.result(timeout=20)
        moved = client.list_workflows("TemporalUsedWorkerDeploymentVersions = 'shop:1'")
        assert {run.id for run in moved} == {pinned.id, moving.id}
        statuses = {
            described.version.build_id: described.status
            for described in client.describe_deployment("shop").versions
        }
        assert statuses == {"2": "CURRENT", "1": "DRAINED"}


# --- what survives -----------------------------------------------------------------------------------------------------


def test_worker_versions_survive_a_restart(tmp_path: Path) -> None:
    target = f"local:{tmp_path / 'v.db'}"
    with Client.connect(target) as client, versioned_worker(client, "1"):
        client.set_current_version("shop", "1")
        handle = client.start_workflow(pinned_tour, id="kept")
        until(lambda: has_run_on(handle, "1"))
    with Client.connect(target) as client:
        assert client.describe_deployment("shop").current == version("1")
        with versioned_worker(client, "2"):
            client.get_workflow_handle("kept").signal(go, "")
            client.set_current_version("shop", "2")
            assert client.execute_workflow(pinned_tour, 0) == ["2"]
            assert client.get_workflow_handle("kept").describe().status == 1
    with Client.connect(target) as client, versioned_worker(client, "1"):
        assert client.get_workflow_handle("kept").result(timeout=20) == ["1", "1"]


def test_current_version_can_be_changed_without_a_worker(tmp_path: Path) -> None:
    target = f"local:{tmp_path / 'v.db'}"
    with Client.connect(target) as client, versioned_worker(client, "1"), versioned_worker(client, "2"):
        client.set_current_version("shop", "1")
    with Client.connect(target) as client:
        assert client.set_current_version("shop", "2") == version("1")
        pin = PinnedVersioningOverride(version("1"))
        handle = client.start_workflow(pinned_tour, 0, versioning_override=pin)
        with pytest.raises(ServiceError, match="not found in Worker Deployment"):
            client.set_current_version("shop", "3", wait=0)
        with versioned_worker(client, "1"):
            assert handle.result(timeout=20) == ["1"]


def test_unreadable_stored_versions_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    with Client.connect(f"local:{path}") as client, versioned_worker(client, "1"):
        client.set_current_version("shop", "1")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE meta SET value = ? WHERE name = 'deployments'", (b"\xc1",))
    database.close()
    unreadable = pytest.raises(StorageError, match="stored worker versions cannot be read")
    with Client.connect(f"local:{path}") as client, unreadable:
        client.describe_deployment("shop")


# --- data --------------------------------------------------------------------------------------------------------------


def test_engine_without_versions_skips_deployment_routing() -> None:
    async def engine_of(client: Client) -> Any:
        return client.connection.engine  # type: ignore[attr-defined]

    with Client.connect("local:") as client:
        engine = client._portal.call(engine_of(client))
        with Worker(client, workflows=[pinned_tour]):
            client.execute_workflow(pinned_tour, 0)
            assert not engine.deployments.in_use
            assert not engine.queues.versioned
        with versioned_worker(client, "1"):
            assert engine.deployments.in_use
            assert engine.queues.versioned


def made_run(override: Any = None, **fields: Any) -> Run:
    started = specs.made(
        h.WorkflowExecutionStarted,
        workflow_id="w",
        workflow_type="t",
        task_queue="q",
        original_run_id="r",
        first_run_id="r",
        versioning_override=override,
    )
    return Run(run_id="r", started=started, start_ns=1, **fields)


def test_versioning_override_takes_precedence() -> None:
    pin, free = PinnedVersioningOverride(version("1")), AutoUpgradeVersioningOverride()
    assert pinned_version(made_run()) is None
    assert pinned_version(made_run(version=version("2"), behavior=AUTO_UPGRADE)) is None
    assert pinned_version(made_run(version=version("2"), behavior=PINNED)) == version("2")
    assert pinned_version(made_run(pin, version=version("2"), behavior=AUTO_UPGRADE)) == version("1")
    assert pinned_version(made_run(free, version=version("2"), behavior=PINNED)) is None
    assert (behavior(made_run(pin)), behavior(made_run(free))) == (PINNED, AUTO_UPGRADE)


def test_version_is_inherited_only_on_the_same_queue() -> None:
    pin = PinnedVersioningOverride(version("1"))
    assert inherited(made_run(pin), "q") == version("1")
    assert inherited(made_run(pin), "other") is None
    assert inherited_override(made_run(pin), "q") is pin
    assert inherited_override(made_run(pin), "other") is None
    assert inherited_override(made_run(AutoUpgradeVersioningOverride()), "q") is None


def test_workflow_task_completion_sets_the_version_of_a_run() -> None:
    assert after_task(made_run(), None, VersioningBehavior.UNSPECIFIED) == {}
    changed = after_task(made_run(), version("1"), PINNED)
    assert (changed["version"], changed["behavior"]) == (version("1"), PINNED)
    assert set(changed["search_attributes"]) == ATTRIBUTES
    assert without_version(changed["search_attributes"]) == {}
    run = made_run(**changed)
    assert after_task(run, version("1"), PINNED) == {}
    back = after_task(run, None, VersioningBehavior.UNSPECIFIED)
    assert set(back["search_attributes"]) == {"TemporalUsedWorkerDeploymentVersions"}


# --- what is refused ----------------------------------------------------------------------------------------------------


@workflow.defn
def undecided() -> None: ...


def test_versioned_worker_requires_a_behavior_for_each_workflow() -> None:
    with Client.connect("local:") as client:
        config = WorkerDeploymentConfig(version("1"))
        with pytest.raises(
            DefinitionError,
            match=r"workflow undecided .* has no versioning behavior, which decides what happens to its runs",
        ):
            Worker(client, workflows=[undecided], deployment_config=config)
        Worker(client, workflows=[undecided], deployment_config=WorkerDeploymentConfig(version("1"), False))
        chosen = WorkerDeploymentConfig(version("1"), default_versioning_behavior=AUTO_UPGRADE)
        Worker(client, workflows=[undecided], deployment_config=chosen)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("1", "must be a WorkerDeploymentConfig"),
        (WorkerDeploymentConfig("shop.1"), "must be a WorkerDeploymentVersion"),  # type: ignore[arg-type]
        (WorkerDeploymentConfig(WorkerDeploymentVersion("", "1")), "must be a non-empty str"),
        (WorkerDeploymentConfig(WorkerDeploymentVersion("a.b", "1")), "it must not contain"),
        (WorkerDeploymentConfig(WorkerDeploymentVersion("a:b", "1")), "it must not contain"),
        (WorkerDeploymentConfig(WorkerDeploymentVersion("a", "")), "build id of a version must be"),
        (WorkerDeploymentConfig(WorkerDeploymentVersion("a", "1" * 300)), "longer than 255"),
        (WorkerDeploymentConfig(version("1"), False, PINNED), "has no effect without use_worker_versioning"),
        (WorkerDeploymentConfig(version("1"), True, 1), "must be a VersioningBehavior"),  # type: ignore[arg-type]
    ],
)
def test_invalid_deployment_config_is_rejected(config: Any, message: str) -> None:
    with Client.connect("local:") as client, pytest.raises(UsageError, match=message):
        Worker(client, workflows=[pinned_tour], deployment_config=config)


def test_other_invalid_version_options_are_rejected() -> None:
    with Client.connect("local:") as client:
        with pytest.raises(UsageError, match="not both"):
            Worker(
                client,
                workflows=[pinned_tour],
                build_id="1",
                deployment_config=WorkerDeploymentConfig(version("1")),
            )
        with pytest.raises(UsageError, match="versioning_override must be"):
            client.start_workflow(pinned_tour, 0, versioning_override="pinned")  # type: ignore[call-overload]
        with pytest.raises(UsageError, match="must be a non-empty str"):
            client.set_current_version("", "1")
    with pytest.raises(UsageError, match="must be a VersioningBehavior"):
        workflow.defn(versioning_behavior=1)(tour)  # type: ignore[call-overload]


def test_version_round_trips_as_canonical_string() -> None:
    deployment_version = WorkerDeploymentVersion("shop", "1.2.3")
    assert str(deployment_version) == deployment_version.to_canonical_string() == "shop.1.2.3"
    assert WorkerDeploymentVersion.from_canonical_string("shop.1.2.3") == deployment_version
    with pytest.raises(UsageError, match=r"<deployment>\.<build>"):
        WorkerDeploymentVersion.from_canonical_string("shop")
