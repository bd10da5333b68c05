"""Codecs: all payloads except search attributes pass through them in one call, and failures are encoded."""

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
    """A codec that reverses data and rejects payloads that it did not encode."""

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


def encode(value: Any) -> Payload:
    return default_converter.encode(value)


ATTRIBUTES = {"Customer": encode("acme")}
HEADERS = {"trace": encode("id")}
FAILURE = Failure(
    "secret", ApplicationFailure("T", details=(encode(1),)), Failure("inner secret"), "stack secret"
)
COMMANDS = Succeeded(
    "run",
    (
        StartTimer(1, 5),
        ScheduleActivity(
            seq=1, activity_id="1", activity_type="t", arguments=(encode("a"), encode(2)), headers=HEADERS
        ),
        CompleteRun(encode(None)),
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
            arguments=(encode("a"),),
            memo={"m": encode(1)},
            search_attributes=ATTRIBUTES,
        ),
        TimerFired(1),
        ActivityFailed(1, FAILURE),
    ),
)


@pytest.mark.parametrize(
    "message",
    [COMMANDS, EVENTS, [encode(1), {"a": (encode(2),)}], FAILURE],
    ids=["commands", "events", "plain", "failure"],
)
def test_codec_round_trip_restores_the_message_with_one_call_each_way(message: Any) -> None:
    codec = Reverse()
    sealed = seal(message, codec, default_converter)
    assert sealed != message
    assert unseal(sealed, codec, default_converter) == message
    assert codec.calls == 2


def test_codec_encodes_all_payloads_but_search_attributes_and_headers() -> None:
    plain: list[Payload] = []

    def collect_payloads(payloads: list[Payload]) -> list[Payload]:
        plain.extend(payloads)
        return payloads

    sealed = seal((COMMANDS, EVENTS), Reverse(), default_converter)
    map_payloads(sealed, collect_payloads, skip=frozenset())
    assert [p for p in plain if p.encoding != "binary/reversed"] == [HEADERS["trace"], ATTRIBUTES["Customer"]]
    assert "secret" not in repr(sealed)


def test_codec_encodes_headers_if_configured() -> None:
    codec = Reverse()
    header_codec = with_headers(codec, HeaderCodecBehavior.CODEC)
    assert header_codec is not None
    sealed = seal(COMMANDS.commands[1], header_codec, default_converter)
    assert sealed.headers["trace"].encoding == "binary/reversed"  # type: ignore[attr-defined]
    assert unseal(sealed, header_codec, default_converter) == COMMANDS.commands[1]


def test_codec_is_not_called_without_payloads() -> None:
    """The message itself is returned."""
    for message in (Succeeded("run", (StartTimer(1, 5),)), (), {"a": [1, "b", None]}, 5, None):
        assert map_payloads(message, lambda payloads: pytest.fail("called")) is message
        assert map_failures(message, lambda failure: pytest.fail("called")) is message


def test_codec_shares_message_parts_without_payloads() -> None:
    message = ({"a": encode(1)}, [2], {"b": 3})
    mapped = map_payloads(message, lambda payloads: [encode(9) for _ in payloads])
    assert mapped == ({"a": encode(9)}, [2], {"b": 3})
    assert message[0] == {"a": encode(1)}
    assert mapped[1] is message[1]
    assert mapped[2] is message[2]


def test_codec_results_replace_payloads_in_order_along_a_chain_of_causes() -> None:
    failure = Failure("0", ApplicationFailure(details=(encode(0),)))
    for number in range(1, 2000):
        failure = Failure(str(number), ApplicationFailure(details=(encode(number),)), failure)
    mapped: Failure | None = map_payloads(failure, lambda ps: [Payload(p.data + b"!") for p in ps])
    while mapped is not None:
        assert isinstance(mapped.info, ApplicationFailure)
        assert mapped.info.details[0].data == f"{mapped.message}!".encode()
        mapped = mapped.cause


def test_map_payloads_rejects_a_function_that_loses_payloads() -> None:
    with pytest.raises(PayloadError, match="expected 2 payloads, got 1"):
        map_payloads([encode(1), encode(2)], lambda payloads: payloads[:1])


class Broken:
    """A codec that returns or raises a fixed result."""

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
def test_error_of_a_broken_codec_names_the_codec(result: Any, message: str) -> None:
    with pytest.raises(EncodeError, match=f"codec Broken.encode {message}"):
        seal([encode(1)], Broken(result), default_converter)
    with pytest.raises(DecodeError, match=f"codec Broken.decode {message}"):
        unseal([encode(1)], Broken(result), default_converter)


def test_codec_rejecting_a_payload_is_the_cause_of_the_decode_error() -> None:
    with pytest.raises(DecodeError) as caught:
        unseal(EVENTS, Reverse(), default_converter)
    assert str(caught.value.__cause__) == "not mine"


def test_failure_without_encoded_attributes_is_decoded_unchanged() -> None:
    """Servers write such failures."""
    failure = Failure("activity timed out", source="Server")
    assert unseal(ActivityFailed(1, failure), Reverse(), default_converter) == ActivityFailed(1, failure)
