"""The errors that `explore` may let activities raise.

By default, an activity may fail with a retryable or with a non-retryable error. Errors listed by the test replace these
defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hourglass._embedded.transitions.run import OpenActivity
from hourglass.errors import ApplicationError, UsageError
from hourglass.testing._fakes import Raisable

USUAL_ERRORS: tuple[Raisable, ...] = (
    ApplicationError("a failed attempt, planned by explore", type="Explored"),
    ApplicationError(
        "a permanent failure, planned by explore", type="ExploredPermanently", non_retryable=True
    ),
)


@dataclass(frozen=True)
class AllowedFaults:
    """The errors that an activity may raise. A `sure` activity eventually succeeds, whatever faults its attempts have."""

    errors: tuple[Raisable, ...] = USUAL_ERRORS
    sure: bool = False

    def errors_of(self, activity: OpenActivity) -> tuple[Raisable, ...]:
        """Return the errors that this attempt may raise."""
        if not self.sure:
            return self.errors
        if not self.may_be_lost(activity):
            return ()
        policy = activity.spec.retry_policy
        final = frozenset(policy.non_retryable_error_types) if policy is not None else frozenset()
        return tuple(error for error in self.errors if not _is_final(error, final))

    def may_be_lost(self, activity: OpenActivity) -> bool:
        """Return whether the current attempt may time out."""
        policy = activity.spec.retry_policy
        return not self.sure or policy is None or not 0 < policy.maximum_attempts <= activity.attempt


def checked_errors(name: str, errors: Any) -> tuple[Raisable, ...]:
    """Return the errors of an activity as a tuple. They may be passed as a single error or as a sequence; otherwise raise
    `UsageError`.
    """
    listed: tuple[Any, ...] = tuple(errors) if isinstance(errors, Sequence) else (errors,)
    for error in listed:
        kind = error if isinstance(error, type) else type(error)
        if not issubclass(kind, Exception):
            raise UsageError(
                f"may_fail({name}): with_= must be an exception or a list of exceptions, not {error!r:.80}"
            )
        if isinstance(error, type):
            try:
                error()
            except TypeError as problem:
                raise UsageError(
                    f"may_fail({name}): {error.__name__} cannot be created without arguments ({problem}): pass an instance"
                ) from None
    return listed


def _is_final(error: Raisable, types: frozenset[str]) -> bool:
    instance = error() if isinstance(error, type) else error
    if isinstance(instance, ApplicationError):
        return instance.non_retryable or instance.type in types
    return type(instance).__name__ in types
