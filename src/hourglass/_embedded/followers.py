"""Which run follows another: after continue-as-new, or as the next attempt of one that failed or timed out.
Pure.
"""

from __future__ import annotations

import msgspec

from hourglass._embedded import history as h
from hourglass._embedded.activities import backoff, retry_state
from hourglass._embedded.clock import to_ns
from hourglass._embedded.run import Run
from hourglass._engine.commands import ContinueAsNew
from hourglass.converter import Failure, TimeoutFailure
from hourglass.errors import RetryState, TimeoutType

_TIMED_OUT = Failure("workflow timeout", TimeoutFailure(TimeoutType.START_TO_CLOSE), source="Server")


def retry_follower(
    run: Run, failure: Failure | None, new_run_id: str, now_ns: int
) -> h.WorkflowExecutionStarted | RetryState:
    """The next attempt of a run that failed, or timed out (no failure); or why there is none."""
    rule = run.started.retry_policy
    expiration = run.started.expiration_ns
    if expiration and now_ns >= expiration:
        return RetryState.TIMEOUT
    if rule is None:
        return RetryState.RETRY_POLICY_NOT_SET
    attempt = run.started.attempt
    state = retry_state(rule, attempt, failure or _TIMED_OUT)
    if state is not RetryState.IN_PROGRESS:
        return state
    delay = backoff(rule, attempt)
    if expiration and now_ns + to_ns(delay) >= expiration:
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


def continue_follower(run: Run, command: ContinueAsNew, new_run_id: str) -> h.WorkflowExecutionStarted:
    """The run that a continue-as-new begins; what the command leaves open stays as it was."""
    old = run.started
    return msgspec.structs.replace(
        old,
        workflow_type=command.workflow_type or old.workflow_type,
        task_queue=command.task_queue or old.task_queue,
        arguments=command.arguments,
        run_timeout=old.run_timeout if command.run_timeout is None else command.run_timeout,
        task_timeout=command.task_timeout or old.task_timeout,
        retry_policy=command.retry_policy or old.retry_policy,
        memo=command.memo or old.memo,
        search_attributes=command.search_attributes or run.search_attributes,
        headers=command.headers,
        original_run_id=new_run_id,
        continued_run_id=run.run_id,
        initiator=h.Initiator.WORKFLOW,
        continued_failure=None,
        attempt=1,
        first_task_backoff=0.0,
        identity="",
    )
