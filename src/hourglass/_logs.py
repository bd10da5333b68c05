"""Loggers that add the source of a message: the workflow, attempt or operation that logged it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Speaker:
    """The source of a log record."""

    place: str
    """The description of the source, appended to the message."""
    names: Mapping[str, object] = field(default_factory=dict)
    """Record attributes that the author may override."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Record attributes that the author cannot override."""


class SpeakerLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that adds the source to each record, as attributes and at the end of the message."""

    def speaker(self) -> Speaker | None:
        """Return the source of messages from the calling code; None if there is none."""
        raise NotImplementedError

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the message and the keyword arguments of a record, with the source added."""
        source = self.speaker()
        if source is None:
            return msg, kwargs
        kwargs["extra"] = {**source.names, **(kwargs.get("extra") or {}), **source.facts}
        # The message may or may not be formatted with arguments. A percent sign would have a meaning only if it is.
        return f"{msg} ({source.place.replace('%', '_')})", kwargs
