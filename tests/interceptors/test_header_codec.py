"""Headers through a codec, where that is wanted: between which parts they are encoded."""

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

from .carrying import Carrying, caller
from .test_headers import EVERYTHING, Order, waits, works


class Strict:
    """Turns bytes round, and refuses what it did not turn."""

    async def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [Payload(each.data[::-1], "binary/turned") for each in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        if any(each.encoding != "binary/turned" for each in payloads):
            raise ValueError("not of this codec")
        return [Payload(each.data[::-1]) for each in payloads]


def _encodings(events: Sequence[Any]) -> set[str]:
    """The encodings of all headers in a history, in base64."""
    found = set()
    for event in events:
        for attributes in event.values():
            header = attributes.get("header") if isinstance(attributes, dict) else None
            for field in (header or {}).get("fields", {}).values():
                found.add(field["metadata"]["encoding"])
    return found


TURNED, PLAIN = "YmluYXJ5L3R1cm5lZA==", "anNvbi9wbGFpbg=="


@pytest.mark.parametrize("behavior", [HeaderCodecBehavior.NO_CODEC, HeaderCodecBehavior.CODEC])
def test_headers_are_encoded_if_configured(target: str, behavior: HeaderCodecBehavior) -> None:
    """They arrive as they were sent; the stored form is encoded, or plain."""
    options: dict[str, Any] = {"codec": Strict(), "header_codec_behavior": behavior}
    with (
        Client.connect(target, interceptors=[Carrying()], **options) as client,
        Worker(client, "turned", workflows=EVERYTHING, activities=[works, waits]),
    ):
        caller.set("ann")
        handle = client.start_workflow(Order.run, 0.01, task_queue="turned")
        handle.signal(Order.close)
        assert handle.result(timeout=60)[:3] == ["1 for ann", "2 for ann", "3 for ann"]
        history = handle.history()
    assert _encodings(history.events) == {TURNED if behavior is HeaderCodecBehavior.CODEC else PLAIN}
    with Replayer(workflows=EVERYTHING, interceptors=[Carrying()], **options) as replayer:
        assert replayer.replay(history).ok


def test_workflow_only_codec_for_headers() -> None:
    """With WORKFLOW_ONLY_CODEC the headers of a workflow's commands are encoded, and activities see them so."""
    seen: list[str] = []

    class Puts(Interceptor):
        def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
            class Outbound(WorkflowOutboundInterceptor):
                def start_activity(self, input: StartActivityInput) -> Any:
                    input.headers["who"] = Payload(b'"ann"')
                    return super().start_activity(input)

            class Inbound(WorkflowInboundInterceptor):
                def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                    super().init(Outbound(outbound))

            return Inbound(next)

        def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
            class Inbound(ActivityInboundInterceptor):
                def execute_activity(self, input: ExecuteActivityInput) -> Any:
                    seen.append(input.headers["who"].encoding)
                    return super().execute_activity(input)

            return Inbound(next)

    options: dict[str, Any] = {
        "codec": Strict(),
        "header_codec_behavior": HeaderCodecBehavior.WORKFLOW_ONLY_CODEC,
    }
    with (
        Client.connect("local:", **options) as client,
        Worker(client, workflows=EVERYTHING, activities=[works, waits], interceptors=[Puts()]),
    ):
        handle = client.start_workflow("goes_round", 0)
        handle.result(timeout=60)
    assert seen == ["binary/turned"]


def test_header_codec_without_a_codec_is_rejected() -> None:
    """Headers cannot pass a codec that there is not."""
    with pytest.raises(UsageError, match="CODEC requires a codec"):
        Client.connect("local:", header_codec_behavior=HeaderCodecBehavior.CODEC)
    with pytest.raises(UsageError, match="must be a HeaderCodecBehavior"):
        Client.connect("local:", header_codec_behavior=2)  # type: ignore[arg-type]
