"""The retry policy's arithmetic, like that of a Temporal server. Pure.

The embedded engine uses these functions to decide about retries. If another engine decides, a worker uses them
to report when the next attempt is due.
"""

from __future__ import annotations

import msgspec

from hourglass._evaluator.specs import RetryRule
from hourglass.converter import (
    ApplicationFailure,
    CanceledFailure,
    Failure,
    ServerFailure,
    TerminatedFailure,
    TimeoutFailure,
)
from hourglass.errors import RetryState, TimeoutType


def complete_retry(rule: RetryRule) -> RetryRule:
    """Return the policy with a maximum interval. The default is a hundred times the initial interval."""
    if rule.maximum_interval:
        return rule
    return msgspec.structs.replace(rule, maximum_interval=rule.initial_interval * 100)


def backoff(rule: RetryRule, attempt: int) -> float:
    """Return the delay in seconds after the attempt with this number."""
    longest = rule.maximum_interval or rule.initial_interval * 100
    try:
        return min(rule.initial_interval * rule.backoff_coefficient ** min(attempt - 1, 200), longest)
    except OverflowError:  # e.g. 2.0 ** 1024, which is far above any maximum interval
        return longest


def next_delay(rule: RetryRule, attempt: int, failure: Failure | None) -> float:
    """Return the delay in seconds before the next attempt: the delay that the failure requests, or else the
    policy's.
    """
    if failure is not None and isinstance(failure.info, ApplicationFailure):
        requested = failure.info.next_retry_delay
        if requested is not None:
            return requested
    return backoff(rule, attempt)


def retry_state(rule: RetryRule, attempt: int, failure: Failure) -> RetryState:
    """Return IN_PROGRESS if the policy allows another attempt, or else the reason why it does not. The caller
    must check timeouts.
    """
    match failure.info:
        case ApplicationFailure() as info:
            if info.non_retryable or info.type in rule.non_retryable_error_types:
                return RetryState.NON_RETRYABLE_FAILURE
        case CanceledFailure() | TerminatedFailure():
            return RetryState.NON_RETRYABLE_FAILURE
        case ServerFailure(non_retryable=True):
            return RetryState.NON_RETRYABLE_FAILURE
        case TimeoutFailure(type=timeout) if timeout not in (
            TimeoutType.START_TO_CLOSE,
            TimeoutType.HEARTBEAT,
        ):
            return RetryState.TIMEOUT
        case _:
            pass
    if rule.maximum_attempts and attempt >= rule.maximum_attempts:
        return RetryState.MAXIMUM_ATTEMPTS_REACHED
    return RetryState.IN_PROGRESS
