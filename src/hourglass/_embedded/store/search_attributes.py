"""Search attributes: the predefined attributes, the types, the index values by which filters compare, and the
validation of new values.

Must not know: filters, SQL, stores, requests. Times are integers in microseconds, as in Temporal's own index. A
payload's metadata contains the type. Without metadata the type is inferred from the JSON value: a string in RFC 3339
format is a time. Invariant: strings of lists are indexed in lower case, and strings of type Text as their words in the
format of `words`, because filters look them up in this form.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import msgspec

from hourglass._embedded.transitions.size_limits import Limits
from hourglass._history import times
from hourglass.converter import Payload

Indexed: TypeAlias = str | int | float


class AttributeType(Enum):
    """The types of search attributes, with Temporal's names."""

    KEYWORD = "Keyword"
    KEYWORD_LIST = "KeywordList"
    TEXT = "Text"
    INT = "Int"
    DOUBLE = "Double"
    BOOL = "Bool"
    DATETIME = "Datetime"


_TYPES = {kind.value: kind for kind in AttributeType}
_ZONED = re.compile(r"\d{4}-\d\d-\d\dT\S*(Z|[+-]\d\d:\d\d)", re.ASCII).fullmatch
_INT64 = range(-(2**63), 2**63)


def type_named(name: str) -> AttributeType | None:
    """Return the attribute type with this name; None if there is none."""
    return _TYPES.get(name)


def parse_time(text: str) -> int | None:
    """Parse an RFC 3339 time with time zone. Return microseconds since the epoch; None if the string is not in this
    format.
    """
    ns = times.moment(text) if _ZONED(text) else None
    return None if ns is None else ns // 1000


def words(text: str) -> str:
    """Return the words of a string in lower case, without accents, each surrounded by spaces, for searching."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))
    separated = "".join(c if c.isalnum() else " " for c in plain.lower())
    return f" {' '.join(separated.split())} "


def type_of(payload: Payload) -> AttributeType | None:
    """Return the type in a payload's metadata or, without metadata, the type inferred from the value; None if it is
    unknown.
    """
    declared = (payload.metadata or {}).get("type", b"").decode(errors="replace")
    if declared in _TYPES:
        return _TYPES[declared]
    match _value(payload):
        case bool():
            return AttributeType.BOOL
        case int():
            return AttributeType.INT
        case float():
            return AttributeType.DOUBLE
        case str() as text:
            return AttributeType.KEYWORD if parse_time(text) is None else AttributeType.DATETIME
        case [*_]:
            return AttributeType.KEYWORD_LIST
        case _:
            return None


def indexed(payload: Payload, kind: AttributeType) -> tuple[Indexed, ...]:
    """Return the index values of a payload as an attribute of this type; empty if the payload unsets the attribute or
    does not fit the type.
    """
    value = _value(payload)
    if kind is AttributeType.KEYWORD_LIST:
        items = value if isinstance(value, list) else [value]
        return tuple(dict.fromkeys(item.lower() for item in items if isinstance(item, str) and item))
    if isinstance(value, list) and len(value) == 1:  # some SDKs send a single value as a list
        value = value[0]
    return _single(value, kind)


def fits(payload: Payload, kind: AttributeType) -> bool:
    """Whether a Temporal server accepts a payload for an attribute of this type. A payload that unsets the attribute
    always fits.
    """
    if payload.encoding == "binary/null" or payload.data == b"null":
        return True
    value = _value(payload)
    if kind is AttributeType.KEYWORD_LIST:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if isinstance(value, list):
        if len(value) != 1:
            return not value
        (value,) = value
    if kind is AttributeType.DOUBLE:  # of any size; only 64-bit integers are indexed
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return bool(_single(value, kind))


def _single(value: Any, kind: AttributeType) -> tuple[Indexed, ...]:
    match kind, value:
        case AttributeType.BOOL, bool():
            return (int(value),)
        case ((AttributeType.INT | AttributeType.DOUBLE), bool()):
            return ()
        case AttributeType.INT, int() if value in _INT64:
            return (value,)
        case AttributeType.DOUBLE, (int() | float()):
            return (float(value),) if isinstance(value, float) or value in _INT64 else ()
        case AttributeType.KEYWORD, str():
            return (value,)
        case AttributeType.TEXT, str():
            return (words(value),)
        case AttributeType.DATETIME, str():
            time = parse_time(value)
            return () if time is None else (time,)
        case _:
            return ()


def _value(payload: Payload) -> Any:
    if payload.encoding != "json/plain":
        return None
    try:
        return msgspec.json.decode(payload.data)
    except msgspec.DecodeError:
        return None


OF_RUNS = {
    "WorkflowId": AttributeType.KEYWORD,
    "RunId": AttributeType.KEYWORD,
    "WorkflowType": AttributeType.KEYWORD,
    "ExecutionStatus": AttributeType.KEYWORD,
    "TaskQueue": AttributeType.KEYWORD,
    "StartTime": AttributeType.DATETIME,
    "ExecutionTime": AttributeType.DATETIME,
    "CloseTime": AttributeType.DATETIME,
    "ExecutionDuration": AttributeType.INT,
    "HistoryLength": AttributeType.INT,
    "HistorySizeBytes": AttributeType.INT,
    "ParentWorkflowId": AttributeType.KEYWORD,
    "ParentRunId": AttributeType.KEYWORD,
    "RootWorkflowId": AttributeType.KEYWORD,
    "RootRunId": AttributeType.KEYWORD,
    "StateTransitionCount": AttributeType.INT,
}
"""The attributes that the engine sets for every run."""
_PREDEFINED = {
    "BatcherNamespace": AttributeType.KEYWORD,
    "BatcherUser": AttributeType.KEYWORD,
    "BinaryChecksums": AttributeType.KEYWORD_LIST,
    "BuildIds": AttributeType.KEYWORD_LIST,
    "TemporalChangeVersion": AttributeType.KEYWORD_LIST,
    "TemporalNamespaceDivision": AttributeType.KEYWORD,
    "TemporalPauseInfo": AttributeType.KEYWORD_LIST,
    "TemporalReportedProblems": AttributeType.KEYWORD_LIST,
    "TemporalSchedulePaused": AttributeType.BOOL,
    "TemporalScheduledById": AttributeType.KEYWORD,
    "TemporalScheduledStartTime": AttributeType.DATETIME,
    "TemporalUsedWorkerDeploymentVersions": AttributeType.KEYWORD_LIST,
    "TemporalWorkerDeployment": AttributeType.KEYWORD,
    "TemporalWorkerDeploymentVersion": AttributeType.KEYWORD,
    "TemporalWorkflowVersioningBehavior": AttributeType.KEYWORD,
}
SYSTEM: dict[str, AttributeType] = OF_RUNS | _PREDEFINED
"""The attributes that every engine has."""
SETTABLE = frozenset(_PREDEFINED) - {
    "TemporalUsedWorkerDeploymentVersions",
    "TemporalWorkerDeployment",
    "TemporalWorkerDeploymentVersion",
    "TemporalWorkflowVersioningBehavior",
}
"""The predefined attributes that clients and workflows may set."""


class Flaw(NamedTuple):
    """The reason why search attributes are rejected. `too_large`: a size limit is exceeded, for which a Temporal server
    fails the run.
    """

    message: str
    too_large: bool = False


class SearchAttributes:
    """The search attributes of an engine, with their types and limits. `stored` is called to read the types from the
    engine's store.

    On a Temporal server an operator registers attributes. Here an attribute is created by its first use, with the type
    of that value, as in the index (see `visibility`). Later values are checked against this type, even if the sender's
    metadata names another type, as on a server. The error messages are the server's.
    """

    def __init__(self, stored: Callable[[], Mapping[str, AttributeType]], limits: Limits) -> None:
        self._stored = stored
        self._limits = limits
        self._cached_types: dict[str, AttributeType] | None = None

    def flaw(self, attributes: Mapping[str, Payload]) -> Flaw | None:
        """Return the first violation in these attributes, or None."""
        limits = self._limits
        if len(attributes) > limits.attributes:
            return Flaw(f"number of search attributes {len(attributes)} exceeds limit {limits.attributes}")
        for name, payload in attributes.items():
            reason = self._type_error(name, payload)
            if reason:
                return Flaw(reason)
        total = 0
        for name, payload in attributes.items():
            size = len(payload.data)
            total += len(name.encode()) + size
            if size > limits.attribute_bytes:
                message = (
                    f"search attribute {name} value size {size} exceeds size limit {limits.attribute_bytes}"
                )
                return Flaw(message, too_large=True)
        if total > limits.attributes_bytes:
            message = f"total size of search attributes {total} exceeds size limit {limits.attributes_bytes}"
            return Flaw(message, too_large=True)
        return None

    def type_of(self, name: str) -> AttributeType | None:
        return SYSTEM.get(name) or self._types().get(name)

    def known(self) -> dict[str, AttributeType]:
        """Return the attributes in use, without the predefined ones."""
        return {name: kind for name, kind in self._types().items() if name not in SYSTEM}

    def add(self, types: Mapping[str, AttributeType]) -> None:
        """Declare attributes while the engine runs. They become permanent on their first use."""
        self._types().update(types)

    def learn(self, attributes: Mapping[str, Payload]) -> None:
        """Record the types of attributes that are used for the first time."""
        types = self._types()
        for name, payload in attributes.items():
            if name not in types and name not in SYSTEM and (kind := type_of(payload)) is not None:
                types[name] = kind

    def _type_error(self, name: str, payload: Payload) -> str:
        if not name:
            return "the name of a search attribute must not be empty"
        if name in SYSTEM and name not in SETTABLE:
            return f"{name} attribute can't be set in SearchAttributes"
        kind = SYSTEM.get(name) or self._types().get(name) or type_of(payload)
        if fits(payload, kind or AttributeType.KEYWORD):
            return ""
        type_part = "of no known type" if kind is None else f"of type {kind.value}"
        hint = "" if name in SYSTEM else " (its type was set by its first use)"
        return f"invalid value for search attribute {name} {type_part}: {_value_text(payload)}{hint}"

    def _types(self) -> dict[str, AttributeType]:
        if self._cached_types is None:
            self._cached_types = dict(self._stored())
        return self._cached_types


def _value_text(payload: Payload) -> str:
    try:
        return _as_text(msgspec.json.decode(payload.data))[:200]
    except msgspec.DecodeError:
        return f"{len(payload.data)} bytes, not valid JSON"


def _as_text(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case [*values]:
            return f"[{' '.join(map(_as_text, values))}]"
        case _:
            return str(value)
