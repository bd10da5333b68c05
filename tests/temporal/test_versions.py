"""Worker versions in messages to Core and the server."""

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
from hourglass._temporal import calls, calls_views, configs
from hourglass._temporal.activations import CommandDefaults, activation_from_proto, completion_to_proto
from hourglass._temporal.calls import CallScope
from hourglass.client import AutoUpgradeVersioningOverride, PinnedVersioningOverride
from hourglass.workflow import VersioningBehavior, WorkerDeploymentVersion

PINNED = VersioningBehavior.PINNED
ONE = WorkerDeploymentVersion("shop", "1")
SCOPE = CallScope("ns", "me")


def versioning_behavior_sent(own: CommandDefaults) -> int:
    """Return the versioning behavior that a completion of a pinned workflow sends."""
    data = completion_to_proto(Succeeded("r", versioning_behavior=PINNED), own)
    return WorkflowActivationCompletion.FromString(data).successful.versioning_behavior


def test_unversioned_worker_sends_no_versioning_behavior() -> None:
    """A server would reject its completions."""
    assert versioning_behavior_sent(CommandDefaults("q", "ns", versioned=True)) == 1
    assert versioning_behavior_sent(CommandDefaults("q", "ns")) == 0


def test_activation_has_the_deployment_version_of_its_task() -> None:
    message: Any = WorkflowActivation(run_id="r", target_worker_deployment_version_changed=True)
    assert activation_from_proto(message.SerializeToString()).deployment_version is None
    message.deployment_version_for_current_task.build_id = "1"
    assert activation_from_proto(message.SerializeToString()).deployment_version is None
    message.deployment_version_for_current_task.deployment_name = "shop"
    result = activation_from_proto(message.SerializeToString())
    assert result.deployment_version == ONE
    assert result.target_version_changed
    repeated = activation_from_proto(message.SerializeToString())
    assert (
        repeated.deployment_version is result.deployment_version
    )  # every activation has it, so it is stored once


def test_worker_version_is_passed_to_core() -> None:
    config = HandleConfig(task_queue="q", version=ONE, default_behavior=PINNED)
    settings: Any = configs.worker_settings("ns", config, "me")
    strategy = settings.versioning_strategy
    assert (strategy.version.deployment_name, strategy.version.build_id) == ("shop", "1")
    assert (strategy.use_worker_versioning, strategy.default_versioning_behavior) == (True, 1)
    plain: Any = configs.worker_settings("ns", HandleConfig(task_queue="q", build_id="b"), "me")
    assert plain.versioning_strategy.build_id_no_versioning == "b"


def test_versioning_override_is_written_in_old_and_new_fields_and_read_back() -> None:
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
        return calls_views.behavior_of(info), calls_views.run_version(info)

    pinned = written(PinnedVersioningOverride(ONE))
    assert (pinned.behavior, pinned.pinned_version, pinned.pinned.version.build_id) == (1, "shop.1", "1")
    assert written(AutoUpgradeVersioningOverride()).auto_upgrade
    assert read(PinnedVersioningOverride(ONE)) == (PINNED, ONE)
    assert read(AutoUpgradeVersioningOverride()) == (VersioningBehavior.AUTO_UPGRADE, None)
    assert read(None) == (VersioningBehavior.AUTO_UPGRADE, None)


def test_deployment_description_lists_versions_newest_first() -> None:
    answer: Any = ws.DescribeWorkerDeploymentResponse()
    info = answer.worker_deployment_info
    info.name = "shop"
    for at, build_id in enumerate(("1", "2")):
        summary = info.version_summaries.add(status=5 if build_id == "1" else 2)
        summary.deployment_version.deployment_name = "shop"
        summary.deployment_version.build_id = build_id
        summary.create_time.seconds = 10 + at
    call = calls_views.VIEW_CALLS[dp.DescribeDeployment](dp.DescribeDeployment(deployment_name="shop"), SCOPE)
    result = call.read(answer)
    assert result.current is None
    assert [(described.version.build_id, described.status) for described in result.versions] == [
        ("2", "CURRENT"),
        ("1", "DRAINED"),
    ]
    info.routing_config.current_deployment_version.deployment_name = "shop"
    info.routing_config.current_deployment_version.build_id = "2"
    assert call.read(answer).current == WorkerDeploymentVersion("shop", "2")
