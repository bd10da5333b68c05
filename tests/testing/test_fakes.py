"""Fakes and real activities in an environment: behaviour, duration, rejected fakes, and failed attempts."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from unittest.mock import Mock

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import (
    ActivityError,
    ApplicationError,
    Cancelled,
    DefinitionError,
    TimedOutError,
    UsageError,
    WorkflowFailedError,
    WorkflowParked,
    WorkflowStuck,
)
from hourglass.testing import Environment, call

from . import shop
from .shop import (
    Order,
    Payments,
    approval,
    browse,
    calls_by_name,
    charge,
    checkout,
    compute,
    fetch,
    needs_heartbeats,
    refunds,
    reports_its_activitys_failure,
    ship,
)

ORDER = Order("o-1", 1200)


@workflow.defn
def buy(order_id: str) -> str:
    return charge(order_id, 5)


@workflow.defn
def buy_in_time(order_id: str) -> str:
    try:
        with workflow.timeout(timedelta(minutes=5)):
            return charge(order_id, 5)
    except TimeoutError:
        return "gave up"


# --- what a fake is ---------------------------------------------------------------------------------------


def test_fake_function_receives_the_decoded_arguments_and_context_of_the_activity() -> None:
    def fake(order_id: str, cents: int = 1) -> str:
        return f"{order_id}/{cents}/{activity.info().attempt}/{activity.info().workflow_type}"

    with Environment() as env:
        env.fake(charge, fake)
        assert env.execute_workflow(buy, "a") == "a/5/1/buy"


def test_mocks_and_lambdas_are_accepted_as_fakes() -> None:
    with Environment() as env:
        mock = Mock(return_value="mocked")
        env.fake(charge, mock)
        assert env.execute_workflow(buy, "a") == "mocked"
        mock.assert_called_once_with("a", 5)
        env.fake(charge, lambda order_id, cents=0: order_id * 2)
        assert env.execute_workflow(buy, "a") == "aa"


def test_fakes_may_be_sync_or_async_for_either_kind_of_activity() -> None:
    async def slowly(order_id: str, cents: int = 0) -> str:
        await asyncio.sleep(0)
        return f"slowly {order_id}"

    with Environment() as env:
        env.fake(fetch, returns="empty page")
        assert env.execute_workflow(browse, "u") == "empty page"
        env.fake(fetch, lambda url: f"fake {url}")
        assert env.execute_workflow(browse, "u") == "fake u"
        env.fake(charge, slowly)
        assert env.execute_workflow(buy, "a") == "slowly a"


def test_activity_can_be_faked_by_its_name() -> None:
    with Environment() as env:
        env.fake("charge-by-name", returns="named")
        assert env.execute_workflow(calls_by_name, "o") == "named"
        env.fake("charge-by-name", lambda order_id: order_id.upper())
        assert env.execute_workflow(calls_by_name, "o") == "O"
        assert env.calls("charge-by-name") == [call("o"), call("o")]


def test_fake_raises_a_list_of_exceptions_attempt_by_attempt() -> None:
    with Environment() as env:
        before = env.now()
        env.fake(charge, returns="at last", raises=[ConnectionError("1"), None])
        assert env.execute_workflow(buy, "a") == "at last"
        env.fake(charge, returns="at last", raises=[ConnectionError("1"), TimeoutError, OSError("3")])
        assert env.execute_workflow(buy, "b") == "at last"
        assert env.now() - before == timedelta(minutes=1 + 1 + 2 + 4)


def test_exception_in_a_fake_is_an_activity_failure() -> None:
    def fails(order_id: str, cents: int = 0) -> str:
        raise ApplicationError("no money", type="Broke", non_retryable=True)

    with Environment() as env:
        env.fake(charge, fails)
        with pytest.raises(WorkflowFailedError) as caught:
            env.execute_workflow(buy, "a")
        assert isinstance(caught.value.cause, ActivityError)
        assert isinstance(caught.value.cause.cause, ApplicationError)
        assert caught.value.cause.cause.type == "Broke"


def test_activity_that_always_fails_raises_workflow_stuck() -> None:
    with Environment() as env:
        env.fake(charge, raises=ConnectionError("down"))
        with pytest.raises(WorkflowStuck, match=r"activity charge .* has failed 5000 times"):
            env.execute_workflow(buy, "a")


def test_keyboard_interrupt_and_pytest_fail_propagate_to_the_test() -> None:
    def fails(order_id: str, cents: int = 0) -> str:
        pytest.fail("not to be called")

    @workflow.defn
    def interrupted() -> None:
        raise KeyboardInterrupt

    with Environment() as env:
        env.fake(charge, fails)
        with pytest.raises(pytest.fail.Exception, match="not to be called"):
            env.execute_workflow(buy, "a")
        with pytest.raises(KeyboardInterrupt):
            env.execute_workflow(interrupted)


# --- what a fake must be ----------------------------------------------------------------------------------


def test_invalid_fakes_of_activities_are_rejected() -> None:
    with Environment() as env:
        with pytest.raises(DefinitionError, match="must accept the arguments of the activity"):
            env.fake(ship, lambda: None)  # type: ignore[arg-type]
        with pytest.raises(DefinitionError, match="must accept the arguments of the activity"):
            env.fake(charge, lambda order_id, cents, more: order_id)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="does not match the return type"):
            env.fake(charge, returns=5)  # type: ignore[misc]
        with pytest.raises(UsageError, match="not both"):
            env.fake(charge, lambda order_id, cents: "", returns="x")  # type: ignore[call-overload]
        with pytest.raises(UsageError, match="has no result"):
            env.fake(charge)
        with pytest.raises(TypeError, match=r"fake\(\) got an unexpected keyword argument 'raise_'"):
            env.fake(charge, raise_=OSError("x"))  # type: ignore[call-overload]
        with pytest.raises(UsageError, match="for the attempts after those in raises="):
            env.fake(charge, raises=[OSError("x")])
        with pytest.raises(UsageError, match="raises= must be an exception"):
            env.fake(charge, raises="oops")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"decorated with @activity\.defn, or its name"):
            env.fake(len, returns=1)  # type: ignore[call-overload]
        with pytest.raises(UsageError, match="takes"):
            env.fake(ship, takes=-1)


# --- how long it takes ------------------------------------------------------------------------------------


def test_fake_with_takes_lasts_for_virtual_time() -> None:
    with Environment() as env:
        before = env.now()
        env.fake(charge, returns="done", takes=timedelta(minutes=9))
        assert env.execute_workflow(buy, "a") == "done"
        assert env.now() - before == timedelta(minutes=9)


def test_fake_that_takes_longer_than_start_to_close_times_out_and_is_retried() -> None:
    with Environment() as env:
        before = env.now()
        env.fake(charge, returns="never", takes=timedelta(minutes=11))

        @workflow.defn
        def twice(order_id: str) -> str:
            policy = RetryPolicy(initial_interval=60, maximum_attempts=2)
            try:
                return charge.options(retry_policy=policy)(order_id)
            except ActivityError as error:
                return error.cause.type.name if isinstance(error.cause, TimedOutError) else "another"

        assert env.execute_workflow(twice, "a") == "START_TO_CLOSE"
        assert env.now() - before == timedelta(minutes=10 + 1 + 10)
        assert [recorded.attempt for recorded in env.calls(charge)] == [1, 2]


def test_fake_without_heartbeats_times_out_unless_heartbeat_every_is_set() -> None:
    with Environment() as env:
        env.fake(needs_heartbeats, returns="ok", takes=timedelta(minutes=5))
        assert (
            env.execute_workflow(reports_its_activitys_failure, "a")
            == "TimedOutError: activity Heartbeat timeout"
        )
        env.fake(needs_heartbeats, returns="ok", takes=timedelta(minutes=5), heartbeat_every=30)
        assert env.execute_workflow(reports_its_activitys_failure, "a") == "ok"


def test_workflow_timeout_cancels_a_long_fake() -> None:
    with Environment() as env:
        before = env.now()
        env.fake(charge, returns="done", takes=timedelta(minutes=9))
        assert env.execute_workflow(buy_in_time, "a") == "gave up"
        assert env.now() - before == timedelta(minutes=5)
        env.fake(charge, returns="done", takes=timedelta(minutes=4))
        assert env.execute_workflow(buy_in_time, "b") == "done"


def test_fake_can_cancel_its_workflow_through_the_environment() -> None:
    with Environment() as env:
        handle = env.start_workflow(checkout, ORDER, start_delay=10)

        def cancels(order_id: str, cents: int = 0) -> str:
            handle.cancel()
            return "charged"

        env.fake(charge, cancels)
        with pytest.raises(WorkflowFailedError, match="cancelled"):
            handle.result()


# --- real ones --------------------------------------------------------------------------------------------


def test_real_activities_run_in_threads_or_on_the_loop_without_virtual_time() -> None:
    with Environment() as env:
        before = env.now()
        assert env.execute_workflow(compute, 1).startswith("hourglass-test-activity")
        assert env.execute_workflow(browse, "u") == "page u"
        assert env.now() == before


def test_activity_method_needs_an_instance_or_a_fake() -> None:
    with Environment(activities=[Payments("refunded")]) as env:
        assert env.execute_workflow(refunds, "o") == "refunded o"
    with Environment() as env:
        env.fake(Payments.refund, returns="faked")
        assert env.execute_workflow(refunds, "o") == "faked"
        assert env.calls(Payments.refund) == [call("o")]
    with Environment() as env, pytest.raises(UsageError, match="needs an instance"):
        env.execute_workflow(refunds, "o")


def test_environment_finds_activities_in_lists_and_modules() -> None:
    @activity.defn(name="charge-by-name")
    def listed(order_id: str) -> str:
        return f"listed {order_id}"

    with Environment(activities=[listed]) as env:
        assert env.execute_workflow(calls_by_name, "o") == "listed o"
    with Environment(modules=[shop]) as env:
        assert env.execute_workflow("browse", "u") == "page u"


def test_real_activities_can_be_forbidden() -> None:
    with Environment(real_activities=False) as env, pytest.raises(UsageError, match="charge is not faked"):
        env.execute_workflow(buy, "a")


def test_real_activity_can_start_a_workflow_and_wait_for_it() -> None:
    @activity.defn(heartbeat_timeout=None, start_to_close_timeout=timedelta(days=60))
    def start_another(order_id: str) -> str:
        inner: str = activity.client().execute_workflow("checkout", Order(order_id, 1), result_type=str)
        return inner

    @workflow.defn
    def outer(order_id: str) -> str:
        return start_another(order_id)

    with Environment(workflows=[checkout]) as env:
        before = env.now()
        env.fake(charge, returns="inner")
        assert env.execute_workflow(outer, "a") == "inner"
        assert env.now() - before == timedelta(days=30)


def test_waiting_activity_is_released_when_the_environment_closes() -> None:
    messages: list[str] = []
    over = threading.Event()

    @activity.defn(heartbeat_timeout=None)
    def waits() -> None:
        try:
            activity.client().get_workflow_handle("never").result()
        except UsageError as error:
            messages.append(str(error))
        finally:
            over.set()

    @workflow.defn
    def outer() -> None:
        waits()

    with Environment() as env:
        env.start_workflow(approval, "a", id="never")
        handle = env.start_workflow(outer)
        with pytest.raises(TimeoutError):
            handle.result(timeout=60)
    over.wait()
    assert messages == ["the Environment was closed while an activity waited in it"]


def test_asynchronous_activity_is_completed_by_the_test() -> None:
    tokens: list[bytes] = []

    @activity.defn(heartbeat_timeout=None, start_to_close_timeout=timedelta(days=2))
    def ask_someone(question: str) -> str:
        tokens.append(activity.info().task_token)
        activity.complete_async()

    @workflow.defn
    def asking(question: str) -> str:
        return ask_someone(question)

    with Environment() as env:
        handle = env.start_workflow(asking, "why")
        env.after(days=1).call(lambda: env.client.get_activity_handle(token=tokens[0]).complete("because"))
        assert handle.result() == "because"


def test_real_async_activity_is_cancelled_with_its_workflow() -> None:
    started = threading.Event()

    @activity.defn
    async def hangs() -> None:
        started.set()
        await asyncio.Event().wait()

    @workflow.defn
    def calls_it() -> str:
        try:
            hangs()
        except Cancelled:
            return "cancelled"
        return "returned"

    with Environment() as env:
        handle = env.start_workflow(calls_it)
        started.wait()
        handle.cancel()
        assert handle.result() == "cancelled"


# --- failed attempts --------------------------------------------------------------------------------------


@activity.defn(retry_policy=RetryPolicy(initial_interval=60, maximum_interval=100_000, maximum_attempts=12))
def pack(items: list[str]) -> int:
    return len(items)


@workflow.defn
def parcel(items: list[str]) -> int:
    packed = pack(items)
    workflow.sleep(timedelta(days=30))
    return packed


@workflow.defn
def careless(order: str) -> str:
    executed.append(order)
    raise RuntimeError("a bug")


@workflow.defn
def calls_by_name_with_a_wrong_argument() -> object:
    return workflow.execute_activity("pack", 7, start_to_close_timeout=timedelta(minutes=1))


executed: list[str] = []


def test_retry_backoff_takes_virtual_time_and_records_every_attempt() -> None:
    with Environment() as env:
        start_time = env.now()
        env.fake(pack, returns=2, raises=[ConnectionError(f"no {n}") for n in range(10)])
        assert env.execute_workflow(parcel, ["a", "b"]) == 2
        calls = env.calls(pack)
        assert calls == [call(["a", "b"])] * 11
        assert [attempt.attempt for attempt in calls] == list(range(1, 12))
        assert [attempt.returned for attempt in calls] == [False] * 10 + [True]
        assert [attempt.time - start_time for attempt in calls] == [
            timedelta(minutes=2**n - 1) for n in range(11)
        ]
        assert env.now() - start_time == timedelta(minutes=2**10 - 1, days=30)


def test_recorded_calls_do_not_share_arguments() -> None:
    def empty(items: list[str]) -> int:
        items.clear()
        return 0

    with Environment() as env:
        env.fake(pack, empty, raises=[OSError()])
        assert env.execute_workflow(parcel, ["a"]) == 0
        first, second = env.calls(pack)
        assert first == second == call(["a"])
        assert first.args[0] is not second.args[0]
        assert env.calls(pack)[0] is first


def test_activity_with_wrong_arguments_records_no_call() -> None:
    with Environment(activities=[pack]) as env, pytest.raises(WorkflowFailedError) as caught:
        env.execute_workflow(calls_by_name_with_a_wrong_argument)
    assert isinstance(caught.value.__cause__, ActivityError)
    with Environment() as env:
        env.fake(pack, lambda items: 1)
        with pytest.raises(WorkflowFailedError):
            env.execute_workflow(calls_by_name_with_a_wrong_argument)
        assert env.calls(pack) == []


def test_last_failure_of_the_retries_has_message_type_and_details() -> None:
    with Environment() as env:
        env.fake(pack, raises=ApplicationError("straße zu", 7, type="Closed"))
        with pytest.raises(WorkflowFailedError) as caught:
            env.execute_workflow(parcel, [])
        assert len(env.calls(pack)) == 12
        error = caught.value.__cause__
        assert isinstance(error, ActivityError)
        cause = error.__cause__
        assert isinstance(cause, ApplicationError)
        assert (cause.message, cause.type, cause.details) == ("straße zu", "Closed", (7,))


def test_parked_run_is_not_executed_again_while_virtual_time_advances() -> None:
    executed.clear()
    with Environment() as env:
        with pytest.raises(WorkflowParked):
            env.start_workflow(careless, "o-1").result()
        env.fake(pack, returns=1, raises=[OSError()] * 5)
        assert env.execute_workflow(parcel, ["a"]) == 1
        assert executed == ["o-1"]
