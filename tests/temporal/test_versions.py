"""Versions of workers cross the border to Core and to the server as they are meant."""

from __future__ import annotations

from typing import Any

import temporalio.api.workflowservice.v1 as ws
from temporalio.api.workflow.v1 import WorkflowExecutionVersioningInfo
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from tests.specs import made

from hourglass._contract import deployments as dp
from hourglass._contract import workflows as wf
from hourglass._contract.handle import HandleConfig
from hourglass._evaluator.commands import Succeeded
from hourglass._temporal import calls, calls_deployments, configs
from hourglass._temporal.activations import CommandDefaults, activation_from_proto, completion_to_proto
from hourglass._temporal.calls import CallScope
from hourglass.client import AutoUpgradeVersioningOverride, PinnedVersioningOverride
from hourglass.workflow import VersioningBehavior, WorkerDeploymentVersion

PINNED = VersioningBehavior.PINNED
ONE = WorkerDeploymentVersion("shop", "1")
SCOPE = CallScope("ns", "me")


def behaviour_sent(own: CommandDefaults) -> int:
    """What a completion of a pinned workflow says of versions."""
    data = completion_to_proto(Succeeded("r", versioning_behavior=PINNED), own)
    return WorkflowActivationCompletion.FromString(data).successful.versioning_behavior


def test_unversioned_worker_sends_no_version() -> None:
    """A server refuses, for ever, what a worker without a version says of them."""
    assert behaviour_sent(CommandDefaults("q", "ns", versioned=True)) == 1
    assert behaviour_sent(CommandDefaults("q", "ns")) == 0


def test_activation_names_the_version_of_its_task() -> None:
    """An activation names the version of its task; a build id alone is no version."""
    message: Any = WorkflowActivation(run_id="r", target_worker_deployment_version_changed=True)
    assert activation_from_proto(message.SerializeToString()).deployment_version is None
    message.deployment_version_for_current_task.build_id = "1"
    assert activation_from_proto(message.SerializeToString()).deployment_version is None
    message.deployment_version_for_current_task.deployment_name = "shop"
    found = activation_from_proto(message.SerializeToString())
    assert found.deployment_version == ONE
    assert found.target_version_changed
    again = activation_from_proto(message.SerializeToString())
    assert again.deployment_version is found.deployment_version  # kept for each activation, so kept once


def test_worker_version_is_passed_to_core() -> None:
    """A worker's version is what Core routes by; without one the build id is for people."""
    config = HandleConfig(task_queue="q", version=ONE, default_behavior=PINNED)
    settings: Any = configs.worker_settings("ns", config, "me")
    told = settings.versioning_strategy
    assert (told.version.deployment_name, told.version.build_id) == ("shop", "1")
    assert (told.use_worker_versioning, told.default_versioning_behavior) == (True, 1)
    plain: Any = configs.worker_settings("ns", HandleConfig(task_queue="q", build_id="b"), "me")
    assert plain.versioning_strategy.build_id_no_versioning == "b"


def test_versioning_override_round_trip() -> None:
    """An override is written in today's words and in those of older servers, and read back."""

    def written(override: Any) -> Any:
        request = made(
            wf.StartWorkflow,
            workflow_id="w",
            workflow_type="t",
            task_queue="q",
            request_id="r",
            versioning_override=override,
        )
        message: Any = calls.start(request, SCOPE).message
        return message.versioning_override

    def read(override: Any) -> tuple[Any, Any]:
        info: Any = WorkflowExecutionVersioningInfo(versioning_override=written(override))
        info.behavior = 2
        return calls_deployments.behavior_of(info), calls_deployments.run_version(info)

    pinned = written(PinnedVersioningOverride(ONE))
    assert (pinned.behavior, pinned.pinned_version, pinned.pinned.version.build_id) == (1, "shop.1", "1")
    assert written(AutoUpgradeVersioningOverride()).auto_upgrade
    assert read(PinnedVersioningOverride(ONE)) == (PINNED, ONE)
    assert read(AutoUpgradeVersioningOverride()) == (VersioningBehavior.AUTO_UPGRADE, None)
    assert read(None) == (VersioningBehavior.AUTO_UPGRADE, None)


def test_deployment_description_is_translated() -> None:
    """A deployment's versions come newest first; none is current where the server names none."""
    answer: Any = ws.DescribeWorkerDeploymentResponse()
    info = answer.worker_deployment_info
    info.name = "shop"
    for at, build_id in enumerate(("1", "2")):
        summary = info.version_summaries.add(status=5 if build_id == "1" else 2)
        summary.deployment_version.deployment_name = "shop"
        summary.deployment_version.build_id = build_id
        summary.create_time.seconds = 10 + at
    call = calls_deployments.describe(dp.DescribeDeployment(deployment_name="shop"), SCOPE)
    found = call.read(answer.SerializeToString())
    assert found.current is None
    assert [(each.version.build_id, each.status) for each in found.versions] == [
        ("2", "CURRENT"),
        ("1", "DRAINED"),
    ]
    info.routing_config.current_deployment_version.deployment_name = "shop"
    info.routing_config.current_deployment_version.build_id = "2"
    assert call.read(answer.SerializeToString()).current == WorkerDeploymentVersion("shop", "2")
