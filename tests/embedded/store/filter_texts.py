"""Conditions of list filters: generated ones, and their text."""

from __future__ import annotations

from hypothesis import strategies as st

from hourglass._embedded.store import filters as f

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.sampled_from(["WorkflowId", "Region", "Amount", "some thing", "SELECT", "a.b", "x;--", "'"])
LITERALS = st.one_of(
    TEXTS,
    st.booleans(),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)
LEAVES: st.SearchStrategy[f.Condition] = st.one_of(
    st.builds(f.Comparison, NAMES, st.sampled_from(sorted(f.NEGATED)), LITERALS),
    st.builds(f.Membership, NAMES, st.lists(LITERALS, min_size=1, max_size=3).map(tuple), st.booleans()),
    st.builds(f.Between, NAMES, LITERALS, LITERALS, st.booleans()),
    st.builds(f.Missing, NAMES, st.booleans()),
)


def combined(leaves: st.SearchStrategy[f.Condition], max_leaves: int) -> st.SearchStrategy[f.Condition]:
    """Return combinations of these conditions."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(f.Not, inner),
            st.builds(f.And, st.lists(inner, min_size=2, max_size=3).map(tuple)),
            st.builds(f.Or, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        ),
        max_leaves=max_leaves,
    )


CONDITIONS = combined(LEAVES, 8)


def written(condition: f.Condition) -> str:
    """Return a condition as filter text."""
    match condition:
        case f.And(conditions):
            return " AND ".join(f"({written(each)})" for each in conditions)
        case f.Or(conditions):
            return " OR ".join(f"({written(each)})" for each in conditions)
        case f.Not(inner):
            return f"NOT ({written(inner)})"
        case f.Comparison(name, operator, value):
            return f"`{name}` {operator} {literal(value)}"
        case f.Membership(name, values, negated):
            return f"`{name}` {'NOT ' if negated else ''}IN ({', '.join(map(literal, values))})"
        case f.Between(name, low, high, negated):
            return f"`{name}` {'NOT ' if negated else ''}BETWEEN {literal(low)} AND {literal(high)}"
        case f.Missing(name, negated):
            return f"`{name}` IS {'NOT ' if negated else ''}NULL"


def literal(value: f.Literal) -> str:
    """Return a value as filter text."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
        case _:
            return repr(value)
