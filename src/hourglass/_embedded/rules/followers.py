"""Which run follows another: after continue-as-new, as the next attempt of one that failed or timed out, or because
a cron schedule says so. Pure.
"""

from __future__ import annotations

import msgspec

from hourglass._embedded.clock import later, to_ns
from hourglass._embedded.rules.run import Run
from hourglass._embedded.rules.schedule_times import backoff_until_next
from hourglass._embedded.rules.versioning import inherited, without_version
from hourglass._engine.commands import ContinueAsNew
from hourglass._engine.options import LONGEST_TASK_TIMEOUT
from hourglass._engine.retries import complete_retry, next_delay, retry_state
from hourglass._engine.specs import Payloads
from hourglass._history import events as h
from hourglass.converter import Failure, TimeoutFailure
from hourglass.errors import RetryState, TimeoutType

_TIMED_OUT = Failure("workflow timeout", TimeoutFailure(TimeoutType.START_TO_CLOSE), source="Server")


def retry_follower(
    run: Run, failure: Failure | None, new_run_id: str, now_ns: int
) -> h.WorkflowExecutionStarted | RetryState:
    """The next attempt of a run that failed, or timed out (no failure); or why there is none."""
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
    """What follows a run that failed, or timed out (no failure): its next attempt; else, where it has a cron
    schedule, its next run. With the state of its retries.
    """
    follower = retry_follower(run, failure, new_run_id, now_ns)
    if isinstance(follower, RetryState):
        result = run.started.last_completion_result
        return follower, cron_follower(run, result, failure or _TIMED_OUT, new_run_id, now_ns)
    return RetryState.IN_PROGRESS, follower


def cron_follower(
    run: Run, result: Payloads, failure: Failure | None, new_run_id: str, now_ns: int
) -> h.WorkflowExecutionStarted | None:
    """The next run of a cron schedule, which is given the last result and how the last run failed, if it did; None
    where there is no schedule, or no time left.
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
    """The run that a continue-as-new begins; what the command leaves open stays as it was."""
    old, said = run.started.spec, command.spec
    queue = said.task_queue or old.task_queue
    spec = msgspec.structs.replace(
        old,
        task_queue=queue,
        run_timeout=said.run_timeout or old.run_timeout,
        task_timeout=min(said.task_timeout or old.task_timeout, LONGEST_TASK_TIMEOUT),
        retry_policy=old.retry_policy if said.retry_policy is None else complete_retry(said.retry_policy),
        memo=said.memo or old.memo,
        search_attributes=said.search_attributes or without_version(run.search_attributes),
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
