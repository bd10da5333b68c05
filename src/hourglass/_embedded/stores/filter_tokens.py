"""The words of a list filter: names, keywords, quoted texts, numbers and signs, each with its place.

Must not know: what they mean together. The lexical rules are those of the Temporal server, which reads filters
with a MySQL parser: names in backticks, texts in either quotes with a doubled quote or a backslash inside,
comments. Invariant: whatever the text, the outcome is a tuple of tokens that ends with `END`, or a `ServiceError`
that says where it went wrong.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum

from hourglass.errors import ServiceError

_INT64 = range(-(2**63), 2**63)


class Kind(Enum):
    """What a token is, worded for error messages."""

    NAME = "a name"
    KEYWORD = "a keyword"
    TEXT = "a quoted text"
    NUMBER = "a number"
    SIGN = "a sign"
    END = "the end"


@dataclass(frozen=True)
class Token:
    """One word: what it is, its value (keywords in capitals), how it was written and where, counted from 1."""

    kind: Kind
    value: str | int | float
    raw: str
    position: int


KEYWORDS = frozenset(
    {
        *("AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL", "STARTS_WITH", "TRUE", "FALSE"),
        *("GROUP", "BY", "ORDER", "LIMIT", "LIKE", "REGEXP", "SELECT", "WHERE"),  # these to be refused
    }
)
"""Words that are no names, unless in backticks."""

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
_SAME = {"<>": "!=", "&&": "AND", "||": "OR"}


def refusal(message: str) -> ServiceError:
    """The error for a filter that cannot be understood."""
    return ServiceError(f"invalid query: {message}", status="INVALID_ARGUMENT")


def tokens(text: str) -> tuple[Token, ...]:
    """The words of a filter."""
    found: list[Token] = []
    place = 0
    while place < len(text):
        match = _SCANNER.match(text, place)
        if match is None or match.lastgroup is None:
            raise refusal(f"syntax error at character {place + 1} near {text[place : place + 20]!r}")
        if match.lastgroup != "space":
            found.append(_token(match.lastgroup, match.group(), place + 1))
        place = match.end()
    found.append(Token(Kind.END, "", "", len(text) + 1))
    return tuple(found)


def _token(group: str, raw: str, position: int) -> Token:
    match group:
        case "text":
            return Token(Kind.TEXT, _unquoted(raw, position), raw, position)
        case "quoted":
            return Token(Kind.NAME, raw.replace("`", ""), raw, position)
        case "number":
            return Token(Kind.NUMBER, _number(raw, position), raw, position)
        case "word":
            keyword = raw.upper()
            if keyword in KEYWORDS:
                return Token(Kind.KEYWORD, keyword, raw, position)
            return Token(Kind.NAME, raw, raw, position)
        case _:
            value = _SAME.get(raw, raw)
            return Token(Kind.KEYWORD if value in KEYWORDS else Kind.SIGN, value, raw, position)


def _unquoted(raw: str, position: int) -> str:
    quote = raw[0]
    # A quote that is escaped by a backslash may stand beside a doubled one: one pass over both.
    pattern = re.compile(rf"\\(.)|{quote}{quote}", re.DOTALL)
    value = pattern.sub(lambda m: quote if m[1] is None else _ESCAPES.get(m[1], m[1]), raw[1:-1])
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refusal(f"the text at character {position} is not Unicode") from None
    return value


def _number(raw: str, position: int) -> int | float:
    if raw.isdecimal() and len(raw) < 25 and int(raw) in _INT64:
        return int(raw)
    value = float(raw)  # whole numbers of more than 64 bits too, as the server has it
    if math.isinf(value):
        raise refusal(f"the number at character {position} is too large")
    return value
