"""Conversion of exceptions to failures and back, and its agreement with Temporal's Python SDK."""

import copy
from datetime import timedelta
from typing import Any

import pytest
import temporalio.api.failure.v1
import temporalio.converter
import temporalio.exceptions
from hypothesis import given
from hypothesis import strategies as st

from hourglass import errors
from hourglass.converter import (
    ActivityFailure,
    ApplicationFailure,
    CanceledFailure,
    ChildWorkflowFailure,
    Failure,
    Payload,
    ResetFailure,
    ServerFailure,
    TerminatedFailure,
    TimeoutFailure,
    decode_failure,
    default_converter,
    encode_failure,
)
from hourglass.converter._data import causes
from hourglass.converter._failures import MOST_CAUSES
from hourglass.errors import RetryState, TimeoutType

from .test_temporalio import to_ours, to_theirs

theirs = temporalio.converter.DataConverter.default


def raise_and_catch(exc: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise exc from cause
    except BaseException as caught:
        return caught


def to_failure(exc: BaseException) -> Failure:
    return default_converter.to_failure(exc)


def test_exception_becomes_an_application_failure_of_its_class() -> None:
    failure = to_failure(raise_and_catch(ValueError("no such order")))
    assert failure.message == "no such order"
    assert failure.info == ApplicationFailure(type="ValueError")
    assert "in raise_and_catch" in failure.stack_trace
    assert failure.source == "HourglassSDK"


@pytest.mark.parametrize(
    ("exc", "info"),
    [
        (errors.ApplicationError("m", type="T", non_retryable=True), ApplicationFailure("T", True)),
        (
            errors.ApplicationError("m", 1, "a"),
            ApplicationFailure("ApplicationError", False, (Payload(b"1"), Payload(b'"a"'))),
        ),
        (
            errors.ApplicationError("m", next_retry_delay=timedelta(seconds=3)),
            ApplicationFailure("ApplicationError", next_retry_delay=3.0),
        ),
        (
            errors.ApplicationError("m", next_retry_delay=2),
            ApplicationFailure("ApplicationError", next_retry_delay=2.0),
        ),
        (
            errors.TimedOutError("m", type=TimeoutType.HEARTBEAT, last_heartbeat_details=[1]),
            TimeoutFailure(TimeoutType.HEARTBEAT, (Payload(b"1"),)),
        ),
        (errors.CancelledError("m", 1), CanceledFailure((Payload(b"1"),))),
        (errors.Cancelled("m"), CanceledFailure()),
        (errors.TerminatedError("m"), TerminatedFailure()),
        (errors.ServerError("m", non_retryable=True), ServerFailure(True)),
        (
            errors.ActivityError(
                "m",
                activity_type="t",
                activity_id="i",
                identity="w",
                scheduled_event_id=5,
                started_event_id=6,
                retry_state=RetryState.TIMEOUT,
            ),
            ActivityFailure("t", "i", "w", 5, 6, RetryState.TIMEOUT),
        ),
        (
            errors.ChildWorkflowError(
                "m",
                namespace="n",
                workflow_id="w",
                run_id="r",
                workflow_type="t",
                initiated_event_id=1,
                started_event_id=2,
                retry_state=RetryState.IN_PROGRESS,
            ),
            ChildWorkflowFailure("n", "w", "r", "t", 1, 2, RetryState.IN_PROGRESS),
        ),
        (errors.FailureError("m"), ApplicationFailure("FailureError")),
        (errors.DecodeError("m"), ApplicationFailure("DecodeError")),
        (KeyboardInterrupt("m"), ApplicationFailure("KeyboardInterrupt")),
    ],
    ids=lambda case: type(case).__name__,
)
def test_each_error_class_has_its_failure_kind_and_round_trips(exc: BaseException, info: Any) -> None:
    failure = to_failure(exc)
    assert failure.info == info
    assert failure.message == "m"
    back = default_converter.from_failure(failure)
    if isinstance(exc, errors.FailureError) and type(exc) is not errors.FailureError:
        assert type(back) is type(exc)
        for name in ("details", "type", "non_retryable", "activity_id", "run_id", "retry_state", "identity"):
            if hasattr(exc, name):
                assert list(map(str, [getattr(back, name)])) == list(map(str, [getattr(exc, name)]))
    assert to_failure(back) == failure


def test_failure_cause_is_the_cause_or_unsuppressed_context_of_the_exception() -> None:
    explicit = raise_and_catch(ValueError("a"), KeyError("b"))
    assert to_failure(explicit).cause == to_failure(KeyError("b"))
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            raise RuntimeError("outer")
    except RuntimeError as error:
        implicit = error
    cause = to_failure(implicit).cause
    assert cause is not None
    assert cause.info == ApplicationFailure("KeyError")
    implicit.__suppress_context__ = True
    assert to_failure(implicit).cause is None


def test_remote_failure_keeps_its_chain_of_causes_and_stack_traces() -> None:
    inner = raise_and_catch(errors.ApplicationError("declined", {"code": 5}, type="CardDeclined"))
    outer = errors.ActivityError("activity failed", activity_type="charge")
    outer.__cause__ = inner
    back = default_converter.from_failure(to_failure(outer))
    assert isinstance(back, errors.ActivityError)
    assert isinstance(back.cause, errors.ApplicationError)
    assert back.cause.type == "CardDeclined"
    assert back.cause.details == ({"code": 5},)
    assert "in raise_and_catch" in back.cause.remote_traceback


def test_failure_of_an_unknown_kind_round_trips() -> None:
    for info in (None, ResetFailure((Payload(b"1"),))):
        failure = Failure("odd", info, None, "stack", "GoSDK")
        back = default_converter.from_failure(failure)
        assert type(back) is errors.FailureError
        assert default_converter.to_failure(back) == failure


def test_category_source_and_unreadable_details_of_a_failure_round_trip() -> None:
    unreadable = Payload(b"?", "binary/encrypted")
    failure = Failure("m", ApplicationFailure("T", True, (unreadable,), 1.5, 1), Failure("c"), "s", "GoSDK")
    back = default_converter.from_failure(failure)
    assert isinstance(back, errors.ApplicationError)
    assert back.details == (unreadable,)
    assert to_failure(back) == failure
    assert to_failure(raise_and_catch(ValueError("x"), back)).cause == failure
    assert to_failure(copy.copy(back)) == failure


def test_remote_failure_raised_again_keeps_its_source_and_gets_the_new_cause() -> None:
    back = default_converter.from_failure(Failure("m", ServerFailure(), Failure("old"), source="Server"))
    again = to_failure(raise_and_catch(back, KeyError("new")))
    assert (again.message, again.source) == ("m", "Server")
    assert again.cause is not None
    assert again.cause.info == ApplicationFailure("KeyError")


def test_circular_and_long_chains_of_causes_are_truncated() -> None:
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    assert [link.message for link in causes(to_failure(a))] == ["a", "b"]
    exc: BaseException = ValueError("0")
    for number in range(1, 3000):
        exc = raise_and_catch(ValueError(str(number)), exc)
    links = list(causes(to_failure(exc)))
    assert len(links) == MOST_CAUSES
    assert (links[0].message, links[-1].message) == ("2999", "0")
    assert any("2951 more causes omitted" in link.message for link in links)


def test_received_chain_of_3000_causes_is_converted_without_recursion() -> None:
    failure = Failure("0")
    for number in range(1, 3000):
        failure = Failure(str(number), ApplicationFailure("T"), failure)
    back: BaseException | None = default_converter.from_failure(failure)
    opened = decode_failure(encode_failure(failure, default_converter), default_converter)
    assert [link.message for link in causes(opened)] == [link.message for link in causes(failure)]
    assert len(list(causes(default_converter.to_failure(back)))) == MOST_CAUSES  # type: ignore[arg-type]
    depth = 0
    while back is not None:
        back, depth = back.__cause__, depth + 1
    assert depth == 3000


def test_failure_detail_that_cannot_be_encoded_becomes_a_note() -> None:
    info = to_failure(errors.ApplicationError("m", object(), 2)).info
    assert isinstance(info, ApplicationFailure)
    assert b"object that could not be encoded" in info.details[0].data
    assert info.details[1] == Payload(b"2")


def test_exceptions_with_invalid_attributes_are_converted_to_failures() -> None:
    class RaisesInStr(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    class WithoutInit(errors.ApplicationError):
        def __init__(self) -> None:
            pass

    assert "raised RuntimeError" in to_failure(RaisesInStr()).message
    assert to_failure(WithoutInit()).info == ApplicationFailure("WithoutInit")
    assert to_failure(ValueError("\ud800")).message == "\\ud800"
    odd = errors.ApplicationError("m", next_retry_delay=float("nan"))
    odd.details = None  # type: ignore[assignment]
    odd.message = 5  # type: ignore[assignment]
    assert to_failure(odd).info == ApplicationFailure("ApplicationError")
    wrong = errors.ActivityError("m", retry_state=99, activity_id=5)  # type: ignore[arg-type]
    assert to_failure(wrong).info == ActivityFailure()


def test_failure_type_is_the_class_of_an_application_error() -> None:
    class OutOfStock(errors.ApplicationError):
        pass

    assert to_failure(OutOfStock("m")).info == ApplicationFailure("OutOfStock")


# --- with Temporal's Python SDK ----------------------------------------------------------------------------------------


def proto_of(failure: Failure) -> Any:
    """Convert an application failure and its causes to protobuf."""
    assert isinstance(failure.info, ApplicationFailure)
    proto = temporalio.api.failure.v1.Failure(
        message=failure.message, stack_trace=failure.stack_trace, source=failure.source
    )
    info = proto.application_failure_info
    info.type, info.non_retryable = failure.info.type, failure.info.non_retryable
    if failure.info.details:
        info.details.payloads.extend(to_theirs(payload) for payload in failure.info.details)
    if failure.cause is not None:
        proto.cause.CopyFrom(proto_of(failure.cause))
    if failure.encoded_attributes is not None:
        proto.encoded_attributes.CopyFrom(to_theirs(failure.encoded_attributes))
    return proto


def data_of(proto: Any) -> Failure:
    info = proto.application_failure_info
    return Failure(
        proto.message,
        ApplicationFailure(info.type, info.non_retryable, tuple(map(to_ours, info.details.payloads))),
        data_of(proto.cause) if proto.HasField("cause") else None,
        proto.stack_trace,
        proto.source,
        to_ours(proto.encoded_attributes) if proto.HasField("encoded_attributes") else None,
    )


def test_temporalio_reads_our_failures() -> None:
    exc = raise_and_catch(
        errors.ApplicationError("m", {"a": 1}, type="T", non_retryable=True), ValueError("c")
    )
    back: Any = theirs.failure_converter.from_failure(proto_of(to_failure(exc)), theirs.payload_converter)
    assert (back.message, back.type, back.non_retryable, back.details) == ("m", "T", True, ({"a": 1},))
    assert (back.__cause__.message, back.__cause__.type) == ("c", "ValueError")


def test_failures_equal_those_of_temporalio() -> None:
    exc = raise_and_catch(ValueError("m"), KeyError("c"))
    proto = temporalio.api.failure.v1.Failure()
    theirs.failure_converter.to_failure(exc, theirs.payload_converter, proto)
    own = proto_of(to_failure(exc))
    own.source = own.cause.source = ""
    assert own == proto


def test_encoded_failure_attributes_are_readable_by_temporalio_and_hourglass() -> None:
    converter = temporalio.converter.DefaultFailureConverterWithEncodedAttributes()
    proto = temporalio.api.failure.v1.Failure()
    converter.to_failure(
        raise_and_catch(ValueError("secret"), KeyError("c")), theirs.payload_converter, proto
    )
    opened = decode_failure(data_of(proto), default_converter)
    assert opened.message == "secret"
    assert "in raise_and_catch" in opened.stack_trace
    assert opened.encoded_attributes is None
    assert str(default_converter.from_failure(data_of(proto))) == "secret"

    sealed = encode_failure(
        to_failure(raise_and_catch(ValueError("secret"), KeyError("c"))), default_converter
    )
    assert "secret" not in sealed.message + sealed.stack_trace
    assert sealed.message == proto.message == "Encoded failure"
    back: Any = converter.from_failure(proto_of(sealed), theirs.payload_converter)
    assert (back.message, back.__cause__.message) == ("secret", "'c'")


def test_undecodable_encoded_attributes_are_ignored() -> None:
    for attributes in (Payload(b"?", "binary/encrypted"), Payload(b"[1]"), Payload(b'{"message":1}')):
        failure = Failure("Encoded failure", encoded_attributes=attributes)
        assert decode_failure(failure, default_converter) == failure
        assert str(default_converter.from_failure(failure)) == "Encoded failure"


PAYLOADS = st.lists(
    st.builds(Payload, st.binary(max_size=9), st.sampled_from(["json/plain", "binary/plain", "odd"])),
    max_size=3,
).map(tuple)
IDS = st.integers(min_value=0, max_value=2**62)
INFOS = st.one_of(
    st.none(),
    st.builds(ApplicationFailure, st.text(), st.booleans(), PAYLOADS, st.none() | st.floats(0, 1e6), IDS),
    st.builds(TimeoutFailure, st.sampled_from(TimeoutType), PAYLOADS),
    st.builds(CanceledFailure, PAYLOADS),
    st.builds(TerminatedFailure),
    st.builds(ServerFailure, st.booleans()),
    st.builds(ResetFailure, PAYLOADS),
    st.builds(ActivityFailure, st.text(), st.text(), st.text(), IDS, IDS, st.sampled_from(RetryState)),
    st.builds(
        ChildWorkflowFailure,
        st.text(),
        st.text(),
        st.text(),
        st.text(),
        IDS,
        IDS,
        st.sampled_from(RetryState),
    ),
)
FAILURES = st.recursive(
    st.builds(Failure, st.text(), INFOS, st.none(), st.text(), st.text()),
    lambda cause: st.builds(Failure, st.text(), INFOS, cause, st.text(), st.text()),
    max_leaves=4,
)


@given(FAILURES)
def test_random_received_failures_round_trip(failure: Failure) -> None:
    assert default_converter.to_failure(default_converter.from_failure(failure)) == failure
    assert decode_failure(encode_failure(failure, default_converter), default_converter) == failure


@given(
    st.recursive(
        st.text().map(ValueError),
        lambda c: st.tuples(st.text(), c).map(lambda p: raise_and_catch(KeyError(p[0]), p[1])),
        max_leaves=5,
    )
)
def test_random_exceptions_become_failures_with_valid_utf8(exc: BaseException) -> None:
    for link in causes(to_failure(exc)):
        (link.message + link.stack_trace).encode("utf-8")
