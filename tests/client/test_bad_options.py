"""Invalid values for the options of client calls: each raises one of our errors before a request is sent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import cases
from tests.specs import made

from hourglass import Client, RetryPolicy, workflow
from hourglass._contract.request_checks import check_request
from hourglass._contract.workflows import CountWorkflows, SignalWorkflow, StartWorkflow
from hourglass.client import (
    IdReusePolicy,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleCalendarSpec,
    ScheduleIntervalSpec,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    StartOptions,
    UpdateStage,
)
from hourglass.errors import HourglassError, UsageError

ARBITRARY_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**30, -(10**30), 10**400, 2**31, 2**63, -1]),
    st.floats(),
    st.binary(max_size=3),
    st.text(max_size=5),
    st.sampled_from(["a\ud800b", "\x00", "", " ", "x" * 1001]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.one_of(st.integers(), st.text(max_size=2)), st.integers(), max_size=2),
    st.sampled_from([timedelta.max, timedelta(-1), datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)]),
    st.sampled_from(
        [object(), object, RetryPolicy, IdReusePolicy.REJECT_DUPLICATE, UpdateStage.ACCEPTED, len]
    ),
)
"""Values that are invalid for most options."""


arbitrary_cases = settings(
    deadline=None, max_examples=cases(60, 1000), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@workflow.defn
def idle() -> None:
    pass


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """One engine for all generated cases. At the end it must still be able to list and count its runs."""
    with Client.connect("local:") as client:
        yield client
        assert len(list(client.list_workflows())) == client.count_workflows()


@arbitrary_cases
@given(option=st.sampled_from(sorted(StartOptions.__annotations__)), value=ARBITRARY_VALUES)
def test_arbitrary_start_option_values_are_accepted_or_raise_hourglass_error(
    client: Client, option: str, value: Any
) -> None:
    options: dict[str, Any] = {"task_queue": "idle", option: value}
    if option == "start_signal_args":
        options["start_signal"] = "go"
    try:
        client.start_workflow(idle, **options)
    except HourglassError:
        pass


@arbitrary_cases
@given(option=st.sampled_from(sorted(RetryPolicy.__dataclass_fields__)), value=ARBITRARY_VALUES)
def test_arbitrary_retry_policy_values_are_accepted_or_raise_usage_error(
    client: Client, option: str, value: Any
) -> None:
    try:
        policy = RetryPolicy(**{option: value})
    except UsageError:
        return
    client.start_workflow(idle, task_queue="idle", retry_policy=policy)


@arbitrary_cases
@given(place=st.integers(0, 20), value=ARBITRARY_VALUES)
def test_arbitrary_arguments_of_client_calls_are_accepted_or_raise_hourglass_error(
    client: Client, place: int, value: Any
) -> None:
    handle = client.get_workflow_handle("nobody")
    calls = (
        lambda: client.start_workflow(value, task_queue="idle"),
        lambda: client.get_workflow_handle(value).describe(),
        lambda: client.get_workflow_handle("nobody", run_id=value).describe(),
        lambda: handle.signal(value),
        lambda: handle.signal("go", rpc_timeout=value),
        lambda: handle.query(value),
        lambda: handle.query("how", reject_condition=value),
        lambda: handle.start_update("u", wait_for_stage=value),
        lambda: handle.start_update("u", wait_for_stage=UpdateStage.ACCEPTED, id=value),
        lambda: handle.get_update_handle(value).result(timeout=0),
        lambda: handle.cancel(value),
        lambda: handle.terminate(value),
        lambda: handle.reset(event_id=value),
        lambda: handle.reset(event_id=4, reason=value),
        lambda: handle.describe(rpc_timeout=value),
        lambda: list(client.list_workflows(value)),
        lambda: list(client.list_workflows("WorkflowId = 'w'", page_size=value)),
        lambda: list(client.list_workflows("WorkflowId = 'w'", limit=value)),
        lambda: client.count_workflows(value),
        lambda: client.describe_task_queue(value),
        lambda: client.get_activity_handle(token=value).complete(None),
    )
    try:
        calls[place]()
    except (HourglassError, TimeoutError):
        pass


_SCHEDULE_FIELDS: dict[type, tuple[str, ...]] = {
    ScheduleSpec: (
        "calendars",
        "intervals",
        "cron_expressions",
        "skip",
        "start_at",
        "end_at",
        "jitter",
        "time_zone_name",
    ),
    SchedulePolicy: ("overlap", "catchup_window", "pause_on_failure"),
    ScheduleState: ("note", "paused", "limited_actions", "remaining_actions"),
    ScheduleIntervalSpec: ("every", "offset"),
    ScheduleCalendarSpec: ("second", "hour", "month", "year", "day_of_week", "comment"),
    Schedule: ("action", "spec", "policy", "state"),
    Client: ("memo", "search_attributes", "backfill", "trigger_immediately", "rpc_timeout"),
}


@arbitrary_cases
@given(
    part=st.sampled_from([(kind, name) for kind, names in _SCHEDULE_FIELDS.items() for name in names]),
    value=ARBITRARY_VALUES,
    number=st.uuids(),
)
def test_arbitrary_schedule_values_are_accepted_or_raise_hourglass_error(
    client: Client, part: tuple[type, str], value: Any, number: Any
) -> None:
    kind, name = part
    arbitrary = {name: value}
    hourly = ScheduleIntervalSpec(every=3600)
    parts: dict[str, Any] = {"spec": ScheduleSpec(intervals=[hourly])}
    options: dict[str, Any] = {}
    try:
        if kind is ScheduleSpec:
            parts["spec"] = ScheduleSpec(**{"intervals": [hourly], **arbitrary})  # type: ignore[arg-type]
        elif kind is ScheduleIntervalSpec:
            interval = ScheduleIntervalSpec(**{"every": 3600, **arbitrary})
            parts["spec"] = ScheduleSpec(intervals=[interval])
        elif kind is ScheduleCalendarSpec:
            parts["spec"] = ScheduleSpec(calendars=[ScheduleCalendarSpec(**arbitrary)])
        elif kind is SchedulePolicy:
            parts["policy"] = SchedulePolicy(**arbitrary)
        elif kind is ScheduleState:
            parts["state"] = ScheduleState(**arbitrary)
        elif kind is Schedule:
            parts |= arbitrary
        else:
            options = arbitrary
        parts.setdefault("action", ScheduleActionStartWorkflow(idle, id="w", task_queue="idle"))
        client.create_schedule(str(number), Schedule(**parts), **options)
    except (HourglassError, TimeoutError):
        return
    client.get_schedule_handle(str(number)).delete()


def test_request_check_validates_every_field() -> None:
    """Interceptors may change a request after the client's own checks, so this check is repeated before sending."""
    good = made(StartWorkflow, workflow_id="w", workflow_type="t", task_queue="q", request_id="r")
    check_request(good)
    for field, value in {
        "workflow_id": 5,
        "task_queue": "a\ud800",
        "run_timeout": float("nan"),
        "priority_key": 2**63,
        "memo": {5: None},
        "id_reuse_policy": 1.5,
        "cron_schedule": None,
    }.items():
        broken: dict[str, Any] = {name: getattr(good, name) for name in good.__struct_fields__}
        with pytest.raises(UsageError, match=field):
            check_request(made(StartWorkflow, **{**broken, field: value}))
    with pytest.raises(UsageError, match="query"):
        check_request(CountWorkflows(query=b"bytes"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="signal_name"):
        check_request(SignalWorkflow(workflow_id="w", signal_name=None, request_id="r"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cron_schedule": 5}, "cron_schedule must be a str, not int"),
        ({"priority_key": 10**30}, "priority_key must be a number from 0 to 2147483647"),
        ({"run_timeout": 10**400}, "run_timeout must be between 0 and 292 years"),
        ({"task_timeout": -1}, "task_timeout must be between 0 and 292 years"),
        (
            {"fairness_weight": 0.0009},
            "fairness_weight must be between 0.001 and 1000, or 0 for the default, not 0.0009",
        ),
        (
            {"fairness_weight": 1000.5},
            "fairness_weight must be between 0.001 and 1000, or 0 for the default, not 1000.5",
        ),
        ({"fairness_key": "é" * 33}, "fairness_key must be at most 64 bytes long, not 66"),
        ({"memo": {1: 2}}, "a name in memo must be a str, not int"),
        ({"retry_policy": RetryPolicy}, "retry_policy must be a RetryPolicy, not the class RetryPolicy"),
        ({"id_reuse_policy": "often"}, "id_reuse_policy must be one of IdReusePolicy: UNSPECIFIED"),
        ({"id": "a\ud800"}, "id must be a str that UTF-8 can encode"),
        ({"search_attributes": {5: 1}}, "the name of a search attribute must be a non-empty str"),
        ({"start_signal": "go", "start_signal_args": 5}, "start_signal_args must be a list, not int"),
    ],
)
def test_start_option_error_names_the_option_and_the_expected_value(
    client: Client, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        client.start_workflow(idle, **{"task_queue": "idle", **options})
    assert message in str(caught.value)


@pytest.mark.parametrize("weight", [0, 0.001, 1000.0])
def test_fairness_weight_bounds_and_longest_key_are_accepted(client: Client, weight: float) -> None:
    handle = client.start_workflow(idle, task_queue="idle", fairness_key="é" * 32, fairness_weight=weight)
    handle.terminate()


def test_start_update_rejects_wait_for_stage_admitted(client: Client) -> None:
    with pytest.raises(UsageError, match="must be ACCEPTED or COMPLETED, not ADMITTED"):
        client.get_workflow_handle("w").start_update("u", wait_for_stage=UpdateStage.ADMITTED)
