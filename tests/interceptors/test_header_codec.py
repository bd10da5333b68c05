"""Headers that pass through a codec: the parts between which they are encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hourglass.client import Client
from hourglass.converter import HeaderCodecBehavior, Payload
from hourglass.errors import UsageError
from hourglass.interceptors import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)
from hourglass.replay import Replayer
from hourglass.worker import Worker

from .caller_interceptor import CallerInterceptor, caller, with_outbound
from .test_headers import WORKFLOWS, Order, echo_caller, echo_caller_async


class ReversingCodec:
    """Reverses data, and rejects payloads that it did not encode."""

    async def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [Payload(payload.data[::-1], "binary/reversed") for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        if any(payload.encoding != "binary/reversed" for payload in payloads):
            raise ValueError("not of this codec")
        return [Payload(payload.data[::-1]) for payload in payloads]


def _header_encodings(events: Sequence[Any]) -> set[str]:
    """Return the encodings of all headers in a history, in base64."""
    encodings = set()
    for event in events:
        for attributes in event.values():
            header = attributes.get("header") if isinstance(attributes, dict) else None
            for field in (header or {}).get("fields", {}).values():
                encodings.add(field["metadata"]["encoding"])
    return encodings


REVERSED, PLAIN = "YmluYXJ5L3JldmVyc2Vk", "anNvbi9wbGFpbg=="


@pytest.mark.parametrize("behavior", [HeaderCodecBehavior.NO_CODEC, HeaderCodecBehavior.CODEC])
def test_headers_pass_through_the_codec_if_configured(target: str, behavior: HeaderCodecBehavior) -> None:
    options: dict[str, Any] = {"codec": ReversingCodec(), "header_codec_behavior": behavior}
    with (
        Client.connect(target, interceptors=[CallerInterceptor()], **options) as client,
        Worker(client, "header-codec", workflows=WORKFLOWS, activities=[echo_caller, echo_caller_async]),
    ):
        caller.set("ann")
        handle = client.start_workflow(Order.run, 0.01, task_queue="header-codec")
        handle.signal(Order.close)
        assert handle.result(timeout=60)[:3] == ["1 for ann", "2 for ann", "3 for ann"]
        history = handle.history()
    assert _header_encodings(history.events) == {REVERSED if behavior is HeaderCodecBehavior.CODEC else PLAIN}
    with Replayer(workflows=WORKFLOWS, interceptors=[CallerInterceptor()], **options) as replayer:
        assert replayer.replay(history).ok


def test_workflow_only_codec_encodes_headers_of_commands_but_activities_do_not_decode_them() -> None:
    seen: list[str] = []

    class PutsPlainHeader(Interceptor):
        def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
            class Outbound(WorkflowOutboundInterceptor):
                def start_activity(self, input: StartActivityInput) -> Any:
                    input.headers["who"] = Payload(b'"ann"')
                    return super().start_activity(input)

            return with_outbound(next, Outbound)

        def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
            class Inbound(ActivityInboundInterceptor):
                def execute_activity(self, input: ExecuteActivityInput) -> Any:
                    seen.append(input.headers["who"].encoding)
                    return super().execute_activity(input)

            return Inbound(next)

    options: dict[str, Any] = {
        "codec": ReversingCodec(),
        "header_codec_behavior": HeaderCodecBehavior.WORKFLOW_ONLY_CODEC,
    }
    with (
        Client.connect("local:", **options) as client,
        Worker(
            client,
            workflows=WORKFLOWS,
            activities=[echo_caller, echo_caller_async],
            interceptors=[PutsPlainHeader()],
        ),
    ):
        handle = client.start_workflow("continue_as_new_until_zero", 0)
        handle.result(timeout=60)
    assert seen == ["binary/reversed"]


def test_header_codec_behavior_without_a_codec_is_rejected() -> None:
    with pytest.raises(UsageError, match="CODEC requires a codec"):
        Client.connect("local:", header_codec_behavior=HeaderCodecBehavior.CODEC)
    with pytest.raises(UsageError, match="must be a HeaderCodecBehavior"):
        Client.connect("local:", header_codec_behavior=2)  # type: ignore[arg-type]
