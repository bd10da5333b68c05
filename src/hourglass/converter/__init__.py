"""Values and failures to the wire and back.

_codec              the codec seam: what stands between encoded payloads and the outside
_composed           converters composed of others: one for each encoding, and for each type that JSON does not know
_context            what a value belongs to, for converters and codecs that want to know
_converter          `Converter`: values as JSON and in Temporal's other encodings, and back; `RawPayload`
_data               Temporal's payload and failure messages as frozen data, without protobuf
_failures           exceptions to failures and back, as Temporal's Python SDK does it, so that both read each
                    other's
_hints              what a type hint is, seen from JSON; what does not fit one; pydantic's and protobuf's types
_search_attributes  search attributes
_signature          `Signature`: how a function's arguments travel
_stacks             Python's stacks as text: which frames are the author's, ours, or a library's
_storage            large payloads elsewhere: a codec, the drivers' seam, a folder
_to_json            values as JSON: dicts keep their order, sets are written in a fixed one
_typed              decoded JSON to typed values, the slow and thorough way
"""

from __future__ import annotations

from hourglass.converter._codec import (
    Codec,
    HeaderCodecBehavior,
    decode_failure,
    decoded,
    encode_failure,
    encoded,
    map_failures,
    map_payloads,
    seal,
    unseal,
    with_headers,
    without_codec,
)
from hourglass.converter._composed import (
    CompositeConverter,
    EncodingConverter,
    JSONTypeConverter,
    JSONTypeConverterUnhandled,
)
from hourglass.converter._context import (
    ActivitySerializationContext,
    NexusSerializationContext,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
    in_context,
    wants_context,
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
from hourglass.converter._storage import (
    ExternalStorage,
    FolderStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverSelectContext,
    StorageDriverStoreContext,
)

__all__ = [
    "ActivityFailure",
    "ActivitySerializationContext",
    "ApplicationFailure",
    "CanceledFailure",
    "ChildWorkflowFailure",
    "Codec",
    "CompositeConverter",
    "Converter",
    "EncodingConverter",
    "ExternalStorage",
    "Failure",
    "FailureInfo",
    "FolderStorage",
    "HeaderCodecBehavior",
    "JSONTypeConverter",
    "JSONTypeConverterUnhandled",
    "NexusSerializationContext",
    "Payload",
    "RawPayload",
    "ResetFailure",
    "SearchAttributeKey",
    "SearchAttributeUpdate",
    "SearchAttributes",
    "SerializationContext",
    "ServerFailure",
    "Signature",
    "StorageDriver",
    "StorageDriverClaim",
    "StorageDriverRetrieveContext",
    "StorageDriverSelectContext",
    "StorageDriverStoreContext",
    "TerminatedFailure",
    "TimeoutFailure",
    "WithSerializationContext",
    "WorkflowSerializationContext",
    "check_dynamic",
    "decode_failure",
    "decode_search_attribute",
    "decoded",
    "default_converter",
    "encode_failure",
    "encode_search_attributes",
    "encoded",
    "in_context",
    "map_failures",
    "map_payloads",
    "raw_payloads",
    "seal",
    "unseal",
    "wants_context",
    "with_headers",
    "without_codec",
]
