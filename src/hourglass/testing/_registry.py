"""The registry of an environment: workflows and activities by name, with fakes and mishaps.

Nothing needs to be listed that is called as a decorated object: a workflow is known once it was started or stands
where a known one can see it, an activity once workflow code has called it. Only what is called by name must be
listed, found in a module, or faked.

Must not know: engines, time, threads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, TypeAlias

from hourglass._built_in import BUILT_IN
from hourglass._embedded.transitions.run import OpenActivity
from hourglass._evaluator.definition import WorkflowDefinition, workflow_definition
from hourglass._evaluator.options import Duration, optional_seconds
from hourglass._worker.resolver import Resolver
from hourglass.activity import Activity, ActivityDefinition, activity_definition
from hourglass.activity._options import FOREIGN_DEFAULTS
from hourglass.converter import Converter, Signature
from hourglass.errors import ApplicationError, DefinitionError, PayloadError, UnknownTypeError, UsageError

# --- fakes: what a test says about an activity, checked where it is said --------------------------
#
# A fake takes what the activity takes; its arguments are decoded as the
# activity's are, so that it sees the same objects.


Raisable: TypeAlias = BaseException | type[BaseException]
Raises: TypeAlias = Raisable | Sequence[Raisable | None]


class _Unset:
    def __repr__(self) -> str:
        return "…"


UNSET: Any = _Unset()


@dataclass(frozen=True)
class Fake:
    """What happens for an activity: something else, or (`real`) the activity itself. Durations are virtual seconds."""

    definition: ActivityDefinition
    shown: Callable[..., Any] | None
    """The function whose parameters a call is shown with, where it is known."""
    real: bool = False
    takes: float = 0.0
    beats: float | None = None
    raises: Callable[[int], Raisable | None] = lambda attempt: None

    def planned(self, attempt: int) -> BaseException | None:
        """What this attempt is to raise; bare, for there is no code that it comes from."""
        error = self.raises(attempt)
        return None if error is None else raised(error)


def raised(error: Raisable) -> BaseException:
    """An exception that was given as one or as its class, without a traceback."""
    return error.with_traceback(None) if isinstance(error, BaseException) else error()


def shown(definition: ActivityDefinition) -> Callable[..., Any] | None:
    """The function of an activity, unless it takes a `self` that calls do not have."""
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
    """A fake, checked: it takes what the activity takes and returns what the activity returns."""
    errors = _checked_errors(name, raises)
    if function is not None and returns is not UNSET:
        raise UsageError(f"the fake of activity {name}: give a function or returns=, not both")
    if function is not None:
        _check_function(name, definition, function)
    elif returns is not UNSET:
        _check_result(name, definition, returns, converter)
    else:
        _check_nothing(name, definition, raises)
    result = None if returns is UNSET else returns
    return Fake(
        _definition(name, definition, function, _played(definition, function, result)),
        shown(definition) if definition is not None else function,
        raises=errors,
        takes=optional_seconds(takes, "takes") or 0.0,
        beats=optional_seconds(heartbeat_every, "heartbeat_every") or None,
    )


def _definition(
    name: str,
    real: ActivityDefinition | None,
    function: Callable[..., Any] | None,
    played: Callable[..., Any],
) -> ActivityDefinition:
    if real is not None:
        signature, settings = real.signature, real.settings
    else:
        signature, settings = _own_signature(name, function), FOREIGN_DEFAULTS
    return ActivityDefinition(
        name=name,
        fn=played,
        signature=signature,
        is_async=function is not None and inspect.iscoroutinefunction(played),
        settings=settings,
    )


def _own_signature(name: str, function: Callable[..., Any] | None) -> Signature:
    what = f"the fake of activity {name}"
    if function is not None:
        try:
            return Signature.of(function, what=what)
        except DefinitionError:
            pass  # a mock takes anything, **kwargs too, of which none will come

    def anything(*args: Any) -> Any:
        raise NotImplementedError

    return Signature.of(anything, what=what)


def _played(
    real: ActivityDefinition | None, function: Callable[..., Any] | None, result: Any
) -> Callable[..., Any]:
    """The function that is called for an attempt; it gets the activity's defaults too, as the activity would."""
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


# --- checks -----------------------------------------------------------------------------------------------


def _checked_errors(name: str, raises: Raises | None) -> Callable[[int], Raisable | None]:
    if raises is None:
        return lambda attempt: None
    if not isinstance(raises, Sequence):
        single = _checked_error(name, raises)
        return lambda attempt: single
    planned = [_checked_error(name, each) for each in raises]
    return lambda attempt: planned[attempt - 1] if attempt <= len(planned) else None


def _checked_error(name: str, error: Any) -> Raisable | None:
    kind = error if isinstance(error, type) else type(error)
    if error is not None and not issubclass(kind, BaseException):
        raise UsageError(
            f"the fake of activity {name}: raises= is an exception, or a list with one for each attempt, not {error!r:.80}"
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
        return  # some callables of C do not say what they take
    wanted = _without_self(real)
    try:
        own.bind(*[None] * len(real.signature.parameters))
    except TypeError as error:
        raise DefinitionError(
            f"the fake of activity {name} must take what the activity takes: {name}{wanted}. "
            f"{getattr(function, '__qualname__', function)}{own} cannot be called so ({error})"
        ) from None


def _check_result(name: str, real: ActivityDefinition | None, value: Any, converter: Converter) -> None:
    try:
        payload = converter.encode(value)
        if real is not None:
            converter.decode(payload, real.signature.return_type)
    except PayloadError as error:
        raise UsageError(
            f"the fake of activity {name}: returns= is not what the activity returns: {error}"
        ) from error


def _check_nothing(name: str, real: ActivityDefinition | None, raises: Raises | None) -> None:
    """What it returns is left open: that must be allowed, or never be asked."""
    never_returns = raises is not None and not isinstance(raises, Sequence)
    if real is None or never_returns or real.signature.return_type in (None, type(None), Any):
        return
    after = " when it has raised those" if raises is not None else ""
    raise UsageError(f"the fake of activity {name}: say what it returns{after}, returns=…")


# --- mishaps: what `explore` may let befall activities --------------------------------------------
#
# Which errors, and whether for good. An activity of which nothing is said may fail with an error that is tried again and
# with one that is not. What the author lists takes their place.


USUAL_ERRORS: tuple[Raisable, ...] = (
    ApplicationError("an attempt fails, for the exploration", type="Explored"),
    ApplicationError(
        "the activity fails for good, for the exploration", type="ExploredForGood", non_retryable=True
    ),
)


@dataclass(frozen=True)
class Mishaps:
    """What an activity may raise; one that is `sure` succeeds in the end, whatever befalls its attempts."""

    errors: tuple[Raisable, ...] = USUAL_ERRORS
    sure: bool = False

    def errors_of(self, activity: OpenActivity) -> tuple[Raisable, ...]:
        """What the present attempt may raise."""
        if not self.sure:
            return self.errors
        if not self.may_be_lost(activity):
            return ()
        policy = activity.spec.retry_policy
        final = frozenset(policy.non_retryable_error_types) if policy is not None else frozenset()
        return tuple(error for error in self.errors if not _is_final(error, final))

    def may_be_lost(self, activity: OpenActivity) -> bool:
        """Whether the present attempt may time out."""
        policy = activity.spec.retry_policy
        return not self.sure or policy is None or not 0 < policy.maximum_attempts <= activity.attempt


def checked_errors(name: str, errors: Any) -> tuple[Raisable, ...]:
    """What an author lists as errors of an activity: one, or several."""
    given: tuple[Any, ...] = tuple(errors) if isinstance(errors, Sequence) else (errors,)
    for error in given:
        kind = error if isinstance(error, type) else type(error)
        if not issubclass(kind, Exception):
            raise UsageError(f"may_fail({name}): with_= is an exception or a list of them, not {error!r:.80}")
        if isinstance(error, type):
            try:
                error()
            except TypeError as problem:
                raise UsageError(
                    f"may_fail({name}): {error.__name__} cannot be made without arguments ({problem}): give an instance"
                ) from None
    return given


def _is_final(error: Raisable, types: frozenset[str]) -> bool:
    made = error() if isinstance(error, type) else error
    if isinstance(made, ApplicationError):
        return made.non_retryable or made.type in types
    return type(made).__name__ in types


# --- what can happen next -------------------------------------------------------------------------


# --- workflows and activities by name -------------------------------------------------------------


@dataclass
class EnvironmentRegistry:
    """The workflows, activities and fakes of one environment."""

    workflows: Sequence[object] = ()
    activities: Sequence[object] = ()
    modules: Sequence[str | ModuleType] = ()
    real_activities: bool = True
    fakes: dict[str, Fake] = field(default_factory=dict)
    mishaps: dict[str, Mishaps] = field(default_factory=dict)
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The functions of steps that have no result yet: `RunSettings.steps`."""
    _resolver: Resolver | None = None
    _started: dict[str, WorkflowDefinition] = field(default_factory=dict)
    _called: dict[str, Activity[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self._resolver is None and (self.workflows or self.activities or self.modules):
            self._resolver = Resolver(
                workflows=self.workflows, activities=self.activities, modules=self.modules
            )

    def copy(self) -> EnvironmentRegistry:
        """The same, to be changed apart."""
        return replace(
            self,
            fakes=dict(self.fakes),
            mishaps=dict(self.mishaps),
            steps={},
            _started=dict(self._started),
            _called=dict(self._called),
        )

    # --- workflows ----------------------------------------------------------------------------------------

    def meet_workflow(self, workflow: object) -> None:
        """A workflow is started. What is no workflow is passed over here: the client that starts it refuses it."""
        definition = workflow_definition(workflow)
        if definition is not None:
            self._started[definition.name] = definition

    def workflow(self, name: str) -> WorkflowDefinition:
        """The workflow of this type."""
        known = self._started.get(name)
        if known is not None:
            return known
        if name in BUILT_IN:
            return BUILT_IN[name]()
        fallback: WorkflowDefinition | None = None
        if self._resolver is not None:
            try:
                fallback = self._resolver.workflow(name)
            except UnknownTypeError:
                pass
        if fallback is not None and not fallback.dynamic:
            return fallback
        for definition in tuple(self._started.values()):
            for each in _in_sight(definition):
                found = _definition_of(each)
                if found is not None and found.name == name:
                    self._started[name] = found
                    return found
        if fallback is not None:
            return fallback
        raise UnknownTypeError(
            f"this environment knows no workflow type {name!r}: start it with env.start_workflow or env.execute_workflow, as the "
            "decorated object, or name it before: Environment(workflows=[…]) or Environment(modules=[…])"
        )

    # --- activities ---------------------------------------------------------------------------------------

    def meet_activity(self, activity: Activity[..., Any]) -> None:
        """Workflow code calls an activity."""
        self._called[activity.name] = activity

    def definition(self, activity: object) -> tuple[str, ActivityDefinition | None]:
        """The name and, where it is known, the definition of what a test names as an activity."""
        if isinstance(activity, str):
            return activity, self._known(activity)
        if isinstance(activity, Activity):
            return activity.name, activity_definition(activity)
        raise UsageError(
            f"an activity is given as a function decorated with @activity.defn or by its name, not {activity!r:.80}"
        )

    def activity(self, name: str, step: ActivityDefinition | None = None) -> Fake:
        """What happens for an activity of this type, or for a step of this name."""
        fake = self.fakes.get(name)
        if fake is not None:
            return fake
        definition = self._known(name) if step is None else step
        if definition is None:
            raise UnknownTypeError(
                f"this environment knows no activity type {name!r}, which was called by name: give it, "
                f"Environment(activities=[…]), or fake it, env.fake({name!r}, returns=…)"
            )
        if not self.real_activities:
            raise UsageError(
                f"activity {name} is not faked, and this environment runs no real ones: env.fake({name}, returns=…)"
            )
        if definition.needs_instance:
            owner = definition.fn.__qualname__.rpartition(".")[0]
            raise UsageError(
                f"activity {definition.place} is a method and needs an instance: Environment(activities=[{owner}(…)]), "
                f"or a fake, env.fake({definition.fn.__qualname__}, returns=…)"
            )
        return Fake(definition, shown(definition), real=True)

    def _known(self, name: str) -> ActivityDefinition | None:
        fallback: ActivityDefinition | None = None
        if self._resolver is not None:
            try:
                fallback = self._resolver.activity(name)
            except UnknownTypeError:
                pass
        called = self._called.get(name)
        if called is None or (fallback is not None and not fallback.dynamic):
            return fallback
        return activity_definition(called)


def _definition_of(obj: object) -> WorkflowDefinition | None:
    try:
        return workflow_definition(obj)
    except Exception:  # proxies raise whatever they like when they are asked
        return None


def _in_sight(definition: WorkflowDefinition) -> Iterator[object]:
    """What the code of a workflow can name: its module's globals, and what it closes over."""
    fn: Callable[..., Any] = inspect.unwrap(definition.run)
    yield from list(getattr(fn, "__globals__", {}).values())
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # not bound yet
