"""Loggers that add the source of a message: the workflow, attempt or operation whose code has logged it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Speaker:
    """The source of a log record."""

    place: str
    """Its description, appended to the message."""
    names: Mapping[str, object] = field(default_factory=dict)
    """Record attributes that the author may override."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Record attributes that the author cannot override."""


class SpeakerLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the source to each record, as attributes and at the end of the message."""

    def speaker(self) -> Speaker | None:
        """Return the source for the calling code; None if there is none."""
        raise NotImplementedError

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the message and the attributes of a record."""
        source = self.speaker()
        if source is None:
            return msg, kwargs
        kwargs["extra"] = {**source.names, **(kwargs.get("extra") or {}), **source.facts}
        # The message may be formatted with arguments or not: a percent sign would have a meaning in one case
        # only.
        return f"{msg} ({source.place.replace('%', '_')})", kwargs
