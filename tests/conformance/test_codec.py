"""A codec on each engine: every value passes through it, and no history contains a plain value."""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleCalendarSpec,
    ScheduleHandle,
    ScheduleSpec,
)
from hourglass.converter import Payload, SearchAttributeKey
from hourglass.errors import ActivityError, ApplicationError, ChildWorkflowError, UpdateFailedError
from hourglass.replay import Replayer
from hourglass.testing import DevServer

from . import activities
from .world import LIMIT, World

pytestmark = pytest.mark.server

SECRET = "s3cr3t"
REGION = SearchAttributeKey.for_keyword("CustomKeywordField")


class InvertingCodec:
    """Inverts the bits of payloads, and rejects payloads that it has not encoded."""

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [
            Payload(
                _inverted(payload.encoding.encode() + b"\0" + payload.data), "binary/masked", payload.metadata
            )
            for payload in payloads
        ]

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        decoded = []
        for payload in payloads:
            if payload.encoding != "binary/masked":
                raise ValueError(f"not masked: {payload.encoding}")
            encoding, _, data = _inverted(payload.data).partition(b"\0")
            decoded.append(Payload(data, encoding.decode(), payload.metadata))
        return decoded


def _inverted(data: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in data)


# --- workflows that carry a secret everywhere -------------------------------------------------------------------------


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01, maximum_attempts=2), heartbeat_timeout=10)
def heartbeats_and_fails_once(secret: str) -> str:
    """The second attempt reads the heartbeat details of the first."""
    if activity.info().attempt == 1:
        activity.heartbeat(f"{secret} details")
        raise ApplicationError(f"{secret} failure", f"{secret} more", type="Again")
    return f"{secret} after {activity.heartbeat_details(str)}"


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def fails_with_details(secret: str) -> None:
    try:
        raise LookupError(f"{secret} cause")
    except LookupError as error:
        raise ApplicationError(f"{secret} failure", {"secret": secret}, type="Broken") from error


@activity.defn(heartbeat_timeout=None)
def awaits_test_completion(secret: str) -> str:
    activities.state.token = activity.info().task_token
    activities.gate("token").set()
    activity.complete_async()


@workflow.defn
def waits_as_child(secret: str, fail: bool) -> str:
    word: str = workflow.Channel("word", str).receive()
    if fail:
        raise ApplicationError(f"{secret} of the child", secret, type="Childish")
    return f"{secret} {word}"


@workflow.defn
class UsesEveryFeature:
    """Puts the secret into everything that a workflow can send."""

    def __init__(self) -> None:
        self.words: list[str] = []

    @workflow.run
    def run(self, secret: str, turn: int) -> list[str]:
        if turn:
            return [secret, workflow.memo_value("note", type=str), *sorted(workflow.memo())]
        workflow.upsert_memo({"note": f"{secret} note", "second": secret})
        workflow.upsert_search_attributes([REGION.value_set("eu")])
        workflow.set_current_details(f"{secret} at work")
        values = [
            heartbeats_and_fails_once(secret),
            activities.record_call.local(f"{secret} local"),
            *self._failures(secret),
        ]
        for fail in (False, True):
            values.append(self._child(secret, fail))
        with workflow.create_event_group("pause", label=f"{secret} label").scope():
            workflow.sleep(0.01, summary=f"{secret} pause")
        values.append(awaits_test_completion.options(summary=f"{secret} summary")(secret))
        workflow.wait_condition(lambda: len(self.words) == 3)
        assert all(SECRET in value for value in [*values, *self.words]), values
        return workflow.continue_as_new(f"{secret} again", 1)

    def _failures(self, secret: str) -> list[str]:
        failures = []
        for call in (fails_with_details, fails_with_details.local):
            try:
                call(secret)
            except ActivityError as error:
                cause = error.cause
                assert isinstance(cause, ApplicationError)
                assert cause.details == ({"secret": secret},)
                failures.append(f"{cause.message} {cause.cause}")
        return failures

    def _child(self, secret: str, fail: bool) -> str:
        child = waits_as_child.start(secret, fail)
        child.signal("word", secret)
        try:
            return child.result()
        except ChildWorkflowError as error:
            return str(error.cause)

    @workflow.signal
    def add_word(self, word: str) -> None:
        self.words.append(word)

    @workflow.update
    def put_word(self, word: str) -> str:
        if "bad" in word:
            raise ApplicationError(f"{word} is bad", word)
        self.words.append(word)
        return f"{word} is in"

    @put_word.validator
    def reject_worse(self, word: str) -> None:
        if "worse" in word:
            raise ApplicationError(f"{word} is worse", word)

    @workflow.query
    def count_words(self, word: str) -> str:
        return f"{word} {len(self.words)}"


@workflow.defn
def returns_last_result(secret: str) -> str:
    return f"{secret} {workflow.last_completion_result(str)}"


@workflow.defn
def fails_with_cause(secret: str) -> None:
    raise ApplicationError(f"{secret} end", secret, type="Bad") from ValueError(f"{secret} why")


# --- the worlds -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "file", "server"])
def world(request: pytest.FixtureRequest, quick_server: DevServer, tmp_path: Path) -> Iterator[World]:
    """A world on each engine whose client has a codec, with a worker."""
    activities.reset_shared_state()
    targets = {"memory": "local:", "file": f"local:{tmp_path / 'runs.db'}", "server": quick_server.target}
    with Client.connect(targets[request.param], codec=InvertingCodec()) as client:
        world = World(
            request.param, client, [sys.modules[__name__], activities], activities=[activities.SHOP]
        )
        world.start_worker()
        yield world
        activities.reset_shared_state()
        world.stop_worker()


def texts(value: Any) -> Iterator[str]:
    """Yield every string in a history, with the decoded bytes of payloads."""
    match value:
        case dict():
            for key, item in value.items():
                if key == "data" and isinstance(item, str):
                    yield b64decode(item).decode("latin-1")
                else:
                    yield from texts(item)
        case list() | tuple():
            for item in value:
                yield from texts(item)
        case str():
            yield value
        case _:
            return


def check_secret_is_hidden(world: World) -> None:
    """Assert that no history contains the secret, and that all replay with the codec."""
    with Replayer(modules=[sys.modules[__name__]], codec=InvertingCodec()) as replayer:
        for history in world.histories():
            shown = [text for text in texts(json.loads(history.to_json())) if SECRET in text]
            assert not shown, shown
            assert replayer.replay(history).ok


def test_codec_encodes_every_value_of_a_workflow(world: World) -> None:
    handle = world.start(
        UsesEveryFeature.run,
        SECRET,
        0,
        memo={"note": f"{SECRET} first"},
        search_attributes=[REGION.value_set("us")],
        static_summary=f"{SECRET} summary",
        static_details=f"{SECRET} lines",
        start_signal="add_word",
        start_signal_args=[f"{SECRET} early"],
    )
    activities.wait_for_gate("token")
    assert handle.query(UsesEveryFeature.count_words, SECRET) == f"{SECRET} 1"
    handle.signal(UsesEveryFeature.add_word, f"{SECRET} later")
    for word in (f"{SECRET} bad", f"{SECRET} worse"):
        with pytest.raises(UpdateFailedError, match=word) as caught:
            handle.execute_update(UsesEveryFeature.put_word, word)
        assert isinstance(caught.value.cause, ApplicationError)
        assert caught.value.cause.details == (word,)
    assert handle.execute_update(UsesEveryFeature.put_word, f"{SECRET} in time") == f"{SECRET} in time is in"
    assert handle.query("__temporal_workflow_metadata")["currentDetails"] == f"{SECRET} at work"
    description = handle.describe()
    assert (description.static_summary, description.static_details) == (
        f"{SECRET} summary",
        f"{SECRET} lines",
    )
    assert description.memo == {"note": f"{SECRET} note", "second": SECRET}
    assert description.search_attributes["CustomKeywordField"] == "eu"
    activity_handle = world.client.get_activity_handle(token=activities.state.token)
    activity_handle.heartbeat(f"{SECRET} from outside")
    activity_handle.complete(f"{SECRET} from outside")
    # The next run starts with the memo of the first start: upserts apply to one run.
    assert handle.result(timeout=LIMIT) == [f"{SECRET} again", f"{SECRET} first", "note"]
    check_secret_is_hidden(world)


def test_codec_encodes_failures_terminations_and_listed_memos(world: World) -> None:
    failed = world.start(fails_with_cause, SECRET, memo={"note": SECRET})
    error = world.failure(failed)
    assert (error.message, list(error.details), str(error.cause)) == (
        f"{SECRET} end",
        [SECRET],
        f"{SECRET} why",
    )
    ended = world.start(waits_as_child, SECRET, False)
    ended.terminate("no secret", f"{SECRET} details")
    assert list(world.failure(ended).details) == [f"{SECRET} details"]
    query = f"TaskQueue = '{world.queue}'"
    world.wait_until(lambda: world.client.count_workflows(query) == 2, "two runs")
    assert {"note": SECRET} in [run.memo for run in world.client.list_workflows(query)]
    groups = world.client.count_workflows(f"{query} GROUP BY ExecutionStatus").groups
    assert {group.group_values for group in groups} <= {("Failed",), ("Terminated",), ("Running",)}
    check_secret_is_hidden(world)


def last_action(world: World, schedule: ScheduleHandle, number: int) -> Any:
    """Return the last of `number` actions of a schedule."""
    world.wait_until(lambda: len(schedule.describe().info.recent_actions) == number, "an action")
    return schedule.describe().info.recent_actions[-1].action


def test_codec_encodes_arguments_and_memos_of_schedules(world: World) -> None:
    action = ScheduleActionStartWorkflow(
        returns_last_result, SECRET, id=f"{world.queue}-w", task_queue=world.queue, memo={"note": SECRET}
    )
    never = ScheduleSpec(calendars=[ScheduleCalendarSpec(year=2090)])
    schedule = world.client.create_schedule(
        f"{world.queue}-s", Schedule(action, never), memo={"note": f"{SECRET} too"}
    )
    try:
        description = schedule.describe()
        assert list(description.schedule.action.args) == [SECRET]
        assert description.memo == {"note": f"{SECRET} too"}
        results = []
        for number in (1, 2):
            schedule.trigger()
            started = last_action(world, schedule, number)
            handle = world.client.get_workflow_handle(
                started.workflow_id, run_id=started.first_execution_run_id, result_type=str
            )
            world.handles.append(handle)
            results.append(handle.result(timeout=LIMIT))
            world.wait_until(lambda: not schedule.describe().info.running_actions, "the end")
        assert results == [f"{SECRET} None", f"{SECRET} {SECRET} None"]
        check_secret_is_hidden(world)
    finally:
        schedule.delete()
