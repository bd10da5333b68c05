"""List filters as SQL: which comparisons each attribute supports, and conditions with bound values.

Must not know: connections, which store runs the SQL. No part of a filter becomes part of the SQL string: names are
looked up in tables of ours or bound, operators come from tables, values are bound. The semantics are those of the
Temporal dev server, found by experiment: if an attribute is missing, neither a comparison nor its negation is true, but
a missing list or Text matches `!=` and NOT IN; STARTS_WITH and the strings of lists ignore case; a Text matches if it
contains any of the words. Invariant: `statement` returns SQL that SQLite can run, or raises a `ServiceError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hourglass._contract.workflows import WorkflowStatus
from hourglass._embedded.store import filters as f
from hourglass._embedded.store.search_attributes import SYSTEM, AttributeType, Indexed, parse_time, words
from hourglass.errors import ServiceError

Types: TypeAlias = Mapping[str, AttributeType]


@dataclass(frozen=True)
class Attribute:
    """An attribute to filter by: a column of the table of runs or, if `column` is empty, rows of the attribute table."""

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
"""The rank of an open run: later than all times."""

_NOT_OPEN = f" AND rank < {OPEN}"

_COLUMNS = {
    "WorkflowId": "workflow_id",
    "RunId": "run_id",
    "WorkflowType": "workflow_type",
    STATUS: "status",
    "TaskQueue": "task_queue",
    "StartTime": "start_time",
    "ExecutionTime": "execution_time",
    CLOSED: "close_time",
    DURATION: "execution_duration",
    "HistoryLength": "history_length",
    "HistorySizeBytes": "history_size",
    "ParentWorkflowId": "parent_workflow_id",
    "ParentRunId": "parent_run_id",
    "RootWorkflowId": "root_workflow_id",
    "RootRunId": "root_run_id",
    # The server's name for a value that this engine does not keep: missing in every run.
    "StateTransitionCount": "NULL",
}
"""Columns of the table of runs for the attributes of every run."""


def status_name(status: WorkflowStatus) -> str:
    """Return the name of a status in filters and counts, such as ContinuedAsNew."""
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
_MAX_PATTERN = 40_000  # bytes; SQLite's own limit is 50,000


def statement(query: f.Filter, types: Types) -> Sql:
    """Return the SQL condition of a filter. `types` are the types of the attributes that are not predefined."""
    if query.group_by and query.group_by != STATUS:
        attribute_name = _attribute(query.group_by, types, 0).name
        raise f.invalid_query(f"GROUP BY is supported for {STATUS} only, not for {attribute_name}")
    if query.condition is None:
        return Sql("1")
    sql = _condition(f.without_not(query.condition), types)
    if len(sql.values) > f.MAX_VALUES + f.MAX_CONDITIONS:
        raise f.invalid_query(f"the query has more than {f.MAX_VALUES} values and search words")
    return sql


def _condition(condition: f.Condition, types: Types) -> Sql:
    match condition:
        case f.And(conditions) | f.Or(conditions):
            parts = [_condition(part, types) for part in conditions]
            joint = " AND " if isinstance(condition, f.And) else " OR "
            return Sql(
                f"({joint.join(part.text for part in parts)})",
                tuple(value for part in parts for value in part.values),
            )
        case f.Not():
            raise AssertionError("`without_not` removes every NOT")
        case _:
            return _leaf(condition, _attribute(condition.name, types, condition.position))


def _attribute(name: str, types: Types, position: int) -> Attribute:
    """Find an attribute by name; as on the server, the prefix Temporal may be omitted or added."""
    for spelled in (name, f"Temporal{name}", name.removeprefix("Temporal")):
        if spelled in SYSTEM:
            return Attribute(spelled, SYSTEM[spelled], _COLUMNS.get(spelled, ""))
        if spelled == name and name in types:
            return Attribute(name, types[name])
    where = f" at character {position}" if position else ""
    custom = ", ".join(sorted(types)) or "none"
    raise f.invalid_query(
        f"invalid search attribute: {name}{where}. Built-in attributes: {', '.join(_COLUMNS)}; custom attributes: "
        f"{custom}"
    )


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
        case f.Between():
            if attribute.type not in _RANGES:
                raise _not_supported("BETWEEN", attribute, leaf.position)
            values = (leaf.low, leaf.high)
    bound = tuple(_to_sql_value(value, attribute, leaf.position) for value in values)
    match attribute.type:
        case AttributeType.TEXT:
            return _text(leaf, attribute, str(bound[0]))
        case AttributeType.KEYWORD_LIST:
            return _list(leaf, attribute, tuple(str(value).lower() for value in bound))
        case _:
            return _scalar(leaf, attribute, bound)


def _missing(leaf: f.Missing, attribute: Attribute) -> Sql:
    if attribute.column:
        return Sql(f"{attribute.column} IS {'NOT ' if leaf.negated else ''}NULL")
    return _attribute_condition(attribute, "", (), leaf.negated)


def _scalar(leaf: f.Leaf, attribute: Attribute, values: tuple[Indexed, ...]) -> Sql:
    match leaf:
        case f.Comparison(operator=operator) if operator in _PREFIX:
            test = f"{_PREFIX[operator]} ? ESCAPE '!'"
            values = (_pattern(str(values[0]), attribute, leaf.position),)
        case f.Comparison(operator=operator):
            test = f"{operator} ?"
        case f.Membership(negated=negated):
            test = f"{'NOT ' if negated else ''}IN ({', '.join('?' * len(values))})"
        case f.Between(negated=negated):
            test = f"{'NOT ' if negated else ''}BETWEEN ? AND ?"
        case f.Missing():
            raise AssertionError("must contain at least one value")
    if attribute.name == CLOSED and not test.startswith(("NOT", "!=", "IN")):
        # The rank of a closed run is its close time, the rank of an open run is later than all times. The list is
        # ordered by rank.
        return Sql(f"(rank {test}{_NOT_OPEN if test.startswith('>') else ''})", values)
    if attribute.column:
        return Sql(f"{attribute.column} {test}", values)
    return _attribute_condition(attribute, f" AND value {test}", values, True)


def _list(leaf: f.Leaf, attribute: Attribute, values: tuple[str, ...]) -> Sql:
    holds = not leaf.negated if isinstance(leaf, f.Membership) else _is_equality(leaf)
    return _attribute_condition(attribute, f" AND value IN ({', '.join('?' * len(values))})", values, holds)


def _text(leaf: f.Leaf, attribute: Attribute, value: str) -> Sql:
    if not value.strip():
        raise f.invalid_query(
            f"the value for {attribute.name} at character {leaf.position} contains no words"
        )
    phrases = tuple(words(word) for word in value.split())
    phrases = tuple(dict.fromkeys(phrase for phrase in phrases if phrase.strip()))[: f.MAX_CONDITIONS]
    any_of = " OR ".join(["instr(value, ?)"] * len(phrases)) or "0"
    return _attribute_condition(attribute, f" AND ({any_of})", phrases, _is_equality(leaf))


def _attribute_condition(attribute: Attribute, test: str, values: tuple[Indexed, ...], holds: bool) -> Sql:
    """Return a condition on the attribute table: that a matching row exists (`holds`), or that none exists."""
    subquery = f"SELECT run_id FROM visibility_attributes WHERE name = ?{test}"
    return Sql(f"run_id {'' if holds else 'NOT '}IN ({subquery})", (attribute.name, *values))


def _is_equality(leaf: f.Leaf) -> bool:
    return isinstance(leaf, f.Comparison) and leaf.operator == "="


def _pattern(prefix: str, attribute: Attribute, position: int) -> str:
    escaped = prefix.replace("!", "!!").replace("%", "!%").replace("_", "!_") + "%"
    if len(escaped.encode()) > _MAX_PATTERN:
        raise f.invalid_query(f"the value for {attribute.name} at character {position} is too long")
    return escaped


def _to_sql_value(value: f.Literal, attribute: Attribute, position: int) -> Indexed:
    converted: Indexed | None
    match attribute.name:
        case "ExecutionStatus":
            converted = _status(value)
        case "ExecutionDuration":
            converted = _duration(value)
        case _:
            converted = _scalar_value(value, attribute.type)
    if converted is None:
        raise f.invalid_query(
            f"invalid value for search attribute {attribute.name} of type {attribute.type.value} at character "
            f"{position}: expected {_EXPECTED.get(attribute.name) or _EXPECTED[attribute.type.value]}"
        )
    return converted


def _status(value: f.Literal) -> int | None:
    if isinstance(value, str):
        return _STATUSES.get(value)
    return value if type(value) is int and value in _STATUSES.values() else None


def _duration(value: f.Literal) -> int | None:
    if isinstance(value, str):
        return f.parse_duration(value)
    return value if type(value) is int else None


def _scalar_value(value: f.Literal, kind: AttributeType) -> Indexed | None:
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


_EXPECTED = {
    STATUS: "one of " + ", ".join(name for name in _STATUSES if not name.isupper()),
    DURATION: "'1h30m', '1.5s', 'hh:mm:ss' or nanoseconds",
    "Keyword": "a quoted string",
    "KeywordList": "a quoted string",
    "Text": "a quoted string",
    "Int": "a number",
    "Double": "a number",
    "Bool": "true or false, without quotes",
    "Datetime": "'2024-12-31T23:59:59Z', with an optional offset or fraction, or nanoseconds since the epoch",
}


def _not_supported(operator: str, attribute: Attribute, position: int) -> ServiceError:
    return f.invalid_query(
        f"operator {operator} at character {position} is not supported for search attribute {attribute.name} of type "
        f"{attribute.type.value}"
    )
