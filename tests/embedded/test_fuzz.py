"""Input damaged at random: messages, filters, histories and payloads. It is accepted or rejected with our own errors.

A few cases by default, thousands under `make thorough`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import cases
from tests.specs import made

from hourglass import History, Replayer, activity, workflow
from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._embedded.multiprocess import wire
from hourglass._evaluator import commands as c
from hourglass.converter import Payload, default_converter
from hourglass.errors import DecodeError, HistoryError, HourglassError, ServiceError
from hourglass.testing import Environment

from .memory_world import World, start_waiting, text

_FUZZ = settings(
    max_examples=cases(40, 5000),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """Generate copies of the bytes with parts changed, cut, doubled or inserted."""
    size = len(whole)
    place = st.integers(0, size)
    return st.lists(
        st.tuples(
            st.sampled_from(("change", "cut", "double", "insert")), place, place, st.binary(max_size=8)
        ),
        min_size=1,
        max_size=4,
    ).map(lambda damages: _damage(whole, damages))


def _damage(data: bytes, damages: list[tuple[str, int, int, bytes]]) -> bytes:
    for kind, one, two, scrap in damages:
        begin, end = min(one, two), max(one, two)
        match kind:
            case "change":
                data = data[:begin] + scrap + data[begin + len(scrap) :]
            case "cut":
                data = data[:begin] + data[min(end, begin + 16) :]
            case "double":
                data = data[:end] + data[begin:]
            case _:
                data = data[:begin] + scrap + data[begin:]
    return data


# --- messages between processes ---------------------------------------------------------------------------------

_REQUESTS: tuple[s.Request[Any], ...] = (
    made(
        wf.StartWorkflow,
        workflow_id="w",
        workflow_type="W",
        task_queue="q",
        request_id="r",
        arguments=(text("x"),),
    ),
    wf.SignalWorkflow(workflow_id="w", signal_name="s", request_id="r", arguments=(text("x"),)),
    wf.DescribeWorkflow(workflow_id="w"),
    wf.ListWorkflows(query="WorkflowId = 'w'"),
    wf.CountWorkflows(query="ExecutionStatus = 'Running'"),
    wf.TerminateWorkflow(workflow_id="w", reason="enough"),
    wf.GetHistory(workflow_id="w"),
)


@_FUZZ
@given(data=st.data(), request=st.sampled_from(_REQUESTS))
def test_damaged_request_is_rejected_or_valid(data: st.DataObject, request: s.Request[Any]) -> None:
    """A request that can still be decoded is carried out or rejected, and the engine continues."""
    frame = data.draw(damaged(wire.encode_request(1, "key", request)))
    try:
        message = wire.decode_to_owner(frame)
        decoded = wire.decode_request(message) if isinstance(message, wire.RequestMessage) else None
    except HourglassError:
        return

    async def body() -> None:
        world = await World.new()
        if decoded is not None:
            calling = await start_waiting(world.call(decoded))
            calling.cancel()
            (outcome,) = await asyncio.gather(calling, return_exceptions=True)
            assert not isinstance(outcome, Exception) or isinstance(outcome, HourglassError), outcome
        started = await world.start("another", request_id="another")
        assert started.run_id
        await world.close()

    asyncio.run(body())


@_FUZZ
@given(data=st.data())
def test_damaged_answer_is_rejected_or_valid(data: st.DataObject) -> None:
    frame = data.draw(damaged(wire.encode_answer(1, wf.Started(run_id="r"))))
    try:
        message = wire.decode_to_client(frame)
        if isinstance(message, wire.AnswerMessage):
            wire.decode_answer(_REQUESTS[0], message)
    except HourglassError:
        pass


# --- filters ------------------------------------------------------------------------------------------------------

_WORDS = [
    "WorkflowId",
    "ExecutionStatus",
    "StartTime",
    "CloseTime",
    "K",
    "X",
    "RunId",
    "WorkflowType",
    "=",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "AND",
    "OR",
    "NOT",
    "(",
    ")",
    ",",
    "IN",
    "BETWEEN",
    "IS",
    "NULL",
    "STARTS_WITH",
    "ORDER",
    "BY",
    "GROUP",
    "'a'",
    '"b"',
    "'Running'",
    "1",
    "-1",
    "1.5",
    "1e999",
    "true",
    "'2024-01-01T00:00:00Z'",
    "''",
    "'%'",
    "`",
    ";",
    "--",
    "/*",
    "*/",
    "\\",
    "'",
]
_FILTERS = st.one_of(
    st.lists(st.sampled_from(_WORDS), max_size=14).map(" ".join),
    damaged(
        b"WorkflowType = 'W' AND (StartTime > '2024-01-01T00:00:00Z' OR ExecutionStatus IN ('Running', 'Failed'))"
    ).map(lambda data: data.decode("utf-8", "replace")),
    st.text(max_size=40),
)


def test_any_filter_is_answered_or_rejected() -> None:
    loop = asyncio.new_event_loop()
    world = loop.run_until_complete(World.new())
    for number in range(3):
        loop.run_until_complete(world.start(f"w{number}", request_id=f"r{number}"))

    statuses: set[str] = set()

    @_FUZZ
    @given(query=_FILTERS)
    def ask(query: str) -> None:
        for request in (wf.ListWorkflows(query=query), wf.CountWorkflows(query=query)):
            try:
                loop.run_until_complete(world.call(request))
            except ServiceError as error:
                statuses.add(error.status)
        assert loop.run_until_complete(world.call(wf.CountWorkflows())).count == 3

    try:
        ask()
        assert statuses == {"INVALID_ARGUMENT"}
    finally:
        loop.run_until_complete(world.close())
        loop.close()


# --- histories ----------------------------------------------------------------------------------------------------


@activity.defn(start_to_close_timeout=5)
def echo(value: str) -> str:
    return value


@workflow.defn
class Fuzzed:
    def __init__(self) -> None:
        self.signals: list[str] = []

    @workflow.run
    def run(self, value: str) -> str:
        first = echo(value)
        workflow.sleep(5)
        workflow.wait_condition(lambda: bool(self.signals))
        return first + self.signals[0]

    @workflow.signal
    def receive(self, value: str) -> None:
        self.signals.append(value)


def _history() -> dict[str, Any]:
    with Environment(workflows=[Fuzzed], activities=[echo]) as environment:
        handle = environment.client.start_workflow(Fuzzed.run, "x", id="fuzzed")
        handle.signal(Fuzzed.receive, "y")
        assert handle.result() == "xy"
        found: dict[str, Any] = json.loads(handle.history().to_json())
        return found


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, each in value.items():
            found += _places(each, (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            found += _places(each, (*path, number))
    return found


def _damage_at(history: Any, path: tuple[Any, ...], how: str, scrap: Any) -> None:
    holder = history
    for key in path[:-1]:
        holder = holder[key]
    if how == "drop":
        del holder[path[-1]]
    elif how == "double" and isinstance(holder, list):
        holder.insert(path[-1], holder[path[-1]])
    elif how == "swap" and isinstance(holder, list):
        holder.reverse()
    else:
        holder[path[-1]] = scrap


def test_damaged_history_is_replayed_or_rejected() -> None:
    whole = json.dumps(_history())
    places = _places(json.loads(whole))
    with Replayer(workflows=[Fuzzed], timeout=20) as replayer:

        @_FUZZ
        @given(
            st.lists(
                st.tuples(
                    st.sampled_from(places), st.sampled_from(("drop", "double", "swap", "replace")), _JSON
                ),
                min_size=1,
                max_size=3,
            )
        )
        def replay(damages: list[tuple[tuple[Any, ...], str, Any]]) -> None:
            history_data = json.loads(whole)
            for path, how, scrap in damages:
                try:
                    _damage_at(history_data, path, how, scrap)
                except (KeyError, IndexError, TypeError):
                    continue  # the harm before has taken that place away
            history = History.from_json(json.dumps(history_data))
            replayer.try_replay(history)
            try:
                events = list(history.events)
            except HistoryError:
                return
            assert events

        replay()


@_FUZZ
@given(st.binary(max_size=200))
def test_malformed_history_bytes_are_rejected(data: bytes) -> None:
    for form in (data, data.decode("latin-1")):
        try:
            list(History.from_json(form).events)
        except HistoryError:
            pass


# --- payloads -----------------------------------------------------------------------------------------------------

_ENCODINGS = st.sampled_from(
    ["json/plain", "binary/plain", "binary/null", "json/protobuf", "binary/protobuf", "binary/encrypted", ""]
) | st.text(max_size=12)
_HINTS: tuple[Any, ...] = (Any, int, str, bytes, list[int], dict[str, float], int | None, tuple[int, str])


@_FUZZ
@given(
    data=damaged(json.dumps({"a": [1, 2.5, None, "x"], "b": base64.b64encode(b"y").decode()}).encode()),
    encoding=_ENCODINGS,
    metadata=st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=3),
    hint=st.sampled_from(_HINTS),
)
def test_damaged_payload_is_decoded_or_rejected(
    data: bytes, encoding: str, metadata: dict[str, bytes], hint: Any
) -> None:
    try:
        default_converter.decode(Payload(data, encoding, metadata), hint)
    except DecodeError:
        pass


@_FUZZ
@given(data=st.binary(max_size=40), encoding=_ENCODINGS)
def test_workflow_with_damaged_payloads_can_be_described(data: bytes, encoding: str) -> None:
    async def body() -> None:
        world = await World.new()
        payload = Payload(data, encoding)
        started = await world.start(
            "w", request_id="r", arguments=(payload,), memo={"m": payload}, search_attributes={}
        )
        await world.call(
            wf.SignalWorkflow(workflow_id="w", signal_name="s", request_id="r2", arguments=(payload,))
        )
        activation = await world.activation()
        await world.complete(activation.run_id, c.CompleteRun(payload))
        seen = await world.call(wf.DescribeWorkflow(workflow_id="w"))
        assert seen.summary.memo["m"] == payload
        assert len(await world.history("w", started.run_id)) > 4
        assert (await world.call(wf.ListWorkflows(query="WorkflowId = 'w'"))).workflows
        await world.close()

    asyncio.run(body())
