"""Misuse of the API: each mistake is rejected where it is made, with an error that says what to do."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from hourglass import RetryPolicy, activity, workflow
from hourglass.client import Client
from hourglass.errors import (
    ArgumentError,
    DefinitionError,
    EncodeError,
    NotInWorkflowError,
    TargetError,
    UsageError,
    WorkflowFailedError,
)
from hourglass.worker import Worker

from .histories import task_failures


@activity.defn
def good(number: int) -> int:
    return number


@workflow.defn
def takes_two(one: int, two: str) -> str:
    return f"{one} {two}"


def plain() -> None: ...


@dataclass
class Item:
    name: str
    cents: float


@workflow.defn
def takes_item(item: Item, most: float = 1.0, tags: list[str] | None = None) -> float:
    return item.cents


class Opaque:
    """Has no encoding."""


@pytest.fixture(scope="module")
def local() -> Iterator[Client]:
    with Client.connect("local:") as client:
        yield client


@workflow.defn
class _Cart:
    @workflow.run
    def run(self) -> None: ...

    @workflow.signal
    def add(self) -> None: ...

    @workflow.query
    def count(self) -> int:
        return 0


# The mistakes are meant: through these names the type checkers do not see them.
_Worker: Any = Worker
_connect: Any = Client.connect
_good: Any = good
_activity: Any = activity
_workflow: Any = workflow

MISTAKES: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "undecorated workflow started": (lambda c: c.start_workflow(plain), UsageError, "@workflow.defn"),
    "activity started": (lambda c: c.start_workflow(good), UsageError, "@workflow.defn"),
    "activity started as a workflow": (
        lambda c: c.start_workflow(good, 1),
        UsageError,
        "good is an activity, not a workflow: call it in a workflow",
    ),
    "nothing started": (
        lambda c: c.start_workflow(None),
        UsageError,
        "None is not a workflow: pass the function",
    ),
    "argument as an option": (
        lambda c: c.start_workflow(takes_two, one=1),
        UsageError,
        "'one' is an argument of workflow takes_two, not an option of the start: pass the workflow's own arguments",
    ),
    "option of another client": (
        lambda c: c.start_workflow(takes_two, 1, "2", workflow_id="x"),
        UsageError,
        "did you mean id",
    ),
    "time limit of a wait": (
        lambda c: c.execute_workflow(takes_two, 1, "2", timeout=3),
        UsageError,
        "result\\(timeout=…\\)",
    ),
    "arguments as a list": (lambda c: c.start_workflow(takes_two, args=[1, "2"]), UsageError, "one by one"),
    "too few arguments": (
        lambda c: c.start_workflow(takes_two, 1),
        ArgumentError,
        "is missing its argument 'two'",
    ),
    "too many arguments": (lambda c: c.start_workflow(takes_two, 1, "2", 3), ArgumentError, "got 3"),
    "argument of another type": (
        lambda c: c.start_workflow(takes_two, "one", "2"),
        ArgumentError,
        "argument 'one' of workflow takes_two: expected int, got str",
    ),
    "dict that is no such class": (
        lambda c: c.start_workflow(takes_item, {"name": "pen"}),
        ArgumentError,
        "argument 'item' of workflow takes_item: Item: field 'cents' is missing",
    ),
    "nothing for something": (
        lambda c: c.execute_workflow(takes_item, None),
        ArgumentError,
        "argument 'item' of workflow takes_item: expected Item, got null",
    ),
    "unknown option": (lambda c: c.start_workflow(takes_two, 1, "2", idd="x"), UsageError, "did you mean id"),
    "argument by keyword": (lambda c: c.start_workflow(takes_two, 1, two="2"), UsageError, "by position"),
    "empty id": (lambda c: c.start_workflow(takes_two, 1, "2", id=""), UsageError, "id must be"),
    "empty queue": (lambda c: c.start_workflow(takes_two, 1, "2", task_queue=" "), UsageError, "task_queue"),
    "negative timeout": (
        lambda c: c.start_workflow(takes_two, 1, "2", run_timeout=-1),
        UsageError,
        "run_timeout",
    ),
    "timeout that is a text": (
        lambda c: c.start_workflow(takes_two, 1, "2", run_timeout="1h"),
        UsageError,
        "run_timeout",
    ),
    "what cannot travel": (
        lambda c: c.start_workflow(takes_two, Opaque(), "2"),
        EncodeError,
        "argument 'one'",
    ),
    "workflow called": (lambda c: takes_two(1, "2"), UsageError, "client.start_workflow"),
    "worker with nothing": (lambda c: _Worker(c), UsageError, "needs workflows, activities"),
    "worker with undecorated": (lambda c: _Worker(c, workflows=[plain]), DefinitionError, "@workflow.defn"),
    "worker with both lists swapped": (
        lambda c: _Worker(c, workflows=[good], activities=[takes_two]),
        DefinitionError,
        r"^workflows=\[…\]: \S+good \(.+\) is an activity: it belongs in activities=\[…\]",
    ),
    "worker with a workflow as an activity": (
        lambda c: _Worker(c, workflows=[takes_two], activities=[takes_two]),
        DefinitionError,
        r"^activities=\[…\]: \S+takes_two \(.+\) is a workflow: it belongs in workflows=\[…\]",
    ),
    "worker with a name": (
        lambda c: _Worker(c, workflows=["takes_two"]),
        DefinitionError,
        r"'takes_two' is a str, not a workflow: pass the function itself, workflows=\[takes_two\]",
    ),
    "worker with a module in a list": (
        lambda c: _Worker(c, workflows=[takes_two], activities=[pytest]),
        DefinitionError,
        r"pytest is a module: pass it as modules=\[pytest\], or pass its activities",
    ),
    "worker with nothing in a list": (
        lambda c: _Worker(c, workflows=[None]),
        DefinitionError,
        "None is not a workflow",
    ),
    "worker with a result": (
        lambda c: _Worker(c, workflows=[takes_two], activities=[3]),
        DefinitionError,
        "not the result of calling it",
    ),
    "worker with a text for a client": (
        lambda c: _Worker("local:", workflows=[takes_two]),
        UsageError,
        r"not str: Client.connect\('local:'\)",
    ),
    "client made by hand": (lambda c: Client(), UsageError, r"Client.connect\(…\), not by Client\(…\)"),
    "workflow named by position": (lambda c: _workflow.defn("name")(plain), DefinitionError, 'name="name"'),
    "activity named by position": (lambda c: _activity.defn("name"), DefinitionError, 'name="name"'),
    "usual word for an option": (
        lambda c: _good.options(timeout=3),
        UsageError,
        "did you mean start_to_close_timeout",
    ),
    "worker with a bare workflow": (
        lambda c: _Worker(c, workflows=takes_two),
        DefinitionError,
        "must be a list",
    ),
    "worker with no module": (
        lambda c: _Worker(c, modules=["no.such"]),
        DefinitionError,
        "module 'no.such' was not found",
    ),
    "worker with no client": (lambda c: _Worker(None, workflows=[takes_two]), UsageError, "needs a Client"),
    "async generator workflow": (lambda c: workflow.defn(_async_body), DefinitionError, "yield"),
    "generator workflow": (lambda c: workflow.defn(_generator), DefinitionError, "yield"),
    "class without run": (lambda c: workflow.defn(Opaque), DefinitionError, "@workflow.run"),
    "activity from a number": (lambda c: _activity.defn(3), DefinitionError, "function"),
    "activity decorated twice": (lambda c: activity.defn(good), DefinitionError, "decorated twice"),
    "keyword-only argument": (lambda c: activity.defn(_keyword_only), DefinitionError, "keyword-only"),
    "unknown activity option": (
        lambda c: _good.options(start_to_close=3),
        UsageError,
        "did you mean start_to_close_timeout",
    ),
    "no timeout at all": (lambda c: _good.options(start_to_close_timeout=None), UsageError, "start_to_close"),
    "zero timeout": (lambda c: _good.options(start_to_close_timeout=0), UsageError, "more than 0"),
    "retry policy from a dict": (lambda c: _good.options(retry_policy={}), UsageError, "RetryPolicy"),
    "negative attempts": (lambda c: RetryPolicy(maximum_attempts=-1), UsageError, "maximum_attempts"),
    "coefficient below 1": (lambda c: RetryPolicy(backoff_coefficient=0.5), UsageError, "coefficient"),
    "sleep outside": (lambda c: workflow.sleep(1), NotInWorkflowError, "workflow.sleep|sleep"),
    "gather outside": (lambda c: workflow.gather(), NotInWorkflowError, "workflow.gather"),
    "start outside": (lambda c: good.start(1), NotInWorkflowError, "inside a workflow"),
    "heartbeat outside": (lambda c: activity.heartbeat(), UsageError, "running activity"),
    "channel without a name": (lambda c: workflow.Channel(""), DefinitionError, "non-empty"),
    "reserved name": (lambda c: workflow.Channel("__temporal_x"), DefinitionError, "reserved"),
    "signal used as query": (
        lambda c: c.get_workflow_handle("x").query(_Cart.add),
        UsageError,
        "is a signal",
    ),
    "query used as signal": (
        lambda c: c.get_workflow_handle("x").signal(_Cart.count),
        UsageError,
        "is a query",
    ),
    "signal that is a number": (
        lambda c: c.get_workflow_handle("x").signal(3),
        UsageError,
        "is not a signal",
    ),
    "target without a port": (
        lambda c: _connect("example.com"),
        TargetError,
        "did you mean example.com:7233",
    ),
    "target with a scheme": (
        lambda c: _connect("http://example.com:1"),
        TargetError,
        "without a scheme",
    ),
    "target that is a number": (lambda c: _connect(7233), TargetError, "a target must be a str"),
    "target without its colon": (lambda c: _connect("local"), TargetError, r"did you mean local:\?"),
    "target of another library": (
        lambda c: _connect("sqlite:///shop.db"),
        TargetError,
        "for a file: local:shop.db",
    ),
    "port out of range": (lambda c: _connect("example.com:99999"), TargetError, "1 to 65535"),
    "target that is empty": (lambda c: _connect(""), TargetError, "is empty; a target is"),
    "target of SQLite's": (lambda c: _connect(":memory:"), TargetError, r"did you mean local:\?"),
    "misspelt memory": (lambda c: _connect("locl:"), TargetError, r"did you mean local:\?"),
    "port left out": (lambda c: _connect("localhost:"), TargetError, r"did you mean localhost:7233\?"),
    "target as a link": (
        lambda c: _connect("http://localhost:7233/x"),
        TargetError,
        r"did you mean localhost:7233\?",
    ),
    "target that is a database": (
        lambda c: _connect("postgresql+psycopg://db/shop"),
        TargetError,
        "in its own file, or on a Temporal server",
    ),
    "path as a value": (
        lambda c: c.start_workflow(errs, Path("a.csv")),
        EncodeError,
        r"PosixPath at \$ cannot be represented in JSON: pass str\(path\)",
    ),
    "open file as a value": (
        lambda c: c.start_workflow(errs, io.BytesIO()),
        EncodeError,
        "an open file cannot be sent, so pass its path",
    ),
    "error as a value": (lambda c: c.start_workflow(errs, ValueError("x")), EncodeError, r"str\(error\)"),
    "array as a value": (lambda c: c.start_workflow(errs, Array()), EncodeError, r"pass value\.tolist\(\)"),
    "misspelt local": (lambda c: _connect("locl:shop.db"), TargetError, "did you mean local:shop.db"),
}


class Array:
    """Like numpy's arrays: no JSON form, but a method `tolist`."""

    def tolist(self) -> list[int]:
        return [1]


async def _async_body() -> Any:
    yield 1


def _generator() -> Any:
    yield 1


def _keyword_only(*, name: str) -> None: ...


@pytest.mark.parametrize("name", list(MISTAKES))
def test_misuse_is_rejected_with_advice(name: str, local: Client) -> None:
    mistake, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message) as caught:
        mistake(local)
    assert isinstance(caught.value, (UsageError, EncodeError))


INSIDE: dict[str, tuple[Callable[[], Any], str]] = {
    "negative sleep": (lambda: workflow.sleep(-1), "the duration of a sleep"),
    "too few arguments": (lambda: good(), "is missing its argument 'number'"),  # type: ignore[call-arg]
    "gather of values": (lambda: workflow.gather(1, 2), "takes tasks"),  # type: ignore[call-overload]
    "spawn of a value": (lambda: workflow.spawn(3), "takes a function"),  # type: ignore[arg-type]
    "condition that is a value": (lambda: workflow.wait_condition(True), "takes a function"),  # type: ignore[arg-type]
    "limit of nothing": (lambda: workflow.map(good, [1], limit=0), "at least 1"),
    "what cannot travel": (lambda: good(Opaque()), "argument 'number' of activity good"),  # type: ignore[arg-type]
    "child workflow": (lambda: takes_two(1), "takes_two"),  # type: ignore[call-arg]
    "wait for a condition": (
        lambda: workflow.wait(lambda: True),  # type: ignore[arg-type]
        "for a condition: workflow.wait_condition",
    ),
    "wait for one task": (lambda: workflow.wait(good.start(1)), "task.result()"),  # type: ignore[arg-type]
    "blocking wait for nothing": (lambda: workflow.wait([]), "at least one task"),
}


@workflow.defn
def errs(name: str) -> None:
    INSIDE[name][0]()


@pytest.mark.parametrize("name", list(INSIDE))
def test_misuse_inside_a_workflow_parks_the_run(name: str, local: Client) -> None:
    with Worker(local, workflows=[errs], activities=[good]):
        handle = local.start_workflow(errs, name, task_timeout=1)
        (message, *_) = until(lambda: task_failures(handle))
        assert INSIDE[name][1] in message
        handle.terminate("seen")


def test_convertible_arguments_are_accepted(local: Client) -> None:
    _takes: Any = takes_item
    with Worker(local, workflows=[takes_item]):
        assert local.execute_workflow(_takes, {"name": "pen", "cents": 3}, 2, ("a",)) == 3


def test_arguments_that_do_not_fit_the_workflow_are_logged_once(
    local: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A start by name is not checked by the client. The log shows none of our code."""
    with Worker(local, workflows=[takes_item]):
        runs = [
            local.start_workflow("takes_item", *arguments, id=f"begin-{at}", task_timeout=1)
            for at, arguments in enumerate([({"name": "pen"},), (), ({"name": "pen", "cents": 1}, 1, [], 4)])
        ]
        for handle in runs:
            until(lambda handle=handle: task_failures(handle))
            handle.terminate("seen")
    start_errors = [record for record in caplog.records if "cannot start: " in record.getMessage()]
    assert [start_error.exc_info for start_error in start_errors] == [None, None, None]
    text = " ".join(start_error.getMessage() for start_error in start_errors)
    for words in (
        "begin-0, run ",
        "cannot start: argument 'item' of workflow takes_item: Item: field 'cents' is missing (json/plain as Item). ",
        "cannot start: workflow takes_item takes 1 to 3 arguments (item, most, tags), got 0. ",
        "cannot start: workflow takes_item takes 1 to 3 arguments (item, most, tags), got 4. ",
    ):
        assert words in text
    assert "_signature.py" not in text


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def exits() -> None:
    sys.exit("bad input")


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def recurses(depth: int) -> None:
    recurses(depth + 1)


@workflow.defn
def executes_activity(name: str) -> None:
    (exits() if name == "exits" else recurses(1))


@workflow.defn
def exits_workflow() -> None:
    sys.exit(3)


def test_sys_exit_in_an_activity_names_its_line(caplog: pytest.LogCaptureFixture) -> None:
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[executes_activity], activities=[exits, recurses]),
        pytest.raises(WorkflowFailedError, match="SystemExit: bad input") as caught,
    ):
        client.execute_workflow(executes_activity, "exits", id="exits")
    assert 'sys.exit("bad input")' in caplog.text
    assert 'sys.exit("bad input")' in "".join(traceback.format_exception(caught.value))


def test_repeated_frames_of_a_recursion_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[executes_activity], activities=[exits, recurses]),
        pytest.raises(WorkflowFailedError, match="RecursionError") as caught,
    ):
        client.execute_workflow(executes_activity, "recurses", id="recursion")
    for text in (caplog.text, "".join(traceback.format_exception(caught.value))):
        assert "[Previous line repeated" in text
        assert text.count("in recurses") < 20


def test_sys_exit_in_a_workflow_parks_the_run_and_names_its_line(caplog: pytest.LogCaptureFixture) -> None:
    with Client.connect("local:") as client, Worker(client, workflows=[exits_workflow]):
        handle = client.start_workflow(exits_workflow, id="exits")
        until(lambda: "is parked" in caplog.text)
        handle.terminate()
    line = exits_workflow.fn.__code__.co_firstlineno + 2
    assert f"is parked: SystemExit at {__file__}:{line}" in caplog.text
    assert "Use `return` to complete" in caplog.text
