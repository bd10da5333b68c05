"""Tokens: an order as a short string. Pure.

`4.2-9.1` means the third option at the fifth choice, and the second at the tenth. Only deviations are listed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hourglass.errors import UsageError

_TOKEN = re.compile(r"\d{1,6}\.\d{1,6}(-\d{1,6}\.\d{1,6})*")
USUAL = "usual"


def token_of(script: Sequence[int]) -> str:
    """Return the token for an order."""
    named = [f"{place}.{choice}" for place, choice in enumerate(script) if choice]
    return "-".join(named) or USUAL


def script_of(token: str) -> tuple[int, ...]:
    """Return the order for a token. Raise `UsageError` if the token is not valid."""
    if token == USUAL:
        return ()
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise UsageError(
            f"story= must be a token from the message of a failed exploration, such as '4.2-9.1', not {token!r:.80}"
        )
    script: list[int] = []
    for deviation in token.split("-"):
        place, choice = map(int, deviation.split("."))
        if place < len(script):
            raise UsageError(f"story={token!r}: its positions must increase")
        script += [0] * (place - len(script)) + [choice]
    return tuple(script)
