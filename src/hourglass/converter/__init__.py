"""Values and failures to the wire and back.

_codec              the codec seam: what stands between encoded payloads and the outside
_converter          `Converter`: values as JSON and in Temporal's other encodings, and back; `RawPayload`
_data               Temporal's payload and failure messages as frozen data, without protobuf
_failures           exceptions to failures and back, as Temporal's Python SDK does it, so that both read each
                    other's
_hints              what a type hint is, seen from JSON; what does not fit one; pydantic's and protobuf's types
_search_attributes  search attributes
_signature          `Signature`: how a function's arguments travel
_stacks             Python's stacks as text: which frames are the author's, ours, or a library's
_typed              decoded JSON to typed values, the slow and thorough way
"""

from __future__ import annotations

from hourglass.converter._codec import (
    Codec,
    decode_failure,
    encode_failure,
    map_failures,
    map_payloads,
    seal,
    unseal,
)
from hourglass.converter._converter import Converter, RawPayload, default_converter
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
from hourglass.converter._search_attributes import (
    SearchAttributeKey,
    SearchAttributes,
    SearchAttributeUpdate,
    decode_search_attribute,
    encode_search_attributes,
)
from hourglass.converter._signature import Signature, check_dynamic, raw_payloads

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
