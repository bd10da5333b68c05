"""The codec of a client: payloads of activations, completions and heartbeats are decoded and encoded."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.polled import Polled

from hourglass._contract.handle import ActivityCancel, ActivityOk, AttemptFailed
from hourglass._evaluator.commands import CompleteRun, FailRun, Succeeded, TaskFailed
from hourglass._evaluator.events import RunStarted
from hourglass._worker.handles.codec_edge import CodecHandle
from hourglass.converter import ApplicationFailure, Failure, Payload, default_converter
from worker.handles.scripted import ScriptedHandle

from .scripted import attempt, evict, payloads, start


class Reverse:
    """A codec that reverses bytes and rejects payloads that it has not encoded."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def encode(self, payloads_: Sequence[Payload]) -> list[Payload]:
        self.threads.add(threading.current_thread().name)
        return [
            Payload(payload.data[::-1], "binary/reversed", {"was": payload.encoding.encode()})
            for payload in payloads_
        ]

    def decode(self, payloads_: Sequence[Payload]) -> list[Payload]:
        self.threads.add(threading.current_thread().name)
        if any(payload.encoding != "binary/reversed" for payload in payloads_):
            raise ValueError("not mine")
        return [
            Payload(payload.data[::-1], (payload.metadata or {})["was"].decode()) for payload in payloads_
        ]


@asynccontextmanager
async def codec_handle() -> AsyncIterator[tuple[Polled, ScriptedHandle, Reverse]]:
    """A scripted handle behind a codec, which must run in threads of its own."""
    inner, codec = ScriptedHandle(), Reverse()
    edge = Polled(CodecHandle(inner, codec, default_converter))
    yield edge, inner, codec
    await edge.stop()
    assert all(name.startswith("hourglass-codec") for name in codec.threads)


async def test_codec_decodes_activations_and_encodes_completions_in_its_own_threads():
    async with codec_handle() as (edge, inner, _):
        sealed = Reverse().encode(payloads("hello"))
        event = RunStarted(workflow_type="w", workflow_id="i", arguments=tuple(sealed))
        inner.deliver(start("r", "w").__class__(run_id="r", events=(event,)))
        activation = await edge.poll_activation()
        assert activation.events[0].arguments == payloads("hello")
        await edge.complete_activation(Succeeded("r", (CompleteRun(payloads("bye")[0]),)))
        assert inner.completions[0].commands[0].result == Reverse().encode(payloads("bye"))[0]
        await edge.complete_activity(ActivityOk(b"t", payloads(1)[0]))
        assert inner.results[0].result.encoding == "binary/reversed"


async def test_codec_encodes_failure_messages():
    async with codec_handle() as (edge, inner, _):
        failure = Failure(message="the secret plan", info=ApplicationFailure(type="X"))
        await edge.complete_activation(Succeeded("r", (FailRun(failure),)))
        assert "secret" not in repr(inner.completions)


async def test_task_with_an_undecodable_payload_fails():
    async with codec_handle() as (edge, inner, _):
        inner.deliver(start("r", "w", "plain"))
        inner.deliver(evict("s"))
        assert (await edge.poll_activation()).run_id == "s"
        assert isinstance(inner.completions[0], TaskFailed)
        assert "codec" in inner.completions[0].failure.message
        inner.deliver(attempt("a", "plain"))
        inner.deliver(ActivityCancel(b"other"))
        assert await edge.poll_activity() == ActivityCancel(b"other")
        assert isinstance(inner.results[0], AttemptFailed)
        await edge.complete_activation(Succeeded("s"))


async def test_completion_that_the_codec_cannot_encode_fails_its_task():
    async with codec_handle() as (edge, inner, codec):
        codec.encode = lambda payloads_: 1 / 0
        await edge.complete_activation(Succeeded("r", (CompleteRun(payloads("secret")[0]),)))
        await edge.complete_activity(ActivityOk(b"t", payloads("secret")[0]))
        assert isinstance(inner.completions[0], TaskFailed)
        assert isinstance(inner.results[0], AttemptFailed)
        assert "secret" not in repr(inner.completions) + repr(inner.results)


async def test_latest_heartbeat_is_encoded_and_sent():
    async with codec_handle() as (edge, inner, _):
        for number in range(5):
            edge.heartbeat(b"t", payloads(number))
        edge.heartbeat(b"u", ())
        await inner.until(lambda: len(inner.heartbeats) == 3)
        assert inner.heartbeats[0] == (b"u", ())
        assert [details for token, details in inner.heartbeats if token == b"t"] == [
            tuple(Reverse().encode(payloads(0))),
            tuple(Reverse().encode(payloads(4))),
        ]
