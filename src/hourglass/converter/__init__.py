"""Values and failures to the wire and back.

_codec              the codec seam
_converter          `Converter`
_data               Temporal's payload and failure messages as frozen data, without protobuf
_failures           exceptions to failures and back, as Temporal's Python SDK does it, so that both read each
                    other's
_foreign            values of libraries that we support but never load
_hints              what a type hint is, seen from JSON
_json               JSON, typed and fast
_mismatch           how decoding says no, before it is known which payload it was
_plain              values as builtins of JSON, the slow and thorough way
_raw                `RawPayload`
_search_attributes  search attributes
_signature          `Signature`
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
