"""What the replayer compares: each thing that a run can ask for, changed in one respect, in histories of three makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hourglass import workflow
from hourglass.converter import SearchAttributeKey
from hourglass.errors import ApplicationError, NondeterminismError, WorkflowFailedError
from hourglass.replay import History, Replayer, ReplayResult
from hourglass.testing import Environment

from .foreign.replaying import fits, refused, replay
from .foreign.writer import Writer, payload, payloads

MAKES = ("hourglass", "temporal-typescript", "", "old")
COLOUR = SearchAttributeKey.for_keyword("Colour")


def act(name: str, *arguments: Any, **options: Any) -> Any:
    """Execute an activity by name."""
    return workflow.execute_activity(name, *arguments, start_to_close_timeout=60, **options)


def of_make(history: History, make: str) -> History:
    """The same history as another SDK on Core would have signed it, or one that does not say its name."""
    events = json.loads(history.to_json())["events"]
    for event in events:
        completed = event.get("workflowTaskCompletedEventAttributes")
        if completed is not None and make != "hourglass":
            completed["sdkMetadata"] = {"coreUsedFlags": [1], **({"sdkName": make} if make else {})}
            if make == "old":
                del completed["sdkMetadata"]  # Core compares neither types nor ids then
    return History.from_json(json.dumps({"events": events}))


@workflow.defn(name="Child")
def child(value: Any) -> Any:
    """Gives back what it got."""
    return value


class Right:
    """Does one of each: the right program, and with a change every wrong one."""

    @workflow.run
    def run(self, change: str) -> Any:
        """What is changed is said by the input, which is put in its place before the replay."""

        def value(name: str, right: Any, wrong: Any) -> Any:
            return wrong if change == name else right

        self.inverts = value("update outcome", False, True)
        self.answer = value("update", "answer", "another")
        self.complaint = value("update failure", "no", "another no")
        act("echo", value("argument", "a", "b"))
        act("echo", activity_id=value("activity id", "chosen", "another"))
        workflow.execute_child_workflow(
            "Child",
            value("child argument", 1, 2),
            id=value("child id", "kid", "another"),
            memo={"m": value("child memo", 1, 2)},
        )
        workflow.execute_child_workflow("Child", 3)
        act("echo", value("after a default id", "c", "d"))
        workflow.upsert_memo({"note": value("memo", "x", "y")})
        workflow.upsert_search_attributes([COLOUR.value_set(value("search attribute", "red", "blue"))])
        workflow.sleep(value("duration", 5, 6))
        workflow.execute_local_activity(value("local type", "echo", "other"), 1, start_to_close_timeout=5)
        workflow.wait_condition(lambda: self.asked > 1)
        if change == "no failure":
            return "fine"
        raise ApplicationError(
            value("failure message", "broken", "bent"),
            value("failure details", 7, 8),
            type=value("failure type", "Broken", "Bent"),
            non_retryable=value("failure retryable", True, False),
        )

    def __init__(self) -> None:
        self.asked = 0
        self.answer = self.complaint = ""
        self.inverts = False

    @workflow.update
    def ask(self, fails: bool) -> str:
        """Answers, or fails."""
        workflow.wait_condition(lambda: self.answer != "")
        self.asked += 1
        if fails is not self.inverts:
            raise ApplicationError(self.complaint)
        return self.answer


CHANGES = (
    "update",
    "update failure",
    "update outcome",
    "argument",
    "activity id",
    "child argument",
    "child id",
    "child memo",
    "after a default id",
    "memo",
    "search attribute",
    "duration",
    "local type",
    "no failure",
    "failure message",
    "failure details",
    "failure type",
    "failure retryable",
)


@pytest.fixture(scope="module")
def right() -> History:
    """The history of the right program, as the embedded engine wrote it."""
    with Environment(verify="off", watch="off", workflows=[child]) as environment:
        for name in ("echo", "other"):
            environment.fake(name, lambda value=None: value)
        handle = environment.start_workflow(workflow.defn(name="W")(Right), "nothing", id="w")
        for fails in (False, True):
            handle.start_update("ask", fails)
        with pytest.raises(WorkflowFailedError):
            handle.result()
        return handle.history()


def changed(history: History, change: str) -> History:
    """The history of a run that began with another input: the program asks for something else."""
    events = json.loads(history.to_json())["events"]
    events[0]["workflowExecutionStartedEventAttributes"]["input"] = payloads(change)
    return History.from_json(json.dumps({"events": events}))


def verdict(history: History, body: Any = Right, **options: Any) -> ReplayResult:
    """What the replayer says of a program."""
    with Replayer(workflows=[workflow.defn(name="W")(body)], **options) as replayer:
        return replayer.try_replay(history)


@pytest.mark.parametrize("make", MAKES)
def test_unchanged_program_replays(right: History, make: str) -> None:
    """Nothing is found where nothing has changed."""
    result = verdict(of_make(right, make))
    if result.difference is not None:
        raise result.difference


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("change", CHANGES)
def test_changed_value_is_detected(right: History, make: str, change: str) -> None:
    """A single value that is another than on record is a difference, and the place in the code is named."""
    result = verdict(changed(of_make(right, make), change))
    assert isinstance(result.difference, NondeterminismError)
    assert not result.ok
    assert Path(result.difference.file).name == Path(__file__).name


@pytest.mark.parametrize(
    "change", ["argument", "memo", "failure message", "update", "update outcome", "duration"]
)
def test_changed_values_may_be_allowed(right: History, change: str) -> None:
    """Without the comparison of values a run may go on with others, as Temporal lets it."""
    assert verdict(changed(right, change), compare_arguments=False).ok


def test_encoded_failure_messages_are_compared() -> None:
    """They are compared as they were before they were encoded."""

    def raises_with(message: str) -> Any:
        def code() -> None:
            raise ApplicationError(message, type="Broken")

        return code

    words = payload({"message": "no", "stack_trace": ""})
    history = Writer("W", sdk="temporal-python")
    history.task()
    history.asked(
        "WORKFLOW_EXECUTION_FAILED",
        failure={
            "message": "Encoded failure",
            "encodedAttributes": words,
            "applicationFailureInfo": {"type": "Broken"},
        },
    )
    fits(history, raises_with("no"))
    assert "failure's message" in str(refused(history, raises_with("yes")))


def test_continue_as_new_arguments_are_compared() -> None:
    """Its arguments, and what the code gives of its memo, are compared; what goes along by itself is not."""

    def continues_with(argument: str, **options: Any) -> Any:
        def code(value: str) -> None:
            workflow.continue_as_new(argument, **options)

        return code

    history = Writer("W", "a", sdk="temporal-python")
    history.task()
    history.asked(
        "WORKFLOW_EXECUTION_CONTINUED_AS_NEW",
        newExecutionRunId="0195ed07-8876-7eb9-b722-ef99fadefce8",
        workflowType={"name": "W"},
        taskQueue={"name": "written"},
        input=payloads("b"),
        memo={"fields": {"kept": payload(1), "given": payload(2)}},
    )
    fits(history, continues_with("b"))
    fits(history, continues_with("b", memo={"given": 2}))
    assert "arguments" in str(refused(history, continues_with("c")))
    assert "memo" in str(refused(history, continues_with("b", memo={"given": 3})))


# --- two answers ------------------------------------------------------------------------------------------------------


def one_after_another(sdk: str) -> Writer:
    """Two activities in one task, `first` before `second`."""
    history = Writer("W", sdk=sdk, ids="count")
    history.task()
    history.events[-1]["workflowTaskCompletedEventAttributes"].setdefault("sdkMetadata", {})[
        "coreUsedFlags"
    ] = [1]
    for scheduled in [history.activity("first"), history.activity("second")]:
        history.activity_done(scheduled)
    history.task()
    history.completed("done")
    return history


def the_other_way_round() -> str:
    tasks = [workflow.start_activity(name, start_to_close_timeout=60) for name in ("second", "first")]
    workflow.gather(*tasks)
    return "done"


@pytest.mark.parametrize("sdk", ["temporal-typescript", "temporal-dotnet", ""])
def test_order_that_a_worker_rejects_is_tolerated(sdk: str) -> None:
    """Core refuses the same things in another order, so a worker would not go on; but they are the same things."""
    result = replay(one_after_another(sdk), the_other_way_round)
    assert not result.ok
    assert result.does_the_same
    assert isinstance(result.error, NondeterminismError)
    assert "activity first" in result.error.expected
    assert "activity second" in result.error.produced
    with (
        pytest.raises(NondeterminismError),
        Replayer(workflows=[workflow.defn(name="W")(the_other_way_round)]) as r,
    ):
        r.replay(History.from_json(one_after_another(sdk).json()))


def test_missing_command_is_reported_instead_of_tolerated_order() -> None:
    """Beyond an order that is forgiven, what is missing later is the difference, not the order that Core complains about."""

    def code() -> str:
        the_other_way_round()
        act("third")
        return "done"

    result = replay(one_after_another("temporal-typescript"), code)
    assert isinstance(result.error, NondeterminismError)
    assert isinstance(result.difference, NondeterminismError)
    assert "activity first" in result.error.expected
    assert "activity third" in result.difference.produced
    assert "completion" in result.difference.expected


@pytest.mark.parametrize("sdk", ["temporal-typescript", "temporal-python", ""])
def test_removed_patch_is_detected(sdk: str) -> None:
    """A worker refuses a run whose history has a patch that the code no longer asks for."""

    def code() -> None:
        act("new")

    history = Writer("W", sdk=sdk, ids="count")
    history.task()
    history.marker("core_patch", **{"patch-data": payloads({"id": "step", "deprecated": False})})
    history.activity_done(history.activity("new"), 1)
    history.task()
    history.completed()
    assert not replay(history, code).ok

    def with_patch() -> None:
        if workflow.patched("step"):
            act("new")

    fits(history, with_patch)


# --- Core's holes -----------------------------------------------------------------------------------------------------


def two_steps(end: str, sdk: str = "temporal-python") -> Writer:
    """An activity, and in the next task another, whose end the run did not live to see."""
    history = Writer("W", sdk=sdk, ids="count")
    history.task()
    history.activity_done(history.activity("one"), 1)
    history.task()
    history.activity("two")
    if end:
        history.add(f"WORKFLOW_EXECUTION_{end}")
    return history


def test_command_issued_one_task_too_early() -> None:
    """Core pairs a command with an event of a later task; task by task the two do not fit."""

    def code() -> None:
        one = workflow.start_activity("one", start_to_close_timeout=60)
        two = workflow.start_activity("two", start_to_close_timeout=60)
        workflow.gather(one, two)

    error = refused(two_steps(""), code)
    assert "activity two" in error.produced
    assert "started with event 3" in str(error)


@pytest.mark.parametrize("end", ["", "TERMINATED", "TIMED_OUT"])
def test_additional_command_in_the_last_task(end: str) -> None:
    """All that a completed task asked for is on record, whatever became of the run."""

    def right_code() -> None:
        act("one")
        act("two")

    def code() -> None:
        act("one")
        workflow.start_activity("two", start_to_close_timeout=60)
        act("three")

    fits(two_steps(end), right_code)
    assert "activity three" in refused(two_steps(end), code).produced


def test_swapped_arguments_are_detected() -> None:
    """Two activities of one type in one task, each with the other's argument: Core sees no difference."""
    history = Writer("W", sdk="temporal-python", ids="count")
    history.task()
    for scheduled in [history.activity("echo", "a"), history.activity("echo", "b")]:
        history.activity_done(scheduled, 1)
    history.task()
    history.completed()

    def code() -> None:
        tasks = [workflow.start_activity("echo", name, start_to_close_timeout=60) for name in "ba"]
        workflow.gather(*tasks)

    assert "arguments" in str(refused(history, code))


# --- randomness -------------------------------------------------------------------------------------------------------


def test_run_that_was_reset_is_compared() -> None:
    """A new seed is no draw: what is asked for after it is compared."""
    history = Writer("W")
    history.add("WORKFLOW_TASK_SCHEDULED", taskQueue={"name": "written"})
    history.add("WORKFLOW_TASK_STARTED", scheduledEventId="2")
    history.add(
        "WORKFLOW_TASK_FAILED",
        scheduledEventId="2",
        startedEventId="3",
        cause="WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW",
        newRunId="0195ed07-8876-7eb9-b722-ef99fadefce7",
    )
    history.task()
    history.activity_done(history.activity("echo", "a"))
    history.task()
    history.completed()
    assert "arguments" in str(refused(history, lambda: act("echo", "b") and None))
    fits(history, lambda: act("echo", "a") and None)


# --- files ------------------------------------------------------------------------------------------------------------


def test_equivalent_forms_of_a_history(right: History, tmp_path: Path) -> None:
    """A binary history, an answer of the API in pages, and a list with one object of events are the same history."""
    binary = tmp_path / "w.bin"
    binary.write_bytes(right.encoded)
    document = json.loads(right.to_json())
    halves = [{"events": document["events"][:5]}, {"history": {"events": document["events"][5:]}}]
    for same in (
        History.from_file(binary),
        History.from_json(json.dumps([document])),
        History.from_json(json.dumps(halves)),
    ):
        assert same.events == right.events


def test_invalid_base64_is_rejected() -> None:
    """A payload that cannot be read is said to be so."""
    history = Writer("W", "x")
    history.task()
    history.completed()
    arguments = history.events[0]["workflowExecutionStartedEventAttributes"]["input"]["payloads"]
    for data in ("!!!!", "abc$", "a", "YQ=", "YQ==="):
        arguments[0]["data"] = data
        assert "base64" in str(replay(history, lambda value: None).error), data
    arguments[0]["data"] = "IngtPyI"  # without its padding, which is no fault
    assert replay(history, lambda value: None).ok


def test_deeply_nested_marker_is_rejected() -> None:
    """It cannot be read, and that is said of it."""
    history = Writer("W")
    history.task()
    history.marker(
        "Version", **{"change-id": {"payloads": [payload(b"[" * 100_000)]}, "version": payloads(1)}
    )
    history.completed()
    assert "marker 'Version' cannot be read" in str(replay(history, lambda: None).error)


def test_activity_before_the_first_completed_task() -> None:
    """An activity that stands before the first completed task is nothing that could be replayed."""
    history = Writer("W")
    history.add("ACTIVITY_TASK_SCHEDULED", activityId="2", activityType={"name": "stray"})
    history.task()
    history.completed()
    assert "needs a completed workflow task" in str(replay(history, lambda: None).error)


def test_detached_activity_event_is_compared() -> None:
    """An activity that stands after something else that happened was asked for by the last task all the same."""
    history = Writer("W")
    history.task()
    history.signal("hello")
    history.activity_done(history.activity("late"))
    history.task()
    history.completed()
    fits(history, lambda: act("late"))
    assert "activity late" in refused(history, lambda: None).expected


def test_activity_cancelled_in_the_task_that_scheduled_it() -> None:
    """Some SDKs ask for it and for its end in one task; here neither leaves."""

    def code() -> str:
        task = workflow.start_activity("slow", start_to_close_timeout=60)
        task.cancel()
        return "done"

    history = Writer("W")
    history.task()
    scheduled = history.activity("slow")
    history.asked("ACTIVITY_TASK_CANCEL_REQUESTED", scheduledEventId=str(scheduled))
    history.add("ACTIVITY_TASK_CANCELED", scheduledEventId=str(scheduled))
    history.completed("done")
    fits(history, code)
    assert "activity slow" in refused(history, lambda: "done").expected


def test_values_of_a_mutable_side_effect() -> None:
    """Go says for which of its calls a value was written down: those before get the one that held before."""

    def effect(value: int, call: int) -> dict[str, Any]:
        inner = payload({"payloads": [payload(value)]}, "json/protobuf")
        return {
            "side-effect-id": payloads(f"limit_{call}"),
            "data": {"payloads": [payload("limit"), inner]},
            "mutable-side-effect-call-counter": payloads(call),
        }

    def code() -> list[Any]:
        return [workflow.execute_local_activity("limit", start_to_close_timeout=5) for _ in range(4)]

    history = Writer("W")
    history.task()
    history.marker("MutableSideEffect", **effect(5, 1))
    history.marker("MutableSideEffect", **effect(6, 3))
    history.completed([5, 5, 6, 6])
    fits(history, code)


def test_java_local_activity_arguments_are_compared() -> None:
    """They are compared."""

    def code(value: str) -> Any:
        return workflow.execute_local_activity("la", value, start_to_close_timeout=5)

    history = Writer("W", "a", sdk="temporal-java", ids="uuids")
    history.task()
    history.java_local("la", ["a"], 1)
    history.completed(1)
    fits(history, code)
    assert "arguments of local activity la" in str(refused(history, lambda value: code("b")))


# --- cancellations ----------------------------------------------------------------------------------------------------


def told(message: str, cause: dict[str, Any] | None = None, **info: Any) -> dict[str, Any]:
    """A failure as Temporal's Python SDK writes it."""
    return {"message": message, "source": "PythonSDK", **info, **({"cause": cause} if cause else {})}


CANCELED = told("Cancelled", canceledFailureInfo={})
OF_ASYNCIO = told("", applicationFailureInfo={"type": "CancelledError"})
OF_ACTIVITY = told("Activity cancelled", CANCELED, activityFailureInfo={"activityType": {"name": "slow"}})


@pytest.mark.parametrize("cause", [CANCELED, OF_ASYNCIO, OF_ACTIVITY], ids=["bare", "asyncio", "activity"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_update_that_fails_by_cancellation(cause: dict[str, Any], wrapped: bool) -> None:
    """How an SDK words the cancellation that ended an update, or caused its failure, is its own."""
    failure = told("exited", cause, applicationFailureInfo={"type": "ApplicationError"}) if wrapped else cause

    class Code:
        @workflow.run
        def run(self) -> None:
            workflow.wait_condition(lambda: False)

        @workflow.update
        def ask(self) -> None:
            task = workflow.spawn(workflow.sleep, 100)
            task.cancel()
            try:
                task.result()
            except BaseException as error:
                if wrapped:
                    raise ApplicationError("exited") from error
                raise

    history = Writer("W", sdk="temporal-python", ids="count")
    history.task()
    accepted = history.add(
        "WORKFLOW_EXECUTION_UPDATE_ACCEPTED",
        protocolInstanceId="u",
        acceptedRequest={"meta": {"updateId": "u"}, "input": {"name": "ask"}},
    )
    history.add(
        "WORKFLOW_EXECUTION_UPDATE_COMPLETED",
        meta={"updateId": "u"},
        acceptedEventId=str(accepted),
        outcome={"failure": failure},
    )
    with Replayer(workflows=[workflow.defn(name="W")(Code)]) as replayer:
        assert replayer.replay(History.from_json(history.json())).ok


# --- places -----------------------------------------------------------------------------------------------------------


def ends(event: str, **attributes: Any) -> Writer:
    """An activity, and then the end."""
    history = Writer("W", sdk="temporal-python", ids="count")
    history.task()
    history.activity_done(history.activity("echo"), 1)
    history.task()
    history.asked(event, **attributes)
    return history


def line_of(mark: str) -> int:
    """The line of this file that ends with a mark."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


def returns() -> str:
    if act("echo") == "never":
        return "never"
    return "done"  # returns here


def raises() -> None:
    act("echo")
    raise ApplicationError("no")  # raises here


def continues() -> None:
    act("echo")
    workflow.continue_as_new()  # continues here


def spawns() -> None:
    act("echo")
    task = workflow.spawn(workflow.execute_activity, "spawned", start_to_close_timeout=60)  # spawns here
    task.result()


@pytest.mark.parametrize("code", [returns, raises, continues, spawns])
def test_difference_names_its_line(code: Any) -> None:
    """Where the code returned, raised, continued or spawned a function of the library's is where it differs."""
    error = refused(ends("TIMER_STARTED", timerId="1", startToFireTimeout="1s"), code)
    assert (error.file, error.line) == (__file__, line_of(f"{code.__name__} here"))


def test_difference_names_the_callers_frames() -> None:
    """Whoever called the author's function that asked is told, too."""

    def inner() -> None:
        act("another")  # inner here

    def outer() -> None:
        act("echo")
        inner()  # outer here

    error = refused(ends("TIMER_STARTED", timerId="1", startToFireTimeout="1s"), outer)
    for mark in ("inner here", "outer here"):
        assert f"test_what_is_compared.py:{line_of(mark)}" in str(error)


def test_difference_report_is_never_empty() -> None:
    """A report never says that nothing was expected and nothing came."""

    def waits() -> None:
        act("echo")
        workflow.wait_condition(lambda: False)

    error = refused(ends("WORKFLOW_EXECUTION_COMPLETED"), waits)
    assert "completion" in error.expected
    assert "it waits" in error.produced
    assert error.line
