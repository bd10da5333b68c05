"""Requests about workers and their activities: versions, pollers, attempts that are ended or heard of from outside, progress.

Must not know: how an attempt finds its worker. An attempt is named by its token, or by the ids of its activity;
one that is over is refused in the words of a Temporal server.
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
    """Make a version current."""
    previous = engine.deployments.set_current(request.deployment_name, request.build_id)
    return PendingAnswer(dp.CurrentVersionSet(previous), engine.writes.newest)


async def set_ramping(engine: Engine, request: dp.SetRampingVersion) -> PendingAnswer[dp.RampingVersionSet]:
    """Let a version ramp."""
    previous, percentage = engine.deployments.set_ramping(
        request.deployment_name, request.build_id, request.percentage
    )
    return PendingAnswer(dp.RampingVersionSet(previous, percentage), engine.writes.newest)


async def describe_deployment(
    engine: Engine, request: dp.DescribeDeployment
) -> PendingAnswer[dp.DeploymentInfo]:
    """Look at a deployment."""
    name = request.deployment_name
    found = engine.deployments.find(name)
    await is_written(engine, engine.writes.newest)  # the store counts what is durable
    versions = [
        dp.KnownVersion(
            version=WorkerDeploymentVersion(name, build_id),
            status=found.part_of(build_id) or await _status(engine, name, build_id, build),
            create_time_ns=build.created_ns,
        )
        for build_id, build in found.builds.items()
    ]
    info = dp.DeploymentInfo(
        name=name,
        current=WorkerDeploymentVersion(name, found.current) if found.current else None,
        changed_ns=found.changed_ns,
        ramping=WorkerDeploymentVersion(name, found.ramping) if found.ramping else None,
        ramping_percentage=found.percentage,
        versions=tuple(reversed(versions)),
    )
    return await as_known(engine, info)


async def _status(engine: Engine, name: str, build_id: str, build: Build) -> str:
    """What is left of a version that is not current: one that never was has nothing to lose."""
    if not build.current_ns:
        return "INACTIVE"
    version = external_name(WorkerDeploymentVersion(name, build_id)).replace("'", "''")
    pinned = await engine.store.count(
        f"ExecutionStatus = 'Running' AND TemporalWorkerDeploymentVersion = '{version}' "
        "AND TemporalWorkflowVersioningBehavior = 'Pinned'"
    )
    return "DRAINING" if pinned.count else "DRAINED"


async def pollers(engine: Engine, request: dp.GetPollers) -> PendingAnswer[dp.Pollers]:
    """The workers that take workflow tasks, or attempts of activities, from a queue. A handle ends with its worker's
    process, so each was last seen now.
    """
    now = engine.clock.now_ns()
    found = tuple(
        dp.Poller(
            poller.identity,
            now,
            poller.version,
            poller.process_id,
            poller.process_key == 0,
            poller.slots_used[1 if request.activities else 0],
        )
        for poller in engine.queues.pollers(request.task_queue)
        if (poller.takes_activities if request.activities else poller.takes_workflows)
    )
    route = engine.deployments.route(request.task_queue)
    stats = None
    if request.stats:
        stats = engine.queue_stats(request.task_queue, activities=request.activities)
    told = dp.Pollers(found, engine.queues.served(), route.current, stats, route.ramping)
    return await as_known(engine, told)


async def create_namespace(engine: Engine, request: dp.CreateNamespace) -> PendingAnswer[s.Nothing]:
    """There is nothing to make: a file, or an engine in memory, has the one namespace that it was opened with."""
    raise ServiceError(
        f"an embedded engine has one namespace, that it is opened with: Client.connect(…, namespace={request.name!r}) with a "
        "file of its own",
        status="UNIMPLEMENTED",
    )


async def no_nexus(
    engine: Engine, request: dp.CreateNexusEndpoint | dp.FindNexusEndpoint | dp.DeleteNexusEndpoint
) -> PendingAnswer[Any]:
    """There are no endpoints: no other namespace could be called, or call."""
    raise ServiceError(
        "the embedded engine has no Nexus, for there is no other namespace to call: endpoints are a Temporal server's",
        status="UNIMPLEMENTED",
    )


async def add_search_attributes(engine: Engine, request: dp.AddSearchAttributes) -> PendingAnswer[s.Nothing]:
    """Know these from now on: without it one is known from its first use."""
    known = engine.runs.attributes
    for name, kind in request.types.items():
        wanted, found = AttributeType(kind), known.type_of(name)
        if found is not None and found is not wanted:
            raise ServiceError(
                f"Search attribute {name} already exists with type {found.value}.", status="INVALID_ARGUMENT"
            )
    known.add({name: AttributeType(kind) for name, kind in request.types.items()})
    return PendingAnswer(s.Nothing(), engine.writes.newest)


async def list_search_attributes(
    engine: Engine, request: dp.ListSearchAttributes
) -> PendingAnswer[dp.SearchAttributeTypes]:
    """The search attributes that are known."""
    found = engine.runs.attributes.known()
    return await as_known(engine, dp.SearchAttributeTypes({name: kind.value for name, kind in found.items()}))


async def complete_activity(engine: Engine, request: ac.CompleteActivity) -> PendingAnswer[s.Nothing]:
    """End an activity from outside."""
    returned = request.failure is None and not request.cancelled
    token, record, activity = _attempt(
        engine, request.token, request.workflow_id, request.run_id, request.activity_id, waits=returned
    )
    who = request.identity
    failure = request.failure
    if failure is None and request.cancelled and not activity.cancel_requested_event_id:
        raise ServiceError("the activity was not asked to cancel", status="INVALID_ARGUMENT")
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
    """Begin the attempts of an activity anew."""
    record = find(engine, request.workflow_id, request.run_id)
    check_open(record)
    activity = pending_activity(record, request.activity_id)
    forget = request.reset_heartbeat
    engine.runs.change(record, lambda run, now: transitions.reset_activity(run, activity, forget, now))
    return done(engine, record)


async def heartbeat_activity(
    engine: Engine, request: ac.HeartbeatActivity
) -> PendingAnswer[ac.HeartbeatAnswer]:
    """Report that an activity lives."""
    _, record, activity = _attempt(
        engine, request.token, request.workflow_id, request.run_id, request.activity_id
    )
    engine.runs.change(record, lambda run, now: transitions.heartbeat(run, activity, request.details, now))
    return PendingAnswer(
        ac.HeartbeatAnswer(bool(activity.cancel_requested_event_id)), engine.writes.number_of(record)
    )


async def publish_progress(engine: Engine, request: p.PublishProgress) -> PendingAnswer[p.ProgressTaken]:
    """Keep what an attempt publishes, unless its sender takes this memory for another, which had more of it."""
    token, _, activity = _attempt(engine, request.token, "", "", "")
    memory = engine.progress
    if request.keeper not in ("", memory.name):
        return PendingAnswer(p.ProgressTaken(memory.name, taken=False), 0)
    scheduled = activity.scheduled
    publisher = Publisher(
        scheduled.activity_id, scheduled.activity_type, token.attempt, token.scheduled_event_id
    )
    memory.publish(token.run_id, publisher, request.published)
    return PendingAnswer(p.ProgressTaken(memory.name), 0)


async def read_progress(engine: Engine, request: p.ReadProgress) -> PendingAnswer[p.ProgressRead]:
    """What the activities of a run have published, beyond what was seen."""
    record = find(engine, request.workflow_id, request.run_id)
    run_id, memory = record.run.run_id, engine.progress
    seen = {each.scheduled_event_id: (each.attempt, each.next) for each in request.seen}
    found = memory.read(run_id, request.name, seen)
    if not found and request.wait_new and record.run.is_open:

        def is_news() -> bool:
            nonlocal found
            found = memory.read(run_id, request.name, seen)
            return bool(found)

        try:
            await wait(engine, record, memory.news(run_id), is_news, request.rpc_timeout)
        finally:
            memory.tidy(run_id)
    return PendingAnswer(p.ProgressRead(found), 0)


def _attempt(
    engine: Engine, token: bytes, workflow_id: str, run_id: str, activity_id: str, *, waits: bool = False
) -> tuple[AttemptToken, LoadedRun, OpenActivity]:
    """The running attempt that a request names, by token or by ids; with `waits` also, by ids, one that waits for its
    next attempt.
    """
    found: tuple[LoadedRun, OpenActivity] | None = None
    if token:
        try:
            name = AttemptToken.decode(token)
        except ValueError:
            raise ServiceError("the task token is malformed", status="INVALID_ARGUMENT") from None
        found = engine.attempts.find(name)
        if found is not None:
            return name, *found
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
"""Requests about workers and what they do, with the handler of each."""
