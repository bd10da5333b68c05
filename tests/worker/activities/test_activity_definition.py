"""Definitions of activities: defaults, durable calls in workflows, plain calls outside, and rejected definitions."""

from __future__ import annotations

import asyncio
import threading
import warnings
from datetime import timedelta

import pytest

from hourglass import RetryPolicy, activity
from hourglass._evaluator.commands import ScheduleActivity, ScheduleLocalActivity
from hourglass.activity import PlainCallWarning, activity_definition
from hourglass.activity._definition import worker_started, worker_stopped
from hourglass.errors import ArgumentError, DefinitionError, NotInWorkflowError, UsageError
from hourglass.workflow import ActivityCancellationType

from ..scripted import first_commands, payloads


@activity.defn
def double(number: int, times: int = 1) -> int:
    """Doubles."""
    return number * 2**times


@activity.defn(name="Fetch", start_to_close_timeout=timedelta(seconds=5), task_queue="io")
async def fetch(url: str) -> str:
    return url


class Payments:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    @activity.defn(retry_policy=RetryPolicy(maximum_attempts=3))
    def refund(self, order: str) -> str:
        return self.prefix + order

    @activity.defn
    async def audit(self, order: str) -> str:
        return order

    @staticmethod
    @activity.defn
    def fee(cents: int) -> int:
        return cents // 10


def test_activity_call_outside_a_workflow_runs_the_function():
    assert double(3) == 6
    assert double(3, times=2) == 12
    assert double.fn(1) == 2
    assert (double.__name__, double.__doc__, double.name) == ("double", "Doubles.", "double")


def test_activity_definition_has_default_timeouts_and_the_functions_name():
    definition = activity_definition(double)
    assert definition is not None
    assert definition.name == "double"
    assert definition.settings.spec.start_to_close_timeout == 600
    assert definition.settings.spec.heartbeat_timeout == 30
    assert definition.sends_heartbeats
    assert not definition.is_async
    assert "test_activity_definition.py:" in definition.place


def test_activity_call_in_a_workflow_schedules_it_with_the_definitions_options():
    def body() -> None:
        fetch("http://x")

    (command,) = first_commands(body)
    assert isinstance(command, ScheduleActivity)
    assert (command.activity_type, command.spec.task_queue) == ("Fetch", "io")
    assert command.spec.start_to_close_timeout == 5
    assert command.arguments == payloads("http://x")
    assert command.spec.heartbeat_timeout == 30


def test_activity_keyword_arguments_are_scheduled_by_position():
    def body() -> None:
        double(times=3, number=1)

    assert first_commands(body)[0].arguments == payloads(1, 3)


def test_activity_start_does_not_wait_for_the_result():
    def body() -> None:
        tasks = [double.start(n) for n in range(3)]
        tasks[0].result()

    assert [c.arguments for c in first_commands(body)] == [payloads(0), payloads(1), payloads(2)]


def test_local_and_start_local_schedule_local_activities():
    def body() -> None:
        double.start_local(1)
        double.local(2)

    assert [type(c) for c in first_commands(body)] == [ScheduleLocalActivity, ScheduleLocalActivity]


def test_activity_options_apply_to_a_single_call():
    def body() -> None:
        double.options(
            start_to_close_timeout=7,
            heartbeat_timeout=timedelta(seconds=4),
            cancellation_type=ActivityCancellationType.ABANDON,
            activity_id="mine",
        ).start(1)
        double(1)

    first, second = first_commands(body)
    assert (first.spec.start_to_close_timeout, first.spec.heartbeat_timeout, first.activity_id) == (
        7,
        4,
        "mine",
    )
    assert first.spec.cancellation_type is ActivityCancellationType.ABANDON
    assert (second.spec.start_to_close_timeout, second.spec.heartbeat_timeout) == (600, 30)


def test_explicit_heartbeat_timeout_of_30_seconds_differs_from_the_automatic_one():
    """The scheduled timeout is 30.001 s, because 30 s marks automatic heartbeats. None disables the timeout."""
    explicit = activity_definition(double.options(heartbeat_timeout=30))
    none = activity_definition(double.options(heartbeat_timeout=None))
    assert explicit is not None
    assert none is not None
    assert not explicit.sends_heartbeats
    assert explicit.settings.spec.heartbeat_timeout == pytest.approx(30.001)
    assert none.settings.spec.heartbeat_timeout == 0


def test_activity_method_called_in_a_workflow_is_scheduled_without_self():
    payments = Payments("p")

    def body() -> None:
        Payments.refund.start("o")
        payments.refund.start("o")
        Payments.fee(5)

    first, second, third = first_commands(body)
    assert first.activity_type == second.activity_type == "refund"
    assert first.arguments == second.arguments == payloads("o")
    assert first.spec.retry_policy is not None
    assert first.spec.retry_policy.maximum_attempts == 3
    assert third.arguments == payloads(5)


def test_activity_method_outside_a_workflow_needs_an_instance():
    assert Payments("p").refund("1") == "p1"
    assert Payments("p").refund.fn("1") == "p1"
    assert Payments.fee(50) == 5
    with pytest.raises(UsageError, match=r"is a method.*instance"):
        Payments.refund("1")


def test_async_activity_call_outside_a_workflow_fails_and_suggests_fn():
    with pytest.raises(UsageError, match=r"await Fetch\.fn"):
        fetch("u")
    assert asyncio.run(fetch.fn("u")) == "u"


def test_activity_call_with_wrong_arguments_fails_before_scheduling():
    messages = []

    def body() -> None:
        try:
            double(1, 2, 3)  # type: ignore[call-arg]
        except ArgumentError as error:
            messages.append(str(error))

    first_commands(body)
    assert "activity double" in messages[0]


def test_activity_start_and_local_are_rejected_outside_a_workflow():
    for call in (double.start, double.local, double.start_local):
        with pytest.raises(NotInWorkflowError, match="only inside a workflow"):
            call(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_to_clos_timeout": 3}, "did you mean start_to_close_timeout"),
        ({"zzz": 3}, "has no option 'zzz'; known options: activity_id"),
        ({"start_to_close_timeout": -1}, "between 0 and 292 years"),
        ({"start_to_close_timeout": 0}, "must be more than 0"),
        ({"start_to_close_timeout": "3"}, "must be a timedelta or a number of seconds"),
        ({"start_to_close_timeout": None}, "needs a start_to_close_timeout or a schedule_to_close_timeout"),
        ({"retry_policy": 3}, "must be a RetryPolicy"),
        ({"task_queue": 3}, "must be a str"),
        ({"priority_key": True}, "must be an int"),
    ],
)
def test_invalid_activity_options_are_rejected(options, message):
    with pytest.raises(UsageError, match=message):
        double.options(**options)
    with pytest.raises(UsageError, match=message):

        @activity.defn(**options)
        def some() -> None: ...


def test_invalid_activity_definitions_are_rejected():
    with pytest.raises(DefinitionError, match="needs a method __call__"):
        activity.defn(int)
    with pytest.raises(DefinitionError, match="generator"):

        @activity.defn
        def generator():
            yield 1

    with pytest.raises(DefinitionError, match="lambda"):
        activity.defn(lambda: None)
    with pytest.raises(DefinitionError, match="decorated twice"):
        activity.defn(double)
    with pytest.raises(DefinitionError, match="below @staticmethod"):
        activity.defn(staticmethod(lambda: None))
    with pytest.raises(DefinitionError, match=r"asyncio\.run"):

        @activity.defn(executor="process")
        async def coroutine() -> None: ...

    with pytest.raises(DefinitionError, match="top level"):

        @activity.defn(executor="process")
        def local() -> None: ...

    with pytest.raises(DefinitionError, match="executor must be"):
        activity.defn(executor="fiber")(double.fn)
    with pytest.raises(DefinitionError, match="reserved"):
        activity.defn(name="__temporal_x")(double.fn)


def test_plain_activity_call_in_a_worker_process_warns():
    """The warning names the caller's line; `.fn` does not warn."""
    worker_started()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            double(1)
            double.fn(1)
        (warning,) = caught
        assert warning.category is PlainCallWarning
        assert warning.filename == __file__
    finally:
        worker_stopped()
    double(1)  # without a worker: no warning, and warnings are errors here


def test_finaliser_on_a_workflow_thread_cannot_call_activities():
    """A finalizer that runs on a lane, outside any workflow, must not execute an activity's side effects."""
    from hourglass.activity._definition import runs_workflows

    caught = []

    def thread() -> None:
        runs_workflows()
        try:
            double(1)
        except UsageError as error:
            caught.append(str(error))

    other = threading.Thread(target=thread)
    other.start()
    other.join()
    assert "finalizers" in caught[0]


def test_activity_repr_names_the_function():
    assert repr(double).endswith("test_activity_definition.double>")
