"""Starting a workflow: the policies for ids that are in use or were used, and the first event of a run."""

from __future__ import annotations

from hourglass._contract.workflows import (
    IdConflictPolicy,
    SignalWorkflow,
    Started,
    StartWorkflow,
    TerminateWorkflow,
)
from hourglass._embedded.clock import later, to_ns
from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.runs.runs import RunTable
from hourglass._embedded.schedules.times import backoff_until_next, check_cron
from hourglass._embedded.transitions import transitions
from hourglass._embedded.transitions.children import LONGEST, complete, may_reuse
from hourglass._embedded.transitions.size_limits import TOO_MANY_SIGNALS
from hourglass._embedded.transitions.standalone import PREFIX, RESERVED
from hourglass._evaluator.specs import IdReusePolicy, Payloads
from hourglass._history import events as h
from hourglass.converter import Failure, Payload
from hourglass.errors import ServiceError, StorageError, UsageError, WorkflowAlreadyStartedError


def start_workflow(
    runs: RunTable, request: StartWorkflow, last: tuple[Payloads, Failure | None] = ((), None)
) -> tuple[Started, LoadedRun]:
    """Start a workflow, or apply the id policies if its workflow id is in use. Then send the signal, if the request
    has one. Return the answer and the run.

    `last` contains the result and the failure of a schedule's previous workflow.
    """
    if not request.workflow_id or not request.workflow_type or not request.spec.task_queue:
        raise ServiceError("a workflow needs an id, a type and a task queue", status="INVALID_ARGUMENT")
    if request.workflow_id.startswith(PREFIX):
        raise ServiceError(RESERVED, status="INVALID_ARGUMENT")
    _check_policies(request)
    _check_cron(request)
    existing, run_id = runs.current(request.workflow_id), runs.new_run_id()
    repeated = None if existing is None else _repeated(runs, existing, request)
    if repeated is not None and existing is not None:
        return repeated, runs.in_memory(repeated.run_id) or existing
    used = None if existing is None else _use_existing(runs, existing, request, run_id)
    signal = _signal_of(request) if request.signal_name else None
    if used is not None and existing is not None:
        if signal is not None and existing.run.is_open:
            if not (signal.request_id and runs.find_request(existing, signal.request_id)):
                check_signals(runs, existing)
            reason = runs.change(
                existing,
                lambda run, now: transitions.signal(run, signal, now, with_start=True),
                request_ids=(signal.request_id,) if signal.request_id else (),
            )
            if reason:
                raise ServiceError(reason, status="INVALID_ARGUMENT")
        return used, existing
    check_room(runs)
    event = transitions.signaled(signal) if signal is not None else None
    ids = tuple(filter(None, (request.request_id, signal.request_id if signal is not None else "")))
    if request.spec.search_attributes:
        runs.attributes.learn(request.spec.search_attributes)
    record = runs.open(_first_event(runs, request, run_id, last), event, ids, is_first=existing is None)
    return Started(record.run.run_id), record


NO_SKIPPING = (
    "the embedded engine cannot skip time while a worker runs: use hourglass.testing.Environment, which has virtual time "
    "and needs no worker"
)
NO_CALLBACKS = "the embedded engine does not support Nexus: completion callbacks need a Temporal server"


def check_start(runs: RunTable, request: StartWorkflow) -> None:
    """Raise `ServiceError` for a start that this engine always rejects: with callbacks, time skipping or invalid
    search attributes.
    """
    if request.callbacks:
        raise ServiceError(NO_CALLBACKS, status="UNIMPLEMENTED")
    if request.time_skipping is not None and request.time_skipping.enabled:
        raise ServiceError(NO_SKIPPING, status="UNIMPLEMENTED")
    flaw = runs.attributes.flaw(request.spec.search_attributes) if request.spec.search_attributes else None
    if flaw is not None:
        raise ServiceError(flaw.message, status="INVALID_ARGUMENT")


def check_signals(runs: RunTable, record: LoadedRun) -> None:
    """Raise `ServiceError` if a run has reached the maximum number of signals."""
    if record.has_signals(runs.limits.signals):
        raise ServiceError(TOO_MANY_SIGNALS, status="INVALID_ARGUMENT")


def _check_policies(request: StartWorkflow) -> None:
    """Reject contradictory policies by the rules of a Temporal server and with its messages."""
    reuse, conflict = request.id_reuse_policy, request.id_conflict_policy
    if reuse is IdReusePolicy.TERMINATE_IF_RUNNING and conflict is not IdConflictPolicy.UNSPECIFIED:
        problem = (
            "Invalid WorkflowIDReusePolicy: WORKFLOW_ID_REUSE_POLICY_TERMINATE_IF_RUNNING cannot be used together with a "
            "WorkflowIDConflictPolicy"
        )
    elif reuse is IdReusePolicy.REJECT_DUPLICATE and conflict is IdConflictPolicy.TERMINATE_EXISTING:
        problem = (
            "Invalid WorkflowIDReusePolicy: WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE cannot be used together with "
            "WorkflowIdConflictPolicy WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING"
        )
    elif request.signal_name and conflict is IdConflictPolicy.FAIL:
        problem = "Invalid WorkflowIDConflictPolicy: WORKFLOW_ID_CONFLICT_POLICY_FAIL is not supported for this operation."
    else:
        return
    raise ServiceError(problem, status="INVALID_ARGUMENT")


def _check_cron(request: StartWorkflow) -> None:
    if not request.spec.cron_schedule:
        return
    if request.start_delay is not None:
        raise ServiceError(
            "a workflow cannot have both a cron schedule and a start delay", status="INVALID_ARGUMENT"
        )
    try:
        check_cron(request.spec.cron_schedule)
    except UsageError as error:
        raise ServiceError(str(error), status="INVALID_ARGUMENT") from error


def check_free(existing: LoadedRun) -> None:
    """Raise `WorkflowAlreadyStartedError` if the workflow has an open run."""
    if existing.run.is_open:
        raise WorkflowAlreadyStartedError(
            f"workflow {existing.run.started.workflow_id!r} has already started (run {existing.run.run_id})",
            workflow_id=existing.run.started.workflow_id,
            workflow_type=existing.run.started.workflow_type,
            run_id=existing.run.run_id,
        )


def check_room(runs: RunTable) -> None:
    """Raise `StorageError` if the store has no room for new workflows."""
    rejection = runs.store.start_rejection()
    if rejection:
        raise StorageError(f"new workflows cannot be started: {rejection}", status="RESOURCE_EXHAUSTED")


def _repeated(runs: RunTable, existing: LoadedRun, request: StartWorkflow) -> Started | None:
    """Return the answer to a repeated call, which any run of the workflow may have carried out before. Return None if
    the call is new.
    """
    request_id = request.request_id
    if not request_id:
        return None
    if run_id := runs.find_request(existing, request_id):
        return Started(run_id)
    if request.signal_name and (run_id := runs.find_request(existing, _signal_id(request_id))):
        return Started(run_id, started=False)
    return None


def _use_existing(
    runs: RunTable, existing: LoadedRun, request: StartWorkflow, new_run_id: str
) -> Started | None:
    """Return the answer if the existing run is used. Return None if a new run may start. Raise
    `WorkflowAlreadyStartedError` if the policies allow neither.
    """
    run = existing.run
    if not run.is_open:
        if may_reuse(request.id_reuse_policy, run.status):
            return None
        raise _taken(existing, "Workflow execution already finished")
    conflict = request.id_conflict_policy
    if (
        request.id_reuse_policy is IdReusePolicy.TERMINATE_IF_RUNNING
        or conflict is IdConflictPolicy.TERMINATE_EXISTING
    ):
        check_room(runs)
        end = TerminateWorkflow(
            workflow_id=request.workflow_id,
            reason="TerminateIfRunning WorkflowIdReusePolicy",
            details=(Payload(f'"terminated by new runID: {new_run_id}"'.encode(), "json/plain"),),
            identity=request.identity,
        )
        runs.change(existing, transitions.terminate, end)
        return None
    by_signal = bool(request.signal_name) and conflict is IdConflictPolicy.UNSPECIFIED
    if conflict is IdConflictPolicy.USE_EXISTING or by_signal:
        return Started(run.run_id, started=False)
    raise _taken(existing, "Workflow execution is already running")


def _taken(existing: LoadedRun, what: str) -> WorkflowAlreadyStartedError:
    run = existing.run
    return WorkflowAlreadyStartedError(
        f"{what}. WorkflowId: {run.started.workflow_id}, RunId: {run.run_id}.",
        workflow_id=run.started.workflow_id,
        workflow_type=run.started.workflow_type,
        run_id=run.run_id,
    )


def _first_event(
    runs: RunTable, request: StartWorkflow, run_id: str, last: tuple[Payloads, Failure | None]
) -> h.WorkflowExecutionStarted:
    spec = complete(request.spec)
    delay, now = min(request.start_delay or 0.0, LONGEST), runs.clock.now_ns()
    if spec.cron_schedule:
        delay = backoff_until_next(spec.cron_schedule, now, now) or 0.0
    timeout = spec.execution_timeout
    return h.WorkflowExecutionStarted(
        workflow_id=request.workflow_id,
        workflow_type=request.workflow_type,
        original_run_id=run_id,
        first_run_id=run_id,
        arguments=request.arguments,
        headers=request.headers,
        spec=spec,
        expiration_ns=later(now, to_ns(timeout + delay)) if timeout else 0,
        identity=request.identity,
        initiator=h.Initiator.CRON_SCHEDULE if spec.cron_schedule else h.Initiator.NONE,
        last_completion_result=last[0],
        continued_failure=last[1],
        first_task_backoff=delay,
        versioning_override=request.versioning_override,
    )


def _signal_of(request: StartWorkflow) -> SignalWorkflow:
    return SignalWorkflow(
        workflow_id=request.workflow_id,
        signal_name=request.signal_name,
        request_id=_signal_id(request.request_id) if request.request_id else "",
        arguments=request.signal_arguments,
        identity=request.identity,
        headers=request.headers,
    )


def _signal_id(request_id: str) -> str:
    """Return the request id of the signal that accompanies a start. The start itself uses `request_id` unchanged."""
    return f"{request_id}/signal"
