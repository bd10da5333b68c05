"""Parser of Temporal's list filters.

    WorkflowType = 'Order' AND (ExecutionStatus IN ('Failed', 'TimedOut') OR Amount > 100) AND NOT Region IS NULL

Must not know: which attributes exist, types, SQL. The lexical rules are those of the Temporal server, which reads
filters with a MySQL parser: names in backticks; strings in either quotes, with doubled quotes or backslashes inside;
comments. Names are case-sensitive, keywords are not. AND binds more tightly than OR, NOT more than both. Durations have
the formats that the server accepts for ExecutionDuration: Go's format plus days (`1d2h30m`, `1.5s`), `hh:mm:ss`, or
nanoseconds.

Invariants: for any string `parse` returns a `Filter` or raises a `ServiceError` with the position of the error; the
list of tokens ends with `END`; depth and width of a filter are bounded, so that recursive code needs no guard.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from typing import TypeAlias

from hourglass.errors import ServiceError

_INT64 = range(-(2**63), 2**63)


class TokenKind(Enum):
    """Kinds of tokens, worded for error messages."""

    NAME = "a name"
    KEYWORD = "a keyword"
    TEXT = "a quoted string"
    NUMBER = "a number"
    SIGN = "a sign"
    END = "the end"


@dataclass(frozen=True)
class FilterToken:
    """One token: its kind, its value (keywords in capitals), its original spelling, and its position, counted from 1."""

    kind: TokenKind
    value: str | int | float
    raw: str
    position: int


KEYWORDS = frozenset(
    {
        *("AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL", "STARTS_WITH", "TRUE", "FALSE"),
        *("GROUP", "BY", "ORDER", "LIMIT", "LIKE", "REGEXP", "SELECT", "WHERE"),  # mostly unsupported
    }
)
"""Reserved words. They can be used as attribute names only in backticks."""

_SCANNER = re.compile(
    r"""(?P<space> \s+ | --[^\n]* | \#[^\n]* | //[^\n]* | /\*.*?\*/ )
      | (?P<text> '(?:[^'\\]|''|\\.)*' | "(?:[^"\\]|""|\\.)*" )
      | (?P<quoted> `[^`]+`(?:\.`[^`]+`)* )
      | (?P<number> (?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]) )
      | (?P<word> [^\W\d][\w$]*(?:\.\w+)* )
      | (?P<sign> <=>|<=|>=|<>|!=|&&|\|\||[=<>(),;+-] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_SYNONYMS = {"<>": "!=", "&&": "AND", "||": "OR"}


def invalid_query(message: str) -> ServiceError:
    return ServiceError(f"invalid query: {message}", status="INVALID_ARGUMENT")


def tokens(text: str) -> tuple[FilterToken, ...]:
    result: list[FilterToken] = []
    offset = 0
    while offset < len(text):
        match = _SCANNER.match(text, offset)
        if match is None or match.lastgroup is None:
            raise invalid_query(f"syntax error at character {offset + 1} near {text[offset : offset + 20]!r}")
        if match.lastgroup != "space":
            result.append(_token(match.lastgroup, match.group(), offset + 1))
        offset = match.end()
    result.append(FilterToken(TokenKind.END, "", "", len(text) + 1))
    return tuple(result)


def _token(group: str, raw: str, position: int) -> FilterToken:
    match group:
        case "text":
            return FilterToken(TokenKind.TEXT, _unquoted(raw, position), raw, position)
        case "quoted":
            return FilterToken(TokenKind.NAME, raw.replace("`", ""), raw, position)
        case "number":
            return FilterToken(TokenKind.NUMBER, _number(raw, position), raw, position)
        case "word":
            keyword = raw.upper()
            if keyword in KEYWORDS:
                return FilterToken(TokenKind.KEYWORD, keyword, raw, position)
            return FilterToken(TokenKind.NAME, raw, raw, position)
        case _:
            value = _SYNONYMS.get(raw, raw)
            return FilterToken(
                TokenKind.KEYWORD if value in KEYWORDS else TokenKind.SIGN, value, raw, position
            )


def _unquoted(raw: str, position: int) -> str:
    quote = raw[0]
    # Backslash escapes and doubled quotes may be adjacent, so one pass handles both.
    pattern = re.compile(rf"\\(.)|{quote}{quote}", re.DOTALL)
    value = pattern.sub(lambda m: quote if m[1] is None else _ESCAPES.get(m[1], m[1]), raw[1:-1])
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid_query(f"the string at character {position} is not Unicode") from None
    return value


def _number(raw: str, position: int) -> int | float:
    if raw.isdecimal() and len(raw) < 25 and int(raw) in _INT64:
        return int(raw)
    value = float(raw)  # also integers of more than 64 bits, as on the server
    if math.isinf(value):
        raise invalid_query(f"the number at character {position} is too large")
    return value


_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3600 * 1_000_000_000,
    "d": 86_400 * 1_000_000_000,
}
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_PART = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h|d)", re.ASCII)
_PARTS = re.compile(rf"([+-]?)((?:{_PART.pattern})+)", re.ASCII)
_CLOCK = re.compile(r"(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)


def parse_duration(text: str) -> int | None:
    """Parse a duration and return nanoseconds; None if the duration is invalid or exceeds 64 bits."""
    value = _duration_ns(text) if len(text) < 100 else None
    return value if value is not None and abs(value) < 2**63 else None


def _duration_ns(text: str) -> int | None:
    if _INTEGER.fullmatch(text):
        return int(text)
    if clock := _CLOCK.fullmatch(text):
        hours, minutes, seconds = (Fraction(part) for part in clock.groups())
        return int((hours * 3600 + minutes * 60 + seconds) * _UNITS["s"])
    if parts := _PARTS.fullmatch(text):
        total = sum(Fraction(amount.rstrip(".")) * _UNITS[unit] for amount, unit in _PART.findall(parts[2]))
        return -int(total) if parts[1] == "-" else int(total)
    return None


MAX_DEPTH = 40
MAX_CONDITIONS = 400
MAX_VALUES = 5000
MAX_TEXT = 131_072
"""Maximum length of a filter, in characters."""

Literal: TypeAlias = str | int | float | bool


@dataclass(frozen=True)
class Comparison:
    """A comparison of an attribute with a value; the operators are the keys of `NEGATED`."""

    name: str
    operator: str
    value: Literal
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Membership:
    """IN or NOT IN."""

    name: str
    values: tuple[Literal, ...]
    negated: bool = False
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Between:
    """BETWEEN or NOT BETWEEN; both bounds are included."""

    name: str
    low: Literal
    high: Literal
    negated: bool = False
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Missing:
    """IS NULL or IS NOT NULL."""

    name: str
    negated: bool = False
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Not:
    """Negation of a condition."""

    condition: Condition


@dataclass(frozen=True)
class And:
    """Conjunction of two or more conditions."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class Or:
    """Disjunction of two or more conditions."""

    conditions: tuple[Condition, ...]


Leaf: TypeAlias = Comparison | Membership | Between | Missing
Condition: TypeAlias = Leaf | Not | And | Or


@dataclass(frozen=True)
class Filter:
    """A parsed filter.

    `condition` is None if the filter matches all runs. `group_by` is the attribute by which a count is grouped.
    """

    condition: Condition | None = None
    group_by: str = ""


NEGATED = {
    "=": "!=",
    "!=": "=",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
    "STARTS_WITH": "NOT STARTS_WITH",
    "NOT STARTS_WITH": "STARTS_WITH",
}
"""Each comparison operator with its negation. A missing attribute satisfies neither of the two."""

_SIGNS = frozenset(sign for sign in NEGATED if not sign[-1].isalpha())


def parse(text: str) -> Filter:
    """Parse a filter. Raises `ServiceError` if the filter is invalid."""
    if len(text) > MAX_TEXT:
        raise invalid_query(f"it has {len(text)} characters; the maximum is {MAX_TEXT}")
    if not text.strip():
        return Filter()
    return _Parser(tokens(text)).query()


def without_not(condition: Condition, negate: bool = False) -> Condition:
    """Return an equivalent condition in which every NOT is moved into the leaves.

    A comparison with a missing attribute is neither true nor false, but De Morgan's laws still hold.
    """
    match condition:
        case Not(inner):
            return without_not(inner, not negate)
        case And(conditions) | Or(conditions):
            inner_conditions = tuple(without_not(part, negate) for part in conditions)
            return And(inner_conditions) if isinstance(condition, And) is not negate else Or(inner_conditions)
        case Comparison() if negate:
            return replace(condition, operator=NEGATED[condition.operator])
        case Membership() | Between() | Missing() if negate:
            return replace(condition, negated=not condition.negated)
        case _:
            return condition


class _Parser:
    """A recursive descent parser with one method per grammar rule; `_next` is the current token."""

    def __init__(self, tokens: tuple[FilterToken, ...]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0
        self._conditions = 0
        self._values = 0

    def query(self) -> Filter:
        condition = None if self._is_keyword("GROUP", "ORDER") else self._or_condition()
        group_by = self._group_by()
        for clause in ("ORDER", "LIMIT"):
            if self._is_keyword(clause):
                raise invalid_query(
                    f"{clause} at character {self._next.position} is not supported: lists have a fixed order"
                )
        self._take(TokenKind.SIGN, ";")
        if self._next.kind is not TokenKind.END:
            raise self._expected("AND, OR or the end")
        return Filter(condition, group_by)

    def _group_by(self) -> str:
        if not self._take(TokenKind.KEYWORD, "GROUP"):
            return ""
        if not self._take(TokenKind.KEYWORD, "BY"):
            raise self._expected("BY")
        return self._name()

    def _or_condition(self) -> Condition:
        conditions = [self._and_condition()]
        while self._take(TokenKind.KEYWORD, "OR"):
            conditions.append(self._and_condition())
        return conditions[0] if len(conditions) == 1 else Or(tuple(conditions))

    def _and_condition(self) -> Condition:
        conditions = [self._single_condition()]
        while self._take(TokenKind.KEYWORD, "AND"):
            conditions.append(self._single_condition())
        return conditions[0] if len(conditions) == 1 else And(tuple(conditions))

    def _single_condition(self) -> Condition:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise invalid_query(
                f"the query has more than {MAX_DEPTH} nested levels at character {self._next.position}"
            )
        condition: Condition
        if self._take(TokenKind.KEYWORD, "NOT"):
            condition = Not(self._single_condition())
        elif self._take(TokenKind.SIGN, "("):
            condition = self._or_condition()
            self._sign(")")
        else:
            condition = self._leaf()
        self._depth -= 1
        return condition

    def _leaf(self) -> Leaf:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise invalid_query(f"the query has more than {MAX_CONDITIONS} conditions")
        position = self._next.position
        name = self._name()
        if self._next.kind is TokenKind.SIGN and self._next.value in _SIGNS:
            return Comparison(name, str(self._advance().value), self._value(), position)
        if self._take(TokenKind.KEYWORD, "IS"):
            negated = self._take(TokenKind.KEYWORD, "NOT")
            if not self._take(TokenKind.KEYWORD, "NULL"):
                raise self._expected("NULL")
            return Missing(name, negated, position)
        return self._keyword_leaf(name, self._take(TokenKind.KEYWORD, "NOT"), position)

    def _keyword_leaf(self, name: str, negated: bool, position: int) -> Leaf:
        if self._take(TokenKind.KEYWORD, "IN"):
            return Membership(name, self._list(), negated, position)
        if self._take(TokenKind.KEYWORD, "BETWEEN"):
            low = self._value()
            if not self._take(TokenKind.KEYWORD, "AND"):
                raise self._expected("AND")
            return Between(name, low, self._value(), negated, position)
        if self._take(TokenKind.KEYWORD, "STARTS_WITH"):
            return Comparison(name, "NOT STARTS_WITH" if negated else "STARTS_WITH", self._value(), position)
        raise self._expected("=, !=, <, <=, >, >=, IS, [NOT] IN, [NOT] BETWEEN or [NOT] STARTS_WITH")

    def _list(self) -> tuple[Literal, ...]:
        self._sign("(")
        values = [self._value()]
        while self._take(TokenKind.SIGN, ","):
            values.append(self._value())
        self._sign(")")
        return tuple(values)

    def _value(self) -> Literal:
        self._values += 1
        if self._values > MAX_VALUES:
            raise invalid_query(f"the query has more than {MAX_VALUES} values")
        token = self._next
        if token.kind is TokenKind.SIGN and token.value in ("+", "-"):
            self._advance()
            if self._next.kind is not TokenKind.NUMBER:
                raise self._expected("a number")
            number = self._advance().value
            assert not isinstance(number, str)
            return -number if token.value == "-" else number
        if token.kind in (TokenKind.TEXT, TokenKind.NUMBER):
            return self._advance().value
        if self._is_keyword("TRUE", "FALSE"):
            return self._advance().value == "TRUE"
        hint = " (did you forget to quote it?)" if token.kind is TokenKind.NAME else ""
        raise self._expected("a value: a quoted string, a number, true or false", hint)

    def _name(self) -> str:
        if self._next.kind is not TokenKind.NAME:
            raise self._expected("the name of a search attribute")
        return str(self._advance().value)

    @property
    def _next(self) -> FilterToken:
        return self._tokens[self._position]

    def _advance(self) -> FilterToken:
        token = self._tokens[self._position]
        self._position += 1
        return token

    def _is_keyword(self, *words: str) -> bool:
        return self._next.kind is TokenKind.KEYWORD and self._next.value in words

    def _take(self, kind: TokenKind, value: str) -> bool:
        matches = self._next.kind is kind and self._next.value == value
        self._position += matches
        return matches

    def _sign(self, sign: str) -> None:
        if not self._take(TokenKind.SIGN, sign):
            raise self._expected(repr(sign))

    def _expected(self, expected: str, hint: str = "") -> Exception:
        token = self._next
        near = "at the end" if token.kind is TokenKind.END else f"near {token.raw[:40]!r}"
        return invalid_query(f"syntax error at character {token.position} {near}: expected {expected}{hint}")
