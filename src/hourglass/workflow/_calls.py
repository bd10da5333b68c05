"""What a workflow asks for: activities by name, child workflows, signals to and cancels of others, its own next run.

The usual way to call an activity is to call the activity itself; here are calls by name, and options for one call.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, NoReturn, TypedDict, TypeVar, TypeVarTuple, Unpack, cast, overload

from hourglass._engine.commands import ContinueAsNew, SignalExternalWorkflow, StartChildWorkflow
from hourglass._engine.context import LiveRun
from hourglass._engine.fibers import Task, require_fiber
from hourglass._engine.interception import (
    ContinueAsNewInput,
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    StartChildWorkflowInput,
)
from hourglass._engine.messages import ContinueAsNewError
from hourglass._engine.operations import (
    ChildOperation,
    Encode,
    cancel_external,
    signal_external,
    start_child,
    start_intercepted,
)
from hourglass._engine.operations import start_activity as _start_activity
from hourglass._engine.operations import start_step as _start_step
from hourglass._engine.options import (
    Duration,
    RetryPolicy,
    check_text,
    choice,
    fairness_key,
    fairness_weight,
    named_values,
    optional_seconds,
    priority,
    retry_rule,
)
from hourglass._engine.specs import (
    ChildCancellationType,
    ChildWorkflowSpec,
    IdReusePolicy,
    ParentClosePolicy,
    StartSpec,
)
from hourglass._engine.versions import ContinueAsNewVersioningBehavior
from hourglass.activity import Activity, ActivityOptions
from hourglass.activity._definition import step_definition
from hourglass.activity._options import FOREIGN_DEFAULTS, settings_with
from hourglass.converter import Converter, Payload, SearchAttributes, Signature, encode_search_attributes
from hourglass.errors import UsageError
from hourglass.workflow._facts import default_id
from hourglass.workflow._references import Channel, Given, given_message, given_workflow

# --- activities -----------------------------------------------------------------------------------


R = TypeVar("R")
Ts = TypeVarTuple("Ts")


@overload
def execute_activity(
    activity: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ActivityOptions]
) -> Any: ...
@overload
def execute_activity(
    activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ActivityOptions]
) -> R: ...
def execute_activity(activity: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
    """Run an activity and wait for its result: `execute_activity("charge", order, start_to_close_timeout=30)`.

    An activity of another program, or another language, is given by its name; its result is then decoded as `result_type`.
    """
    return _begin_activity(activity, args, options, local=False).result()


@overload
def start_activity(
    activity: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ActivityOptions]
) -> Task[Any]: ...
@overload
def start_activity(
    activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ActivityOptions]
) -> Task[R]: ...
def start_activity(activity: Any, /, *args: Any, **options: Any) -> Task[Any]:  # type: ignore[misc]
    """Begin an activity without waiting for it."""
    return _begin_activity(activity, args, options, local=False)


@overload
def execute_local_activity(
    activity: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ActivityOptions]
) -> Any: ...
@overload
def execute_local_activity(
    activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ActivityOptions]
) -> R: ...
def execute_local_activity(activity: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
    """Run a short activity on this very worker, within the workflow task, and wait for its result."""
    return _begin_activity(activity, args, options, local=True).result()


@overload
def start_local_activity(
    activity: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ActivityOptions]
) -> Task[Any]: ...
@overload
def start_local_activity(
    activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ActivityOptions]
) -> Task[R]: ...
def start_local_activity(activity: Any, /, *args: Any, **options: Any) -> Task[Any]:  # type: ignore[misc]
    """Begin a short activity on this very worker without waiting for it."""
    return _begin_activity(activity, args, options, local=True)


def _begin_activity(
    activity: Any, args: tuple[Any, ...], options: dict[str, Any], *, local: bool
) -> Task[Any]:
    if isinstance(activity, Activity):
        chosen = activity.options(**options) if options else activity
        return chosen.start_local(*args) if local else chosen.start(*args)
    if not isinstance(activity, str):
        raise UsageError(
            f"an activity is given by its name or as a function decorated with @activity.defn, not {activity!r}"
        )
    fiber = require_fiber(f"activity {activity}")
    result_type = options.pop("result_type", Any)
    settings = settings_with(FOREIGN_DEFAULTS, options, f"activity {activity}")
    run = fiber.run
    if run.outbound is not None:
        return start_intercepted(
            run.outbound, activity, list(args), settings, result_type, run.converter.encode_all, local=local
        )
    return _start_activity(activity, run.converter.encode_all(args), settings, result_type, local=local)


# --- steps ----------------------------------------------------------------------------------------


class StepOptions(TypedDict, total=False):
    """How a step is run. A duration is a `timedelta` or seconds."""

    start_to_close_timeout: Duration | None
    """The longest time for one attempt; ten minutes by default."""
    schedule_to_close_timeout: Duration | None
    """The longest time for all attempts together."""
    retry_policy: RetryPolicy | None
    """Whether and how it is tried again; Temporal's retries by default."""
    local_retry_threshold: Duration | None
    """From which pause between attempts on the workflow waits with a timer."""
    activity_id: str
    """Its id in the history; a number of its own by default."""
    summary: str
    """One line about it."""


@overload
def step(
    fn: Callable[[*Ts], Coroutine[Any, Any, R]],
    /,
    *args: *Ts,
    name: str | None = None,
    **options: Unpack[StepOptions],
) -> R: ...
@overload
def step(
    fn: Callable[[*Ts], R], /, *args: *Ts, name: str | None = None, **options: Unpack[StepOptions]
) -> R: ...
def step(fn: Any, /, *args: Any, name: str | None = None, **options: Any) -> Any:  # type: ignore[misc]
    """Run any function durably, without a declaration, and wait for its result: `workflow.step(fetch, url)`.

    It is called by the worker that runs this workflow, as a local activity: once the workflow task has ended, what it returned
    is recorded, and it is not called again; an attempt that fails, or dies with its worker, is made again. So it is
    for short work that may be repeated. Its name in the
    history is the function's, or `name`, which a lambda needs; a step that gets another name does not fit the
    histories of runs that have passed it. Arguments and result travel as those of activities do. What the function changes in
    the workflow's own variables does not count: it may be called in another thread, again, or not at all.
    """
    return _begin_step(fn, args, name, options).result()


@overload
def start_step(
    fn: Callable[[*Ts], Coroutine[Any, Any, R]],
    /,
    *args: *Ts,
    name: str | None = None,
    **options: Unpack[StepOptions],
) -> Task[R]: ...
@overload
def start_step(
    fn: Callable[[*Ts], R], /, *args: *Ts, name: str | None = None, **options: Unpack[StepOptions]
) -> Task[R]: ...
def start_step(  # type: ignore[misc]
    fn: Any, /, *args: Any, name: str | None = None, **options: Any
) -> Task[Any]:
    """Begin a step without waiting for it."""
    return _begin_step(fn, args, name, options)


def _begin_step(fn: Any, args: tuple[Any, ...], name: str | None, options: dict[str, Any]) -> Task[Any]:
    run = require_fiber("workflow.step").run
    if isinstance(fn, Activity):
        check_step(options, fn, name)
        return _begin_activity(fn, args, options, local=True)
    task: Task[Any] = begin_step(run, fn, args, name, options, _start_step)
    return task


def begin_step(
    run: LiveRun,
    fn: Any,
    args: tuple[Any, ...],
    name: str | None,
    options: dict[str, Any],
    start: Callable[..., Any],
) -> Any:
    """Begin a step; `start` takes its definition, and what starts an activity takes."""
    check_step(options, fn, name)
    definition = step_definition(fn, name, options)
    signature, begin = definition.signature, functools.partial(start, definition)
    if run.outbound is not None:
        return start_intercepted(
            run.outbound,
            definition.name,
            signature.bind(args, {}),
            definition.settings,
            signature.return_type,
            functools.partial(signature.encode, run.converter),
            local=True,
            start=begin,
        )
    payloads = signature.encode(run.converter, args)
    return begin(definition.name, payloads, definition.settings, signature.return_type)


def check_step(options: Mapping[str, Any], fn: Any, name: str | None) -> None:
    """Refuse what is no option of a step."""
    for option in options:
        if option not in StepOptions.__annotations__:
            raise UsageError(
                f"a step has no option {option!r} (there are: {', '.join(StepOptions.__annotations__)}); arguments of "
                "the function are given by position"
            )
    if isinstance(fn, Activity) and name is not None:
        raise UsageError(f"activity {fn.name} has a name already")


# --- other workflows: signal them, ask them to cancel ---------------------------------------------


T = TypeVar("T")


class ExternalWorkflowHandle:
    """A workflow that is not a child of this one. Made by `get_external_workflow_handle`."""

    def __init__(self, id: str, run_id: str | None) -> None:
        self.id = id
        self.run_id = run_id

    @overload
    def signal(self, signal: str, /, *args: Any) -> None: ...
    @overload
    def signal(self, signal: Channel[T], value: T, /) -> None: ...
    @overload
    def signal(self, signal: Callable[[*Ts], None], /, *args: *Ts) -> None: ...
    def signal(self, signal: Any, /, *args: Any) -> None:  # type: ignore[misc]
        """Send a signal and wait until it is delivered. Raises `ApplicationError` where there is no such workflow."""
        run = require_fiber("signalling another workflow").run
        given = given_message("signal", signal)

        def send(call: SignalExternalWorkflowInput) -> None:
            signal_external(
                SignalExternalWorkflow(
                    seq=0,
                    workflow_id=call.workflow_id,
                    run_id=call.workflow_run_id or "",
                    signal_name=call.signal,
                    arguments=given.encode(run.converter, call.args),
                    headers=call.headers,
                )
            )

        call = SignalExternalWorkflowInput(
            signal=given.name,
            workflow_id=self.id,
            workflow_run_id=self.run_id,
            args=list(args),
            _proceed=send,
        )
        send(call) if run.outbound is None else run.outbound.signal_external_workflow(call)

    def cancel(self, reason: str = "") -> None:
        """Ask the workflow to cancel and wait until the request is delivered, not until it has cancelled."""
        cancel_external(self.id, self.run_id or "", check_text(reason, "reason"))

    def __repr__(self) -> str:
        return f"<external workflow {self.id}>"


def get_external_workflow_handle(id: str, *, run_id: str | None = None) -> ExternalWorkflowHandle:
    """A handle to another workflow, or with `run_id` to that run alone. Does not ask whether it exists."""
    require_fiber("workflow.get_external_workflow_handle")
    if not isinstance(id, str) or not id:
        raise UsageError("the id of a workflow must be a text that is not empty")
    check_text(id, "the id of a workflow")
    check_text(run_id or "", "run_id")
    return ExternalWorkflowHandle(id, run_id)


# --- the next run ---------------------------------------------------------------------------------


_AS_BEFORE = ContinueAsNewVersioningBehavior.UNSPECIFIED


class ContinueOptions(TypedDict, total=False):
    """What may be said of the next run; what is not said stays as it is."""

    task_queue: str
    run_timeout: Duration | None
    task_timeout: Duration | None
    retry_policy: RetryPolicy | None
    memo: Mapping[str, Any] | None
    search_attributes: SearchAttributes | None
    initial_versioning_behavior: ContinueAsNewVersioningBehavior
    backoff_start_interval: Duration | None
    """How long the next run waits before it begins: it is there at once, and takes signals meanwhile."""


@overload
def continue_as_new(
    *args: Any, workflow: str | type | None = None, **options: Unpack[ContinueOptions]
) -> NoReturn: ...
@overload
def continue_as_new(
    *args: *Ts, workflow: Callable[[*Ts], Any], **options: Unpack[ContinueOptions]
) -> NoReturn: ...
def continue_as_new(  # type: ignore[misc]
    *args: Any,
    workflow: object = None,
    task_queue: str = "",
    run_timeout: Duration | None = None,
    task_timeout: Duration | None = None,
    retry_policy: RetryPolicy | None = None,
    memo: Mapping[str, Any] | None = None,
    search_attributes: SearchAttributes | None = None,
    initial_versioning_behavior: ContinueAsNewVersioningBehavior = _AS_BEFORE,
    backoff_start_interval: Duration | None = None,
) -> NoReturn:
    """End this run and begin a new one with these arguments and an empty history.

    It raises `ContinueAsNewError`, which ends the body, or the handler, and with it the run.

    It is of the same workflow unless another is given, as its decorated object or its name; the arguments are checked
    against its signature before this run ends. What is not given stays as it is. A run that is pinned to a version of the
    worker stays with it, unless `initial_versioning_behavior` is `AUTO_UPGRADE`.
    """
    live = require_fiber("workflow.continue_as_new").run
    if workflow is None:
        signature = None if live.definition.dynamic else live.definition.signature
        given = Given("the workflow", live.state.workflow_type, signature)
    else:
        given = given_workflow(workflow)
    call = ContinueAsNewInput(
        workflow=given.name,
        args=list(args),
        options={
            "task_queue": task_queue,
            "run_timeout": run_timeout,
            "task_timeout": task_timeout,
            "retry_policy": retry_policy,
            "memo": memo,
            "search_attributes": search_attributes,
            "initial_versioning_behavior": initial_versioning_behavior,
            "backoff_start_interval": backoff_start_interval,
        },
        _proceed=functools.partial(_continue, live.converter, given),
    )
    if live.outbound is None:
        _continue(live.converter, given, call)
    live.outbound.continue_as_new(call)
    raise UsageError(
        "an interceptor of continue_as_new returned: it must call the next one, which ends the run"
    )


def _continue(converter: Converter, given: Given, call: ContinueAsNewInput) -> NoReturn:
    options = call.options
    memo = named_values(options["memo"] or {}, "memo")
    raise ContinueAsNewError(
        ContinueAsNew(
            workflow_type=call.workflow,
            arguments=given.encode(converter, call.args),
            headers=call.headers,
            spec=StartSpec(
                task_queue=check_text(options["task_queue"], "task_queue"),
                run_timeout=optional_seconds(options["run_timeout"], "run_timeout") or 0.0,
                task_timeout=optional_seconds(options["task_timeout"], "task_timeout") or 0.0,
                retry_policy=retry_rule(options["retry_policy"]),
                memo={key: converter.encode(value) for key, value in memo.items()},
                search_attributes=encode_search_attributes(options["search_attributes"] or {}),
            ),
            versioning=ContinueAsNewVersioningBehavior(options["initial_versioning_behavior"]),
            backoff=optional_seconds(options["backoff_start_interval"], "backoff_start_interval") or 0.0,
        )
    )


# --- children -------------------------------------------------------------------------------------


class ChildOptions(TypedDict, total=False):
    """How a child workflow is started. All are optional. A duration is a `timedelta` or seconds."""

    id: str
    """The child's workflow id; a fresh one, the same on every execution, by default."""
    task_queue: str
    """The queue whose workers run it; the parent's by default."""
    execution_timeout: Duration | None
    """The longest time for all its runs together."""
    run_timeout: Duration | None
    """The longest time for one run."""
    task_timeout: Duration | None
    """How long a worker may take for one workflow task."""
    parent_close_policy: ParentClosePolicy
    """What happens to the child when its parent closes: by default it is terminated."""
    cancellation_type: ChildCancellationType
    """What a parent that cancels the child waits for: by default until the child has ended."""
    id_reuse_policy: IdReusePolicy
    """Whether the id of a closed workflow may be used again."""
    retry_policy: RetryPolicy | None
    """Whether and how a child that failed is run again."""
    cron_schedule: str
    """Run it again and again, at these times."""
    memo: Mapping[str, Any]
    """Notes that are kept with the child; not searchable."""
    search_attributes: SearchAttributes
    """Values by which it can be found; never encrypted."""
    static_summary: str
    """One line about it, for Temporal's UI."""
    static_details: str
    """More lines."""
    priority_key: int
    """Its priority on the queue: lower is sooner, 0 is the default."""
    fairness_key: str
    """Whose share of the queue it is counted to; the parent's by default."""
    fairness_weight: float
    """How large that share is beside the others': 1 is the usual one."""


_KNOWN = tuple(ChildOptions.__annotations__)
_CHOICES: dict[str, Any] = {
    "parent_close_policy": ParentClosePolicy,
    "id_reuse_policy": IdReusePolicy,
    "cancellation_type": ChildCancellationType,
}
"""The fields of a `ChildWorkflowSpec`, and what each is one of."""


class ChildWorkflowHandle(ChildOperation[R], Generic[R]):
    """A child workflow that has started: a task whose result is the child's, and which can be signalled."""

    __slots__ = ()

    @property
    def first_execution_run_id(self) -> str:
        """The run id with which the child started."""
        return self.first_run_id

    @overload
    def signal(self, signal: str, /, *args: Any) -> None: ...
    @overload
    def signal(self, signal: Channel[T], value: T, /) -> None: ...
    @overload
    def signal(self, signal: Callable[[*Ts], None], /, *args: *Ts) -> None: ...
    def signal(self, signal: Any, /, *args: Any) -> None:  # type: ignore[misc]
        """Send the child a signal and wait until it is delivered."""
        run, given = self.run, given_message("signal", signal)

        def send(call: SignalChildWorkflowInput) -> None:
            signal_external(
                SignalExternalWorkflow(
                    seq=0,
                    workflow_id=call.child_workflow_id,
                    signal_name=call.signal,
                    is_child=True,
                    arguments=given.encode(run.converter, call.args),
                    headers=call.headers,
                )
            )

        call = SignalChildWorkflowInput(
            signal=given.name, child_workflow_id=self.id, args=list(args), _proceed=send
        )
        send(call) if run.outbound is None else run.outbound.signal_child_workflow(call)

    def __repr__(self) -> str:
        return f"<child workflow {self.command.workflow_type} {self.id}>"


@overload
def start_child_workflow(
    workflow: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ChildOptions]
) -> ChildWorkflowHandle[Any]: ...
@overload
def start_child_workflow(
    workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ChildOptions]
) -> ChildWorkflowHandle[R]: ...
def start_child_workflow(workflow: Any, /, *args: Any, result_type: Any = None, **options: Any) -> Any:  # type: ignore[misc]
    """Start a child workflow, given as its decorated object or its name, and wait until it has started.

    Raises `WorkflowAlreadyStartedError` where its id is taken. `result_type` is for workflows given by name.
    """
    run = require_fiber("starting a child workflow").run
    given = given_workflow(workflow)
    return_type = given.return_type if result_type is None else result_type
    encode = functools.partial(given.encode, run.converter)
    return _begin(run, given.name, list(args), encode, return_type, options)


@overload
def execute_child_workflow(
    workflow: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ChildOptions]
) -> Any: ...
@overload
def execute_child_workflow(
    workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ChildOptions]
) -> R: ...
def execute_child_workflow(workflow: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
    """Run a child workflow and wait for its result. Raises `ChildWorkflowError` if it did not complete."""
    return start_child_workflow(workflow, *args, **options).result()


def start_defined(
    run: LiveRun,
    name: str,
    signature: Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> ChildWorkflowHandle[Any]:
    """Start a decorated workflow as a child, its arguments bound by its signature."""
    encode = functools.partial(signature.encode, run.converter)
    return _begin(run, name, signature.bind(args, kwargs), encode, signature.return_type, options)


def check_options(options: Mapping[str, Any], where: str) -> None:
    """Refuse what is no option of a child."""
    for name in options:
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(_KNOWN)}"
            raise UsageError(f"{where} as a child has no option {name!r}{hint}")


def _begin(
    run: LiveRun, name: str, args: list[Any], encode: Encode, return_type: Any, options: Mapping[str, Any]
) -> ChildWorkflowHandle[Any]:
    if run.outbound is None:
        return _start(run, name, encode(args), return_type, options)
    check_options(options, f"workflow {name}")
    handle: ChildWorkflowHandle[Any] = run.outbound.start_child_workflow(
        StartChildWorkflowInput(
            workflow=name,
            args=args,
            options=dict(options),
            _proceed=lambda call: _start(
                run, call.workflow, encode(call.args), return_type, call.options, call.headers
            ),
        )
    )
    return handle


def _start(
    run: LiveRun,
    workflow_type: str,
    arguments: tuple[Payload, ...],
    return_type: Any,
    options: Mapping[str, Any],
    headers: dict[str, Payload] | None = None,
) -> ChildWorkflowHandle[Any]:
    command = child_command(run, workflow_type, arguments, options, headers)
    return cast(ChildWorkflowHandle[Any], start_child(command, return_type, ChildWorkflowHandle))


def child_command(
    run: LiveRun,
    workflow_type: str,
    arguments: tuple[Payload, ...],
    options: Mapping[str, Any],
    headers: dict[str, Payload] | None = None,
) -> StartChildWorkflow:
    """What asks for a child, without its number; the options are checked here."""
    check_options(options, f"workflow {workflow_type}")
    converter = run.converter
    memo = named_values(options.get("memo", {}), "memo")
    spec = StartSpec(
        task_queue=check_text(options.get("task_queue", ""), "task_queue"),
        execution_timeout=optional_seconds(options.get("execution_timeout"), "execution_timeout") or 0.0,
        run_timeout=optional_seconds(options.get("run_timeout"), "run_timeout") or 0.0,
        task_timeout=optional_seconds(options.get("task_timeout"), "task_timeout") or 0.0,
        retry_policy=retry_rule(options.get("retry_policy")),
        cron_schedule=check_text(options.get("cron_schedule", ""), "cron_schedule"),
        memo={key: converter.encode(value) for key, value in memo.items()},
        search_attributes=encode_search_attributes(options.get("search_attributes", {})),
        priority_key=priority(options.get("priority_key", 0)),
        fairness_key=fairness_key(options.get("fairness_key", "")),
        fairness_weight=fairness_weight(options.get("fairness_weight", 0.0)),
        static_summary=_note(run, options.get("static_summary")),
        static_details=_note(run, options.get("static_details")),
    )
    said = {name: choice(kind, options[name], name) for name, kind in _CHOICES.items() if name in options}
    return StartChildWorkflow(
        seq=0,
        workflow_id=_id(options),
        workflow_type=workflow_type,
        arguments=arguments,
        headers=headers or {},
        spec=spec,
        child=ChildWorkflowSpec(**said),
    )


def _note(run: LiveRun, text: str | None) -> Payload | None:
    return None if text is None else run.converter.encode(check_text(text, "a note"))


def _id(options: Mapping[str, Any]) -> str:
    if "id" not in options:
        return default_id()
    name = options["id"]
    if not isinstance(name, str) or not name.strip():
        raise UsageError("the id of a child workflow must be a text that is not empty")
    return check_text(name, "the id of a child workflow")
