"""Values and failures to the wire and back.

`Payload` and `Failure` are Temporal's messages as plain data; `Converter` turns values into payloads and
exceptions into failures, and back. A `Codec` sees only encoded payloads and works at the edge (encryption,
compression); neither knows of Temporal's own classes, so that the embedded engine needs none of them.
"""

from __future__ import annotations

from hourglass.converter._codec import Codec, decode_failure, encode_failure, map_failures, map_payloads, seal, unseal
from hourglass.converter._converter import Converter, default_converter
from hourglass.converter._data import (
    ActivityFailure,
    ApplicationFailure,
    CanceledFailure,
    ChildWorkflowFailure,
    Failure,
    FailureInfo,
    Payload,
    ResetFailure,
    ServerFailure,
    TerminatedFailure,
    TimeoutFailure,
)
from hourglass.converter._raw import RawPayload, check_dynamic, raw_payloads
from hourglass.converter._search_attributes import (
    SearchAttributeKey,
    SearchAttributes,
    SearchAttributeUpdate,
    decode_search_attribute,
    encode_search_attributes,
)
from hourglass.converter._signature import Signature

__all__ = [
    "ActivityFailure",
    "ApplicationFailure",
    "CanceledFailure",
    "ChildWorkflowFailure",
    "Codec",
    "Converter",
    "Failure",
    "FailureInfo",
    "Payload",
    "RawPayload",
    "ResetFailure",
    "SearchAttributeKey",
    "SearchAttributeUpdate",
    "SearchAttributes",
    "ServerFailure",
    "Signature",
    "TerminatedFailure",
    "TimeoutFailure",
    "check_dynamic",
    "decode_failure",
    "decode_search_attribute",
    "default_converter",
    "encode_failure",
    "encode_search_attributes",
    "map_failures",
    "map_payloads",
    "raw_payloads",
    "seal",
    "unseal",
]
