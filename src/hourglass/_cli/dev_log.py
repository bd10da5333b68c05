"""Tracebacks under `hourglass dev`: the author's lines only, because ours are the same every time."""

from __future__ import annotations

import logging
from traceback import TracebackException

from hourglass._runtime.places import is_ours


class AuthorsLines(logging.Filter):
    """Takes our own frames out of what is logged, unless there are no others."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let everything pass, with a shorter traceback."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            record.msg = f"{record.getMessage()}\n{shortened(error)}"
            record.args, record.exc_info = (), None
        return True


def shortened(error: BaseException) -> str:
    """The traceback of an error and its causes, without our frames."""
    told = TracebackException.from_exception(error)
    link: TracebackException | None = told
    while link is not None:
        own = [each for each in link.stack if not is_ours(each.filename)]
        if own:
            link.stack[:] = own
        link = link.__cause__ or link.__context__
    return "".join(told.format()).rstrip()
