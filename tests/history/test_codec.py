"""Round trips of every kind of history event through JSON, stored bytes and protobuf's JSON."""

from __future__ import annotations

import json
from enum import IntEnum
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec
import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from temporalio.api.history.v1 import HistoryEvent as ProtoEvent
from tests.effort import cases

from hourglass._evaluator.commands import EventGroupMarker
from hourglass._evaluator.specs import RetryRule, VersioningOverride
from hourglass._history import codec, shapes, tables, times
from hourglass._history import events as h
from hourglass._history.encoding import array, decode_events, encode_events
from hourglass.client import (
    AutoUpgradeVersioningOverride,
    OneTimeVersioningOverride,
    PinnedVersioningOverride,
)
from hourglass.converter import ActivityFailure, ApplicationFailure, CanceledFailure, Failure, Payload
from hourglass.errors import HistoryError
from hourglass.workflow import WorkerDeploymentVersion

ALL = (*h.KINDS, *h.FOREIGN_KINDS)
INT32 = {"attempt", "maximum_attempts", "priority_key"}

texts = st.text(st.characters(codec="utf-8"), max_size=8)
payloads = st.builds(
    Payload,
    data=st.binary(max_size=8),
    encoding=st.sampled_from(("json/plain", "binary/null", "ü/odd", "")),
    metadata=st.none()
    | st.dictionaries(
        texts.filter(lambda key: key != "encoding"), st.binary(max_size=4), min_size=1, max_size=2
    ),
)
infos = (
    st.builds(
        ApplicationFailure,
        type=texts,
        non_retryable=st.booleans(),
        details=st.tuples(payloads),
        next_retry_delay=st.none() | st.integers(0, 10**6).map(lambda n: n / 8),
        category=st.integers(0, 1),
    )
    | st.builds(CanceledFailure, details=st.tuples(payloads))
    | st.builds(ActivityFailure, activity_type=texts, scheduled_event_id=st.integers(0, 2**40))
)
failures = st.recursive(
    st.builds(Failure, message=texts, info=st.none() | infos, encoded_attributes=st.none() | payloads),
    lambda inner: st.builds(Failure, message=texts, cause=inner, stack_trace=texts, source=texts),
    max_leaves=3,
)


def field_values(kind: Any, name: str) -> st.SearchStrategy[Any]:
    """Generate values of a field."""
    if isinstance(kind, UnionType):
        return st.one_of(*(field_values(member, name) for member in get_args(kind)))
    if get_origin(kind) is tuple:
        return st.lists(field_values(get_args(kind)[0], name), max_size=2).map(tuple)
    if get_origin(kind) is dict:
        return st.dictionaries(texts, field_values(get_args(kind)[1], name), max_size=2)
    if isinstance(kind, type) and issubclass(kind, IntEnum):
        return st.sampled_from(kind)
    if kind is int:
        if name == "cause":
            return st.sampled_from(sorted(tables.TASK_FAILURE_CAUSES))
        if name == "activation_index":
            return st.integers(-1, 5)
        return st.integers(
            1 if name == "attempt" else 0, 2**31 - 1 if name in INT32 or "flags" in name else 2**62
        )
    if name == "fairness_weight":  # a 32-bit float, at most 1000
        return st.integers(0, 8_000).map(lambda n: n / 8)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: texts,
        bool: st.booleans(),
        float: st.integers(0, 10**9).map(lambda n: n / 8),
        type(None): st.none(),
        Payload: payloads,
        Failure: failures,
    }
    return simple[kind] if kind in simple else structs(kind)


@cache
def structs(kind: type[Any], holder: type[Any] | None = None) -> st.SearchStrategy[Any]:
    """Generate structs with random values in all fields that JSON has."""
    fields = {
        field.name: structs(field.type, kind)
        if field.type in tables._INLINE
        else field_values(field.type, field.name)
        for field in msgspec.structs.fields(kind)
        if not {(kind, field.name), (holder, field.name)} & tables._NOT_WRITTEN
    }
    return st.builds(kind, **fields)


def is_representable(attributes: h.Attributes) -> bool:
    """Whether Temporal's JSON can represent these attributes: at most one of a oneof, and only foreign markers."""
    match attributes:
        case h.WorkflowExecutionUpdateCompleted():
            return attributes.result is None or attributes.failure is None
        case h.WorkflowExecutionUpdateAccepted():
            request = attributes.request
            return request is None or request.update_id in ("", attributes.update_id)
        case h.ForeignMarkerRecorded():
            return attributes.marker_name not in (codec.PATCH_MARKER, codec.LOCAL_MARKER)
        case h.WorkflowTaskCompleted():
            version = attributes.version
            return version is None or bool(version.deployment_name and version.build_id)
        case h.RequestCancelExternalWorkflowExecutionFailed():
            return attributes.cause is not h.ExternalFailedCause.SIGNAL_COUNT_LIMIT_EXCEEDED
        case _:
            return True


def case_name(kind: type[Any]) -> str:
    return kind.__name__


groups = st.lists(
    st.one_of(
        st.builds(EventGroupMarker, id=st.just("g") | texts.filter(bool), label=st.none() | payloads),
        st.builds(EventGroupMarker, inbound_event_id=st.integers(1, 2**63 - 1)),
        st.builds(EventGroupMarker, inbound_update_id=texts.filter(bool)),
    ),
    max_size=2,
).map(tuple)

# No shrinking: for an event with forty fields it takes minutes and explains little.
events = settings(
    max_examples=cases(8, 150),
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("kind", ALL, ids=case_name)
@events
@given(data=st.data(), time_ns=st.integers(1, 4 * 10**18))
def test_history_events_round_trip_as_json_and_protobuf(
    kind: type[h.Attributes], data: Any, time_ns: int
) -> None:
    event = h.HistoryEvent(7, time_ns, data.draw(structs(kind).filter(is_representable)), data.draw(groups))
    text = codec.event_json(event)
    document = msgspec.json.decode(text)
    assert codec.read_event(document) == event
    # Rejects unknown names: fields that Temporal names differently are in _FIELDS of _history/tables.py, fields that its
    # event lacks in _NOT_WRITTEN.
    message = json_format.Parse(text, ProtoEvent())
    theirs = json_format.MessageToDict(message)
    assert normalized(theirs) == normalized(document)
    assert codec.read_event(theirs) == event
    assert codec.read_event(json_format.MessageToDict(message, preserving_proto_field_name=True)) == event


def normalized(value: Any) -> Any:
    """Return JSON with equal spelling of times and durations, and with all numbers as floats."""
    if isinstance(value, dict):
        return {key: normalized(item) for key, item in value.items()}
    if isinstance(value, list):
        return [normalized(item) for item in value]
    if isinstance(value, str):
        moment, length = times.plain_moment(value), times.duration(value)
        return moment if moment is not None else value if length is None else length
    return float(value) if type(value) is int else value


@pytest.mark.parametrize("kind", h.KINDS, ids=case_name)
@events
@given(data=st.data())
def test_history_events_round_trip_as_stored_bytes(kind: type[h.Attributes], data: Any) -> None:
    event = h.HistoryEvent(7, 1, data.draw(structs(kind)), data.draw(groups))
    assert decode_events(bytes(array(1, encode_events([event])))) == [event]


@pytest.mark.parametrize("kind", ALL, ids=case_name)
def test_missing_or_malformed_event_attributes_are_read_as_unset(kind: type[h.Attributes]) -> None:
    name = h.name_of(kind)
    key = f"{name[0].lower()}{name[1:]}EventAttributes"
    bare = codec.read_event({"eventType": f"EVENT_TYPE_{shapes.snake(name).upper()}", key: {}}, 5)
    assert bare.id == 5
    assert h.kind_of(bare.attributes) == name
    for odd in (None, 7, [], "text"):
        assert codec.read_event({"eventType": name, key: odd}, 5) == bare
    fields = [field for group in (tables.table(kind)._known, tables.table(kind)._outer) for field in group]
    for odd in (7, [1], "text", {"name": 7, "payloads": 7, "fields": [], "seconds": "x"}):
        codec.read_event({"eventType": name, key: dict.fromkeys(fields, odd)}, 5)


@pytest.mark.parametrize(
    "result", [{}, {"result": None}, {"result": {}}, {"result": {"payloads": []}}], ids=str
)
def test_every_form_of_an_empty_workflow_result_is_none(result: dict[str, Any]) -> None:
    event = {
        "eventId": "5",
        "eventTime": "2024-01-01T00:00:00Z",
        "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED",
        "workflowExecutionCompletedEventAttributes": {"workflowTaskCompletedEventId": "4", **result},
    }
    attributes = codec.read_event(event).attributes
    assert isinstance(attributes, h.WorkflowExecutionCompleted)
    assert attributes.result == h.NO_RESULT


def test_unknown_kind_of_history_event_keeps_its_name_and_attributes() -> None:
    event = codec.read_event({"eventType": "SomethingNew", "somethingNewEventAttributes": {"a": 1}}, 3)
    assert event.attributes == h.UnknownEvent(name="SOMETHING_NEW", document={"a": 1})
    with pytest.raises(HistoryError, match="item 3 is not a history event"):
        codec.read_event({"eventId": "3"}, 3)


class InlinedSpec(msgspec.Struct, frozen=True):
    """A struct whose fields are inlined."""

    activity_type: str
    task_queue: str = ""
    retry_policy: RetryRule | None = None


class HoldsSpec(h.Attributes, frozen=True, kw_only=True):
    """Attributes that inline the fields of a spec."""

    activity_id: str
    spec: InlinedSpec
    arguments: tuple[Payload, ...] = ()


def test_inlined_spec_fields_of_history_events_round_trip() -> None:
    known = tables._INLINE
    try:
        tables._INLINE = known | {InlinedSpec}
        held = HoldsSpec(
            activity_id="1", spec=InlinedSpec("echo", "q", RetryRule()), arguments=(Payload(b"1"),)
        )
        document = tables.Table(HoldsSpec).write(held)
        assert document.keys() == {"activityId", "activityType", "taskQueue", "retryPolicy", "input"}
        assert tables.Table(HoldsSpec).read(json.loads(json.dumps(document))) == held
    finally:
        tables._INLINE = known


def test_versioning_overrides_of_history_events_round_trip() -> None:
    shape = tables._TYPES[VersioningOverride]
    version = WorkerDeploymentVersion("shop", "2")
    for override in (
        AutoUpgradeVersioningOverride(),
        PinnedVersioningOverride(version),
        OneTimeVersioningOverride(version),
    ):
        assert shape.read(shape.write(override)) == override


def test_timestamps_with_any_utc_offset_are_parsed_and_invalid_ones_are_none() -> None:
    expected = 1_709_251_199_123_456_789
    for text in (
        "2024-02-29T23:59:59.123456789Z",
        "2024-03-01T00:59:59.123456789+01:00",
        "2024-02-29 23:59:59,123456789",
        " 2024-02-29T18:29:59.1234567899-05:30 ",
    ):
        assert times.moment(text) == expected
    for text in (
        "2024-02-30T00:00:00Z",
        "2024-02-29T24:00:00Z",
        "2024-02-29",
        "",
        "2024-02-29T00:00:00+24:00",
    ):
        assert times.moment(text) is None
    assert [times.duration(text) for text in ("1.5s", "-1.5s", "30s", "1e3s", "30")] == [
        1_500_000_000,
        -1_500_000_000,
        30_000_000_000,
        None,
        None,
    ]
