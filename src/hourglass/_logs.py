"""Loggers that say who speaks: the workflow, the attempt or the operation whose code has logged."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Speaker:
    """Whose code has logged."""

    place: str
    """In words, for the end of the message."""
    names: Mapping[str, object] = field(default_factory=dict)
    """Attributes of the record, unless its author has given others of these names."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Attributes of the record whatever its author has given."""


class SpeakerLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the speaker to each record, as attributes and at the end of the message."""

    def speaker(self) -> Speaker | None:
        """Whose code this is called by; None outside of all."""
        raise NotImplementedError

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """The message and the attributes of a record."""
        source = self.speaker()
        if source is None:
            return msg, kwargs
        kwargs["extra"] = {**source.names, **(kwargs.get("extra") or {}), **source.facts}
        # The message may still be formatted with arguments, or not: a per cent sign would mean something in
        # one case only.
        return f"{msg} ({source.place.replace('%', '_')})", kwargs
