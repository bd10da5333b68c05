"""Every field of every spec is carried through both engines, from the author's keyword argument to the task or info.

Each test sets one field to a value other than its default and follows it: keyword, command, event, stored bytes, task and
info in the embedded engine; command, Core's message and Temporal's JSON for a server. Forms that do not carry a field are
listed in tables with the reasons. A field that is lost elsewhere, or has no example here, fails a test.
"""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from temporalio.bridge.proto.activity_task import ActivityTask as TaskMessage
from temporalio.bridge.proto.workflow_activation import WorkflowActivation

from hourglass import RetryPolicy, activity, workflow
from hourglass._contract.schedules import EngineSchedule
from hourglass._contract.workflows import StartWorkflow
from hourglass._embedded.activations.command_matching import COMMAND_OF
from hourglass._embedded.activations.cursor import run_started
from hourglass._embedded.matching.activity_dispatch import activity_task
from hourglass._embedded.runs.starting import _first_event
from hourglass._embedded.schedules.transitions import ScheduleRecord
from hourglass._embedded.store.sqlite.records import decode_events, decode_schedule, encode_schedule
from hourglass._embedded.transitions.children import first_event
from hourglass._embedded.transitions.run import Change
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._embedded.transitions.tasks import (
    _APPLY,
    _APPLY_TO,
    Sent,
    TaskCompletion,
    complete_task,
    start_task,
)
from hourglass._embedded.transitions.transitions import open_run
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.definition import workflow_definition
from hourglass._evaluator.evaluator import Evaluator
from hourglass._evaluator.options import START_CHECKS
from hourglass._evaluator.specs import SPECS, WORKER_ONLY_FIELDS, ActivitySpec, ChildWorkflowSpec, StartSpec
from hourglass._history import events as h
from hourglass._history.codec import event_json
from hourglass._history.encoding import encode_events
from hourglass._temporal import calls, calls_schedules
from hourglass._temporal.activations import CommandDefaults, activation_from_proto, completion_to_proto
from hourglass._temporal.handle import activity_item_from_proto
from hourglass._temporal.specs import STARTED, TASK
from hourglass._worker.activities.attempts import info_of
from hourglass.activity import ActivityOptions, Info
from hourglass.activity._options import KeptOptions
from hourglass.client import AutoUpgradeVersioningOverride, IdReusePolicy, StartOptions, _standalone
from hourglass.client._options import start_request
from hourglass.converter import default_converter, encode_search_attributes
from hourglass.workflow import (
    ActivityCancellationType,
    ChildCancellationType,
    ChildOptions,
    ParentClosePolicy,
)
from hourglass.workflow._references import resolve_workflow

from . import source

NOW = 1_700_000_000 * 10**9
OWN = CommandDefaults("own", "ns", versioned=True)
RETRY = RetryPolicy(initial_interval=2.0, maximum_attempts=3, maximum_interval=9.0)
TEXT = default_converter.encode("x")

# --- an example of each keyword, and its value in the spec ------------------------------------------------------------

ACTIVITY: dict[str, tuple[Any, Any]] = {
    "task_queue": ("other", "other"),
    "schedule_to_close_timeout": (900.0, 900.0),
    "schedule_to_start_timeout": (41.0, 41.0),
    "start_to_close_timeout": (42.0, 42.0),
    "heartbeat_timeout": (17.0, 17.0),
    "retry_policy": (RETRY, RETRY.rule()),
    "cancellation_type": (ActivityCancellationType.ABANDON, ActivityCancellationType.ABANDON),
    "priority_key": (3, 3),
    "fairness_key": ("acme", "acme"),
    "fairness_weight": (2.5, 2.5),
    "disable_eager_execution": (True, True),
    "local_retry_threshold": (5.0, 5.0),
}
START: dict[str, tuple[Any, Any]] = {
    "task_queue": ("other", "other"),
    "execution_timeout": (900.0, 900.0),
    "run_timeout": (800.0, 800.0),
    "task_timeout": (7.0, 7.0),
    "retry_policy": (RETRY, RETRY.rule()),
    "cron_schedule": ("5 4 * * *", "5 4 * * *"),
    "memo": ({"k": "x"}, {"k": TEXT}),
    "search_attributes": ({"Region": "eu"}, encode_search_attributes({"Region": "eu"})),
    "priority_key": (3, 3),
    "fairness_key": ("acme", "acme"),
    "fairness_weight": (2.5, 2.5),
    "static_summary": ("x", TEXT),
    "static_details": ("x", TEXT),
}
CHILD: dict[str, tuple[Any, Any]] = {
    "parent_close_policy": (ParentClosePolicy.ABANDON, ParentClosePolicy.ABANDON),
    "id_reuse_policy": (IdReusePolicy.REJECT_DUPLICATE, IdReusePolicy.REJECT_DUPLICATE),
    "cancellation_type": (ChildCancellationType.TRY_CANCEL, ChildCancellationType.TRY_CANCEL),
    "versioning_override": (AutoUpgradeVersioningOverride(), AutoUpgradeVersioningOverride()),
}

# --- fields that a form does not carry ----------------------------------------------------------------------------------

ONLY_FOR_THE_WORKER = "only the worker uses it; it is not recorded in histories"

ONLY_LOCAL = {
    "local_retry_threshold": "for local activities only: Core's command for remote ones has no such field"
}
ONLY_REMOTE = {
    "task_queue": "a local activity runs on the worker that schedules it",
    "heartbeat_timeout": "Core itself monitors local activities",
    **dict.fromkeys(
        ("priority_key", "fairness_key", "fairness_weight"), "a local activity is not in a task queue"
    ),
    "disable_eager_execution": "a local activity is always executed immediately",
}
NOT_IN_ACTIVITY_EVENTS = dict.fromkeys(WORKER_ONLY_FIELDS, ONLY_FOR_THE_WORKER)
NOT_IN_ACTIVITY_INFO = {
    "schedule_to_start_timeout": "has passed when the attempt begins",
    **NOT_IN_ACTIVITY_EVENTS,
}
NOT_IN_CORES_TASK = NOT_IN_ACTIVITY_INFO | {"task_queue": "the handle's own"}
INHERITED_BY_THE_NEXT_RUN = dict.fromkeys(
    (
        "execution_timeout",
        "cron_schedule",
        "priority_key",
        "fairness_key",
        "fairness_weight",
        "static_summary",
        "static_details",
    ),
    "the next run inherits it from the first run",
)
NOT_IN_CONTINUED_EVENTS = INHERITED_BY_THE_NEXT_RUN | {"retry_policy": "Temporal's event has no such field"}
NOT_IN_CORES_START = {
    "task_queue": "the worker's own task queue: Core's job has no such field",
    "static_summary": "kept by the server: Core's job has no such field",
    "static_details": "kept by the server: Core's job has no such field",
}
NOT_IN_SCHEDULES = {"cron_schedule": "a schedule has its own times; a server rejects both"}
NOT_IN_CHILD_EVENTS = {"cancellation_type": ONLY_FOR_THE_WORKER}
CLIENT_OPTIONS = {
    "id", "start_delay", "id_reuse_policy", "id_conflict_policy", "start_signal", "start_signal_args",
    "request_id", "request_eager_start", "versioning_override", "rpc_metadata", "callbacks", "time_skipping",
    "rpc_timeout",
}  # fmt: skip


# --- helpers ------------------------------------------------------------------------------------------------------------


@activity.defn(start_to_close_timeout=600)
def example_activity() -> None: ...


@workflow.defn
def call_by_name(call: str) -> None:
    """Issues the command of this name."""
    CALLS[call]()


@workflow.defn
def other_workflow() -> None: ...


OPTIONS: dict[str, Any] = {}
CALLS: dict[str, Any] = {
    "activity": lambda: example_activity.options(**OPTIONS).start(),
    "local": lambda: example_activity.options(**OPTIONS).start_local(),
    "child": lambda: workflow.start_child_workflow("other", id="c", **OPTIONS),
    "next": lambda: workflow.continue_as_new("x", **OPTIONS),
}


def issued_command(call: str, **options: Any) -> Any:
    """Return the command that a workflow issues with these options."""
    OPTIONS.clear()
    OPTIONS.update(options)
    definition = workflow_definition(call_by_name)
    assert definition is not None
    evaluator = Evaluator(definition, "r", RunSettings())
    start = e.RunStarted(
        workflow_type="call_by_name", workflow_id="w", arguments=(default_converter.encode(call),)
    )
    completion = evaluator.activate(e.Activation(run_id="r", events=(start,), timestamp_ns=NOW))
    assert isinstance(completion, c.Succeeded), evaluator.error
    command, *_ = completion.commands
    return command


def change_of(command: c.Command) -> Change:
    """Return the change that the embedded engine makes for a command."""
    started = h.WorkflowExecutionStarted(
        workflow_id="w",
        workflow_type="call_by_name",
        original_run_id="r",
        first_run_id="r",
        spec=StartSpec(task_queue="own", task_timeout=10.0),
    )
    run = open_run("r", started, NOW).run
    run = start_task(run, "me", Limits(), None, NOW).run
    return complete_task(run, TaskCompletion(commands=(Sent(command),)), "next", Limits(), None, NOW)


def event_of(command: c.Command, kind: type[Any]) -> h.HistoryEvent:
    """Return the event of a command, checked to survive storage."""
    (event,) = [item for item in change_of(command).events if type(item.attributes) is kind]
    (stored,) = decode_events(b"\x91" + encode_events([event]))
    assert stored == event
    return event


def to_core(command: c.Command) -> bytes:
    """Return Core's message with this command."""
    return completion_to_proto(c.Succeeded("r", (command,)), OWN)


def temporal_json(event: h.HistoryEvent) -> bytes:
    """Return an event as Temporal's JSON."""
    return event_json(event)


def cases(table: dict[str, tuple[Any, Any]]) -> Any:
    """Parametrize a test with one case per field."""
    return pytest.mark.parametrize(
        ("field", "option", "expected"), [(k, *v) for k, v in table.items()], ids=list(table)
    )


def check_carried(field: str, is_carried: bool, absent: str, place: str) -> None:
    """Check that a form carries a field if and only if the table named `absent` has no reason against it."""
    reason = globals()[absent].get(field)
    assert is_carried or reason, (
        f"{field} is lost on the way to {place}: carry it, or add the reason to {absent} of this file"
    )
    assert not is_carried or reason is None, (
        f"{field} is carried by {place}, but {absent} of this file says: {reason}"
    )


def test_every_spec_field_has_an_example() -> None:
    tables: dict[type[Any], dict[str, Any]] = {
        ActivitySpec: ACTIVITY,
        StartSpec: START,
        ChildWorkflowSpec: CHILD,
    }
    assert set(SPECS) == set(tables)
    for spec, table in tables.items():
        assert set(table) == set(spec.__struct_fields__), (
            f"add each field of {spec.__name__} to its table at the head of this file: the value of the keyword, and the "
            "value in the spec; the other tests follow it from there"
        )


def test_every_spec_field_is_a_keyword_argument() -> None:
    option: dict[type[Any], set[str]] = {
        ActivityOptions: set(ACTIVITY) | {"activity_id", "summary", "event_groups"},
        ChildOptions: set(START) | set(CHILD) | {"id", "event_groups"},
        StartOptions: set(START) | CLIENT_OPTIONS,
    }
    assert set(START_CHECKS) == set(START), "add a check for each field of StartSpec to _evaluator/options.py"
    for options, expected in option.items():
        assert set(options.__annotations__) == expected, (
            f"{options.__name__} in {options.__module__} must have a keyword for each field of the spec, and the options of "
            "a single call, which this test lists"
        )


def test_client_can_see_and_change_every_stored_activity_option() -> None:
    """Options that only a workflow can set have a reason."""
    kept = set(ActivitySpec.__struct_fields__) - WORKER_ONLY_FIELDS
    hint = "a field of ActivitySpec is in KeptOptions of activity/_options.py, or in WORKER_ONLY_FIELDS of _evaluator/specs.py"
    assert set(KeptOptions.__annotations__) == kept, hint
    shown = {option.name for option in fields(_standalone.ActivityExecutionOptions)}
    assert shown == kept, "add each stored option to ActivityExecutionOptions in client/_standalone.py"
    refused = set(ActivityOptions.__annotations__) - kept
    assert set(_standalone._UNSUPPORTED) == refused, (
        "add each option that a client cannot set, with the reason, to _UNSUPPORTED in client/_standalone.py"
    )


# --- activities ---------------------------------------------------------------------------------------------------------


@cases(ACTIVITY)
def test_activity_options_reach_command_event_task_info_and_core(
    field: str, option: Any, expected: Any
) -> None:
    command, usual = issued_command("activity", **{field: option}), issued_command("activity")
    assert getattr(command.spec, field) == expected
    check_carried(
        field,
        to_core(command) != to_core(usual),
        "ONLY_LOCAL",
        "Core's command: REMOTE in _temporal/specs.py",
    )
    event = event_of(command, h.ActivityTaskScheduled)
    assert getattr(event.attributes.spec, field) == expected  # type: ignore[attr-defined]
    is_recorded = temporal_json(event) != temporal_json(event_of(usual, h.ActivityTaskScheduled))
    check_carried(field, is_recorded, "NOT_IN_ACTIVITY_EVENTS", "Temporal's JSON: _history/tables.py")
    run = change_of(command).run
    (pending,) = run.activities.values()
    task = activity_task("ns", run, pending, b"t")
    assert getattr(task.spec, field) == expected
    if field not in NOT_IN_ACTIVITY_INFO:
        assert field in Info.__dataclass_fields__, (
            f"an activity cannot see its {field}: add it to Info (activity/_context.py), or the reason to "
            "NOT_IN_ACTIVITY_INFO of this file"
        )
        shown = getattr(info_of(task, default_converter), field)
        assert shown != getattr(info_of(_usual_task(), default_converter), field)


def _usual_task() -> Any:
    run = change_of(issued_command("activity")).run
    (pending,) = run.activities.values()
    return activity_task("ns", run, pending, b"t")


@cases(ACTIVITY)
def test_local_activity_options_reach_command_and_core(field: str, option: Any, expected: Any) -> None:
    command = issued_command("local", **{field: option})
    assert getattr(command.spec, field) == expected
    is_recorded = to_core(command) != to_core(issued_command("local"))
    check_carried(field, is_recorded, "ONLY_REMOTE", "Core's command: LOCAL in _temporal/specs.py")


@cases({name: value for name, value in ACTIVITY.items() if name not in NOT_IN_CORES_TASK})
def test_activity_task_of_core_is_translated_completely(field: str, option: Any, expected: Any) -> None:
    assert field in TASK.carried, (
        f"a worker does not receive {field}: add it to TASK in _temporal/specs.py, or its reason to NOT_IN_CORES_TASK"
    )
    message: Any = TaskMessage(task_token=b"t")
    start = message.start
    start.activity_type = "act"
    if field == "retry_policy":
        start.retry_policy.maximum_attempts = 3
    elif field in ("priority_key", "fairness_key", "fairness_weight"):
        setattr(start.priority, field, expected)
    else:
        getattr(start, field).seconds = int(expected)
    task: Any = activity_item_from_proto(message.SerializeToString(), "own")
    found = getattr(task.spec, field)
    assert (found.maximum_attempts == 3) if field == "retry_policy" else found == expected


# --- starts -------------------------------------------------------------------------------------------------------------


def _request(**options: Any) -> StartWorkflow:
    return start_request(
        resolve_workflow(other_workflow),
        (),
        {"id": "w", "request_id": "i", **options},
        default_converter,
        "me",
    )


def _message(request: StartWorkflow) -> bytes:
    data: bytes = calls.start(request, calls.CallScope("ns", "me")).message.SerializeToString()
    return data


@cases(START)
def test_client_start_options_reach_request_event_worker_and_server(
    field: str, option: Any, expected: Any
) -> None:
    request, usual = _request(**{field: option}), _request()
    assert getattr(request.spec, field) == expected
    assert _message(request) != _message(usual)
    signalled = _request(**{field: option}, start_signal="s"), _request(start_signal="s")
    assert _message(signalled[0]) != _message(signalled[1])
    runs: Any = SimpleNamespace(clock=SimpleNamespace(now_ns=lambda: NOW))
    first, before = (_first_event(runs, start, "r", ((), None)) for start in (request, usual))
    assert getattr(first.spec, field) == expected
    event = h.HistoryEvent(1, NOW, first)
    assert decode_events(b"\x91" + encode_events([event])) == [event]
    assert event_json(event) != event_json(h.HistoryEvent(1, NOW, before))
    assert getattr(run_started(first, NOW).spec, field) == expected


@cases(START)
def test_start_options_of_a_schedule_survive_storage_in_both_engines(
    field: str, option: Any, expected: Any
) -> None:
    action = msgspec.structs.replace(_request(**{field: option}), identity="", request_id="")
    record = ScheduleRecord(
        schedule_id="s", schedule=EngineSchedule(action=action), seen_ns=NOW, create_time_ns=NOW
    )
    assert decode_schedule(encode_schedule(record)) == record
    message: Any = calls_schedules.NewWorkflowExecutionInfo()
    calls_schedules._put_action(message, action, b"")
    stored = calls_schedules._action_from(message)
    same = getattr(stored.spec, field) == expected
    check_carried(field, same, "NOT_IN_SCHEDULES", "a schedule on a server: SCHEDULED in _temporal/specs.py")


@cases({name: value for name, value in START.items() if name not in NOT_IN_CORES_START})
def test_start_job_of_core_is_translated_completely(field: str, option: Any, expected: Any) -> None:
    assert field in STARTED.carried, (
        f"a worker does not receive {field}: add it to STARTED in _temporal/specs.py, or its reason to NOT_IN_CORES_START"
    )
    message: Any = WorkflowActivation(run_id="r")
    job = message.jobs.add().initialize_workflow
    paths = {
        "execution_timeout": "workflow_execution_timeout",
        "run_timeout": "workflow_run_timeout",
        "task_timeout": "workflow_task_timeout",
    }
    if field in paths:
        getattr(job, paths[field]).seconds = int(expected)
    elif field == "retry_policy":
        job.retry_policy.maximum_attempts = 3
    elif field == "cron_schedule":
        job.cron_schedule = expected
    elif field in ("priority_key", "fairness_key", "fairness_weight"):
        setattr(job.priority, field, expected)
    elif field == "memo":
        job.memo.fields["k"].data = b"1"
    else:
        job.search_attributes.indexed_fields["k"].data = b"1"
    (started,) = activation_from_proto(message.SerializeToString()).events
    assert isinstance(started, e.RunStarted)
    assert getattr(started.spec, field) != getattr(StartSpec(), field)


@cases(START | CHILD)
def test_child_options_reach_command_event_child_and_core(field: str, option: Any, expected: Any) -> None:
    command, usual = issued_command("child", **{field: option}), issued_command("child")
    assert to_core(command) != to_core(usual)
    kind = h.StartChildWorkflowExecutionInitiated
    event = event_of(msgspec.structs.replace(command, namespace="ns"), kind)
    usual_event = event_of(msgspec.structs.replace(usual, namespace="ns"), kind)
    is_recorded = event_json(event) != event_json(usual_event)
    check_carried(field, is_recorded, "NOT_IN_CHILD_EVENTS", "Temporal's JSON: _history/tables.py")
    if field in CHILD:
        assert getattr(command.child, field) == getattr(event.attributes.child, field) == expected  # type: ignore[attr-defined]
        return
    assert getattr(command.spec, field) == getattr(event.attributes.spec, field) == expected  # type: ignore[attr-defined]
    run = change_of(command).run
    (child,) = run.children.values()
    assert getattr(first_event(run, child, "r2", NOW).spec, field) == expected


@cases({name: value for name, value in START.items() if name not in INHERITED_BY_THE_NEXT_RUN})
def test_continue_as_new_options_reach_command_event_next_run_and_core(
    field: str, option: Any, expected: Any
) -> None:
    command, usual = issued_command("next", **{field: option}), issued_command("next")
    assert getattr(command.spec, field) == expected
    assert to_core(command) != to_core(usual)
    kind = h.WorkflowExecutionContinuedAsNew
    event = event_of(command, kind)
    is_recorded = event_json(event) != event_json(event_of(usual, kind))
    check_carried(field, is_recorded, "NOT_IN_CONTINUED_EVENTS", "Temporal's JSON: _history/tables.py")
    follower = change_of(command).follower
    assert follower is not None
    assert getattr(follower.spec, field) == getattr(event.attributes.spec, field) == expected  # type: ignore[attr-defined]


# --- kinds ----------------------------------------------------------------------------------------------------------------

WITHOUT_EVENTS: dict[type[c.Command], str] = {
    c.ScheduleLocalActivity: "_embedded/activations/local_activities.py",  # recorded by a marker when it ends
    c.RequestCancelLocalActivity: "_embedded/activations/outcomes.py",
    c.CancelChildWorkflow: "_embedded/activations/child_outcomes.py",  # requests cancellation or not, by its policy
    c.CancelSignalExternal: "_embedded/activations/outcomes.py",  # a signal is sent with its task and cannot be cancelled
    c.AnswerQuery: "_embedded/activations/task_flow.py",  # leaves no trace
}
"""Commands without an event in the embedded engine, and the file that executes each."""
WITHOUT_TRANSITION: dict[type[c.Command], str] = dict.fromkeys(
    (c.ScheduleNexusOperation, c.CancelNexusOperation), "_embedded/activations/nexus_outcomes.py"
)
"""Commands with an event that only a server writes, and the file that executes each in the embedded engine."""


def test_embedded_engine_handles_every_command() -> None:
    with_event: set[type[c.Command]] = set()
    for kinds in COMMAND_OF.values():
        with_event.update(kinds if isinstance(kinds, tuple) else (kinds,))
    unknown = set(c.COMMANDS) - with_event - set(WITHOUT_EVENTS)
    assert not unknown, (
        f"{', '.join(kind.__name__ for kind in unknown)}: add its event to _DESCRIPTIONS of _history/words.py and a row to "
        "_APPLY of _embedded/transitions/tasks.py; if it has no event, add it to WITHOUT_EVENTS of this file"
    )
    assert not with_event & set(WITHOUT_EVENTS)
    idle = with_event - {*_APPLY, *_APPLY_TO, *c.TERMINAL} - set(WITHOUT_TRANSITION)
    assert not idle, (
        f"{', '.join(kind.__name__ for kind in idle)}: add its effect in the embedded engine to _APPLY or _APPLY_TO of "
        "_embedded/transitions/tasks.py"
    )
    for kind, place in (WITHOUT_EVENTS | WITHOUT_TRANSITION).items():
        assert kind.__name__ in source.names_in(source.module(place))
