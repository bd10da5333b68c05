"""Conversion of values and failures to payloads and back.

_codec              the codec interface: encryption and compression of encoded payloads
_composed           converters composed of others: one for each encoding, and for each type that JSON does not
                    support
_context            the owner of a value, for converters and codecs that depend on it
_converter          `Converter`: values as JSON and in Temporal's other encodings, and back; `RawPayload`
_data               Temporal's payload and failure messages as frozen data, without protobuf
_failures           exceptions to failures and back, compatible with Temporal's Python SDK
_hints              type hints in terms of JSON; mismatches; pydantic's and protobuf's types
_search_attributes  search attributes
_signature          `Signature`: the encoding of a function's arguments
_stacks             Python's stacks as text: the frames of the author, ours, and a library's
_storage            external storage of large payloads: a codec, the driver interface, a directory
_to_json            encodes values as JSON: dicts keep their order, sets are sorted
_typed              converts decoded JSON to typed values, slowly but thoroughly
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
