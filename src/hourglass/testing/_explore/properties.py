"""The properties that every order must satisfy, and their violations. Must not know drivers.

A run that is parked, stuck or nondeterministic always violates a property. The test adds an invariant that is checked after
every step, a check of the result, and the errors that a run may fail with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hourglass.errors import (
    ApplicationError,
    HourglassError,
    NondeterminismError,
    UsageError,
    WorkflowFailedError,
    WorkflowParked,
    WorkflowStuck,
)
from hourglass.testing._errors import is_for_test_runner

Broken: TypeAlias = Literal["check", "invariant", "end", "parked", "stuck", "nondeterministic"]
Allowed: TypeAlias = tuple[type[BaseException] | str, ...]

_WORDS: dict[Broken, str] = {
    "check": "the check does not hold",
    "invariant": "the invariant does not hold",
    "end": "the workflow failed with an error that is not allowed",
    "parked": "the workflow is parked",
    "stuck": "the workflow is stuck",
    "nondeterministic": "the workflow is not deterministic",
}

# Violations with the message of the test's own error in their first line.
_WITH_MESSAGE = frozenset(("check", "invariant", "end"))


@dataclass(frozen=True)
class Violation:
    """A property that does not hold, with the error that shows the violation."""

    broken: Broken
    error: BaseException

    @property
    def key(self) -> tuple[str, str]:
        """The key for shrinking: violations with the same key are considered equal."""
        error = self.error
        if isinstance(error, WorkflowParked):
            error = error.__cause__ or error
        return self.broken, type(error).__name__

    @property
    def short(self) -> str:
        """The violation as a single line."""
        message = str(self.error).strip().split("\n")[0]
        return (
            f"{_WORDS[self.broken]}{f': {message:.100}' if message and self.broken in _WITH_MESSAGE else ''}"
        )

    def __str__(self) -> str:
        text = f"{type(self.error).__name__}: {self.error}" if str(self.error) else type(self.error).__name__
        return f"{_WORDS[self.broken]}: {text}"


class Violated(Exception):
    """Raised when a property does not hold. Ends the order."""

    def __init__(self, broken: Broken, error: BaseException) -> None:
        super().__init__(broken)
        self.violation = Violation(broken, error)


@dataclass(frozen=True)
class Properties:
    """The properties that the test defines."""

    check: Callable[[Any, Any], object] | None = None
    invariant: Callable[[Any], object] | None = None
    allowed: Allowed | None = None

    def check_invariant(self, env: Any) -> None:
        """Raise `Violated` if the invariant does not hold."""
        if self.invariant is not None:
            _check("invariant", self.invariant, env)

    def check_end(self, result: Any, env: Any, excused: bool) -> None:
        """Raise `Violated` if this result is not allowed. `excused` means that a fault occurred, after which a run may fail."""
        if isinstance(result, WorkflowFailedError) and not self._may_end(result, excused):
            raise Violated("end", result)
        if self.check is not None:
            _check("check", self.check, result, env)

    def _may_end(self, error: WorkflowFailedError, excused: bool) -> bool:
        if self.allowed is None:
            return excused
        return any(_is_instance(cause, allowed) for cause in _causes(error) for allowed in self.allowed)


def checked_allowed(allowed: Any) -> Allowed | None:
    """Return the errors that a run may fail with: exception classes, or names of application error types. None means the
    default.
    """
    if allowed is None:
        return None
    kinds: tuple[Any, ...] = tuple(allowed) if isinstance(allowed, (tuple, list)) else (allowed,)
    for kind in kinds:
        if not isinstance(kind, str) and not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise UsageError(
                f"allowed= must list exception classes or type names of application errors, not {kind!r:.80}"
            )
    return kinds


def broken_by(error: BaseException) -> Violation | None:
    """Return the property that an exception of the environment violates. Return None if the workflow is not the cause."""
    match error:
        case Violated():
            return error.violation
        case NondeterminismError():
            return Violation("nondeterministic", error)
        case WorkflowParked():
            is_parked = not isinstance(error.__cause__, NondeterminismError)
            return Violation("parked" if is_parked else "nondeterministic", error)
        case WorkflowStuck():
            return Violation("stuck", error)
        case _:
            return None


def _check(broken: Broken, demand: Callable[..., object], *args: Any) -> None:
    try:
        holds = demand(*args)
    except (UsageError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if is_for_test_runner(error) and not _is_failure(error):
            raise
        raise Violated(broken, error) from None
    if holds is False:
        name = getattr(demand, "__qualname__", "it")
        raise Violated(broken, AssertionError(f"{name} returned False"))


def _is_failure(error: BaseException) -> bool:
    # `pytest.fail(…)` in a check is a failed check; `pytest.skip(…)` and Ctrl-C are not.
    return type(error).__name__ == "Failed"


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__ if isinstance(cause, HourglassError) else None


def _is_instance(error: BaseException, allowed: type[BaseException] | str) -> bool:
    name = allowed if isinstance(allowed, str) else allowed.__name__
    if isinstance(error, ApplicationError) and error.type == name:
        return True
    return not isinstance(allowed, str) and isinstance(error, allowed)
