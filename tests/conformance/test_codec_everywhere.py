"""A codec on each engine: whatever carries a value passes it on the way out and in, and no history shows a word of it."""

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

from . import acts
from .world import World

pytestmark = pytest.mark.server

SECRET = "s3cr3t"
REGION = SearchAttributeKey.for_keyword("CustomKeywordField")
LIMIT = 30


class Mask:
    """Turns bits over, marks what it turned, and refuses the rest."""

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Masked."""
        return [
            Payload(_turned(each.encoding.encode() + b"\0" + each.data), "binary/masked", each.metadata)
            for each in payloads
        ]

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Unmasked."""
        found = []
        for each in payloads:
            if each.encoding != "binary/masked":
                raise ValueError(f"not masked: {each.encoding}")
            encoding, _, data = _turned(each.data).partition(b"\0")
            found.append(Payload(data, encoding.decode(), each.metadata))
        return found


def _turned(data: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in data)


# --- workflows that carry a secret everywhere -------------------------------------------------------------------------


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01, maximum_attempts=2), heartbeat_timeout=10)
def beats(secret: str) -> str:
    """The second attempt finds the details of the first."""
    if activity.info().attempt == 1:
        activity.heartbeat(f"{secret} details")
        raise ApplicationError(f"{secret} failure", f"{secret} more", type="Again")
    return f"{secret} after {activity.heartbeat_details(str)}"


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def breaks(secret: str) -> None:
    """A failure with details and a cause."""
    try:
        raise LookupError(f"{secret} cause")
    except LookupError as error:
        raise ApplicationError(f"{secret} failure", {"secret": secret}, type="Broken") from error


@activity.defn(heartbeat_timeout=None)
def waits_outside(secret: str) -> str:
    """Is completed by the test."""
    acts.place.token = activity.info().task_token
    acts.gate("token").set()
    activity.complete_async()


@workflow.defn
def is_a_child(secret: str, fail: bool) -> str:
    """Takes a signal; returns or fails."""
    word: str = workflow.Channel("word", str).receive()
    if fail:
        raise ApplicationError(f"{secret} of the child", secret, type="Childish")
    return f"{secret} {word}"


@workflow.defn
class Vault:
    """Has the secret in everything that it does."""

    def __init__(self) -> None:
        self.words: list[str] = []

    @workflow.run
    def run(self, secret: str, turn: int) -> list[str]:
        """The first run ends by continuing as new, the second by returning."""
        if turn:
            return [secret, workflow.memo_value("note", type=str), *sorted(workflow.memo())]
        workflow.upsert_memo({"note": f"{secret} note", "second": secret})
        workflow.upsert_search_attributes([REGION.value_set("eu")])
        workflow.set_current_details(f"{secret} at work")
        found = [beats(secret), acts.note.local(f"{secret} local"), *self._failures(secret)]
        for fail in (False, True):
            found.append(self._child(secret, fail))
        with workflow.create_event_group("pause", label=f"{secret} label").scope():
            workflow.sleep(0.01, summary=f"{secret} pause")
        found.append(waits_outside.options(summary=f"{secret} summary")(secret))
        workflow.wait_condition(lambda: len(self.words) == 3)
        assert all(SECRET in each for each in [*found, *self.words]), found
        return workflow.continue_as_new(f"{secret} again", 1)

    def _failures(self, secret: str) -> list[str]:
        found = []
        for call in (breaks, breaks.local):
            try:
                call(secret)
            except ActivityError as error:
                cause = error.cause
                assert isinstance(cause, ApplicationError)
                assert cause.details == ({"secret": secret},)
                found.append(f"{cause.message} {cause.cause}")
        return found

    def _child(self, secret: str, fail: bool) -> str:
        child = is_a_child.start(secret, fail)
        child.signal("word", secret)
        try:
            return child.result()
        except ChildWorkflowError as error:
            return str(error.cause)

    @workflow.signal
    def tell(self, word: str) -> None:
        """A signal."""
        self.words.append(word)

    @workflow.update
    def put(self, word: str) -> str:
        """An update, which may fail."""
        if "bad" in word:
            raise ApplicationError(f"{word} is bad", word)
        self.words.append(word)
        return f"{word} is in"

    @put.validator
    def check(self, word: str) -> None:
        """Or be refused."""
        if "worse" in word:
            raise ApplicationError(f"{word} is worse", word)

    @workflow.query
    def ask(self, word: str) -> str:
        """A query."""
        return f"{word} {len(self.words)}"


@workflow.defn
def repeats(secret: str) -> str:
    """What a schedule starts: it is given the result of the one before."""
    return f"{secret} {workflow.last_completion_result(str)}"


@workflow.defn
def ends_badly(secret: str) -> None:
    """Fails, with details and a cause."""
    raise ApplicationError(f"{secret} end", secret, type="Bad") from ValueError(f"{secret} why")


# --- the worlds -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "file", "server"])
def world(request: pytest.FixtureRequest, quick_server: DevServer, tmp_path: Path) -> Iterator[World]:
    """A world on each engine whose client has a codec, with a worker."""
    acts.fresh_place()
    targets = {"memory": "local:", "file": f"local:{tmp_path / 'runs.db'}", "server": quick_server.target}
    with Client.connect(targets[request.param], codec=Mask()) as client:
        world = World(request.param, client, [sys.modules[__name__], acts], activities=[acts.SHOP])
        world.start_worker()
        yield world
        acts.fresh_place()
        world.stop_worker()


def texts(value: Any) -> Iterator[str]:
    """Every text in a history, and every payload's bytes as text."""
    match value:
        case dict():
            for key, each in value.items():
                if key == "data" and isinstance(each, str):
                    yield b64decode(each).decode("latin-1")
                else:
                    yield from texts(each)
        case list() | tuple():
            for each in value:
                yield from texts(each)
        case str():
            yield value
        case _:
            return


def kept(world: World) -> None:
    """No history shows the secret, and with the codec each one replays."""
    with Replayer(modules=[sys.modules[__name__]], codec=Mask()) as replayer:
        for history in world.histories():
            shown = [each for each in texts(json.loads(history.to_json())) if SECRET in each]
            assert not shown, shown
            assert replayer.replay(history).ok


def test_workflow_that_uses_every_feature_with_a_codec(world: World) -> None:
    """Arguments, results, failures, details, memos, summaries, signals, updates, queries, children, the next run."""
    handle = world.start(
        Vault.run,
        SECRET,
        0,
        memo={"note": f"{SECRET} first"},
        search_attributes=[REGION.value_set("us")],
        static_summary=f"{SECRET} summary",
        static_details=f"{SECRET} lines",
        start_signal="tell",
        start_signal_args=[f"{SECRET} early"],
    )
    acts.arrived("token")
    assert handle.query(Vault.ask, SECRET) == f"{SECRET} 1"
    handle.signal(Vault.tell, f"{SECRET} later")
    for word in (f"{SECRET} bad", f"{SECRET} worse"):
        with pytest.raises(UpdateFailedError, match=word) as caught:
            handle.execute_update(Vault.put, word)
        assert isinstance(caught.value.cause, ApplicationError)
        assert caught.value.cause.details == (word,)
    assert handle.execute_update(Vault.put, f"{SECRET} in time") == f"{SECRET} in time is in"
    assert handle.query("__temporal_workflow_metadata")["currentDetails"] == f"{SECRET} at work"
    told = handle.describe()
    assert (told.static_summary, told.static_details) == (f"{SECRET} summary", f"{SECRET} lines")
    assert told.memo == {"note": f"{SECRET} note", "second": SECRET}
    assert told.search_attributes["CustomKeywordField"] == "eu"
    outside = world.client.get_activity_handle(token=acts.place.token)
    outside.heartbeat(f"{SECRET} from outside")
    outside.complete(f"{SECRET} from outside")
    # The next run begins with the memo that the first was started with: upserts are a run's own.
    assert handle.result(timeout=LIMIT) == [f"{SECRET} again", f"{SECRET} first", "note"]
    kept(world)


def test_every_kind_of_end_with_a_codec(world: World) -> None:
    """A failure with details and a cause, a termination with details, and lists that show memos."""
    failed = world.start(ends_badly, SECRET, memo={"note": SECRET})
    error = world.failure(failed)
    assert (error.message, list(error.details), str(error.cause)) == (
        f"{SECRET} end",
        [SECRET],
        f"{SECRET} why",
    )
    ended = world.start(is_a_child, SECRET, False)
    ended.terminate("no secret", f"{SECRET} details")
    assert list(world.failure(ended).details) == [f"{SECRET} details"]
    query = f"TaskQueue = '{world.queue}'"
    world.until_true(lambda: world.client.count_workflows(query) == 2, "two runs")
    assert {"note": SECRET} in [run.memo for run in world.client.list_workflows(query)]
    groups = world.client.count_workflows(f"{query} GROUP BY ExecutionStatus").groups
    assert {group.group_values for group in groups} <= {("Failed",), ("Terminated",), ("Running",)}
    kept(world)


def last_action(world: World, schedule: ScheduleHandle, number: int) -> Any:
    """What a schedule started, once it has acted so often."""
    world.until_true(lambda: len(schedule.describe().info.recent_actions) == number, "an action")
    return schedule.describe().info.recent_actions[-1].action


def test_schedule_with_a_codec(world: World) -> None:
    """A schedule's arguments and memos are told to whoever has the codec; what it starts knows the last result."""
    action = ScheduleActionStartWorkflow(
        repeats, SECRET, id=f"{world.queue}-w", task_queue=world.queue, memo={"note": SECRET}
    )
    never = ScheduleSpec(calendars=[ScheduleCalendarSpec(year=2090)])
    schedule = world.client.create_schedule(
        f"{world.queue}-s", Schedule(action, never), memo={"note": f"{SECRET} too"}
    )
    try:
        told = schedule.describe()
        assert list(told.schedule.action.args) == [SECRET]
        assert told.memo == {"note": f"{SECRET} too"}
        results = []
        for number in (1, 2):
            schedule.trigger()
            started = last_action(world, schedule, number)
            handle = world.client.get_workflow_handle(
                started.workflow_id, run_id=started.first_execution_run_id, result_type=str
            )
            world.handles.append(handle)
            results.append(handle.result(timeout=LIMIT))
            world.until_true(lambda: not schedule.describe().info.running_actions, "the end")
        assert results == [f"{SECRET} None", f"{SECRET} {SECRET} None"]
        kept(world)
    finally:
        schedule.delete()
