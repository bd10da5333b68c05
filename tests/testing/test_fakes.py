"""Fakes and real activities in an environment: what happens for an activity, how long it takes, what is refused."""

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
    WorkflowStuck,
)
from hourglass.testing import Environment, call

from . import shop
from .shop import (
    Order,
    Payments,
    approval,
    browse,
    by_name,
    charge,
    checkout,
    compute,
    fetch,
    give_back,
    patient,
    promised,
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


def test_function_replaces_an_activity() -> None:
    """It gets the activity's arguments, decoded, and an activity's context."""

    def fake(order_id: str, cents: int = 1) -> str:
        return f"{order_id}/{cents}/{activity.info().attempt}/{activity.info().workflow_type}"

    with Environment() as env:
        env.fake(charge, fake)
        assert env.execute_workflow(buy, "a") == "a/5/1/buy"


def test_mocks_and_lambdas_are_accepted_as_fakes() -> None:
    """Whatever can be called with the activity's arguments will do."""
    with Environment() as env:
        mock = Mock(return_value="mocked")
        env.fake(charge, mock)
        assert env.execute_workflow(buy, "a") == "mocked"
        mock.assert_called_once_with("a", 5)
        env.fake(charge, lambda order_id, cents=0: order_id * 2)
        assert env.execute_workflow(buy, "a") == "aa"


def test_async_fakes_and_fakes_of_async_activities() -> None:
    """An async activity is faked by a plain function or a coroutine function, a plain one by a coroutine function."""

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


def test_activity_is_faked_by_name() -> None:
    """An activity that is known by its name only is faked by its name; the function's own types count."""
    with Environment() as env:
        env.fake("charge-by-name", returns="named")
        assert env.execute_workflow(by_name, "o") == "named"
        env.fake("charge-by-name", lambda order_id: order_id.upper())
        assert env.execute_workflow(by_name, "o") == "O"
        assert env.calls("charge-by-name") == [call("o"), call("o")]


def test_list_of_exceptions_is_raised_per_attempt() -> None:
    """A list of exceptions is raised attempt by attempt, at the times of the retry policy; then the result counts."""
    with Environment() as env:
        before = env.now()
        env.fake(charge, returns="at last", raises=[ConnectionError("1"), None])
        assert env.execute_workflow(buy, "a") == "at last"
        env.fake(charge, returns="at last", raises=[ConnectionError("1"), TimeoutError, OSError("3")])
        assert env.execute_workflow(buy, "b") == "at last"
        assert env.now() - before == timedelta(minutes=1 + 1 + 2 + 4)


def test_exceptions_in_fakes_are_activity_failures() -> None:
    """What a fake raises is what the activity raised."""

    def fails(order_id: str, cents: int = 0) -> str:
        raise ApplicationError("no money", type="Broke", non_retryable=True)

    with Environment() as env:
        env.fake(charge, fails)
        with pytest.raises(WorkflowFailedError) as caught:
            env.execute_workflow(buy, "a")
        assert isinstance(caught.value.cause, ActivityError)
        assert isinstance(caught.value.cause.cause, ApplicationError)
        assert caught.value.cause.cause.type == "Broke"


def test_activity_that_fails_forever_is_reported() -> None:
    """An activity without a limit to its attempts that always fails ends the test, not its reader's patience."""
    with Environment() as env:
        env.fake(charge, raises=ConnectionError("down"))
        with pytest.raises(WorkflowStuck, match=r"activity charge .* has failed 5000 times"):
            env.execute_workflow(buy, "a")


def test_ctrl_c_and_pytest_outcomes_propagate() -> None:
    """`pytest.fail` in a fake or in workflow code fails the test; it is no failure of an activity."""

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


def test_invalid_fakes_are_rejected() -> None:
    """A fake that cannot be called as the activity is, or returns something else, is refused at once."""
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
        with pytest.raises(UsageError, match="for the attempts after those in raises="):
            env.fake(charge, raises=[OSError("x")])
        with pytest.raises(UsageError, match="raises= must be an exception"):
            env.fake(charge, raises="oops")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"decorated with @activity\.defn, or its name"):
            env.fake(len, returns=1)  # type: ignore[call-overload]
        with pytest.raises(UsageError, match="takes"):
            env.fake(ship, takes=-1)


# --- how long it takes ------------------------------------------------------------------------------------


def test_attempt_takes_virtual_time() -> None:
    """`takes` lasts so long, beyond the timeout of automatic heartbeats, which come as a worker sends them."""
    with Environment() as env:
        before = env.now()
        env.fake(charge, returns="done", takes=timedelta(minutes=9))
        assert env.execute_workflow(buy, "a") == "done"
        assert env.now() - before == timedelta(minutes=9)


def test_long_attempt_times_out() -> None:
    """An attempt that takes longer than its start-to-close timeout times out there, and is tried again."""
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
        assert [each.attempt for each in env.calls(charge)] == [1, 2]


def test_promised_heartbeats_are_required() -> None:
    """An activity that promised heartbeats times out without them, and lives with them."""
    with Environment() as env:
        env.fake(promised, returns="ok", takes=timedelta(minutes=5))
        assert env.execute_workflow(patient, "a") == "TimedOutError: activity Heartbeat timeout"
        env.fake(promised, returns="ok", takes=timedelta(minutes=5), heartbeat_every=30)
        assert env.execute_workflow(patient, "a") == "ok"


def test_long_attempt_is_cancelled() -> None:
    """A workflow that gives up after five minutes cancels an attempt that would take nine."""
    with Environment() as env:
        before = env.now()
        env.fake(charge, returns="done", takes=timedelta(minutes=9))
        assert env.execute_workflow(buy_in_time, "a") == "gave up"
        assert env.now() - before == timedelta(minutes=5)
        env.fake(charge, returns="done", takes=timedelta(minutes=4))
        assert env.execute_workflow(buy_in_time, "b") == "done"


def test_fake_may_use_the_environment() -> None:
    """What a fake does to workflows happens: here it cancels the one that called it."""
    with Environment() as env:
        handle = env.start_workflow(checkout, ORDER, start_delay=10)

        def cancels(order_id: str, cents: int = 0) -> str:
            handle.cancel()
            return "charged"

        env.fake(charge, cancels)
        with pytest.raises(WorkflowFailedError, match="cancelled"):
            handle.result()


# --- real ones --------------------------------------------------------------------------------------------


def test_real_activities_run_in_their_usual_place() -> None:
    """`def` activities run in threads, process activities too, async ones on a loop; time stands still."""
    with Environment() as env:
        before = env.now()
        assert env.execute_workflow(compute, 1).startswith("hourglass-test-activity")
        assert env.execute_workflow(browse, "u") == "page u"
        assert env.now() == before


def test_methods_need_an_instance_or_a_fake() -> None:
    """An activity that is a method is run on the instance that was given, or faked, or refused with a word."""
    with Environment(activities=[Payments("refunded")]) as env:
        assert env.execute_workflow(give_back, "o") == "refunded o"
    with Environment() as env:
        env.fake(Payments.refund, returns="faked")
        assert env.execute_workflow(give_back, "o") == "faked"
        assert env.calls(Payments.refund) == [call("o")]
    with Environment() as env, pytest.raises(UsageError, match="needs an instance"):
        env.execute_workflow(give_back, "o")


def test_activities_are_found_in_lists_and_modules() -> None:
    """What is called by name is found in a list or in a module."""

    @activity.defn(name="charge-by-name")
    def listed(order_id: str) -> str:
        return f"listed {order_id}"

    with Environment(activities=[listed]) as env:
        assert env.execute_workflow(by_name, "o") == "listed o"
    with Environment(modules=[shop]) as env:
        assert env.execute_workflow("browse", "u") == "page u"


def test_real_activities_may_be_forbidden() -> None:
    """With `real_activities=False` an activity that is not faked is an error of the test."""
    with Environment(real_activities=False) as env, pytest.raises(UsageError, match="charge is not faked"):
        env.execute_workflow(buy, "a")


def test_real_activity_may_use_the_client() -> None:
    """An activity in its thread starts a workflow and waits for it, while the test waits for the activity."""

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


def test_waiting_activity_is_released_at_the_end() -> None:
    """An activity that waits in an environment for what never comes is told when the environment closes."""
    told: list[str] = []
    over = threading.Event()

    @activity.defn(heartbeat_timeout=None)
    def waits() -> None:
        try:
            activity.client().get_workflow_handle("never").result()
        except UsageError as error:
            told.append(str(error))
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
    assert told == ["the Environment was closed while an activity waited in it"]


def test_asynchronous_activity_is_completed_by_the_test() -> None:
    """An activity that is completed by somebody else waits for the test to do so."""
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


def test_real_async_activity_is_cancelled() -> None:
    """A real async activity is cancelled by asyncio when its workflow is."""
    began = threading.Event()

    @activity.defn
    async def hangs() -> None:
        began.set()
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
        began.wait()
        handle.cancel()
        assert handle.result() == "cancelled"
