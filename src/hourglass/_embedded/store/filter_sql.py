"""A list filter as SQL: what attributes there are, what may be asked of each, and a condition with bound values.
Before that: search attributes as an index sees them, their types, and payloads as values that SQLite can compare.

Must not know: connections, which store runs it. What a filter says never becomes part of the SQL text: names are
looked up in tables of ours or bound, operators come from tables, values are bound. Meanings are those of the Temporal
dev server, found by trying: a comparison with a missing attribute holds neither plainly nor negated, but a list or
text that is missing passes `!=` and NOT IN; STARTS_WITH and the texts of lists do not mind the case of letters; a
Text is found by any of the words given.

Times are whole microseconds, as Temporal's own index keeps them. A payload says its type in its metadata; one that
does not gets the type of its JSON value, and a text that is an RFC 3339 time is taken for one.

Invariants: `statement` gives SQL that SQLite can run, or raises a `ServiceError`; in the index texts of lists are in
lower case and texts of type Text are their words, in the form that `words` gives, since they are looked up so.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from hourglass._contract.service import WorkflowStatus
from hourglass._embedded.store import filters as f
from hourglass._embedded.store.filters import parse_duration, refusal
from hourglass.converter import Payload
from hourglass.errors import ServiceError

# --- values of search attributes ----------------------------------------------------------------------------

Indexed: TypeAlias = str | int | float


class AttributeType(Enum):
    """The types of search attributes, by Temporal's names."""

    KEYWORD = "Keyword"
    KEYWORD_LIST = "KeywordList"
    TEXT = "Text"
    INT = "Int"
    DOUBLE = "Double"
    BOOL = "Bool"
    DATETIME = "Datetime"


_TYPES = {kind.value: kind for kind in AttributeType}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_INT64 = range(-(2**63), 2**63)


def type_named(name: str) -> AttributeType | None:
    """The type of this name."""
    return _TYPES.get(name)


def parse_time(text: str) -> int | None:
    """An RFC 3339 time as microseconds since the epoch; None if it is none."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    try:
        time = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone == 'Z' else zone}")
    except ValueError:
        return None
    return (time - _EPOCH) // _MICROSECOND + int((fraction or "0")[:6].ljust(6, "0"))


def words(text: str) -> str:
    """The words of a text as they are searched: in lower case, without accents, a space around each."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))
    separated = "".join(c if c.isalnum() else " " for c in plain.lower())
    return f" {' '.join(separated.split())} "


def type_of(payload: Payload) -> AttributeType | None:
    """The type that a payload says it has or, if it says none, that its value suggests."""
    said = (payload.metadata or {}).get("type", b"").decode(errors="replace")
    if said in _TYPES:
        return _TYPES[said]
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
    """What a payload is found by, as an attribute of that type; nothing if it is missing or does not fit."""
    value = _value(payload)
    if kind is AttributeType.KEYWORD_LIST:
        several = value if isinstance(value, list) else [value]
        return tuple(dict.fromkeys(each.lower() for each in several if isinstance(each, str) and each))
    if isinstance(value, list) and len(value) == 1:  # as some SDKs send a single value
        value = value[0]
    return _single(value, kind)


def fits(payload: Payload, kind: AttributeType) -> bool:
    """Whether a server takes a payload for an attribute of that type. One that unsets the attribute always fits."""
    if payload.encoding == "binary/null" or payload.data == b"null":
        return True
    value = _value(payload)
    if kind is AttributeType.KEYWORD_LIST:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if isinstance(value, list):
        if len(value) != 1:
            return not value
        (value,) = value
    if kind is AttributeType.DOUBLE:  # of any size, unlike those that are indexed
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


# --- a filter as a condition --------------------------------------------------------------------------------

Types: TypeAlias = Mapping[str, AttributeType]


@dataclass(frozen=True)
class Attribute:
    """Something to filter by: a column of the table of runs, or (without one) rows beside it."""

    name: str
    type: AttributeType
    column: str = ""


@dataclass(frozen=True)
class Sql:
    """A condition on the table of runs, and the values to bind."""

    text: str
    values: tuple[Indexed, ...] = ()


STATUS = "ExecutionStatus"
DURATION = "ExecutionDuration"
CLOSED = "CloseTime"

OPEN = 2**62
"""The rank of a run that is open: later than all times."""

_NOT_OPEN = f" AND rank < {OPEN}"

_COLUMNS = {
    "WorkflowId": (AttributeType.KEYWORD, "workflow_id"),
    "RunId": (AttributeType.KEYWORD, "run_id"),
    "WorkflowType": (AttributeType.KEYWORD, "workflow_type"),
    STATUS: (AttributeType.KEYWORD, "status"),
    "TaskQueue": (AttributeType.KEYWORD, "task_queue"),
    "StartTime": (AttributeType.DATETIME, "start_time"),
    "ExecutionTime": (AttributeType.DATETIME, "execution_time"),
    CLOSED: (AttributeType.DATETIME, "close_time"),
    DURATION: (AttributeType.INT, "execution_duration"),
    "HistoryLength": (AttributeType.INT, "history_length"),
    "HistorySizeBytes": (AttributeType.INT, "history_size"),
    "ParentWorkflowId": (AttributeType.KEYWORD, "parent_workflow_id"),
    "ParentRunId": (AttributeType.KEYWORD, "parent_run_id"),
    "RootWorkflowId": (AttributeType.KEYWORD, "root_workflow_id"),
    "RootRunId": (AttributeType.KEYWORD, "root_run_id"),
    # A known name of which this engine keeps nothing: missing in every run.
    "StateTransitionCount": (AttributeType.INT, "NULL"),
}
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
SYSTEM: dict[str, Attribute] = {
    name: Attribute(name, kind, column) for name, (kind, column) in _COLUMNS.items()
} | {name: Attribute(name, kind) for name, kind in _PREDEFINED.items()}
"""The attributes that every engine has."""
SETTABLE = frozenset(_PREDEFINED) - {
    "TemporalUsedWorkerDeploymentVersions",
    "TemporalWorkerDeployment",
    "TemporalWorkerDeploymentVersion",
    "TemporalWorkflowVersioningBehavior",
}
"""Those of them that a server lets clients and workflows set."""


def status_name(status: WorkflowStatus) -> str:
    """A status as filters and their answers spell it: ContinuedAsNew."""
    return status.name.title().replace("_", "")


_STATUSES: dict[str, int] = {
    name: status.value
    for status in WorkflowStatus
    for name in (
        f"WORKFLOW_EXECUTION_STATUS_{status.name}",
        status_name(status),
    )
}

_PLAIN = frozenset({"=", "!=", "<", "<=", ">", ">="})
_PREFIX = {"STARTS_WITH": "LIKE", "NOT STARTS_WITH": "NOT LIKE"}
_COMPARISONS = {
    AttributeType.KEYWORD: _PLAIN | _PREFIX.keys(),
    AttributeType.KEYWORD_LIST: frozenset({"=", "!="}),
    AttributeType.TEXT: frozenset({"=", "!="}),
}
_RANGES = (AttributeType.KEYWORD, AttributeType.INT, AttributeType.DOUBLE, AttributeType.DATETIME)
_MAX_PATTERN = 40_000  # bytes; SQLite itself refuses patterns above 50,000


def statement(query: f.Query, types: Types) -> Sql:
    """The condition of a filter, given the types of the attributes that are not the system's."""
    if query.group_by and query.group_by != STATUS:
        known = _attribute(query.group_by, types, 0).name
        raise refusal(f"GROUP BY is supported for {STATUS} only, not for {known}")
    if query.condition is None:
        return Sql("1")
    sql = _condition(f.without_not(query.condition), types)
    if len(sql.values) > f.MAX_VALUES + f.MAX_CONDITIONS:
        raise refusal(f"more than {f.MAX_VALUES} values and words to look for")
    return sql


def _condition(condition: f.Condition, types: Types) -> Sql:
    match condition:
        case f.And(conditions) | f.Or(conditions):
            parts = [_condition(each, types) for each in conditions]
            joint = " AND " if isinstance(condition, f.And) else " OR "
            return Sql(
                f"({joint.join(part.text for part in parts)})",
                tuple(value for part in parts for value in part.values),
            )
        case f.Not():
            raise AssertionError("`without_not` leaves none")
        case _:
            return _leaf(condition, _attribute(condition.name, types, condition.position))


def _attribute(name: str, types: Types, position: int) -> Attribute:
    """The attribute of a name; as on the server, the prefix Temporal may be left out or put before."""
    for spelled in (name, f"Temporal{name}", name.removeprefix("Temporal")):
        if spelled in SYSTEM:
            return SYSTEM[spelled]
        if spelled == name and name in types:
            return Attribute(name, types[name])
    place = f" at character {position}" if position else ""
    custom = ", ".join(sorted(types)) or "no others"
    raise refusal(
        f"invalid search attribute: {name}{place}; there are {', '.join(_COLUMNS)}, and of the runs here: {custom}"
    )


# --- leaves -------------------------------------------------------------------------------------------------


def _leaf(leaf: f.Leaf, attribute: Attribute) -> Sql:
    match leaf:
        case f.Missing():
            return _missing(leaf, attribute)
        case f.Comparison():
            allowed = _COMPARISONS.get(attribute.type, _PLAIN)
            if leaf.operator not in allowed:
                raise _not_supported(leaf.operator, attribute, leaf.position)
            values: tuple[f.Literal, ...] = (leaf.value,)
        case f.Membership():
            if attribute.type is AttributeType.TEXT:
                raise _not_supported("IN", attribute, leaf.position)
            values = leaf.values
        case f.Range():
            if attribute.type not in _RANGES:
                raise _not_supported("BETWEEN", attribute, leaf.position)
            values = (leaf.low, leaf.high)
    bound = tuple(_bound(value, attribute, leaf.position) for value in values)
    match attribute.type:
        case AttributeType.TEXT:
            return _text(leaf, attribute, str(bound[0]))
        case AttributeType.KEYWORD_LIST:
            return _list(leaf, attribute, tuple(str(each).lower() for each in bound))
        case _:
            return _scalar(leaf, attribute, bound)


def _missing(leaf: f.Missing, attribute: Attribute) -> Sql:
    if attribute.column:
        return Sql(f"{attribute.column} IS {'NOT ' if leaf.negated else ''}NULL")
    return _beside(attribute, "", (), leaf.negated)


def _scalar(leaf: f.Leaf, attribute: Attribute, values: tuple[Indexed, ...]) -> Sql:
    match leaf:
        case f.Comparison(operator=operator) if operator in _PREFIX:
            test = f"{_PREFIX[operator]} ? ESCAPE '!'"
            values = (_pattern(str(values[0]), attribute, leaf.position),)
        case f.Comparison(operator=operator):
            test = f"{operator} ?"
        case f.Membership(negated=negated):
            test = f"{'NOT ' if negated else ''}IN ({', '.join('?' * len(values))})"
        case f.Range(negated=negated):
            test = f"{'NOT ' if negated else ''}BETWEEN ? AND ?"
        case f.Missing():
            raise AssertionError("has no values")
    if (
        attribute.name == CLOSED
        and isinstance(leaf, f.Comparison | f.Range)
        and not test.startswith(("NOT", "!="))
    ):
        # The rank of a closed run is its close time, and that of an open one beyond all times: the list is in this order.
        return Sql(f"rank {test}{_NOT_OPEN if test.startswith('>') else ''}", values)
    if attribute.column:
        return Sql(f"{attribute.column} {test}", values)
    return _beside(attribute, f" AND value {test}", values, True)


def _list(leaf: f.Leaf, attribute: Attribute, values: tuple[str, ...]) -> Sql:
    holds = not leaf.negated if isinstance(leaf, f.Membership) else _is_equality(leaf)
    return _beside(attribute, f" AND value IN ({', '.join('?' * len(values))})", values, holds)


def _text(leaf: f.Leaf, attribute: Attribute, value: str) -> Sql:
    if not value.strip():
        raise refusal(f"no words to look for in {attribute.name} at character {leaf.position}")
    phrases = tuple(words(word) for word in value.split())
    phrases = tuple(dict.fromkeys(phrase for phrase in phrases if phrase.strip()))[: f.MAX_CONDITIONS]
    any_of = " OR ".join(["instr(value, ?)"] * len(phrases)) or "0"
    return _beside(attribute, f" AND ({any_of})", phrases, _is_equality(leaf))


def _beside(attribute: Attribute, test: str, values: tuple[Indexed, ...], holds: bool) -> Sql:
    """A condition on the rows beside the table of runs: there is one that passes, or there is none."""
    found = f"SELECT run_id FROM visibility_attributes WHERE name = ?{test}"
    return Sql(f"run_id {'' if holds else 'NOT '}IN ({found})", (attribute.name, *values))


def _is_equality(leaf: f.Leaf) -> bool:
    return isinstance(leaf, f.Comparison) and leaf.operator == "="


def _pattern(prefix: str, attribute: Attribute, position: int) -> str:
    escaped = prefix.replace("!", "!!").replace("%", "!%").replace("_", "!_") + "%"
    if len(escaped.encode()) > _MAX_PATTERN:
        raise refusal(f"the value for {attribute.name} at character {position} is too long")
    return escaped


# --- values -------------------------------------------------------------------------------------------------


def _bound(value: f.Literal, attribute: Attribute, position: int) -> Indexed:
    found: Indexed | None
    match attribute.name:
        case "ExecutionStatus":
            found = _status(value)
        case "ExecutionDuration":
            found = _duration(value)
        case _:
            found = _typed(value, attribute.type)
    if found is None:
        raise refusal(
            f"invalid value for search attribute {attribute.name} of type {attribute.type.value} at character "
            f"{position}: it takes {_TAKES.get(attribute.name) or _TAKES[attribute.type.value]}"
        )
    return found


def _status(value: f.Literal) -> int | None:
    if isinstance(value, str):
        return _STATUSES.get(value)
    return value if type(value) is int and value in _STATUSES.values() else None


def _duration(value: f.Literal) -> int | None:
    if isinstance(value, str):
        return parse_duration(value)
    return value if type(value) is int else None


def _typed(value: f.Literal, kind: AttributeType) -> Indexed | None:
    match kind, value:
        case AttributeType.BOOL, bool():
            return int(value)
        case _, bool():
            return None
        case ((AttributeType.INT | AttributeType.DOUBLE), (int() | float())):
            return value
        case AttributeType.DATETIME, int():
            return value // 1000
        case AttributeType.DATETIME, str():
            return parse_time(value)
        case ((AttributeType.KEYWORD | AttributeType.KEYWORD_LIST | AttributeType.TEXT), str()):
            return value
        case _:
            return None


_TAKES = {
    STATUS: "one of " + ", ".join(name for name in _STATUSES if not name.isupper()),
    DURATION: "'1h30m', '1.5s', 'hh:mm:ss' or nanoseconds",
    "Keyword": "a quoted text",
    "KeywordList": "a quoted text",
    "Text": "a quoted text",
    "Int": "a number",
    "Double": "a number",
    "Bool": "true or false, without quotes",
    "Datetime": "'2024-12-31T23:59:59Z', with an offset or fraction if need be, or nanoseconds since the epoch",
}


def _not_supported(operator: str, attribute: Attribute, position: int) -> ServiceError:
    return refusal(
        f"operator {operator} is not supported for search attribute {attribute.name} of type "
        f"{attribute.type.value}, at character {position}"
    )
