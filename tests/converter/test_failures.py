"""Exceptions become failures and come back, whatever they are like; Temporal's Python SDK reads the same."""

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


def raised(exc: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise exc from cause
    except BaseException as caught:
        return caught


def ours(exc: BaseException) -> Failure:
    return default_converter.to_failure(exc)


def test_ordinary_exception_becomes_application_failure() -> None:
    """Any exception becomes an application failure of its class's name, with its stack."""
    failure = ours(raised(ValueError("no such order")))
    assert failure.message == "no such order"
    assert failure.info == ApplicationFailure(type="ValueError")
    assert "in raised" in failure.stack_trace
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
def test_every_error_kind_round_trips(exc: BaseException, info: Any) -> None:
    """Each of our errors has its kind of failure, and comes back as itself."""
    failure = ours(exc)
    assert failure.info == info
    assert failure.message == "m"
    back = default_converter.from_failure(failure)
    if isinstance(exc, errors.FailureError) and type(exc) is not errors.FailureError:
        assert type(back) is type(exc)
        for name in ("details", "type", "non_retryable", "activity_id", "run_id", "retry_state", "identity"):
            if hasattr(exc, name):
                assert list(map(str, [getattr(back, name)])) == list(map(str, [getattr(exc, name)]))
    assert ours(back) == failure


def test_causes_follow_pythons_rules() -> None:
    """The cause counts, else the context unless it is suppressed; for every class of exception."""
    explicit = raised(ValueError("a"), KeyError("b"))
    assert ours(explicit).cause == ours(KeyError("b"))
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            raise RuntimeError("outer")
    except RuntimeError as error:
        implicit = error
    cause = ours(implicit).cause
    assert cause is not None
    assert cause.info == ApplicationFailure("KeyError")
    implicit.__suppress_context__ = True
    assert ours(implicit).cause is None


def test_chain_of_causes_round_trips_with_stacks() -> None:
    """Causes and remote stacks are there again, as exceptions."""
    inner = raised(errors.ApplicationError("declined", {"code": 5}, type="CardDeclined"))
    outer = errors.ActivityError("activity failed", activity_type="charge")
    outer.__cause__ = inner
    back = default_converter.from_failure(ours(outer))
    assert isinstance(back, errors.ActivityError)
    assert isinstance(back.cause, errors.ApplicationError)
    assert back.cause.type == "CardDeclined"
    assert back.cause.details == ({"code": 5},)
    assert "in raised" in back.cause.remote_traceback


def test_unknown_failure_kinds_are_kept() -> None:
    """A failure of a kind that has no exception of its own is a FailureError and goes back as it came."""
    for info in (None, ResetFailure((Payload(b"1"),))):
        failure = Failure("odd", info, None, "stack", "GoSDK")
        back = default_converter.from_failure(failure)
        assert type(back) is errors.FailureError
        assert default_converter.to_failure(back) == failure


def test_hidden_failure_fields_are_kept() -> None:
    """Category, source and unreadable details go back as they came, also below another error and in a copy."""
    unreadable = Payload(b"?", "binary/encrypted")
    failure = Failure("m", ApplicationFailure("T", True, (unreadable,), 1.5, 1), Failure("c"), "s", "GoSDK")
    back = default_converter.from_failure(failure)
    assert isinstance(back, errors.ApplicationError)
    assert back.details == (unreadable,)
    assert ours(back) == failure
    assert ours(raised(ValueError("x"), back)).cause == failure
    assert ours(copy.copy(back)) == failure


def test_new_cause_of_a_reraised_failure_is_kept() -> None:
    """A remote failure raised again from something else keeps what it was and has the new cause."""
    back = default_converter.from_failure(Failure("m", ServerFailure(), Failure("old"), source="Server"))
    again = ours(raised(back, KeyError("new")))
    assert (again.message, again.source) == ("m", "Server")
    assert again.cause is not None
    assert again.cause.info == ApplicationFailure("KeyError")


def test_circular_and_long_cause_chains_are_truncated() -> None:
    """A circular chain ends, and one of thousands of links is shortened in the middle."""
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    assert [link.message for link in causes(ours(a))] == ["a", "b"]
    exc: BaseException = ValueError("0")
    for number in range(1, 3000):
        exc = raised(ValueError(str(number)), exc)
    links = list(causes(ours(exc)))
    assert len(links) == MOST_CAUSES
    assert (links[0].message, links[-1].message) == ("2999", "0")
    assert any("2951 more causes omitted" in link.message for link in links)


def test_long_received_cause_chains_are_decoded() -> None:
    """A chain of thousands of failures becomes exceptions, is sealed and opened, without recursion."""
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


def test_unencodable_failure_details_become_text() -> None:
    """A detail without a JSON form becomes a text that says so; the failure and its other details stay."""
    info = ours(errors.ApplicationError("m", object(), 2)).info
    assert isinstance(info, ApplicationFailure)
    assert b"object that could not be encoded" in info.details[0].data
    assert info.details[1] == Payload(b"2")


def test_exceptions_with_broken_attributes_are_failures() -> None:
    """Exceptions without our attributes, with broken texts or odd ones are still failures."""

    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    class Bare(errors.ApplicationError):
        def __init__(self) -> None:
            pass

    assert "raised RuntimeError" in ours(Rude()).message
    assert ours(Bare()).info == ApplicationFailure("Bare")
    assert ours(ValueError("\ud800")).message == "\\ud800"
    odd = errors.ApplicationError("m", next_retry_delay=float("nan"))
    odd.details = None  # type: ignore[assignment]
    odd.message = 5  # type: ignore[assignment]
    assert ours(odd).info == ApplicationFailure("ApplicationError")
    wrong = errors.ActivityError("m", retry_state=99, activity_id=5)  # type: ignore[arg-type]
    assert ours(wrong).info == ActivityFailure()


def test_subclass_of_application_error_names_itself() -> None:
    """The type on the wire is the author's class."""

    class OutOfStock(errors.ApplicationError):
        pass

    assert ours(OutOfStock("m")).info == ApplicationFailure("OutOfStock")


# --- with Temporal's Python SDK ----------------------------------------------------------------------------------------


def proto_of(failure: Failure) -> Any:
    """The protobuf form, for application failures and causes."""
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
    """Temporal's SDK sees the same message, type, details and cause in a failure of ours."""
    exc = raised(errors.ApplicationError("m", {"a": 1}, type="T", non_retryable=True), ValueError("c"))
    back: Any = theirs.failure_converter.from_failure(proto_of(ours(exc)), theirs.payload_converter)
    assert (back.message, back.type, back.non_retryable, back.details) == ("m", "T", True, ({"a": 1},))
    assert (back.__cause__.message, back.__cause__.type) == ("c", "ValueError")


def test_failures_match_temporalios() -> None:
    """The same exception gives the same failure with both, except for the source."""
    exc = raised(ValueError("m"), KeyError("c"))
    proto = temporalio.api.failure.v1.Failure()
    theirs.failure_converter.to_failure(exc, theirs.payload_converter, proto)
    own = proto_of(ours(exc))
    own.source = own.cause.source = ""
    assert own == proto


def test_encoded_attributes_both_ways() -> None:
    """Failures whose texts are encoded, theirs and ours, can be read by the other side."""
    converter = temporalio.converter.DefaultFailureConverterWithEncodedAttributes()
    proto = temporalio.api.failure.v1.Failure()
    converter.to_failure(raised(ValueError("secret"), KeyError("c")), theirs.payload_converter, proto)
    opened = decode_failure(data_of(proto), default_converter)
    assert opened.message == "secret"
    assert "in raised" in opened.stack_trace
    assert opened.encoded_attributes is None
    assert str(default_converter.from_failure(data_of(proto))) == "secret"

    sealed = encode_failure(ours(raised(ValueError("secret"), KeyError("c"))), default_converter)
    assert "secret" not in sealed.message + sealed.stack_trace
    assert sealed.message == proto.message == "Encoded failure"
    back: Any = converter.from_failure(proto_of(sealed), theirs.payload_converter)
    assert (back.message, back.__cause__.message) == ("secret", "'c'")


def test_unreadable_encoded_attributes_are_kept() -> None:
    """Encoded attributes that cannot be decoded change nothing."""
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
def test_any_received_failure_round_trips(failure: Failure) -> None:
    """Any failure off the wire becomes an exception and goes back unchanged, sealed and opened too."""
    assert default_converter.to_failure(default_converter.from_failure(failure)) == failure
    assert decode_failure(encode_failure(failure, default_converter), default_converter) == failure


@given(
    st.recursive(
        st.text().map(ValueError),
        lambda c: st.tuples(st.text(), c).map(lambda p: raised(KeyError(p[0]), p[1])),
        max_leaves=5,
    )
)
def test_any_chain_of_exceptions_is_a_failure(exc: BaseException) -> None:
    """Exceptions with any texts and causes give failures whose texts protobuf accepts."""
    for link in causes(ours(exc)):
        (link.message + link.stack_trace).encode("utf-8")
