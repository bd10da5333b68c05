"""Fakes: replacements for activities, checked when a test defines them.

A fake has the parameters of its activity and receives the same objects, because its arguments are decoded in the same way.

`AllowedFaults` are the errors that `explore` may let an activity raise: by default a retryable and a non-retryable error, or
those that the test lists.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hourglass._embedded.transitions.run import OpenActivity
from hourglass._evaluator.options import Duration, optional_seconds
from hourglass.activity import ActivityDefinition
from hourglass.activity._options import FOREIGN_DEFAULTS
from hourglass.converter import Converter, Signature
from hourglass.errors import ApplicationError, DefinitionError, PayloadError, UsageError

Raisable: TypeAlias = BaseException | type[BaseException]
Raises: TypeAlias = Raisable | Sequence[Raisable | None]


class _Unset:
    def __repr__(self) -> str:
        return "…"


UNSET: Any = _Unset()


@dataclass(frozen=True)
class Fake:
    """The code that runs for an activity: a replacement, or (`real`) the activity itself. Durations are in virtual seconds."""

    definition: ActivityDefinition
    shown: Callable[..., Any] | None
    """The function with the parameters of recorded calls; None if it is unknown."""
    real: bool = False
    takes: float = 0.0
    beats: float | None = None
    raises: Callable[[int], Raisable | None] = lambda attempt: None

    def planned(self, attempt: int) -> BaseException | None:
        """Return the exception that this attempt must raise, without a traceback. Return None if the attempt raises none."""
        error = self.raises(attempt)
        return None if error is None else raised(error)


def raised(error: Raisable) -> BaseException:
    """Return an exception without a traceback, from an instance or a class."""
    return error.with_traceback(None) if isinstance(error, BaseException) else error()


def shown(definition: ActivityDefinition) -> Callable[..., Any] | None:
    """Return the function of an activity. Return None if it has a `self` parameter, because recorded calls have no `self`."""
    return None if definition.needs_instance else definition.fn


def make_fake(
    name: str,
    definition: ActivityDefinition | None,
    function: Callable[..., Any] | None,
    converter: Converter,
    *,
    returns: Any = UNSET,
    raises: Raises | None = None,
    takes: Duration | None = None,
    heartbeat_every: Duration | None = None,
) -> Fake:
    """Return a fake. Raise `UsageError` or `DefinitionError` if its parameters or result do not match the activity's."""
    errors = _checked_errors(name, raises)
    if function is not None and returns is not UNSET:
        raise UsageError(f"the fake of activity {name}: pass a function or returns=, not both")
    if function is not None:
        _check_function(name, definition, function)
    elif returns is not UNSET:
        _check_result(name, definition, returns, converter)
    else:
        _check_nothing(name, definition, raises)
    result = None if returns is UNSET else returns
    return Fake(
        _definition(name, definition, function, _implementation(definition, function, result)),
        shown(definition) if definition is not None else function,
        raises=errors,
        takes=optional_seconds(takes, "takes") or 0.0,
        beats=optional_seconds(heartbeat_every, "heartbeat_every") or None,
    )


def _definition(
    name: str,
    real: ActivityDefinition | None,
    function: Callable[..., Any] | None,
    implementation: Callable[..., Any],
) -> ActivityDefinition:
    if real is not None:
        signature, settings = real.signature, real.settings
    else:
        signature, settings = _own_signature(name, function), FOREIGN_DEFAULTS
    return ActivityDefinition(
        name=name,
        fn=implementation,
        signature=signature,
        is_async=function is not None and inspect.iscoroutinefunction(implementation),
        settings=settings,
    )


def _own_signature(name: str, function: Callable[..., Any] | None) -> Signature:
    what = f"the fake of activity {name}"
    if function is not None:
        try:
            return Signature.of(function, what=what)
        except DefinitionError:
            pass  # a mock accepts all arguments, including **kwargs, which are never passed

    def anything(*args: Any) -> Any:
        raise NotImplementedError

    return Signature.of(anything, what=what)


def _implementation(
    real: ActivityDefinition | None, function: Callable[..., Any] | None, result: Any
) -> Callable[..., Any]:
    """Return the function to call for an attempt. The function receives the activity's default arguments, like the activity."""
    if function is None:
        return lambda *args: result
    if real is None:
        return function
    signature, called = _without_self(real), function

    def complete(args: tuple[Any, ...]) -> tuple[Any, ...]:
        bound = signature.bind(*args)
        bound.apply_defaults()
        return bound.args

    if inspect.iscoroutinefunction(function):

        async def play_async(*args: Any) -> Any:
            return await called(*complete(args))

        return play_async
    return lambda *args: called(*complete(args))


def _without_self(real: ActivityDefinition) -> inspect.Signature:
    signature = inspect.signature(real.fn)
    skipped = 1 if real.needs_instance else 0
    return signature.replace(parameters=list(signature.parameters.values())[skipped:])


def _checked_errors(name: str, raises: Raises | None) -> Callable[[int], Raisable | None]:
    if raises is None:
        return lambda attempt: None
    if not isinstance(raises, Sequence):
        single = _checked_error(name, raises)
        return lambda attempt: single
    planned = [_checked_error(name, error) for error in raises]
    return lambda attempt: planned[attempt - 1] if attempt <= len(planned) else None


def _checked_error(name: str, error: Any) -> Raisable | None:
    kind = error if isinstance(error, type) else type(error)
    if error is not None and not issubclass(kind, BaseException):
        raise UsageError(
            f"the fake of activity {name}: raises= must be an exception, or a list with one for each attempt, not {error!r:.80}"
        )
    checked: Raisable | None = error
    return checked


def _check_function(name: str, real: ActivityDefinition | None, function: Callable[..., Any]) -> None:
    if not callable(function):
        raise UsageError(f"the fake of activity {name} must be a function, not {type(function).__name__}")
    if real is None:
        return
    try:
        own = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some callables written in C have no signature
    expected = _without_self(real)
    try:
        own.bind(*[None] * len(real.signature.parameters))
    except TypeError as error:
        raise DefinitionError(
            f"the fake of activity {name} must accept the arguments of the activity: {name}{expected}. "
            f"{getattr(function, '__qualname__', function)}{own} does not ({error})"
        ) from None


def _check_result(name: str, real: ActivityDefinition | None, value: Any, converter: Converter) -> None:
    try:
        payload = converter.encode(value)
        if real is not None:
            converter.decode(payload, real.signature.return_type)
    except PayloadError as error:
        raise UsageError(
            f"the fake of activity {name}: returns= does not match the return type of the activity: {error}"
        ) from error


def _check_nothing(name: str, real: ActivityDefinition | None, raises: Raises | None) -> None:
    """Check a fake that has no result. The activity must accept None as a result, or the fake must always raise."""
    never_returns = raises is not None and not isinstance(raises, Sequence)
    if real is None or never_returns or real.signature.return_type in (None, type(None), Any):
        return
    after = " for the attempts after those in raises=" if raises is not None else ""
    raise UsageError(f"the fake of activity {name} has no result{after}: pass returns=…")


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
