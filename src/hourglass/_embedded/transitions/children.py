"""Relations between runs, from the point of view of one of them: `(run, cause, now) -> Change`. Pure.

The order is: the rules for every start of a workflow, by a client or by a parent; the commands of a task; the outcomes
that the requesting run receives; the events of the other run; and the choice of the next run of a chain.

Must not know: requests, how the other run is found, the store. Invariants: each effect on another run is answered by one
event in the history, which refers to the event of the request. A child is pending from that event until the child has
closed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hourglass._contract.workflows import WorkflowStatus
from hourglass._embedded.clock import later, to_ns
from hourglass._embedded.schedules.times import backoff_until_next
from hourglass._embedded.transitions.change_builder import ChangeBuilder
from hourglass._embedded.transitions.problems import without_problems
from hourglass._embedded.transitions.run import (
    Change,
    OpenChild,
    RequestCancelChild,
    Run,
    SendCancel,
    SendSignal,
    StartChild,
    with_priority_of,
)
from hourglass._embedded.transitions.versioning import inherited, inherited_override, without_version
from hourglass._evaluator import commands as c
from hourglass._evaluator.commands import ContinueAsNew
from hourglass._evaluator.options import LONGEST_TASK_TIMEOUT
from hourglass._evaluator.retries import complete_retry, next_delay, retry_state
from hourglass._evaluator.specs import IdReusePolicy, ParentClosePolicy, Payloads, StartSpec
from hourglass._history import events as h
from hourglass.converter import Failure, TimeoutFailure
from hourglass.errors import RetryState, TimeoutType

DEFAULT_TASK_TIMEOUT = 10.0
LONGEST = 100 * 365 * 86_400.0
"""The longest execution timeout, run timeout and start delay, in seconds. Like a server, the engine reduces longer
values to this maximum.
"""

_GOOD_ENDS = (WorkflowStatus.COMPLETED, WorkflowStatus.CONTINUED_AS_NEW)


def may_reuse(policy: IdReusePolicy, status: WorkflowStatus) -> bool:
    """Whether the id of a closed workflow with this status may be reused."""
    match policy:
        case IdReusePolicy.REJECT_DUPLICATE:
            return False
        case IdReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY:
            return status not in _GOOD_ENDS
        case _:
            return True


def complete(spec: StartSpec, task_queue: str = "") -> StartSpec:
    """Return the start with defaults filled in: timeouts (0 means none), retry policy, task queue."""
    execution_timeout = min(spec.execution_timeout, LONGEST)
    run_timeout = min(spec.run_timeout or execution_timeout, LONGEST)
    if execution_timeout:
        run_timeout = min(run_timeout, execution_timeout)
    task_timeout = min(spec.task_timeout or DEFAULT_TASK_TIMEOUT, LONGEST_TASK_TIMEOUT)
    return msgspec.structs.replace(
        spec,
        task_queue=spec.task_queue or task_queue,
        execution_timeout=execution_timeout,
        run_timeout=run_timeout,
        task_timeout=min(task_timeout, run_timeout) if run_timeout else task_timeout,
        retry_policy=None if spec.retry_policy is None else complete_retry(spec.retry_policy),
    )


ENGINE = "history-service"
"""The identity of the engine when it acts for one run on another. Temporal uses the same name."""


def initiate_child(builder: ChangeBuilder, command: c.StartChildWorkflow, completed: int) -> None:
    """Write the event that requests the start of a child, and add the effect to the change."""
    own = builder.run.started.spec.task_queue
    spec, options = complete(command.spec, own), command.child
    if not options.parent_close_policy or not options.id_reuse_policy:
        options = msgspec.structs.replace(
            options,
            parent_close_policy=options.parent_close_policy or ParentClosePolicy.TERMINATE,
            id_reuse_policy=options.id_reuse_policy or IdReusePolicy.ALLOW_DUPLICATE,
        )
    initiated = h.StartChildWorkflowExecutionInitiated(
        namespace=command.namespace,
        workflow_id=command.workflow_id,
        workflow_type=command.workflow_type,
        task_completed_event_id=completed,
        arguments=command.arguments,
        headers=command.headers,
        spec=spec,
        child=options,
        inherit_build_id=command.spec.task_queue in ("", own),
    )
    child = OpenChild(initiated_event_id=builder.write(initiated), initiated=initiated)
    builder.put_child(child)
    builder.add_effect(StartChild(child))


def initiate_signal(builder: ChangeBuilder, command: c.SignalExternalWorkflow, completed: int) -> None:
    """Write the event that requests a signal to another workflow, and add the effect to the change."""
    spec = h.SignalExternalWorkflowExecutionInitiated(
        namespace=command.namespace,
        workflow_id=command.workflow_id,
        run_id=command.run_id,
        signal_name=command.signal_name,
        task_completed_event_id=completed,
        arguments=command.arguments,
        headers=command.headers,
        child_only=command.is_child,
    )
    builder.add_effect(SendSignal(builder.write(spec), spec))


def initiate_cancel(
    builder: ChangeBuilder, command: c.RequestCancelExternal | RequestCancelChild, completed: int
) -> None:
    """Write the event that requests the cancellation of another workflow, and add the effect to the change."""
    spec = h.RequestCancelExternalWorkflowExecutionInitiated(
        namespace=command.namespace,
        workflow_id=command.workflow_id,
        run_id=command.run_id,
        reason=command.reason,
        task_completed_event_id=completed,
        child_only=isinstance(command, RequestCancelChild),
    )
    builder.add_effect(SendCancel(builder.write(spec), spec))


def child_started(run: Run, initiated: int, run_id: str, now_ns: int) -> Change:
    """Record that a child has started."""
    builder = ChangeBuilder(run, now_ns)
    child = run.children[initiated]
    initiated_event = child.initiated
    # The child starts right after the task that requested it, before a worker can receive the next task. So this event
    # is never held back.
    builder.put_child(msgspec.structs.replace(child, run_id=run_id))
    builder.write_or_hold(
        h.ChildWorkflowExecutionStarted(
            namespace=initiated_event.namespace,
            workflow_id=initiated_event.workflow_id,
            workflow_type=initiated_event.workflow_type,
            run_id=run_id,
            initiated_event_id=initiated,
            headers=initiated_event.headers,
        )
    )
    return builder.build()


def child_not_started(run: Run, initiated: int, cause: h.StartChildFailedCause, now_ns: int) -> Change:
    """Record that a child could not be started, and the cause."""
    builder = ChangeBuilder(run, now_ns)
    initiated_event = run.children[initiated].initiated
    builder.drop_child(initiated)
    builder.write_or_hold(
        h.StartChildWorkflowExecutionFailed(
            namespace=initiated_event.namespace,
            workflow_id=initiated_event.workflow_id,
            workflow_type=initiated_event.workflow_type,
            cause=cause,
            initiated_event_id=initiated,
        )
    )
    return builder.build()


def child_ended(run: Run, initiated: int, last: Run, now_ns: int) -> Change:
    """Record the result of a child whose last run has closed."""
    builder = ChangeBuilder(run, now_ns)
    child = run.children[initiated]
    builder.drop_child(initiated)
    names: dict[str, Any] = {
        "namespace": child.initiated.namespace,
        "workflow_id": child.initiated.workflow_id,
        "workflow_type": child.initiated.workflow_type,
        "run_id": last.run_id,
        "initiated_event_id": initiated,
        "started_event_id": child.started_event_id,
    }
    builder.write_or_hold(_end(last, names))
    return builder.build()


def _end(last: Run, names: dict[str, Any]) -> h.ChildEnd:
    match last.final:
        case h.WorkflowExecutionCompleted(result=result):
            return h.ChildWorkflowExecutionCompleted(result=result, **names)
        case h.WorkflowExecutionFailed(failure=failure, retry_state=state):
            return h.ChildWorkflowExecutionFailed(failure=failure, retry_state=state, **names)
        case h.WorkflowExecutionCanceled(details=details):
            return h.ChildWorkflowExecutionCanceled(details=details, **names)
        case h.WorkflowExecutionTimedOut(retry_state=state):
            return h.ChildWorkflowExecutionTimedOut(retry_state=state, **names)
        case h.WorkflowExecutionTerminated():
            return h.ChildWorkflowExecutionTerminated(**names)
        case other:
            raise TypeError(f"unexpected outcome of a child workflow: {type(other).__name__}")


def signal_sent(run: Run, effect: SendSignal, cause: h.ExternalFailedCause | None, now_ns: int) -> Change:
    """Record that a signal was delivered, or the cause if it could not be delivered."""
    builder = ChangeBuilder(run, now_ns)
    names = _names(effect)
    if cause is None:
        builder.write_or_hold(h.ExternalWorkflowExecutionSignaled(**names))
    else:
        builder.write_or_hold(h.SignalExternalWorkflowExecutionFailed(cause=cause, **names))
    return builder.build()


def cancel_sent(run: Run, effect: SendCancel, cause: h.ExternalFailedCause | None, now_ns: int) -> Change:
    """Record that a cancellation request was delivered, or the cause if it could not be delivered."""
    builder = ChangeBuilder(run, now_ns)
    names = _names(effect)
    if cause is None:
        builder.write_or_hold(h.ExternalWorkflowExecutionCancelRequested(**names))
    else:
        builder.write_or_hold(h.RequestCancelExternalWorkflowExecutionFailed(cause=cause, **names))
    return builder.build()


def _names(effect: SendSignal | SendCancel) -> dict[str, Any]:
    return {
        "namespace": effect.spec.namespace,
        "workflow_id": effect.spec.workflow_id,
        "run_id": effect.spec.run_id,
        "initiated_event_id": effect.initiated_event_id,
    }


def first_event(parent: Run, child: OpenChild, run_id: str, now_ns: int) -> h.WorkflowExecutionStarted:
    """Return the first event of a child's history."""
    initiated_event = child.initiated
    own = parent.started
    spec = with_priority_of(own.spec, initiated_event.spec)
    cron = spec.cron_schedule
    backoff = (backoff_until_next(cron, now_ns, now_ns) or 0.0) if cron else 0.0
    return h.WorkflowExecutionStarted(
        workflow_id=initiated_event.workflow_id,
        workflow_type=initiated_event.workflow_type,
        original_run_id=run_id,
        first_run_id=run_id,
        arguments=initiated_event.arguments,
        headers=initiated_event.headers,
        spec=spec,
        expiration_ns=later(now_ns, to_ns(spec.execution_timeout)) if spec.execution_timeout else 0,
        initiator=h.Initiator.CRON_SCHEDULE if cron else h.Initiator.NONE,
        first_task_backoff=backoff,
        parent_namespace=initiated_event.namespace,
        parent_workflow_id=own.workflow_id,
        parent_run_id=parent.run_id,
        parent_initiated_event_id=child.initiated_event_id,
        root_workflow_id=own.root_workflow_id or own.workflow_id,
        root_run_id=own.root_run_id or parent.run_id,
        versioning_override=initiated_event.child.versioning_override
        or inherited_override(parent, spec.task_queue),
        inherited_pinned_version=inherited(parent, spec.task_queue),
    )


def is_child_of(run: Run, parent: Run) -> bool:
    """Whether a run belongs to a child of the other run."""
    return bool(run.started.parent_run_id) and run.started.parent_run_id == parent.run_id


def signalled_by(run: Run, sender: Run, effect: SendSignal, now_ns: int) -> Change:
    """Record a signal that another run has sent."""
    builder = ChangeBuilder(run, now_ns)
    builder.write_or_hold(
        h.WorkflowExecutionSignaled(
            signal_name=effect.spec.signal_name,
            arguments=effect.spec.arguments,
            identity=ENGINE,
            headers=effect.spec.headers,
            external_workflow_id=sender.started.workflow_id,
            external_run_id=sender.run_id,
        )
    )
    return builder.build()


def signalled_by_keeper(run: Run, keeper: str, signal: str, arguments: Payloads, now_ns: int) -> Change:
    """Record a signal that the engine has sent. The engine manages a limit in place of the workflow `keeper`."""
    builder = ChangeBuilder(run, now_ns)
    builder.write_or_hold(
        h.WorkflowExecutionSignaled(
            signal_name=signal, arguments=arguments, identity=ENGINE, external_workflow_id=keeper
        )
    )
    return builder.build()


def cancelled_by(run: Run, sender: Run, reason: str, initiated: int, now_ns: int) -> Change:
    """Record a cancellation request by another run, unless the run has an earlier request. `initiated` is 0 if the
    request was made because a parent has closed.
    """
    builder = ChangeBuilder(run, now_ns)
    if not run.cancel_requested:
        builder.update(cancel_requested=True)
        builder.write_or_hold(
            h.WorkflowExecutionCancelRequested(
                reason=reason,
                identity=ENGINE,
                external_initiated_event_id=initiated,
                external_workflow_id=sender.started.workflow_id,
                external_run_id=sender.run_id,
            ),
            at_once=True,
        )
    return builder.build()


def terminated_by_engine(run: Run, reason: str, now_ns: int) -> Change:
    """Terminate a run because its parent has closed, or because another run needs its workflow id."""
    builder = ChangeBuilder(run, now_ns)
    final = h.WorkflowExecutionTerminated(reason=reason, identity=ENGINE)
    builder.close(final, WorkflowStatus.TERMINATED)
    return builder.build()


_TIMED_OUT = Failure("workflow timeout", TimeoutFailure(TimeoutType.START_TO_CLOSE), source="Server")


def retry_follower(
    run: Run, failure: Failure | None, new_run_id: str, now_ns: int
) -> h.WorkflowExecutionStarted | RetryState:
    """Return the first event of the next attempt of a run that has failed, or timed out (`failure` is None). Return the
    retry state if there is no next attempt.
    """
    rule = run.started.spec.retry_policy
    expiration = run.started.expiration_ns
    if expiration and now_ns >= expiration:
        return RetryState.TIMEOUT
    if rule is None:
        return RetryState.RETRY_POLICY_NOT_SET
    attempt = run.started.attempt
    state = retry_state(rule, attempt, failure or _TIMED_OUT)
    if state is not RetryState.IN_PROGRESS:
        return state
    delay = next_delay(rule, attempt, failure)
    if expiration and later(now_ns, to_ns(delay)) >= expiration:
        return RetryState.TIMEOUT
    return msgspec.structs.replace(
        run.started,
        original_run_id=new_run_id,
        continued_run_id=run.run_id,
        initiator=h.Initiator.RETRY,
        continued_failure=failure or _TIMED_OUT,
        attempt=attempt + 1,
        first_task_backoff=delay,
        identity="",
    )


def next_attempt_or_run(
    run: Run, failure: Failure | None, new_run_id: str, now_ns: int
) -> tuple[RetryState, h.WorkflowExecutionStarted | None]:
    """Return the retry state of a run that has failed, or timed out (`failure` is None), and the first event of the next
    run: the next attempt, or else the next run of the cron schedule.
    """
    follower = retry_follower(run, failure, new_run_id, now_ns)
    if isinstance(follower, RetryState):
        result = run.started.last_completion_result
        return follower, cron_follower(run, result, failure or _TIMED_OUT, new_run_id, now_ns)
    return RetryState.IN_PROGRESS, follower


def cron_follower(
    run: Run, result: Payloads, failure: Failure | None, new_run_id: str, now_ns: int
) -> h.WorkflowExecutionStarted | None:
    """Return the first event of the next run of a cron schedule, with the last result and the last failure. Return None
    if the run has no cron schedule or no time is left.
    """
    started = run.started
    if not started.spec.cron_schedule:
        return None
    since = later(run.start_ns, to_ns(started.first_task_backoff))
    delay = backoff_until_next(started.spec.cron_schedule, since, now_ns)
    expiration = started.expiration_ns
    if delay is None or (expiration and later(now_ns, to_ns(delay)) >= expiration):
        return None
    return msgspec.structs.replace(
        started,
        original_run_id=new_run_id,
        continued_run_id=run.run_id,
        initiator=h.Initiator.CRON_SCHEDULE,
        continued_failure=failure,
        last_completion_result=result,
        attempt=1,
        first_task_backoff=delay,
        identity="",
        inherited_pinned_version=None,
        declined_version=None,
    )


def continue_follower(run: Run, command: ContinueAsNew, new_run_id: str) -> h.WorkflowExecutionStarted:
    """Return the first event of the run that a continue-as-new opens. Options that the command does not set are
    inherited.
    """
    old, options = run.started.spec, command.spec
    queue = options.task_queue or old.task_queue
    spec = msgspec.structs.replace(
        old,
        task_queue=queue,
        run_timeout=options.run_timeout or old.run_timeout,
        task_timeout=min(options.task_timeout or old.task_timeout, LONGEST_TASK_TIMEOUT),
        retry_policy=old.retry_policy
        if options.retry_policy is None
        else complete_retry(options.retry_policy),
        memo=options.memo or old.memo,
        search_attributes=options.search_attributes
        or without_problems(without_version(run.search_attributes)),
    )
    return msgspec.structs.replace(
        run.started,
        workflow_type=command.workflow_type or run.started.workflow_type,
        arguments=command.arguments,
        headers=command.headers,
        spec=spec,
        original_run_id=new_run_id,
        continued_run_id=run.run_id,
        initiator=h.Initiator.WORKFLOW,
        continued_failure=None,
        attempt=1,
        first_task_backoff=command.backoff,
        identity="",
        inherited_pinned_version=None if command.versioning else inherited(run, queue),
        declined_version=None if command.versioning or run.task is None else run.task.target_version,
    )
