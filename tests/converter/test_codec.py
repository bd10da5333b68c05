"""The codec seam: every payload passes it, at once, except those that must not; failures lose their texts."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.specs import made

from hourglass._evaluator.commands import CompleteRun, FailRun, ScheduleActivity, StartTimer, Succeeded
from hourglass._evaluator.events import Activation, ActivityFailed, RunStarted, TimerFired
from hourglass.converter import (
    ApplicationFailure,
    Failure,
    HeaderCodecBehavior,
    Payload,
    default_converter,
    map_failures,
    map_payloads,
    seal,
    unseal,
    with_headers,
)
from hourglass.errors import DecodeError, EncodeError, PayloadError


class Reverse:
    """A codec that marks what it encoded, and refuses the rest."""

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        self.calls += 1
        return [
            Payload(default_converter.encode(p.encoding).data + p.data[::-1], "binary/reversed")
            for p in payloads
        ]

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        self.calls += 1
        return [self._decode(payload) for payload in payloads]

    def _decode(self, payload: Payload) -> Payload:
        if payload.encoding != "binary/reversed":
            raise ValueError("not mine")
        encoding, _, data = payload.data[1:].partition(b'"')
        return Payload(data[::-1], encoding.decode())


def enc(value: Any) -> Payload:
    return default_converter.encode(value)


ATTRIBUTES = {"Customer": enc("acme")}
HEADERS = {"trace": enc("id")}
FAILURE = Failure(
    "secret", ApplicationFailure("T", details=(enc(1),)), Failure("inner secret"), "stack secret"
)
COMMANDS = Succeeded(
    "run",
    (
        StartTimer(1, 5),
        ScheduleActivity(
            seq=1, activity_id="1", activity_type="t", arguments=(enc("a"), enc(2)), headers=HEADERS
        ),
        CompleteRun(enc(None)),
        FailRun(FAILURE),
    ),
)
EVENTS = Activation(
    run_id="run",
    events=(
        made(
            RunStarted,
            workflow_type="t",
            workflow_id="w",
            arguments=(enc("a"),),
            memo={"m": enc(1)},
            search_attributes=ATTRIBUTES,
        ),
        TimerFired(1),
        ActivityFailed(1, FAILURE),
    ),
)


@pytest.mark.parametrize(
    "message",
    [COMMANDS, EVENTS, [enc(1), {"a": (enc(2),)}], FAILURE],
    ids=["commands", "events", "plain", "failure"],
)
def test_codec_round_trip(message: Any) -> None:
    """An encoded object is decoded to an equal one, with one call of the codec each way."""
    codec = Reverse()
    sealed = seal(message, codec, default_converter)
    assert sealed != message
    assert unseal(sealed, codec, default_converter) == message
    assert codec.calls == 2


def test_codec_encodes_everything_but_search_attributes_and_headers() -> None:
    """No text of a failure and no payload is readable otherwise."""
    left: list[Payload] = []

    def collect(payloads: list[Payload]) -> list[Payload]:
        left.extend(payloads)
        return payloads

    sealed = seal((COMMANDS, EVENTS), Reverse(), default_converter)
    map_payloads(sealed, collect, skip=frozenset())
    assert [p for p in left if p.encoding != "binary/reversed"] == [HEADERS["trace"], ATTRIBUTES["Customer"]]
    assert "secret" not in repr(sealed)


def test_codec_encodes_headers_on_request() -> None:
    """Headers pass through the codec if that is configured."""
    codec = Reverse()
    whole = with_headers(codec, HeaderCodecBehavior.CODEC)
    assert whole is not None
    sealed = seal(COMMANDS.commands[1], whole, default_converter)
    assert sealed.headers["trace"].encoding == "binary/reversed"  # type: ignore[attr-defined]
    assert unseal(sealed, whole, default_converter) == COMMANDS.commands[1]


def test_codec_is_not_called_without_payloads() -> None:
    """An object without payloads is returned as it is."""
    for thing in (Succeeded("run", (StartTimer(1, 5),)), (), {"a": [1, "b", None]}, 5, None):
        assert map_payloads(thing, lambda payloads: pytest.fail("called")) is thing
        assert map_failures(thing, lambda failure: pytest.fail("called")) is thing


def test_codec_copies_only_changed_parts() -> None:
    """Parts without payloads are shared, the original is not changed."""
    message = ({"a": enc(1)}, [2], {"b": 3})
    mapped = map_payloads(message, lambda payloads: [enc(9) for _ in payloads])
    assert mapped == ({"a": enc(9)}, [2], {"b": 3})
    assert message[0] == {"a": enc(1)}
    assert mapped[1] is message[1]
    assert mapped[2] is message[2]


def test_payloads_keep_their_order() -> None:
    """The n-th result replaces the n-th payload, also along a long chain of causes."""
    failure = Failure("0", ApplicationFailure(details=(enc(0),)))
    for number in range(1, 2000):
        failure = Failure(str(number), ApplicationFailure(details=(enc(number),)), failure)
    mapped: Failure | None = map_payloads(failure, lambda ps: [Payload(p.data + b"!") for p in ps])
    while mapped is not None:
        assert isinstance(mapped.info, ApplicationFailure)
        assert mapped.info.details[0].data == f"{mapped.message}!".encode()
        mapped = mapped.cause


def test_codec_that_loses_payloads_is_rejected() -> None:
    """An error names the codec."""
    with pytest.raises(PayloadError, match="expected 2 payloads, got 1"):
        map_payloads([enc(1), enc(2)], lambda payloads: payloads[:1])


class Broken:
    """A codec whose results are given."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def encode(self, payloads: Sequence[Payload]) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    decode = encode


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (ValueError("key"), "raised ValueError"),
        ([], "returned 0 payloads, expected 1"),
        ([b"x"], "returned a bytes, not a Payload"),
        (None, "raised TypeError"),
    ],
)
def test_codec_errors_name_the_codec(result: Any, message: str) -> None:
    """A codec that raises, or returns something else, is an EncodeError or DecodeError that names it."""
    with pytest.raises(EncodeError, match=f"codec Broken.encode {message}"):
        seal([enc(1)], Broken(result), default_converter)
    with pytest.raises(DecodeError, match=f"codec Broken.decode {message}"):
        unseal([enc(1)], Broken(result), default_converter)


def test_codec_rejects_plain_payloads() -> None:
    """A DecodeError with the codec's reason."""
    with pytest.raises(DecodeError) as caught:
        unseal(EVENTS, Reverse(), default_converter)
    assert str(caught.value.__cause__) == "not mine"


def test_server_failures_stay_readable() -> None:
    """A failure without encoded attributes, as servers write them, passes unsealing as it is."""
    failure = Failure("activity timed out", source="Server")
    assert unseal(ActivityFailed(1, failure), Reverse(), default_converter) == ActivityFailed(1, failure)
