"""The definition of a workflow or message handler as data. Definitions are validated by the decorators, so that
mistakes surface at import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal

from hourglass._evaluator.specs import VersioningBehavior, check_behavior
from hourglass.converter import Converter, Payload, Signature, check_dynamic, raw_payloads
from hourglass.errors import DefinitionError

MessageKind = Literal["signal", "query", "update"]
RESERVED = "__temporal"


class HandlerUnfinishedPolicy(IntEnum):
    """Whether a warning is issued for a handler that is still running when its workflow closes. The handler is
    abandoned in either case.
    """

    WARN_AND_ABANDON = 1
    ABANDON = 2


@dataclass(frozen=True)
class MessageDefinition:
    """A handler of signals, queries or updates. A dynamic handler has no name and handles all messages without
    a named handler.
    """

    kind: MessageKind
    name: str | None
    fn: Callable[..., Any]
    signature: Signature
    validator: Callable[..., Any] | None = None
    description: str = ""
    unfinished_policy: HandlerUnfinishedPolicy = HandlerUnfinishedPolicy.WARN_AND_ABANDON
    is_async: bool = False


@dataclass(frozen=True, kw_only=True)
class DynamicWorkflowConfig:
    """The options of a dynamic workflow for a single run. They replace the options of the decorator. The
    workflow's `@workflow.dynamic_config` method returns them.
    """

    failure_exceptions: Sequence[type[BaseException]] | None = None
    """The exceptions that fail the run. None means the exceptions set by the decorator."""
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    """Whether the run stays on its worker version. UNSPECIFIED means the behavior set by the decorator."""


@dataclass(frozen=True)
class WorkflowDefinition:
    """A workflow: a function, or a class with a run method and handlers. A dynamic workflow handles every
    workflow type that has no definition of its own, and its name is only used in reports. The body and handlers
    of an `async def` workflow run on the run's event loop.
    """

    name: str
    target: Any
    run: Callable[..., Any]
    signature: Signature
    is_class: bool = False
    init_takes_arguments: bool = False
    signals: dict[str | None, MessageDefinition] = field(default_factory=dict)
    queries: dict[str | None, MessageDefinition] = field(default_factory=dict)
    updates: dict[str | None, MessageDefinition] = field(default_factory=dict)
    failure_exceptions: tuple[type[BaseException], ...] = ()
    dynamic: bool = False
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    is_async: bool = False
    config: Callable[[Any], DynamicWorkflowConfig] | None = None
    """For a dynamic workflow: a function that receives the run's workflow object and returns the options of the
    run.
    """

    def configured(self, obj: Any) -> WorkflowDefinition:
        """Return this definition with the options of a single run, as its workflow object specifies them."""
        config: object = self.config(obj) if self.config is not None else DynamicWorkflowConfig()
        if not isinstance(config, DynamicWorkflowConfig):
            raise DefinitionError(
                f"@workflow.dynamic_config of workflow {self.name} must return a DynamicWorkflowConfig, not "
                f"{type(config).__name__}"
            )
        fails = config.failure_exceptions
        return replace(
            self,
            failure_exceptions=self.failure_exceptions if fails is None else check_exceptions(fails),
            versioning_behavior=check_behavior(
                config.versioning_behavior, f"versioning_behavior of workflow {self.name}"
            )
            or self.versioning_behavior,
        )

    def arguments(self, converter: Converter, payloads: tuple[Payload, ...]) -> list[Any]:
        """Return the decoded arguments for the run method. A dynamic workflow receives them undecoded, as a
        single argument.
        """
        if self.dynamic:
            return [raw_payloads(payloads, converter)]
        return self.signature.decode(converter, payloads)

    @property
    def where(self) -> str:
        """The file and line of the definition, for reports."""
        code = inspect.unwrap(self.run).__code__
        return f"{code.co_filename}:{code.co_firstlineno}"


def workflow_definition(obj: Any) -> WorkflowDefinition | None:
    """Return the definition of a decorated function, a decorated class or its run method. Return None for any
    other object.
    """
    if isinstance(obj, type):
        # A subclass of a workflow class is a workflow only if it is decorated itself.
        definition = vars(obj).get("__hourglass_workflow__")
    else:
        definition = getattr(obj, "__hourglass_workflow__", None)
    return definition if isinstance(definition, WorkflowDefinition) else None


def message_definition(obj: Any) -> MessageDefinition | None:
    """Return the definition of a decorated signal, query or update handler; None for anything else."""
    definition = getattr(obj, "__hourglass_message__", None)
    return definition if isinstance(definition, MessageDefinition) else None


def check_name(name: Any, what: str) -> str:
    """Return a name that is valid in Temporal. Raise `DefinitionError` otherwise."""
    if not isinstance(name, str) or not name.strip():
        raise DefinitionError(f"the name of {what} must be a non-empty str, not {name!r}")
    if name.startswith(RESERVED):
        raise DefinitionError(
            f"the name {name!r} of {what} is reserved: names must not begin with {RESERVED!r}"
        )
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DefinitionError(
                f"the name {name!r} of {what} must be a str that UTF-8 can encode"
            ) from None
    return name


def check_function(fn: Any, what: str) -> bool:
    """Raise `DefinitionError` if an object cannot be a workflow or a handler. Return whether it is an `async
    def`.
    """
    bare = inspect.unwrap(fn) if callable(fn) else fn
    if not inspect.isfunction(getattr(bare, "__func__", bare)):  # a bound method is valid too
        named = f'; pass a name as name="{fn}"' if isinstance(fn, str) else ""
        raise DefinitionError(f"{what} must be a function, not {type(fn).__name__}{named}")
    if inspect.isgeneratorfunction(bare) or inspect.isasyncgenfunction(bare):
        raise DefinitionError(
            f"{what} must not be a generator function: remove `yield` and return the result"
        )
    return is_coroutine_function(fn)


def is_coroutine_function(fn: Any) -> bool:
    """Return whether calling a function returns a coroutine. Wrapped functions are not inspected, because a
    decorator may have awaited them.
    """
    return inspect.iscoroutinefunction(fn)


def check_plain_function(fn: Any, what: str) -> None:
    """Raise `DefinitionError` if a function could wait: a validator must be a plain `def`."""
    if check_function(fn, what):
        raise DefinitionError(f"{what} must not wait: define it with `def`, not `async def`")


def define_function(
    fn: Callable[..., Any],
    name: str | None,
    failure_exceptions: tuple[type[BaseException], ...],
    *,
    dynamic: bool = False,
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED,
) -> WorkflowDefinition:
    """Return the definition of a workflow function."""
    check_function(fn, f"workflow {getattr(fn, '__name__', fn)}")
    return _define(fn, fn, name, failure_exceptions, dynamic, versioning_behavior)


def _define(
    target: Any,
    run: Callable[..., Any],
    name: str | None,
    failure_exceptions: tuple[type[BaseException], ...],
    dynamic: bool,
    versioning_behavior: VersioningBehavior,
) -> WorkflowDefinition:
    checked = check_name(name if name is not None else target.__name__, "a workflow")
    what = f"workflow {checked}"
    signature = Signature.of(run, what=what, skip_first=target is not run)
    if dynamic:
        if name is not None:
            raise DefinitionError(
                f"{what}: a dynamic workflow handles all workflow types and must not have a name"
            )
        check_dynamic(signature, what)
    return WorkflowDefinition(
        name=checked,
        target=target,
        run=run,
        signature=signature,
        failure_exceptions=check_exceptions(failure_exceptions),
        dynamic=dynamic,
        is_async=is_coroutine_function(run),
        versioning_behavior=check_behavior(versioning_behavior, f"versioning_behavior of {what}"),
    )


def define_class(
    cls: type,
    name: str | None,
    failure_exceptions: tuple[type[BaseException], ...],
    *,
    dynamic: bool = False,
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED,
) -> WorkflowDefinition:
    """Return the definition of a workflow class. The class must have one run method and may have any number of
    handlers, including inherited ones.
    """
    runs = [member for member in _members(cls) if getattr(member, "__hourglass_run__", None) is not None]
    if not runs:
        raise DefinitionError(
            f"workflow class {cls.__name__} must have one method decorated with @workflow.run"
        )
    if len(runs) > 1:
        names = ", ".join(member.__hourglass_run__.__name__ for member in runs)
        raise DefinitionError(
            f"workflow class {cls.__name__} has more than one @workflow.run method: {names}"
        )
    run = runs[0].__hourglass_run__
    handlers: dict[MessageKind, dict[str | None, MessageDefinition]] = {
        "signal": {},
        "query": {},
        "update": {},
    }
    for member in _members(cls):
        message = message_definition(member)
        if message is None:
            continue
        if message.name in handlers[message.kind]:
            raise DefinitionError(
                f"workflow class {cls.__name__} has two {message.kind} handlers for {message.name or 'all other names'!r}"
            )
        handlers[message.kind][message.name] = message
    return replace(
        _define(cls, run, name, failure_exceptions, dynamic, versioning_behavior),
        is_class=True,
        init_takes_arguments=_init_takes_arguments(cls, run),
        signals=handlers["signal"],
        queries=handlers["query"],
        updates=handlers["update"],
        config=_config_of(cls, dynamic=dynamic),
    )


def _config_of(cls: type, *, dynamic: bool) -> Callable[[Any], DynamicWorkflowConfig] | None:
    methods = [member for member in _members(cls) if getattr(member, "__hourglass_dynamic_config__", False)]
    if methods and not dynamic:
        raise DefinitionError(
            f"workflow class {cls.__name__} is not dynamic and cannot use @workflow.dynamic_config: pass the options to "
            "its decorator, @workflow.defn(…)"
        )
    if len(methods) > 1:
        raise DefinitionError(
            f"workflow class {cls.__name__} has more than one @workflow.dynamic_config method"
        )
    return methods[0] if methods else None


def check_exceptions(types: Any) -> tuple[type[BaseException], ...]:
    """Return the exception types that fail a run, validated."""
    exceptions = tuple(types)
    for exception in exceptions:
        if not (isinstance(exception, type) and issubclass(exception, BaseException)):
            raise DefinitionError(f"failure_exceptions must be exception classes, not {exception!r}")
    return exceptions


def _members(cls: type) -> list[Any]:
    """Return the members of the class and its bases. Each name occurs once, with the value of the most derived
    class.
    """
    seen: dict[str, Any] = {}
    for base in cls.__mro__:
        for key, value in vars(base).items():
            seen.setdefault(key, value)
    return list(seen.values())


def _init_takes_arguments(cls: type, run: Callable[..., Any]) -> bool:
    init = cls.__init__  # type: ignore[misc]
    run_parameters = list(inspect.signature(run).parameters.values())[1:]
    parameters = [] if init is object.__init__ else list(inspect.signature(init).parameters.values())[1:]
    if getattr(init, "__hourglass_init__", False):
        # Arguments are passed by position, so the names may differ. In that case, the types must match, to
        # reveal a wrong order.
        names = [
            [(p.kind, p.name) for p in parameter_list] for parameter_list in (parameters, run_parameters)
        ]
        typed = [
            [(p.kind, p.annotation) for p in parameter_list]
            for parameter_list in (parameters, run_parameters)
        ]
        if names[0] != names[1] and typed[0] != typed[1]:
            raise DefinitionError(
                f"workflow class {cls.__name__}: @workflow.init passes the arguments of the run method to __init__, so "
                "both must have the same parameters; only the parameter names may differ"
            )
        return True
    required = [
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if required:
        raise DefinitionError(
            f"workflow class {cls.__name__}: __init__ has required parameters ({', '.join(required)}): decorate it with "
            "@workflow.init, which passes the arguments of the run method to it"
        )
    return False
