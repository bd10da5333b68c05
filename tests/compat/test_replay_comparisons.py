"""The comparisons of the replayer: each command, changed in one respect, in histories of three SDKs."""

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

from .foreign.replaying import assert_fits, assert_rejected, replay
from .foreign.writer import Writer, payload, payloads

MAKES = ("hourglass", "temporal-typescript", "", "old")
COLOUR = SearchAttributeKey.for_keyword("Colour")


def act(name: str, *arguments: Any, **options: Any) -> Any:
    """Execute an activity by name."""
    return workflow.execute_activity(name, *arguments, start_to_close_timeout=60, **options)


def signed_by_sdk(history: History, make: str) -> History:
    """Return the history as another SDK would have signed it, or an SDK that does not write its name."""
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


class EveryCommand:
    """Issues one command of each kind. A change alters one of its values."""

    @workflow.run
    def run(self, change: str) -> Any:
        def value(name: str, recorded_history: Any, wrong: Any) -> Any:
            return wrong if change == name else recorded_history

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
def recorded_history() -> History:
    """The history of the unchanged program, written by the embedded engine."""
    with Environment(verify="off", watch="off", workflows=[child]) as environment:
        for name in ("echo", "other"):
            environment.fake(name, lambda value=None: value)
        handle = environment.start_workflow(workflow.defn(name="W")(EveryCommand), "nothing", id="w")
        for fails in (False, True):
            handle.start_update("ask", fails)
        with pytest.raises(WorkflowFailedError):
            handle.result()
        return handle.history()


def with_input(history: History, change: str) -> History:
    """Return the history with another input, which makes the program change one value."""
    events = json.loads(history.to_json())["events"]
    events[0]["workflowExecutionStartedEventAttributes"]["input"] = payloads(change)
    return History.from_json(json.dumps({"events": events}))


def try_replay(history: History, body: Any = EveryCommand, **options: Any) -> ReplayResult:
    """Replay the history on this program."""
    with Replayer(workflows=[workflow.defn(name="W")(body)], **options) as replayer:
        return replayer.try_replay(history)


@pytest.mark.parametrize("make", MAKES)
def test_replay_of_unchanged_program_finds_no_difference(recorded_history: History, make: str) -> None:
    result = try_replay(signed_by_sdk(recorded_history, make))
    if result.difference is not None:
        raise result.difference


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("change", CHANGES)
def test_replay_detects_changed_value_and_names_its_place(
    recorded_history: History, make: str, change: str
) -> None:
    result = try_replay(with_input(signed_by_sdk(recorded_history, make), change))
    assert isinstance(result.difference, NondeterminismError)
    assert not result.ok
    assert Path(result.difference.file).name == Path(__file__).name


@pytest.mark.parametrize(
    "change", ["argument", "memo", "failure message", "update", "update outcome", "duration"]
)
def test_replay_without_argument_comparison_accepts_changed_value(
    recorded_history: History, change: str
) -> None:
    assert try_replay(with_input(recorded_history, change), compare_arguments=False).ok


def test_replay_compares_failure_messages_after_decoding() -> None:
    def raises_with(message: str) -> Any:
        def code() -> None:
            raise ApplicationError(message, type="Broken")

        return code

    words = payload({"message": "no", "stack_trace": ""})
    history = Writer.in_task("W", sdk="temporal-python")
    history.asked(
        "WORKFLOW_EXECUTION_FAILED",
        failure={
            "message": "Encoded failure",
            "encodedAttributes": words,
            "applicationFailureInfo": {"type": "Broken"},
        },
    )
    assert_fits(history, raises_with("no"))
    assert "failure's message" in str(assert_rejected(history, raises_with("yes")))


def test_replay_compares_arguments_and_given_memo_of_continue_as_new() -> None:
    def continues_with(argument: str, **options: Any) -> Any:
        def code(value: str) -> None:
            workflow.continue_as_new(argument, **options)

        return code

    history = Writer.in_task("W", "a", sdk="temporal-python")
    history.asked(
        "WORKFLOW_EXECUTION_CONTINUED_AS_NEW",
        newExecutionRunId="0195ed07-8876-7eb9-b722-ef99fadefce8",
        workflowType={"name": "W"},
        taskQueue={"name": "written"},
        input=payloads("b"),
        memo={"fields": {"kept": payload(1), "given": payload(2)}},
    )
    assert_fits(history, continues_with("b"))
    assert_fits(history, continues_with("b", memo={"given": 2}))
    assert "arguments" in str(assert_rejected(history, continues_with("c")))
    assert "memo" in str(assert_rejected(history, continues_with("b", memo={"given": 3})))


# --- two answers ------------------------------------------------------------------------------------------------------


def two_activities_in_one_task(sdk: str) -> Writer:
    """Write a history with the activities `first` and `second` in one task."""
    history = Writer.in_task("W", sdk=sdk, ids="count")
    history.events[-1]["workflowTaskCompletedEventAttributes"].setdefault("sdkMetadata", {})[
        "coreUsedFlags"
    ] = [1]
    for scheduled in [history.activity("first"), history.activity("second")]:
        history.activity_done(scheduled)
    history.task_completes_run("done")
    return history


def schedules_in_reverse_order() -> str:
    tasks = [workflow.start_activity(name, start_to_close_timeout=60) for name in ("second", "first")]
    workflow.gather(*tasks)
    return "done"


@pytest.mark.parametrize("sdk", ["temporal-typescript", "temporal-dotnet", ""])
def test_replay_tolerates_changed_order_of_other_sdks(sdk: str) -> None:
    """Core rejects the order, so a worker would not continue the run, but the commands are the same."""
    result = replay(two_activities_in_one_task(sdk), schedules_in_reverse_order)
    assert not result.ok
    assert result.does_the_same
    assert isinstance(result.error, NondeterminismError)
    assert "activity first" in result.error.expected
    assert "activity second" in result.error.produced
    with (
        pytest.raises(NondeterminismError),
        Replayer(workflows=[workflow.defn(name="W")(schedules_in_reverse_order)]) as r,
    ):
        r.replay(History.from_json(two_activities_in_one_task(sdk).json()))


def test_replay_reports_missing_command_instead_of_tolerated_order() -> None:
    def code() -> str:
        schedules_in_reverse_order()
        act("third")
        return "done"

    result = replay(two_activities_in_one_task("temporal-typescript"), code)
    assert isinstance(result.error, NondeterminismError)
    assert isinstance(result.difference, NondeterminismError)
    assert "activity first" in result.error.expected
    assert "activity third" in result.difference.produced
    assert "completion" in result.difference.expected


@pytest.mark.parametrize("sdk", ["temporal-typescript", "temporal-python", ""])
def test_replay_detects_removed_patch(sdk: str) -> None:
    def code() -> None:
        act("new")

    history = Writer.in_task("W", sdk=sdk, ids="count")
    history.marker("core_patch", **{"patch-data": payloads({"id": "step", "deprecated": False})})
    history.activity_done(history.activity("new"), 1)
    history.task_completes_run()
    assert not replay(history, code).ok

    def with_patch() -> None:
        if workflow.patched("step"):
            act("new")

    assert_fits(history, with_patch)


# --- Core's holes -----------------------------------------------------------------------------------------------------


def two_tasks_with_an_activity_each(end: str, sdk: str = "temporal-python") -> Writer:
    """Write a history with an activity in each of two tasks; the second activity has not ended."""
    history = Writer.in_task("W", sdk=sdk, ids="count")
    history.activity_done(history.activity("one"), 1)
    history.task()
    history.activity("two")
    if end:
        history.add(f"WORKFLOW_EXECUTION_{end}")
    return history


def test_replay_detects_command_issued_one_task_too_early() -> None:
    """Core pairs a command with an event of a later task."""

    def code() -> None:
        one = workflow.start_activity("one", start_to_close_timeout=60)
        two = workflow.start_activity("two", start_to_close_timeout=60)
        workflow.gather(one, two)

    error = assert_rejected(two_tasks_with_an_activity_each(""), code)
    assert "activity two" in error.produced
    assert "started with event 3" in str(error)


@pytest.mark.parametrize("end", ["", "TERMINATED", "TIMED_OUT"])
def test_replay_detects_additional_command_in_last_task(end: str) -> None:
    def right_code() -> None:
        act("one")
        act("two")

    def code() -> None:
        act("one")
        workflow.start_activity("two", start_to_close_timeout=60)
        act("three")

    assert_fits(two_tasks_with_an_activity_each(end), right_code)
    assert "activity three" in assert_rejected(two_tasks_with_an_activity_each(end), code).produced


def test_replay_detects_swapped_arguments_of_activities() -> None:
    """Core does not detect it."""
    history = Writer.in_task("W", sdk="temporal-python", ids="count")
    for scheduled in [history.activity("echo", "a"), history.activity("echo", "b")]:
        history.activity_done(scheduled, 1)
    history.task_completes_run()

    def code() -> None:
        tasks = [workflow.start_activity("echo", name, start_to_close_timeout=60) for name in "ba"]
        workflow.gather(*tasks)

    assert "arguments" in str(assert_rejected(history, code))


# --- randomness -------------------------------------------------------------------------------------------------------


def test_replay_compares_commands_after_a_reset() -> None:
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
    history.task_completes_run()
    assert "arguments" in str(assert_rejected(history, lambda: act("echo", "b") and None))
    assert_fits(history, lambda: act("echo", "a") and None)


# --- files ------------------------------------------------------------------------------------------------------------


def test_binary_paged_and_nested_histories_are_equal(recorded_history: History, tmp_path: Path) -> None:
    binary = tmp_path / "w.bin"
    binary.write_bytes(recorded_history.encoded)
    document = json.loads(recorded_history.to_json())
    halves = [{"events": document["events"][:5]}, {"history": {"events": document["events"][5:]}}]
    for same in (
        History.from_file(binary),
        History.from_json(json.dumps([document])),
        History.from_json(json.dumps(halves)),
    ):
        assert same.events == recorded_history.events


def test_payload_with_invalid_base64_is_reported() -> None:
    history = Writer.in_task("W", "x")
    history.completed()
    arguments = history.events[0]["workflowExecutionStartedEventAttributes"]["input"]["payloads"]
    for data in ("!!!!", "abc$", "a", "YQ=", "YQ==="):
        arguments[0]["data"] = data
        assert "base64" in str(replay(history, lambda value: None).error), data
    arguments[0]["data"] = "IngtPyI"  # without its padding, which is no fault
    assert replay(history, lambda value: None).ok


def test_deeply_nested_marker_is_reported_as_unreadable() -> None:
    history = Writer.in_task("W")
    history.marker(
        "Version", **{"change-id": {"payloads": [payload(b"[" * 100_000)]}, "version": payloads(1)}
    )
    history.completed()
    assert "marker 'Version' cannot be read" in str(replay(history, lambda: None).error)


def test_activity_before_first_completed_task_is_reported() -> None:
    history = Writer("W")
    history.add("ACTIVITY_TASK_SCHEDULED", activityId="2", activityType={"name": "stray"})
    history.task_completes_run()
    assert "needs a completed workflow task" in str(replay(history, lambda: None).error)


def test_activity_event_after_other_events_belongs_to_last_task() -> None:
    history = Writer.in_task("W")
    history.signal("hello")
    history.activity_done(history.activity("late"))
    history.task_completes_run()
    assert_fits(history, lambda: act("late"))
    assert "activity late" in assert_rejected(history, lambda: None).expected


def test_activity_scheduled_and_cancelled_in_one_task_matches_no_command() -> None:
    def code() -> str:
        task = workflow.start_activity("slow", start_to_close_timeout=60)
        task.cancel()
        return "done"

    history = Writer.in_task("W")
    scheduled = history.activity("slow")
    history.asked("ACTIVITY_TASK_CANCEL_REQUESTED", scheduledEventId=str(scheduled))
    history.add("ACTIVITY_TASK_CANCELED", scheduledEventId=str(scheduled))
    history.completed("done")
    assert_fits(history, code)
    assert "activity slow" in assert_rejected(history, lambda: "done").expected


def test_mutable_side_effect_of_go_keeps_value_until_next_marker() -> None:
    def effect(value: int, call: int) -> dict[str, Any]:
        inner = payload({"payloads": [payload(value)]}, "json/protobuf")
        return {
            "side-effect-id": payloads(f"limit_{call}"),
            "data": {"payloads": [payload("limit"), inner]},
            "mutable-side-effect-call-counter": payloads(call),
        }

    def code() -> list[Any]:
        return [workflow.execute_local_activity("limit", start_to_close_timeout=5) for _ in range(4)]

    history = Writer.in_task("W")
    history.marker("MutableSideEffect", **effect(5, 1))
    history.marker("MutableSideEffect", **effect(6, 3))
    history.completed([5, 5, 6, 6])
    assert_fits(history, code)


def test_replay_compares_arguments_of_java_local_activities() -> None:
    def code(value: str) -> Any:
        return workflow.execute_local_activity("la", value, start_to_close_timeout=5)

    history = Writer.in_task("W", "a", sdk="temporal-java", ids="uuids")
    history.java_local("la", ["a"], 1)
    history.completed(1)
    assert_fits(history, code)
    assert "arguments of local activity la" in str(assert_rejected(history, lambda value: code("b")))


# --- cancellations ----------------------------------------------------------------------------------------------------


def python_failure(message: str, cause: dict[str, Any] | None = None, **info: Any) -> dict[str, Any]:
    """Return a failure as Temporal's Python SDK writes it."""
    return {"message": message, "source": "PythonSDK", **info, **({"cause": cause} if cause else {})}


CANCELED = python_failure("Cancelled", canceledFailureInfo={})
OF_ASYNCIO = python_failure("", applicationFailureInfo={"type": "CancelledError"})
OF_ACTIVITY = python_failure(
    "Activity cancelled", CANCELED, activityFailureInfo={"activityType": {"name": "slow"}}
)


@pytest.mark.parametrize("cause", [CANCELED, OF_ASYNCIO, OF_ACTIVITY], ids=["bare", "asyncio", "activity"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_replay_accepts_different_wording_of_cancelled_updates(cause: dict[str, Any], wrapped: bool) -> None:
    failure = (
        python_failure("exited", cause, applicationFailureInfo={"type": "ApplicationError"})
        if wrapped
        else cause
    )

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

    history = Writer.in_task("W", sdk="temporal-python", ids="count")
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


def history_ending_with(event: str, **attributes: Any) -> Writer:
    """Write a history of one activity that ends with this event."""
    history = Writer.in_task("W", sdk="temporal-python", ids="count")
    history.activity_done(history.activity("echo"), 1)
    history.task()
    history.asked(event, **attributes)
    return history


def line_of(mark: str) -> int:
    """Return the number of the line of this file that ends with the mark."""
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
def test_nondeterminism_error_names_line_of_differing_code(code: Any) -> None:
    error = assert_rejected(history_ending_with("TIMER_STARTED", timerId="1", startToFireTimeout="1s"), code)
    assert (error.file, error.line) == (__file__, line_of(f"{code.__name__} here"))


def test_nondeterminism_error_lists_frames_of_callers() -> None:
    def inner() -> None:
        act("another")  # inner here

    def outer() -> None:
        act("echo")
        inner()  # outer here

    error = assert_rejected(history_ending_with("TIMER_STARTED", timerId="1", startToFireTimeout="1s"), outer)
    for mark in ("inner here", "outer here"):
        assert f"test_replay_comparisons.py:{line_of(mark)}" in str(error)


def test_nondeterminism_error_reports_waiting_code() -> None:
    def waits() -> None:
        act("echo")
        workflow.wait_condition(lambda: False)

    error = assert_rejected(history_ending_with("WORKFLOW_EXECUTION_COMPLETED"), waits)
    assert "completion" in error.expected
    assert "it waits" in error.produced
    assert error.line
