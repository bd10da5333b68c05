"""Twins of the recorded Go workflows: those that a Temporal server runs for itself.

They were written with Go's SDK and so are what other Go programs record: versions, side effects, local activities, updates,
signals, children, continue-as-new and cancellation. The twins do what the recorded runs did; what Go calls a
`MutableSideEffect` or `SideEffect` is a local activity here. Messages of the server's own, whose classes are not here, are left
as payloads.
"""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass.converter import Payload
from hourglass.errors import ActivityError
from hourglass.workflow import ParentClosePolicy

from ._corpus import act, entering, local

TWINS: dict[str, Any] = {}
twin = entering(TWINS)

NANOSECONDS = 1_000_000_000
RECLAIM = "temporal-sys-reclaim-namespace-resources-workflow"
DELETE = "temporal-sys-delete-executions-workflow"


@twin("temporal-sys-delete-namespace-workflow")
def delete_namespace(given: dict[str, Any]) -> dict[str, Any]:
    info = local("GetNamespaceInfoActivity", given["NamespaceID"], given["Namespace"])
    local("ValidateProtectedNamespacesActivity", given["Namespace"])
    local("ValidateNexusEndpointsActivity", info["NamespaceID"], info["Namespace"])
    local("MarkNamespaceDeletedActivity", info["Namespace"])
    deleted = local("GenerateDeletedNamespaceNameActivity", info["NamespaceID"], info["Namespace"])
    local("RenameNamespaceActivity", info["Namespace"], deleted)
    workflow.start_child_workflow(
        RECLAIM,
        {
            **_job(deleted, info["NamespaceID"], given["DeleteExecutionsConfig"], 0),
            "NamespaceDeleteDelay": given["NamespaceDeleteDelay"],
        },
        id=f"{RECLAIM}/{deleted}",
        parent_close_policy=ParentClosePolicy.ABANDON,
    )
    return {"DeletedNamespaceID": info["NamespaceID"], "DeletedNamespace": deleted}


def _job(namespace: str, namespace_id: str, config: dict[str, Any], total: int) -> dict[str, Any]:
    return {
        "Namespace": namespace,
        "NamespaceID": namespace_id,
        "Config": config,
        "TotalExecutionsCount": total,
        "PreviousSuccessCount": 0,
        "PreviousErrorCount": 0,
        "ContinueAsNewCount": 0,
        "NextPageToken": None,
        "FirstRunStartTime": "0001-01-01T00:00:00Z",
    }


@twin(RECLAIM)
def reclaim(given: dict[str, Any]) -> dict[str, Any]:
    namespace, namespace_id = given["Namespace"], given["NamespaceID"]
    if workflow.patched("namespace-refresh-dc"):
        interval = local("GetNamespaceCacheRefreshInterval") / NANOSECONDS
    else:
        interval = 10.0
    workflow.sleep(interval * 2)
    count = "CountExecutionsAdvVisibilityActivity" if workflow.patched("remove-std-vis") else "Count"
    total = local(count, namespace_id, namespace)
    done = workflow.execute_child_workflow(
        DELETE, _job(namespace, namespace_id, given["Config"], total), id=f"{DELETE}/{namespace}"
    )
    act("EnsureNoExecutionsAdvVisibilityActivity", namespace_id, namespace, done["ErrorCount"])
    local("DeleteNamespaceActivity", namespace_id, namespace)
    return {
        "DeleteSuccessCount": done["SuccessCount"],
        "DeleteErrorCount": done["ErrorCount"],
        "NamespaceDeleted": True,
    }


@twin(DELETE)
def delete_executions(given: dict[str, Any]) -> dict[str, Any]:
    work = workflow.start_activity(
        "DeleteExecutionsActivity",
        {
            "Namespace": given["Namespace"],
            "NamespaceID": given["NamespaceID"],
            "RPS": given["Config"]["DeleteActivityRPS"],
            "ListPageSize": given["Config"]["PageSize"],
            "NextPageToken": given["NextPageToken"],
        },
        start_to_close_timeout=60.0,
    )
    local("GetNextPageTokenActivity", given["Namespace"])
    done = work.result()
    return {"SuccessCount": done["SuccessCount"], "ErrorCount": done["ErrorCount"]}


# --- arguments are messages of the server's own ---------------------------------------------------------------------


@twin("temporal-sys-batch-workflow-protobuf")
def batch(given: Any) -> Any:
    done = act("BatchActivityWithProtobuf", "the batch")
    workflow.upsert_memo(
        {"batch_operation_stats": {"NumSuccess": done["SuccessCount"], "NumFailure": done["ErrorCount"]}}
    )
    return done


@twin("temporal-sys-worker-deployment-workflow")
class Deployment:
    def __init__(self) -> None:
        self.changed = 0

    @workflow.run
    def run(self, given: Payload) -> None:
        if workflow.patched("workflowVersionAdded"):
            local("workflowVersion")
        if not workflow.info().continued_run_id:
            workflow.upsert_memo({"WorkerDeploymentMemo": "new"})
        workflow.wait_condition(lambda: self.changed > 0 and workflow.all_handlers_finished())
        workflow.continue_as_new("the same, changed")

    @workflow.update(name="register-worker-in-deployment")
    def register(self, given: Payload) -> None:
        local("getMaxVersions")
        act("RegisterWorkerInVersion", "a worker")
        self._remember()

    @workflow.update(name="set-current-version")
    def set_current(self, given: Payload) -> str:
        self._sync()
        if workflow.patched("commit-routing-first"):
            if workflow.patched("version-demotion-signal-dynamic-config"):
                local("version-demotion-signal-enabled")
            self._sync_version()
        self._remember()
        return "done"

    @workflow.update(name="set-ramping-version")
    def set_ramping(self, given: Payload) -> str:
        self._sync()
        self._remember()
        return "done"

    def _sync(self) -> None:
        act("IsVersionMissingTaskQueues", "a version", result_type=Payload)
        self._sync_version()

    def _sync_version(self) -> None:
        act("SyncWorkerDeploymentVersion", "a version", result_type=Payload)

    @workflow.signal(name="propagation-complete")
    def propagated(self, given: Payload) -> None:
        self.changed += 1

    def _remember(self) -> None:
        workflow.upsert_memo({"WorkerDeploymentMemo": "changed"})
        self.changed += 1


@twin("temporal-sys-worker-deployment-version-workflow")
class DeploymentVersion:
    def __init__(self) -> None:
        self.synced = False
        self.steps: list[str] = []

    @workflow.run
    def run(self, given: Payload) -> None:
        if workflow.patched("workflowVersionAdded"):
            local("workflowVersion")
        workflow.wait_condition(lambda: self.synced)
        act("SyncDeploymentVersionUserData", "queues", result_type=Payload)
        act("CheckWorkerDeploymentUserDataPropagation", "queues")
        deployment = workflow.get_external_workflow_handle("temporal-sys-worker-deployment:shop")
        deployment.signal("propagation-complete", "one")
        workflow.continue_as_new("the same, changed")

    @workflow.update(name="sync-version-state")
    def sync(self, given: Payload) -> str:
        if workflow.patched("no-draining-signal-1"):
            self.steps.append("no signal")
        self.synced = True
        return "synced"


@twin("temporal-sys-scheduler-workflow")
class Scheduler:
    """A schedule: where Go draws at random or reads its configuration, the history holds what came of it."""

    def __init__(self) -> None:
        self.inbox: list[str] = []
        self.paused = False
        self.started = 0

    @workflow.run
    def run(self, given: Payload) -> None:
        local("tweakables")
        self._plan()
        timer = self._timer()
        while True:
            workflow.wait_condition(lambda: bool(self.inbox) or (timer is not None and timer.done()))
            while self.inbox:
                if self._serve(self.inbox.pop(0)):
                    timer = self._timer()
            if timer is not None and timer.done():
                timer = None if self.paused else self._start()

    def _timer(self) -> Any:
        return workflow.spawn(workflow.sleep, 1.0)

    def _plan(self) -> None:
        local("next times", result_type=Payload)
        if self.started:
            workflow.upsert_memo({"ScheduleInfo": "planned"})
        workflow.upsert_search_attributes({"TemporalSchedulePaused": self.paused})

    def _start(self) -> Any:
        if not self.started:
            local("made-up ids")
        local("StartWorkflow", "the next", result_type=Payload)
        self.started += 1
        workflow.upsert_memo({"ScheduleInfo": "started"})
        return self._timer()

    def _serve(self, request: str) -> bool:
        """Execute the command of a signal; return whether the next time has changed."""
        if request == "trigger":
            try:
                local("StartWorkflow", "at once", result_type=Payload)
            except ActivityError:
                return False
        elif request == "pause":
            self.paused = True
            workflow.upsert_memo({"ScheduleInfo": "paused"})
            workflow.upsert_search_attributes({"TemporalSchedulePaused": True})
        elif request == "update":
            self.paused = False
            self._plan()
            return True
        return False

    @workflow.signal
    def patch(self, given: Payload) -> None:
        self.inbox.append("trigger" if given.data.startswith(b"\n") else "pause")

    @workflow.signal
    def update(self, given: Payload) -> None:
        self.inbox.append("update")

    @workflow.signal(name="force-can")
    def force_continue(self) -> None:
        self.inbox.append("nothing")
