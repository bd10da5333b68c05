"""Request handlers for workers and their activities: versions, pollers, asynchronous completion and heartbeats of
attempts, progress.

Must not know: how an attempt finds its worker. An attempt is identified by its token, or by the ids of its activity.
Requests about an attempt that has ended are rejected with a Temporal server's messages.
"""

from __future__ import annotations

from typing import Any

from hourglass._contract import activities as ac
from hourglass._contract import deployments as dp
from hourglass._contract import progress as p
from hourglass._contract import service as s
from hourglass._embedded.api.answering import (
    Handlers,
    PendingAnswer,
    activity_of,
    as_known,
    check_open,
    done,
    find,
    find_standalone,
    is_written,
    pending_activity,
    wait,
)
from hourglass._embedded.engine import Engine
from hourglass._embedded.matching.deployments import Build
from hourglass._embedded.runs.progress import Publisher
from hourglass._embedded.runs.run import AttemptToken, LoadedRun
from hourglass._embedded.store.search_attributes import AttributeType
from hourglass._embedded.transitions import transitions
from hourglass._embedded.transitions.run import Change, OpenActivity, Run
from hourglass._embedded.transitions.versioning import external_name
from hourglass._evaluator.specs import WorkerDeploymentVersion
from hourglass.errors import ServiceError


async def set_current(engine: Engine, request: dp.SetCurrentVersion) -> PendingAnswer[dp.CurrentVersionSet]:
    previous = engine.deployments.set_current(request.deployment_name, request.build_id)
    return PendingAnswer(dp.CurrentVersionSet(previous), engine.writes.newest)


async def set_ramping(engine: Engine, request: dp.SetRampingVersion) -> PendingAnswer[dp.RampingVersionSet]:
    previous, percentage = engine.deployments.set_ramping(
        request.deployment_name, request.build_id, request.percentage
    )
    return PendingAnswer(dp.RampingVersionSet(previous, percentage), engine.writes.newest)


async def describe_deployment(
    engine: Engine, request: dp.DescribeDeployment
) -> PendingAnswer[dp.DeploymentInfo]:
    name = request.deployment_name
    deployment = engine.deployments.find(name)
    await is_written(engine, engine.writes.newest)  # the store counts only durable data
    versions = [
        dp.KnownVersion(
            version=WorkerDeploymentVersion(name, build_id),
            status=deployment.part_of(build_id) or await _status(engine, name, build_id, build),
            create_time_ns=build.created_ns,
        )
        for build_id, build in deployment.builds.items()
    ]
    info = dp.DeploymentInfo(
        name=name,
        current=WorkerDeploymentVersion(name, deployment.current) if deployment.current else None,
        changed_ns=deployment.changed_ns,
        ramping=WorkerDeploymentVersion(name, deployment.ramping) if deployment.ramping else None,
        ramping_percentage=deployment.percentage,
        versions=tuple(reversed(versions)),
    )
    return await as_known(engine, info)


async def _status(engine: Engine, name: str, build_id: str, build: Build) -> str:
    """Return the status of a version that is neither current nor ramping. A version that was never current has no
    runs to drain.
    """
    if not build.current_ns:
        return "INACTIVE"
    version = external_name(WorkerDeploymentVersion(name, build_id)).replace("'", "''")
    pinned = await engine.store.count(
        f"ExecutionStatus = 'Running' AND TemporalWorkerDeploymentVersion = '{version}' "
        "AND TemporalWorkflowVersioningBehavior = 'Pinned'"
    )
    return "DRAINING" if pinned.count else "DRAINED"


async def pollers(engine: Engine, request: dp.GetPollers) -> PendingAnswer[dp.Pollers]:
    """Return the workers that receive workflow tasks or activity attempts from a queue. Handles end together with
    their worker's process, so each worker counts as last seen now.
    """
    now = engine.clock.now_ns()
    workers = tuple(
        dp.Poller(
            poller.identity,
            now,
            poller.version,
            poller.process.id,
            poller.process.key == 0,
            len(poller.attempts if request.activities else poller.active_runs),
        )
        for poller in engine.queues.pollers.of(request.task_queue)
        if (poller.serves_activities if request.activities else poller.serves_workflows)
    )
    route = engine.deployments.route(request.task_queue)
    stats = None
    if request.stats:
        stats = engine.queue_stats(request.task_queue, activities=request.activities)
    answer = dp.Pollers(workers, engine.queues.pollers.served_queues(), route.current, stats, route.ramping)
    return await as_known(engine, answer)


async def create_namespace(engine: Engine, request: dp.CreateNamespace) -> PendingAnswer[s.Nothing]:
    """Reject the creation of a namespace: an engine has only the namespace with which it was opened."""
    raise ServiceError(
        "an embedded engine has only one namespace. To use another one, connect to another file with Client.connect(…, "
        f"namespace={request.name!r})",
        status="UNIMPLEMENTED",
    )


async def no_nexus(
    engine: Engine, request: dp.CreateNexusEndpoint | dp.FindNexusEndpoint | dp.DeleteNexusEndpoint
) -> PendingAnswer[Any]:
    """Reject requests about Nexus endpoints, because an engine has only one namespace."""
    raise ServiceError(
        "the embedded engine does not support Nexus, because it has only one namespace: Nexus endpoints need a Temporal "
        "server",
        status="UNIMPLEMENTED",
    )


async def add_search_attributes(engine: Engine, request: dp.AddSearchAttributes) -> PendingAnswer[s.Nothing]:
    """Register search attributes explicitly. Other attributes are registered when they are first used."""
    registered = engine.runs.attributes
    for name, kind in request.types.items():
        requested, existing = AttributeType(kind), registered.type_of(name)
        if existing is not None and existing is not requested:
            raise ServiceError(
                f"Search attribute {name} already exists with type {existing.value}.",
                status="INVALID_ARGUMENT",
            )
    registered.add({name: AttributeType(kind) for name, kind in request.types.items()})
    return PendingAnswer(s.Nothing(), engine.writes.newest)


async def list_search_attributes(
    engine: Engine, request: dp.ListSearchAttributes
) -> PendingAnswer[dp.SearchAttributeTypes]:
    attributes = engine.runs.attributes.known()
    return await as_known(
        engine, dp.SearchAttributeTypes({name: kind.value for name, kind in attributes.items()})
    )


async def complete_activity(engine: Engine, request: ac.CompleteActivity) -> PendingAnswer[s.Nothing]:
    """Complete, fail or cancel an activity from outside its code."""
    returned = request.failure is None and not request.cancelled
    token, record, activity = _attempt(
        engine, request.token, request.workflow_id, request.run_id, request.activity_id, waits=returned
    )
    who = request.identity
    failure = request.failure
    if failure is None and request.cancelled and not activity.cancel_requested_event_id:
        raise ServiceError("cancellation of the activity was not requested", status="INVALID_ARGUMENT")
    engine.attempts.release(token)

    def end(run: Run, now: int) -> Change:
        if failure is not None:
            return transitions.fail_activity(
                run, activity, failure, who, now, details=request.last_heartbeat_details
            )
        if request.cancelled:
            return transitions.cancel_activity(run, activity, request.cancelled_details, who, now)
        return transitions.complete_activity(run, activity, request.result, who, None, now)

    engine.runs.change(record, end)
    return done(engine, record)


async def reset_activity(engine: Engine, request: ac.ResetActivity) -> PendingAnswer[s.Nothing]:
    """Reset the attempt counter of an activity. An attempt in progress continues, and the next attempt is the first
    one.
    """
    record = find(engine, request.workflow_id, request.run_id)
    check_open(record)
    activity = pending_activity(record, request.activity_id)
    forget = request.reset_heartbeat
    engine.runs.change(record, lambda run, now: transitions.reset_activity(run, activity, forget, now))
    return done(engine, record)


async def heartbeat_activity(
    engine: Engine, request: ac.HeartbeatActivity
) -> PendingAnswer[ac.HeartbeatAnswer]:
    _, record, activity = _attempt(
        engine, request.token, request.workflow_id, request.run_id, request.activity_id
    )
    engine.runs.change(record, lambda run, now: transitions.heartbeat(run, activity, request.details, now))
    return PendingAnswer(
        ac.HeartbeatAnswer(bool(activity.cancel_requested_event_id)), engine.writes.number_of(record)
    )


async def publish_progress(engine: Engine, request: p.PublishProgress) -> PendingAnswer[p.ProgressTaken]:
    """Store the progress of an attempt. Reject the request if the sender expects another memory, so that the sender
    publishes its items from the beginning.
    """
    token, _, activity = _attempt(engine, request.token, "", "", "")
    memory = engine.progress
    if request.keeper not in ("", memory.name):
        return PendingAnswer(p.ProgressTaken(memory.name, is_stored=False), 0)
    scheduled = activity.scheduled
    publisher = Publisher(
        scheduled.activity_id, scheduled.activity_type, token.attempt, token.scheduled_event_id
    )
    memory.publish(token.run_id, publisher, request.published)
    return PendingAnswer(p.ProgressTaken(memory.name), 0)


async def read_progress(engine: Engine, request: p.ReadProgress) -> PendingAnswer[p.ProgressRead]:
    """Return the items that the activities of a run have published since the follower's last read."""
    record = find(engine, request.workflow_id, request.run_id)
    run_id, memory = record.run.run_id, engine.progress
    seen = {position.scheduled_event_id: (position.attempt, position.next) for position in request.seen}
    items = memory.read(run_id, request.name, seen)
    if not items and request.wait_new and record.run.is_open:

        def is_news() -> bool:
            nonlocal items
            items = memory.read(run_id, request.name, seen)
            return bool(items)

        try:
            await wait(engine, record, memory.news(run_id), is_news, request.rpc_timeout)
        finally:
            memory.tidy(run_id)
    return PendingAnswer(p.ProgressRead(items), 0)


def _attempt(
    engine: Engine, token: bytes, workflow_id: str, run_id: str, activity_id: str, *, waits: bool = False
) -> tuple[AttemptToken, LoadedRun, OpenActivity]:
    """Return the running attempt that a request names, either by token or by ids. With `waits`, ids may also name an
    activity that is waiting for its next attempt.
    """
    match: tuple[LoadedRun, OpenActivity] | None = None
    if token:
        try:
            name = AttemptToken.decode(token)
        except ValueError:
            raise ServiceError("the task token is malformed", status="INVALID_ARGUMENT") from None
        match = engine.attempts.find(name)
        if match is not None:
            return name, *match
    else:
        record = (
            find(engine, workflow_id, run_id) if workflow_id else find_standalone(engine, activity_id, run_id)
        )
        activity = activity_of(record, activity_id)
        if activity is not None and (activity.started_ns or waits):
            name = AttemptToken(record.run.run_id, activity.scheduled_event_id, activity.attempt)
            return name, record, activity
    raise ServiceError(
        "invalid activityID or activity already timed out or invoking workflow is completed",
        status="NOT_FOUND",
    )


WORKER_HANDLERS: Handlers = {
    ac.CompleteActivity: complete_activity,
    ac.ResetActivity: reset_activity,
    ac.HeartbeatActivity: heartbeat_activity,
    p.PublishProgress: publish_progress,
    p.ReadProgress: read_progress,
    dp.GetPollers: pollers,
    dp.SetCurrentVersion: set_current,
    dp.SetRampingVersion: set_ramping,
    dp.CreateNexusEndpoint: no_nexus,
    dp.FindNexusEndpoint: no_nexus,
    dp.DeleteNexusEndpoint: no_nexus,
    dp.DescribeDeployment: describe_deployment,
    dp.CreateNamespace: create_namespace,
    dp.AddSearchAttributes: add_search_attributes,
    dp.ListSearchAttributes: list_search_attributes,
}
"""The handlers of requests about workers and their activities."""
