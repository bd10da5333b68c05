"""What other SDKs put into histories as encoded messages of Temporal's. Pure."""

from __future__ import annotations

from temporalio.api.common.v1 import Payloads as PayloadsMessage

from hourglass._engine.events import Payloads
from hourglass._temporal.payloads import payloads_from


def payloads_from_bytes(data: bytes) -> Payloads:
    """An encoded Payloads message as data. Raises `ValueError`."""
    try:
        return payloads_from(PayloadsMessage.FromString(data).payloads)
    except Exception:
        raise ValueError("these bytes are no payloads") from None


def payloads_from_json(text: bytes) -> Payloads:
    """A Payloads message in JSON as data. Raises `ValueError`."""
    from google.protobuf import json_format

    message = PayloadsMessage()
    try:
        json_format.Parse(text, message, ignore_unknown_fields=True)
    except json_format.ParseError:
        raise ValueError("this is no JSON of payloads") from None
    return payloads_from(message.payloads)
