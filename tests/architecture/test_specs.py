"""Every field of every spec goes the whole way, over both engines: from an author's keyword to what code can ask for.

Each field is set alone, to something that is not its default, and followed: keyword, command, event, stored bytes, task and
info in the embedded engine; command, Core's message and Temporal's JSON on the other side. What one of them does not carry
stands in a table, with the reason; a field that is lost elsewhere fails here, and so does one that is added and forgotten.
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
from hourglass._evaluator.specs import SPECS, THE_WORKERS, ActivitySpec, ChildWorkflowSpec, StartSpec
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
from hourglass.workflow._references import given_workflow

from . import source

NOW = 1_700_000_000 * 10**9
OWN = CommandDefaults("own", "ns", versioned=True)
RETRY = RetryPolicy(initial_interval=2.0, maximum_attempts=3, maximum_interval=9.0)
TEXT = default_converter.encode("x")

# --- what each keyword is set to, and what becomes of it in the spec --------------------------------------------------

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

# --- what is not carried, and why ---------------------------------------------------------------------------------------

CARRIED_OUT_BY_THE_WORKER = "what the worker does with it; a history does not tell"
BY_ITS_NAME = "the info says under another name, or not at all, as temporalio's does"

ONLY_LOCAL = {
    "local_retry_threshold": "of local activities: Core's command for remote ones has no such field"
}
ONLY_REMOTE = {
    "task_queue": "a local activity runs on the worker that asks for it",
    "heartbeat_timeout": "Core sees itself whether a local activity lives",
    **dict.fromkeys(
        ("priority_key", "fairness_key", "fairness_weight"), "a local activity waits in no queue"
    ),
    "disable_eager_execution": "a local activity is always taken at once",
}
NOT_IN_ACTIVITY_EVENTS = dict.fromkeys(THE_WORKERS, CARRIED_OUT_BY_THE_WORKER)
NOT_IN_ACTIVITY_INFO = {
    "schedule_to_start_timeout": "over when the attempt begins",
    **NOT_IN_ACTIVITY_EVENTS,
}
NOT_IN_CORES_TASK = NOT_IN_ACTIVITY_INFO | {"task_queue": "the handle's own"}
NOT_SAID_OF_THE_NEXT_RUN = dict.fromkeys(
    (
        "execution_timeout",
        "cron_schedule",
        "priority_key",
        "fairness_key",
        "fairness_weight",
        "static_summary",
        "static_details",
    ),
    "the next run goes on with what the first was started with",
)
NOT_IN_CONTINUED_EVENTS = NOT_SAID_OF_THE_NEXT_RUN | {"retry_policy": "Temporal's event has no place for it"}
NOT_IN_CORES_START = {
    "task_queue": "the worker's own: Core does not tell",
    "static_summary": "a server's alone: Core does not tell",
    "static_details": "a server's alone: Core does not tell",
}
NOT_IN_SCHEDULES = {"cron_schedule": "a schedule has times of its own; a server refuses both"}
NOT_IN_CHILD_EVENTS = {"cancellation_type": CARRIED_OUT_BY_THE_WORKER}
CLIENTS_OWN = {
    "id", "start_delay", "id_reuse_policy", "id_conflict_policy", "start_signal", "start_signal_args",
    "request_id", "request_eager_start", "versioning_override", "rpc_metadata", "callbacks", "time_skipping",
    "rpc_timeout",
}  # fmt: skip


# --- the ways -----------------------------------------------------------------------------------------------------------


@activity.defn(start_to_close_timeout=600)
def act() -> None:
    """An activity."""


@workflow.defn
def asks(what: str) -> None:
    """Asks for what the test says."""
    ASKS[what]()


@workflow.defn
def other() -> None:
    """Another workflow."""


SAID: dict[str, Any] = {}
ASKS: dict[str, Any] = {
    "activity": lambda: act.options(**SAID).start(),
    "local": lambda: act.options(**SAID).start_local(),
    "child": lambda: workflow.start_child_workflow("other", id="c", **SAID),
    "next": lambda: workflow.continue_as_new("x", **SAID),
}


def asked(what: str, **said: Any) -> Any:
    """The command that a workflow issues which says this."""
    SAID.clear()
    SAID.update(said)
    definition = workflow_definition(asks)
    assert definition is not None
    evaluator = Evaluator(definition, "r", RunSettings())
    start = e.RunStarted(workflow_type="asks", workflow_id="w", arguments=(default_converter.encode(what),))
    answer = evaluator.activate(e.Activation(run_id="r", events=(start,), timestamp_ns=NOW))
    assert isinstance(answer, c.Succeeded), evaluator.error
    command, *_ = answer.commands
    return command


def embedded(command: c.Command) -> Change:
    """What the embedded engine makes of a command."""
    started = h.WorkflowExecutionStarted(
        workflow_id="w",
        workflow_type="asks",
        original_run_id="r",
        first_run_id="r",
        spec=StartSpec(task_queue="own", task_timeout=10.0),
    )
    run = open_run("r", started, NOW).run
    run = start_task(run, "me", Limits(), None, NOW).run
    return complete_task(run, TaskCompletion(commands=(Sent(command),)), "next", Limits(), None, NOW)


def event_of(command: c.Command, kind: type[Any]) -> h.HistoryEvent:
    """The event of a command, as it comes from the store again."""
    (event,) = [each for each in embedded(command).events if type(each.attributes) is kind]
    (again,) = decode_events(b"\x91" + encode_events([event]))
    assert again == event
    return event


def to_core(command: c.Command) -> bytes:
    """A command as Core gets it."""
    return completion_to_proto(c.Succeeded("r", (command,)), OWN)


def without_ids(event: h.HistoryEvent) -> bytes:
    """An event in Temporal's JSON."""
    return event_json(event)


def cases(table: dict[str, tuple[Any, Any]]) -> Any:
    """One case for each field."""
    return pytest.mark.parametrize(
        ("field", "said", "meant"), [(k, *v) for k, v in table.items()], ids=list(table)
    )


def check_carried(field: str, there: bool, absent: str, place: str) -> None:
    """A field is where it should be: everywhere but where the table of that name says why not."""
    why = globals()[absent].get(field)
    assert there or why, (
        f"{field} is lost on the way to {place}: fix that, or say in {absent} of this file why it is not there"
    )
    assert not there or why is None, f"{field} is told by {place}, and {absent} of this file says: {why}"


def test_every_spec_field_has_an_example() -> None:
    """A field that is added to a spec is walked."""
    tables: dict[type[Any], dict[str, Any]] = {
        ActivitySpec: ACTIVITY,
        StartSpec: START,
        ChildWorkflowSpec: CHILD,
    }
    assert set(SPECS) == set(tables)
    for spec, table in tables.items():
        assert set(table) == set(spec.__struct_fields__), (
            f"each field of {spec.__name__} wants a line in its table at the head of this file: what an author says, and "
            "what the spec holds then; the other tests here follow it from there"
        )


def test_every_spec_field_is_a_keyword_argument() -> None:
    """Each field is a keyword, and each keyword a field or a thing of one call."""
    said: dict[type[Any], set[str]] = {
        ActivityOptions: set(ACTIVITY) | {"activity_id", "summary", "event_groups"},
        ChildOptions: set(START) | set(CHILD) | {"id", "event_groups"},
        StartOptions: set(START) | CLIENTS_OWN,
    }
    assert set(START_CHECKS) == set(START), (
        "each field of a StartSpec wants its check in _evaluator/options.py"
    )
    for options, expected in said.items():
        assert set(options.__annotations__) == expected, (
            f"{options.__name__} in {options.__module__} is what authors write: a keyword for each field of the spec, and "
            "those that are of one call alone, which this test names"
        )


def test_client_view_of_an_activity_has_every_stored_option() -> None:
    """A client is shown, and may change, all that is not the worker's own; what it cannot say of a start has a reason."""
    kept = set(ActivitySpec.__struct_fields__) - THE_WORKERS
    hint = "a field of ActivitySpec is in KeptOptions of activity/_options.py, or in THE_WORKERS of _evaluator/specs.py"
    assert set(KeptOptions.__annotations__) == kept, hint
    shown = {each.name for each in fields(_standalone.ActivityExecutionOptions)}
    assert shown == kept, (
        "a description shows what is kept: ActivityExecutionOptions in client/_standalone.py"
    )
    refused = set(ActivityOptions.__annotations__) - kept
    assert set(_standalone._NOT_HERE) == refused, (
        "what only a workflow can say of an activity is refused at a client's start, with a reason: _NOT_HERE in "
        "client/_standalone.py"
    )


# --- activities ---------------------------------------------------------------------------------------------------------


@cases(ACTIVITY)
def test_activity_options_reach_every_form(field: str, said: Any, meant: Any) -> None:
    """Keyword, command, event, stored bytes, task and info; and Core's command."""
    command, usual = asked("activity", **{field: said}), asked("activity")
    assert getattr(command.spec, field) == meant
    check_carried(
        field,
        to_core(command) != to_core(usual),
        "ONLY_LOCAL",
        "Core's command: REMOTE in _temporal/specs.py",
    )
    event = event_of(command, h.ActivityTaskScheduled)
    assert getattr(event.attributes.spec, field) == meant  # type: ignore[attr-defined]
    told = without_ids(event) != without_ids(event_of(usual, h.ActivityTaskScheduled))
    check_carried(field, told, "NOT_IN_ACTIVITY_EVENTS", "Temporal's JSON: _history/tables.py")
    run = embedded(command).run
    (pending,) = run.activities.values()
    task = activity_task("ns", run, pending, b"t")
    assert getattr(task.spec, field) == meant
    if field not in NOT_IN_ACTIVITY_INFO:
        assert field in Info.__dataclass_fields__, (
            f"an activity cannot see its {field}: a field of the same name in Info (activity/_context.py), or a line in "
            "NOT_IN_ACTIVITY_INFO of this file"
        )
        shown = getattr(info_of(task, default_converter), field)
        assert shown != getattr(info_of(_usual_task(), default_converter), field)


def _usual_task() -> Any:
    run = embedded(asked("activity")).run
    (pending,) = run.activities.values()
    return activity_task("ns", run, pending, b"t")


@cases(ACTIVITY)
def test_local_activity_options_reach_every_form(field: str, said: Any, meant: Any) -> None:
    """Keyword, command, and Core's command."""
    command = asked("local", **{field: said})
    assert getattr(command.spec, field) == meant
    told = to_core(command) != to_core(asked("local"))
    check_carried(field, told, "ONLY_REMOTE", "Core's command: LOCAL in _temporal/specs.py")


@cases({name: value for name, value in ACTIVITY.items() if name not in NOT_IN_CORES_TASK})
def test_activity_task_of_core_is_translated_completely(field: str, said: Any, meant: Any) -> None:
    """What Core's task says of the activity."""
    assert field in TASK.carried, (
        f"a worker is not told of {field}: TASK in _temporal/specs.py, or a line in NOT_IN_CORES_TASK of this file"
    )
    message: Any = TaskMessage(task_token=b"t")
    start = message.start
    start.activity_type = "act"
    if field == "retry_policy":
        start.retry_policy.maximum_attempts = 3
    elif field in ("priority_key", "fairness_key", "fairness_weight"):
        setattr(start.priority, field, meant)
    else:
        getattr(start, field).seconds = int(meant)
    task: Any = activity_item_from_proto(message.SerializeToString(), "own")
    found = getattr(task.spec, field)
    assert (found.maximum_attempts == 3) if field == "retry_policy" else found == meant


# --- starts -------------------------------------------------------------------------------------------------------------


def _request(**options: Any) -> StartWorkflow:
    return start_request(
        given_workflow(other), (), {"id": "w", "request_id": "i", **options}, default_converter, "me"
    )


def _message(request: StartWorkflow) -> bytes:
    data: bytes = calls.start(request, calls.CallScope("ns", "me")).message.SerializeToString()
    return data


@cases(START)
def test_client_start_options_reach_every_form(field: str, said: Any, meant: Any) -> None:
    """Keyword, request, event, stored bytes, what the worker is told; Temporal's request, and its JSON."""
    request, usual = _request(**{field: said}), _request()
    assert getattr(request.spec, field) == meant
    assert _message(request) != _message(usual)
    signalled = _request(**{field: said}, start_signal="s"), _request(start_signal="s")
    assert _message(signalled[0]) != _message(signalled[1])
    runs: Any = SimpleNamespace(clock=SimpleNamespace(now_ns=lambda: NOW))
    first, before = (_first_event(runs, each, "r", ((), None)) for each in (request, usual))
    assert getattr(first.spec, field) == meant
    event = h.HistoryEvent(1, NOW, first)
    assert decode_events(b"\x91" + encode_events([event])) == [event]
    assert event_json(event) != event_json(h.HistoryEvent(1, NOW, before))
    assert getattr(run_started(first, NOW).spec, field) == meant


@cases(START)
def test_schedule_start_options_survive_storage(field: str, said: Any, meant: Any) -> None:
    """A schedule's action comes back from the file, and from a server, as it was."""
    action = msgspec.structs.replace(_request(**{field: said}), identity="", request_id="")
    record = ScheduleRecord(
        schedule_id="s", schedule=EngineSchedule(action=action), seen_ns=NOW, create_time_ns=NOW
    )
    assert decode_schedule(encode_schedule(record)) == record
    message: Any = calls_schedules.NewWorkflowExecutionInfo()
    calls_schedules._put_action(message, action, b"")
    again = calls_schedules._action_from(message)
    same = getattr(again.spec, field) == meant
    check_carried(field, same, "NOT_IN_SCHEDULES", "a schedule on a server: SCHEDULED in _temporal/specs.py")


@cases({name: value for name, value in START.items() if name not in NOT_IN_CORES_START})
def test_start_job_of_core_is_translated_completely(field: str, said: Any, meant: Any) -> None:
    """What Core's first job says of the start."""
    assert field in STARTED.carried, (
        f"a worker is not told of {field}: STARTED in _temporal/specs.py, or a line in NOT_IN_CORES_START of this file"
    )
    message: Any = WorkflowActivation(run_id="r")
    job = message.jobs.add().initialize_workflow
    paths = {
        "execution_timeout": "workflow_execution_timeout",
        "run_timeout": "workflow_run_timeout",
        "task_timeout": "workflow_task_timeout",
    }
    if field in paths:
        getattr(job, paths[field]).seconds = int(meant)
    elif field == "retry_policy":
        job.retry_policy.maximum_attempts = 3
    elif field == "cron_schedule":
        job.cron_schedule = meant
    elif field in ("priority_key", "fairness_key", "fairness_weight"):
        setattr(job.priority, field, meant)
    elif field == "memo":
        job.memo.fields["k"].data = b"1"
    else:
        job.search_attributes.indexed_fields["k"].data = b"1"
    (started,) = activation_from_proto(message.SerializeToString()).events
    assert isinstance(started, e.RunStarted)
    assert getattr(started.spec, field) != getattr(StartSpec(), field)


@cases(START | CHILD)
def test_child_options_reach_every_form(field: str, said: Any, meant: Any) -> None:
    """Keyword, command, event, stored bytes, the child's own first event; Core's command, and Temporal's JSON."""
    command, usual = asked("child", **{field: said}), asked("child")
    assert to_core(command) != to_core(usual)
    kind = h.StartChildWorkflowExecutionInitiated
    event = event_of(msgspec.structs.replace(command, namespace="ns"), kind)
    usual_event = event_of(msgspec.structs.replace(usual, namespace="ns"), kind)
    told = event_json(event) != event_json(usual_event)
    check_carried(field, told, "NOT_IN_CHILD_EVENTS", "Temporal's JSON: _history/tables.py")
    if field in CHILD:
        assert getattr(command.child, field) == getattr(event.attributes.child, field) == meant  # type: ignore[attr-defined]
        return
    assert getattr(command.spec, field) == getattr(event.attributes.spec, field) == meant  # type: ignore[attr-defined]
    run = embedded(command).run
    (child,) = run.children.values()
    assert getattr(first_event(run, child, "r2", NOW).spec, field) == meant


@cases({name: value for name, value in START.items() if name not in NOT_SAID_OF_THE_NEXT_RUN})
def test_continue_as_new_options_reach_every_form(field: str, said: Any, meant: Any) -> None:
    """Keyword, command, event, the next run's first event; Core's command, and Temporal's JSON."""
    command, usual = asked("next", **{field: said}), asked("next")
    assert getattr(command.spec, field) == meant
    assert to_core(command) != to_core(usual)
    kind = h.WorkflowExecutionContinuedAsNew
    event = event_of(command, kind)
    told = event_json(event) != event_json(event_of(usual, kind))
    check_carried(field, told, "NOT_IN_CONTINUED_EVENTS", "Temporal's JSON: _history/tables.py")
    follower = embedded(command).follower
    assert follower is not None
    assert getattr(follower.spec, field) == getattr(event.attributes.spec, field) == meant  # type: ignore[attr-defined]


# --- kinds ----------------------------------------------------------------------------------------------------------------

WITHOUT_EVENTS: dict[type[c.Command], str] = {
    c.ScheduleLocalActivity: "_embedded/activations/local_activities.py",  # told by a marker when it ends
    c.RequestCancelLocalActivity: "_embedded/activations/outcomes.py",
    c.CancelChildWorkflow: "_embedded/activations/child_outcomes.py",  # a request to cancel, or none, by its policy
    c.CancelSignalExternal: "_embedded/activations/outcomes.py",  # a signal leaves with its task: there is nothing to take back
    c.AnswerQuery: "_embedded/activations/task_flow.py",  # leaves no trace
}
"""Commands that the embedded engine writes no event for, and the file that carries each out."""
WITHOUT_TRANSITION: dict[type[c.Command], str] = dict.fromkeys(
    (c.ScheduleNexusOperation, c.CancelNexusOperation), "_embedded/activations/nexus_outcomes.py"
)
"""Commands with an event that only a server writes, and the file that carries each out in the embedded engine."""


def test_embedded_engine_handles_every_command() -> None:
    """Each leads to an event of its own, or is carried out by a part of the engine that plays Core's."""
    told: set[type[c.Command]] = set()
    for kinds in COMMAND_OF.values():
        told.update(kinds if isinstance(kinds, tuple) else (kinds,))
    unknown = set(c.COMMANDS) - told - set(WITHOUT_EVENTS)
    assert not unknown, (
        f"{', '.join(kind.__name__ for kind in unknown)}: which event does it lead to? A line in _TELL of _history/words.py, "
        "and its row in _APPLY of _embedded/transitions/tasks.py; without an event, a line in WITHOUT_EVENTS of this file"
    )
    assert not told & set(WITHOUT_EVENTS)
    idle = told - {*_APPLY, *_APPLY_TO, *c.TERMINAL} - set(WITHOUT_TRANSITION)
    assert not idle, (
        f"{', '.join(kind.__name__ for kind in idle)}: what does it do in the embedded engine? A row in _APPLY or _APPLY_TO of "
        "_embedded/transitions/tasks.py"
    )
    for kind, place in (WITHOUT_EVENTS | WITHOUT_TRANSITION).items():
        assert kind.__name__ in source.names_in(source.module(place))
