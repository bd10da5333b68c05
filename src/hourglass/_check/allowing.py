"""Comments that silence: `# hourglass: allow` on a line, or `# hourglass: allow HG101, HG104` for some codes only."""

from __future__ import annotations

import io
import re
import tokenize

EVERYTHING = frozenset({"*"})
"""What a comment without codes allows."""

_COMMENT = re.compile(r"#\s*hourglass:\s*allow\b(?P<codes>(?:[\s,]+HG\d+\b)*)", re.IGNORECASE)


def allowed_lines(text: str) -> dict[int, frozenset[str]]:
    """The lines that carry such a comment, and the codes that each allows."""
    if "hourglass:" not in text.lower():
        return {}
    found: dict[int, frozenset[str]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if match is not None:
                codes = re.findall(r"HG\d+", match["codes"].upper())
                found[token.start[0]] = frozenset(codes) or EVERYTHING
    except (tokenize.TokenError, SyntaxError):
        pass  # it is reported as broken by whoever parses it
    return found


def allows(allowed: frozenset[str], code: str) -> bool:
    """Whether these codes silence that one."""
    return code in allowed or "*" in allowed
