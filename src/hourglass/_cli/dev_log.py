"""Tracebacks under `hourglass dev`: the author's lines only, because ours are the same every time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from traceback import TracebackException, extract_tb

from hourglass._runtime.code_origin import is_ours


class AuthorsLines(logging.Filter):
    """Takes our own frames out of what is logged, unless there are no others."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let everything pass, with a shorter traceback."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            record.msg = f"{record.getMessage()}\n{shortened(error)}"
            record.args, record.exc_info = (), None
        return True


def _files(error: BaseException) -> Iterator[str]:
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield from (each.filename for each in extract_tb(link.__traceback__))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def shortened(error: BaseException) -> str:
    """The traceback of an error and its causes, without our frames; what was raised by us alone is a message."""
    if not any(not is_ours(file) for file in _files(error)):
        return "".join(TracebackException.from_exception(error).format_exception_only()).rstrip()
    told = TracebackException.from_exception(error)
    link: TracebackException | None = told
    while link is not None:
        own = [each for each in link.stack if not is_ours(each.filename)]
        if own:
            link.stack[:] = own
        link = link.__cause__ or link.__context__
    return "".join(told.format()).rstrip()
