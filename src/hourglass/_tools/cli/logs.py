"""Log formats of a worker: readable lines (`pretty`), or one JSON document per line (`json`). Logs are written to stderr,
because stdout belongs to the author's code.

Untrusted text is escaped as in `console`. In a pretty log only the first line of a record starts in the first
column, so that a newline in an id or a failure message cannot forge a record.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

from hourglass._tools.cli.console import clean, json_text, one_line

_COLOURS = {"WARNING": "33", "ERROR": "31", "CRITICAL": "31;1", "DEBUG": "2"}


class PrettyFormatter(logging.Formatter):
    """A formatter that writes time, level, source and message, coloured in a terminal."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Format a record. A traceback or a stack adds further lines."""
        moment = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        who = one_line(record.name.removeprefix("hourglass."))
        level = f"{record.levelname:<7}"
        if self._colour and record.levelname in _COLOURS:
            level = f"\x1b[{_COLOURS[record.levelname]}m{level}\x1b[0m"
        return f"{moment} {level} {_indented(clean(f'{who}: {_message(self, record)}'))}"


_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "message",
    "asctime",
    "taskName",
}
_GROUPS = ("hourglass_workflow", "hourglass_activity")
_RENAMED = {"workflow_run_id": "run_id"}


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the structured fields of a record: its workflow and activity, and the author's `extra=`."""
    fields: dict[str, object] = {} if any(hasattr(record, group) for group in _GROUPS) else _speaker()
    for name, value in vars(record).items():
        if name not in _STANDARD and name not in _GROUPS:
            fields[_RENAMED.get(name, name)] = value
    for group in _GROUPS:
        facts = getattr(record, group, None)
        if isinstance(facts, Mapping):
            fields = {
                **{_RENAMED.get(str(name), str(name)): value for name, value in facts.items()},
                **fields,
            }
    return fields


def _speaker() -> dict[str, object]:
    """Return the current attempt or run, for records from loggers of the author or a library."""
    if "hourglass.worker" not in sys.modules:
        return {}  # no user code runs in this process, and help need not load the worker
    from hourglass import activity, workflow

    if activity.in_activity():
        attempt = activity.info()
        return {_RENAMED.get(name, name): getattr(attempt, name) for name in _OF_ATTEMPT}
    if workflow.in_workflow():
        run = workflow.info()
        return {name: getattr(run, name) for name in _OF_RUN}
    return {}


_OF_RUN = ("workflow_id", "run_id", "workflow_type", "attempt", "namespace", "task_queue")
_OF_ATTEMPT = (
    *("workflow_id", "workflow_run_id", "workflow_type", "activity_type", "activity_id"),
    *("attempt", "namespace", "task_queue"),
)


class JsonFormatter(logging.Formatter):
    """A formatter that writes one JSON document per line. No `extra=` can override our own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record. An exception has a separate field."""
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            document["stack"] = record.stack_info
        more = {name: value for name, value in fields_of(record).items() if name not in document}
        try:
            return json_text({**document, **more}, default=str)
        except (
            Exception
        ):  # a key that is not a str, a cycle, or a `__str__` that raises: not representable in JSON
            return json_text({**document, **{name: _repr(value) for name, value in more.items()}})


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"({type(value).__name__}, whose repr raised {type(error).__name__})"


class PlainFormatter(logging.Formatter):
    """A formatter that writes only the message, for commands that do not log themselves."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        return _indented(clean(_message(self, record)))


def configure(form: str, level: str) -> None:
    """Configure logging to stderr with this format and level."""
    handler = logging.StreamHandler(sys.stderr)
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    handler.setFormatter(JsonFormatter() if form == "json" else PrettyFormatter(colour=colour))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    text = record.getMessage().rstrip("\n")
    if record.exc_info:
        text += "\n" + formatter.formatException(record.exc_info)
    return text
