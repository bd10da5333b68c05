"""`@activity.defn` declares a function or method that a workflow calls durably. Everywhere else it stays a plain function.

A class with a `__call__` method may be decorated, too: its `__call__` becomes an activity with the name of the class.

The kind of call depends on the caller: a fiber of a run makes a durable call by name, any other caller makes a plain call.
Whether a function is a method is known only when its class is created (`__set_name__`), so the signature is evaluated then.

Another interpreter finds a process activity by module and qualified name. So the activity must be a function at the top
level of a module, or a static method. The interpreter imports the activity's module: the top level of a script is executed a
second time, except for the code below `if __name__ == "__main__":`.

In a process that runs a worker, a plain call causes a warning, because a workflow may have made it through a thread pool,
and would execute the activity directly in every replay. Workers register here. Their number is process-wide, because a
thread cannot know its workflow. Threads that run workflow code register, too: a call there outside of any workflow comes
from a finaliser.
"""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from hourglass._evaluator.context import current_run
from hourglass._evaluator.definition import check_name
from hourglass._evaluator.fibers import Task
from hourglass._evaluator.interception import start_intercepted
from hourglass._evaluator.operations import start_activity
from hourglass._evaluator.options import CallSettings
from hourglass.activity import _context
from hourglass.activity._options import DEFAULTS, LIVENESS_TIMEOUT, ActivityOptions, settings_with
from hourglass.converter import Converter, Payload, Signature, check_dynamic, raw_payloads
from hourglass.errors import DefinitionError, NotInWorkflowError, UsageError

__all__ = ["Activity", "ActivityDefinition", "activity_definition", "defn"]


Executor: TypeAlias = Literal["thread", "process"]
OnCancel: TypeAlias = Literal["heartbeat", "raise", "silent"]
"""The way in which a `def` activity is notified of its cancellation: by an exception from `heartbeat`, by an exception
raised in its thread, or only by calling `cancelled`.
"""


def check_executor(fn: Callable[..., Any], executor: str) -> Executor:
    """Return the validated executor of a function. Raise `DefinitionError` if the function cannot run in it."""
    name = fn.__qualname__
    if executor == "thread":
        return "thread"
    if executor != "process":
        raise DefinitionError(f"activity {name}: executor must be 'thread' or 'process', not {executor!r}")
    if inspect.iscoroutinefunction(fn):
        raise DefinitionError(
            f"activity {name} is an async function, which runs on the worker's activity loop. With "
            f"executor='process' use a plain `def`, which may call asyncio.run(…)"
        )
    if "<locals>" in name or "<lambda>" in name:
        raise DefinitionError(
            f"activity {name}: executor='process' looks up the function by its name in another interpreter, so it must "
            f"be at the top level of a module, or a static method of a class there"
        )
    return "process"


def method_error(name: str) -> DefinitionError:
    """Return the error for a method that was declared as a process activity."""
    return DefinitionError(
        f"activity {name} is a method: executor='process' has no instance in the other interpreter. Make it a "
        f"function, or a static method (@staticmethod above @activity.defn)"
    )


_lock = threading.Lock()
_live_workers = 0
_thread = threading.local()


class PlainCallWarning(UserWarning):
    """A warning that an activity was called as a plain function in a process that runs a worker."""


def worker_started() -> None:
    """Register a worker of this process."""
    global _live_workers
    with _lock:
        _live_workers += 1


def worker_stopped() -> None:
    """Unregister a worker of this process."""
    global _live_workers
    with _lock:
        _live_workers -= 1


def runs_workflows() -> None:
    """Register this thread as one that runs workflow code."""
    _thread.runs_workflows = True


def check_plain_call(name: str) -> None:
    """Warn, once per call site, if this process runs a worker. Raise `UsageError` in a thread that runs workflow code."""
    if getattr(_thread, "runs_workflows", False):
        raise UsageError(
            f"activity {name} was called in a thread that runs workflows, but not by a workflow: finalizers (__del__) must "
            "not call activities"
        )
    if _live_workers:
        warnings.warn(
            f"activity {name} is called as a plain function, not durably: this thread runs neither a workflow nor an activity. "
            f"If a workflow started the thread, call the activity in the workflow itself (`{name}.start` runs several at "
            f"once); if you want a plain call, call `{name}.fn`",
            PlainCallWarning,
            stacklevel=4,  # skips this function, `_call_plainly` and `__call__`
        )


P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class ActivityDefinition:
    """The data that a worker needs to run an activity: its type, its function, and the encoding of its
    arguments.

    A dynamic activity handles every activity type that its worker does not define. Its name is used in reports only.
    """

    name: str
    fn: Callable[..., Any]
    signature: Signature
    is_async: bool
    settings: CallSettings
    needs_instance: bool = False
    executor: Executor = "thread"
    dynamic: bool = False
    on_cancel: OnCancel = "heartbeat"

    def arguments(self, converter: Converter, payloads: tuple[Payload, ...]) -> list[Any]:
        """Return decoded arguments for the function. A dynamic activity receives all payloads, not decoded, as a single
        argument.
        """
        if self.dynamic:
            return [raw_payloads(payloads, converter)]
        return self.signature.decode(converter, payloads)

    @property
    def sends_heartbeats(self) -> bool:
        """Whether the worker sends heartbeats automatically."""
        return self.settings.spec.heartbeat_timeout == LIVENESS_TIMEOUT

    @property
    def place(self) -> str:
        """The location of the function: module and qualified name, file and line."""
        code = getattr(inspect.unwrap(self.fn), "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        return f"{self.fn.__module__}.{self.fn.__qualname__}{where}"


def activity_definition(obj: object) -> ActivityDefinition | None:
    """Return the definition of a decorated function or method; None for anything else."""
    definition = getattr(obj, "__hourglass_activity__", None) if isinstance(obj, Activity) else None
    return definition if isinstance(definition, ActivityDefinition) else None


class ActivitySource(Protocol):
    """The type of the elements of `activities=[…]`: an activity, or an object with activity methods, but not a workflow.

    A type cannot exclude classes. So this is a protocol with a method that every object has, but that workflows hide from
    type checkers. A type checker then reports a list of the wrong kind.
    """

    def __sizeof__(self) -> int: ...


class Activity(Generic[P, R]):
    """A decorated function or method. Immutable: `options`, and access through an instance, return new objects."""

    _on_cancel: OnCancel = "heartbeat"

    if TYPE_CHECKING:
        __dir__: None  # type: ignore[assignment]  # hides it from the type `WorkflowSource`

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        settings: CallSettings,
        *,
        is_method: bool = False,
        instance: object = None,
        signature: Signature | None = None,
        executor: Executor = "thread",
        dynamic: bool = False,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.name = name
        self._function = fn
        self._settings = settings
        self._is_method = is_method
        self._instance = instance
        self._signature = signature
        self._executor: Executor = executor
        self._dynamic = dynamic
        if signature is None and not _is_in_class(fn):
            self._signed()

    @property
    def fn(self) -> Callable[..., Any]:
        """The undecorated function, bound if accessed through an instance. A call of it is never durable."""
        if self._instance is None:
            return self._function
        return MethodType(self._function, self._instance)

    @property
    def __hourglass_activity__(self) -> ActivityDefinition:
        if self._is_method and self._executor == "process":
            raise method_error(self._function.__qualname__)
        return ActivityDefinition(
            name=self.name,
            fn=self.fn,
            signature=self._signed(),
            is_async=inspect.iscoroutinefunction(self._function),
            settings=self._settings,
            needs_instance=self._is_method and self._instance is None,
            executor=self._executor,
            dynamic=self._dynamic,
            on_cancel=self._on_cancel,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the activity durably and wait for its result, inside a workflow. Outside a workflow, call the function."""
        run = current_run()
        if run is not None:
            return self._start(run, args, kwargs, local=False).result()
        return cast(R, self._call_plainly(args, kwargs))

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Task[R]:
        """Start the activity durably without waiting for it; in workflows only. `result()` of the returned task waits for
        the result."""
        return self._start(self._run("start"), args, kwargs, local=False)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a short activity on the worker that runs this workflow task, within the task, and return its result. In
        workflows only.
        """
        return self._start(self._run("local"), args, kwargs, local=True).result()

    def start_local(self, *args: P.args, **kwargs: P.kwargs) -> Task[R]:
        """Start a short activity on the worker that runs this workflow task, without waiting for it. In workflows only."""
        return self._start(self._run("start_local"), args, kwargs, local=True)

    def options(self, **overrides: Unpack[ActivityOptions]) -> Activity[P, R]:
        """Return a copy of the activity that uses these options for its calls."""
        return self._with(settings=settings_with(self._settings, overrides, f"activity {self.name}"))

    # The types of methods exclude `self`, whether they are accessed through the class or through an instance.
    @overload
    def __get__(self: Activity[Concatenate[S, Q], T], obj: None, owner: type[S]) -> Activity[Q, T]: ...
    @overload
    def __get__(self: Activity[Concatenate[S, Q], T], obj: S, owner: type[S]) -> Activity[Q, T]: ...
    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None or not self._is_method else self._with(instance=obj)

    def __set_name__(self, owner: type, name: str) -> None:
        if self._is_method or not _is_in_class(self._function):
            return  # a function that was defined elsewhere and is only stored in a class stays a function
        self._is_method = True
        if self.name == name == "__call__":
            self.name = owner.__name__  # the default name of a class whose instances are called
        self._signed()

    def __repr__(self) -> str:
        return f"<activity {self.name}: {self._function.__module__}.{self._function.__qualname__}>"

    def _with(self, *, settings: CallSettings | None = None, instance: object = None) -> Activity[P, R]:
        return type(self)(
            self._function,
            self.name,
            self._settings if settings is None else settings,
            is_method=self._is_method,
            instance=self._instance if instance is None else instance,
            signature=self._signed(),
            executor=self._executor,
            dynamic=self._dynamic,
        )

    def _signed(self) -> Signature:
        if self._signature is None:
            what = f"activity {self.name}"
            self._signature = Signature.of(self._function, what=what, skip_first=self._is_method)
            if self._dynamic:
                check_dynamic(self._signature, what)
        return self._signature

    def _run(self, method: str) -> Any:
        run = current_run()
        if run is None:
            raise NotInWorkflowError(
                f"activity {self.name}: .{method}() works only inside a workflow; outside, call "
                f"{self.name}(…) or {self.name}.fn(…)"
            )
        return run

    def _start(
        self,
        run: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        local: bool,
        start: Callable[..., Any] = start_activity,
    ) -> Task[R]:
        if self._dynamic:
            raise UsageError(
                f"activity {self.name} is dynamic: it has no type of its own. Pass the type as a str, "
                "workflow.execute_activity(…)"
            )
        if run.settings.on_activity is not None:
            run.settings.on_activity(self)
        signature, settings = self._signature or self._signed(), self._settings
        converter = run.converter
        if run.contextual:
            converter = run.converter_of_activity(
                self.name, settings.activity_id, settings.spec.task_queue, local=local
            )
        if run.outbound is not None:
            intercepted: Task[R] = start_intercepted(
                run.outbound,
                self.name,
                signature.bind(args, kwargs),
                settings,
                signature.return_type,
                functools.partial(signature.encode, converter),
                local=local,
                start=start,
            )
            return intercepted
        payloads = signature.encode(converter, args, kwargs)
        task: Task[R] = start(self.name, payloads, settings, signature.return_type, local=local)
        return task

    def _call_plainly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(self._function):
            raise UsageError(
                f"activity {self.name} is an async function: outside a workflow, await {self.name}.fn(…)"
            )
        if self._is_method and self._instance is None:
            raise UsageError(
                f"activity {self._function.__qualname__} is a method: outside a workflow, call it on an instance (inside a "
                f"workflow, {self._function.__qualname__}(…) runs durably on the worker's instance)"
            )
        if _context.current.get() is None:
            check_plain_call(self.name)
        return self.fn(*args, **kwargs)


class _Decorator(Protocol):
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Activity[P, R]: ...


@overload
def defn(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...
@overload
def defn(fn: Callable[P, R], /) -> Activity[P, R]: ...
@overload
def defn(
    *,
    name: str | None = None,
    dynamic: bool = False,
    executor: Executor = "thread",
    **options: Unpack[ActivityOptions],
) -> _Decorator: ...
def defn(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    dynamic: bool = False,
    executor: str = "thread",
    **options: Any,
) -> Any:
    """Declare a function or method as an activity.

    `name` is the activity type, by default the function's name. A `dynamic` activity handles every type for which its worker
    has no other activity. Its only parameter is a `Sequence[RawPayload]` of all arguments, and
    `activity.info().activity_type` is the requested type. The options are defaults for all calls; see `ActivityOptions`. The
    default `start_to_close_timeout` is ten minutes.

    `executor` selects where a `def` activity runs; `async def` activities run on the worker's activity loop. `"thread"` uses
    a thread of the worker's interpreter. `"process"` uses one of a few separate interpreters of the worker. It is meant for
    work that uses a full core, may crash, or must be killed when it is cancelled or exceeds its timeout. Arguments and
    results are passed as usual. `info`, `heartbeat`, `heartbeat_details`, `cancelled` and `complete_async` work there, but
    `client` does not. The function must be at the top level of a module, or a static method.
    """
    if fn is None:
        return functools.partial(_define, name=name, dynamic=dynamic, executor=executor, options=options)
    return _define(fn, name=name, dynamic=dynamic, executor=executor, options=options)


def _define(fn: Any, /, *, name: str | None, dynamic: bool, executor: str, options: dict[str, Any]) -> Any:
    if isinstance(fn, type):
        call_activity = _define(
            called(fn), name=name or fn.__name__, dynamic=dynamic, executor=executor, options=options
        )
        return with_call(fn, call_activity)
    check_function(fn)
    checked_executor = check_executor(fn, executor)
    if dynamic and (name is not None or options):
        raise DefinitionError(
            f"activity {fn.__qualname__} is dynamic: remove the name and the options, which the caller passes"
        )
    if name is None and fn.__name__ == "<lambda>":
        raise DefinitionError("an activity that is a lambda needs a name: @activity.defn(name=…)")
    title = check_name(fn.__name__ if name is None else name, f"activity {fn.__qualname__}")
    settings = settings_with(DEFAULTS, options, f"activity {title}")
    return Activity(fn, title, settings, executor=checked_executor, dynamic=dynamic)


def step_definition(fn: Any, name: str | None, options: dict[str, Any]) -> ActivityDefinition:
    """Return the definition of a function that is passed to `workflow.step`."""
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not callable(fn) or isinstance(inner, type):
        raise UsageError(f"a step must be a function, not {fn!r:.80}")
    title = getattr(inner, "__qualname__", type(inner).__qualname__).rpartition("<locals>.")[2]
    if name is None and title == "<lambda>":
        raise UsageError("a step that is a lambda needs a name for the history: name=…")
    title = check_name(title if name is None else name, f"step {title}")
    settings = settings_with(DEFAULTS, options, f"step {title}")
    is_async = inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004
    )
    return ActivityDefinition(title, fn, Signature.of(fn, what=f"step {title}"), is_async, settings)


def called(cls: type) -> Callable[..., Any]:
    """Return the `__call__` method of a class. Raise `DefinitionError` if the class has none, or if the method is already an
    activity."""
    method = inspect.getattr_static(cls, "__call__", None)
    if isinstance(method, Activity):
        raise DefinitionError(f"activity {cls.__qualname__} is decorated twice: the class, and its __call__")
    if not isinstance(method, FunctionType):
        raise DefinitionError(
            f"@activity.defn on class {cls.__qualname__} needs a method __call__, which is the activity"
        )
    return method


def with_call(cls: type[T], call_activity: Activity[..., Any]) -> type[T]:
    """Return the class with its `__call__` replaced by an activity."""
    call_activity._is_method = True
    call_activity._signed()
    type.__setattr__(cls, "__call__", call_activity)  # type checkers consider it a method of one type
    return cls


def activity_of(activity: object) -> Activity[..., Any] | None:
    """Return the activity of an object: the object itself, or the `__call__` of a class or instance. Return None for
    anything else.
    """
    if isinstance(activity, Activity):
        return activity
    cls = activity if isinstance(activity, type) else type(activity)
    method = inspect.getattr_static(cls, "__call__", None)
    return method if isinstance(method, Activity) else None


def check_function(fn: Any) -> None:
    if isinstance(fn, Activity):
        raise DefinitionError(f"activity {fn.name} is decorated twice")
    if isinstance(fn, (staticmethod, classmethod)):
        raise DefinitionError(
            f"put @activity.defn below @{type(fn).__name__} on {fn.__func__.__qualname__}, next to the function"
        )
    if not isinstance(fn, FunctionType):
        named = f'; pass a name as @activity.defn(name="{fn}")' if isinstance(fn, str) else ""
        raise DefinitionError(
            f"@activity.defn must decorate a function or a method, not {type(fn).__name__} {fn!r:.80}{named}"
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise DefinitionError(f"activity {fn.__qualname__} is a generator: an activity returns its result")


def _is_in_class(fn: Callable[..., Any]) -> bool:
    """Return whether the function was defined in a class body."""
    outer = fn.__qualname__.rpartition(".")[0]
    return bool(outer) and not outer.endswith("<locals>")
